"""Sections of the report on environments, audit, limits and reproduction."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from analysis.audit.rule import Finding, Severity
from analysis.figures.labels import file_stem
from analysis.loading.rows import rows as rows_of
from analysis.report import words
from analysis.report.content import Block, Bullets, Commands, Heading, Paragraph, Section, Table
from analysis.report.evidence import ReportEvidence
from analysis.report.glossary import load as glossary_words
from analysis.report.reproduce import commands
from workload.contract.tables import Column, Role
from workload.contract.text import counted

SHOWN_RUNS = 3
MOST_FIGURES = 6
MOST_NOTES = 12
MOST_PROBLEMS = 100
FIGURE = re.compile(r"\d+(?:\.\d+)?")
# Characters of a hash that are enough to distinguish commits and digests.
HASH_CHARACTERS = 19
# Facts that distinguish rows of the environment table.
SOFTWARE_FACTS = (
    "env",
    "hostname",
    "os",
    "kernel",
    "device_name",
    "driver_version",
    "cuda_build",
    "cudnn",
    "python",
    "torch",
    "torchvision",
    "machine_type",
    "zone",
    "hypervisor",
    "cpu_model",
    "image_digest",
    "commit",
    "commit_dirty",
)
ENVIRONMENTS = (
    Column(name="env", heading="environment", role=Role.FACT),
    Column(name="hostname", heading="host", role=Role.FACT),
    Column(name="system", heading="OS, kernel", role=Role.FACT),
    Column(name="device_name", heading="device", role=Role.FACT),
    Column(name="driver_version", heading="driver", role=Role.FACT),
    Column(name="cuda", heading="CUDA, cuDNN", role=Role.FACT),
    Column(name="python", heading="Python", role=Role.FACT),
    Column(name="torch", heading="torch, torchvision", role=Role.FACT),
    Column(name="storage", heading="storage", role=Role.FACT),
    Column(name="machine", heading="machine, zone", role=Role.FACT),
    Column(name="hypervisor", heading="virtualisation", role=Role.FACT),
    Column(name="cpu_model", heading="CPU", role=Role.FACT),
    Column(name="image", heading="image", role=Role.FACT),
    Column(name="commit", heading="commit", role=Role.FACT),
    Column(name="runs", heading="runs", digits=0),
)
# A run with at least this many steps has met the conditions of a long training.
MANY_STEPS = 1000
FEW_STEPS = (
    "At most {steps} measured steps per run: a long training also has heat, other users of the machine and other data."
)
SYNTHETIC = "Synthetic data need no disk: these runs say nothing about input pipelines."
PRICES = (
    "Prices were recorded with the runs, or are list prices of the date in the table; they do not include "
    "disks, network and idle time."
)
LIMITS = (
    (
        "Modelled bytes are an interval, from each tensor moved once to every operation using memory. "
        "Caches decide where in this interval a step lies; only counters can measure it."
    ),
    (
        "FLOP by formula include matrix products and convolutions. Counters also include element-wise work "
        "and padding, but leave out work without a metric. If both exist, both are shown."
    ),
    (
        "Measured ceilings are the rates of simple kernels on the same machine at that time; a step can "
        "come near them. Vendors' peaks are for the clock in the data sheet."
    ),
    "Intervals of 2 to 5 runs assume that runs are normally distributed.",
)


def environment(evidence: ReportEvidence) -> Section:
    """The section of environments: a row per environment and set of software (table D of the report)."""
    runs = evidence.material.every
    distinct = runs.groupby(list(SOFTWARE_FACTS), dropna=False, sort=False).size().reset_index(name="runs")
    storage = _storage(evidence, runs)
    rows = [
        row
        | {
            "system": _joined(row["os"], row["kernel"]),
            "cuda": _joined(row["cuda_build"], row["cudnn"]),
            "torch": _joined(row["torch"], row["torchvision"]),
            "storage": storage.get(row["env"]),
            "machine": _joined(row["machine_type"], row["zone"]),
            "image": words.text(row["image_digest"])[:HASH_CHARACTERS],
            "commit": words.text(row["commit"])[:12] + (" with changes" if row["commit_dirty"] is True else ""),
        }
        for row in rows_of(distinct)
    ]
    table = words.table("Environments; one row for each set of software", ENVIRONMENTS, rows)
    return Section(name="environment", title="Environments", blocks=[table], folded=True)


def _joined(*values: object) -> str:
    known = [words.text(value) for value in values if words.is_known(value)]
    return ", ".join(known) or words.ABSENT


def _storage(evidence: ReportEvidence, runs: pd.DataFrame) -> dict[str, str]:
    """Storage of the data set, from the first run of each environment."""
    storage_of = {}
    for row in rows_of(runs.drop_duplicates("env")):
        record = evidence.record(row["run_id"])
        host = record.environment.host if record else None
        if host and host.dataset_storage:
            storage_of[row["env"]] = _joined(*vars(host.dataset_storage).values())
        elif row["dataset"] == "synthetic":
            storage_of[row["env"]] = "none: synthetic data"
    return storage_of


def audit(evidence: ReportEvidence) -> Section:
    """The section of audit findings, grouped by rule, errors first."""
    by_rule: dict[tuple[Severity, str], list[Finding]] = defaultdict(list)
    for finding in evidence.findings:
        by_rule[finding.severity, finding.rule].append(finding)
    order = {severity: rank for rank, severity in enumerate(Severity)}
    parts = [_rule(by_rule[key]) for key in sorted(by_rule, key=lambda key: order[key[0]])]
    return Section(name="audit", title="Audit", parts=parts, folded=True)


def _rule(same: Sequence[Finding]) -> Section:
    first = same[0]
    more = [f"and {len(same) - MOST_FIGURES} more: analyze audit lists them"] if len(same) > MOST_FIGURES else []
    cures = list(dict.fromkeys(finding.cure for finding in same))[:SHOWN_RUNS]
    return Section(
        name=f"audit-{file_stem(first.rule)}",
        title=f"{first.severity}: {first.rule} ({len(same)})",
        blocks=[
            Bullets(sentences=[*(f"{each.figure} ({_subject(each)})" for each in same[:MOST_FIGURES]), *more]),
            Paragraph(text=f"Expected: {first.threshold}. Why: {first.why}. Cure: {'; '.join(cures)}."),
        ],
    )


def _subject(finding: Finding) -> str:
    more = f" and {len(finding.subject) - SHOWN_RUNS} more" if len(finding.subject) > SHOWN_RUNS else ""
    return ", ".join(finding.subject[:SHOWN_RUNS]) + more


def limits(evidence: ReportEvidence) -> Section:
    """The section on limits of the figures, unread files and notes of the runs."""
    blocks: list[Block] = [Bullets(sentences=[*_of_these_runs(evidence), *LIMITS])]
    problems = [*evidence.results.problems, *evidence.results.kernel_problems]
    problems += [*evidence.operators[1], *evidence.attributed[1]]
    if problems:
        blocks.append(Paragraph(text=f"Not in the tables ({len(problems)}):"))
        more = [f"and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
        blocks.append(Bullets(sentences=[*map(str, problems[:MOST_PROBLEMS]), *more]))
    notes = _notes(evidence)
    if notes:
        blocks.append(Paragraph(text="Notes of the runs:"))
        blocks.append(Bullets(sentences=notes))
    return Section(name="limits", title="Limits", blocks=blocks)


def _of_these_runs(evidence: ReportEvidence) -> Iterator[str]:
    """Limits that apply only to some runs."""
    runs = evidence.material.every
    steps = runs["steps"].max()
    if steps < MANY_STEPS:
        yield FEW_STEPS.format(steps=f"{steps:g}")
    if (runs["dataset"] == "synthetic").any():
        yield SYNTHETIC
    if len(evidence.material.costs) and evidence.material.costs["usd_per_h"].notna().any():
        yield PRICES


def _notes(evidence: ReportEvidence) -> list[str]:
    """Notes of all runs, most frequent first; notes that differ only in their figures are merged into the first."""
    held: dict[str, list[str]] = defaultdict(list)
    every: Iterable[Sequence[str]] = evidence.results.runs["notes"]
    for notes in every:
        for note in dict.fromkeys(notes):
            held[FIGURE.sub("#", note)].append(note)
    ordered = sorted(held.values(), key=len, reverse=True)
    more = [f"and {len(ordered) - MOST_NOTES} other notes"] if len(ordered) > MOST_NOTES else []
    return [*(f"{notes[0]} ({_runs(notes)})" for notes in ordered[:MOST_NOTES]), *more]


def _runs(notes: Sequence[str]) -> str:
    like = "" if len(set(notes)) == 1 else ", with other figures"
    return f"{counted(len(notes), 'run')}{like}"


def reproduce(evidence: ReportEvidence) -> Section:
    """The section with the command line of every configuration, from the spec in the bundle."""
    lines = commands(evidence)
    intro = (
        "The command of each configuration, from the spec in its bundle, with only the options that differ "
        "from the defaults. Repeats of a configuration have one line."
    )
    return Section(
        name="reproduce",
        title="Reproduce",
        blocks=[Paragraph(text=intro), Commands(lines=lines)],
        folded=True,
    )


def glossary(_: ReportEvidence) -> Section:
    """The words of docs/glossary.md that the report uses."""
    rows = [(word.word, word.meaning) for words in glossary_words().values() for word in words if word.in_report]
    headings = (Heading(text="word"), Heading(text="means"))
    table = Table(caption="The words of this page", headings=headings, rows=rows)
    return Section(name="words", title="Words", blocks=[table], folded=True)
