"""Draw rooflines: attained FLOP/s against FLOP per byte, below measured roofs and vendors' peaks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures import style
from analysis.figures.material import Material
from analysis.figures.style import Drawing
from workload.contract.text import si

INTENSITY = "Arithmetic intensity [FLOP/byte]"
TITLES = {
    "env": "place",
    "task": "model",
    "variant": "precision",
    "batch_size": "batch size",
    "family": "kernels",
    "level": "bytes of",
    "source": "FLOP and bytes",
    "intensity_flop_per_byte": "intensity",
    "intensity_low": "intensity from",
    "intensity_high": "to",
    "flop_per_s": "attained",
    "flop_per_s_low": "interval from",
    "flop_per_s_high": "to",
    "fraction_of_roof": "of the roof (1 = at it)",
    "fraction_of_peak": "of the vendor's peak",
    "share_of_time": "share of the time",
    "launches": "launches",
    "bound": "limited by",
    "runs": "runs",
    "note": "note",
}
# Height of a line of text in pixels, at which two lines do not touch.
LABEL_HEIGHT = 15
ROOF_DASHES = {"measured": [1, 0], "peak": [7, 4]}
# Layout of batch sizes beside their points, in pixels: text height, width of a digit, distance from the point, and the
# width of the frame on a phone, where texts are closest to each other.
TEXT_HEIGHT, DIGIT_WIDTH, FROM_POINT, NARROW = 11, 6, 7, 300
# Marks of points by the source of their FLOP and bytes. A transparent fill makes the whole mark react to the pointer; a
# hollow mark reacts on its rim alone.
POINTS: Mapping[str, Mapping[str, Any]] = {
    "modelled": {"size": 70, "strokeWidth": 1.8, "fill": "transparent"},
    "counters": {"size": 80, "filled": True},
    "under the profiler": {"size": 80, "strokeWidth": 1, "filled": True, "fillOpacity": 0.35},
}
LEVELS = {"intensity_flop_per_byte": "DRAM", "l2_intensity": "L2", "l1_intensity": "L1"}


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Axis limits of a chart: FLOP/byte across, FLOP/s up; `height` in pixels."""

    left: float
    right: float
    bottom: float
    top: float
    height: int = style.HEIGHT

    @property
    def x(self) -> alt.X:
        scale, axis, _ = style.log_axis(self.left, self.right)
        return alt.X("intensity_flop_per_byte:Q", scale=scale, axis=axis, title=INTENSITY)

    @property
    def y(self) -> alt.Y:
        scale, axis, unit = style.log_axis(self.bottom, self.top, unit="FLOP/s")
        return alt.Y("flop_per_s:Q", scale=scale, axis=axis, title=f"Attained [{unit}]")

    def pixels(self, flop_per_s: float) -> float:
        """Distance of a rate from the top edge, in pixels."""
        return self.height * math.log(self.top / flop_per_s) / math.log(self.top / self.bottom)

    def place(self, point: Mapping[Any, Any]) -> tuple[float, float]:
        """Position of a point: pixels from the left and from the top edge, in a frame of a phone's width."""
        across = math.log(point["intensity_flop_per_byte"] / self.left) / math.log(self.right / self.left)
        return NARROW * across, self.pixels(point["flop_per_s"])

    def rate(self, pixels: float) -> float:
        """FLOP/s at a distance from the top edge in pixels; the inverse of `pixels`."""
        return float(self.top * (self.bottom / self.top) ** (pixels / self.height))


def frame_of(points: pd.DataFrame, roofs: pd.DataFrame, *, height: int = style.HEIGHT) -> Plane:
    """Axis limits that contain every point with its interval, and every roof with its ridge point."""
    across = _known(points, "intensity_flop_per_byte", "intensity_low", "intensity_high")
    up = [style.bottom(points, "flop_per_s"), style.reach(points, "flop_per_s")]
    ridges = (roofs["flop_per_s"] / roofs["bytes_per_s"]).dropna().tolist() if len(roofs) else []
    right = max([*across, *ridges]) * 2
    left = min([*across, *ridges]) / 2
    top = max([*up, *_known(roofs, "flop_per_s")]) * 1.6
    return Plane(
        left=style.rounded_down(left),
        right=style.rounded_up(right),
        bottom=style.rounded_down(min(up) / 1.6),
        top=style.rounded_up(top),
        height=height,
    )


def _known(table: pd.DataFrame, *columns: str) -> list[float]:
    """Positive numbers in `columns`; columns that the table lacks are skipped."""
    numbers = (pd.to_numeric(table[name], errors="coerce") for name in columns if name in table)
    return [float(value) for column in numbers for value in column.dropna() if value > 0]


