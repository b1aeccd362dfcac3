"""Both sides of every claim, on the answers of a GPU that only exists here."""

from collections.abc import Callable
from functools import reduce
from typing import Any, cast

import pytest

from benchmarks.gpu_truth.claims import CLAIMS, judge
from benchmarks.gpu_truth.judging import ClaimVerdict
from benchmarks.gpu_truth.parts import PARTS
from tests.gpu_truth.answers import CONSTANTS, FABRIC, FLOAT, MODELS, PIPE, PRECISIONS, TENSOR, ended, evidence_of, h100

Parts = dict[str, dict[str, Any]]


def row_of(claim: str, parts: Parts) -> dict[str, Any]:
    return next(row for row in judge(evidence_of(parts)) if row["claim"] == claim)


def put(path: str, value: Any) -> Callable[[Parts], None]:
    """`put("machine.gpu.name", …)`; a slash stands for a dot in a name."""

    def change(parts: Parts) -> None:
        *way, last = [word.replace("/", ".") for word in path.split(".")]
        inner = reduce(
            lambda outer, word: outer[int(word) if isinstance(outer, list) else word], way, cast("Any", parts)
        )
        inner[int(last) if isinstance(inner, list) else last] = value

    return change


def metric(within: str, name: str, value: float) -> Callable[[Parts], None]:
    """Set a counter of every launch in a range."""

    def change(parts: Parts) -> None:
        for launch in parts["counters"]["launches"]:
            if launch["range"] == within:
                launch["values"][name] = value

    return change


def all_of(*changes: Callable[[Parts], None]) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        for apply in changes:
            apply(parts)

    return change


def steady_power(parts: Parts) -> None:
    for load in parts["ceilings"]["loads"].values():
        for row in load["rows"]:
            row["power_usual_w"] = row["power_instant_w"]


def faster_at_first(parts: Parts) -> None:
    for row in parts["ceilings"]["loads"]["amp"]["rows"][:20]:
        row["call_s"] = 1 / 900


def no_range(parts: Parts) -> None:
    for launch in parts["counters"]["launches"]:
        if launch["range"] == "backward":
            launch["range"] = None


def no_skipped(parts: Parts) -> None:
    for run in parts["resnet50"]["runs"].values():
        del run["record"]["timing"]["skipped_steps"]


