"""Charts of shares: of the device's rate, of time and of cost, and the spread between runs of one configuration."""

from itertools import product

import altair as alt
import pandas as pd

from analysis.figures import style
from analysis.figures.material import Material
from analysis.figures.style import Drawing
from analysis.figures.throughput import dots, rows_of_points, titles
from analysis.readers.ncu.families import Family
from workload.contract.tables import number

# Eleven families: eight colours that readers can distinguish, then greys for rare families.
FAMILY_COLOURS = dict(zip(map(str, Family), (*style.COLOURS, "#9b9b9b", "#757575", "#b0a08c"), strict=False))
# Maximum number of runs with a row of their own; more rows would be too thin to see.
MOST_RUNS = 40
# Pixels of a run's row: FEW_ROWS for up to MANY runs, MANY_ROWS for more.
MANY, FEW_ROWS, MANY_ROWS = 12, 14, 8
# Least half-length of the axis: a shorter one would exaggerate differences between almost equal runs.
LEAST_SPREAD = 0.001
EFFICIENCY = {"measured": "of the measured ceiling", "peak": "of the vendor's peak"}


def efficiency(material: Material, table: pd.DataFrame) -> Drawing:
    """Chart of attained FLOP/s as a share of the device's ceiling or peak.

    `table`: a row per model, environment and kind of share (`of`, a value of `EFFICIENCY`).
    """
    environments = style.present(material.environments, table["env"])
    rank = {pair: index for index, pair in enumerate(product(environments, EFFICIENCY.values()))}
    scale, axis = style.linear_axis(0, max(1.0, style.reach(table, "fraction")), percent="")
    return rows_of_points(
        material,
        table,
        x=alt.X("fraction:Q", scale=scale, axis=axis, title="Attained FLOP/s, share of the roof [%]"),
        field="fraction",
        legends=("env", "of"),
        order=pd.Series([rank[pair] for pair in zip(table["env"], table["of"], strict=True)], index=table.index),
        shape=style.shape("of", table["of"], list(EFFICIENCY.values()), "Share"),
        text=lambda fraction: f"{number(100 * fraction, 2)} %",
        tooltip=style.tooltips(table, titles(material, of="share", fraction="fraction (1 = all)")),
    )


def cost(material: Material, table: pd.DataFrame) -> Drawing:
    """Chart of US dollars per million images (or tokens, samples); the interval is that of the throughput."""
    field, usd = "usd_per_million_images", f"USD per million {material.unit}"
    return dots(material, table, field=field, title=f"Cost [{usd}]", **{field: usd}, usd_per_h="USD/h")


def breakdown(table: pd.DataFrame) -> Drawing:
    """Chart of each configuration's time by kernel family; column `configuration` names the bars."""
    parameters, opacity = style.picked(table, "family")
    order = style.present(map(str, Family), table["family"])
    rank = {name: index for index, name in enumerate(order)}
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
            order=alt.Order("rank:Q"),
            opacity=opacity,
            tooltip=style.tooltips(drawn, columns),
        )
        .add_params(*parameters)
        .properties(width=style.WIDTH - 200, height=max(30, 15 * lines) * len(configurations) + 10)
    )


def variance_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of one configuration with `relative`: throughput over the environment's median, minus 1.

    `slow` and `fast`: `relative` if each step took as long as the run's 95th or 5th percentile in place of its median
    step, with the same waits for data. Throughput includes these waits and step times do not, so a rate by steps alone
    would be above the run's own.
    """
    parts = []
    for _, repeats in runs.groupby("env", sort=False):
        median = repeats["images_per_s"].median()
        ordered = repeats.sort_values("images_per_s")
        if len(ordered) > MOST_RUNS:
            kept = [round(place * (len(ordered) - 1) / (MOST_RUNS - 1)) for place in range(MOST_RUNS)]
            ordered = ordered.iloc[kept]
        rate, waits = ordered["images_per_s"] / median, ordered["data_wait_fraction"].fillna(0.0)
        slow, fast = (
            rate / (waits + (1 - waits) * ordered[column] / ordered["step_median_s"]) - 1
            for column in ("step_p95_s", "step_p5_s")
        )
        parts.append(ordered.assign(row=range(len(ordered)), relative=rate - 1, slow=slow, fast=fast))
    columns = ["env", "run_id", "row", "images_per_s", "relative", "slow", "fast"]
    return pd.concat(parts, ignore_index=True)[columns]


def variance(material: Material, rows: pd.DataFrame) -> Drawing:
    """Chart of `variance_rows`: each run relative to its environment's median, on a line from `slow` to `fast`."""
    parameters, opacity = style.picked(rows, "env")
    environments = style.present(material.environments, rows["env"])
    most = int(rows.groupby("env").size().max())
    base = style.chart(rows).encode(
        y=alt.Y("env:N", sort=environments, title=None, axis=style.named_axis(environments, grid=True)),
        yOffset=alt.YOffset("row:O", sort=None, scale=alt.Scale(paddingOuter=0.5)),
        color=style.colour("env", environments, material.environment_colours, "Place"),
        opacity=opacity,
    )
    ends = [value for column in ("relative", "slow", "fast") for value in rows[column].dropna()]
    least, most_relative = min([*ends, -LEAST_SPREAD]), max([*ends, LEAST_SPREAD])
    scale, axis = style.linear_axis(1.05 * least, 1.05 * most_relative, percent="+")
    columns = {"env": "place", "run_id": "run", "images_per_s": f"{material.unit}/s", "relative": "against the median"}
    spans = base.transform_filter("isValid(datum.slow) && isValid(datum.fast)").mark_rule(strokeWidth=2, opacity=0.45)
    layers = [
        spans.encode(x=alt.X("slow:Q", scale=scale, axis=axis), x2=alt.X2("fast:Q")),
        base.mark_point(filled=True, size=60).encode(
            x=alt.X("relative:Q", scale=scale, axis=axis, title="Throughput against the median [%]"),
            shape=style.shape("env", rows["env"], material.environments, "Place"),
            tooltip=style.tooltips(rows, columns),
        ),
    ]
    height = style.rows_height(len(environments), most, row=FEW_ROWS if most <= MANY else MANY_ROWS)
    return style.layered(layers, parameters, width=style.WIDTH - 120, height=height)
