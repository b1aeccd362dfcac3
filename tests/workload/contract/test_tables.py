"""Tables in all forms and widths as one golden page, and what no cell may do to it."""

import csv
import io
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload.contract.tables import Column, Role, TableFormat, number, plain, render, table_width

COLUMNS = (
    Column(name="model", heading="model"),
    Column(name="step_s", heading="step", unit="s", prefixed=True),
    Column(name="flop_per_s", heading="attained", unit="FLOP/s", prefixed=True),
    Column(name="wait_fraction", heading="data waits", unit="%", digits=3),
    Column(name="runs", heading="runs"),
    Column(name="spot", heading="spot"),
    Column(name="note", heading="note", optional=True),
)


def frame(**changes: list[object]) -> pd.DataFrame:
    plain: dict[str, list[object]] = {
        "model": ["resnet18", "vgg16"],
        "step_s": [0.0123456789, 0.1],
        "flop_per_s": [1.234567e12, math.nan],
        "wait_fraction": [0.00123456, 0.5],
        "runs": [3, 1],
        "spot": [True, None],
        "note": [None, None],
    }
    return pd.DataFrame(plain | changes)


FACT, NOTE, SENTENCE = Role.FACT, Role.NOTE, Role.SENTENCE
REPORT = (
    Column(name="place", heading="place", role=FACT),
    Column(name="model", heading="model", role=FACT),
    Column(name="images_per_s", heading="images/s"),
    Column(name="step_s", heading="time of a step", unit="s", prefixed=True),
    Column(name="share", heading="share of the wall time", unit="%"),
    Column(name="verdict", heading="verdict", role=SENTENCE),
    Column(name="note", heading="note", role=NOTE),
    Column(name="compile", heading="compile", role=FACT, detail=True),
)


def line(model: str, note: str | None = None, *, compiled: bool = False, **facts: Any) -> dict[str, Any]:
    return {
        "place": "here",
        "model": model,
        "images_per_s": 123.4,
        "step_s": 0.25,
        "share": 0.5,
        "verdict": f"{model} is as fast as it gets",
        "note": note,
        "compile": compiled,
        **facts,
    }


TABLE, CSV, JSON = TableFormat.TABLE, TableFormat.CSV, TableFormat.JSON
SECONDS = (Column(name="t", heading="t", unit="s", prefixed=True),)
ANY = (Column(name="a", heading="a"),)
TIMES = (Column(name="at", heading="at"), Column(name="notes", heading="notes"))
NAMES = (Column(name="name", heading="name", role=FACT), Column(name="x", heading="x"))
NO_SENTENCE = [column for column in REPORT if column.role is not SENTENCE]
# The largest value decides on the prefix.
PREFIXES = [[5.07, 0.0009], [7200.0], [0.9994], [1e-3], [2e-5], [3e-9], [0.0], [math.inf]]
NUMBERS = [0, 32.0, 1107.0, 1234567.0, 312.185, 0.000123456, 0.0000123456, 1e15, -2.5, 9.99996]
COUNTS: list[object] = [3, 32.0, 2.5, 10**40, True]
LONG_NAMES = [
    ("a-name-of-thirty-letters-or-so", "short"),
    ("zone-10-of-the-same-long-device", "zone-11-of-the-same-long-device"),
    ("a-zone-with-10-of-the-name", "a-zone-with-11-of-the-name"),
]
PLAIN: list[tuple[object, str]] = [
    ({"a": 1, "spec": {"model": "x", "none": None}, "words": ["-m", "y"], "empty": {}, "places": [{"n": 1}, {}]}, ""),
    ([{"a": 1, "of": {"b": True}}, {"a": "=2", "c": "x\ny"}], ""),
    ({"exit_code": 0, "runs": [{"a": 1}]}, "runs"),
    ({"exit_code": 6, "runs": []}, "runs"),
    ({"\x1b[2J": 1}, ""),
    ([], ""),
]


