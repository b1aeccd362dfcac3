"""Charts of shares: of the device's rate, of time and of cost, and the spread between runs of one configuration."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures import style
from analysis.figures.material import Material
from analysis.figures.style import Drawing
from analysis.figures.throughput import dots, titles
from analysis.readers.ncu.families import Family
from workload.contract.tables import number

# Eleven families: eight colours that readers can distinguish, then greys for rare families.
FAMILY_COLOURS: Mapping[str, str] = {
    **dict(zip(map(str, Family), (*style.COLOURS, "#9b9b9b", "#757575", "#b0a08c"), strict=False)),
}
# Most rows of single runs; more would be too thin to see.
MOST_RUNS = 40
# Pixels of a run's row: FEW_ROWS for up to MANY runs, MANY_ROWS for more.
MANY, FEW_ROWS, MANY_ROWS = 12, 14, 8
# Least half-length of the axis: a shorter one would exaggerate differences between almost equal runs.
LEAST_SPREAD = 0.001
# Placement of a value's text beside its point.
VALUE: Mapping[str, Any] = {"align": "left", "dx": 9, "fontSize": 11}
EFFICIENCY = {"measured": "of the measured ceiling", "peak": "of the vendor's peak"}


def efficiency(material: Material, table: pd.DataFrame) -> Drawing:
    """Chart of attained FLOP/s over the device's, a row per model, environment and `of` (`EFFICIENCY`)."""
    parameters, opacity = style.picked(table, "env", "of")
    environments = [name for name in material.environments if name in set(table["env"])]
    tasks = [name for name in material.tasks if name in set(table["task"])]
    order = {(env, of): place for place, (env, of) in enumerate(product(environments, EFFICIENCY.values()))}
    places = pd.Series([order[pair] for pair in zip(table["env"], table["of"], strict=True)], index=table.index)
    rows = style.with_bars(table, "fraction").assign(
        # Separate rows, because the two intervals would overlap.
        row=style.rows_of_each(table["task"], places),
        text=table["fraction"].map(lambda fraction: f"{number(100 * fraction, 2)} %"),
    )
    base = style.chart(rows).encode(
        y=alt.Y("task:N", sort=tasks, title=None, axis=style.named_axis(tasks, grid=True)),
        yOffset=alt.YOffset("row:O", scale=style.rows_scale(rows["row"])),
        opacity=opacity,
    )
    coloured = base.encode(color=style.colour("env", table["env"], material.environment_colours, "Environment"))
    scale, axis = style.linear_axis(0, max(1.0, style.reach(table, "fraction")), percent="")
    x = alt.X("fraction:Q", scale=scale, axis=axis, title="Attained FLOP/s, share of the device's [%]")
    shape = style.shape("of", table["of"], list(EFFICIENCY.values()), "Share")
    names = titles(material, of="share", fraction="fraction (1 = all)")
    end = "bar_high" if "bar_high" in rows else "fraction"
    texts = style.text_on(base.transform_calculate(end=f"isValid(datum.{end}) ? datum.{end} : datum.fraction"), **VALUE)
    layers = [
        *style.bars(coloured, rows, "x", x),
        coloured.mark_point(filled=True, size=75).encode(x=x, shape=shape, tooltip=style.tooltips(table, names)),
        *(layer.encode(x=alt.X("end:Q", scale=scale, axis=axis, title=x["title"]), text="text:N") for layer in texts),
    ]
    height = style.rows_height(len(tasks), int(rows["row"].max()) + 1)
    return style.layered(layers, parameters, width=style.WIDTH - 120, height=height)


def cost(material: Material, table: pd.DataFrame) -> Drawing:
    """Chart of US dollars per million images (or tokens, samples); the interval is that of the throughput."""
    field, usd = "usd_per_million_images", f"USD per million {material.unit}"
    return dots(material, table, field=field, title=f"Cost [{usd}]", **{field: usd}, usd_per_h="USD/h")


def breakdown(table: pd.DataFrame) -> Drawing:
    """Chart of each configuration's time by kernel family; column `configuration` names the bars."""
    parameters, opacity = style.picked(table, "family")
    order = [str(family) for family in Family if str(family) in set(table["family"])]
    rank = {name: place for place, name in enumerate(order)}
    drawn = table.assign(rank=table["family"].map(rank))
    columns = {
        "configuration": "configuration",
        "family": "kernels",
        "share_of_time": "share of the time",
        "duration_s": "time",
        "launches": "launches",
    }
    configurations = list(dict.fromkeys(drawn["configuration"]))
    scale, axis = style.linear_axis(0, 1, percent="")
    lines = max(len(style.broken(name, style.AXIS_CHARACTERS)) for name in configurations)
    return (
        style.chart(drawn)
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X("share_of_time:Q", scale=scale, axis=axis, title="Share of kernel time [%]"),
            y=alt.Y("configuration:N", title=None, sort=None, axis=style.named_axis(configurations)),
            color=style.colour("family", order, FAMILY_COLOURS, "Kernels"),
            order="rank:Q",
            opacity=opacity,
            tooltip=style.tooltips(drawn, columns),
        )
        .add_params(*parameters)
        .properties(width=style.WIDTH - 200, height=max(30, 15 * lines) * len(configurations) + 10)
    )


def variance_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of one configuration with `relative`: throughput over the environment's median, minus 1.

    `slow` and `fast`: the throughput at the 95th and the 5th percentile of the run's step times, relative to the same
    median.
    """
    parts = []
    for _, repeats in runs.groupby("env", sort=False):
        median = repeats["images_per_s"].median()
        ordered = repeats.sort_values("images_per_s")
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
    """Chart of `variance_rows`: each run relative to its environment's median, and the range of 90 % of its steps."""
    parameters, opacity = style.picked(rows, "env")
    environments = [name for name in material.environments if name in set(rows["env"])]
    most = int(rows.groupby("env").size().max())
    y = alt.Y("env:N", sort=environments, title=None, axis=style.named_axis(environments, grid=True))
    offset = alt.YOffset("row:O", sort=None, scale=alt.Scale(paddingOuter=0.5))
    base = style.chart(rows).encode(
        y=y,
        yOffset=offset,
        color=style.colour("env", environments, material.environment_colours, "Environment"),
        opacity=opacity,
    )
    ends = [value for column in ("relative", "slow", "fast") for value in rows[column].dropna()]
    least, most_relative = min([*ends, -LEAST_SPREAD]), max([*ends, LEAST_SPREAD])
    scale, axis = style.linear_axis(1.05 * least, 1.05 * most_relative, percent="+")
    columns = {
        "env": "environment",
        "run_id": "run",
        "images_per_s": f"{material.unit}/s",
        "relative": "against the median",
    }
    spans = base.transform_filter("isValid(datum.slow) && isValid(datum.fast)").mark_rule(strokeWidth=2, opacity=0.45)
    return (
        alt.layer(
            spans.encode(x=alt.X("slow:Q", scale=scale, axis=axis), x2="fast:Q"),
            base.mark_point(filled=True, size=60).encode(
                x=alt.X("relative:Q", scale=scale, axis=axis, title="Throughput against the median [%]"),
                shape=style.shape("env", rows["env"], material.environments, "Environment"),
                tooltip=style.tooltips(rows, columns),
            ),
        )
        .add_params(*parameters)
        .properties(
            width=style.WIDTH - 120,
            height=style.rows_height(len(environments), most, row=FEW_ROWS if most <= MANY else MANY_ROWS),
        )
    )
