"""The answer: the fastest machine per model, the cheapest, what limits each, and how sure that is."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import statistics
from analysis.audit.finding import Severity
from analysis.figures import registry, throughput
from analysis.report import words
from analysis.report.content import Block, Bullets, Paragraph, Picture, Section
from analysis.report.evidence import Evidence
from analysis.roofline import Bound
from analysis.statistics.samples import LEVEL

# Sentences of the summary; every model is in the table.
MOST_SENTENCES = 8


def section(evidence: Evidence) -> Section:
    """The first thing that a reader sees."""
    rows = ranking(evidence)
    blocks: list[Block] = [Bullets(sentences=list(sentences(rows, evidence)))]
    if rows:
        blocks.append(_table(rows))
        blocks += _cheapest(evidence)
    blocks += [Picture(figure=each) for each in evidence.figures("throughput_comparison", "cost")]
    blocks.append(Paragraph(text=_trust(evidence)))
    return Section(name="answer", title="The answer", blocks=blocks)


def ranking(evidence: Evidence) -> list[dict[str, Any]]:
    """Per model the fastest line of `measured`, with the second fastest environment and how far ahead it is.

    `ratio` and its interval: fastest by second; the intervals hold jointly for all models, 95 % divided among them.
    """
    best = throughput.best(evidence.material.measured)
    models = [task for task in evidence.material.tasks if (best["task"] == task).any()]
    pairs = sum(1 for task in models if (best["task"] == task).sum() > 1)
    rows = []
    for task in models:
        ordered = words.rows_of(best[best["task"] == task].sort_values("images_per_s", ascending=False))
        first, second = ordered[0], ordered[1] if len(ordered) > 1 else None
        rows.append({**first, "second": second, **(_ahead(evidence, first, second, pairs) if second else {})})
    return rows


def _ahead(evidence: Evidence, first: Mapping[str, Any], second: Mapping[str, Any], pairs: int) -> dict[str, Any]:
    level = 1 - (1 - LEVEL) / pairs
    found = statistics.compare(*(rates(evidence, row["run_ids"]) for row in (second, first)), level=level)
    interval = found.interval
    return {
        "ratio": found.ratio,
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "ratio_reason": None if interval else next(iter(found.reasons), "no interval"),
    }


def rates(evidence: Evidence, run_ids: Sequence[str]) -> list[float]:
    """Images per second of these runs."""
    runs = evidence.material.runs
    return [float(value) for value in runs.loc[runs["run_id"].isin(run_ids), "images_per_s"].dropna()]


def sentences(rows: Sequence[Mapping[str, Any]], evidence: Evidence) -> Iterator[str]:
    """One per model: who is fastest, by how much, and what limits it."""
    if not rows:
        yield "No completed run has a throughput: there is nothing to rank."
        return
    for row in rows[:MOST_SENTENCES]:
        where = (
            f"{row['task']} trains fastest on {row['env']} at batch {words.text(row['batch_size'])}, {row['variant']}: "
        )
        yield f"{where}{words.rate_with_interval(row)}{_lead(row)}. {_limit(row)}"
    if len(rows) > MOST_SENTENCES:
        yield f"{len(rows) - MOST_SENTENCES} more models are in the table."
    del evidence


def _lead(row: Mapping[str, Any]) -> str:
    second = row["second"]
    if second is None:
        return "; no other environment ran it"
    if not words.is_known(row.get("ratio_low")):
        reason = row.get("ratio_reason")
        return f"; {second['env']} comes next, how far behind cannot be said: {reason}"
    ends = f"{words.figure(row['ratio'])} x, jointly 95 % interval {words.between(row['ratio_low'], row['ratio_high'])}"
    if row["ratio_low"] > 1:
        return f", ahead of {second['env']} ({ends})"
    return f", not distinguishable from {second['env']} ({ends})"


def _limit(row: Mapping[str, Any]) -> str:
    if not words.is_known(row["bound"]):
        why = row["bound_why"] if words.is_known(row["bound_why"]) else "no ceiling was measured"
        return f"What limits it is not known: {why}."
    why = f": {row['bound_why']}" if words.is_known(row["bound_why"]) else ""
    if row["bound"] == Bound.BUSY:
        return f"The machine was busy, so this is no figure of the machine{why}."
    return f"Limited by {row['bound']}{why}."


def _table(rows: Sequence[Mapping[str, Any]]) -> Block:
    columns = [
        ("model", False),
        ("fastest on", False),
        ("batch", True),
        ("precision", False),
        ("images/s", True),
        ("95 % interval", True),
        ("runs", True),
        ("limited by", False),
        ("next", False),
        ("ahead by", True),
        ("jointly 95 %", True),
    ]
    cells = [
        [
            row["task"],
            row["env"],
            words.text(row["batch_size"]),
            row["variant"],
            words.figure(row["images_per_s"], 4),
            words.between(row["images_per_s_low"], row["images_per_s_high"], 4),
            str(row["runs"]),
            words.text(row["bound"]),
            row["second"]["env"] if row["second"] else words.ABSENT,
            f"{words.figure(row.get('ratio'))} x" if words.is_known(row.get("ratio")) else words.ABSENT,
            words.between(row.get("ratio_low"), row.get("ratio_high")),
        ]
        for row in rows
    ]
    return words.table("Fastest environment per model", columns, cells)


def _cheapest(evidence: Evidence) -> list[Block]:
    costs = registry.cheapest(evidence.material.costs)
    if costs.empty:
        return [Paragraph(text="No run has a price per hour, so nothing is said about cost.")]
    best = costs.loc[costs.groupby("task", sort=False)["usd_per_million_images"].idxmin()]
    columns = [
        ("model", False),
        ("cheapest on", False),
        ("batch", True),
        ("precision", False),
        ("USD per million images", True),
        ("95 % interval", True),
        ("USD/h", True),
        ("runs", True),
        ("price from", False),
    ]
    cells = [
        [
            row["task"],
            row["env"],
            words.text(row["batch_size"]),
            row["variant"],
            words.figure(row["usd_per_million_images"]),
            words.between(row["usd_per_million_images_low"], row["usd_per_million_images_high"]),
            words.figure(row["usd_per_h"]),
            words.text(row["runs"]),
            words.text(row.get("price")),
        ]
        for row in words.rows_of(best)
    ]
    return [words.table("Cheapest environment per model, where prices are known", columns, cells)]


def _trust(evidence: Evidence) -> str:
    counts = Counter(finding.severity for finding in evidence.findings)
    runs = evidence.results.runs
    single = int((evidence.material.measured["runs"] == 1).sum())
    found = ", ".join(words.counted(counts[each], str(each)) for each in Severity if counts[each]) or "nothing"
    return (
        f"It rests on {words.counted(len(evidence.material.runs), 'measured run')} of {len(runs)} in "
        f"{words.counted(len(evidence.material.measured), 'configuration')}, {single} of them with one run "
        f"and so without "
        f"an interval. The audit found {found}."
    )


def cheapest_of(costs: pd.DataFrame, task: str) -> pd.DataFrame:
    """The cheapest line of each environment for one model, the cheapest first."""
    table = registry.cheapest(costs)
    return table[table["task"] == task].sort_values("usd_per_million_images") if len(table) else table