HFMA = FLOAT.format("hfma")
# A claim, and what is otherwise than it says.
DISPROVED = [
    (
        "the compiler builds constants with HFMA2.MMA",
        put("compiler.targets.89.constants.instructions", {"HFMA2.MMA": 3}),
    ),
    ("they run on the tensor pipe", metric("constants", PIPE, 0)),
    ("without them plain kernels leave it idle", metric("softmax", CONSTANTS, 3)),
    ("they count as no fp16 arithmetic", metric("constants", HFMA, 512)),
    ("a packed half instruction counts twice", metric("packed_half", HFMA, 1000)),
    ("an fp32 instruction counts once", metric("single", FLOAT.format("ffma"), 2000)),
    ("a known matrix product counts its FLOP", metric("product", TENSOR, 2048)),
    ("a process's range holds the backward pass", no_range),
    ("a thread's range loses it", put("counters.pushed", 3)),
    ("L2 has traffic between its halves", put("counters.asked", [PIPE])),
    ("ncu knows every name that is asked for", put("metrics.ncu.0.missing.9/0", ["l1tex__t_bytes.sum"])),
    ("the bytes of memory have a name", put("metrics.ncu.0.known.9/0", ["dram__bytes_read"])),
    ("kernels are of a known family", put("names.steps.resnet50 fp32.0.name", "mystery_k")),
    ("the usual power is a mean of a second", steady_power),
    ("a ceiling from idle lasts", faster_at_first),
    ("the roof is the sustained rate", put("ceilings.ceilings.flop_per_s.amp", {"median": 880e12, "sustained": None})),
    ("ceilings are below the vendor's peak", put("ceilings.loads.amp.work", 2e12)),
    ("fp32 is not TF32", put("resnet50.runs.fp32.record.timing.images_per_s", 1750.0)),
    ("steps that AMP skips are counted", no_skipped),
    ("instruments cost no more than 1 %", put("loops.ratios", [1.02, 1.03, 1.03, 1.04])),
    ("auto takes the GPU, or says why not", put("machine.auto", "cpu")),
    ("devices that are not there are refused", put("refusals.cases.mps", ended(1, None, "Traceback"))),
    ("out of memory is a result", put("failures.cases.a little too large", ended(6, "failed"))),
    ("--deterministic trains", put("failures.cases.deterministic", ended(6, "failed", "error: x"))),
    (
        "--deterministic explains adaptive pooling",
        put("failures.cases.deterministic, adaptive pooling", ended(1, None, "Traceback")),
    ),
    ("--compile trains", put("failures.cases.compile", ended(6, "failed"))),
    ("Ctrl-C under ncu leaves the run whole", put("interrupt.left_over", ["ncu"])),
    (
        "WSL's cure is Windows' own switch",
        all_of(
            put("machine.wsl", True),
            put("profile-fp32.record.profile.status", "unavailable"),
            put("profile-fp32.record.profile.hint", "a module option"),
        ),
    ),
    ("tests/gpu pass", all_of(put("tests.exit_code", 1), put("tests.said", "2 failed"))),
    *(
        (f"{precision}: {claim}", put(f"profile-{precision}.{path}", value))
        for precision in PRECISIONS
        for claim, path, value in [
            ("products calibrate", "record.profile.checks.calibration.fp16", {"ratio": 0.5, "verified": False}),
            (
                "counted over model FLOP",
                "record.profile.checks.model_flop",
                {"counted_over_model": 0.5, "flagged": True, "likely_cause": "Winograd"},
            ),
            ("bytes are counted", "record.profile.dram_bytes_per_step", None),
            ("ncu's pace", "record.profile.elapsed_s", 500.0),
            ("names tell tensor kernels", "launches.1.values", {PIPE: 3.0, CONSTANTS: 0.0}),
        ]
    ),
    *(
        (
            f"{precision}: no false lower bound",
            all_of(
                put(f"profile-{precision}.record.profile.flop_is_lower_bound", True),
                put(f"profile-{precision}.record.profile.lower_bound_reason", "hidden"),
            ),
        )
        for precision in PRECISIONS
    ),
    *((f"{name}: every precision trains", put(f"{name}.runs.amp", ended(6, "failed"))) for name in MODELS),
    *(
        (f"{name}: images/s as others have", put(f"{name}.runs.amp.record.timing.images_per_s", 400.0))
        for name in MODELS
    ),
    *((f"{name}: measured long enough", put(f"{name}.runs.amp.record.timing.measured_s", 0.5)) for name in MODELS),
]
# A claim, and evidence that does not settle it.
OPEN = [
    (
        "the compiler builds constants with HFMA2.MMA",
        put("compiler.targets", {"80": {"constants": {"instructions": None}}}),
    ),
    ("they run on the tensor pipe", metric("constants", PIPE, None)),
    ("a known matrix product counts its FLOP", put("counters.known", {})),
    ("a thread's range loses it", put("counters.pushed", None)),
    ("ncu knows every name that is asked for", put("metrics.ncu", [])),
    ("amp: no false lower bound", put("profile-amp.record.profile", {"status": "unavailable", "reason": "locked"})),
    ("the usual power is a mean of a second", put("ceilings.loads", {"amp": {"rows": []}})),
    ("ceilings are below the vendor's peak", put("machine.gpu.name", "NVIDIA X")),
    (
        "resnet50: images/s as others have",
        put(
            "resnet50.runs",
            {"amp": {"record": {"status": "completed", "timing": {"images_per_s": 5.0}}, "published": []}},
        ),
    ),
    ("instruments cost no more than 1 %", put("loops.ratios", [0.8, 0.9, 1.1, 1.2])),
    ("tests/gpu pass", put("tests.said", "22 skipped in 5 s")),
    ("tests/gpu pass", put("tests.exit_code", 4)),
    (
        "Ctrl-C under ncu leaves the run whole",
        put("interrupt.profile", {"reason": "interrupted before a kernel was profiled"}),
    ),
    ("Ctrl-C under ncu leaves the run whole", put("interrupt.ended_before_the_signal", True)),
    ("auto takes the GPU, or says why not", all_of(put("machine.gpu", None), put("machine.driver", None))),
]
L4 = put("machine.gpu", {"name": "NVIDIA L4", "capability": "8.9", "memory_bytes": 24e9})
A100 = put("machine.gpu.capability", "8.0")
RANGES = ("constants", "packed_half", "single", "product", "softmax", "backward")
OLD_DRIVER = all_of(
    put("machine.gpu", None), put("machine.obstacle", "torch for CUDA 13.2 needs driver 580, and this is 550")
)
# The other side of what a GPU is: what does not exist on it must not be seen. A claim, the machine, and what is seen.
ELSEWHERE = [
    ("they run on the tensor pipe", "an L4", L4),
    ("they run on the tensor pipe", "an L4 without them", all_of(L4, metric("constants", PIPE, 0))),
    ("L2 has traffic between its halves", "an L4", L4),
    ("L2 has traffic between its halves", "an L4 that was not asked", all_of(L4, put("counters.asked", [PIPE]))),
    (
        "L2 has traffic between its halves",
        "an L4 without it",
        all_of(L4, *(metric(name, FABRIC, 0) for name in RANGES)),
    ),
    ("the usual power is a mean of a second", "an A100", A100),
    ("the usual power is a mean of a second", "an A100 that answers with the power of now", all_of(A100, steady_power)),
    *(
        (
            "ncu knows every name that is asked for",
            f"no GPU, and ncu knows {known}",
            all_of(put("machine.gpu", None), put("metrics.ncu", known)),
        )
        for known in (
            [{"known": {}, "missing": {"9.0": [], "8.9": []}}],
            [{"known": {}, "missing": {"9.0": [], "8.9": ["l1tex__t_bytes.sum"]}}],
            [],
        )
    ),
    ("auto takes the GPU, or says why not", "an old driver, named", all_of(OLD_DRIVER, put("machine.notes", ["…"]))),
    ("auto takes the GPU, or says why not", "an old driver", OLD_DRIVER),
]


