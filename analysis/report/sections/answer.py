"""The answer: the fastest machine per model, the cheapest, what limits each, and how sure that is."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis import units
from analysis.audit.finding import Finding, Severity
from analysis.breakdown import ALL
from analysis.figures import registry, throughput
from analysis.figures.figure import Figure
from analysis.report import words
from analysis.report.content import Block, Bullets, Paragraph, Picture, Section
from analysis.report.evidence import ReportEvidence
from analysis.statistics.samples import LEVEL
from workload.contract.tables import Column, Role
from workload.contract.verdict import Bound

# Sentences of the summary; every model is in the table.
MOST_SENTENCES = 8
# Errors before the answer; all are in the section of the audit.
MOST_ERRORS = 4
# Of the audit: the figures are those of a machine that did something else too.
BUSY_RULES = ("CPU competition", "CPU held back")
# Of a profile, in words.
MOST_FAMILIES = 3

FASTEST = (
    Column(name="task", heading="model", role=Role.FACT),
    Column(name="env", heading="fastest on", role=Role.FACT),
    Column(name="device_name", heading="device", role=Role.FACT),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="variant", heading="precision", role=Role.FACT),
    units.COUNTED,
    Column(name="images_per_s", heading="images/s"),
    Column(name="interval", heading="95 % interval"),
    Column(name="runs", heading="runs", digits=0),
    Column(name="bound", heading="limited by", role=Role.FACT),
    Column(name="next", heading="next", role=Role.FACT),
    Column(name="lead", heading="ahead by"),
    Column(name="lead_interval", heading="jointly 95 %"),
)
CHEAPEST = (
    Column(name="task", heading="model", role=Role.FACT),
    Column(name="env", heading="cheapest on", role=Role.FACT),
    Column(name="device_name", heading="device", role=Role.FACT),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="variant", heading="precision", role=Role.FACT),
    Column(name="usd_per_million_images", heading="USD per million images", digits=3),
    Column(name="interval", heading="95 % interval"),
    Column(name="usd_per_h", heading="USD/h", digits=3),
    Column(name="runs", heading="runs", digits=0),
    Column(name="price", heading="price from", role=Role.FACT),
)


def section(evidence: ReportEvidence) -> Section:
    """The first thing that a reader sees: what is wrong with it, what it says, and the roofline it stands under."""
    rows = ranking(evidence)
    blocks: list[Block] = [*_errors(evidence), Bullets(sentences=list(sentences(rows, evidence)))]
    blocks += [Picture(figure=figure) for figure in headline(evidence)]
    if rows:
        blocks.append(_table(rows))
        blocks += _cheapest(evidence)
    blocks += [Picture(figure=figure) for figure in evidence.figures("throughput_comparison", "cost")]
    blocks.append(Paragraph(text=_trust(evidence)))
    return Section(name="answer", title="The answer", blocks=blocks)


def headline(evidence: ReportEvidence) -> list[Figure]:
    """The one roofline at the top of the page: of all environments, or of the only one; else of a profile's kernels."""
    every = evidence.figures("roofline_combined") or evidence.figures("roofline_", "kernel_roofline_")
    return every[:1]


def _errors(evidence: ReportEvidence) -> list[Block]:
    """What the audit calls wrong: no headline stands without it."""
    errors = [finding for finding in evidence.findings if finding.severity is Severity.ERROR]
    if not errors:
        return []
    by_rule: dict[str, list[Finding]] = defaultdict(list)
    for finding in errors:
        by_rule[finding.rule].append(finding)
    shown = [f"{rule}: {same[0].figure} ({_subject(same)})" for rule, same in by_rule.items()]
    more = [f"and {len(shown) - MOST_ERRORS} other rules, below under Audit"] if len(shown) > MOST_ERRORS else []
    number = words.counted(len(errors), "error")
    what = f"The audit found {number}: figures of these runs are wrong or mean something else."
    return [Paragraph(text=what, strong=True), Bullets(sentences=[*shown[:MOST_ERRORS], *more])]


