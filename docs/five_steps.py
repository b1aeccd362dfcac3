"""Draw the picture of README and docs/analysing.md, light and dark: `make picture`."""

import json
import tomllib
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from analysis.figures import style
from analysis.figures.rooflines import INTENSITY

HERE = Path(__file__).parent
LEFT, RIGHT, BOTTOM, TOP = 1.0, 500.0, 1e9, 600e9
# Pixels. Small enough for a phone, where the picture is shown at three quarters of its size.
WIDTH, HEIGHT, TEXT = 480, 330, 15


def drawing(facts: dict[str, Any], theme: dict[str, Any]) -> dict[str, Any]:
    """Vega-Lite of the steps below their roof, in the colours of `theme`."""
    roof, slope, steps = facts["flop_per_s"], facts["bytes_per_s"], facts["step"]
    x_scale, x_axis, _ = style.log_axis(LEFT, RIGHT)
    y_scale, y_axis, unit = style.log_axis(BOTTOM, TOP, unit="FLOP/s")
    x = alt.X("intensity_low:Q", scale=x_scale, axis=x_axis, title=INTENSITY)
    y = alt.Y("flop_per_s:Q", scale=y_scale, axis=y_axis, title=f"Attained [{unit}]")
    domain = [step["limit"] for step in steps]
    scale = alt.Scale(domain=domain, range=list(style.COLOURS[: len(domain)]))
    colour = alt.Color("limit:N", scale=scale, legend=None)
    corners = [(LEFT, LEFT * slope), (roof / slope, roof), (RIGHT, roof)]
    line = alt.Chart(style.data([{"intensity_low": across, "flop_per_s": up} for across, up in corners]))
    points = alt.Chart(style.data(steps))
    layers = [
        line.mark_line(style="ink-line", strokeWidth=1.8).encode(x=x, y=y),
        points.mark_rule(strokeWidth=1.6, strokeDash=[4, 2]).encode(x=x, x2="intensity_high:Q", y=y, color=colour),
        points.mark_point(filled=True, size=100, opacity=1).encode(x=x, y=y, color=colour),
        *(_text(step, f"{step['limit']}: {step['name']}", dy=step["label_dy"]).encode(x=x, y=y) for step in steps),
        _text({"intensity_low": 25, "flop_per_s": roof}, "roof: arithmetic", dy=-12).encode(x=x, y=y),
        _text({"intensity_low": 1.2, "flop_per_s": 4 * slope}, "roof: memory", dy=-12).encode(x=x, y=y),
    ]
    chart: dict[str, Any] = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT).to_dict()
    for part in ("axis", "legend"):
        theme = {**theme, part: {**theme[part], "labelFontSize": TEXT - 1, "titleFontSize": TEXT}}
    return {**chart, "padding": 12, "config": theme}


def _text(place: dict[str, Any], text: str, *, dy: float) -> alt.Chart:
    """A text `dy` pixels below a place."""
    row = {name: place[name] for name in ("intensity_low", "flop_per_s")}
    chart = alt.Chart(style.data([row]))
    drawn: alt.Chart = chart.mark_text(style="ink-text", text=text, align="left", dx=-5, dy=dy, fontSize=TEXT)
    return drawn


def main() -> None:
    """Write both pictures."""
    facts = tomllib.loads((HERE / "five_steps.toml").read_text(encoding="utf-8"))
    for name, theme in (("five-steps.svg", style.PAPER), ("five-steps-dark.svg", style.DARK)):
        svg = vl_convert.vegalite_to_svg(json.dumps(drawing(facts, theme)))
        (HERE / "images" / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
