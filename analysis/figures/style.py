"""How every figure looks: colours, shapes, axes, and what a click on a legend does."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import altair as alt
import pandas as pd

from workload.text import printable

# Anything that Altair draws; its methods are not typed well enough to say more.
Drawing: TypeAlias = Any

# Okabe and Ito, "Color Universal Design" (2008), with luminance moved to 0.13..0.30: each stands out 3:1 from white
# and from the page's dark ground, as WCAG 2.2 (1.4.11) asks of graphics. No figure tells things apart by colour alone.
COLOURS = ("#0077bb", "#d1550b", "#00936b", "#b8579a", "#a67c00", "#7a6fd0", "#8a6a55", "#5b8a9a")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
WIDTH, HEIGHT = 640, 380
# Of a row of points, and the least of a band of rows.
ROW_HEIGHT, LEAST_BAND = 17, 34
# Not drawn away: where a filtered curve lies stays visible.
FADED = 0.08
# Digits that a reader could tell apart in a figure or a tooltip; more only make the page larger.
DIGITS = 5
# Of a text in a tooltip.
TEXT_CHARACTERS = 300
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
# Two decades of ticks at 1, 10, 100 still frame the points; fewer need 2 and 5.
DECADES_WITHOUT_BETWEEN = 2.5
# Largest over smallest value from which a linear axis would hide the smallest.
LOG_FROM = 30.0


def config(ink: str, *, ground: str | None = None) -> dict[str, Any]:
    """A Vega-Lite config that draws text, axes and neutral marks in `ink`; no `ground` is transparent."""
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal"}
    return {
        "background": ground or "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **text,
            "domainColor": ink,
            "domainOpacity": 0.5,
            "tickColor": ink,
            "tickOpacity": 0.5,
            "gridColor": ink,
            "gridOpacity": 0.12,
            "labelLimit": 260,
        },
        "legend": {
            **text,
            "orient": "bottom",
            "columns": 4,
            "labelLimit": 190,
            "symbolStrokeWidth": 2,
            # Of legends of shapes, which have no colour of their own.
            "symbolBaseFillColor": ink,
            "symbolBaseStrokeColor": ink,
            "rowPadding": 4,
            # One below the other: side by side they would widen the figure.
            "layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 10}},
        },
        "header": {**text, "labelFontSize": 13},
        "title": {"color": ink, "subtitleColor": ink, "fontSize": 16, "subtitleFontSize": 12, "anchor": "start"},
        "style": {
            "ink-line": {"color": ink},
            "ink-text": {"color": ink},
        },
    }


# The page's text colour, whatever it is now: light, dark, or on paper.
PAGE = config("currentColor")
PAPER = config("#1b1f24", ground="#ffffff")


def chart(frame: pd.DataFrame) -> alt.Chart:
    """A chart of `frame`'s rows, the numbers rounded and what is absent as null."""
    return alt.Chart(data(records(frame)))


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Data:
    """Rows as they are: Altair would check and copy a table's, and copies lists, unlike tuples, at every call."""
    return alt.Data(values=tuple(rows))  # type: ignore[no-untyped-call]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON has them."""
    columns = [str(name) for name in frame.columns]
    table = frame.astype(object).where(frame.notna(), None)
    return [
        {name: _plain(value) for name, value in zip(columns, row, strict=True)}
        for row in table.itertuples(index=False, name=None)
    ]


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    # Vega puts texts into the picture's labels, where control characters are no XML.
    return printable(value)[:TEXT_CHARACTERS] if isinstance(value, str) else value


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour per name, in the order of the names; from the ninth on they repeat."""
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


FILLED: Mapping[str, Any] = {}
# Rings in the legend, for charts whose points are.
RINGS: Mapping[str, Any] = {"symbolFillColor": "transparent"}
# The dashes of lines would tear the rims of the symbols.
WITHOUT_RIM: Mapping[str, Any] = {"symbolStrokeWidth": 0}


def colour(
    field: str, held: Iterable[str], palette: Mapping[str, str], title: str, legend: Mapping[str, Any] = FILLED
) -> alt.Color:
    """`field` in the colours of `palette`, only what the chart holds in the legend."""
    shown = _in_order(held, palette)
    scale = alt.Scale(domain=shown, range=[palette[name] for name in shown])
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(**legend), title=title)


def shape(
    field: str, held: Iterable[str], order: Sequence[str], title: str, legend: Mapping[str, Any] = FILLED
) -> alt.Shape:
    """`field` as the shape of points."""
    shapes = {name: SHAPES[number % len(SHAPES)] for number, name in enumerate(order)}
    shown = _in_order(held, shapes)
    scale = alt.Scale(domain=shown, range=[shapes[name] for name in shown])
    return alt.Shape(f"{field}:N", scale=scale, legend=alt.Legend(**legend), title=title)


def dash(field: str, held: Iterable[str], order: Sequence[str], title: str) -> alt.StrokeDash:
    """`field` as the dashes of lines; with the same title, one legend shows them and the shapes of the points."""
    dashes = {name: DASHES[number % len(DASHES)] for number, name in enumerate(order)}
    shown = _in_order(held, dashes)
    scale = alt.Scale(domain=shown, range=[dashes[name] for name in shown])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=alt.Legend(**WITHOUT_RIM), title=title)


def _in_order(held: Iterable[str], order: Mapping[str, Any]) -> list[str]:
    present = set(held)
    return [name for name in order if name in present]


def picked(*fields: str) -> tuple[list[alt.Parameter], Any]:
    """A click on a legend entry fades all that is not it: the parameters, and the opacity that obeys them."""
    parameters = [alt.selection_point(name=f"pick_{field}", fields=[field], bind="legend") for field in fields]
    condition: Any = parameters[0]
    for parameter in parameters[1:]:
        condition = condition & parameter
    return parameters, alt.condition(condition, alt.value(1.0), alt.value(FADED))


def rows_height(tasks: int, in_each: int, *, row: int = ROW_HEIGHT) -> int:
    """Pixels for `tasks` bands of `in_each` rows, with a third of a band between them."""
    return round(tasks * max(in_each * row, LEAST_BAND) * 1.35)


def batch_axis(batches: Iterable[float], field: str = "batch_size") -> alt.X:
    """Batch sizes on a scale of powers of two, a tick at each that was run; the values are in column `field`."""
    values = sorted({float(each) for each in batches})
    scale = alt.Scale(type="log", base=2, domain=[values[0] / 1.2, values[-1] * 1.2], nice=False)
    axis = alt.Axis(values=values, format="d", labelOverlap="greedy", grid=False)
    return alt.X(f"{field}:Q", scale=scale, axis=axis, title="Batch size [images per forward pass]")


def log_axis(low: float, high: float, *, form: str) -> tuple[alt.Scale, alt.Axis]:
    """A logarithmic scale around low..high, ticks at powers of ten, and at 2 and 5 where those alone are too few."""
    low, high = rounded_down(low), rounded_up(high)
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=False)
    return scale, alt.Axis(values=ticks(low, high), format=form, labelOverlap="greedy")


def ticks(low: float, high: float) -> list[float]:
    """1, 10, 100 between `low` and `high`; 1, 2, 5, 10 where that is less than two and a half decades."""
    steps = (1.0,) if math.log10(high / low) >= DECADES_WITHOUT_BETWEEN else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{step}e{decade}") for decade in decades for step in steps]
    return [tick for tick in every if low * 0.999 <= tick <= high * 1.001]


def rounded_down(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten that is not larger."""
    decade = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return max(step * decade for step in (1.0, 2.0, 5.0) if step * decade <= value * (1 + 1e-9))


