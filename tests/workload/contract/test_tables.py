import csv
import io
import json
import math
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


def test_table_has_units_in_its_headings() -> None:
    assert render(frame(), COLUMNS, TableFormat.TABLE).splitlines() == [
        "model     step [ms]  attained [TFLOP/s]  data waits [%]  runs  spot",
        "resnet18      12.35               1.235           0.123     3  yes",
        "vgg16         100.0                   -            50.0     1  -",
    ]


def test_optional_column_shows_where_one_row_has_it() -> None:
    text = render(frame(note=[None, "2 failed"]), COLUMNS, TableFormat.TABLE)
    assert text.splitlines()[0].endswith("spot  note")
    assert text.splitlines()[2].endswith("-     2 failed")


def test_rows_are_as_good_as_a_frame() -> None:
    columns = [Column(name="gpu", heading="GPU"), Column(name="usd_per_h", heading="price", unit="USD/h")]
    records = [{"gpu": "t4", "usd_per_h": 0.54, "unused": 1}, {"gpu": "h100", "usd_per_h": None, "unused": 2}]
    for form in TableFormat:
        assert render(records, columns, form) == render(pd.DataFrame(records), columns, form)


def test_json_keeps_every_digit_and_says_null() -> None:
    parsed = json.loads(render(frame(), COLUMNS, TableFormat.JSON))
    assert parsed[0] == {
        "model": "resnet18",
        "step_s": 0.0123456789,
        "flop_per_s": 1.234567e12,
        "wait_fraction": 0.00123456,
        "runs": 3,
        "spot": True,
        "note": None,
    }
    assert parsed[1]["flop_per_s"] is None


def test_csv_keeps_every_digit_and_leaves_absent_cells_empty() -> None:
    assert render(frame(), COLUMNS, TableFormat.CSV).splitlines() == [
        "model,step_s,flop_per_s,wait_fraction,runs,spot,note",
        "resnet18,0.0123456789,1234567000000.0,0.00123456,3,true,",
        "vgg16,0.1,,0.5,1,,",
    ]


def test_times_and_lists() -> None:
    columns = (Column(name="at", heading="at"), Column(name="notes", heading="notes"))
    table = pd.DataFrame({"at": pd.to_datetime([datetime(2026, 11, 21, tzinfo=UTC), None]), "notes": [["a", "b"], []]})
    assert json.loads(render(table, columns, TableFormat.JSON)) == [
        {"at": "2026-11-21T00:00:00+00:00", "notes": ["a", "b"]},
        {"at": None, "notes": []},
    ]
    assert render(table, columns, TableFormat.CSV).splitlines()[1:] == [
        '2026-11-21T00:00:00+00:00,"[""a"", ""b""]"',
        ",[]",
    ]
    assert render(table, columns, TableFormat.TABLE).splitlines()[1:] == ["2026-11-21T00:00:00+00:00  a; b", "-"]


@pytest.mark.parametrize("form", TableFormat)
def test_no_row(form: TableFormat) -> None:
    text = render(frame().iloc[:0], COLUMNS, form)
    assert (
        text
        == {
            TableFormat.TABLE: "model  step [s]  attained [FLOP/s]  data waits [%]  runs  spot",
            TableFormat.JSON: "[]",
            TableFormat.CSV: "model,step_s,flop_per_s,wait_fraction,runs,spot,note",
        }[form]
    )


@pytest.mark.parametrize(
    ("values", "heading", "cells"),
    [
        ([5.07, 0.0009], "t [s]", ["5.070", "0.0009000"]),
        ([7200.0], "t [s]", ["7200"]),
        ([0.9994], "t [ms]", ["999.4"]),
        ([1e-3], "t [ms]", ["1.000"]),
        ([2e-5], "t [µs]", ["20.00"]),
        ([3e-9], "t [µs]", ["0.003000"]),
        ([0.0], "t [s]", ["0"]),
        ([math.inf], "t [s]", ["-"]),
    ],
)
def test_prefix_suits_the_largest_value(values: list[float], heading: str, cells: list[str]) -> None:
    column = Column(name="t", heading="t", unit="s", prefixed=True)
    lines = render(pd.DataFrame({"t": values}), (column,), TableFormat.TABLE).splitlines()
    assert [line.strip() for line in lines] == [heading, *cells]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (32.0, "32.00"),
        (1107.0, "1107"),
        (1234567.0, "1234567"),
        (312.185, "312.2"),
        (0.000123456, "0.0001235"),
        (0.0000123456, "1.235e-05"),
        (1e15, "1.000e+15"),
        (-2.5, "-2.500"),
        (9.99996, "10.000"),
    ],
)
def test_numbers_have_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "cell"), [(3, "3"), (32.0, "32"), (2.5, "2.500"), (10**400, "1" + "0" * 400), (True, "yes")]
)
def test_counts_have_no_decimals(value: object, cell: str) -> None:
    table = pd.DataFrame({"a": [value]}, dtype=object)
    assert render(table, (Column(name="a", heading="a"),), TableFormat.TABLE).splitlines()[1] == cell


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


