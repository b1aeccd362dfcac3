"""The section "Tuning": changes that `launch tune` tried, and what limits a step before and after the accepted ones.

It is made from the evidence file that `launch tune` writes beside its bundles.
"""

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.figures import Figure, registry
from analysis.report import content
from analysis.report.content import Block, Bullets, Commands, Paragraph, Picture, Section
from analysis.report.evidence import ReportEvidence
from workload.contract.record import Verdict
from workload.contract.tables import Column, facts
from workload.contract.text import signed_percent
from workload.contract.verdict import NAMES, from_record

FILE = "evidence.json"
ACCEPTED, BELOW = "accepted", "below the margin"
NAMING = ["env", "task", "variant", "batch_size"]
TRIALS = (
    *facts(change="change", line="line", at_most="at most", measured="measured", losses="losses", decision="decided"),
    Column(name="runs", heading="runs", digits=0),
)
CAPTION = (
    "Changes that were tried, in this order. At most: computed before it was tried. Measured: growth of throughput, "
    "with its interval. The chance that any accepted change is no gain is at most 5 %. The command below computes all "
    "again"
)


def section(evidence: ReportEvidence) -> Section:
    """The section; empty if no folder of a run has an evidence file."""
    folders = dict.fromkeys(Path(path).parent for path in evidence.results.runs["path"])
    blocks: list[Block] = []
    for number, path in enumerate(folder / FILE for folder in folders if (folder / FILE).is_file()):
        try:
            blocks += _blocks(evidence, json.loads(path.read_text(encoding="utf-8")), number)
            blocks.append(Commands(lines=[f"launch tune --check {shlex.quote(str(path))}"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            blocks.append(Paragraph(text=f"{path} is no evidence of launch tune: {error}"))
    return Section(name="tuning", title="Tuning", blocks=blocks)


def _blocks(evidence: ReportEvidence, document: Mapping[str, Any], number: int) -> Iterator[Block]:
    trials: Sequence[Mapping[str, Any]] = document["trials"]
    before, after = next(iter(document["originals"]), ""), _last_accepted(evidence, trials)
    runs = {"before": before} | ({"now": after} if after else {})
    limits = {when: _limit(evidence, run_id, before) for when, run_id in runs.items()}
    was, *now = (
        NAMES.get(limit.bound, limit.bound) if limit.bound else "an unknown cause" for limit in limits.values()
    )
    ending = f" before, by {now[0]} now" if now else "; no change was accepted"
    ending = " before and now" if now == [was] else ending
    yield Paragraph(text=f"{shlex.join(document['command'])}: limited by {was}{ending}.", strong=True)
    yield Bullets(sentences=[f"{when.capitalize()}: {limit.why}." for when, limit in limits.items() if limit.why])
    if trials:
        yield content.table(CAPTION, TRIALS, [_row(trial) for trial in trials])
    if figure := _roofline(evidence, runs, number):
        yield Picture(figure=figure)


def _last_accepted(evidence: ReportEvidence, trials: Sequence[Mapping[str, Any]]) -> str:
    """Id of the last run with all accepted changes; empty if none was accepted."""
    accepted = [run_id for trial in trials if trial["decision"] == ACCEPTED for run_id in trial["bundles"]]
    records = ((run_id, evidence.record(run_id)) for run_id in reversed(accepted))
    return next((run_id for run_id, record in records if record and record.job and record.job.variant == "B"), "")


def _limit(evidence: ReportEvidence, run_id: str, first: str) -> Verdict:
    """Limit of a step of the run `run_id`.

    A run without ceilings is judged by those of the run `first`: of all runs of a tuning, only the first measures them.
    """
    record, original = evidence.record(run_id), evidence.record(first)
    if record and original and not (record.bound and record.bound.bound):
        record = replace(record, bound=from_record(replace(record, ceilings=original.ceilings)))
    return (record and record.bound) or Verdict()


def _row(trial: Mapping[str, Any]) -> dict[str, Any]:
    gain, low, high, at_most = (_share(trial[name]) for name in ("gain", "low", "high", "at_most"))
    decision = trial["decision"]
    return {
        "change": "all of these together" if trial["is_final"] else trial["change"],
        "line": trial["line"],
        "at_most": at_most,
        "measured": f"{gain} ({low} to {high})" if gain and low and high else gain,
        "losses": trial["losses"] or None,
        "decision": decision if decision in (ACCEPTED, BELOW) else f"{decision}: {trial['why']}",
        "runs": len(trial["bundles"]),
    }


def _share(value: float | None) -> str | None:
    return None if value is None or not math.isfinite(value) else signed_percent(value)


def _roofline(evidence: ReportEvidence, runs: Mapping[str, str], number: int) -> Figure | None:
    """Roofline with the configurations of these runs, each named by its key; None if they have no point."""
    material, points = evidence.material, registry.drawable(evidence.material.points)
    if points.empty:
        return None
    parts = []
    for when, run_id in runs.items():
        named = material.every[material.every["run_id"] == run_id][NAMING]
        found = points.merge(named, on=NAMING)
        parts.append(found.assign(variant=[f"{when}: {variant}" for variant in found["variant"]]))
    table = pd.concat(parts, ignore_index=True)
    if table.empty:
        return None
    drawn = replace(material, variants=list(dict.fromkeys(table["variant"])))
    return registry.roofline(drawn, table, name=f"tuning_roofline-{number}", title=f"Roofline {' and '.join(runs)}")
