"""A figure of the report: its name, its texts and its chart."""

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