def test_tables(golden: Callable[[str, str], None]) -> None:
    times = pd.DataFrame({"at": pd.to_datetime([datetime(2026, 11, 21, tzinfo=UTC), None]), "notes": [["a", "b"], []]})
    shared = [line("vgg16", "warm; one run"), line("alexnet", "one run")]
    detailed = [line("vgg16"), line("vgg16", compiled=True), line("alexnet", compiled=True)]
    sections = {
        **{f"a frame as {form}": render(frame(), COLUMNS, form) for form in TableFormat},
        "an optional column that one row has": render(frame(note=[None, "2 failed"]), COLUMNS, TABLE),
        **{f"times and lists as {form}": render(times, TIMES, form) for form in TableFormat},
        **{f"no row as {form}": render(frame().iloc[:0], COLUMNS, form) for form in TableFormat},
        **{f"seconds {values}": render(pd.DataFrame({"t": values}), SECONDS, TABLE) for values in PREFIXES},
        **{f"a count {value!r}": render(pd.DataFrame({"a": [value]}, dtype=object), ANY, TABLE) for value in COUNTS},
        "numbers": "\n".join(f"{value!r}: {number(value)}" for value in NUMBERS),
        "numbers of numpy": render(pd.DataFrame({"a": np.array([1.5], np.float32)}), ANY, JSON),
        "what all rows share is said once": render(shared, REPORT, TABLE, width=120),
        "a narrow table says what it leaves out": render([line("vgg16"), line("alexnet")], REPORT, TABLE, width=26),
        "a wide table has a line for each row": render([line("vgg16", "n")], REPORT, TABLE, wide=True),
        "a detail in which rows differ": render(detailed[:2], REPORT, TABLE, width=200),
        "a detail that takes the room of a figure": render(detailed, NO_SENTENCE, TABLE, width=38),
        **{
            f"long names {names}": render([{"name": name, "x": 1} for name in names], NAMES, TABLE, width=20)
            for names in LONG_NAMES
        },
        **{f"{value!r} as CSV": plain(value, CSV, rows_of=rows_of) for value, rows_of in PLAIN},
    }
    golden("tables.txt", "".join(f"## {title}\n{text}\n\n" for title, text in sections.items()))
    assert all(json.loads(plain(value, JSON)) == value for value, _ in PLAIN)


def test_rows_are_as_good_as_a_frame() -> None:
    columns = [Column(name="gpu", heading="GPU"), Column(name="usd_per_h", heading="price", unit="USD/h")]
    records = [{"gpu": "t4", "usd_per_h": 0.54, "unused": 1}, {"gpu": "h100", "usd_per_h": None, "unused": 2}]
    for form in TableFormat:
        assert render(records, columns, form) == render(pd.DataFrame(records), columns, form)


@pytest.mark.parametrize("form", [TableFormat.JSON, TableFormat.CSV])
def test_json_has_nothing_that_a_terminal_obeys_or_cannot_show(form: TableFormat) -> None:
    hostile = "\x1b[2J \x9b2J \u202e \ud800 \x7f \U000e0001 é µ 語"
    text = render(
        [{"model": [hostile], "x": hostile}], (Column(name="model", heading=""), Column(name="x", heading="")), form
    )
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "é µ 語" in text
    text.encode()
    if form is TableFormat.JSON:
        assert json.loads(text) == [{"model": [hostile], "x": hostile}]


def test_names_from_files_cannot_break_the_table() -> None:
    text = render(frame(model=["<b>\n\x1b[2J", "é µ"]), COLUMNS, TableFormat.TABLE)
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text
    assert "é µ" in text


CELLS = st.none() | st.text() | st.integers() | st.floats() | st.booleans()


@given(st.lists(st.tuples(CELLS, CELLS), max_size=5))
def test_any_cells_can_be_printed(cells: list[tuple[object, object]]) -> None:
    columns = (Column(name="a", heading="a", unit="s", prefixed=True), Column(name="b", heading="b"))
    table = pd.DataFrame({"a": [a for a, _ in cells], "b": [b for _, b in cells]}, dtype=object)
    assert len(render(table, columns, TableFormat.TABLE, wide=True).split("\n")) == len(cells) + 1
    assert len(json.loads(render(table, columns, TableFormat.JSON))) == len(cells)
    text = render(table, columns, TableFormat.CSV)
    if not any(isinstance(cell, str) and ("\r" in cell or "\0" in cell) for row in cells for cell in row):
        assert len(list(csv.reader(io.StringIO(text + "\n", newline="")))) == len(cells) + 1


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    name = "20261121T162103Z-local-cpu-shufflenet_v2_x0_5-b2-fp32-{:06x}"
    rows = [line(name.format(number), "a note; " * number + "x") for number in range(3)]
    assert max(map(len, render(rows, REPORT, TableFormat.TABLE, width=width).splitlines())) <= max(width, 64)


@pytest.mark.parametrize(("said", "width"), [(None, 100), ("80", 80), ("10", 40), ("1000", 200), ("wide", 100)])
def test_the_width_without_a_terminal(monkeypatch: pytest.MonkeyPatch, said: str | None, width: int) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if said:
        monkeypatch.setenv("COLUMNS", said)
    assert table_width() == width


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=cmd|'/c calc'!A1", "'=cmd|'/c calc'!A1"),
        ("+1", "'+1"),
        ("-rf", "'-rf"),
        ("@here", "'@here"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb", "a\\nb"),
        ("resnet18", "resnet18"),
    ],
)
def test_csv_is_no_formula_and_no_command(text: str, cell: str) -> None:
    columns = (Column(name="model", heading="model"), Column(name="x", heading="x"))
    out = render([{"model": text, "x": -1.5}], columns, TableFormat.CSV)
    assert list(csv.reader(io.StringIO(out))) == [["model", "x"], [cell, "-1.5"]]
