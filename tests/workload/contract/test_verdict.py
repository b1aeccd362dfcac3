"""What limits a step: the rules on both sides of their limits, and the words of all kinds of records as one page."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from workload.contract import peaks, verdict
from workload.contract import record as contract
from workload.contract.peaks import PeakRow
from workload.contract.record import MeasuredRate, Record, Verdict
from workload.contract.verdict import Bound, Figures, busy_sentence, decide


def step(**facts: Any) -> Figures:
    """A step of 1 s below roofs of 100 FLOP/s and 10 B/s."""
    usual: dict[str, Any] = {"step_s": 1.0, "roof": "measured", "roof_flop_per_s": 100.0, "roof_bytes_per_s": 10.0}
    return Figures(**{**usual, **facts})


@pytest.mark.parametrize(
    ("flop", "low", "high", "others", "bound"),
    [
        # Waiting for data is decided first, whatever the rest says.
        (80, 1, 2, {"data_wait_fraction": 0.11}, Bound.INPUT),
        (80, 1, 2, {"data_wait_fraction": 0.10}, Bound.COMPUTE),
        (80, 1, 2, {"data_wait_fraction": None}, Bound.COMPUTE),
        (80, 1, 2, {"data_wait_fraction": 0.11, "device_busy_share": 0.07}, Bound.INPUT),
        # Then a device that is known to be idle for most of the step.
        (30, 1, 2, {"device_busy_share": 0.49}, Bound.OVERHEAD),
        (30, 1, 2, {"device_busy_share": 0.50}, Bound.NEITHER),
        (80, 1, 2, {"device_busy_share": 0.81}, Bound.COMPUTE),
        # Kernels alone have no gaps to be known.
        (30, 1, 2, {"device_busy_share": 0.07, "kernels_alone": True}, Bound.NEITHER),
        # Then a roof, from half of it on.
        (50, 1, 2, {}, Bound.COMPUTE),
        (49, 1, 2, {}, Bound.NEITHER),
        (10, 5, 8, {}, Bound.MEMORY),
        # Half of the bandwidth has to be sure: at the fewest bytes.
        (10, 4.9, 8, {}, Bound.NEITHER),
        (10, 4.9, 4.9, {}, Bound.NEITHER),
        (10, 5, 5, {}, Bound.MEMORY),
        # Both: the nearer one that is sure.
        (70, 6, 8, {}, Bound.COMPUTE),
        (60, 7, 8, {}, Bound.MEMORY),
        (60, 4, 9, {}, Bound.COMPUTE),
        # More bytes than memory can move: caches hold them, and their traffic is unknown.
        (10, 11, 50, {}, Bound.NEITHER),
        (60, 11, 50, {}, Bound.COMPUTE),
        (10, 10.5, 50, {}, Bound.MEMORY),
        # Above a ceiling by more than noise.
        (105, 1, 2, {}, Bound.COMPUTE),
        (106, 1, 2, {}, None),
        (106, 1, 2, {"device_busy_share": 0.07}, Bound.OVERHEAD),
    ],
)
def test_bound(flop: float, low: float, high: float, others: dict[str, Any], bound: Bound | None) -> None:
    judged = decide(step(flop=flop, bytes_low=low, bytes_high=high, **others))
    assert judged.bound == bound
    assert judged.flop_per_s == flop
    assert judged.device_busy_share == others.get("device_busy_share")
    fractions = (judged.compute_fraction, judged.memory_fraction_low, judged.memory_fraction_high)
    assert fractions == (pytest.approx((flop / 100, low / 10, high / 10)) if bound else (None, None, None))


RECORD: dict[str, Any] = {
    "run_id": "run-1",
    "status": "completed",
    "spec": {"model": "resnet18", "batch_size": 4, "precision": "fp32"},
    "timing": {"step_s": {"median": 2.0}, "data_wait_fraction": 0.0},
    "complexity": {"train_flop_per_step": 100, "bytes_per_step_lower": 1, "bytes_per_step_upper": 2},
    "ceilings": {"flop_per_s": {"fp32": {"median": 100.0}}, "bytes_per_s": {"copy": {"median": 10.0}}},
}


def read(document: dict[str, Any]) -> Record:
    return contract.read(document).record


def from_record(document: dict[str, Any]) -> Verdict | None:
    return verdict.from_record(read(document))


def test_the_roof_is_what_the_device_sustains() -> None:
    """The burst of 200 FLOP/s and 20 B/s falls to half, and the step is compared with that half."""
    slowed: dict[str, Any] = {
        "flop_per_s": {"fp32": {"median": 150.0, "burst": 200.0, "sustained": 100.0}},
        "bytes_per_s": {"copy": {"median": 18.0, "burst": 20.0, "sustained": 10.0}},
    }
    record = RECORD | {"ceilings": slowed}
    assert from_record(record) == from_record(RECORD)
    assert verdict.share_of_ceiling(read(record)) == 0.5
    assert MeasuredRate(median=150.0).roof_per_s == 150.0


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    change(record)
    return record


# --- reasons: a golden page

# Figures of a step of 11 FLOP/s and 1 B/s to 2 B/s, but for these.
STEPS: dict[str, dict[str, Any]] = {
    "waits for data": {"data_wait_fraction": 0.93},
    "an idle device": {"device_busy_share": 0.07},
    "an idle device whose operators are known": {"device_busy_share": 0.07, "running": "operators"},
    "compute": {"flop": 52},
    "compute, with counted bytes": {"flop": 52, "bytes_high": 1},
    "memory": {"bytes_low": 6, "bytes_high": 30},
    "far from both roofs": {},
    "far from both of the vendor's": {"roof": "peak", "bytes_high": 1},
    "bytes that are not known well enough": {"bytes_high": 6},
    "caches that hold the tensors": {"bytes_low": 20, "bytes_high": 60},
    "kernels alone": {"flop": 13, "bytes_low": 1.8, "bytes_high": 1.8, "kernels_alone": True, "roof": "peak"},
    "small kernels": {"device_busy_share": 0.83, "possible_causes": ["small kernels"], "bytes_high": 1},
    "more bytes than memory can move": {"bytes_low": 11, "bytes_high": 11},
    "unknown figures": {"flop": None},
}
BUSY_WHY = "the machine was busy: the samples got 0.5 of 2 CPUs, at the last of 3 attempts"
NO_BANDWIDTH = {"copy": BUSY_WHY}
OF_PROFILE = {"status": "completed", "kind": "torch"}
OF_NCU = {"kind": "ncu", "kernel_time_s_per_step": 0.14}


def record_of(**changes: Any) -> dict[str, Any]:
    """A step of 2 s, 100 FLOP and 1 B to 2 B below roofs of 100 FLOP/s and 10 B/s, changed; `a__b`: part `b` of `a`."""
    record = copy.deepcopy(RECORD)
    for name, value in changes.items():
        *parts, last = name.split("__")
        inner = record
        for part in parts:
            inner = inner[part]
        inner[last] = value
    return record


def on_cpus(used: float | None, waited: float | None, device: str = "cpu") -> dict[str, Any]:
    """A run on 2 threads."""
    record = copy.deepcopy(RECORD)
    record["spec"]["device"] = device
    record["environment"] = {"device": {"threads": 2}}
    record["timing"] |= {"cpus_used": used, "cpus_waited": waited}
    return record


def by_cpu_time(ceiling: float, low: float, high: float, **changes: Any) -> dict[str, Any]:
    """100 FLOP in a step of 2 s, of which 1 s is without waits for a CPU, and 10 B/s."""
    record = on_cpus(0.8, 0.8)
    record["complexity"] |= {"bytes_per_step_lower": low, "bytes_per_step_upper": high}
    record["ceilings"]["flop_per_s"]["fp32"]["median"] = ceiling
    return record | changes


def on_a_t4(**changes: Any) -> dict[str, Any]:
    """6.48 TFLOP in 2 s on a board whose vendor claims 8.1 TFLOP/s and 320 GB/s."""
    work = {"train_flop_per_step": 6.48e12, "bytes_per_step_lower": 3.2e9, "bytes_per_step_upper": 6.4e9}
    device = {"device": {"type": "cuda", "name": "Tesla T4", "memory_total_bytes": 15.6e9}}
    return copy.deepcopy(RECORD) | {"ceilings": None, "complexity": work, "environment": device} | changes


def traced(**changes: Any) -> dict[str, Any]:
    """A trace of 8.2 GFLOP in 4.43 ms, from another program."""
    profile = {**OF_PROFILE, "busy_s_per_step": 0.309e-3, "wall_s_per_step": 4.43e-3}
    work = {"train_flop_per_step": 8.2e9, "bytes_per_step_lower": 1e6, "bytes_per_step_upper": 2e6}
    parts = {"profile": profile, "complexity": work}
    for name, value in changes.items():
        parts[name] = parts[name] | value
    return on_a_t4(timing={}, imported={"kind": "torch"}, **parts)


def without_bandwidth(ceiling: float, device: str) -> dict[str, Any]:
    ceilings = {"flop_per_s": {"fp32": {"median": ceiling}}, "unavailable": NO_BANDWIDTH}
    return record_of(environment={"device": {"type": device}}, ceilings=ceilings)


WAITING = {"ceilings": None, "environment": {"device": {"threads": 1}}}
RECORDS: dict[str, dict[str, Any]] = {
    "half of the compute ceiling": record_of(),
    "no steps": record_of(timing__step_s=None),
    "no ceilings": record_of(ceilings=None),
    "no ceilings in a duel": record_of(ceilings=None, job={"name": "duel-1", "variant": "B"}),
    "no fp32 ceiling": record_of(ceilings__flop_per_s={}, ceilings__unavailable={"fp32": BUSY_WHY}),
    "50 FLOP/s above a ceiling of 31": record_of(ceilings__flop_per_s__fp32={"median": 31.0}),
    "waits for data without ceilings": record_of(ceilings=None, timing__data_wait_fraction=0.37),
    "no bytes": record_of(complexity__bytes_per_step_lower=None, complexity__bytes_per_step_upper="x"),
    # A byte in a step of 2 s: half of the roof of compute, and of a bandwidth of 1 B/s.
    **{
        f"no bandwidth of a {device}, ceiling {ceiling}": without_bandwidth(ceiling, device)
        for device in ("cpu", "cuda")
        for ceiling in (100.0, 102.0, 31.0)
    },
    "busy": on_cpus(1.0, 0.9),
    "a little busy": on_cpus(1.49, 0.17),
    # Two threads on one CPU wait for each other.
    "more threads than CPUs": on_cpus(0.8, 0.5)
    | {"environment": {"device": {"threads": 2}, "host": {"cpus_allowed": 1}}},
    # It got three quarters, or did not wait for the rest: one thread did most.
    "got three quarters": on_cpus(1.5, 0.5),
    "waited little": on_cpus(1.0, 0.1),
    # A run that sleeps waits for little, which is much of the little time in which it wants a CPU.
    "sleeps": on_cpus(0.04, 0.02),
    "sleeps and waits": on_cpus(0.04, 0.56),
    "a system that does not tell waits": on_cpus(1.0, None),
    "a system that tells nothing": on_cpus(None, None),
    # A GPU's host threads wait for the GPU.
    "a GPU's host": on_cpus(0.5, 0.5, device="cuda"),
    "by CPU time, 80 %": by_cpu_time(125.0, 1, 2),
    "by CPU time, 40 %": by_cpu_time(250.0, 1, 2),
    "by CPU time, 39 %": by_cpu_time(256.5, 1, 2),
    "by CPU time, memory 40 %": by_cpu_time(1e3, 4, 8),
    "by CPU time, memory 39 %": by_cpu_time(1e3, 3.9, 8),
    # Up to twice a roof, whose test is more disturbed than a step.
    "by CPU time, 200 %": by_cpu_time(50.0, 1, 2),
    "by CPU time, 204 %": by_cpu_time(49.0, 1, 2),
    "by CPU time, memory 200 %": by_cpu_time(1e3, 20, 30),
    "by CPU time, memory 201 %": by_cpu_time(1e3, 20.1, 30),
    "by CPU time, on a CPU": by_cpu_time(1e3, 1, 2, environment={"device": {"type": "cpu", "threads": 2}}),
    "a loader that sleeps on a busy machine": {**on_cpus(0.04, 0.56), **WAITING}
    | {"timing": on_cpus(0.04, 0.56)["timing"] | {"data_wait_fraction": 0.9}},
    "no steps on a busy machine": {**on_cpus(0.8, 1.2), "timing": {"cpus_used": 0.8, "cpus_waited": 1.2}},
    "the vendor's peak": on_a_t4(),
    "a profile of an idle device": on_a_t4(profile=OF_PROFILE | {"time_s_per_step": 0.14}),
    "a profile of a busy device": on_a_t4(profile=OF_PROFILE | {"time_s_per_step": 1.4}),
    # Kernels that overlap add up to more than the step, which says nothing.
    "a profile of kernels that overlap": on_a_t4(profile=OF_PROFILE | {"time_s_per_step": 3.0}),
    "a profile by ncu": on_a_t4(profile=OF_NCU | {"status": "completed"}),
    # A part of the kernels says nothing about gaps.
    "a partial profile": on_a_t4(profile=OF_NCU | {"status": "partial"}),
    "a profile without a backward pass": on_a_t4(
        profile=OF_NCU | {"status": "completed", "checks": {"backward": {"present": False}}}
    ),
    "a trace": traced(),
    "a trace without the time of a step": traced(profile={"wall_s_per_step": None}),
    "a trace with too much unattributed": traced(
        profile={"busy_s_per_step": 4e-3}, complexity={"unattributed_share": 0.3, "uncounted_share": 0.3}
    ),
}


def told(title: str, judged: Verdict | None) -> str:
    """A section of the golden page."""
    if judged is None:
        return f"## {title}\nno verdict\n\n"
    shares = (judged.compute_fraction, judged.memory_fraction_low, judged.memory_fraction_high)
    figures = ", ".join("-" if share is None else f"{share:.4g}" for share in shares)
    rate = None if judged.flop_per_s is None else float(f"{judged.flop_per_s:.4g}")
    idle = judged.device_busy_share if judged.device_busy_share is None else round(judged.device_busy_share, 4)
    cpu = judged.cpu_time_share if judged.cpu_time_share is None else round(judged.cpu_time_share, 4)
    facts = f"shares {figures}; {rate} FLOP/s; roof {judged.roof}; device busy {idle}; CPU time {cpu}"
    return f"## {title}\n{judged.bound}: {judged.why}\n{facts}\n{judged.busy or 'not busy'}\n\n"


def test_verdicts_in_words(golden: Callable[[str, str], None]) -> None:
    steps = {
        f"a step: {name}": decide(step(**{"flop": 11, "bytes_low": 1, "bytes_high": 2, **facts}))
        for name, facts in STEPS.items()
    }
    records = {name: from_record(document) for name, document in RECORDS.items()}
    golden("verdicts.txt", "".join(told(name, judged) for name, judged in (steps | records).items()))


# --- several precisions

OF_BOTH = {"fp32": {"median": 20.0}, "tf32": {"median": 160.0}, "amp": {"median": 320.0}}
# FLOP of a step by precision, the precision with most FLOP, and the FLOP/s at the roofs of `OF_BOTH`.
MIXED: dict[str, tuple[dict[str, float], str, float]] = {
    # 60 FLOP take 3 s, 40 take 0.25 s.
    "products in fp32, convolutions in tf32": ({"fp32": 60.0, "tf32": 40.0}, "fp32", 100 / 3.25),
    "some fp32 beside amp": ({"amp": 96.0, "fp32": 4.0}, "amp", 100 / 0.5),
    "next to no fp32": ({"tf32": 99.95, "fp32": 0.05}, "tf32", 160.0),
    "a precision without a roof": ({"tf32": 90.0, "fp64": 10.0}, "tf32", 160.0),
    "one": ({"tf32": 100.0, "fp32": 0.0}, "tf32", 160.0),
    "none counted": ({}, "amp", 320.0),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("factor", [None, 1e12], ids=["measured", "peak"])
def test_roof_of_several_precisions_is_what_they_take_one_after_the_other(
    name: str, factor: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    flop, precision, expected = MIXED[name]
    run = read(
        changed(
            lambda r: (
                r["spec"].update(precision=precision),
                r["complexity"].update(flop_by_precision=flop),
                r["ceilings"].update(flop_per_s=OF_BOTH if factor is None else None),
            )
        )
    )
    rows = [PeakRow(precision=of, dense=True, tflop_per_s=row["median"], source="") for of, row in OF_BOTH.items()]
    gpu = replace(peaks.named("A100 40 GB"), peak=tuple(rows))
    monkeypatch.setattr(peaks, "find_gpu", lambda *_, **__: None if factor is None else gpu)
    figures = verdict.figures_of(run)
    assert figures is not None
    assert figures.roof == ("measured" if factor is None else "peak")
    assert figures.roof_flop_per_s == pytest.approx(expected * (factor or 1.0))


def test_a_cpu_without_a_bandwidth_is_not_judged_by_the_peak_of_all_its_cores() -> None:
    judged = from_record(
        changed(
            lambda r: r.update(
                environment={"device": {"type": "cpu", "name": "Intel(R) Core(TM) i9-14900HX"}},
                ceilings={"flop_per_s": {"fp32": {"median": 100.0}}},
            )
        )
    )
    assert (judged.bound, judged.roof) == (Bound.COMPUTE, "measured")


@pytest.mark.parametrize(
    ("used", "waited", "mean_s", "workers", "share"),
    [
        # A step of 2 s that waits for a CPU in half of its time has 1 s left.
        (0.8, 0.8, 2.0, 0, 0.5),
        # Few steps that wait: the median step of 2 s has not waited, although the mean step of 4 s has.
        (0.8, 0.8, 4.0, 0, 1.0),
        (0.8, 0.8, None, 0, 0.5),
        # Other processes take a CPU from 90 % of the CPUs down; with data workers, from 75 % down.
        (1.79, 0.4, 2.0, 0, 1.79 / 2.19),
        (1.8, 0.4, 2.0, 0, None),
        (1.49, 0.4, 2.0, 2, 1.49 / 1.89),
        (1.5, 0.4, 2.0, 2, None),
        # Waits of less than a tenth of the time are normal.
        (1.0, 0.12, 2.0, 0, 1.0 / 1.12),
        (1.0, 0.11, 2.0, 0, None),
        (1.0, None, 2.0, 0, None),
    ],
)
def test_cpu_time_share_is_the_part_of_the_median_step_without_waits_for_a_cpu(
    used: float, waited: float | None, mean_s: float | None, workers: int, share: float | None
) -> None:
    record = on_cpus(used, waited)
    record["spec"]["workers"] = workers
    record["timing"]["step_s"] |= {"mean": mean_s}
    assert from_record(record).cpu_time_share == (share and pytest.approx(share))


@pytest.mark.parametrize(("cpus", "share"), [(1.79, 1.0), (1.8, None), (None, None)])
@pytest.mark.parametrize("roof", ["flop_per_s/fp32", "bytes_per_s/copy"])
def test_limit_by_a_roof_that_was_measured_on_a_busy_machine_is_probable(
    roof: str, cpus: float | None, share: float | None
) -> None:
    record, (kind, name) = on_cpus(1.95, 0.0), roof.split("/")
    record["ceilings"][kind][name] |= {"cpus": cpus, "cpus_wanted": 2.0}
    judged = from_record(record)
    assert (judged.bound, judged.compute_fraction, judged.cpu_time_share) == (Bound.COMPUTE, 0.5, share)
    assert judged.why.startswith("probably, by CPU time on a busy machine: ") == (share is not None)


def faulting(**facts: Any) -> dict[str, Any]:
    """A CPU run of 10 steps in 2 s, with 20,000 page faults in each step, which take 20 % of its CPU time."""
    record = on_cpus(2.0, 0.0)
    record["timing"] |= {"measured_s": 2.0, "cpus_in_kernel": 0.4, "page_faults_per_s": 1e5}
    record["timing"]["step_s"] |= {"n": 10}
    for name, value in facts.items():
        record["spec" if name in ("device", "workers") else "timing"][name] = value
    return record


def test_page_faults_of_a_cpu_run() -> None:
    run = read(faulting())
    assert verdict.page_faults(run) == verdict.PageFaults(per_step=20_000, share=0.19)
    cure = "on Linux, MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=4294967296 prevent them"
    assert verdict.faults_note(run) == [f"page faults take 2 % of the time or more; {cure}"]


def test_other_work_matters_more_than_page_faults() -> None:
    busy = read(faulting(cpus_used=1.0, cpus_waited=1.0))
    assert verdict.page_faults(busy)
    assert verdict.faults_note(busy) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"cpus_in_kernel": 0.05},
        # The kernel's time has another cause: 40 µs for each page fault.
        {"page_faults_per_s": 1e4},
        {"page_faults_per_s": None},
        {"cpus_in_kernel": None},
        {"step_s": None},
        {"device": "cuda"},
        # Each batch of a worker causes page faults too.
        {"workers": 2},
    ],
)
def test_page_faults_that_are_few_or_unknown(facts: dict[str, Any]) -> None:
    assert verdict.page_faults(read(faulting(**facts))) is None


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        ([None, None], None),
        (["x"], "on a busy machine: x"),
        ([None, "x"], "1 of 2 runs on a busy machine: x"),
        (["x", "y", None], "2 of 3 runs on a busy machine, of the first: x"),
    ],
)
def test_how_many_runs_were_on_a_busy_machine(busy: list[str | None], words: str | None) -> None:
    assert busy_sentence(busy) == words


@pytest.mark.parametrize(
    ("device", "flags", "precision", "known"),
    [
        ("cpu", ["avx2"], "bf16", ["this CPU has no instructions for bf16 and emulates it"]),
        ("cpu", ["avx2"], "amp", ["this CPU has no instructions for fp16 and emulates it"]),
        ("cpu", ["avx2", "avx512_bf16"], "bf16", []),
        ("cpu", ["avx2"], "fp32", []),
        ("cpu", [], "bf16", []),
        ("cuda", ["avx2"], "bf16", ["gaps between kernels are unknown (--profile torch times them)"]),
    ],
)
def test_what_is_known_of_a_step_far_from_both_roofs(
    device: str, flags: list[str], precision: str, known: list[str]
) -> None:
    record = copy.deepcopy(RECORD) | {"environment": {"device": {"type": device}, "host": {"cpu_flags": flags}}}
    record["spec"]["precision"] = precision
    assert list(verdict.possible_causes(read(record))) == known


@pytest.mark.parametrize(
    ("seconds", "words"), [(6e-3, ["small kernels: 1000 in a step, 6 µs each on average"]), (1e-2, [])]
)
def test_small_kernels(seconds: float, words: list[str]) -> None:
    profile = {"status": "completed", "kind": "torch", "calls_per_step": 1000, "time_s_per_step": seconds}
    assert list(verdict.possible_causes(read(on_a_t4(profile=profile)))) == words
