"""`analyze audit`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analysis.commands.shared import FormatOption, VerifyOption, load, tell
from analysis.loading.problem import Problem
from workload.contract.errors import ExitCode, UsageError
from workload.contract.tables import TableFormat
from workload.contract.text import counted, terminal_width

if TYPE_CHECKING:
    from analysis.audit import Finding

EXAMPLES = """\b
Examples:
  analyze audit results
  analyze audit results --strict && analyze report results
  analyze audit --claims published.csv

Exit code with --strict: 10 where an error or a warning was found; notes do not count.
"""


def audit(
    *,
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RESULTS...]", help="as for the others; may be left out with --claims"),
    ] = None,
    claims: Annotated[
        Path | None,
        typer.Option("--claims", metavar="FILE.csv", help="published figures to audit as well", show_default=False),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="exit code 10 for errors and warnings", show_default=False)
    ] = False,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
) -> int:
    """Find faults in measurements: the figure, the rule that it breaks, why it matters, the cure."""
    from analysis.audit import RULES, Severity, audit, by_severity
    from analysis.audit.claims import CLAIM_RULES, audit_claims, read
    from analysis.audit.text import render

    if not results and not claims:
        raise UsageError("nothing to audit was named", hint="analyze audit RESULTS, or --claims FILE.csv")
    findings: list[Finding] = []
    looked_at: list[str] = []
    problems: Sequence[Problem] = ()
    if results:
        loaded = load(results, verify=verify)
        problems = loaded.problems
        findings += audit(loaded)
        looked_at.append(f"{counted(len(loaded.runs), 'run')}, {len(RULES)} rules")
    if claims:
        rows = read(claims)
        findings += audit_claims(rows)
        looked_at.append(f"{counted(len(rows), 'published row')}, {len(CLAIM_RULES)} rules")
    findings = by_severity(findings)
    print(render(findings, output_format, looked_at="; ".join(looked_at), width=terminal_width(sys.stdout)))
    tell(problems)
    serious = any(finding.severity is not Severity.NOTE for finding in findings)
    return ExitCode.FINDINGS if strict and serious else ExitCode.DONE
