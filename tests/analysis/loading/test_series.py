import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.loading.series import LAYOUTS, parse, refusals

STEPS, TELEMETRY = LAYOUTS["steps"], LAYOUTS["telemetry"]
HEADER = STEPS.header
BETWEEN = ("phase", "ended_at_s", "step_s", "data_s", "forward_s", "backward_s", "optimizer_s", "images")
ROW = b"0,warmup,5.5,0.1,0.01,0.03,0.06,0.01,4,6.9\n"


def rows(content: bytes | None, layout: Any = STEPS) -> tuple[list[dict[str, Any]], list[str]]:
    series = parse(layout, [content])
    return [dict(row) for row in series.lists[0].as_py()], list(series.remarks[0])


def test_cells_are_typed() -> None:
    found, remarks = rows(HEADER + ROW)
    assert remarks == []
    assert found == [
        {
            "step": 0.0,
            "phase": "warmup",
            "ended_at_s": 5.5,
            "step_s": 0.1,
            "data_s": 0.01,
            "forward_s": 0.03,
            "backward_s": 0.06,
            "optimizer_s": 0.01,
            "images": 4.0,
            "loss": 6.9,
        }
    ]


def test_empty_is_absent_and_nan_is_a_loss() -> None:
    (found,), _ = rows(HEADER + b"3,measured,,0.1,,,,,4,nan\n")
    assert found["ended_at_s"] is None
    assert found["data_s"] is None
    assert math.isnan(found["loss"])


def test_mask_is_hexadecimal() -> None:
    found, remarks = rows(TELEMETRY.header + b"1.0,1590,5001,61,69.8,0x0000000000000024,99,,,,,,,,\n", TELEMETRY)
    assert remarks == []
    assert (found[0]["clock_event_reasons"], found[0]["sm_clock_mhz"]) == (36.0, 1590.0)


@pytest.mark.parametrize(
    ("content", "count", "remarks"),
    [
        (None, 0, []),
        (b"", 0, []),
        (HEADER, 0, []),
        (HEADER + ROW + ROW, 2, []),
        (HEADER + ROW + b"1,measured,6.5,0.", 1, []),
        (HEADER + ROW + b"1,measured\n", 1, ["steps.csv: 1 row with too many or too few cells; left out"]),
        (HEADER + ROW + b"\n" + ROW, 2, []),
        (HEADER.replace(b"\n", b"\r\n") + ROW.replace(b"\n", b"\r\n"), 1, []),
        (HEADER.replace(b"loss", b"lass") + ROW, 0, ["steps.csv has no column loss; left out"]),
        (b"step,loss,temperature\n0,0.1,61\n", 0, [f"steps.csv has no column {', '.join(BETWEEN)}; left out"]),
        (b"a,b\n1,2\n", 0, [f"steps.csv has none of the columns {', '.join(STEPS.types)}; left out"]),
    ],
)
def test_what_is_not_whole(content: bytes | None, count: int, remarks: list[str]) -> None:
    found, notes = rows(content)
    assert (len(found), notes) == (count, remarks)


def test_wrong_cell_is_said() -> None:
    found, (remark,) = rows(HEADER + ROW.replace(b"5.5", b"<b>"))
    assert found == []
    assert remark.startswith("steps.csv cannot be read: In CSV column #2")
    assert remark.endswith("invalid value '<b>'; left out")


def test_one_bad_file_spoils_no_other() -> None:
    series = parse(STEPS, [HEADER + ROW, HEADER + b"x,y\n", None, HEADER + ROW + ROW])
    assert [len(each) for each in series.lists.to_pylist()] == [1, 0, 0, 2]
    assert [len(each) for each in series.remarks] == [0, 1, 0, 0]


def test_both_ways_to_parse_agree() -> None:
    contents = [HEADER + ROW * number for number in (3, 0, 1)]
    together = parse(STEPS, contents)
    # A file without a header of ours sends all of them the other way.
    apart = parse(STEPS, [*contents, b"step\n1\n"])
    assert together.lists.to_pylist() == apart.lists.to_pylist()[:3]
    assert [len(each) for each in together.lists.to_pylist()] == [3, 0, 1]


@given(st.lists(st.binary(max_size=80), max_size=3), st.booleans())
def test_any_bytes_give_rows_or_a_remark(contents: list[bytes], with_header: bool) -> None:
    given_contents = [HEADER + content if with_header else content for content in contents]
    series = parse(STEPS, given_contents)
    assert len(series.lists) == len(series.remarks) == len(contents)


# --- what no steps.csv can hold, each rule on both sides

ROWS = (
    ("0", "warmup", "5.2", "0.15", "0.01", "0.05", "0.08", "0.02", "4", "6.9"),
    ("1", "measured", "5.3", "0.09", "0.01", "0.03", "0.05", "0.01", "4", "6.8"),
    ("2", "measured", "5.4", "0.09", "0.01", "0.03", "0.05", "0.01", "4", "nan"),
)


def refused(*changes: tuple[int, str, str], imported: bool = False, measured_s: float | None = 0.2) -> str | None:
    """The refusal of `ROWS` with some cells changed: row from 1, column, cell."""
    rows = [list(row) for row in ROWS]
    for number, column, cell in changes:
        rows[number - 1][list(STEPS.types).index(column)] = cell
    content = STEPS.header + "".join(",".join(row) + "\n" for row in rows).encode()
    series = parse(STEPS, [STEPS.header, content, content])
    nothing, first, second = refusals(
        series.lists, imported=[False, imported, imported], measured_s=[None, measured_s, measured_s]
    )
    assert nothing is None
    assert first == second
    return first


