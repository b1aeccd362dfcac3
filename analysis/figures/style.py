"""Style of all figures: colours, shapes, axes, and the effect of a click on a legend."""

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import altair as alt
import pandas as pd

from workload.contract.spent import TOKENS
from workload.contract.text import LARGE_PREFIXES, printable, seconds, si

# Any Altair chart; Altair's methods are not typed well enough for a narrower type.
Drawing: TypeAlias = Any

# Okabe and Ito, "Color Universal Design" (2008), with luminance changed to 0.13..0.30: contrast of 3:1 with white and
# with the page's dark background, as WCAG 2.2 (1.4.11) requires of graphics. No figure relies on colour alone.
COLOURS = ("#0077bb", "#d1550b", "#00936b", "#b8579a", "#a67c00", "#7a6fd0", "#8a6a55", "#5b8a9a")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
WIDTH, HEIGHT = 640, 380
# Pixels of a row of points, and least pixels of a band of rows.
ROW_HEIGHT, LEAST_BAND = 17, 34
# Opacity of marks that a click on a legend entry fades; they stay visible.
FADED = 0.08
# Digits that a reader can distinguish in a figure or a tooltip; more digits only make the page larger.
DIGITS = 5
# Maximum number of characters of a text in a tooltip.
TEXT_CHARACTERS = 300
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
# Least decades for ticks at 1, 10, 100 alone; a shorter axis also needs 2 and 5.
DECADES_WITHOUT_BETWEEN = 2.5
# Ratio of the largest to the smallest value above which a linear axis would hide the smallest.
LOG_FROM = 30.0
# Maximum factor by which an interval may enlarge the frame; a longer interval ends in an arrowhead. An interval over
# two runs can be a hundred times as long as the figures, which would then all look like zero.
MOST_OF_A_BAR = 3.0
ARROW_SIZE = 55
# Maximum number of characters per line of a name, at an axis and in a legend: short enough for a phone.
AXIS_CHARACTERS, LEGEND_CHARACTERS = 20, 40
# Beyond these decimals or this size, an exponent is easier to read.
MOST_DECIMALS, MOST_PLAIN = 6, 1e7
# Factors that separate points of equal value: between neighbours, and at most between the first and the last.
DODGE, MOST_DODGE = 1.05, 1.4
# Columns that a tooltip shows with their unit, `227 GFLOP/s`.
UNITS = dict.fromkeys(("flop_per_s", "flop_per_s_low", "flop_per_s_high"), "FLOP/s")
SECONDS = ("step_s", "duration_s")
TEXT = "_text"


def config(ink: str, halo: str, *, ground: str | None = None) -> dict[str, Any]:
    """A Vega-Lite config that draws text, axes and neutral marks in `ink`; transparent if `ground` is None.

    `halo`: the colour behind the figure, which separates text from lines below it.
    """
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
            # Names are wrapped into lines (`named_axis`), never cut.
            "labelLimit": 0,
        },
        "legend": {
            **text,
            "orient": "bottom",
            "columns": 4,
            "labelLimit": 0,
            "symbolStrokeWidth": 2,
            # Colour of legends of shapes, which have no colour of their own.
            "symbolBaseFillColor": ink,
            "symbolBaseStrokeColor": ink,
            "rowPadding": 4,
            # Stack legends: side by side they would widen the figure.
            "layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 10}},
        },
        "header": {**text, "labelFontSize": 13},
        "title": {"color": ink, "subtitleColor": ink, "fontSize": 16, "subtitleFontSize": 12, "anchor": "start"},
        "style": {
            "ink-line": {"color": ink},
            "ink-text": {"color": ink},
            "halo": {"color": halo, "stroke": halo, "strokeWidth": 4, "strokeJoin": "round"},
        },
    }


# `currentColor` is the page's text colour, which depends on the theme: light, dark, or print.
PAGE = config("currentColor", "var(--ground)")
PAPER = config("#1b1f24", "#ffffff", ground="#ffffff")
DARK = config("#e4e8ec", "#14181d", ground="#14181d")


