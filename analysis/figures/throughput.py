"""Images per second: against batch size, between environments, between models."""

import warnings
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures import style
from analysis.figures.material import Material
from analysis.figures.style import Drawing

RATE = "Throughput [images/s]"
TITLES = {
    "env": "environment",
    "task": "model",
    "variant": "precision",
    "batch_size": "batch size",
    "images_per_s": "images/s",
    "images_per_s_low": "interval from",
    "images_per_s_high": "to",
    "interval": "interval",
    "runs": "runs",
    "step_s": "step [s]",
    "flop_per_s": "attained [FLOP/s]",
    "bound": "limited by",
}
# Diagonals of equal FLOP/s, a decade apart; more would be a hatching.
MOST_DIAGONALS = 8


def against_batch(material: Material, table: pd.DataFrame, failed: pd.DataFrame) -> Drawing:
    """Throughput of `table` (rows of `measured`) against batch size; crosses where no run came to its end."""
    drawn = pd.concat([table, failed.assign(images_per_s=None)]) if len(failed) else table
    parameters, opacity = style.picked("task", "variant")
    colour = style.colour("task", drawn["task"], material.task_colours, "Model")
    dash = style.dash("variant", drawn["variant"], material.variants, "Precision")
    x, y = style.batch_axis(drawn["batch_size"]), _rate(table)
    base = style.chart(table.drop(columns=["run_ids"])).encode(x=x, color=colour, opacity=opacity)
    layers: list[Any] = [
        base.mark_line(strokeWidth=1.8).encode(y=y, strokeDash=dash, detail="series:N", order="batch_size:Q"),
        *_bars(base, table, "y"),
        base.mark_point(filled=True, size=60).encode(
            y=y,
            shape=style.shape("variant", drawn["variant"], material.variants, "Precision", style.WITHOUT_RIM),
            tooltip=style.tooltips(table, TITLES),
        ),
    ]
    if len(failed):
        layers.append(_crosses(failed, x, colour, opacity))
    return alt.layer(*layers).add_params(*parameters).properties(width=style.WIDTH, height=style.HEIGHT)


def _crosses(failed: pd.DataFrame, x: alt.X, colour: alt.Color, opacity: Any) -> Drawing:
    titles = {"task": "model", "variant": "precision", "batch_size": "batch size", "ending": "ended"}
    return (
        style.chart(failed)
        .mark_point(shape="cross", angle=45, size=110, filled=True)
        .encode(
            x=x, y=alt.value(style.HEIGHT - 8), color=colour, opacity=opacity, tooltip=style.tooltips(failed, titles)
        )
    )


def _rate(table: pd.DataFrame) -> alt.Y:
    if style.is_wide(table["images_per_s"]):
        scale, axis = style.log_axis(table["images_per_s"].min() / 1.3, table["images_per_s"].max() * 1.6, form="~s")
    else:
        top = style.reach(table, "images_per_s", factor=1.7) * 1.05
        scale, axis = alt.Scale(domain=[0, top], nice=True), alt.Axis(format="~s", tickCount=6)
    return alt.Y("images_per_s:Q", scale=scale, axis=axis, title=RATE)


def _bars(base: alt.Chart, table: pd.DataFrame, axis: str, field: str = "images_per_s") -> list[alt.Chart]:
    """Error bars, where there is an interval at all."""
    if field + "_low" not in table or not table[field + "_low"].notna().any():
        return []
    ends = {axis: f"{field}_low:Q", f"{axis}2": f"{field}_high:Q"}
    return [
        base.transform_filter(f"isValid(datum.{field}_low)")
        .mark_rule(strokeWidth=1.5, clip=True)
        .encode(**{axis: alt.X(ends[axis]) if axis == "x" else alt.Y(ends[axis]), f"{axis}2": ends[f"{axis}2"]})
    ]


def relative_to_smallest(table: pd.DataFrame) -> pd.DataFrame:
    """`measured` with `relative`: throughput by that of the smallest batch of its series; of one batch none."""
    rows = []
    for _, line in table.groupby(["env", "series"], sort=False):
        ordered = line.sort_values("batch_size")
        if len(set(ordered["batch_size"])) > 1:
            rows.append(ordered.assign(relative=ordered["images_per_s"] / ordered["images_per_s"].iloc[0]))
    return pd.concat(rows, ignore_index=True) if rows else table.iloc[:0].assign(relative=pd.Series(dtype=float))


