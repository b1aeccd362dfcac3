"""Findings as text for people, and as JSON and CSV."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import assert_never

from analysis.audit.finding import Finding, Severity
from workload.contract import tables
from workload.contract.invocation import as_typed
from workload.contract.tables import Column, TableFormat, as_json
from workload.contract.text import counted, printable, wrapped

# A longer list of run ids is less useful than their number.
SHOWN_RUNS = 3


def render(findings: Sequence[Finding], form: TableFormat, *, looked_at: str, width: int | None = None) -> str:
    """Findings as text, JSON or CSV, without a final newline.

    `looked_at`: description of the audited runs; `width`: most characters per line of text. JSON and CSV hold the
    fields of `Finding`.
    """
    match form:
        case TableFormat.TABLE:
            return _text(findings, looked_at=looked_at, width=width)
        case TableFormat.JSON:
            return as_json([asdict(finding) for finding in findings], indent=1)
        case TableFormat.CSV:
            return _csv(findings)
        case _:
            assert_never(form)


def _text(findings: Sequence[Finding], *, looked_at: str, width: int | None) -> str:
    """Findings grouped by rule, so that threshold, reason and cure appear once."""
    if not findings:
        return f"nothing found: {looked_at}"
    by_rule: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault((finding.severity, finding.rule), []).append(finding)
    counts = Counter(finding.severity for finding in findings)
    total = ", ".join(counted(counts[severity], severity) for severity in Severity if counts[severity])
    return "\n\n".join([*(_rule(same, width) for same in by_rule.values()), wrapped(f"{total}: {looked_at}", width)])


def _rule(same: Sequence[Finding], width: int | None) -> str:
    first = same[0]
    lines = [
        *(("found", f"{printable(finding.figure)}  [{_subject(finding)}]") for finding in same),
        ("expected", first.threshold),
        ("why", first.why),
        *(("cure", as_typed(printable(cure))) for cure in dict.fromkeys(finding.cure for finding in same)),
    ]
    texts = (wrapped(text, width, indent=13, first=f"  {name}") for name, text in lines)
    return "\n".join([f"{first.severity}: {first.rule}", *texts])


def _subject(finding: Finding) -> str:
    more = len(finding.subject) - SHOWN_RUNS
    shown = finding.subject if more <= 0 else finding.subject[:SHOWN_RUNS]
    return printable(", ".join(shown)) + (f" and {more} more" if more > 0 else "")


def _csv(findings: Sequence[Finding]) -> str:
    columns = [Column(name=field.name, heading=field.name) for field in fields(Finding)]
    rows = [asdict(finding) | {"subject": " ".join(finding.subject)} for finding in findings]
    return tables.render(rows, columns, TableFormat.CSV)
