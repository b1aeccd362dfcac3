"""`analyze gpu-truth`: what the evidence of one GPU says about this project's claims."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.truth.claims import judge
from analysis.truth.evidence import Evidence, read
from analysis.truth.judging import Verdict
from workload.contract.errors import ExitCode
from workload.contract.tables import Column, Format, Role, render
from workload.contract.text import printable

SHOWN = (
    Column(name="claim", heading="claim", role=Role.FACT),
    Column(name="verdict", heading="verdict"),
    Column(name="expected", heading="expected"),
    Column(name="found", heading="found", role=Role.SENTENCE),
    Column(name="why", heading="note", optional=True, role=Role.NOTE),
)
WRITTEN = tuple(Column(name=name, heading=name) for name in ("claim", "expected", "found", "verdict", "why", "parts"))


def run(path: Path, *, form: Format, wide: bool) -> int:
    """Print a row per claim. Disproved claims are a result, and no error."""
    evidence = read(path)
    rows = judge(evidence)
    if form is Format.TABLE:
        table = render([{**row, "why": _whole(row["why"])} for row in rows], SHOWN, form, wide=wide)
        print("\n".join([*_heading(evidence), table, _count(rows)]))
    else:
        print(render(rows, WRITTEN, form))
    return ExitCode.DONE


def _whole(why: str | None) -> list[str] | None:
    """As one note, also with a semicolon in it."""
    return None if why is None else [why]


def _heading(evidence: Evidence) -> list[str]:
    machine = evidence.of("machine")
    gpu = machine.get("gpu") if isinstance(machine, dict) else None
    if not isinstance(gpu, dict):
        return ["no GPU in this evidence"]
    name, capability = printable(str(gpu.get("name"))), printable(str(gpu.get("capability")))
    return [f"{name}, compute capability {capability}, torch {printable(str(machine.get('torch')))}"]


def _count(rows: Sequence[Mapping[str, Any]]) -> str:
    numbers = Counter(row["verdict"] for row in rows)
    return ", ".join(f"{numbers[verdict]} {verdict}" for verdict in Verdict)