def scaling(material: Material, table: pd.DataFrame) -> Drawing:
    """Throughput relative to the smallest batch (`relative_to_smallest`), a panel per environment."""
    parameters, opacity = style.picked("task", "variant")
    environments = [name for name in material.environments if name in set(table["env"])]
    panels = []
    columns = 1 if len(environments) == 1 else 2
    width, height = (style.WIDTH, style.HEIGHT) if columns == 1 else (270, 220)
    top = float(table["relative"].max()) * 1.08
    for name in environments:
        rows = table[table["env"] == name]
        base = style.chart(rows.drop(columns=["run_ids"])).encode(
            x=style.batch_axis(rows["batch_size"]),
            y=alt.Y(
                "relative:Q",
                scale=alt.Scale(domain=[0, top], nice=False),
                axis=alt.Axis(format="~g"),
                title="Throughput / smallest batch's [ratio]",
            ),
            color=style.colour("task", table["task"], material.task_colours, "Model"),
            opacity=opacity,
        )
        line = base.mark_line(strokeWidth=1.8).encode(
            strokeDash=style.dash("variant", table["variant"], material.variants, "Precision"), detail="series:N"
        )
        titles = {**TITLES, "relative": "by the smallest batch's"}
        points = base.mark_point(filled=True, size=50).encode(
            shape=style.shape("variant", table["variant"], material.variants, "Precision", style.WITHOUT_RIM),
            tooltip=style.tooltips(rows, titles),
        )
        one = alt.Chart(style.data([{"relative": 1}])).mark_rule(style="ink-line", strokeDash=[4, 4], opacity=0.6)
        panel = alt.layer(one.encode(y="relative:Q"), line, points).properties(width=width, height=height)
        panels.append(panel if columns == 1 else panel.properties(title=alt.Title(name, fontSize=13)))
    if columns == 1:
        return panels[0].add_params(*parameters)
    with warnings.catch_warnings():
        # Altair says that one legend now rules all panels, which is what is wanted.
        warnings.filterwarnings("ignore", message="Automatically deduplicated selection parameter")
        return (
            alt.concat(*panels, columns=columns).add_params(*parameters).resolve_scale(color="shared", shape="shared")
        )