DURATION, STEP_TIME = "must be seconds from 0 to 1e+12", "must be seconds from 1e-12 to 1e+12"
WHOLE, GROWS, POSITIVE = "must be a whole number from 0 on", "must grow from row to row", "must be a positive number"
LATER, FITS = (
    "must be later than in the row before",
    "and step_s must fit between ended_at_s of the row before and its own",
)


def refusal_of(change: tuple[int, str, str], rule: str | None) -> str | None:
    """What names the rule that a changed cell breaks."""
    row, column, cell = change
    shown = (f"'{cell}'" if column == "phase" else cell) if cell else "an empty cell"
    return f"steps.csv row {row}: {column} {rule}; got {shown}" if rule else None


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param((2, "loss", "inf"), None, id="a loss may be anything"),
        pytest.param((2, "phase", "mesured"), "must be warmup or measured", id="misspelt"),
        pytest.param((2, "phase", ""), "must be warmup or measured", id="no phase"),
        pytest.param((3, "phase", "warmup"), "must not follow measured", id="warm-up last"),
        pytest.param((1, "phase", "measured"), None, id="no warm-up"),
        pytest.param((2, "step", "0"), GROWS, id="duplicated"),
        pytest.param((3, "step", "0"), GROWS, id="reversed"),
        pytest.param((3, "step", "9"), None, id="a gap"),
        pytest.param((1, "step", "-1"), WHOLE, id="negative step"),
        pytest.param((2, "step", "1.5"), WHOLE, id="half a step"),
        pytest.param((2, "step_s", "-0.09"), STEP_TIME, id="negative"),
        pytest.param((2, "step_s", "0"), STEP_TIME, id="no time"),
        pytest.param((2, "step_s", "nan"), STEP_TIME, id="nan"),
        pytest.param((2, "step_s", ""), STEP_TIME, id="empty"),
        pytest.param((2, "data_s", "0"), None, id="no wait"),
        pytest.param((2, "data_s", "-0.01"), DURATION, id="wait"),
        pytest.param((2, "forward_s", "inf"), DURATION, id="inf"),
        pytest.param((2, "backward_s", "-1"), DURATION, id="part"),
        pytest.param((2, "optimizer_s", ""), DURATION, id="no part"),
        pytest.param((2, "images", "0"), POSITIVE, id="no images"),
        pytest.param((2, "images", "-4"), POSITIVE, id="negative images"),
        pytest.param((2, "ended_at_s", "5.2"), LATER, id="stands"),
        pytest.param((3, "ended_at_s", "5.1"), LATER, id="back"),
        pytest.param((1, "ended_at_s", "-1"), DURATION, id="before 0"),
        pytest.param((2, "data_s", "0.0109"), None, id="a wait that just fits"),
        pytest.param((2, "data_s", "0.0111"), FITS, id="a wait that does not"),
    ],
)
def test_rows_of_ours(change: tuple[int, str, str], rule: str | None) -> None:
    assert refused(change) == refusal_of(change, rule)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param((2, "step_s", ""), None, id="a cell that the log lacks"),
        pytest.param((2, "ended_at_s", "5.1"), None, id="a clock that was set back"),
        pytest.param((1, "ended_at_s", "-1"), None, id="a clock that was set back at once"),
        pytest.param((2, "ended_at_s", "inf"), DURATION, id="inf"),
        pytest.param((2, "data_s", "0.05"), None, id="a timer that does not wait"),
        pytest.param((2, "step_s", "-1"), STEP_TIME, id="negative"),
        pytest.param((2, "images", "0"), POSITIVE, id="no images"),
        pytest.param((3, "step", "1"), GROWS, id="duplicated"),
    ],
)
def test_rows_of_a_log(change: tuple[int, str, str], rule: str | None) -> None:
    assert refused(change, imported=True) == refusal_of(change, rule)


def test_the_first_row_of_the_first_rule_is_said() -> None:
    refusal = refused((1, "images", "0"), (2, "step_s", "-1"), (3, "step_s", "-2"))
    assert refusal == refusal_of((2, "step_s", "-1"), STEP_TIME)


@pytest.mark.parametrize(
    ("measured_s", "expected"),
    [
        (None, None),
        (0.02, None),
        (0.019, "steps.csv: waits for data add up to 0.02 s; they must fit into the 0.019 s measured"),
    ],
)
@pytest.mark.parametrize("imported", [False, True])
def test_waits_must_fit_into_the_wall_time(measured_s: float | None, expected: str | None, imported: bool) -> None:
    assert refused(measured_s=measured_s, imported=imported) == expected


def test_clock_of_few_digits_may_stand_still() -> None:
    """CUDA events far from the first one are 32-bit floats of milliseconds: half a millisecond of two hours."""
    late: list[Any] = [(1, "ended_at_s", "7000"), (2, "ended_at_s", "7000"), (3, "ended_at_s", "7000.0005")]
    short = [(row, column, cell) for row in (2, 3) for column, cell in (("step_s", "0.0005"), ("data_s", "0"))]
    assert refused(*late, *short) is None
    assert refused(*late) == refusal_of((2, "ended_at_s", "7000"), LATER)
