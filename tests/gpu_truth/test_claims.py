"""Both sides of every claim, on the answers of a GPU that only exists here."""

from collections.abc import Callable
from functools import reduce
from typing import Any, cast

import pytest

from benchmarks.gpu_truth.claims import CLAIMS, judge
from benchmarks.gpu_truth.judging import ClaimVerdict
from benchmarks.gpu_truth.parts import PARTS
from tests.gpu_truth.answers import (
    CONSTANTS,
    FABRIC,
    FLOAT,
    MODELS,
    PIPE,
    PRECISIONS,
    TENSOR,
    ended,
    evidence_of,
    h100,
)

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


def each(*changes: Callable[[Parts], None]) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        for one in changes:
            one(parts)

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


BELOW_BAND = (
    "fp32 900 (published 900 to 1080), tf32 1800 (published 1800 to 2160), amp 400 (published 2700 to 3240), "
    "bf16 2700 (published 2700 to 3240)"
)
HFMA = FLOAT.format("hfma")
# claim, what is otherwise, what is then found.
DISPROVED = [
    (
        "the compiler builds constants with HFMA2.MMA",
        put("compiler.targets.89.constants.instructions", {"HFMA2.MMA": 3}),
        "8.0 8, 8.9 3",
    ),
    ("they run on the tensor pipe", metric("constants", PIPE, 0), "0 instructions"),
    (
        "without them plain kernels leave it idle",
        metric("softmax", CONSTANTS, 3),
        "constants 0, packed_half 0, single 0, softmax 4",
    ),
    ("they count as no fp16 arithmetic", metric("constants", HFMA, 512), "hadd 0, hmul 0, hfma 512"),
    ("a packed half instruction counts twice", metric("packed_half", HFMA, 1000), "hfma 1"),
    ("an fp32 instruction counts once", metric("single", FLOAT.format("ffma"), 2000), "ffma 2"),
    ("a known matrix product counts its FLOP", metric("product", TENSOR, 2048), "0.5"),
    ("a process's range holds the backward pass", no_range, "0 launches"),
    ("a thread's range loses it", put("counters.pushed", 3), "3 launches"),
    ("L2 has traffic between its halves", put("counters.asked", [PIPE]), "no such counter"),
    (
        "ncu knows every name that is asked for",
        put("metrics.ncu.0.missing.9/0", ["l1tex__t_bytes.sum"]),
        "l1tex__t_bytes.sum",
    ),
    ("the bytes of memory have a name", put("metrics.ncu.0.known.9/0", ["dram__bytes_read"]), "dram__bytes_read"),
    ("kernels are of a known family", put("names.steps.resnet50 fp32.0.name", "mystery_k"), "resnet50 fp32 1"),
    ("the usual power is a mean of a second", steady_power, "amp 1, copy 1"),
    ("a ceiling from idle lasts", faster_at_first, "amp 1.286, copy 1"),
    (
        "the roof is the sustained rate",
        put("ceilings.ceilings.flop_per_s.amp", {"median": 880e12, "sustained": None}),
        "amp 1.257, copy 1",
    ),
    ("ceilings are below the vendor's peak", put("ceilings.loads.amp.work", 2e12), "amp 1.415, copy 0.8955"),
    ("fp32 is not TF32", put("resnet50.runs.fp32.record.timing.images_per_s", 1750.0), "1.03"),
    ("steps that AMP skips are counted", no_skipped, "not in run.json"),
    (
        "instruments cost no more than 1 %",
        put("loops.ratios", [1.02, 1.03, 1.03, 1.04]),
        "1.0300 (half of 4 pairs 1.0225 to 1.0375), resnet18 on cuda",
    ),
    ("auto takes the GPU, or says why not", put("machine.auto", "cpu"), "auto is cpu"),
    (
        "devices that are not there are refused",
        put("refusals.cases.mps", ended(1, None, "Traceback")),
        (
            "mps: exit code 1, no error in words; cuda, hidden: exit code 2, error: no CUDA device: …; "
            "auto, hidden: exit code 0, completed"
        ),
    ),
    (
        "out of memory is a result",
        put("failures.cases.a little too large", ended(6, "failed")),
        "a little too large: exit code 6, failed; much too large: exit code 7, out_of_memory",
    ),
    (
        "--deterministic trains",
        put("failures.cases.deterministic", ended(6, "failed", "error: x")),
        "exit code 6, failed, error: x",
    ),
    (
        "--deterministic explains adaptive pooling",
        put("failures.cases.deterministic, adaptive pooling", ended(1, None, "Traceback")),
        "exit code 1, no error in words",
    ),
    ("--compile trains", put("failures.cases.compile", ended(6, "failed")), "exit code 6, failed, no error in words"),
    (
        "Ctrl-C under ncu leaves the run whole",
        put("interrupt.left_over", ["ncu"]),
        "exit code 130, the run is completed, 1 process left",
    ),
    (
        "WSL's cure is Windows' own switch",
        each(
            put("machine.wsl", True),
            put("profile-fp32.record.profile.status", "unavailable"),
            put("profile-fp32.record.profile.hint", "a module option"),
        ),
        "unavailable: a module option",
    ),
    ("tests/gpu pass", each(put("tests.exit_code", 1), put("tests.said", "2 failed")), "2 failed"),
    *(
        (f"{precision}: {claim}", put(f"profile-{precision}.{path}", value), found)
        for precision in PRECISIONS
        for claim, path, value, found in [
            (
                "products calibrate",
                "record.profile.checks.calibration.fp16",
                {"ratio": 0.5, "verified": False},
                "fp16 0.5",
            ),
            (
                "counted over model FLOP",
                "record.profile.checks.model_flop",
                {"counted_over_model": 0.5, "flagged": True, "likely_cause": "Winograd"},
                "0.5, Winograd",
            ),
            ("bytes are counted", "record.profile.dram_bytes_per_step", None, "none"),
            ("ncu's pace", "record.profile.elapsed_s", 500.0, "2.50 s, 4 passes"),
            (
                "names tell tensor kernels",
                "launches.1.values",
                {PIPE: 3.0, CONSTANTS: 0.0},
                "batch_norm_collect_statistics",
            ),
        ]
    ),
    *(
        (
            f"{precision}: no false lower bound",
            each(
                put(f"profile-{precision}.record.profile.flop_is_lower_bound", True),
                put(f"profile-{precision}.record.profile.lower_bound_reason", "hidden"),
            ),
            "hidden",
        )
        for precision in PRECISIONS
    ),
    *(
        (
            f"{name}: every precision trains",
            put(f"{name}.runs.amp", ended(6, "failed")),
            "fp32 completed, tf32 completed, amp failed, bf16 completed",
        )
        for name in MODELS
    ),
    *(
        (
            f"{name}: images/s as others have",
            put(f"{name}.runs.amp.record.timing.images_per_s", 400.0),
            BELOW_BAND,
        )
        for name in MODELS
    ),
    *(
        (
            f"{name}: measured long enough",
            put(f"{name}.runs.amp.record.timing.measured_s", 0.5),
            "fp32 3.5, tf32 3.5, amp 0.5, bf16 3.5 s",
        )
        for name in MODELS
    ),
]


