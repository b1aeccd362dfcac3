"""Tables of the audit's rules: runs made by hand, and the figures that break a rule."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from analysis.api import Results
from analysis.audit import RULES, Finding, audit
from tests.analysis.by_hand import results

# A run or a list of runs by rule and name of the case.
Cases: TypeAlias = Mapping[str, Mapping[str, Any]]
ByRuleAndFile: TypeAlias = dict[tuple[str, str], list[Finding]]


def figures(*runs: dict[str, Any], rule: str, folder: Path | None = None) -> list[str]:
    only = [known for known in RULES if known.name == rule]
    return [finding.figure for finding in audit(results(*runs, folder=folder), rules=only)]


def printed(table: Cases, folder: Path) -> str:
    """By rule and case: the figures that break the rule."""
    lines: list[str] = []
    for rule, cases in table.items():
        lines += ["", f"## {rule}"]
        for number, (name, runs) in enumerate(cases.items()):
            (place := folder / rule / str(number)).mkdir(parents=True)
            found = figures(*(runs if isinstance(runs, list) else [runs]), rule=rule, folder=place)
            lines.append(f"{name}: {' | '.join(found) or 'no finding'}")
    return "\n".join([*lines[1:], ""])


def by_rule_and_file(loaded: Results) -> ByRuleAndFile:
    """Findings of an audit of imported runs, by rule and name of the imported file."""
    names = dict(zip(loaded.runs["run_id"], loaded.runs["imported_file"], strict=True))
    by_file: ByRuleAndFile = defaultdict(list)
    for finding in audit(loaded):
        for run_id in finding.subject:
            by_file[finding.rule, names[run_id]].append(finding)
    return by_file