def best(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest line of each model in each environment."""
    known = table[table["images_per_s"].notna()]
    return known.loc[known.groupby(["env", "task"], sort=False)["images_per_s"].idxmax()].reset_index(drop=True)


def comparison(material: Material, table: pd.DataFrame) -> Drawing:
    """`best`: each model's best throughput per environment, with intervals."""
    return dots(material, table, field="images_per_s", title="Best throughput [images/s]", titles=TITLES, form=".3~s")


def dots(
    material: Material, table: pd.DataFrame, *, field: str, title: str, titles: dict[str, str], form: str
) -> Drawing:
    """A point per model and environment with its interval (`<field>_low`, `<field>_high`), and its value beside it."""
    parameters, opacity = style.picked("env")
    environments = _held(material.environments, table["env"])
    tasks = _held(material.tasks, table["task"])
    wide = style.is_wide(table[field])
    # Room for the text beside the last point.
    top = style.reach(table, field, factor=1.7) * (2.0 if wide else 1.12)
    scale, axis = (
        style.log_axis(table[field].min() / 1.5, top, form="~s")
        if wide
        else (alt.Scale(domain=[0, top], nice=True), alt.Axis(format="~s", tickCount=7))
    )
    height = style.rows_height(len(tasks), len(environments))
    base = style.chart(table.drop(columns=["run_ids"], errors="ignore")).encode(
        y=alt.Y("task:N", sort=tasks, title=None, scale=alt.Scale(paddingInner=0.3), axis=alt.Axis(grid=True)),
        yOffset=alt.YOffset("env:N", sort=environments),
        color=style.colour("env", table["env"], material.environment_colours, "Environment"),
        opacity=opacity,
    )
    x = alt.X(f"{field}:Q", scale=scale, axis=axis, title=title)
    layers: list[Any] = []
    if not wide:
        stem = base.transform_calculate(zero="0").mark_rule(strokeWidth=1, strokeDash=[2, 3])
        layers.append(stem.encode(x=x, x2="zero:Q"))
    layers += _bars(base, table, "x", field)
    layers.append(
        base.mark_point(filled=True, size=70).encode(
            x=x,
            shape=style.shape("env", table["env"], material.environments, "Environment"),
            tooltip=style.tooltips(table, titles),
        )
    )
    ends = table[f"{field}_high"].fillna(table[field]).clip(upper=style.reach(table, field, factor=1.7))
    text = style.chart(table[["env", "task", field]].assign(end=ends)).encode(
        y=base.encoding.y, yOffset=base.encoding.yOffset, opacity=opacity
    )
    layers.append(
        text.mark_text(align="left", dx=9, style="ink-text", fontSize=11).encode(
            x=alt.X("end:Q"), text=alt.Text(f"{field}:Q", format=form)
        )
    )
    return alt.layer(*layers).add_params(*parameters).properties(width=style.WIDTH - 120, height=height)


def models(material: Material, table: pd.DataFrame) -> Drawing:
    """`best` against the model's training FLOP per image; on a dotted diagonal the device does equal FLOP/s."""
    known = table[table["train_flop_per_image"].notna()]
    parameters, opacity = style.picked("task", "env")
    low_x, high_x = known["train_flop_per_image"].min() / 1.5, known["train_flop_per_image"].max() * 1.5
    low_y, high_y = known["images_per_s"].min() / 1.6, known["images_per_s"].max() * 1.6
    x_scale, x_axis = style.log_axis(low_x, high_x, form="~s")
    y_scale, y_axis = style.log_axis(low_y, high_y, form="~s")
    x = alt.X("train_flop_per_image:Q", scale=x_scale, axis=x_axis, title="Training work [FLOP/image]")
    y = alt.Y("images_per_s:Q", scale=y_scale, axis=y_axis, title="Best throughput [images/s]")
    base = style.chart(known.drop(columns=["run_ids"])).encode(
        x=x, y=y, color=style.colour("task", known["task"], material.task_colours, "Model"), opacity=opacity
    )
    points = base.mark_point(filled=True, size=90).encode(
        shape=style.shape("env", known["env"], material.environments, "Environment"),
        tooltip=style.tooltips(known, TITLES),
    )
    diagonals = _diagonals(x_scale.domain, y_scale.domain)
    lines = style.chart(diagonals)
    layers = [
        lines.mark_line(style="ink-line", strokeDash=[1, 4], opacity=0.55, clip=True).encode(
            x="train_flop_per_image:Q", y="images_per_s:Q", detail="rate:Q"
        ),
        lines.transform_filter("datum.label != null")
        .mark_text(style="ink-text", opacity=0.75, fontSize=11, align="left", baseline="bottom", dx=4, dy=-2)
        .encode(x="train_flop_per_image:Q", y="images_per_s:Q", text="label:N"),
        *_bars(base, known, "y"),
        points,
    ]
    return alt.layer(*layers).add_params(*parameters).properties(width=style.WIDTH, height=style.HEIGHT)


def _diagonals(across: Sequence[float], up: Sequence[float]) -> pd.DataFrame:
    """Ends of the lines of 1, 10, 100, … GFLOP/s through the frame, a label at the left end of each."""
    left, right = across
    bottom, top = up
    rates = [rate for rate in style.ticks(left * bottom, right * top * 10) if left * bottom < rate < right * top]
    rates = [rate for rate in rates if f"{rate:e}".startswith("1.")][-MOST_DIAGONALS:]
    rows = []
    for rate in rates:
        begin, end = max(left, rate / top), min(right, rate / bottom)
        rows.append(
            {"rate": rate, "train_flop_per_image": begin, "images_per_s": rate / begin, "label": _rate_text(rate)}
        )
        rows.append({"rate": rate, "train_flop_per_image": end, "images_per_s": rate / end, "label": None})
    return pd.DataFrame(rows, columns=["rate", "train_flop_per_image", "images_per_s", "label"])


def _rate_text(rate: float) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= factor:
            return f"{rate / factor:g} {prefix}FLOP/s"
    return f"{rate:g} FLOP/s"


def _held(order: Sequence[str], names: pd.Series) -> list[str]:
    present = set(names)
    return [name for name in order if name in present]
