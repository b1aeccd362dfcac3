"""One figure: its name, words for those who see it and those who do not, and the chart."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """`name` is a file's, without its ending; `text` says in words what the chart shows, with its figures."""

    name: str
    title: str
    caption: str
    text: str
    chart: Any