def test_every_claim_holds_on_a_gpu_that_is_as_we_say() -> None:
    rows = judge(evidence_of(h100()))
    assert {row["claim"]: row["why"] or row["found"] for row in rows if row["verdict"] != ClaimVerdict.HOLDS} == {
        "WSL's cure is Windows' own switch": "it is not WSL"
    }
    assert all(row["found"] for row in rows if row["verdict"] == ClaimVerdict.HOLDS)


@pytest.mark.parametrize(("claim", "change", "found"), DISPROVED, ids=[case[0] for case in DISPROVED])
def test_every_claim_can_be_disproved(claim: str, change: Callable[[Parts], None], found: str) -> None:
    parts = h100()
    change(parts)
    row = row_of(claim, parts)
    assert (row["verdict"], row["found"]) == (ClaimVerdict.DISPROVED, found)


def test_the_table_above_has_every_claim_and_every_part_is_asked() -> None:
    assert sorted(case[0] for case in DISPROVED) == sorted(claim.claim for claim in CLAIMS)
    assert {part for claim in CLAIMS for part in claim.parts} == {part.name for part in PARTS}


def test_texts_fit_a_narrow_table() -> None:
    assert [claim.claim for claim in CLAIMS if len(claim.claim) > 46 or len(claim.expected) > 31] == []


# The other side of what a GPU is: what does not exist on it must not be seen.
@pytest.mark.parametrize(
    ("claim", "change"),
    [
        ("they run on the tensor pipe", metric("constants", PIPE, 0)),
        ("L2 has traffic between its halves", put("counters.asked", [PIPE])),
        (
            "L2 has traffic between its halves",
            each(
                *(
                    metric(name, FABRIC, 0)
                    for name in ("constants", "packed_half", "single", "product", "softmax", "backward")
                )
            ),
        ),
    ],
)
def test_an_l4_has_neither_constants_on_the_pipe_nor_a_split_l2(claim: str, change: Callable[[Parts], None]) -> None:
    parts = h100()
    parts["machine"]["gpu"] = {"name": "NVIDIA L4", "capability": "8.9", "memory_bytes": 24e9}
    assert row_of(claim, parts)["verdict"] == ClaimVerdict.DISPROVED
    change(parts)
    assert row_of(claim, parts)["verdict"] == ClaimVerdict.HOLDS


