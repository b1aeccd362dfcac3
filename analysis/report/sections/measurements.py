"""Measurements: throughput against batch size, between environments and precisions, with every line in a table."""

from typing import Any

from analysis import units
from analysis.figures import registry
from analysis.report import words
from analysis.report.content import Block, Paragraph, Picture, Section
from analysis.report.evidence import Compared, ReportEvidence
from workload.contract.tables import Column, Role

# All pairs of places times all configurations: more than this are for `analyze compare`.
MOST_PAIRS = 300
SUMMARY = (
    Column(name="env", heading="environment", role=Role.FACT),
    Column(name="task", heading="model", role=Role.FACT),
    Column(name="precision", heading="precision", role=Role.FACT),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="runs", heading="runs", digits=0),
    units.COUNTED,
    Column(name="images_per_s", heading="images/s, median"),
    Column(name="interval", heading="95 % interval"),
    Column(name="mean", heading="mean ± SD"),
    Column(name="step_s", heading="step", unit="s", prefixed=True),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True, digits=3),
    Column(name="intensity", heading="FLOP/byte", digits=3),
    Column(name="fraction_of_roof", heading="of the roof", unit="%", digits=2),
    Column(name="bound", heading="limited by", role=Role.FACT),
    Column(name="busy", heading="busy", role=Role.FACT),
    Column(name="data_wait_fraction", heading="data waits", unit="%", digits=2),
)
COMPARED = (
    Column(name="model", heading="model", role=Role.FACT),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="precision", heading="precision", role=Role.FACT),
    Column(name="left", heading="left", role=Role.FACT),
    Column(name="right", heading="right", role=Role.FACT),
    Column(name="ratio", heading="right/left", digits=3),
    Column(name="interval", heading="jointly 95 %"),
    Column(name="p_holm", heading="p (Holm)", digits=2),
    Column(name="verdict", heading="verdict", role=Role.FACT),
    Column(name="note", heading="note", role=Role.FACT),
)


NO_RATE = f"{registry.NO_RATE.capitalize()}."
NO_FIGURE = "No model ran at two batch sizes, nor two models in one way: the table has what was measured."


def section(evidence: ReportEvidence) -> Section:
    """Figures first, then the table of all lines, then the comparisons."""
    figures = evidence.figures("throughput_env-", "batch_size_scaling", "model_comparison", "efficiency_comparison")
    timed = len(evidence.material.measured) > 0
    return Section(
        name="measurements",
        title="Measurements",
        blocks=[Picture(figure=figure) for figure in figures] or [Paragraph(text=NO_FIGURE if timed else NO_RATE)],
        parts=[
            *([Section(name="summary", title="Every configuration", blocks=[_summary(evidence)])] if timed else []),
            Section(
                name="speedups",
                title="Speed-ups between environments",
                blocks=compared(evidence.by_place, "environments"),
            ),
            Section(name="precisions", title="Precisions", blocks=compared(evidence.by_precision, "precisions")),
        ],
    )


def _summary(evidence: ReportEvidence) -> Block:
    points = _points(evidence)
    spread = evidence.material.runs.groupby("line")["images_per_s"].agg(["mean", "std"])
    rows = []
    for line, row in enumerate(words.rows_of(evidence.material.measured)):
        point = points.get((row["env"], row["task"], row["variant"], row["batch_size"]), {})
        mean, stdev = (spread.at[line, name] if line in spread.index else None for name in ("mean", "std"))
        rows.append(
            row
            | {
                "precision": row["series"].partition(" · ")[2],
                "interval": words.between(row["images_per_s_low"], row["images_per_s_high"], 4),
                "mean": f"{words.figure(mean, 4)} ± {words.figure(stdev, 2)}" if words.is_known(stdev) else None,
                "intensity": point.get("intensity_flop_per_byte"),
                "fraction_of_roof": point.get("fraction_of_roof"),
            }
        )
    return words.table("Summary: one line per configuration and environment", SUMMARY, rows)


def _points(evidence: ReportEvidence) -> dict[tuple[Any, ...], dict[str, Any]]:
    """By line, the point of the better source: counters before the model."""
    point_of: dict[tuple[Any, ...], dict[str, Any]] = {}
    for point in words.rows_of(evidence.material.points):
        key = (point["env"], point["task"], point["variant"], point["batch_size"])
        if point["source"] == "counters" or key not in point_of:
            point_of[key] = point
    return point_of


def compared(comparison: Compared, what: str) -> list[Block]:
    """The table of `analysis.compare`, or why there is none."""
    if comparison.reason is not None:
        return [Paragraph(text=f"No comparison between {what}: {comparison.reason}.")]
    rows = [
        row | {"interval": words.between(row["ratio_low"], row["ratio_high"])}
        for row in words.rows_of(comparison.table)
    ]
    more = f"; the first {MOST_PAIRS}, analyze compare prints all" if len(rows) > MOST_PAIRS else ""
    caption = f"Ratio of images/s; intervals and p-values corrected for all {len(rows)} comparisons (Holm){more}"
    return [words.table(caption, COMPARED, rows[:MOST_PAIRS])]
