"""The claims about GPUs, each with the expected finding and the parts of the evidence that settle it."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_truth import counting, running
from benchmarks.gpu_truth.evidence import GpuEvidence, read
from benchmarks.gpu_truth.judging import ClaimVerdict, GpuClaim
from workload.contract.tables import Column, Role, TableFormat, render
from workload.contract.text import printable

MODELS = ("resnet50", "resnet18", "mobilenet_v2", "vit_b_16")
PRECISIONS = ("fp32", "tf32", "amp", "bf16")


def _claim(claim: str, expected: str, parts: str | Sequence[str], judge: Any) -> GpuClaim:
    return GpuClaim(
        claim=claim, expected=expected, parts=(parts,) if isinstance(parts, str) else tuple(parts), judge=judge
    )


COUNTERS = (
    _claim("the compiler builds constants with HFMA2.MMA", "on 8.0 and 9.0 alone", "compiler", counting.compiled),
    _claim("they run on the tensor pipe", "on 8.0 and 9.0 alone", ("machine", "counters"), counting.constants_on_pipe),
    _claim("without them plain kernels leave it idle", "0 each", "counters", counting.rest_is_zero),
    _claim("they count as no fp16 arithmetic", "0 each", "counters", counting.constants_as_half),
    _claim("a packed half instruction counts twice", "2", "counters", counting.packed_half),
    _claim("an fp32 instruction counts once", "1", "counters", counting.single),
    _claim("a known matrix product counts its FLOP", "0.98 to 1.10", "counters", counting.product),
    _claim("a process's range holds the backward pass", "2 launches or more", "counters", counting.backward_in_range),
    _claim("a thread's range loses it", "0 launches", "counters", counting.backward_not_pushed),
    _claim("L2 has traffic between its halves", "on 8.0 and 9.0 alone", ("machine", "counters"), counting.l2),
    _claim("ncu knows every name that is asked for", "all are known", ("machine", "metrics"), counting.names_known),
    _claim("the bytes of memory have a name", "dram__bytes or both parts", ("machine", "metrics"), counting.dram_known),
    _claim("kernels are of a known family", "5 % or less of the time is not", "names", counting.families),
)
PROFILES = tuple(
    claim
    for precision in PRECISIONS
    for claim in (
        _claim(f"{precision}: products calibrate", "0.98 to 1.10", f"profile-{precision}", counting.calibrated),
        _claim(f"{precision}: no false lower bound", "no lower bound", f"profile-{precision}", counting.no_lower_bound),
        _claim(f"{precision}: counted over model FLOP", "0.7 to 1.5", f"profile-{precision}", counting.near_model),
        _claim(f"{precision}: bytes are counted", "some", f"profile-{precision}", counting.dram_counted),
        _claim(f"{precision}: ncu's pace", "2 s a kernel or less", f"profile-{precision}", counting.seconds_per_kernel),
        _claim(
            f"{precision}: names tell tensor kernels", "every name tells", f"profile-{precision}", counting.tensor_names
        ),
    )
)
RATES = (
    _claim(
        "the usual power is a mean of a second",
        "below instant, from 8.6 on",
        ("machine", "ceilings"),
        running.power_lag,
    ),
    _claim("a ceiling from idle lasts", "first / last third <= 1.03", "ceilings", running.bursts),
    _claim("the roof is the sustained rate", "0.9 to 1.1", "ceilings", running.roof_is_sustained),
    _claim("ceilings are below the vendor's peak", "0.5 to 1.05", ("machine", "ceilings"), running.below_peak),
    *(_claim(f"{model}: every precision trains", "completed", model, running.all_complete) for model in MODELS),
    *(_claim(f"{model}: images/s as others have", "within 1.6 times", model, running.in_band) for model in MODELS),
    _claim("fp32 is not TF32", "tf32 is 1.2 times as fast", "resnet50", running.fp32_is_not_tf32),
    *(_claim(f"{model}: measured long enough", "3 s or more", model, running.long_enough) for model in MODELS),
    _claim("steps that AMP skips are counted", "a number", "resnet50", running.skipped_counted),
    _claim("instruments cost no more than 1 %", "1.01 or less", "loops", running.instruments),
)
FAILURES = (
    _claim("auto takes the GPU, or says why not", "cuda, or both versions", "machine", running.driver),
    _claim("devices that are not there are refused", "exit code 2 in words", "refusals", running.refused),
    _claim("out of memory is a result", "code 7, out_of_memory", "failures", running.out_of_memory),
    _claim("--deterministic trains", "exit code 0", "failures", partial(running.completes, case="deterministic")),
    _claim(
        "--deterministic explains adaptive pooling",
        "exit code 0, or a hint",
        "failures",
        partial(running.completes_or_explains, case="deterministic, adaptive pooling"),
    ),
    _claim("--compile trains", "exit code 0", "failures", partial(running.completes, case="compile")),
    _claim("Ctrl-C under ncu leaves the run whole", "code 130, completed, 0 left", "interrupt", running.interrupted),
    _claim(
        "WSL's cure is Windows' own switch",
        "completed, or it is named",
        ("machine", "profile-fp32"),
        running.wsl,
    ),
    _claim("tests/gpu pass", "no failure", "tests", running.tests_pass),
)
CLAIMS = (*COUNTERS, *PROFILES, *RATES, *FAILURES)


def judge(evidence: GpuEvidence) -> list[dict[str, Any]]:
    """Judge every claim; a row each."""
    return [claim.row(evidence) for claim in CLAIMS]


# --- the table of `analyze gpu-truth`

SHOWN = (
    Column(name="claim", heading="claim", role=Role.FACT),
    Column(name="verdict", heading="verdict"),
    Column(name="expected", heading="expected"),
    Column(name="found", heading="found", role=Role.SENTENCE),
    Column(name="why", heading="note", optional=True, role=Role.NOTE),
)
WRITTEN = tuple(Column(name=name, heading=name) for name in ("claim", "expected", "found", "verdict", "why", "parts"))


def table(path: Path, output_format: TableFormat, *, wide: bool) -> str:
    """Judge every claim by the evidence in a folder or archive, as text in the format."""
    evidence = read(path)
    rows = judge(evidence)
    if output_format is not TableFormat.TABLE:
        return render(rows, WRITTEN, output_format)
    # A list of one note, because a text with semicolons would be split into several notes.
    notes = [{**row, "why": None if row["why"] is None else [row["why"]]} for row in rows]
    numbers = Counter(row["verdict"] for row in rows)
    count = ", ".join(f"{numbers[verdict]} {verdict}" for verdict in ClaimVerdict)
    return "\n".join([_heading(evidence), render(notes, SHOWN, output_format, wide=wide), count])


def _heading(evidence: GpuEvidence) -> str:
    machine = evidence.of("machine")
    gpu = machine.get("gpu") if isinstance(machine, dict) else None
    if not isinstance(gpu, dict):
        return "no GPU in this evidence"
    name, capability = printable(str(gpu.get("name"))), printable(str(gpu.get("capability")))
    return f"{name}, compute capability {capability}, torch {printable(str(machine.get('torch')))}"