def chart(frame: pd.DataFrame) -> alt.Chart:
    """A chart of a table's rows, with rounded numbers and null for absent values; rates and times also as text."""
    names = [name for name in (*UNITS, *SECONDS) if name in frame]

    def with_unit(column: str, value: Any) -> str | None:
        if value is None or not math.isfinite(value):
            return None
        return seconds(value) if column in SECONDS else si(value, UNITS[column], 4)

    texts = {f"{name}{TEXT}": frame[name].map(partial(with_unit, name)) for name in names}
    return alt.Chart(data(records(frame.assign(**texts))))


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Data:
    """Rows as chart data, unchanged.

    Altair would validate and copy a table. At every call, Altair also copies lists, but not tuples.
    """
    return alt.Data(values=tuple(rows))  # type: ignore[no-untyped-call]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON-compatible dictionaries."""
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
    # Vega puts texts into SVG labels, and control characters are not valid XML.
    return printable(value)[:TEXT_CHARACTERS] if isinstance(value, str) else value


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour per name, in order; colours repeat from the ninth name on."""
    return _repeated(COLOURS, names)


FILLED: Mapping[str, Any] = {}
# Rings in the legend, for charts whose points are rings.
RINGS: Mapping[str, Any] = {"symbolFillColor": "transparent"}
# Legend symbols without a rim, because the lines' dashes would break the rim.
WITHOUT_RIM: Mapping[str, Any] = {"symbolStrokeWidth": 0}


def colour(
    field: str, drawn: Iterable[str], palette: Mapping[str, str], title: str, legend: Mapping[str, Any] = FILLED
) -> alt.Color:
    """Encode `field` in the colours of `palette`; with a legend if the chart has more than one value (`drawn`)."""
    return alt.Color(f"{field}:N", title=title, **_range(drawn, palette, legend))


def shape(
    field: str, drawn: Iterable[str], order: Sequence[str], title: str, legend: Mapping[str, Any] = FILLED
) -> alt.Shape:
    """Encode `field` as the shape of points; `order`: all values, so that a value has the same shape in all charts."""
    return alt.Shape(f"{field}:N", title=title, **_range(drawn, _repeated(SHAPES, order), legend))


def dash(field: str, drawn: Iterable[str], order: Sequence[str], title: str) -> alt.StrokeDash:
    """Encode `field` as the dashes of lines. If the points' shapes have the same `title`, both share one legend."""
    return alt.StrokeDash(f"{field}:N", title=title, **_range(drawn, _repeated(DASHES, order), WITHOUT_RIM))


def present(order: Iterable[str], names: Iterable[str]) -> list[str]:
    """Items of `order` that occur in `names`."""
    occurring = set(names)
    return [name for name in order if name in occurring]


def _repeated(looks: Sequence[Any], names: Iterable[str]) -> dict[str, Any]:
    """An item of `looks` (colours, shapes or dashes) per name, in order; items repeat if there are more names."""
    return {name: looks[number % len(looks)] for number, name in enumerate(names)}


def _range(drawn: Iterable[str], looks: Mapping[str, Any], legend: Mapping[str, Any]) -> dict[str, Any]:
    """Scale and legend of the drawn names, in the order of `looks`."""
    shown = present(looks, drawn)
    scale = alt.Scale(domain=shown, range=[looks[name] for name in shown])
    return {"scale": scale, "legend": legend_of(shown, **legend)}


def legend_of(names: Sequence[str], **options: Any) -> alt.Legend | None:
    """A legend with long names wrapped; None if all points share one value, because captions name that value."""
    return alt.Legend(**_broken(names, LEGEND_CHARACTERS), **options) if len(names) > 1 else None


def named_axis(names: Iterable[str], **options: Any) -> alt.Axis:
    """An axis of names, with long names wrapped: if names were cut, two of them could look alike."""
    return alt.Axis(**_broken(list(names), AXIS_CHARACTERS), **options)


def broken(name: str, width: int) -> list[str]:
    """A name as lines of at most `width` characters."""
    return textwrap.wrap(name, width) or [name]


def _broken(names: Iterable[str], width: int) -> dict[str, Any]:
    lines = {printable(name): broken(printable(name), width) for name in names if len(printable(name)) > width}
    return {"labelExpr": f"{json.dumps(lines)}[datum.label] || datum.label"} if lines else {}