def _subject(same: Sequence[Finding]) -> str:
    """The first run of findings of one rule, and how many more there are."""
    runs = list(dict.fromkeys(run_id for finding in same for run_id in finding.subject))
    more = f" and {words.counted(len(runs) - 1, 'more run')}" if len(runs) > 1 else ""
    return f"{runs[0]}{more}" if runs else "all runs"


def ranking(evidence: ReportEvidence) -> list[dict[str, Any]]:
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


def _ahead(evidence: ReportEvidence, first: Mapping[str, Any], second: Mapping[str, Any], pairs: int) -> dict[str, Any]:
    level = 1 - (1 - LEVEL) / pairs
    comparison = evidence.comparison(second["run_ids"], first["run_ids"], level=level)
    interval = comparison.interval
    return {
        "ratio": comparison.ratio,
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "ratio_reason": None if interval else next(iter(comparison.reasons), "no interval"),
        "ratio_paired": words.paired(comparison),
    }


def sentences(rows: Sequence[Mapping[str, Any]], evidence: ReportEvidence) -> Iterator[str]:
    """One per model: who is fastest, by how much, and what limits it."""
    if not rows:
        yield from _without_times(evidence)
        return
    lines = Counter(evidence.material.measured["task"])
    for row in rows[:MOST_SENTENCES]:
        yield f"{_busy(row, evidence)}{_first(row, lines[row['task']])}. {_limit(row)}{_doubts(row, evidence)}"
    if len(rows) > MOST_SENTENCES:
        yield f"{len(rows) - MOST_SENTENCES} more models are in the table."


def _busy(row: Mapping[str, Any], evidence: ReportEvidence) -> str:
    """What kept the runs of a line, or of the one that it is compared with, from their CPUs: before anything else."""
    parts = []
    for side, who in ((row, ""), (row["second"], f"{row['second']['env']}: " if row["second"] else "")):
        figures = [
            finding.figure
            for finding in evidence.findings
            if side and finding.rule in BUSY_RULES and set(side["run_ids"]) & set(finding.subject)
        ]
        parts += [f"{who}{words.listed(figures, 2)}"] if figures else []
    return f"On a busy machine ({'; '.join(parts)}): " if parts else ""


def _doubts(row: Mapping[str, Any], evidence: ReportEvidence) -> str:
    """The errors that the audit found in the runs of a line, and in those that it is compared with."""
    doubts = []
    for side, whose in (
        (row, "its runs"),
        (row["second"], f"those of {row['second']['env']}" if row["second"] else ""),
    ):
        rules = [
            finding.rule
            for finding in evidence.findings
            if side and finding.severity is Severity.ERROR and set(side["run_ids"]) & set(finding.subject)
        ]
        doubts += [f" The audit found an error in {whose}: {words.listed(rules)}."] if rules else []
    return "".join(doubts)


def _first(row: Mapping[str, Any], lines: int) -> str:
    """A model's fastest line. That it is the fastest is said where its interval says so; else what was seen."""
    where = words.with_device(row)
    rate = f"{words.rate_with_interval(row)} at batch {words.text(row['batch_size'])}, {row['variant']}"
    if lines == 1:
        return f"{row['task']} on {where}: {rate}; nothing else of this model was measured"
    is_ahead = words.is_known(row.get("ratio_low")) and row["ratio_low"] > 1
    once = "" if row["runs"] > 1 else ", in one run,"
    verb = "trains fastest on" if is_ahead else f"had its highest throughput{once} on"
    return f"{row['task']} {verb} {where}: {rate}{_lead(row)}"