def test_an_a100_answers_with_the_power_of_now() -> None:
    parts = h100()
    parts["machine"]["gpu"]["capability"] = "8.0"
    assert row_of("the usual power is a mean of a second", parts)["verdict"] == ClaimVerdict.DISPROVED
    steady_power(parts)
    assert row_of("the usual power is a mean of a second", parts)["verdict"] == ClaimVerdict.HOLDS


@pytest.mark.parametrize(
    ("claim", "change", "why"),
    [
        (
            "the compiler builds constants with HFMA2.MMA",
            put("compiler.targets", {"80": {"constants": {"instructions": None}}}),
            "triton, whose nvdisasm reads machine code, is not installed",
        ),
        ("they run on the tensor pipe", metric("constants", PIPE, None), f"{PIPE} was not counted in range constants"),  # type: ignore[arg-type]
        ("a known matrix product counts its FLOP", put("counters.known", {}), "this GPU has no such product"),
        ("a thread's range loses it", put("counters.pushed", None), "ncu's table has no column of such ranges"),
        ("ncu knows every name that is asked for", put("metrics.ncu", []), "no ncu here knows compute capability 9.0"),
        (
            "amp: no false lower bound",
            put("profile-amp.record.profile", {"status": "unavailable", "reason": "locked"}),
            "unavailable: locked",
        ),
        (
            "the usual power is a mean of a second",
            put("ceilings.loads", {"amp": {"rows": []}}),
            "NVML tells no instant power here",
        ),
        (
            "ceilings are below the vendor's peak",
            put("machine.gpu.name", "NVIDIA X"),
            "the table of peaks has no NVIDIA X",
        ),
        (
            "resnet50: images/s as others have",
            put(
                "resnet50.runs",
                {"amp": {"record": {"status": "completed", "timing": {"images_per_s": 5.0}}, "published": []}},
            ),
            "no published band: amp 5 images/s",
        ),
        (
            "instruments cost no more than 1 %",
            put("loops.ratios", [0.8, 0.9, 1.1, 1.2]),
            "the pairs are too far apart: 1.0000 (half of 4 pairs 0.8250 to 1.1750), resnet18 on cuda",
        ),
        ("tests/gpu pass", put("tests.said", "22 skipped in 5 s"), "no test ran: 22 skipped in 5 s"),
        ("tests/gpu pass", put("tests.exit_code", 4), "no test ran: 41 passed in 90 s"),
        (
            "Ctrl-C under ncu leaves the run whole",
            put("interrupt.profile", {"reason": "interrupted before a kernel was profiled"}),
            "the signal came before ncu profiled a kernel",
        ),
        (
            "Ctrl-C under ncu leaves the run whole",
            put("interrupt.ended_before_the_signal", True),
            "the profile ended before the signal",
        ),
        (
            "auto takes the GPU, or says why not",
            each(put("machine.gpu", None), put("machine.driver", None)),
            "no NVIDIA driver is loaded there",
        ),
    ],
)
def test_what_the_evidence_does_not_settle(claim: str, change: Callable[[Parts], None], why: str) -> None:
    parts = h100()
    change(parts)
    row = row_of(claim, parts)
    assert (row["verdict"], row["why"], row["found"]) == (ClaimVerdict.OPEN, why, None)


def test_an_ncu_without_a_gpu_is_asked_about_chips() -> None:
    parts = h100()
    parts["machine"]["gpu"] = None
    parts["metrics"]["ncu"] = [{"known": {}, "missing": {"9.0": [], "8.9": []}}]
    row = row_of("ncu knows every name that is asked for", parts)
    assert (row["verdict"], row["found"]) == (ClaimVerdict.HOLDS, "all are known of 8.9, 9.0")
    parts["metrics"]["ncu"][0]["missing"]["8.9"] = ["l1tex__t_bytes.sum"]
    row = row_of("ncu knows every name that is asked for", parts)
    assert (row["verdict"], row["found"]) == (ClaimVerdict.DISPROVED, "l1tex__t_bytes.sum of 8.9, 9.0")
    parts["metrics"]["ncu"] = []
    assert row_of("ncu knows every name that is asked for", parts)["why"] == "no ncu here knows a chip of our table"


def test_an_old_driver_is_named() -> None:
    parts = h100()
    parts["machine"] |= {
        "gpu": None,
        "obstacle": "torch for CUDA 13.2 needs driver 580, and this is 550",
        "notes": ["…"],
    }
    assert row_of("auto takes the GPU, or says why not", parts)["verdict"] == ClaimVerdict.HOLDS
    parts["machine"]["notes"] = []
    assert row_of("auto takes the GPU, or says why not", parts)["verdict"] == ClaimVerdict.DISPROVED


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
