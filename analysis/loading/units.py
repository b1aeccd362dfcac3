"""The unit of throughput: images, or the unit that was detected for a user's own script. Pure.

Column names like `images_per_s` are fixed; headings, titles and sentences name the unit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from workload.contract.tables import Column, Role

IMAGES = "images"
# Unit of a table whose runs count different things: each row names its own.
SEVERAL = "units"
COUNTED = Column(name="unit", heading="units", role=Role.FACT)


def unit_of(row: Mapping[Any, Any]) -> str:
    """The unit of a run; `images` if none is recorded."""
    unit = row.get("unit")
    return unit if isinstance(unit, str) else IMAGES


def common(units: Iterable[Any]) -> str:
    """The unit that all runs share, or `SEVERAL` if units differ."""
    names = {unit_of({"unit": unit}) for unit in units}
    return names.pop() if len(names) == 1 else SEVERAL if names else IMAGES


def singular(unit: str) -> str:
    """A unit in singular: `image`."""
    return unit.removesuffix("s")


def worded(text: str, unit: str) -> str:
    """Replace `{unit}` in a text by the unit (`images`), and `{one}` by its singular (`image`)."""
    return text.replace("{unit}", unit).replace("{one}", singular(unit))


def headed(known: Sequence[Column], unit: str) -> list[Column]:
    """Columns with the unit in their headings, see `worded`."""
    return [replace(column, heading=worded(column.heading, unit)) for column in known]


def columns(known: Sequence[Column], table: pd.DataFrame) -> Sequence[Column]:
    """Columns of a printed table, with the unit in the headings; a column of units is added if rows differ in it."""
    unit = common(table["unit"])
    shown = headed(known, unit)
    if unit != SEVERAL:
        return shown
    rest = [column for column in shown if column.name != COUNTED.name]
    place = next(number for number, column in enumerate(rest) if column.name == "images_per_s")
    return [*rest[:place], COUNTED, *rest[place:]]


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the unit of every row filled in, if any row counts something other than images."""
    return table if common(table["unit"]) == IMAGES else table.assign(unit=table["unit"].fillna(IMAGES))