def _without_times(evidence: ReportEvidence) -> Iterator[str]:
    """What there is to say where no run has a throughput: what profiles show, or how the runs ended."""
    points = evidence.material.kernel_points
    profiles = points[(points["family"] != ALL) & points["share_of_time"].notna()] if len(points) else points
    if profiles.empty:
        counts = Counter(words.text(status).replace("_", " ") for status in evidence.results.runs["status"])
        ended = ", ".join(f"{number} {status}" for status, number in counts.most_common())
        yield f"No run has a throughput ({ended}), so nothing is said about speed."
        return
    keys = ["env", "task", "variant", "batch_size"]
    for (env, task, variant, batch), table in profiles.groupby(keys, sort=False, dropna=False):
        most = words.rows_of(table.sort_values("share_of_time", ascending=False))[:MOST_FAMILIES]
        shares = ", ".join(f"{row['family']} {words.percent(row['share_of_time'])}" for row in most)
        size = f", batch {words.text(batch)}" if words.is_known(batch) else ""
        yield f"{task}{size}, {variant} on {env}, profiled: most time of its kernels goes to {shares}."
    yield "These are profiles without timed steps: they say where the time of a step goes, and not how fast it is."


def _lead(row: Mapping[str, Any]) -> str:
    second = row["second"]
    if second is None:
        return "; no other environment has a throughput of it"
    if not words.is_known(row.get("ratio_low")):
        reason = row.get("ratio_reason")
        return f"; {words.with_device(second)} comes next, how far behind cannot be said: {reason}"
    ends = (
        f"{words.figure(row['ratio'])} x, jointly 95 % interval {words.between(row['ratio_low'], row['ratio_high'])}"
        f"{row['ratio_paired']}"
    )
    if row["ratio_low"] > 1:
        return f", ahead of {words.with_device(second)} ({ends})"
    return f", not distinguishable from {words.with_device(second)} ({ends})"


def _limit(row: Mapping[str, Any]) -> str:
    why = f": {row['bound_why']}" if words.is_known(row["bound_why"]) else ""
    if not words.is_known(row["bound"]):
        return f"What limits it is not known{why}."
    if ", " in row["bound"]:
        # Of several verdicts the reason is that of one run.
        return f"Its runs do not agree on what limits it: {row['bound']}."
    if row["bound"] == Bound.BUSY:
        return f"The machine was busy, so this is no figure of the machine{why}."
    return f"Limited by {row['bound']}{why}."


def _table(rows: Sequence[Mapping[str, Any]]) -> Block:
    shown = [
        {
            **row,
            "interval": words.between(row["images_per_s_low"], row["images_per_s_high"], 4),
            "next": row["second"]["env"] if row["second"] else None,
            "lead": f"{words.figure(row.get('ratio'))} x" if words.is_known(row.get("ratio")) else None,
            "lead_interval": words.between(row.get("ratio_low"), row.get("ratio_high")),
        }
        for row in rows
    ]
    return words.table("Fastest environment per model", FASTEST, shown)


def _cheapest(evidence: ReportEvidence) -> list[Block]:
    costs = registry.cheapest(evidence.material.costs)
    if costs.empty:
        return [Paragraph(text="No measured run has a price per hour, so nothing is said about cost.")]
    best = costs.loc[costs.groupby("task", sort=False)["usd_per_million_images"].idxmin()]
    rows = [
        row | {"interval": words.between(row["usd_per_million_images_low"], row["usd_per_million_images_high"])}
        for row in words.rows_of(best)
    ]
    return [words.table("Cheapest environment per model, where prices are known", CHEAPEST, rows)]


def _trust(evidence: ReportEvidence) -> str:
    counts = Counter(finding.severity for finding in evidence.findings)
    runs = evidence.results.runs
    lines = evidence.material.measured["runs"]
    counted_findings = (
        ", ".join(words.counted(counts[severity], str(severity)) for severity in Severity if counts[severity])
        or "nothing"
    )
    if lines.empty:
        return (
            f"It rests on {words.counted(len(runs), 'run')}, none with a measured step. "
            f"The audit found {counted_findings}."
        )
    single = int((lines == 1).sum())
    alone = f"; {single} of them with one run and so without an interval" if single else ""
    return (
        f"It rests on {words.counted(len(evidence.material.runs), 'measured run')} of {len(runs)} in "
        f"{words.counted(len(lines), 'configuration')}{alone}. The audit found {counted_findings}."
    )
