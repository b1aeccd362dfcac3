"""Rules of an audit, the data that they check, and their findings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import pandas as pd

from analysis.loading import cases as all_cases
from analysis.loading import units
from analysis.loading.cases import Case
from analysis.loading.configurations import group, measured
from analysis.loading.tables import Tables
from workload.contract.vocabulary import calibration_of

# Statuses of a profile that has kernels.
WITH_KERNELS = ("completed", "partial")


class Severity(StrEnum):
    """`error`: a figure is wrong or means something else; `warning`: it may mislead; `note`: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A broken rule. `subject`: runs or rows of published figures; `figure`: the value found; `threshold`: expected."""

    rule: str
    severity: Severity
    subject: tuple[str, ...]
    figure: str
    threshold: str
    why: str
    cure: str


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity, errors first; stable otherwise."""
    order = tuple(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditEvidence:
    """Data that the rules check; tables that are slow to read are read on first use."""

    results: Tables

    @cached_property
    def cases(self) -> Sequence[Case]:
        """Runs with their series, one `Case` per run."""
        return all_cases.cases(self.results)

    @cached_property
    def unit(self) -> str:
        """Unit of throughput of all runs."""
        return units.common(self.results.runs["unit"])

    @cached_property
    def groups(self) -> Sequence[Sequence[Case]]:
        """Groups of measured runs that may be pooled."""
        by_id = {case.run_id: case for case in self.cases}
        return [[by_id[run_id] for run_id in pool.runs["run_id"]] for pool in group(measured(self.results.runs))]

    @cached_property
    def kernels(self) -> Mapping[str, pd.DataFrame]:
        """Profiled launches by run id, without those of our calibration; empty if no run has a profile by ncu."""
        if not self.results.runs["profile_status"].isin(WITH_KERNELS).any():
            return {}
        table = self.results.kernels
        if table.empty:
            # Profiles by torch.profiler, whose operators have no counters; or by ncu with a missing file.
            return {}
        marks = [mark for mark in table["range"].unique() if isinstance(mark, str) and calibration_of(mark)]
        work = table[~table["range"].isin(marks)]
        return {str(run_id): rows for run_id, rows in work.groupby("run_id", observed=True)}


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A place where a rule is broken. `cure` and `severity` replace those of the rule if they are given."""

    subject: tuple[str, ...]
    figure: str
    cure: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule. `threshold`: the expected value and its reason; `why`: the harm done; `cure`: the next step.

    `{unit}` in these texts is what throughput counts.
    """

    name: str
    severity: Severity
    threshold: str
    why: str
    cure: str
    check: Callable[[AuditEvidence], Iterable[Hit]]

    def findings(self, evidence: AuditEvidence) -> list[Finding]:
        """Findings of this rule; hits with the same text are merged into one finding on several runs."""
        threshold, why, cure = (units.worded(text, evidence.unit) for text in (self.threshold, self.why, self.cure))
        alike: dict[tuple[str, str, Severity], list[str]] = {}
        for hit in self.check(evidence):
            alike.setdefault((hit.figure, hit.cure or cure, hit.severity or self.severity), []).extend(hit.subject)
        return [
            Finding(
                rule=self.name,
                severity=severity,
                subject=tuple(subject),
                figure=figure,
                threshold=threshold,
                why=why,
                cure=said,
            )
            for (figure, said, severity), subject in alike.items()
        ]


def each_case(check: Callable[[Case], str | None]) -> Callable[[AuditEvidence], Iterable[Hit]]:
    """Make a rule's check from a function of one run that returns the figure that breaks the rule, else None."""

    def look(evidence: AuditEvidence) -> Iterable[Hit]:
        for case in evidence.cases:
            figure = check(case)
            if figure is not None:
                yield Hit(subject=(case.run_id,), figure=figure)

    return look


def each_group(check: Callable[[Sequence[Case]], str | None]) -> Callable[[AuditEvidence], Iterable[Hit]]:
    """Make a rule's check from a function of the measured runs of one configuration in one place."""

    def look(evidence: AuditEvidence) -> Iterable[Hit]:
        for runs in evidence.groups:
            figure = check(runs)
            if figure is not None:
                yield Hit(subject=tuple(case.run_id for case in runs), figure=figure)

    return look
