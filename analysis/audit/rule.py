"""Rules of an audit, the data that they check, and their findings."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

import pandas as pd

from analysis.loading import cases as all_cases
from analysis.loading import units
from analysis.loading.cases import Case, OfRuns
from analysis.loading.configurations import group, measured
from analysis.loading.tables import Tables
from workload.contract.text import counted
from workload.contract.vocabulary import calibration_of

# Statuses of a profile that has kernels.
WITH_KERNELS = ("completed", "partial")


class Severity(StrEnum):
    """`error`: a figure is wrong or means something else; `warning`: a figure may mislead; `note`: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A broken rule. `subject`: ids of runs, or published rows; `figure`: value found; `threshold`: value expected."""

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


def by_rule(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Lists of the findings that have the same rule and the same severity; the lists of errors come first."""
    same: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in by_severity(findings):
        same.setdefault((finding.severity, finding.rule), []).append(finding)
    return list(same.values())


def heading(same: Sequence[Finding], noun: str = "run") -> str:
    """Heading of such a list, for example `warning: stalls (9 runs)`; `noun`: what was audited, in the singular."""
    subjects = {subject for finding in same for subject in finding.subject}
    return f"{same[0].severity}: {same[0].rule}" + (f" ({counted(len(subjects), noun)})" if subjects else "")


def total(findings: Iterable[Finding]) -> str:
    """Number of broken rules by severity: `2 warnings, 3 notes`; empty without findings."""
    counts = Counter(same[0].severity for same in by_rule(findings))
    return ", ".join(counted(counts[severity], severity) for severity in Severity if counts[severity])


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditEvidence:
    """Data that the rules check; tables that are slow to read are read on first use.

    `of_runs`: results of all checks of single runs, if all rules are checked.
    """

    results: Tables
    of_runs: OfRuns | None = None

    @cached_property
    def cases(self) -> Sequence[Case]:
        """Runs with their series, one `Case` per run."""
        return self.of_runs.cases if self.of_runs else all_cases.cases(self.results)

    def breaches(self, check: "CaseCheck") -> "Iterable[Breach]":
        """Results of a check of single runs, in the order of `cases`."""
        name = _name(check)
        if self.of_runs is None or CASE_CHECKS.get(name) is not check:
            return map(check, self.cases)
        return (
            Hit(figure=breach[0], cure=breach[1], severity=breach[2] and Severity(breach[2]))
            if isinstance(breach, list)
            else breach
            for breach in (found.get(name) for found in self.of_runs.of(breaches))
        )

    @cached_property
    def unit(self) -> str:
        """Unit of throughput of all runs."""
        return units.common(self.results.runs["unit"])

    @cached_property
    def groups(self) -> Sequence[Sequence[Case]]:
        """Groups of measured runs that may be pooled."""
        by_id = {case.run_id: case for case in self.cases}
        return [[by_id[run_id] for run_id in pool.values("run_id")] for pool in group(measured(self.results.runs))]

    @cached_property
    def kernels(self) -> Mapping[str, pd.DataFrame]:
        """Profiled launches by run id, without those that calibrate the counters; empty without a profile by ncu."""
        if not self.results.runs["profile_status"].isin(WITH_KERNELS).any():
            return {}
        table = self.results.kernels
        if table.empty:
            # The profiles are by torch.profiler, whose operators have no counters, or the file of ncu is missing.
            return {}
        marks = [mark for mark in table["range"].unique() if isinstance(mark, str) and calibration_of(mark)]
        work = table[~table["range"].isin(marks)]
        return {str(run_id): rows for run_id, rows in work.groupby("run_id", observed=True)}


@dataclass(frozen=True, kw_only=True)
class Hit:
    """Violation of a rule. `cure` and `severity` replace those of the rule if they are given.

    `subject`: ids of the runs; a check that is made by `each_case`, `each_profile` or `each_group` leaves it empty.
    """

    subject: tuple[str, ...] = ()
    figure: str
    cure: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule. `threshold`: the expected value and its reason; `why`: the harm done; `cure`: the next step.

    `check`: gets `AuditEvidence`; of a rule on published figures, `analysis.audit.claims.Published`.

    `{unit}` in these texts stands for what throughput counts, for example images.
    """

    name: str
    severity: Severity
    threshold: str
    why: str
    cure: str
    check: Callable[[Any], Iterable[Hit]]

    def findings(self, evidence: Any) -> list[Finding]:
        """Findings of this rule; hits with the same text are merged into one finding on several runs."""
        threshold, why, cure = (units.worded(text, evidence.unit) for text in (self.threshold, self.why, self.cure))
        runs_of: dict[tuple[str, str, Severity], list[str]] = {}
        for hit in self.check(evidence):
            runs_of.setdefault((hit.figure, hit.cure or cure, hit.severity or self.severity), []).extend(hit.subject)
        return [
            Finding(
                rule=self.name,
                severity=severity,
                subject=tuple(subject),
                figure=figure,
                threshold=threshold,
                why=why,
                cure=own_cure,
            )
            for (figure, own_cure, severity), subject in runs_of.items()
        ]


# Figure that breaks a rule, or a `Hit` if it has a cure or a severity of its own; None if the rule holds.
Breach: TypeAlias = str | Hit | None
Check: TypeAlias = Callable[[AuditEvidence], Iterator[Hit]]
CaseCheck: TypeAlias = Callable[[Case], Breach]
# All checks of single runs by name. `breaches` makes them together.
CASE_CHECKS: dict[str, CaseCheck] = {}


def each_case(check: CaseCheck) -> Check:
    """Make a rule's check from a function of one run, which must be a function of a module."""
    CASE_CHECKS[_name(check)] = check
    return lambda evidence: _hits(
        (breach, [case]) for breach, case in zip(evidence.breaches(check), evidence.cases, strict=True)
    )


def each_profile(check: Callable[[Case, pd.DataFrame | None], Breach]) -> Check:
    """Make a rule's check from a function of one run and its profiled launches, None without a profile by ncu."""

    def without_profile(case: Case) -> Breach:
        return check(case, None)

    without_profile.__module__, without_profile.__qualname__ = check.__module__, check.__qualname__
    CASE_CHECKS[_name(without_profile)] = without_profile
    return lambda evidence: _hits(
        (breach if kernels is None else check(case, kernels), [case])
        for breach, case in zip(evidence.breaches(without_profile), evidence.cases, strict=True)
        for kernels in [evidence.kernels.get(case.run_id)]
    )


def breaches(case: Case) -> dict[str, Any]:
    """Breaches of all rules on single runs by name of the check, as JSON; see `analysis.loading.cases`."""
    found = {name: check(case) for name, check in CASE_CHECKS.items()}
    return {
        name: [breach.figure, breach.cure, breach.severity] if isinstance(breach, Hit) else breach
        for name, breach in found.items()
        if breach is not None
    }


def _name(check: CaseCheck) -> str:
    return f"{check.__module__}.{check.__qualname__}"


def each_group(check: Callable[[Sequence[Case]], Breach]) -> Check:
    """Make a rule's check from a function of the measured runs of one configuration in one place."""
    return lambda evidence: _hits((check(runs), runs) for runs in evidence.groups)


def _hits(checked: Iterable[tuple[Breach, Sequence[Case]]]) -> Iterator[Hit]:
    for breach, runs in checked:
        if breach is not None:
            hit = Hit(figure=breach) if isinstance(breach, str) else breach
            yield replace(hit, subject=tuple(case.run_id for case in runs))
