"""Prints a table on stdout: for people as wide as their terminal, or complete as JSON or CSV.

Standard library only.
"""

import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, assert_never

from workload.contract.text import (
    NARROWEST,
    PREFIXES,
    SECONDS_MATTER_UP_TO_S,
    SPANS,
    WIDEST,
    printable,
    terminal_width,
    wrapped,
)

# Largest factor of a prefix, by unit: no kiloseconds.
LARGEST_PREFIX = {"s": 1.0}
GAP = "  "
# Floats above this are not shown as counts, even without decimals.
MAX_COUNT = 1e15
# Width if stdout is no terminal and COLUMNS is not set: an editor or a page shows this much without a scroll bar.
USUAL_WIDTH = 100
# In a table that is too wide, names are cut to LONG_NAME characters; if the table is still too wide, to SHORT_NAME.
LONG_NAME, SHORT_NAME = 28, 14
# A spreadsheet reads a cell with one of these first characters as a formula.
FORMULA_STARTS = ("=", "+", "-", "@")
# Characters that JSON does not escape, but a terminal may not show.
BEYOND_ASCII = re.compile(r"[^\n -~]")


class TableFormat(StrEnum):
    """Format of a result on stdout."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Role(StrEnum):
    """Role of a column in a table for people; JSON and CSV ignore it.

    A `FACT` identifies a row's subject; a fact that is equal in all rows is printed once, above the table. A
    `FIGURE` is a result. A `NOTE` is a list of remarks (or a text of remarks, separated by semicolons), which are
    numbered and printed below the table. A `SENTENCE` is printed below its row if there is no room for its column.
    """

    FACT = "fact"
    FIGURE = "figure"
    NOTE = "note"
    SENTENCE = "sentence"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: `name` in the data, JSON and CSV; `heading` and `unit` for people. Order: the most important first.

    `unit` with `prefixed` gets one decimal prefix for the whole column (`step [ms]`); a `%` shows a fraction times 100.
    `digits`: significant digits. Absent values show as `-`; an `optional` column without any value is hidden.
    `detail`: the column is shown in a wide table, and otherwise only if it is a fact in which rows differ. If there is
    no room for it beside the figures, rows that are otherwise named alike get its value as a note.
    """

    name: str
    heading: str
    unit: str = ""
    prefixed: bool = False
    digits: int = 4
    optional: bool = False
    detail: bool = False
    role: Role = Role.FIGURE


def facts(**headings: str) -> tuple[Column, ...]:
    """Columns of facts; `headings`: the heading of each column, by the column's name."""
    return tuple(Column(name=name, heading=heading, role=Role.FACT) for name, heading in headings.items())


class DataFrameLike(Protocol):
    """Part of pandas.DataFrame's interface that a table needs."""

    def __getitem__(self, names: list[str], /) -> Any: ...


def render(
    table: DataFrameLike | Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    form: TableFormat,
    *,
    width: int | None = None,
    wide: bool = False,
) -> str:
    """Text of the `columns` of a frame or of rows, without a final newline.

    JSON and CSV keep every digit, and use the columns' names. A table for people is at most `width` characters wide, by
    default `table_width()`: the last columns are dropped, and the table names them. `wide`: show every column, in lines
    of any length.
    """
    rows = [
        {column.name: _plain(value) for column, value in zip(columns, values, strict=True)}
        for values in _values(table, [column.name for column in columns])
    ]
    match form:
        case TableFormat.TABLE if wide:
            return "\n".join(_lines([_as_text(column, rows) for column in columns if _has_values(column, rows)], {}))
        case TableFormat.TABLE:
            return _table(rows, columns, width or table_width())
        case TableFormat.JSON:
            return as_json(rows, indent=1)
        case TableFormat.CSV:
            return _csv(rows, columns)
        case _:
            assert_never(form)


def table_width() -> int:
    """Width of the terminal, 40 to 200; if stdout is no terminal, the variable COLUMNS or 100."""
    if width := terminal_width(sys.stdout):
        return width
    columns = os.environ.get("COLUMNS", "")
    return min(max(int(columns), NARROWEST), WIDEST) if columns.isdecimal() else USUAL_WIDTH


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON text that keeps printable letters and escapes characters that a terminal would obey or could not show."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return BEYOND_ASCII.sub(lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1], text)


