"""Charts of throughput, of shares (of the device's rate, of time, of cost), and of the spread between runs."""

import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures import style
from analysis.figures.material import Material
from analysis.figures.style import Drawing
from analysis.loading import units
from analysis.readers.ncu.metrics import Family
from workload.contract.tables import number
from workload.contract.text import si

TITLES = {
    "env": "place",
    "task": "model",
    "variant": "precision",
    "batch_size": "batch size",
    "images_per_s": "{unit}/s",
    "images_per_s_low": "bar from",
    "images_per_s_high": "to",
    "interval": "bar",
    "runs": "runs",
    "step_s": "step",
    "joules_per_image": "J per {one}",
    "flop_per_s": "attained",
    "bound": "limited by",
    "busy": "busy",
}
# Maximum number of diagonals of equal FLOP/s, a decade apart; more would look like hatching.
MOST_DIAGONALS = 8
BEST = "Best throughput [{unit}/s]"


def titles(material: Material, **more: str) -> dict[str, str]:
    """Titles of columns in tooltips; `more`: titles of further columns."""
    return {name: units.worded(title, material.unit) for name, title in (TITLES | more).items()}


def against_batch(material: Material, table: pd.DataFrame, failed: pd.DataFrame) -> Drawing:
    """Chart of throughput (rows of `measured`) against batch size; crosses mark sizes without any completed run."""
    drawn = pd.concat([table, failed.assign(images_per_s=None)]) if len(failed) else table
    parameters, opacity = style.picked(drawn, "task", "variant")
    colour = style.colour("task", drawn["task"], material.task_colours, "Model")
    dash = style.dash("variant", drawn["variant"], material.variants, material.variant_title)
    x, field = style.batch_axis(drawn["batch_size"], material.unit, "at"), "images_per_s"
    if style.is_wide(table[field]):
        scale, axis, _ = style.log_axis(style.bottom(table, field) / 1.1, style.reach(table, field) * 1.1)
    else:
        scale, axis = style.linear_axis(0, style.reach(table, field) * 1.05)
    y = alt.Y(f"{field}:Q", scale=scale, axis=axis, title=f"Throughput [{material.unit}/s]")
    # Shift series sideways, because the intervals of one batch size would hide each other.
    has_bars = style.has_bars(table, "images_per_s")
    shift = style.dodged(list(dict.fromkeys(table["series"]))) if has_bars else dict.fromkeys(table["series"], 1.0)
    rows = style.with_bars(table, "images_per_s").drop(columns=["run_ids"])
    rows = rows.assign(at=rows["batch_size"] * rows["series"].map(shift))
    base = style.chart(rows).encode(x=x, color=colour, opacity=opacity)
    layers: list[Any] = [
        base.mark_line(strokeWidth=1.8).encode(
            y=y, strokeDash=dash, detail=alt.Detail("series:N"), order=alt.Order("batch_size:Q")
        ),
        *style.bars(base, rows, "y", y),
        base.mark_point(filled=True, size=60).encode(
            y=y,
            shape=style.shape(
                "variant", drawn["variant"], material.variants, material.variant_title, style.WITHOUT_RIM
            ),
            tooltip=style.tooltips(table, titles(material)),
        ),
    ]
    if len(failed):
        layers.append(_crosses(failed.assign(at=failed["batch_size"]), x, colour, opacity))
    return style.layered(layers, parameters, height=style.HEIGHT)


def _crosses(failed: pd.DataFrame, x: alt.X, colour: alt.Color, opacity: Any) -> Drawing:
    titles = {"task": "model", "variant": "precision", "batch_size": "batch size", "ending": "ended"}
    return (
        style.chart(failed)
        .mark_point(shape="cross", angle=45, size=110, filled=True)
        .encode(
            x=x, y=alt.value(style.HEIGHT - 8), color=colour, opacity=opacity, tooltip=style.tooltips(failed, titles)
        )
    )


def relative_to_smallest(table: pd.DataFrame) -> pd.DataFrame:
    """`measured` with `relative`: throughput over that of the smallest batch of its series.

    Series with a single batch size are left out.
    """
    rows = []
    for _, line in table.groupby(["env", "series"], sort=False):
        ordered = line.sort_values("batch_size")
        if len(set(ordered["batch_size"])) > 1:
            rows.append(ordered.assign(relative=ordered["images_per_s"] / ordered["images_per_s"].iloc[0]))
    return pd.concat(rows, ignore_index=True) if rows else table.iloc[:0].assign(relative=pd.Series(dtype=float))


