"""Figures of a report as Vega-Altair charts: interactive in the page, PNG and SVG without a browser.

`registry.figures(material)` draws all figures. Each chart is a pure function of a table in `throughput` or `rooflines`.
"""

import functools
from dataclasses import dataclass
from typing import Any

from analysis.loading.processes import Sharing


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with its texts; `name`: file name without ending, `text`: the chart's figures in words."""

    name: str
    title: str
    caption: str
    text: str
    chart: Any


# --- the JavaScript libraries that draw the charts in a page


@functools.cache
def begin_libraries() -> Sharing[None, str]:
    """Begin to make the libraries in another process: vl-convert takes a second, and blocks all threads meanwhile."""
    return Sharing(_libraries, [None], others=1)


@functools.cache
def libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from vl-convert."""
    return begin_libraries().results()[0]


def _libraries(_: None) -> str:
    import vl_convert  # noqa: PLC0415 - 40 MB

    # Line ends and zero bytes that HTML's parser changes would change the hash.
    bundle = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    return bundle.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\\0")
