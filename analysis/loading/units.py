"""The unit of throughput: images, or the unit that was detected for a user's own script. Pure.

Column names like `images_per_s` are fixed; headings, titles and sentences name the unit.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from workload.contract.tables import Column, Role

IMAGES = "images"
# Unit of a table whose runs count different things: each row names its own.
SEVERAL = "units"
COUNTED = Column(name="unit", heading="units", role=Role.FACT)


def of(row: Mapping[Any, Any]) -> str:
    """The unit of a run; `images` if none is recorded."""
    unit = row.get("unit")
    return unit if isinstance(unit, str) else IMAGES


def common(units: Iterable[Any]) -> str:
    """The unit that all runs share, or `SEVERAL` if units differ."""
    names = {of({"unit": unit}) for unit in units}
    return names.pop() if len(names) == 1 else SEVERAL if names else IMAGES


def worded(text: str, unit: str, *, has_own_units: bool = True) -> str:
    """Rewrite a text about images for another unit.

    If runs count different things (`SEVERAL`), figures in images/s are kept if `has_own_units`: the text has its own
    units.
    """
    if unit == IMAGES:
        return text
    one = unit.removesuffix("s")
    kept = r"(?<!\d )" if unit == SEVERAL and has_own_units else ""
    text = re.sub(rf"{kept}\b([Ii])mages/s\b", lambda match: _like(match[1], unit) + "/s", text)
    text = re.sub(r"\b(MAC|FLOP)/image\b", rf"\1/{one}", text)
    text = re.sub(r"\bper image\b", f"per {one}", text)
    text = re.sub(r"\bmillion images\b", f"million {unit}", text)
    return re.sub(
        r"\b([Ii])mages (per forward pass|over (?:measured )?wall time)", lambda m: f"{_like(m[1], unit)} {m[2]}", text
    )


def _like(letter: str, word: str) -> str:
    return word.capitalize() if letter.isupper() else word


def columns(known: Sequence[Column], table: pd.DataFrame) -> Sequence[Column]:
    """Columns of a printed table, with the unit in the headings; a column of units is added if rows differ in it."""
    unit = common(table["unit"])
    shown = [replace(column, heading=worded(column.heading, unit)) for column in known]
    if unit != SEVERAL:
        return shown
    rest = [column for column in shown if column.name != COUNTED.name]
    place = next(number for number, column in enumerate(rest) if column.name == "images_per_s")
    return [*rest[:place], COUNTED, *rest[place:]]


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the unit of every row filled in, if one counts anything other than images."""
    return table if common(table["unit"]) == IMAGES else table.assign(unit=table["unit"].fillna(IMAGES))
