"""Tables of the audit's rules: runs made by hand, and the figures that break a rule."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from analysis.api import Results
from analysis.audit import Finding, audit
from tests.analysis.by_hand import results

# Cases by rule and name: a run or a list of runs, and the figures of the findings.
Cases: TypeAlias = Mapping[str, Mapping[str, tuple[Any, list[str]]]]
ByRuleAndFile: TypeAlias = dict[tuple[str, str], list[Finding]]


def figures(*runs: dict[str, Any], rule: str, folder: Path | None = None) -> list[str]:
    return [finding.figure for finding in audit(results(*runs, folder=folder)) if finding.rule == rule]


def rows(table: Cases) -> list[Any]:
    """Parameters of a test: rule, list of runs, and figures."""
    return [
        pytest.param(rule, runs if isinstance(runs, list) else [runs], expected, id=f"{rule}: {name}")
        for rule, cases in table.items()
        for name, (runs, expected) in cases.items()
    ]


def by_rule_and_file(loaded: Results) -> ByRuleAndFile:
    """Findings of an audit of imported runs, by rule and name of the imported file."""
    names = dict(zip(loaded.runs["run_id"], loaded.runs["imported_file"], strict=True))
    by_file: ByRuleAndFile = defaultdict(list)
    for finding in audit(loaded):
        for run_id in finding.subject:
            by_file[finding.rule, names[run_id]].append(finding)
    return by_file