def scaling(material: Material, table: pd.DataFrame) -> Drawing:
    """Chart of throughput relative to the smallest batch (`relative_to_smallest`), a panel per environment."""
    parameters, opacity = style.picked(table, "task", "variant")
    environments = style.present(material.environments, table["env"])
    panels = []
    columns = 1 if len(environments) == 1 else 2
    width, height = (style.WIDTH, style.HEIGHT) if columns == 1 else (270, 220)
    scale, axis = style.linear_axis(0, max(1.0, float(table["relative"].max())) * 1.08)
    for name in environments:
        rows = table[table["env"] == name]
        base = style.chart(rows.drop(columns=["run_ids"])).encode(
            x=style.batch_axis(rows["batch_size"], material.unit),
            y=alt.Y("relative:Q", scale=scale, axis=axis, title="Throughput / smallest batch's [ratio]"),
            color=style.colour("task", table["task"], material.task_colours, "Model"),
            opacity=opacity,
        )
        line = base.mark_line(strokeWidth=1.8).encode(
            strokeDash=style.dash("variant", table["variant"], material.variants, material.variant_title),
            detail=alt.Detail("series:N"),
        )
        names = titles(material, relative="by the smallest batch's")
        points = base.mark_point(filled=True, size=50).encode(
            shape=style.shape(
                "variant", table["variant"], material.variants, material.variant_title, style.WITHOUT_RIM
            ),
            tooltip=style.tooltips(rows, names),
        )
        equal = alt.Chart(style.data([{"relative": 1}])).mark_rule(style="ink-line", strokeDash=[4, 4], opacity=0.6)
        layers = map(style.lean, (equal.encode(y=alt.Y("relative:Q")), line, points))
        panel = alt.layer(*layers).properties(width=width, height=height)
        panels.append(
            panel
            if columns == 1
            else panel.properties(title=alt.Title(style.broken(name, 2 * style.AXIS_CHARACTERS), fontSize=13))
        )
    if columns == 1:
        return panels[0].add_params(*parameters)
    with warnings.catch_warnings():
        # Altair warns that one legend now controls all panels, which is intended.
        warnings.filterwarnings("ignore", message="Automatically deduplicated selection parameter")
        return (
            alt.concat(*panels, columns=columns).add_params(*parameters).resolve_scale(color="shared", shape="shared")
        )


def over_devices(material: Material, table: pd.DataFrame) -> Drawing:
    """Chart of efficiency (rows of `scaling`) over the number of devices or machines; at 1, N are N times as fast.

    `table` also has `setting`: configuration without this number, which is `number`.
    """
    parameters, opacity = style.picked(table, "env", "setting")
    series, settings = table["env"] + table["setting"], list(dict.fromkeys(table["setting"]))
    shift = style.dodged(list(dict.fromkeys(series)))
    rows = style.with_bars(table, "efficiency")
    rows = rows.assign(at=rows["number"] * series.map(shift))
    # Each line begins at one device alone, the measure of the others.
    begins = rows.drop_duplicates(["env", "setting"])[["env", "setting"]].assign(at=1.0, number=1.0, efficiency=1.0)
    x = style.doubling_axis([1.0, *table["number"]], "at", "Devices, or machines")
    scale, axis = style.linear_axis(0, max(1.0, style.reach(table, "efficiency")) * 1.05, percent="")
    y = alt.Y("efficiency:Q", scale=scale, axis=axis, title="Throughput of each / one alone [%]")
    colour = style.colour("env", table["env"], material.environment_colours, "Place")
    base = style.chart(rows).encode(x=x, color=colour, opacity=opacity)
    lines = style.chart(pd.concat([begins, rows[list(begins.columns)]])).encode(x=x, color=colour, opacity=opacity)
    ideal = style.chart(pd.DataFrame({"text": ["N times one"], "at": [table["number"].max()], "efficiency": [1.0]}))
    more = {
        "setting": "configuration",
        "number": "devices, or machines",
        "efficiency": "efficiency (1: N times one)",
        "efficiency_low": "bar from",
        "efficiency_high": "to",
        "images_per_s": "{unit}/s of each",
        "all_images_per_s": "{unit}/s of all",
        "limit": "limits scaling",
    }
    layers: list[Any] = [
        ideal.mark_rule(style="ink-line", strokeDash=[4, 4], opacity=0.6).encode(y=y),
        lines.mark_line(strokeWidth=1.8).encode(
            y=y,
            strokeDash=style.dash("setting", settings, settings, "Configuration"),
            detail=alt.Detail(["env:N", "setting:N"]),
            order=alt.Order("number:Q"),
        ),
        *style.bars(base, rows, "y", y),
        base.mark_point(filled=True, size=60).encode(
            y=y,
            shape=style.shape("setting", settings, settings, "Configuration", style.WITHOUT_RIM),
            tooltip=style.tooltips(table, titles(material, **more)),
        ),
        *(
            # At a place of the axis, because a page narrows the figure.
            layer.encode(x=x, y=y, text=alt.Text("text:N"))
            for layer in style.text_on(ideal, align="right", baseline="bottom", dy=-3, fontSize=11)
        ),
    ]
    return style.layered(layers, parameters, height=style.HEIGHT)


