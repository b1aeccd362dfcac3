"""A table on stdout: for people with the unit in the heading, or as JSON or CSV with every digit.

Standard library only.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, assert_never

from workload.text import printable

PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
# Seconds are not counted in thousands.
LARGEST_PREFIX = {"s": 1.0}
GAP = "  "
# Above it a float is no count.
MAX_COUNT = 1e15


class Format(StrEnum):
    """How a result is printed on stdout."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: `name` in the data, JSON and CSV; `heading` and `unit` for people.

    `unit` with `prefixed` gets one decimal prefix for the whole column (`step [ms]`); a `%` shows a fraction times 100.
    `digits` are significant ones; absent values show as `-`, and an `optional` column without any value not at all.
    """

    name: str
    heading: str
    unit: str = ""
    prefixed: bool = False
    digits: int = 4
    optional: bool = False


class Frame(Protocol):
    """A pandas DataFrame, as far as a table needs one."""

    def __getitem__(self, names: list[str], /) -> Any: ...


def render(table: Frame | Sequence[Mapping[str, Any]], columns: Sequence[Column], form: Format) -> str:
    """`columns` of a frame or of rows as text without a final newline; JSON and CSV keep every digit and the names."""
    rows = [
        {column.name: _plain(value) for column, value in zip(columns, values, strict=True)}
        for values in _values(table, [column.name for column in columns])
    ]
    match form:
        case Format.TABLE:
            return _table(rows, columns)
        case Format.JSON:
            return json.dumps(rows, indent=1, ensure_ascii=False)
        case Format.CSV:
            return _csv(rows, columns)
        case _:
            assert_never(form)


def _values(table: Frame | Sequence[Mapping[str, Any]], names: list[str]) -> Iterable[Sequence[Any]]:
    if isinstance(table, Sequence):
        return ([row[name] for name in names] for row in table)
    rows: Iterable[Sequence[Any]] = table[names].itertuples(index=False, name=None)
    return rows


def _plain(value: Any) -> Any:
    """What JSON can say: None for what is absent, numbers of Python's own, times as ISO 8601."""
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


def _csv(rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row.values()])
    return text.getvalue().removesuffix("\n")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> str:
    columns = [each for each in columns if not each.optional or any(row[each.name] is not None for row in rows)]
    texts = [_column_texts(column, [row[column.name] for row in rows]) for column in columns]
    widths = [max(map(len, column)) for column in texts]
    to_right = [_is_numeric(row[column.name] for row in rows) for column in columns]
    lines = []
    for cells in zip(*texts, strict=True):
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, to_right, strict=True)
        ]
        lines.append(GAP.join(padded).rstrip())
    return "\n".join(lines)


def _is_numeric(values: Any) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _column_texts(column: Column, values: Sequence[Any]) -> list[str]:
    """The heading, then the cells."""
    factor, prefix = _scale(column, values)
    unit = f" [{prefix}{column.unit}]" if column.unit else ""
    return [f"{column.heading}{unit}", *(_cell(column, value, factor) for value in values)]


def _scale(column: Column, values: Sequence[Any]) -> tuple[float, str]:
    """The prefix that suits the largest value."""
    if column.unit == "%":
        return 0.01, ""
    sizes = [abs(value) for value in values if isinstance(value, int | float) and value]
    if not column.prefixed or not sizes:
        return 1.0, ""
    largest = LARGEST_PREFIX.get(column.unit, math.inf)
    fitting = [(factor, prefix) for factor, prefix in PREFIXES if factor <= largest]
    return next((each for each in fitting if max(sizes) >= each[0]), fitting[-1])


def _cell(column: Column, value: Any, factor: float) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        # A count without decimals, also where it may be absent and so is a float.
        is_count = not column.unit and (isinstance(value, int) or (value.is_integer() and abs(value) < MAX_COUNT))
        return str(int(value)) if is_count else number(value / factor, column.digits)
    return printable("; ".join(map(str, value)) if isinstance(value, list) else str(value))


def number(value: float, digits: int = 4) -> str:
    """`digits` significant ones, and no exponent where it can be read without: 1234567 is not `1.235e+06`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    if not -4 <= magnitude < 15:  # noqa: PLR2004 - zeros beyond this are hard to count
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"
