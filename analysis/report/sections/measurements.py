"""Section on measurements: effect of each setting and place, every configuration in a table, cost of images."""

from collections import Counter
from typing import Any

from analysis.compare.pairing import value_text
from analysis.figures import registry
from analysis.loading import units
from analysis.loading.configurations import label
from analysis.loading.rows import rows as rows_of
from analysis.report import words
from analysis.report.content import Block, Picture, Section
from analysis.report.evidence import ReportEvidence
from workload.contract.tables import Column, Role
from workload.contract.text import counted

# Most pairs of one fact; `analyze compare` prints all.
MOST_PAIRS = 100
SUMMARY = (
    Column(name="env", heading="environment", role=Role.FACT),
    Column(name="task", heading="model", role=Role.FACT),
    Column(name="precision", heading="precision", role=Role.FACT),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="runs", heading="runs", digits=0),
    units.COUNTED,
    Column(name="images_per_s", heading="{unit}/s, median"),
    Column(name="interval", heading="95 % interval"),
    Column(name="step_s", heading="step", unit="s", prefixed=True),
    Column(name="peak_memory_bytes", heading="peak memory", unit="B", prefixed=True, digits=3),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True, digits=3),
    Column(name="intensity", heading="FLOP/byte", digits=3),
    Column(name="fraction_of_roof", heading="of the roof", unit="%", digits=2),
    Column(name="bound", heading="limited by", role=Role.FACT),
    Column(name="busy", heading="busy", role=Role.FACT),
    Column(name="data_wait_fraction", heading="data waits", unit="%", digits=2),
)
COMPARED = (
    Column(name="fact", heading="compared", role=Role.FACT),
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

CHEAPEST = (
    Column(name="task", heading="model", role=Role.FACT),
    Column(name="env", heading="environment", role=Role.FACT),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="variant", heading="precision", role=Role.FACT),
    Column(name="usd_per_million_images", heading="USD per million {unit}", digits=3),
    Column(name="interval", heading="95 % interval"),
    Column(name="usd_per_h", heading="USD/h", digits=3),
    Column(name="runs", heading="runs", digits=0),
    Column(name="price", heading="price from", role=Role.FACT),
)
FIGURES = (
    "throughput_comparison",
    "throughput_env-",
    "batch_size_scaling",
    "model_comparison",
    "efficiency_comparison",
    "cost",
)


def section(evidence: ReportEvidence) -> Section:
    """The section: comparisons, figures, every configuration, cost."""
    blocks: list[Block] = [*_compared(evidence)]
    blocks += [Picture(figure=figure) for figure in evidence.figures(*FIGURES)]
    blocks += [*_summary(evidence), *_cheapest(evidence)]
    return Section(name="measurements", title="Measurements", blocks=blocks)


def _compared(evidence: ReportEvidence) -> list[Block]:
    """Comparisons of `analysis.compare.ratios` for every fact in which runs differ, in one table."""
    number_of: Counter[str] = Counter()
    rows = []
    for contrast in evidence.contrasts:
        fact, row = contrast.fact, contrast.row
        number_of[fact] += 1
        if number_of[fact] <= MOST_PAIRS:
            left, right = (value_text(fact, side.value) for side in contrast.pair.sides)
            interval = words.between(row["ratio_low"], row["ratio_high"])
            rows.append({**row, "fact": label(fact), "left": left, "right": right, "interval": interval})
    if not rows:
        return []
    pairs = ", ".join(f"{counted(number, 'pair')} by {label(fact)}" for fact, number in number_of.items())
    more = (
        f"; the first {MOST_PAIRS} of each, analyze compare prints all" if len(rows) < len(evidence.contrasts) else ""
    )
    caption = (
        f"Ratio of {evidence.material.unit}/s; intervals and p-values corrected for the pairs of one fact (Holm): "
        f"{pairs}{more}"
    )
    return [words.table(caption, COMPARED, rows)]


def _cheapest(evidence: ReportEvidence) -> list[Block]:
    costs = registry.cheapest(evidence.material.costs)
    rows = [
        row | {"interval": words.between(row["usd_per_million_images_low"], row["usd_per_million_images_high"])}
        for row in rows_of(costs)
    ]
    if not rows:
        return []
    columns = units.headed(CHEAPEST, evidence.material.unit)
    return [words.table("Cheapest configuration of each model and environment", columns, rows)]


def _summary(evidence: ReportEvidence) -> list[Block]:
    points = _points(evidence)
    rows = []
    for row in rows_of(evidence.material.measured):
        point = points.get((row["env"], row["task"], row["variant"], row["batch_size"]), {})
        rows.append(
            row
            | {
                "precision": row["series"].partition(" · ")[2],
                "interval": words.between(row["images_per_s_low"], row["images_per_s_high"], 4),
                "intensity": point.get("intensity_flop_per_byte"),
                "fraction_of_roof": point.get("fraction_of_roof"),
            }
        )
    return [words.table("Every configuration", units.headed(SUMMARY, evidence.material.unit), rows)] if rows else []


def _points(evidence: ReportEvidence) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The roofline point of each configuration: from counters if available, else modelled."""
    point_of: dict[tuple[Any, ...], dict[str, Any]] = {}
    for point in rows_of(evidence.material.points):
        key = (point["env"], point["task"], point["variant"], point["batch_size"])
        if point["source"] == "counters" or key not in point_of:
            point_of[key] = point
    return point_of