def steps(material: Material, points: pd.DataFrame, roofs: pd.DataFrame) -> Drawing:
    """Chart of one environment's training steps below its roofs; the interval of modelled bytes is a line."""
    frame = frame_of(points, roofs)
    parameters, opacity = style.picked(points, "task", "variant")
    colour = style.colour("task", points["task"], material.task_colours, "Model", style.RINGS)
    rows = style.with_bars(_drawn(points), "flop_per_s")
    base = style.chart(rows).encode(x=frame.x, y=frame.y, color=colour, opacity=opacity)
    shape = style.shape("variant", points["variant"], material.variants, material.variant_title, style.RINGS)
    layers = [
        *_roof_layers(roofs, frame),
        _curve(base),
        *_spans(base, rows, frame),
        *_points(base, points, shape),
        *_batch_texts(points, frame, opacity),
    ]
    return style.layered(layers, parameters, height=frame.height)


def _batch_texts(points: pd.DataFrame, frame: Plane, opacity: Any) -> list[alt.Chart]:
    places = batch_labels(points, frame)
    if places.empty:
        return []
    return [
        layer.encode(x=frame.x, y=frame.y, text=alt.Text("text:N"), opacity=opacity)
        for (align, dx, dy), rows in places.groupby(["align", "dx", "dy"], sort=False)
        for layer in style.text_on(
            style.chart(rows.drop(columns=["align", "dx", "dy"])),
            align=align,
            dx=dx,
            dy=dy,
            baseline="middle",
            fontSize=11,
        )
    ]


def batch_labels(points: pd.DataFrame, frame: Plane) -> pd.DataFrame:
    """Label each point with its batch size, if there is room to its right, left, above or below.

    Largest and smallest batches are placed first. Batch sizes without room are in the tooltip and the table.
    """
    known = points[points["batch_size"].notna()]
    rows = known.sort_values("batch_size", ascending=False).to_dict("records")
    rows = [row for pair in zip(rows, reversed(rows), strict=True) for row in pair][: len(rows)] if rows else []
    centres = [frame.place(row) for row in known.to_dict("records")]
    taken = [(x - FROM_POINT + 1, x + FROM_POINT - 1, y - FROM_POINT + 1, y + FROM_POINT - 1) for x, y in centres]
    places = []
    for row in rows:
        x, y = frame.place(row)
        text = f"{row['batch_size']:g}"
        width = DIGIT_WIDTH * len(text)
        away = FROM_POINT + TEXT_HEIGHT / 2
        sides = (
            ("left", FROM_POINT, 0, (x + FROM_POINT, x + FROM_POINT + width)),
            ("right", -FROM_POINT, 0, (x - FROM_POINT - width, x - FROM_POINT)),
            ("center", 0, -away, (x - width / 2, x + width / 2)),
            ("center", 0, away, (x - width / 2, x + width / 2)),
        )
        for align, dx, dy, (left, right) in sides:
            box = (left, right, y + dy - TEXT_HEIGHT / 2, y + dy + TEXT_HEIGHT / 2)
            is_covered = any(
                box[0] < other[1] and other[0] < box[1] and box[2] < other[3] and other[2] < box[3] for other in taken
            )
            if not is_covered and left > 0 and right < NARROW:
                taken.append(box)
                kept = {name: row[name] for name in ("task", "variant", "intensity_flop_per_byte", "flop_per_s")}
                places.append({**kept, "text": text, "align": align, "dx": dx, "dy": dy})
                break
    return pd.DataFrame(places)


def combined(material: Material, points: pd.DataFrame, roofs: pd.DataFrame) -> Drawing:
    """Chart of training steps and roofs of all environments; a roof is a measured ceiling or the vendor's peak."""
    frame = frame_of(points, roofs, height=430)
    parameters, opacity = style.picked(points, "env", "task")
    colour = style.colour(
        "env", [*points["env"], *roofs.get("env", [])], material.environment_colours, "Place", style.RINGS
    )
    rows = style.with_bars(_drawn(points), "flop_per_s")
    base = style.chart(rows).encode(x=frame.x, y=frame.y, color=colour, opacity=opacity)
    shape = style.shape("task", points["task"], material.tasks, "Model", style.RINGS)
    layers = [*_spans(base, rows, frame), *_points(base, points, shape)]
    if len(roofs):
        lines = style.chart(_lines(roofs, frame)).mark_line(strokeWidth=1.6, clip=True)
        channels = {"x": frame.x, "y": frame.y, "color": colour, "opacity": opacity}
        layers.insert(0, lines.encode(**channels, detail=alt.Detail("roof:N"), strokeDash=_kinds(roofs)))
    return style.layered(layers, parameters, height=frame.height)


