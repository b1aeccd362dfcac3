"""Findings of an audit, and the rules that produce them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from analysis.audit.evidence import AuditEvidence
from analysis.loading import units
from analysis.loading.cases import Case


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
        for group in evidence.groups:
            figure = check(group)
            if figure is not None:
                yield Hit(subject=tuple(case.run_id for case in group), figure=figure)

    return look
