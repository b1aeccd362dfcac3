import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.loading.series import LAYOUTS, parse, refusals
from tests.analysis.sentence_runs import Golden

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


def refused(*changes: tuple[int, str, str], imported: bool = False) -> str | None:
    """The refusal of `ROWS` with some cells changed: row from 1, column, cell."""
    rows = [list(row) for row in ROWS]
    for number, column, cell in changes:
        rows[number - 1][list(STEPS.types).index(column)] = cell
    content = STEPS.header + "".join(",".join(row) + "\n" for row in rows).encode()
    series = parse(STEPS, [STEPS.header, content, content])
    nothing, first, second = refusals(series.lists, imported=[False, imported, imported])
    assert nothing is None
    assert first == second
    return first


# Row from 1, column, cell.
CHANGES = (
    (2, "loss", "inf"),
    (2, "phase", "mesured"),
    (2, "phase", ""),
    (1, "phase", "measured"),
    (2, "step", "0"),
    (3, "step", "0"),
    (3, "step", "9"),
    (1, "step", "-1"),
    (2, "step_s", "-0.09"),
    (2, "step_s", "0"),
    (2, "step_s", ""),
    (2, "data_s", "0"),
    (2, "data_s", "-0.01"),
    (2, "forward_s", "inf"),
    (2, "backward_s", "-1"),
    (2, "optimizer_s", ""),
    (2, "images", "0"),
    (2, "ended_at_s", "5.1"),
    (2, "ended_at_s", "inf"),
)


def test_impossible_rows_are_refused(golden: Golden) -> None:
    lines = []
    for change in CHANGES:
        ours, of_a_log = (refused(change, imported=imported) for imported in (False, True))
        row, column, cell = change
        lines.append(f"row {row}, {column} {cell!r}: {ours}" + ("" if of_a_log == ours else f"; of a log: {of_a_log}"))
    # The first row of the first rule is named.
    lines.append(f"several: {refused((1, 'images', '0'), (2, 'step_s', '-1'), (3, 'step_s', '-2'))}")
    golden("steps.txt", "\n".join([*lines, ""]))
