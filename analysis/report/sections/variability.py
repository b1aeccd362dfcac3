"""Section on variability: the spread between runs of one configuration, and its causes."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from analysis.loading.rows import rows as rows_of
from analysis.report import words
from analysis.report.content import Block, Picture, Section
from analysis.report.evidence import ReportEvidence
from workload.contract.tables import Column, Role

BETWEEN = (
    *words.OF_FACTS,
    Column(name="runs", heading="runs", digits=0),
    Column(name="cov_between", heading="CoV between runs", unit="%", digits=2),
    Column(name="interval", heading="95 % interval"),
    Column(name="cov_within", heading="CoV within runs", unit="%", digits=2),
    Column(name="effective_steps", heading="independent steps", digits=3),
    Column(name="note", heading="note", role=Role.FACT),
)
CAUSES = (
    Column(name="env", heading="environment", role=Role.FACT),
    Column(name="cause", heading="cause", role=Role.FACT),
    Column(name="runs", heading="runs", digits=0),
    Column(name="share_explained", heading="largest share explained", unit="%", digits=2),
    Column(name="interval", heading="95 % interval"),
    Column(name="share_of", heading="share of", role=Role.FACT),
    Column(name="is_fault", heading="a fault", role=Role.FACT),
    Column(name="evidence", heading="evidence, from the run with that share", role=Role.FACT),
    Column(name="cure", heading="cure", role=Role.FACT),
)


def section(evidence: ReportEvidence) -> Section:
    """The section: figure of one repeated configuration, table of variation between runs, and causes."""
    blocks: list[Block] = [Picture(figure=figure) for figure in evidence.figures("variance_fixed_config")]
    if len(evidence.between):
        blocks += [*_between(evidence), *_causes(evidence)]
    return Section(name="variability", title="Variability", blocks=blocks)


def _between(evidence: ReportEvidence) -> list[Block]:
    known = evidence.between.dropna(subset=["cov_between", "cov_within"], how="all")
    rows = [row | {"interval": _interval(row, "cov_between")} for row in rows_of(known)]
    caption = (
        "Coefficient of variation (CoV) of step times: between the runs of a configuration, and within a run. "
        "Independent steps: as many would be as informative as all steps, of which neighbours are alike"
    )
    return [words.table(caption, BETWEEN, rows)] if rows else []


def _causes(evidence: ReportEvidence) -> list[Block]:
    """A table with a line per cause and environment: number of runs, and the run with the largest share."""
    env_of = dict(zip(evidence.material.runs["run_id"], evidence.material.runs["env"], strict=True))
    by_cause: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows_of(evidence.causes):
        by_cause[env_of.get(row["run_id"], words.ABSENT), row["cause"]].append(row)
    strongest = []
    for (env, _), rows in by_cause.items():
        worst = max(rows, key=lambda row: row["share_explained"] if words.is_known(row["share_explained"]) else -1.0)
        strongest.append({**worst, "env": env, "runs": len(rows), "interval": _interval(worst, "share")})
    caption = "Causes of slow or uneven runs, and the share that each explains"
    return [words.table(caption, CAUSES, strongest)] if strongest else []


def _interval(row: Mapping[str, Any], name: str) -> str:
    """An interval of a share as text: `1 % to 3 %`."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{words.percent(low)} to {words.percent(high)}" if words.is_known(low) else words.ABSENT
