"""`analyze audit`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, assert_never

import typer

import analysis
from analysis.commands.shared import PeaksOption, VerifyOption, first_names, print_problems, use_peaks
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import Group, as_typed, examples
from workload.contract.program import FormatOption, option
from workload.contract.tables import Column, TableFormat, as_json
from workload.contract.tables import render as render_table
from workload.contract.text import counted, printable, terminal_width, wrapped

if TYPE_CHECKING:
    from analysis.audit import Finding
    from analysis.loading.index import Problem

# Findings of a rule that are printed, and runs of a finding: longer lists are less useful than their number.
SHOWN_FINDINGS, SHOWN_RUNS = 3, 1

EXAMPLES = examples("analyze audit results --strict", "analyze audit --claims published.csv")


def audit(
    *,
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RESULTS...", help="folders of bundles, or single bundles; may be left out with --claims"
        ),
    ] = None,
    claims: Annotated[
        Path | None, option("--claims", "published figures to audit as well", Group.RESULTS, metavar="FILE.csv")
    ] = None,
    strict: Annotated[
        bool, option("--strict", "exit code 10 for errors and warnings, not for notes", Group.OUTPUT)
    ] = False,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
) -> int:
    """Find faults in measurements: the figure, the rule that it breaks, why it matters, the cure."""
    from analysis.audit import RULES, Severity, audit, by_severity
    from analysis.audit.claims import CLAIM_RULES, audit_claims, read

    if not results and not claims:
        raise UsageError("nothing to audit was named", hint="analyze audit RESULTS, or --claims FILE.csv")
    use_peaks(peaks)
    findings: list[Finding] = []
    looked_at: list[str] = []
    problems: Sequence[Problem] = ()
    if results:
        loaded = analysis.load(*results, verify=verify, peaks=peaks)
        problems = loaded.problems
        findings += audit(loaded)
        looked_at.append(f"{counted(len(loaded.runs), 'run')}, {len(RULES)} rules")
    if claims:
        rows = read(claims)
        findings += audit_claims(rows)
        looked_at.append(f"{counted(len(rows), 'published row')}, {len(CLAIM_RULES)} rules")
    findings = by_severity(findings)
    noun = "run" if not claims else "case" if results else "published row"
    print(render(findings, output_format, looked_at="; ".join(looked_at), noun=noun, width=terminal_width(sys.stdout)))
    print_problems(problems)
    serious = any(finding.severity is not Severity.NOTE for finding in findings)
    return ExitCode.FINDINGS if strict and serious else ExitCode.DONE


def render(
    findings: Sequence["Finding"], form: TableFormat, *, looked_at: str, noun: str = "run", width: int | None = None
) -> str:
    """Findings as text, JSON or CSV, without a final newline.

    `looked_at`: description of the audited runs; `noun`: what was audited; `width`: most characters per line of text.
    JSON and CSV hold the fields of `Finding`, and every finding.
    """
    from analysis.audit import Finding

    match form:
        case TableFormat.TABLE:
            return _text(findings, looked_at=looked_at, noun=noun, width=width)
        case TableFormat.JSON:
            return as_json([asdict(finding) for finding in findings], indent=1)
        case TableFormat.CSV:
            columns = [Column(name=field.name, heading=field.name) for field in fields(Finding)]
            rows = [asdict(finding) | {"subject": " ".join(finding.subject)} for finding in findings]
            return render_table(rows, columns, TableFormat.CSV)
        case _:
            assert_never(form)


def _text(findings: Sequence["Finding"], *, looked_at: str, noun: str, width: int | None) -> str:
    """Findings grouped by rule, so that threshold, reason and cure appear once."""
    from analysis.audit import by_rule, total

    if not findings:
        return f"nothing found: {looked_at}"
    rules = (_rule(same, noun, width) for same in by_rule(findings))
    return "\n\n".join([*rules, wrapped(f"{total(findings)}: {looked_at}", width)])


def _rule(same: Sequence["Finding"], noun: str, width: int | None) -> str:
    from analysis.audit import heading

    first, shown = same[0], same[:SHOWN_FINDINGS]
    seen = {subject for finding in shown for subject in finding.subject}
    rest = {subject for finding in same for subject in finding.subject} - seen
    more = counted(len(rest), f"more {noun}") if rest else counted(len(same) - len(shown), "more finding")
    lines = [
        *(("found", f"{printable(finding.figure)}  [{first_names(finding.subject, SHOWN_RUNS)}]") for finding in shown),
        *([("", f"and {more}: --format csv lists all")] if len(same) > len(shown) else []),
        ("expected", first.threshold),
        ("why", first.why),
        *(("cure", as_typed(printable(cure))) for cure in dict.fromkeys(finding.cure for finding in same)),
    ]
    texts = (wrapped(text, width, indent=13, first=f"  {name}") for name, text in lines)
    return "\n".join([heading(same, noun), *texts])
