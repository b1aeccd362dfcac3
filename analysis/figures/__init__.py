"""Figures of a report as Vega-Altair charts: interactive in the page, PNG and SVG without a browser.

`registry.figures(material)` draws all figures. Each chart is a pure function of a table in `throughput` or `rooflines`.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with its texts; `name`: file name without ending, `text`: the chart's figures in words."""

    name: str
    title: str
    caption: str
    text: str
    chart: Any