def rounded_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten that is not smaller."""
    decade = 10.0 ** math.floor(math.log10(value) - 1e-9)
    return min(step * decade for step in (1.0, 2.0, 5.0, 10.0) if step * decade >= value * (1 - 1e-9))


def reach(table: pd.DataFrame, field: str, *, factor: float) -> float:
    """Where the axis of `field` ends: at its longest bar, but at most at `factor` times the largest value.

    The interval of two runs can be hundred times as long as the figures; whole, it would press them against zero.
    """
    largest = float(table[field].max())
    bars: list[float] = table[f"{field}_high"].dropna().tolist() if f"{field}_high" in table else []
    return float(min(max([largest, *bars]), factor * largest))


def is_wide(values: pd.Series) -> bool:
    """Whether a linear axis would hide the smallest of the values."""
    positive = values[values > 0]
    return len(positive) > 1 and float(positive.max()) > LOG_FROM * float(positive.min())


def tooltips(frame: pd.DataFrame, titles: Mapping[str, str]) -> list[alt.Tooltip]:
    """Of the columns that hold anything: title, and numbers with four digits."""
    found = []
    for column, title in titles.items():
        if column not in frame or frame[column].notna().sum() == 0:
            continue
        numeric = pd.api.types.is_numeric_dtype(frame[column]) and not pd.api.types.is_bool_dtype(frame[column])
        if numeric:
            found.append(alt.Tooltip(f"{column}:Q", title=title, format=".4~g" if title.count("[") == 0 else ".4~s"))
        else:
            found.append(alt.Tooltip(f"{column}:N", title=title))
    return found