def test_every_claim_holds_on_a_gpu_that_is_as_we_say() -> None:
    rows = judge(evidence_of(h100()))
    assert {row["claim"]: row["why"] or row["found"] for row in rows if row["verdict"] != ClaimVerdict.HOLDS} == {
        "WSL's cure is Windows' own switch": "it is not WSL"
    }
    assert all(row["found"] for row in rows if row["verdict"] == ClaimVerdict.HOLDS)


def told(claim: str, change: Callable[[Parts], None]) -> str:
    """A line of the golden page."""
    parts = h100()
    change(parts)
    row = row_of(claim, parts)
    return f"{claim}: {row['verdict']}; found {row['found']}; why {row['why']}\n"


def test_every_claim_can_be_disproved_or_left_open(golden: Callable[[str, str], None]) -> None:
    disproved, left_open = ([told(*case) for case in cases] for cases in (DISPROVED, OPEN))
    assert [text for text in disproved if f": {ClaimVerdict.DISPROVED};" not in text] == []
    assert [text for text in left_open if f": {ClaimVerdict.OPEN};" not in text] == []
    elsewhere = [f"{machine}: {told(claim, change)}" for claim, machine, change in ELSEWHERE]
    page = ["## disproved\n", *disproved, "\n## open\n", *left_open, "\n## elsewhere\n", *elsewhere]
    golden("claims.txt", "".join(page))


def test_the_table_above_has_every_claim_and_every_part_is_asked() -> None:
    assert sorted(case[0] for case in DISPROVED) == sorted(claim.claim for claim in CLAIMS)
    assert {part for claim in CLAIMS for part in claim.parts} == {part.name for part in PARTS}


def test_texts_fit_a_narrow_table() -> None:
    assert [claim.claim for claim in CLAIMS if len(claim.claim) > 46 or len(claim.expected) > 31] == []


@pytest.mark.parametrize("value", [None, 0, "x", [], {}, [1], {"a": None}, float("nan"), 1e308])
def test_evidence_of_any_shape_costs_rows_and_never_a_traceback(value: Any) -> None:
    parts = h100()
    for name, part in parts.items():
        for key in list(part) if isinstance(part, dict) else ():
            changed = h100()
            changed[name][key] = value
            assert len(judge(evidence_of(changed))) == len(CLAIMS)
    rows = judge(evidence_of({name: {} for name in parts}))
    assert {row["verdict"] for row in rows} <= {ClaimVerdict.OPEN}
