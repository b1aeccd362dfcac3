"""Texts of a page or of findings about another unit than images."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from analysis.figures.figure import Figure
from analysis.loading import units
from analysis.report.content import Commands

T = TypeVar("T")


def worded_content(content: T, unit: str, *, has_own_units: bool = True) -> T:
    """Rewrite the texts of a page or of findings, figures included, for another unit; commands stay unchanged."""
    return (
        content
        if unit == units.IMAGES
        else _worded(content, partial(units.worded, unit=unit, has_own_units=has_own_units))
    )


def _worded(content: Any, change: Callable[[str], str]) -> Any:
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