def plain(value: Any, form: TableFormat, *, rows_of: str = "") -> str:
    """JSON or CSV of an object or a list of objects, as `json.dumps` takes them, without a final newline.

    CSV has a row for each object of a list; one object has rows with `name` and `value`. The name of a nested value is
    its path, for example `spec.batch_size` or `places.0.name`. `rows_of`: print as CSV only this list of the object,
    unless it is empty.
    """
    if form is TableFormat.JSON:
        return json.dumps(value, indent=1)
    value = (value.get(rows_of) if rows_of else None) or value
    is_table = isinstance(value, list)
    flat = [dict(_flat(each)) for each in value] if is_table else []
    rows = flat if is_table else [{"name": name, "value": each} for name, each in _flat(value)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return _csv(
        [{name: row.get(name) for name in names} for row in rows], [Column(name=name, heading=name) for name in names]
    )


def _flat(value: Mapping[str, Any] | Sequence[Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Paths of all plain values and their values. A list without objects is one value."""
    for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
        name = printable(str(key))
        has_objects = isinstance(each, list | tuple) and any(isinstance(item, Mapping) for item in each)
        if has_objects or isinstance(each, Mapping):
            yield from _flat(each, f"{before}{name}.")
        else:
            yield f"{before}{name}", _plain(each)


def _values(table: DataFrameLike | Sequence[Mapping[str, Any]], names: list[str]) -> Iterable[Sequence[Any]]:
    if isinstance(table, Sequence):
        return ([row[name] for name in names] for row in table)
    rows: Iterable[Sequence[Any]] = table[names].itertuples(index=False, name=None)
    return rows


def _plain(value: Any) -> Any:
    """Convert a value for JSON: absent values to None, numbers to Python's own types, times to ISO 8601."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        # NaT is a datetime that does not equal itself.
        return value.isoformat() if value == value else None  # noqa: PLR0124
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if value != value else str(value)  # noqa: PLR0124 - NaT, again


# --- CSV


def _csv(rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> str:
    import csv  # noqa: PLC0415 - milliseconds that a help text has no use for

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row.values()])
    return text.getvalue().removesuffix("\n")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        return as_json(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A name from a foreign file must not be a formula for a spreadsheet, or a command for a terminal.
        text = printable(value)
        return f"'{text}" if text.startswith(FORMULA_STARTS) else text
    return value


# --- a table for people


@dataclass(frozen=True, kw_only=True)
class _TextColumn:
    column: Column
    heading: tuple[str, ...]
    cells: tuple[str, ...]
    to_right: bool

    @property
    def width(self) -> int:
        return max(map(len, (*self.heading, *self.cells)))

    @property
    def is_fact(self) -> bool:
        return self.column.role is Role.FACT


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[Column], width: int) -> str:
    columns = [column for column in columns if _has_values(column, rows)]
    # Of the details, only facts in which rows differ may be shown.
    columns = [each for each in columns if not each.detail or (each.role is Role.FACT and _differs(each, rows))]
    common = [column for column in columns if column.role is Role.FACT and rows and not _differs(column, rows)]
    own = [column for column in columns if column not in common]
    body = _body(rows, own, [_notes(row, own) for row in rows], width)
    details = [column for column in own if column.detail]
    if details and (body.dropped or not _fits(body.shown, width)):
        own = [column for column in own if not column.detail]
        facts = [column.name for column in own if column.role is Role.FACT]
        by_row = [[*_notes(row, own), *_distinguishing_details(row, rows, facts, details)] for row in rows]
        body = _body(rows, own, by_row, width)
        more = f"{len(details)} more facts" if len(details) > 1 else details[0].heading
        body = replace(body, dropped=[*body.dropped, more])
    known = [column for column in common if rows[0][column.name] is not None]
    above = "; ".join(f"{column.heading} {_as_text(column, rows[:1]).cells[0]}" for column in known)
    left_out = f"{', '.join(dict.fromkeys(body.dropped))}; --wide shows all"
    return "\n".join(
        [
            *([wrapped(above, width)] if above else []),
            *_lines(body.shown, body.below),
            *(wrapped(note, width, indent=11, first="note") for note in body.for_all),
            *(wrapped(note, width, indent=11, first=f"note {number}") for note, number in body.numbers.items()),
            *([wrapped(left_out, width, indent=11, first="not shown")] if body.dropped else []),
        ]
    )


@dataclass(frozen=True, kw_only=True)
class _Body:
    """Content of a table for a given width: columns, sentences by row, notes of all rows, numbers of other notes.

    `dropped`: titles of the columns that did not fit.
    """

    shown: Sequence[_TextColumn]
    below: Mapping[int, Sequence[str]]
    for_all: Sequence[str]
    numbers: Mapping[str, int]
    dropped: Sequence[str]


def _body(
    rows: Sequence[dict[str, Any]], columns: Sequence[Column], notes_by_row: Sequence[Sequence[str]], width: int
) -> _Body:
    notes = [column for column in columns if column.role is Role.NOTE]
    sentences = [column for column in columns if column.role is Role.SENTENCE]
    for_all, numbers = _numbered(notes_by_row)
    shown = [_as_text(column, rows) for column in columns if column not in (*notes, *sentences)]
    shown.sort(key=lambda each: not each.is_fact)
    marks = []
    if numbers:
        column = Column(name=Role.NOTE, heading=Role.NOTE, role=Role.NOTE)
        mine = [[str(numbers[note]) for note in dict.fromkeys(notes) if note in numbers] for notes in notes_by_row]
        marks = [_TextColumn(column=column, heading=(Role.NOTE,), cells=tuple(map(",".join, mine)), to_right=False)]
    beside = [_as_text(column, rows) for column in sentences]
    below: dict[int, list[str]] = {}
    if not _fits([*shown, *beside, *marks], width):
        names = {each.name: f"{each.heading}: " if len(sentences) > 1 else "" for each in sentences}
        below = {
            number: [
                wrapped(f"{names[each.name]}{_cell(each, row[each.name], 1.0)}", width, indent=4)
                for each in sentences
                if row[each.name] is not None
            ]
            for number, row in enumerate(rows)
        }
        beside = []
    kept, dropped = _fitted([*shown, *beside], marks, width)
    titles = [_title(each) for each in dropped]
    return _Body(shown=[*kept, *marks], below=below, for_all=for_all, numbers=numbers, dropped=titles)


def _has_values(column: Column, rows: Sequence[dict[str, Any]]) -> bool:
    return not column.optional or any(row[column.name] is not None for row in rows)


def _differs(column: Column, rows: Sequence[dict[str, Any]]) -> bool:
    return any(row[column.name] != rows[0][column.name] for row in rows)


def _numbered(by_row: Sequence[Sequence[str]]) -> tuple[list[str], dict[str, int]]:
    every = list(dict.fromkeys(note for notes in by_row for note in notes))
    for_all = [note for note in every if all(note in notes for notes in by_row)]
    return for_all, {note: number for number, note in enumerate([each for each in every if each not in for_all], 1)}


def _distinguishing_details(
    row: dict[str, Any], rows: Sequence[dict[str, Any]], facts: Sequence[str], details: Sequence[Column]
) -> list[str]:
    """Details in which `row` differs from other rows with equal `facts`, as `heading value`."""
    namesakes = [other for other in rows if all(other[fact] == row[fact] for fact in facts)]
    return [
        f"{column.heading} {_cut(_as_text(column, namesakes), LONG_NAME).cells[namesakes.index(row)]}"
        for column in details
        if row[column.name] is not None and _differs(column, namesakes)
    ]


def _notes(row: dict[str, Any], columns: Sequence[Column]) -> list[str]:
    notes = []
    for column in columns:
        if column.role is not Role.NOTE:
            continue
        value = row[column.name]
        parts = value if isinstance(value, list) else [] if value is None else str(value).split("; ")
        name = "" if column.heading == Role.NOTE else f"{column.heading}: "
        notes += [f"{name}{printable(str(part))}" for part in parts]
    return notes


def _fits(shown: Sequence[_TextColumn], width: int) -> bool:
    return sum(each.width for each in shown) + len(GAP) * (len(shown) - 1) <= width


def _fitted(
    shown: Sequence[_TextColumn], marks: Sequence[_TextColumn], width: int
) -> tuple[list[_TextColumn], list[_TextColumn]]:
    """Columns of `shown` that fit beside `marks` (the column of note numbers), and the columns that were dropped.

    Headings are broken into lines first, then long names are cut, then the last figures are dropped. Names are cut
    shorter if they would take more than half of the width. Facts and the first figure are never dropped: a row would be
    useless without them.
    """
    kept, dropped = list(shown), list[_TextColumn]()
    if _fits([*kept, *marks], width):
        return kept, dropped
    kept = [_with_heading_in_lines(each) for each in kept]
    if not _fits([*kept, *marks], width):
        kept = [_cut(each, LONG_NAME) for each in kept]
    facts = [each for each in kept if each.is_fact]
    if not _fits([*kept, *marks], width) and not _fits(facts, width // 2):
        kept = [_cut(each, SHORT_NAME) for each in kept]
    while not _fits([*kept, *marks], width):
        figures = [number for number, each in enumerate(kept) if not each.is_fact]
        if len(figures) <= 1:
            kept = [_cut(each, SHORT_NAME) for each in kept]
            break
        dropped.insert(0, kept.pop(figures[-1]))
    return kept, dropped


def _title(shown: _TextColumn) -> str:
    return " ".join(shown.heading)


def _with_heading_in_lines(shown: _TextColumn) -> _TextColumn:
    """Break the heading into lines no wider than the cells or the heading's longest word."""
    room = max(map(len, shown.cells), default=0)
    lines: list[str] = []
    for word in _title(shown).split():
        if lines and len(lines[-1]) + 1 + len(word) <= max(room, *map(len, lines)):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return replace(shown, heading=tuple(lines))


def _cut(shown: _TextColumn, room: int) -> _TextColumn:
    """Shorten texts to `room` characters, in the middle or at the end. Texts that would become equal are cut less."""
    if shown.to_right or shown.width <= room:
        return shown
    for size in range(room, shown.width):
        for tail in (size // 2, size // 4, 0):
            cells = [
                cell if len(cell) <= size else f"{cell[: size - tail - 1]}…{cell[len(cell) - tail :]}"
                for cell in shown.cells
            ]
            if len(set(cells)) == len(set(shown.cells)):
                return replace(shown, cells=tuple(cells))
    return shown


def _lines(shown: Sequence[_TextColumn], below: Mapping[int, Sequence[str]]) -> Iterator[str]:
    depth = max((len(each.heading) for each in shown), default=0)
    headings = [("",) * (depth - len(each.heading)) + each.heading for each in shown]
    for cells in zip(*headings, strict=True):
        yield _line(shown, cells)
    for number, cells in enumerate(zip(*(each.cells for each in shown), strict=True)):
        yield _line(shown, cells)
        yield from below.get(number, ())


def _line(shown: Sequence[_TextColumn], cells: Sequence[str]) -> str:
    padded = [
        cell.rjust(each.width) if each.to_right else cell.ljust(each.width)
        for each, cell in zip(shown, cells, strict=True)
    ]
    return GAP.join(padded).rstrip()


def _is_numeric(values: Any) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _as_text(column: Column, rows: Sequence[dict[str, Any]]) -> _TextColumn:
    values = [row[column.name] for row in rows]
    factor, unit = _scale(column, values)
    unit = f" [{unit}]" if unit else ""
    cells = tuple(_cell(column, value, factor) for value in values)
    return _TextColumn(column=column, heading=(f"{column.heading}{unit}",), cells=cells, to_right=_is_numeric(values))


def _scale(column: Column, values: Sequence[Any]) -> tuple[float, str]:
    """Factor and name of the unit with the decimal prefix that suits the largest value; the smallest prefix is µ.

    Long times are in minutes, hours or days.
    """
    if column.unit == "%":
        return 0.01, column.unit
    sizes = [abs(value) for value in values if isinstance(value, int | float) and value]
    if not column.prefixed or not sizes:
        return 1.0, column.unit
    if column.unit == "s" and max(sizes) >= SECONDS_MATTER_UP_TO_S:
        return next((unit_s, unit) for from_s, unit_s, unit in SPANS if max(sizes) >= from_s)
    largest = LARGEST_PREFIX.get(column.unit, math.inf)
    fitting = [(factor, prefix) for factor, prefix in PREFIXES[:-1] if factor <= largest]
    factor, prefix = next((each for each in fitting if max(sizes) >= each[0]), fitting[-1])
    return factor, prefix + column.unit


def _cell(column: Column, value: Any, factor: float) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        # A count has no decimals, even if the count is a float because other rows have no value.
        is_count = not column.unit and (isinstance(value, int) or (value.is_integer() and abs(value) < MAX_COUNT))
        return str(int(value)) if is_count else number(value / factor, column.digits)
    return printable("; ".join(map(str, value)) if isinstance(value, list) else str(value))


def number(value: float, digits: int = 4) -> str:
    """Figure with `digits` significant digits, without an exponent if readable: 1234567 is not `1.235e+06`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    if not -4 <= magnitude < 15:  # noqa: PLR2004 - zeros beyond this are hard to count
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"
