"""Figures as files: PNG and SVG, by vl-convert, without a browser."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import altair as alt

from analysis.figures import style
from analysis.figures.figure import Figure
from workload.errors import UsageError

# Dots per logical pixel: 640 become 1280, sharp on paper at 16 cm.
SCALE = 2.0
TITLE_CHARACTERS = 78


def specification(figure: Figure) -> dict[str, Any]:
    """The chart as Vega-Lite, without a title or a theme."""
    # As in `registry.figures`.
    with alt.utils.schemapi.debug_mode(False):
        found: dict[str, Any] = figure.chart.to_dict(validate=False)
    found.pop("config", None)
    return found


def titled(figure: Figure) -> dict[str, Any]:
    """The chart as it stands alone: with its title, dark on white."""
    return {
        **specification(figure),
        "title": {"text": _lines(figure.title), "offset": 12},
        "padding": 14,
        "config": style.PAPER,
    }


def _lines(text: str) -> list[str]:
    """A title over as many lines as it needs."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= TITLE_CHARACTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def save(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg of each; `UsageError` where `folder` cannot be written."""
    import vl_convert  # noqa: PLC0415 - 40 MB, only for who saves pictures

    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            text = json.dumps(titled(figure))
            png, svg = folder / f"{figure.name}.png", folder / f"{figure.name}.svg"
            png.write_bytes(vl_convert.vegalite_to_png(text, scale=SCALE))
            svg.write_text(vl_convert.vegalite_to_svg(text), encoding="utf-8")
            written += [png, svg]
    except OSError as error:
        raise UsageError(
            f"figures folder '{folder}' cannot be written: {error.strerror or error}", hint="--figures FOLDER"
        ) from error
    return written