def best(table: pd.DataFrame) -> pd.DataFrame:
    """The row of `table` with the highest throughput, for each model and environment."""
    known = table[table["images_per_s"].notna()]
    return known.loc[known.groupby(["env", "task"], sort=False)["images_per_s"].idxmax()].reset_index(drop=True)


def comparison(material: Material, table: pd.DataFrame, field: str = "images_per_s", title: str = BEST) -> Drawing:
    """Chart of one `field` for each model and environment, with its interval and its value: throughput, from `best`."""
    is_wide = style.is_wide(table[field])
    # Leave room for the text beside the last point.
    top = style.reach(table, field) * (2.0 if is_wide else 1.15)
    if is_wide:
        scale, axis, _ = style.log_axis(style.bottom(table, field) / 1.2, top)
    else:
        scale, axis = style.linear_axis(0, top)
    return rows_of_points(
        material,
        table.drop(columns=["run_ids"], errors="ignore"),
        x=alt.X(f"{field}:Q", scale=scale, axis=axis, title=units.worded(title, material.unit)),
        field=field,
        legends=("env",),
        order=table["env"].map(style.present(material.environments, table["env"]).index),
        shape=style.shape("env", table["env"], material.environments, "Place"),
        text=lambda value: number(value, 3),
        tooltip=style.tooltips(table, titles(material)),
        has_stems=not is_wide,
    )


def rows_of_points(
    material: Material,
    table: pd.DataFrame,
    *,
    x: alt.X,
    field: str,
    legends: Sequence[str],
    order: pd.Series,
    shape: alt.Shape,
    text: Callable[[float], str],
    tooltip: Sequence[alt.Tooltip],
    has_stems: bool = False,
) -> Drawing:
    """Chart with a band for each model, in it a row for each point of `table` with its interval and its value.

    `field`: column of the values; `legends`: columns with a legend; `order`: order of the rows in a band. `has_stems`:
    a dotted line leads from 0 to each point.
    """
    parameters, opacity = style.picked(table, *legends)
    tasks = style.present(material.tasks, table["task"])
    rows = style.with_bars(table, field)
    rows = rows.assign(
        end=rows["bar_high"].fillna(table[field]) if "bar_high" in rows else table[field],
        text=table[field].map(text),
        # Separate rows, because intervals would overlap.
        row=style.rows_of_each(table["task"], order),
    )
    bands = alt.Scale(paddingInner=0.3)
    base = style.chart(rows).encode(
        y=alt.Y("task:N", sort=tasks, title=None, scale=bands, axis=style.named_axis(tasks, grid=True)),
        yOffset=alt.YOffset("row:O", scale=style.rows_scale(rows["row"])),
        opacity=opacity,
    )
    coloured = base.encode(color=style.colour("env", table["env"], material.environment_colours, "Place"))
    end = alt.X("end:Q", scale=x["scale"], axis=x["axis"], title=x["title"])
    layers: list[Any] = [
        *style.bars(coloured, rows, "x", x),
        coloured.mark_point(filled=True, size=70).encode(x=x, shape=shape, tooltip=tooltip),
        *(
            layer.encode(x=end, text=alt.Text("text:N"))
            for layer in style.text_on(base, align="left", dx=9, fontSize=11)
        ),
    ]
    if has_stems:
        stem = coloured.transform_calculate(zero="0").mark_rule(strokeWidth=1, strokeDash=[2, 3])
        layers.insert(0, stem.encode(x=x, x2=alt.X2("zero:Q")))
    height = style.rows_height(len(tasks), int(rows["row"].max()) + 1)
    return style.layered(layers, parameters, width=style.WIDTH - 120, height=height)