def kernels(points: pd.DataFrame, roofs: pd.DataFrame, families: Mapping[str, str]) -> Drawing:
    """Chart of kernel families of one profiled configuration: area by share of time, a shape per level of memory."""
    table = _levels(points)
    frame = frame_of(table, roofs)
    parameters, opacity = style.picked(table, "family")
    base = style.chart(table).encode(
        x=frame.x, y=frame.y, color=style.colour("family", table["family"], families, "Kernels"), opacity=opacity
    )
    shape = style.shape("level", table["level"], list(LEVELS.values()), "Bytes of")
    size = alt.Size(
        "share_of_time:Q",
        scale=alt.Scale(type="linear", domain=[0, 1], range=[25, 1600]),
        legend=alt.Legend(
            format=".0%", values=[0.05, 0.2, 0.5], symbolType="circle", symbolFillColor="gray", symbolOpacity=0.6
        ),
        title="Share of the time",
    )
    marks = base.mark_point(filled=True, fillOpacity=0.55, stroke=None).encode(
        shape=shape, size=size, tooltip=style.tooltips(table, TITLES)
    )
    layers = [*_roof_layers(roofs, frame), marks, *_at_least(base, table)]
    return style.layered(layers, parameters, height=frame.height)


def _levels(points: pd.DataFrame) -> pd.DataFrame:
    """Rows per kernel family and memory level, for levels whose bytes were counted."""
    kept = [name for name in points.columns if name not in LEVELS]
    rows = [
        points[kept].assign(intensity_flop_per_byte=points[column], level=level)
        for column, level in LEVELS.items()
        if column in points
    ]
    table = pd.concat(rows, ignore_index=True)
    return table[(table["intensity_flop_per_byte"] > 0) & (table["flop_per_s"] > 0)].reset_index(drop=True)


def against_batch(material: Material, points: pd.DataFrame) -> Drawing:
    """Chart of arithmetic intensity of one model against batch size; the interval of modelled bytes is a line."""
    # Shift environments sideways, because equal points would hide each other.
    shift = style.dodged(style.present(material.environments, points["env"]))
    table = _drawn(points).assign(at=points["batch_size"] * points["env"].map(shift))
    parameters, opacity = style.picked(points, "env", "variant")
    x = style.batch_axis(points["batch_size"], material.unit, "at")
    known = _known(points, "intensity_flop_per_byte", "intensity_low", "intensity_high")
    scale, axis, _ = style.log_axis(min(known) / 1.3, max(known) * 1.3)
    y = alt.Y("intensity_flop_per_byte:Q", scale=scale, axis=axis, title=INTENSITY)
    colour = style.colour("env", points["env"], material.environment_colours, "Place", style.RINGS)
    base = style.chart(table).encode(x=x, y=y, color=colour, opacity=opacity)
    shape = style.shape("variant", points["variant"], material.variants, material.variant_title, style.RINGS)
    layers = [_curve(base), _modelled_span(base, "y"), *_points(base, points, shape)]
    return style.layered(layers, parameters, height=320)


def _curve(base: alt.Chart) -> Drawing:
    """Layer of a dotted line through the points of one precision and source, in the order of batch sizes."""
    line = base.mark_line(strokeWidth=1, strokeDash=[1, 3])
    return line.encode(detail=[alt.Detail("variant:N"), alt.Detail("source:N")], order=alt.Order("batch_size:Q"))


def _modelled_span(base: alt.Chart, channel: str) -> Drawing:
    """Layer of dashed lines along `channel` (x or y) over the intervals of modelled bytes."""
    rows = base.transform_filter("isValid(datum.intensity_low) && datum.source == 'modelled'")
    first, second = (alt.X, alt.X2) if channel == "x" else (alt.Y, alt.Y2)
    ends = {channel: first("intensity_low:Q"), f"{channel}2": second("intensity_high:Q")}
    return rows.mark_rule(strokeWidth=1.5, strokeDash=[4, 2]).encode(**ends)


def _drawn(points: pd.DataFrame) -> pd.DataFrame:
    """Only the columns that a chart needs: other columns would make the page larger."""
    kept = ["env", "task", "variant", "batch_size", "flop_is_lower_bound", *TITLES]
    return points[[name for name in dict.fromkeys(kept) if name in points]]


