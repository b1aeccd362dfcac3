import csv
import io
import math
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.readers.iteration_log import Log, is_log, meanings, read
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
    assert {field: meaning.name for field, meaning in found.columns.items()} == {
        "step_s": "iter_time_ms",
        "images_per_s": "imgs_per_sec",
        "timestamp": "timestamp",
        "step": "iter_idx",
        "model": "model",
        "batch_size": "batch_size",
        "device_type": "device",
        "place": "env",
    }
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


def test_every_meaning_is_sourced_and_used() -> None:
    for meaning in meanings().values():
        assert meaning.source
        assert meaning.factor > 0
        assert meaning.name == meaning.name.lower()
    assert {meaning.field for meaning in meanings().values()} == {
        "step_s",
        "data_s",
        "images_per_s",
        "timestamp",
        "step",
        "epoch",
        "loss",
        "model",
        "batch_size",
        "precision",
        "device_name",
        "device_type",
        "place",
        "torch",
        "image_size",
        "images",
        "elapsed_s",
        "run",
    }


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


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("step_s", "abc", "'log.csv' line 2: step_s is no number; got 'abc'"),
        ("step_s", "1_000", "'log.csv' line 2: step_s is no number; got '1_000'"),
        ("step_s", "inf", "'log.csv' line 2: step_s is no number; got 'inf'"),
        ("step_s", "1e400", "'log.csv' line 2: step_s is not a measured value; got '1e400'"),
        ("step_s", "1e13", "'log.csv' line 2: step_s is not a measured value; got '1e13'"),
        ("step_s", "1e-13", "'log.csv' line 2: step_s is not a measured value; got '1e-13'"),
        ("step_s", "0", "'log.csv' line 2: step_s must be positive; got '0'"),
        ("step_s", "-0.1", "'log.csv' line 2: step_s must be positive; got '-0.1'"),
        ("step_s,data_s", "0.1,-0.1", "'log.csv' line 2: data_s must not be negative; got '-0.1'"),
        (
            "step_s,timestamp",
            "0.1,12.5",
            "'log.csv' line 2: timestamp is no Unix time in seconds or milliseconds; got '12.5'",
        ),
        ("step_s,timestamp", "0.1,noon", "'log.csv' line 2: timestamp is neither Unix time nor ISO 8601; got 'noon'"),
        (
            "step_s,timestamp",
            "0.1,0001-01-01T00:00:00+14:00",
            "'log.csv' line 2: timestamp is an impossible date; got '0001-01-01T00:00:00+14:00'",
        ),
        ("step_s,loss", "0.1", "'log.csv' line 2 has 1 cells under 2 columns"),
        ("step_s", "0.1,0.2", "'log.csv' line 2 has 2 cells under 1 columns"),
        ("step_s", "\0", "'log.csv' is not text: it contains a zero byte"),
        (
            "iter_time,speed",
            "1,2",
            "'log.csv' has no column that is known to hold a step time; it has 'iter_time', 'speed'",
        ),
    ],
)
def test_what_cannot_be_read_is_named(header: str, row: str, message: str) -> None:
    assert refusal(row, header=header) == message


def test_no_row_and_no_header() -> None:
    assert refusal() == "'log.csv' has a header and no rows"
    assert refusal(header="") == "'log.csv' is empty"


@pytest.mark.parametrize(
    ("header", "rows", "empty"),
    [
        ("step_s,model", [",a", ",b"], "'step_s'"),
        ("iter_time_ms,imgs_per_sec,loss", [",nan,1", "-,,2"], "'iter_time_ms', 'imgs_per_sec'"),
    ],
)
def test_rows_without_a_time_are_refused(header: str, rows: list[str], empty: str) -> None:
    message = f"'log.csv' must time at least one row; no cell under {empty} has a value"
    assert refusal(*rows, header=header) == message


def test_one_timed_row_is_enough() -> None:
    first, second = read("images_per_s,model\n10,a\n,b\n", file="log.csv")
    assert [run.figures and run.figures.images_per_s for run in (first, second)] == [10, None]
    assert log(",1763159639.5", header="step_s,timestamp").series["timestamp"] == [1763159639.5]


def test_half_a_last_row_is_left_out_and_counted() -> None:
    found = log(ROW, ROW, "envA,cuda,resn", end="")
    assert (found.rows, found.cut) == (2, 1)
    assert refusal(ROW, "envA,cuda,resn", ROW) == "'log.csv' line 3 has 3 cells under 8 columns"


def test_blank_lines_do_not_shift_line_numbers() -> None:
    assert refusal("0.1", "", "x", header="step_s") == "'log.csv' line 4: step_s is no number; got 'x'"


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
