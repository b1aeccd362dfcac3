"""Tables from rows, rows from tables, and the text of a note."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as dictionaries by column; None for an absent value."""
    names = [str(name) for name in table.columns]
    return [dict(zip(names, row, strict=True)) for row in cells(table)]


def cells(table: pd.DataFrame) -> list[list[Any]]:
    """Rows of a table as lists in column order; None for an absent value."""
    # One array of objects: in pandas, replacing absent values column by column takes eight times as long.
    values = table.to_numpy(dtype=object, copy=True)
    values[pd.isna(values)] = None
    found: list[list[Any]] = values.tolist()
    return found


def names_of(row: "type[DataclassInstance]") -> tuple[str, ...]:
    """Column names of a table whose rows are objects of this dataclass."""
    return tuple(field.name for field in fields(row))


def frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """A table in which an absent number is NaN; a column without any text becomes numeric."""
    table = pd.DataFrame(list(rows), columns=list(columns))
    for name in columns:
        is_empty = table[name].isna().all()
        if table[name].dtype == object and (
            is_empty or not any(isinstance(value, str | bool) for value in table[name].dropna())
        ):
            table[name] = pd.to_numeric(table[name])
    return table


def joined(parts: Iterable[str | None]) -> str | None:
    """Text from the parts of a note, separated by semicolons; None if there are no parts."""
    return "; ".join(part for part in parts if part) or None