def _spans(base: alt.Chart, points: pd.DataFrame, frame: Plane) -> list[alt.Chart]:
    """Layers of intervals: of modelled bytes horizontally (dashed), over runs vertically (solid)."""
    modelled = [_modelled_span(base, "x")] if (points["source"] == "modelled").any() else []
    return [*modelled, *style.bars(base, points, "y", frame.y)]


def _points(base: alt.Chart, points: pd.DataFrame, shape: alt.Shape) -> list[alt.Chart]:
    """Layers of points: filled for GPU counters, pale for rates over kernel time, hollow for modelled bytes."""
    tips = style.tooltips(points, TITLES)
    layers = [
        base.transform_filter(f"datum.source == '{name}'").mark_point(**POINTS[name]).encode(shape=shape, tooltip=tips)
        for name in style.present(POINTS, points["source"])
    ]
    return [*layers, *_at_least(base, points)]


def _at_least(base: alt.Chart, points: pd.DataFrame) -> list[alt.Chart]:
    """Layer of `≥` signs at points whose FLOP are a lower bound; empty list if there are none."""
    if "flop_is_lower_bound" not in points or not points["flop_is_lower_bound"].any():
        return []
    mark = base.transform_filter("datum.flop_is_lower_bound").mark_text(text="≥", dx=-12, fontSize=15)
    return [mark]


def _kinds(roofs: pd.DataFrame, *, named: bool = False) -> alt.StrokeDash:
    """Dash pattern by kind of roof; `named` roofs have a label at their line, and need no legend."""
    kinds = style.present(ROOF_DASHES, roofs["kind"])
    scale = alt.Scale(domain=kinds, range=[ROOF_DASHES[kind] for kind in kinds])
    options = {"symbolType": "stroke", "symbolStrokeColor": "gray", "symbolSize": 500}
    legend = None if named else style.legend_of(kinds, **options)
    return alt.StrokeDash("kind:N", scale=scale, legend=legend, title="Roof")


def _roof_layers(roofs: pd.DataFrame, frame: Plane) -> list[alt.Chart]:
    if roofs.empty:
        return []
    lines = style.chart(_lines(roofs, frame)).mark_line(style="ink-line", strokeWidth=1.5, clip=True, opacity=0.8)
    texts = style.text_on(
        style.chart(_labels(roofs, frame)), align="right", baseline="bottom", dx=-4, dy=-3, fontSize=11, clip=True
    )
    return [
        lines.encode(x=frame.x, y=frame.y, detail=alt.Detail("roof:N"), strokeDash=_kinds(roofs, named=True)),
        *(text.encode(x=frame.x, y=frame.y, text=alt.Text("label:N")) for text in texts),
    ]


def _lines(roofs: pd.DataFrame, frame: Plane) -> pd.DataFrame:
    """A row for each end point and ridge point of each roof, within the frame."""
    rows = []
    for name, roof in enumerate(roofs.to_dict("records")):
        rate, bandwidth = roof["flop_per_s"], roof["bytes_per_s"]
        corners: list[tuple[float, float]] = []
        if bandwidth and bandwidth > 0:
            begin = max(frame.left, frame.bottom / bandwidth)
            corners.append((begin, min(rate, begin * bandwidth)))
            if frame.left < rate / bandwidth < frame.right:
                corners.append((rate / bandwidth, rate))
        else:
            corners.append((frame.left, rate))
        corners.append((frame.right, min(rate, frame.right * bandwidth) if bandwidth and bandwidth > 0 else rate))
        rows += [
            {
                "roof": str(name),
                "kind": roof["kind"],
                "env": roof.get("env"),
                "task": None,
                "intensity_flop_per_byte": intensity,
                "flop_per_s": flop_per_s,
            }
            for intensity, flop_per_s in corners
        ]
    return pd.DataFrame(rows)


def _labels(roofs: pd.DataFrame, frame: Plane) -> pd.DataFrame:
    """A label per roof at the right edge: above its line, or below if it would overlap the label of the roof above."""
    rows = []
    bottom = 0.0
    for roof in roofs.sort_values("flop_per_s", ascending=False).to_dict("records"):
        line, bandwidth = frame.pixels(roof["flop_per_s"]), roof["bytes_per_s"]
        bottom = line if line - LABEL_HEIGHT >= bottom else max(line, bottom) + LABEL_HEIGHT
        memory = f", {si(bandwidth, 'B/s')}" if bandwidth and bandwidth > 0 else ""
        text = f"{roof['kind']} {roof['precision']}: {si(roof['flop_per_s'], 'FLOP/s')}{memory}"
        rows.append({"intensity_flop_per_byte": frame.right, "flop_per_s": frame.rate(bottom), "label": text})
    return pd.DataFrame(rows)
