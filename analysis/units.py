"""What throughput counts: images, or of somebody's own script what it was seen to work on. Pure.

Columns keep their names, as `images_per_s`; headings, titles and sentences say what was counted.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pandas as pd

from workload.contract.tables import Column, Role

IMAGES = "images"
# Where runs count different things: each row says which.
SEVERAL = "units"
COUNTED = Column(name="unit", heading="units", role=Role.FACT)

T = TypeVar("T")


def of(row: Mapping[Any, Any]) -> str:
    """What a run counts."""
    unit = row.get("unit")
    return unit if isinstance(unit, str) else IMAGES


def common(units: Iterable[Any]) -> str:
    """What all of them count, or that they differ."""
    names = {of({"unit": unit}) for unit in units}
    return names.pop() if len(names) == 1 else SEVERAL if names else IMAGES


def worded(text: str, unit: str, *, has_own_units: bool = True) -> str:
    """A text about images as one about what was counted.

    Where runs count different things, figures in images per second stay so, if texts have units of their own.
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
    """Of a table for people: with the unit in their headings, and as one of them where rows differ in it."""
    unit = common(table["unit"])
    shown = [replace(column, heading=worded(column.heading, unit)) for column in known]
    if unit != SEVERAL:
        return shown
    rest = [column for column in shown if column.name != COUNTED.name]
    place = next(number for number, column in enumerate(rest) if column.name == "images_per_s")
    return [*rest[:place], COUNTED, *rest[place:]]


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """Every row with its unit, where one counts something else than images."""
    return table if common(table["unit"]) == IMAGES else table.assign(unit=table["unit"].fillna(IMAGES))


def worded_content(content: T, unit: str, *, has_own_units: bool = True) -> T:
    """The texts of a page or of findings, figures too; commands stay as they are typed."""
    return content if unit == IMAGES else _worded(content, partial(worded, unit=unit, has_own_units=has_own_units))


def _worded(content: Any, change: Callable[[str], str]) -> Any:
    from analysis.figures.figure import Figure  # noqa: PLC0415 - the tables of a terminal need none
    from analysis.report.content import Commands  # noqa: PLC0415

    if type(content) is str:
        return change(content)
    if isinstance(content, list | tuple):
        return [_worded(part, change) for part in content]
    if isinstance(content, Commands) or not dataclasses.is_dataclass(content) or isinstance(content, type):
        return content
    changed = {
        item.name: _worded(getattr(content, item.name), change)
        for item in dataclasses.fields(content)
        if item.name not in ("name", "chart")
    }
    if isinstance(content, Figure):
        changed["chart"] = _worded_chart(content.chart, change)
    return replace(content, **changed)


def _worded_chart(chart: Any, change: Callable[[str], str]) -> Any:
    import altair as alt  # noqa: PLC0415 - a second

    return alt.Chart.from_dict(json.loads(change(json.dumps(chart.to_dict()))))
