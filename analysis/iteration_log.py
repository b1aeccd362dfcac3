"""Per-iteration logs of other programs: CSV with a header, a row per iteration. Standard library only.

Which column means what, and in which unit, is in import_columns.toml.
"""

import csv
import io
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from workload.contract.errors import UsageError

TABLE = Path(__file__).with_name("import_columns.toml")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
ABSENT = frozenset({"", "nan", "n/a", "na", "none", "null", "-"})
SERIES = ("step_s", "data_s", "images_per_s", "timestamp", "loss", "step")
LABELS = ("model", "batch_size", "precision", "device_name", "device_type", "place")
# A row is timed by one of these.
TIMERS = ("step_s", "images_per_s")
POSITIVE = ("step_s", "images_per_s")
# Unix time of 2001 to 2286 in seconds, and the same in milliseconds.
UNIX_S, UNIX_MS = (1e9, 1e10), (1e12, 1e13)
# Seconds, images per second or losses beyond this, or below its inverse, are no measurement.
LIMIT = 1e12
SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """One row of import_columns.toml."""

    name: str
    field: str
    factor: float
    includes_data: bool
    source: str


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log in our units: a value per row and field, None where the cell is empty; `labels` are the file's own words.

    `columns`: field -> the column that it came from. `ignored`: the names of the others. `cut`: rows left out because
    the file breaks off in them.
    """

    series: Mapping[str, Sequence[float | None]]
    labels: Mapping[str, str]
    columns: Mapping[str, Meaning]
    ignored: Sequence[str]
    rows: int
    cut: int


@cache
def meanings() -> Mapping[str, Meaning]:
    """import_columns.toml by column name, in its order."""
    rows: Mapping[str, Mapping[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: Meaning(
            name=name,
            field=row["field"],
            factor=row.get("factor", 1.0),
            includes_data=row.get("includes_data", False),
            source=row["source"],
        )
        for name, row in rows.items()
    }


def is_log(header: Sequence[str]) -> bool:
    """Whether a table with these columns times its rows."""
    return any(meaning.field in TIMERS for meaning, _ in _columns(header).values())


def split_line(text: str) -> list[str]:
    """The cells of the first line of a CSV; empty where it is none."""
    try:
        return next(csv.reader(io.StringIO(text, newline="")), [])
    except csv.Error:
        return []


def parse(text: str, *, file: str) -> Log:
    """Read a log; `UsageError` names the row and the column of what cannot be read. `file` is for messages."""
    header, rows, cut = _rows(text, file)
    columns = _columns(header)
    if not any(field in columns for field in TIMERS):
        known = ", ".join(name for name, meaning in meanings().items() if meaning.field in TIMERS)
        raise UsageError(
            f"'{file}' has no column that is known to hold a step time; it has {_shown(header)}",
            hint=f"rename the column to one of {known}; the unit must be known",
        )
    if not rows:
        raise UsageError(f"'{file}' has a header and no rows", hint="import the log of a run that got to a first step")
    series = {
        field: [_value(file, line, meaning, row[index]) for line, row in rows]
        for field, (meaning, index) in columns.items()
        if field in SERIES
    }
    labels = {
        field: label
        for field, (meaning, index) in columns.items()
        if field in LABELS and (label := _label(file, meaning.name, {row[index].strip() for _, row in rows}))
    }
    used = {index for _, index in columns.values()}
    return Log(
        series=series,
        labels=labels,
        columns={field: meaning for field, (meaning, _) in columns.items()},
        ignored=[name for index, name in enumerate(header) if index not in used],
        rows=len(rows),
        cut=cut,
    )


def _rows(text: str, file: str) -> tuple[list[str], list[tuple[int, list[str]]], int]:
    """Header, rows with their line numbers, and how many rows the end of the file cuts off: at most one."""
    if "\0" in text:
        raise UsageError(f"'{file}' is no text: it holds a zero byte", hint="import a CSV file")
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise UsageError(
            f"'{file}' is no CSV: line {reader.line_num}: {error}", hint="import a file with a row per iteration"
        ) from error
    last = len(rows) - 1
    cut = bool(rows) and len(rows[last][1]) < len(header) and not text.endswith("\n")
    if cut:
        rows.pop()
    for line, row in rows:
        if len(row) != len(header):
            raise UsageError(
                f"'{file}' line {line} has {len(row)} cells under {len(header)} columns",
                hint="import a file with a row per iteration",
            )
    return header, rows, int(cut)


def _columns(header: Sequence[str]) -> dict[str, tuple[Meaning, int]]:
    """Field -> what its column means and where it is; of several columns the first in the table."""
    where = {name.strip().lower(): index for index, name in reversed(list(enumerate(header)))}
    column_of: dict[str, tuple[Meaning, int]] = {}
    for name, meaning in meanings().items():
        if name in where:
            column_of.setdefault(meaning.field, (meaning, where[name]))
    return column_of


def _value(file: str, line: int, meaning: Meaning, cell: str) -> float | None:
    text = cell.strip()
    if text.lower() in ABSENT:
        return None
    if meaning.field == "timestamp":
        return _timestamp(file, line, meaning, text)
    value = float(text) * meaning.factor if NUMBER.fullmatch(text) else math.nan
    if math.isnan(value):
        raise _refuse(file, line, meaning, text, "is no number")
    if meaning.field in POSITIVE and value <= 0:
        raise _refuse(file, line, meaning, text, "must be positive")
    if abs(value) > LIMIT or (meaning.field in POSITIVE and value < 1 / LIMIT):
        raise _refuse(file, line, meaning, text, "is no measurement")
    if meaning.field == "data_s" and value < 0:
        raise _refuse(file, line, meaning, text, "must not be negative")
    return value


def _timestamp(file: str, line: int, meaning: Meaning, text: str) -> float:
    """Unix time in seconds."""
    if NUMBER.fullmatch(text):
        value = float(text)
        if UNIX_S[0] <= value < UNIX_S[1]:
            return value
        if UNIX_MS[0] <= value < UNIX_MS[1]:
            return value / 1e3
        raise _refuse(file, line, meaning, text, "is no Unix time in seconds or milliseconds")
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise _refuse(file, line, meaning, text, "is neither Unix time nor ISO 8601") from error
    if parsed.tzinfo is None:
        raise _refuse(file, line, meaning, text, "does not say its time zone")
    value = parsed.timestamp()
    if not UNIX_S[0] <= value < UNIX_S[1]:
        raise _refuse(file, line, meaning, text, "is no time of a computer's")
    return value


def _refuse(file: str, line: int, meaning: Meaning, text: str, why: str) -> UsageError:
    return UsageError(
        f"'{file}' line {line}: {meaning.name} {why}; got '{text[:80]}'", hint="correct the file, or leave the row out"
    )


def _label(file: str, name: str, values: set[str]) -> str | None:
    known = sorted(value for value in values if value.lower() not in ABSENT)
    if len(known) > 1:
        raise UsageError(
            f"'{file}' holds several runs: {name} is {_shown(known)}",
            hint="split it into a file per run, and import those",
        )
    return known[0] if known else None


def _shown(words: Sequence[str]) -> str:
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(f"'{word[:80]}'" for word in words[:SHOWN]) + more
