import csv
import io
import math
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.readers.iteration_log import Log, is_log, meanings, read
from tests.analysis.sentence_runs import Golden
from workload.contract.errors import ExitCode, UsageError

HEADER = "env,device,model,batch_size,iter_idx,iter_time_ms,imgs_per_sec,timestamp"
ROW = "envA,cuda,resnet50,64,0,199.29,321.14,1763159639.5"


def log(*rows: str, header: str = HEADER, end: str = "\n") -> Log:
    (only,) = read("\n".join([header, *rows]) + end, file="log.csv")
    return only


def refusal(*rows: str, header: str = HEADER, end: str = "\n") -> str:
    with pytest.raises(UsageError) as caught:
        log(*rows, header=header, end=end)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
    return str(caught.value)


def test_columns_get_our_names_and_units() -> None:
    found = log(ROW, ROW.replace("199.29", "81.5").replace("639.5", "639.75"))
    assert found.series == {
        "step_s": [pytest.approx(0.19929), 0.0815],
        "images_per_s": [321.14, 321.14],
        "timestamp": [1763159639.5, 1763159639.75],
        "step": [0.0, 0.0],
    }
    assert found.labels == {"model": "resnet50", "batch_size": "64", "device_type": "cuda", "place": "envA"}
    assert (found.rows, found.cut, list(found.ignored)) == (2, 0, [])


@pytest.mark.parametrize(
    ("column", "cell", "step_s"),
    [
        ("iter_time_ms", "250", 0.25),
        ("iter_time_s", "0.25", 0.25),
        ("step_s", "0.25", 0.25),
        ("step_time_ms", "250", 0.25),
        ("batch_time", "0.25", 0.25),
        (" Iter_Time_MS ", "2.5e2", 0.25),
    ],
)
def test_units_come_from_the_table(column: str, cell: str, step_s: float) -> None:
    assert log(cell, cell, header=column).series["step_s"] == [pytest.approx(step_s)] * 2


def test_every_meaning_is_sourced() -> None:
    for meaning in meanings().values():
        assert meaning.source
        assert meaning.factor > 0
        assert meaning.name == meaning.name.lower()


@pytest.mark.parametrize(
    ("cell", "unix_s"),
    [
        ("1763159639.9817827", 1763159639.9817827),
        ("1763159639981", 1763159639.981),
        ("2025-11-14T22:33:59.5Z", 1763159639.5),
        ("2025-11-14T23:33:59.5+01:00", 1763159639.5),
        ("", None),
        ("NaN", None),
    ],
)
def test_time_stamps(cell: str, unix_s: float | None) -> None:
    found = log(f"0.1,{cell}", header="step_s,timestamp").series["timestamp"]
    assert found == [unix_s if unix_s is None else pytest.approx(unix_s, abs=1e-6)]


# Header, and rows.
REFUSED: tuple[tuple[str, ...], ...] = (
    ("step_s", "abc"),
    ("step_s", "1_000"),
    ("step_s", "inf"),
    ("step_s", "1e400"),
    ("step_s", "1e13"),
    ("step_s", "1e-13"),
    ("step_s", "0"),
    ("step_s", "-0.1"),
    ("step_s,data_s", "0.1,-0.1"),
    ("step_s,timestamp", "0.1,12.5"),
    ("step_s,timestamp", "0.1,noon"),
    ("step_s,timestamp", "0.1,0001-01-01T00:00:00+14:00"),
    ("step_s,loss", "0.1"),
    ("step_s", "0.1,0.2"),
    ("step_s", "\0"),
    ("iter_time,speed", "1,2"),
    (HEADER,),
    ("",),
    ("step_s,model", ",a", ",b"),
    ("iter_time_ms,imgs_per_sec,loss", ",nan,1", "-,,2"),
    (HEADER, ROW, "envA,cuda,resn", ROW),
    # A blank line counts.
    ("step_s", "0.1", "", "x"),
)


def test_what_cannot_be_read_is_named(golden: Golden) -> None:
    said = [(lines, refusal(*lines[1:], header=lines[0])) for lines in REFUSED]
    golden("iterations.txt", "".join(f"{' | '.join(lines)!r}\n    {message}\n" for lines, message in said))


def test_one_timed_row_is_enough() -> None:
    first, second = read("images_per_s,model\n10,a\n,b\n", file="log.csv")
    assert [run.figures and run.figures.images_per_s for run in (first, second)] == [10, None]
    assert log(",1763159639.5", header="step_s,timestamp").series["timestamp"] == [1763159639.5]


def test_half_a_last_row_is_left_out_and_counted() -> None:
    found = log(ROW, ROW, "envA,cuda,resn", end="")
    assert (found.rows, found.cut) == (2, 1)


def test_absent_cells_are_absent() -> None:
    found = log("0.1,,NaN", ",n/a,-", header="step_s,data_s,loss")
    assert found.series == {"step_s": [0.1, None], "data_s": [None, None], "loss": [None, None]}


def test_first_in_the_table_wins_and_the_rest_is_ignored() -> None:
    found = log("1,100,7,9", "1,100,7,9", header="step_s,iter_time_ms,lr,step_s")
    assert found.series["step_s"] == [0.1, 0.1]
    assert list(found.ignored) == ["step_s", "lr", "step_s"]


@pytest.mark.parametrize(
    ("header", "known"),
    [
        (["iter_time_ms"], True),
        (["a", "IMGS_PER_SEC"], True),
        (["timestamp", "loss"], False),
        (["ID", "Kernel Name"], False),
        ([], False),
    ],
)
def test_is_log(header: list[str], known: bool) -> None:
    assert is_log(header) is known


CELLS = st.text(max_size=12) | st.floats().map(str) | st.integers().map(str) | st.sampled_from(["", "0.1", "nan"])


def times(run: Log) -> list[float | None]:
    return [run.figures.step_s] if run.figures else [*run.series["step_s"], *run.series["timestamp"]]


@example([["", "", "", "0"], ["", "", "", "00"]], False)
@example([["1", "", "", "0"], ["", "", "", "00"]], False)
@given(st.lists(st.lists(CELLS, min_size=4, max_size=4), max_size=5), st.booleans())
def test_any_cells_are_values_or_refused(rows: list[list[str]], quoted: bool) -> None:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
    writer.writerows([["iter_time_ms", "timestamp", "loss", "model"], *rows])
    try:
        runs = read(text.getvalue(), file="log.csv")
    except UsageError:
        return
    assert any(value is not None for run in runs for value in times(run))
    for run in runs:
        if run.figures:
            assert (run.rows, len(run.iterations), len(run.lines), run.series) == (0, 0, 1, {})
        else:
            assert len(run.iterations) == len(run.lines) == run.rows
        for values in run.series.values():
            assert all(value is None or math.isfinite(value) for value in values)
            assert len(values) == run.rows


@given(st.text(max_size=200))
def test_any_text_is_a_log_or_refused(text: str) -> None:
    for content in (text, f"step_s,loss\n{text}"):
        with suppress(UsageError):
            assert all(run.rows or run.figures for run in read(content, file="log.csv"))
