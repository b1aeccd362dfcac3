"""`analyze audit`: what is wrong with measurements, rule by rule, each with its threshold, its reason and its cure."""

from collections.abc import Sequence

from analysis.audit import flop, machine, provenance, recompute, timing
from analysis.audit.evidence import Evidence
from analysis.audit.finding import Finding, Rule, Severity, by_severity
from analysis.loading import Results

__all__ = ["RULES", "Finding", "Rule", "Severity", "audit", "by_severity"]

RULES: tuple[Rule, ...] = (*recompute.RULES, *timing.RULES, *flop.RULES, *machine.RULES, *provenance.RULES)


def audit(results: Results, *, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Everything that breaks a rule, errors first, then in the order of the rules."""
    evidence = Evidence(results=results)
    return by_severity(finding for rule in rules for finding in rule.findings(evidence))