def picked(table: pd.DataFrame, *fields: str) -> tuple[list[alt.Parameter], Any]:
    """Parameters that let a click on a legend entry fade all others, and the opacity that depends on them.

    Only `fields` in which the rows of `table` differ are used, because other fields have no legend.
    """
    parameters = [
        alt.selection_point(name=f"pick_{field}", fields=[field], bind="legend")
        for field in fields
        if len(set(table[field])) > 1
    ]
    if not parameters:
        return [], alt.OpacityValue(1.0)
    condition: Any = parameters[0]
    for parameter in parameters[1:]:
        condition = condition & parameter
    # As `encode` would do for every layer, which takes 4 ms each time.
    options: Any = alt.condition(condition, alt.value(1.0), alt.value(FADED))
    return parameters, alt.OpacityValue.from_dict(options, validate=False)


def layered(layers: Iterable[Any], parameters: Sequence[alt.Parameter], *, width: int = WIDTH, height: int) -> Drawing:
    """Chart of several layers; `parameters`: what a click on a legend entry selects, from `picked`."""
    return alt.layer(*map(lean, layers), width=width, height=height).add_params(*parameters)


def lean(part: Any) -> Any:
    """Remove undefined options from all parts of a chart, in place; return the chart.

    Altair has a hundred options for an axis, and copies a chart with all its layers about ten times. Copies of the
    returned chart share axes, scales, legends and marks, so nobody may change these; `unshared` ends that.
    """
    if isinstance(part, list):
        list(map(lean, part))
    elif isinstance(part, alt.SchemaBase):
        options = vars(part)["_kwds"]
        list(map(lean, options.values()))
        defined = {name: value for name, value in options.items() if value is not alt.Undefined}
        # Altair reads options of charts as attributes, which must exist. It needs at least one option of other parts.
        if defined and not isinstance(part, alt.TopLevelMixin):
            vars(part)["_kwds"] = defined
            # Altair changes channels when it makes JSON of them.
            if not isinstance(part, alt.FacetedEncoding) and not hasattr(type(part), "_encoding_name"):
                vars(part)["__deepcopy__"] = partial(_same, part)
    return part


def _same(part: Any, _: Any) -> Any:
    """Return the part itself: stands in for `copy.deepcopy` of an altair object."""
    return part


def unshared(part: Any) -> Any:
    """Let copies of a chart have parts of their own again; return the chart."""
    if isinstance(part, list):
        list(map(unshared, part))
    elif isinstance(part, alt.SchemaBase):
        vars(part).pop("__deepcopy__", None)
        list(map(unshared, vars(part)["_kwds"].values()))
    return part


def rows_height(bands: int, rows: int, *, row: int = ROW_HEIGHT) -> int:
    """Height in pixels of a number of bands with `rows` rows each, and a third of a band between bands.

    `row`: pixels of a row.
    """
    return round(bands * max(rows * row, LEAST_BAND) * 1.35)


def rows_of_each(bands: pd.Series, order: pd.Series) -> pd.Series:
    """Row of each point within its band, counted from 0 in `order`; a band has no rows for absent points."""
    rank: pd.Series = order.groupby(bands.to_numpy()).rank(method="first")
    return rank.astype(int) - 1


def rows_scale(rows: pd.Series) -> alt.Scale:
    """Scale of row numbers within a band (`rows`, from `rows_of_each`)."""
    return alt.Scale(domain=list(range(int(rows.max()) + 1)))


# --- axes


def batch_axis(batches: Iterable[float], unit: str, field: str = "batch_size") -> alt.X:
    """Axis of batch sizes on a scale of powers of two, with a tick at each size; `field`: column of the values."""
    # Batches of tokens are measured in sequences, if these are known.
    return doubling_axis(batches, field, "Batch size" if unit == TOKENS else f"Batch size [{unit} per forward pass]")


def doubling_axis(numbers: Iterable[float], field: str, title: str) -> alt.X:
    """Axis of whole numbers on a scale of powers of two, with a tick at each; `field`: column of the values."""
    values = sorted(set(map(float, numbers)))
    scale = alt.Scale(type="log", base=2, domain=[values[0] / 1.2, values[-1] * 1.2], nice=False)
    axis = alt.Axis(values=values, format="d", labelOverlap="greedy", grid=False)
    return alt.X(f"{field}:Q", scale=scale, axis=axis, title=title)