def test_numpy_values_are_plain_numbers() -> None:
    table = pd.DataFrame({"a": np.array([1.5], np.float32)})
    assert json.loads(render(table, (Column(name="a", heading="a"),), TableFormat.JSON)) == [{"a": 1.5}]


# --- as wide as the terminal

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


def test_what_all_rows_share_is_said_once() -> None:
    rows = [line("vgg16", "warm; one run"), line("alexnet", "one run")]
    assert render(rows, REPORT, TableFormat.TABLE, width=120).splitlines() == [
        "place here",
        "model    images/s  time of a step [ms]  share of the wall time [%]  verdict                        note",
        "vgg16       123.4                250.0                       50.00  vgg16 is as fast as it gets    1",
        "alexnet     123.4                250.0                       50.00  alexnet is as fast as it gets",
        "note       one run",
        "note 1     warm",
    ]


def test_a_narrow_table_says_what_it_leaves_out() -> None:
    rows = [line("vgg16"), line("alexnet")]
    shown = render(rows, REPORT, TableFormat.TABLE, width=26)
    assert "not shown  share of the wall" in shown
    assert shown.split()[-3:] == ["--wide", "shows", "all"]
    assert "wall" not in shown.partition("not shown")[0]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    name = "20261121T162103Z-local-cpu-shufflenet_v2_x0_5-b2-fp32-{:06x}"
    rows = [line(name.format(number), "a note; " * number + "x") for number in range(3)]
    assert max(map(len, render(rows, REPORT, TableFormat.TABLE, width=width).splitlines())) <= max(width, 64)


def test_wide_holds_everything_in_a_line_per_row() -> None:
    heading, *rows = render([line("vgg16", "n")], REPORT, TableFormat.TABLE, wide=True).splitlines()
    assert heading.split("  ")[0] == "place"
    assert heading.endswith("note  compile")
    assert len(rows) == 1


def test_a_detail_is_shown_where_rows_differ_in_it() -> None:
    text = render([line("vgg16"), line("vgg16", compiled=True)], REPORT, TableFormat.TABLE, width=200)
    assert text.splitlines()[:3] == [
        "place here; model vgg16",
        "compile  images/s  time of a step [ms]  share of the wall time [%]  verdict",
        "no          123.4                250.0                       50.00  vgg16 is as fast as it gets",
    ]


def test_a_detail_that_takes_the_room_of_a_figure_is_a_note_of_the_rows_that_it_tells_apart() -> None:
    columns = [column for column in REPORT if column.role is not SENTENCE]
    rows = [line("vgg16"), line("vgg16", compiled=True), line("alexnet", compiled=True)]
    lines = render(rows, columns, TableFormat.TABLE, width=38).splitlines()
    assert lines[6:] == [
        "model    images/s   [ms]    [%]  note",
        "vgg16       123.4  250.0  50.00  1",
        "vgg16       123.4  250.0  50.00  2",
        "alexnet     123.4  250.0  50.00",
        "note 1     compile no",
        "note 2     compile yes",
        "not shown  compile; --wide shows all",
    ]


@pytest.mark.parametrize(
    ("texts", "cells"),
    [
        (("a-name-of-thirty-letters-or-so", "short"), ("a-name…s-or-so", "short")),
        (("zone-10-of-the-same-long-device", "zone-11-of-the-same-long-device"), ("zone-10-of…ice", "zone-11-of…ice")),
        (("a-zone-with-10-of-the-name", "a-zone-with-11-of-the-name"), ("a-zone-with-10…", "a-zone-with-11…")),
    ],
)
def test_a_long_name_is_cut_where_it_says_least(texts: tuple[str, ...], cells: tuple[str, ...]) -> None:
    columns = (Column(name="name", heading="name", role=FACT), Column(name="x", heading="x"))
    rows = [{"name": text, "x": number} for number, text in enumerate(texts)]
    shown = render(rows, columns, TableFormat.TABLE, width=20).splitlines()[1:]
    assert tuple(row.split()[0] for row in shown) == cells


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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            {"a": 1, "spec": {"model": "x", "none": None}, "words": ["-m", "y"], "empty": {}, "places": [{"n": 1}, {}]},
            'name,value\na,1\nspec.model,x\nspec.none,\nwords,"[""-m"", ""y""]"\nplaces.0.n,1',
        ),
        ([{"a": 1, "of": {"b": True}}, {"a": "=2", "c": "x\ny"}], "a,of.b,c\n1,true,\n'=2,,x\\ny"),
        ({"exit_code": 0, "runs": [{"a": 1}]}, "a\n1"),
        ({"exit_code": 6, "runs": []}, "name,value\nexit_code,6\nruns,[]"),
        ({"\x1b[2J": 1}, "name,value\n\\x1b[2J,1"),
        ([], ""),
    ],
)
def test_plain_values_as_csv(value: object, expected: str) -> None:
    rows_of = "runs" if isinstance(value, dict) else ""
    assert plain(value, TableFormat.CSV, rows_of=rows_of) == expected
    assert json.loads(plain(value, TableFormat.JSON)) == value
