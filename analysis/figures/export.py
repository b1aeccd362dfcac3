"""Save figures as PNG and SVG files by vl-convert, without a browser."""

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import altair as alt

from analysis.figures import Figure, style
from workload.contract.errors import UsageError
from workload.contract.operating_system import replace_text, replacing, require_possible

# Dots per logical pixel: a width of 640 becomes 1280, which is sharp on paper at 16 cm.
SCALE = 2.0
TITLE_CHARACTERS = 78
# Legend: pixels of a symbol with its margin, pixels per character, most columns; page.js has the same numbers.
ENTRY, CHARACTER, MOST_COLUMNS = 40, 7, 4


def specification(figure: Figure) -> dict[str, Any]:
    """The chart as Vega-Lite, without title and theme."""
    # Skip validation, as in `registry.figures`.
    with alt.utils.schemapi.debug_mode(False):
        specification_json: dict[str, Any] = figure.chart.to_dict(validate=False)
    specification_json.pop("config", None)
    # Characters of the widest legend entry, from which the number of legend columns is computed.
    return {**specification_json, "usermeta": {"legendCharacters": legend_characters(specification_json)}}


def legend_characters(specification: Any) -> int:
    """Length of the longest line in any legend; 0 without a legend."""
    if isinstance(specification, list):
        return max(map(legend_characters, specification), default=0)
    if not isinstance(specification, dict):
        return 0
    longest = max((legend_characters(part) for part in specification.values()), default=0)
    scale = specification.get("scale")
    # `legend` is {} for the default legend and None for no legend; axes have no field `legend`.
    if not isinstance(scale, dict) or specification.get("legend") is None:
        return longest
    names = [name for name in scale.get("domain", []) if isinstance(name, str)]
    lines = (line for name in names for line in style.broken(name, style.LEGEND_CHARACTERS))
    return max([longest, *map(len, lines)])


def titled(figure: Figure) -> dict[str, Any]:
    """Vega-Lite specification of a figure for a file of its own, with the title that the page shows beside it."""
    drawn = specification(figure)
    entry = ENTRY + CHARACTER * drawn["usermeta"]["legendCharacters"]
    columns = max(1, min(MOST_COLUMNS, style.WIDTH // entry))
    return {
        **drawn,
        "title": {"text": textwrap.wrap(figure.title, TITLE_CHARACTERS), "offset": 12},
        "padding": 14,
        "config": {**style.PAPER, "legend": {**style.PAPER["legend"], "columns": columns}},
    }


def chart(figure: Figure) -> Any:
    """The Altair chart with title and theme, for use outside the report."""
    look = titled(figure)
    # Vega's legend layout is missing from Vega-Lite's schema, against which Altair validates charts that it shows.
    legend = {name: value for name, value in look["config"]["legend"].items() if name != "layout"}
    with alt.utils.schemapi.debug_mode(False):
        # A user may change parts of the chart.
        drawn = style.unshared(figure.chart).properties(title=alt.TitleParams(**look["title"]), padding=look["padding"])
        drawn.config = {**look["config"], "legend": legend}
    return drawn


def save(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg of each figure; `UsageError` if `folder` cannot be written."""
    import vl_convert  # noqa: PLC0415 - 40 MB, only for who saves pictures

    written = []
    try:
        require_possible(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            text = json.dumps(titled(figure))
            png, svg = (folder / f"{figure.name}{ending}" for ending in (".png", ".svg"))
            with replacing(png, shared=True, durable=False) as file:
                file.write(vl_convert.vegalite_to_png(text, scale=SCALE))
            replace_text(svg, vl_convert.vegalite_to_svg(text), shared=True, durable=False)
            written += [png, svg]
    except OSError as error:
        raise UsageError(
            f"figures folder '{folder}' cannot be written: {error.strerror or error}", hint="--figures FOLDER"
        ) from error
    return written