def linear_axis(low: float, high: float, *, count: int = 6, percent: str | None = None) -> tuple[alt.Scale, alt.Axis]:
    """A linear scale from `low` to `high` and an axis with about `count` ticks at round numbers, with distinct texts.

    `percent`: show values in per cent, 0.12 as `12 %`, or as `+12 %` if `percent` is "+"; None: show plain numbers.
    """
    # An axis needs a length, even if all values are equal.
    high = high if high > low else low + 1
    # The smallest 1, 2, 2.5 or 5 times a power of ten that is not below a tick's share of the length.
    least = (high - low) / count
    decade = 10.0 ** math.floor(math.log10(least) - 1e-9)
    step = min(factor * decade for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * decade >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    values = [float(f"{number * step:.12g}") for number in range(first, last + 1)]
    scale = alt.Scale(domain=[min([low, *values]), max([high, *values])], nice=False)
    if percent is None:
        return scale, alt.Axis(values=values, format=number_format(values), labelOverlap="greedy")
    form = number_format([100 * value for value in values])
    text = f"(datum.value == 0 ? '0' : format(100 * datum.value, '{percent}{form}')) + ' %'"
    return scale, alt.Axis(values=values, labelExpr=text, labelOverlap="greedy")


def log_axis(low: float, high: float, *, unit: str | None = None) -> tuple[alt.Scale, alt.Axis, str]:
    """A logarithmic scale around `low` to `high`, its axis with ticks from `ticks`, and the unit for the title.

    With a `unit`, ticks have the prefix that suits the middle of the axis, and the third value is, for example,
    `GFLOP/s`; without a unit, the third value is empty.
    """
    low, high = rounded_down(low), rounded_up(high)
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=False)
    values = ticks(low, high)
    if unit is None:
        return scale, alt.Axis(values=values, format=number_format(values), labelOverlap="greedy"), ""
    middle = math.sqrt(low) * math.sqrt(high)
    factor, prefix = next((row for row in LARGE_PREFIXES if middle >= row[0]), LARGE_PREFIXES[-1])
    form = number_format([value / factor for value in values])
    text = f"format(datum.value / {factor:g}, '{form}')"
    return scale, alt.Axis(values=values, labelExpr=text, labelOverlap="greedy"), f"{prefix}{unit}"


def number_format(values: Sequence[float]) -> str:
    """The d3 format that shows the ticks at `values` in full: 0.2 instead of 200m, 800 instead of 0.8k."""
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return "~f"
    # Use as many decimals as the ticks differ in.
    decimals = max(len(f"{value:.12f}".rstrip("0").partition(".")[2]) for value in sizes)
    if max(sizes) >= MOST_PLAIN or decimals > MOST_DECIMALS:
        return ".3~e"
    return f".{decimals}~f"


def ticks(low: float, high: float) -> list[float]:
    """Ticks 1, 10, 100 between `low` and `high`; 1, 2, 5, 10 if the range is less than two and a half decades."""
    steps = (1.0,) if math.log10(high / low) >= DECADES_WITHOUT_BETWEEN else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{step}e{decade}") for decade in decades for step in steps]
    return [tick for tick in every if low * 0.999 <= tick <= high * 1.001]


def rounded_down(value: float) -> float:
    """The largest 1, 2 or 5 times a power of ten that is not above `value`."""
    decade = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return max(step * decade for step in (1.0, 2.0, 5.0) if step * decade <= value * (1 + 1e-9))