def models(material: Material, table: pd.DataFrame) -> Drawing:
    """Chart of `best` against the model's training FLOP per image; dotted diagonals have equal FLOP/s."""
    known = table[table["train_flop_per_image"].notna()]
    parameters, opacity = style.picked(known, "task", "env")
    low_x, high_x = known["train_flop_per_image"].min() / 1.5, known["train_flop_per_image"].max() * 1.5
    x_scale, x_axis, unit = style.log_axis(low_x, high_x, unit=f"FLOP/{units.singular(material.unit)}")
    y_scale, y_axis, _ = style.log_axis(
        style.bottom(known, "images_per_s") / 1.3, style.reach(known, "images_per_s") * 1.3
    )
    work = "train_flop_per_image"
    y = alt.Y("images_per_s:Q", scale=y_scale, axis=y_axis, title=f"Best throughput [{material.unit}/s]")
    shift = style.dodged(style.present(material.environments, known["env"]))
    rows = style.with_bars(known.drop(columns=["run_ids"]), "images_per_s")
    # Shift environments sideways, because a model has the same work in all of them.
    rows = rows.assign(at=rows[work] * rows["env"].map(shift))
    x = alt.X("at:Q", scale=x_scale, axis=x_axis, title=f"Training work [{unit}]")
    base = style.chart(rows).encode(
        x=x, color=style.colour("task", known["task"], material.task_colours, "Model"), opacity=opacity
    )
    points = base.mark_point(filled=True, size=90).encode(
        y=y,
        shape=style.shape("env", known["env"], material.environments, "Place"),
        tooltip=style.tooltips(known, titles(material)),
    )
    diagonals = _diagonals(x_scale.domain, y_scale.domain)
    lines = style.chart(diagonals)
    begins = style.chart(diagonals[diagonals["label"].notna()])
    layers = [
        lines.mark_line(style="ink-line", strokeDash=[1, 4], opacity=0.55, clip=True).encode(
            x=alt.X("at:Q", scale=x_scale, axis=x_axis, title=x["title"]), y=y, detail=alt.Detail("rate:Q")
        ),
        *(
            layer.encode(x=x, y=y, text=alt.Text("label:N"))
            for layer in style.text_on(begins, opacity=0.75, fontSize=11, align="left", baseline="bottom", dx=4, dy=-2)
        ),
        *style.bars(base, rows, "y", y),
        points,
    ]
    return style.layered(layers, parameters, height=style.HEIGHT)


def _diagonals(across: Sequence[float], up: Sequence[float]) -> pd.DataFrame:
    """End points of the lines of 1, 10, 100, … GFLOP/s through the frame; the left end carries the label."""
    left, right = across
    bottom, top = up
    rates = [rate for rate in style.ticks(left * bottom, right * top * 10) if left * bottom < rate < right * top]
    rates = [rate for rate in rates if f"{rate:e}".startswith("1.")][-MOST_DIAGONALS:]
    rows = []
    for rate in rates:
        begin, end = max(left, rate / top), min(right, rate / bottom)
        rows.append({"rate": rate, "at": begin, "images_per_s": rate / begin, "label": si(rate, "FLOP/s")})
        rows.append({"rate": rate, "at": end, "images_per_s": rate / end, "label": None})
    return pd.DataFrame(rows, columns=["rate", "at", "images_per_s", "label"])


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


def variance_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of one configuration with `relative`: throughput over the place's median, minus 1.

    `slow` and `fast`: `relative` if each step took as long as the run's 95th or 5th percentile in place of its median
    step, with the same waits for data. Throughput includes these waits and step times do not, so a rate by steps alone
    would be above the run's own.
    """
    parts = []
    used = ["env", "run_id", "images_per_s", "data_wait_fraction", "step_median_s", "step_p95_s", "step_p5_s"]
    # With all columns, pandas warns of a fragmented table.
    for _, repeats in runs[used].groupby("env", sort=False):
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
