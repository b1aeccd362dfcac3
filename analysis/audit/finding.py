"""What an audit says, and the rules it says it by."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from analysis.audit.evidence import AuditEvidence
from analysis.cases import Case


class Severity(StrEnum):
    """`error`: a figure is wrong or means something else; `warning`: it may mislead; `note`: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`subject`: the runs, or the rows of published figures; `figure`: what was found; `threshold`: the expected."""

    rule: str
    severity: Severity
    subject: tuple[str, ...]
    figure: str
    threshold: str
    why: str
    cure: str


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, otherwise in their order."""
    order = tuple(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


@dataclass(frozen=True, kw_only=True)
class Hit:
    """Where a rule is broken; `cure` and `severity` where the rule's own are not right for this case."""

    subject: tuple[str, ...]
    figure: str
    cure: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`threshold` says what is expected, and the reason for it, `why` what goes wrong, `cure` the next step."""

    name: str
    severity: Severity
    threshold: str
    why: str
    cure: str
    check: Callable[[AuditEvidence], Iterable[Hit]]

    def findings(self, evidence: AuditEvidence) -> list[Finding]:
        """What breaks this rule; what is found in the same words of several runs is one finding."""
        alike: dict[tuple[str, str, Severity], list[str]] = {}
        for hit in self.check(evidence):
            alike.setdefault((hit.figure, hit.cure or self.cure, hit.severity or self.severity), []).extend(hit.subject)
        return [
            Finding(
                rule=self.name,
                severity=severity,
                subject=tuple(subject),
                figure=figure,
                threshold=self.threshold,
                why=self.why,
                cure=cure,
            )
            for (figure, cure, severity), subject in alike.items()
        ]


def each_case(check: Callable[[Case], str | None]) -> Callable[[AuditEvidence], Iterable[Hit]]:
    """A rule that looks at one run at a time and returns the figure that breaks it."""

    def look(evidence: AuditEvidence) -> Iterable[Hit]:
        for case in evidence.cases:
            figure = check(case)
            if figure is not None:
                yield Hit(subject=(case.run_id,), figure=figure)

    return look


def each_group(check: Callable[[Sequence[Case]], str | None]) -> Callable[[AuditEvidence], Iterable[Hit]]:
    """A rule that looks at the measured runs of one configuration in one place."""

    def look(evidence: AuditEvidence) -> Iterable[Hit]:
        for group in evidence.groups:
            figure = check(group)
            if figure is not None:
                yield Hit(subject=tuple(case.run_id for case in group), figure=figure)

    return look