def rounded_up(value: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is not below `value`."""
    decade = 10.0 ** math.floor(math.log10(value) - 1e-9)
    return min(step * decade for step in (1.0, 2.0, 5.0, 10.0) if step * decade >= value * (1 - 1e-9))


def is_wide(values: pd.Series) -> bool:
    """Whether a linear axis would hide the smallest of the values."""
    positive = values[values > 0]
    return len(positive) > 1 and float(positive.max()) > LOG_FROM * float(positive.min())


def dodged(names: Sequence[str]) -> dict[str, float]:
    """A factor near 1 for each name: shifts its points on a logarithmic axis, so that intervals do not overlap."""
    step = min(DODGE, MOST_DODGE ** (1 / max(1, len(names) - 1)))
    return {name: step ** (index - (len(names) - 1) / 2) for index, name in enumerate(names)}


# --- intervals


def reach(table: pd.DataFrame, field: str) -> float:
    """The highest end of a bar, but at most `MOST_OF_A_BAR` times the largest value."""
    largest = float(table[field].max())
    return float(min(max([largest, *_ends(table, f"{field}_high")]), MOST_OF_A_BAR * largest))


def bottom(table: pd.DataFrame, field: str) -> float:
    """The lowest end of a bar, but at least the smallest value divided by `MOST_OF_A_BAR`."""
    values = table[field][table[field] > 0]
    least = float(values.min())
    return float(max(min([least, *_ends(table, f"{field}_low")]), least / MOST_OF_A_BAR))


def _ends(table: pd.DataFrame, column: str) -> list[float]:
    values: list[float] = table[column].dropna().tolist() if column in table else []
    return values


def with_bars(table: pd.DataFrame, field: str) -> pd.DataFrame:
    """The table with the ends of its bars: `bar_low`, `bar_high`, and `cut_low`, `cut_high` if a bar is cut off."""
    if not has_bars(table, field):
        return table
    least, most = bottom(table, field), reach(table, field)
    low, high = table[f"{field}_low"], table[f"{field}_high"]
    return table.assign(
        bar_low=low.clip(lower=least),
        bar_high=high.clip(upper=most),
        cut_low=low.where(low < least).clip(lower=least),
        cut_high=high.where(high > most).clip(upper=most),
    )


def has_bars(table: pd.DataFrame, field: str) -> bool:
    """Whether any row has an interval."""
    return f"{field}_low" in table and bool(table[f"{field}_low"].notna().any())


def is_cut(table: pd.DataFrame, field: str) -> bool:
    """Whether any interval is longer than the frame."""
    drawn = with_bars(table, field)
    return "cut_low" in drawn and bool(drawn[["cut_low", "cut_high"]].notna().any(axis=None))


def bars(base: alt.Chart, table: pd.DataFrame, channel: str, place: alt.X | alt.Y) -> list[alt.Chart]:
    """Layers of the bars of `with_bars` along `channel` (x or y), with arrowheads; `place`: scale, axis and title."""
    if "bar_low" not in table:
        return []
    kind, second = (alt.X, alt.X2) if channel == "x" else (alt.Y, alt.Y2)
    options = {name: place[name] for name in ("scale", "axis", "title")}
    rule = base.transform_filter("isValid(datum.bar_low)").mark_rule(strokeWidth=1.5)
    layers = [rule.encode(**{channel: kind("bar_low:Q", **options), f"{channel}2": second("bar_high:Q")})]
    shapes = {"x": ("triangle-left", "triangle-right"), "y": ("triangle-down", "triangle-up")}[channel]
    for end, arrow in zip(("cut_low", "cut_high"), shapes, strict=True):
        if table[end].notna().any():
            head = base.transform_filter(f"isValid(datum.{end})").mark_point(shape=arrow, filled=True, size=ARROW_SIZE)
            layers.append(head.encode(**{channel: kind(f"{end}:Q", **options)}))
    return layers


# --- text


def text_on(base: alt.Chart, **options: Any) -> list[alt.Chart]:
    """Two layers of the same text, a wider one below in the background colour, so that no line crosses the text."""
    return [base.mark_text(style=look, **options) for look in ("halo", "ink-text")]


def tooltips(frame: pd.DataFrame, titles: Mapping[str, str]) -> list[alt.Tooltip]:
    """Tooltips for the columns with any value: title, and numbers with four digits, or with their unit (`UNITS`)."""
    shown_fields = []
    for column, title in titles.items():
        if column not in frame or frame[column].notna().sum() == 0:
            continue
        numeric = pd.api.types.is_numeric_dtype(frame[column]) and not pd.api.types.is_bool_dtype(frame[column])
        if column in UNITS or column in SECONDS:
            shown_fields.append(alt.Tooltip(f"{column}{TEXT}:N", title=title))
        elif numeric:
            shown_fields.append(alt.Tooltip(f"{column}:Q", title=title, format=".4~g"))
        else:
            shown_fields.append(alt.Tooltip(f"{column}:N", title=title))
    return shown_fields
