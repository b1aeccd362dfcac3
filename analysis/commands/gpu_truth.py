"""`analyze gpu-truth`: check this project's claims against the evidence of one GPU."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analysis.commands.shared import FormatOption
from workload.contract.errors import ExitCode
from workload.contract.program import WideOption
from workload.contract.tables import Column, Role, TableFormat, render
from workload.contract.text import printable

if TYPE_CHECKING:
    from analysis.truth.evidence import GpuEvidence

EXAMPLES = """\b
Examples:
  analyze gpu-truth gpu-truth
  analyze gpu-truth gpu-truth.tar.gz --format csv > claims.csv
"""
SHOWN = (
    Column(name="claim", heading="claim", role=Role.FACT),
    Column(name="verdict", heading="verdict"),
    Column(name="expected", heading="expected"),
    Column(name="found", heading="found", role=Role.SENTENCE),
    Column(name="why", heading="note", optional=True, role=Role.NOTE),
)
WRITTEN = tuple(Column(name=name, heading=name) for name in ("claim", "expected", "found", "verdict", "why", "parts"))


def gpu_truth(
    *,
    evidence: Annotated[
        Path, typer.Argument(metavar="EVIDENCE", help="folder or archive of python -m workload gpu-truth")
    ],
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """Check this project's claims on GPUs against the evidence of one GPU: claim, expected, found, verdict."""
    # Disproved claims are a result, not an error.
    from analysis.truth.claims import judge
    from analysis.truth.evidence import read
    from analysis.truth.judging import ClaimVerdict

    read_evidence = read(evidence)
    rows = judge(read_evidence)
    if output_format is TableFormat.TABLE:
        table = render([{**row, "why": _whole(row["why"])} for row in rows], SHOWN, output_format, wide=wide)
        numbers = Counter(row["verdict"] for row in rows)
        count = ", ".join(f"{numbers[verdict]} {verdict}" for verdict in ClaimVerdict)
        print("\n".join([*_heading(read_evidence), table, count]))
    else:
        print(render(rows, WRITTEN, output_format))
    return ExitCode.DONE


def _whole(why: str | None) -> list[str] | None:
    """The note as a list of one, because a text with semicolons would be split into several notes."""
    return None if why is None else [why]


def _heading(evidence: "GpuEvidence") -> list[str]:
    machine = evidence.of("machine")
    gpu = machine.get("gpu") if isinstance(machine, dict) else None
    if not isinstance(gpu, dict):
        return ["no GPU in this evidence"]
    name, capability = printable(str(gpu.get("name"))), printable(str(gpu.get("capability")))
    return [f"{name}, compute capability {capability}, torch {printable(str(machine.get('torch')))}"]
