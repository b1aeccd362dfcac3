"""`analyze audit`: faults of measurements. Each rule has a threshold, a reason and a cure."""

from collections.abc import Sequence
from dataclasses import asdict, fields

import pandas as pd

from analysis.audit import flop, provenance, timing
from analysis.audit.rule import AuditEvidence, Finding, Rule, Severity, by_rule, by_severity, heading, total
from analysis.loading.cases import OfRuns, cases
from analysis.loading.tables import Tables

__all__ = ["RULES", "Finding", "Rule", "Severity", "as_frame", "audit", "by_rule", "by_severity", "heading", "total"]

RULES: tuple[Rule, ...] = (*timing.RULES, *flop.RULES, *provenance.RULES)


def audit(results: Tables, *, rules: Sequence[Rule] = RULES, of_runs: OfRuns | None = None) -> list[Finding]:
    """Findings on all runs, errors first, then in the order of the rules; `of_runs`: what is known of each run."""
    if rules is RULES:
        of_runs = of_runs or OfRuns(cases=cases(results))
    evidence = AuditEvidence(results=results, of_runs=of_runs)
    return by_severity(finding for rule in rules for finding in rule.findings(evidence))


def as_frame(findings: Sequence[Finding]) -> pd.DataFrame:
    """A row per finding, with the fields of `Finding`; `subject` is a tuple of run ids."""
    return pd.DataFrame([asdict(finding) for finding in findings], columns=[field.name for field in fields(Finding)])
