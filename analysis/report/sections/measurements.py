"""Measurements: throughput against batch size, between environments and precisions, with every line in a table."""

from typing import Any

from analysis.figures import registry
from analysis.report import words
from analysis.report.content import Block, Paragraph, Picture, Section
from analysis.report.evidence import Compared, Evidence

# All pairs of places times all configurations: more than this are for `analyze compare`.
MOST_PAIRS = 300


def section(evidence: Evidence) -> Section:
    """Figures first, then the table of all lines, then the comparisons."""
    figures = evidence.figures("throughput_env-", "batch_size_scaling", "model_comparison", "efficiency_comparison")
    timed = len(evidence.material.measured) > 0
    return Section(
        name="measurements",
        title="Measurements",
        blocks=[Picture(figure=each) for each in figures] or [Paragraph(text=registry.NO_RATE.capitalize() + ".")],
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


def _summary(evidence: Evidence) -> Block:
    columns = [
        ("environment", False),
        ("model", False),
        ("precision", False),
        ("batch", True),
        ("runs", True),
        ("images/s, median", True),
        ("95 % interval", True),
        ("mean ± SD", True),
        ("step", True),
        ("attained without waits", True),
        ("FLOP/byte", True),
        ("of the roof", True),
        ("limited by", False),
        ("data waits", True),
    ]
    points = _points(evidence)
    spread = evidence.material.runs.groupby("line")["images_per_s"].agg(["mean", "std"])
    cells = []
    for line, row in enumerate(words.rows_of(evidence.material.measured)):
        point = points.get((row["env"], row["task"], row["variant"], row["batch_size"]), {})
        mean, stdev = (spread.at[line, name] if line in spread.index else None for name in ("mean", "std"))
        cells.append(
            [
                row["env"],
                row["task"],
                row["series"].partition(" · ")[2],
                words.text(row["batch_size"]),
                str(row["runs"]),
                words.figure(row["images_per_s"], 4),
                words.between(row["images_per_s_low"], row["images_per_s_high"], 4),
                f"{words.figure(mean, 4)} ± {words.figure(stdev, 2)}" if words.is_known(stdev) else words.ABSENT,
                words.seconds(row["step_s"]),
                words.si(row["flop_per_s"], "FLOP/s"),
                words.figure(point.get("intensity_flop_per_byte")),
                words.percent(point.get("fraction_of_roof")),
                words.text(row["bound"]),
                words.percent(row["data_wait_fraction"]),
            ]
        )
    return words.table("Summary: one line per configuration and environment", columns, cells)


def _points(evidence: Evidence) -> dict[tuple[Any, ...], dict[str, Any]]:
    """By line, the point of the better source: counters before the model."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for point in words.rows_of(evidence.material.points):
        key = (point["env"], point["task"], point["variant"], point["batch_size"])
        if point["source"] == "counters" or key not in found:
            found[key] = point
    return found


def compared(found: Compared, what: str) -> list[Block]:
    """The table of `analysis.compare`, or why there is none."""
    if found.reason is not None:
        return [Paragraph(text=f"No comparison between {what}: {found.reason}.")]
    columns = [
        ("model", False),
        ("batch", True),
        ("precision", False),
        ("left", False),
        ("right", False),
        ("right/left", True),
        ("jointly 95 %", True),
        ("p (Holm)", True),
        ("verdict", False),
        ("note", False),
    ]
    rows = words.rows_of(found.table)
    cells = [
        [
            words.text(row["model"]),
            words.text(row["batch_size"]),
            words.text(row["precision"]),
            words.text(row["left"]),
            words.text(row["right"]),
            words.figure(row["ratio"]),
            words.between(row["ratio_low"], row["ratio_high"]),
            words.figure(row["p_holm"], 2),
            words.text(row["verdict"]),
            words.text(row.get("note")),
        ]
        for row in rows[:MOST_PAIRS]
    ]
    more = f"; the first {MOST_PAIRS}, analyze compare prints all" if len(rows) > MOST_PAIRS else ""
    caption = f"Ratio of images/s; intervals and p-values corrected for all {len(rows)} comparisons (Holm){more}"
    return [words.table(caption, columns, cells)]
