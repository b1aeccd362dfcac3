"""How much: of the device's rate, of the time, of the money, and how far runs of one configuration lie apart."""

from collections.abc import Mapping

import altair as alt
import pandas as pd

from analysis.figures import style
from analysis.figures.material import Material
from analysis.figures.style import Drawing
from analysis.figures.throughput import TITLES, dots
from analysis.ncu.families import Family

# Eleven families: the eight colours that are told apart, then greys, for what is rarely there.
FAMILY_COLOURS: Mapping[str, str] = {
    **dict(zip(map(str, Family), (*style.COLOURS, "#9b9b9b", "#757575", "#b0a08c"), strict=False)),
}
# Rows of single runs; more are too thin to see.
MOST_RUNS = 40
# Pixels of a run's row: up to so many, and beyond.
MANY, FEW_ROWS, MANY_ROWS = 12, 14, 8
EFFICIENCY = {"measured": "of the measured ceiling", "peak": "of the vendor's peak"}


def efficiency(material: Material, table: pd.DataFrame) -> Drawing:
    """Attained FLOP/s by the device's: a row per model, environment and `of` (`EFFICIENCY`), with intervals."""
    parameters, opacity = style.picked("env", "of")
    environments = [name for name in material.environments if name in set(table["env"])]
    base = style.chart(table).encode(
        y=alt.Y("task:N", sort=list(material.tasks), title=None, axis=alt.Axis(grid=True)),
        yOffset=alt.YOffset("env:N", sort=environments),
        color=style.colour("env", table["env"], material.environment_colours, "Environment"),
        opacity=opacity,
    )
    top = max(1.0, style.reach(table, "fraction", factor=1.2))
    x = alt.X(
        "fraction:Q",
        scale=alt.Scale(domain=[0, top], nice=True),
        axis=alt.Axis(format=".0%", tickCount=6),
        title="Attained FLOP/s by the device's [%]",
    )
    shape = style.shape("of", table["of"], list(EFFICIENCY.values()), "Share")
    titles = {**TITLES, "of": "share", "fraction": "fraction (1 = all)"}
    marks = base.mark_point(filled=True, size=75).encode(x=x, shape=shape, tooltip=style.tooltips(table, titles))
    layers = [marks]
    if table["fraction_low"].notna().any():
        bars = base.transform_filter("isValid(datum.fraction_low)").mark_rule(strokeWidth=1.5, clip=True)
        layers.insert(0, bars.encode(x="fraction_low:Q", x2="fraction_high:Q"))
    height = style.rows_height(table["task"].nunique(), len(environments))
    return alt.layer(*layers).add_params(*parameters).properties(width=style.WIDTH - 120, height=height)


def cost(material: Material, table: pd.DataFrame) -> Drawing:
    """US dollars per million images, with the interval of the throughput behind it."""
    titles = {**TITLES, "usd_per_million_images": "USD per million images", "usd_per_h": "USD/h"}
    return dots(
        material,
        table,
        field="usd_per_million_images",
        title="Cost [USD per million images]",
        titles=titles,
        form=".3~g",
    )


def breakdown(table: pd.DataFrame) -> Drawing:
    """Each configuration's time by kernel family; `configuration` names the rows."""
    parameters, opacity = style.picked("family")
    order = [str(family) for family in Family if str(family) in set(table["family"])]
    rank = {name: place for place, name in enumerate(order)}
    drawn = table.assign(rank=table["family"].map(rank))
    titles = {
        "configuration": "configuration",
        "family": "kernels",
        "share_of_time": "share of the time",
        "duration_s": "time [s]",
        "launches": "launches",
    }
    return (
        style.chart(drawn)
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X(
                "share_of_time:Q",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%", tickCount=5),
                title="Share of kernel time [%]",
            ),
            y=alt.Y("configuration:N", title=None, sort=None, axis=alt.Axis(labelLimit=300)),
            color=style.colour("family", order, FAMILY_COLOURS, "Kernels"),
            order="rank:Q",
            opacity=opacity,
            tooltip=style.tooltips(drawn, titles),
        )
        .add_params(*parameters)
        .properties(width=style.WIDTH - 200, height=30 * drawn["configuration"].nunique() + 10)
    )


def variance_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of one configuration with `relative` (throughput by the environment's median) and their steps' range.

    `slow` and `fast`: the throughput of a step that only 5 % are slower or faster than, by the same median.
    """
    parts = []
    for _, found in runs.groupby("env", sort=False):
        median = found["images_per_s"].median()
        ordered = found.sort_values("images_per_s")
        if len(ordered) > MOST_RUNS:
            kept = [round(place * (len(ordered) - 1) / (MOST_RUNS - 1)) for place in range(MOST_RUNS)]
            ordered = ordered.iloc[kept]
        rate = {
            end: ordered["images_per_step"] / ordered[f"step_{name}_s"]
            for end, name in (("slow", "p95"), ("fast", "p5"))
        }
        parts.append(
            ordered.assign(
                row=range(len(ordered)),
                relative=ordered["images_per_s"] / median - 1,
                slow=rate["slow"] / median - 1,
                fast=rate["fast"] / median - 1,
            )
        )
    columns = ["env", "run_id", "row", "images_per_s", "relative", "slow", "fast"]
    return pd.concat(parts, ignore_index=True)[columns]


def variance(material: Material, rows: pd.DataFrame) -> Drawing:
    """`variance_rows`: each run against the median of its environment, and where 90 % of its steps lie."""
    parameters, opacity = style.picked("env")
    environments = [name for name in material.environments if name in set(rows["env"])]
    most = int(rows.groupby("env").size().max())
    y = alt.Y("env:N", sort=environments, title=None, axis=alt.Axis(grid=True))
    offset = alt.YOffset("row:O", sort=None, scale=alt.Scale(paddingOuter=0.5))
    base = style.chart(rows).encode(
        y=y,
        yOffset=offset,
        color=style.colour("env", environments, material.environment_colours, "Environment"),
        opacity=opacity,
    )
    axis = alt.Axis(format="+.0%", tickCount=6)
    titles = {"env": "environment", "run_id": "run", "images_per_s": "images/s", "relative": "against the median"}
    spans = base.transform_filter("isValid(datum.slow) && isValid(datum.fast)").mark_rule(strokeWidth=2, opacity=0.45)
    return (
        alt.layer(
            spans.encode(x="slow:Q", x2="fast:Q"),
            base.mark_point(filled=True, size=60).encode(
                x=alt.X("relative:Q", axis=axis, title="Throughput against the environment's median [%]"),
                shape=style.shape("env", rows["env"], material.environments, "Environment"),
                tooltip=style.tooltips(rows, titles),
            ),
        )
        .add_params(*parameters)
        .properties(
            width=style.WIDTH - 120,
            height=style.rows_height(len(environments), most, row=FEW_ROWS if most <= MANY else MANY_ROWS),
        )
    )
