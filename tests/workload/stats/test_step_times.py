"""Step times on GPUs that were not run: the rule by hand, and its coverage on the published steps."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest

from workload.contract import peaks
from workload.contract.peaks import Gpu
from workload.contract.record import ComplexityRecord, Record, Spec, Status, StepSeconds, Timing
from workload.contract.record_sections import DeviceFacts, Environment
from workload.stats import step_times
from workload.stats.step_times import Expected, MeasuredStep, Step, expected, factor, measured, published, step_of

T4, L4, PCIE = (peaks.named(name) for name in ("T4", "L4", "V100 PCIe"))
# On a T4: 0.5 s of 8.1 TFLOP/s, and 0.2 to 0.4 s of 320 GB/s; modelled: 0.5 s + 1.5 x 0.4 s.
STEP = Step(model="train.py", precision="fp32", flop=4.05e12, bytes_lower=64e9, bytes_upper=128e9)
MODELLED_S = {"T4": 1.1, "L4": 4.05 / 30.3 + 1.5 * 128 / 300, "V100 PCIe": 4.05 / 14 + 1.5 * 128 / 900}


def took(times: float, gpu: Gpu = L4, step: Step = STEP) -> MeasuredStep:
    """The step in `times` the time that the published steps let expect."""
    return MeasuredStep(gpu=gpu, step=step, step_s=times * PUBLISHED * step_times.modelled_s(step, gpu))


PUBLISHED = exp(factor(published()))


def width(found: Expected) -> float:
    assert found.low_s
    assert found.high_s
    return found.high_s / found.low_s


@pytest.mark.parametrize("gpu", [T4, L4, PCIE])
def test_modelled_time_is_the_sum_of_flop_and_bytes(gpu: Gpu) -> None:
    assert step_times.modelled_s(STEP, gpu) == pytest.approx(MODELLED_S[gpu.gpu])


@pytest.mark.parametrize(
    ("rows", "near", "times"),
    [
        ([2, 2, 2, 8], [], 4),  # a group for each model and GPU: 2, 2 and 8 on the T4, whose median is 2; 8 on the L4
        ([2, 2, 2, 8], [16], 8),  # half way on the logarithms: the root of 4 x 16
    ],
)
def test_factor_is_the_median_over_models_on_gpus_half_way_to_the_nearest(
    rows: Sequence[float], near: Sequence[float], times: float
) -> None:
    steps = [MeasuredStep(gpu=T4, step=STEP, step_s=1.1 * each) for each in rows]
    steps[3] = replace(steps[3], gpu=L4, step_s=8 * MODELLED_S["L4"])
    around = [MeasuredStep(gpu=T4, step=STEP, step_s=1.1 * each) for each in near]
    assert factor(steps, around) == pytest.approx(log(times))


def test_gpu_never_seen_has_the_factor_of_the_published_steps() -> None:
    found = expected(STEP, PCIE)
    assert (found.roof_s, found.value_s) == pytest.approx((4.05 / 14, PUBLISHED * MODELLED_S["V100 PCIe"]))
    assert found.why == "from 68 published steps"
    assert width(found) == pytest.approx(2.19, abs=0.005)


def test_step_measured_on_another_gpu_moves_the_factor_half_way() -> None:
    found = expected(STEP, PCIE, [took(1.21)])
    assert found.value_s == pytest.approx(1.1 * PUBLISHED * MODELLED_S["V100 PCIe"])
    assert found.why == "from train.py on L4 and 68 published steps"


def test_steps_on_the_gpu_move_the_factor_and_narrow_the_interval() -> None:
    found, unseen = expected(STEP, T4), expected(STEP, PCIE)
    on_t4 = factor([one for one in published() if one.gpu == T4])
    assert found.value_s == pytest.approx(1.1 * exp((on_t4 + log(PUBLISHED)) / 2))
    assert found.why == "from resnet50 and mobilenet_v2 on T4 and 68 published steps"
    assert width(found) < width(unseen)


def test_step_measured_on_the_gpu_in_another_configuration_gives_its_own_factor() -> None:
    half = replace(STEP, flop=2.025e12, bytes_lower=32e9, bytes_upper=64e9)
    found = expected(half, PCIE, [took(1.2, PCIE)])
    assert found.value_s == pytest.approx(0.6 * PUBLISHED * MODELLED_S["V100 PCIe"])
    assert found.why == "from train.py on V100 PCIe"


def test_step_measured_on_the_gpu_is_returned() -> None:
    # Operations of a GPU and of a CPU differ a little in bytes, and hardly in FLOP.
    ran = replace(STEP, flop=4.06e12, bytes_upper=120e9)
    known = [MeasuredStep(gpu=T4, step=ran, step_s=3.0, low_s=2.9, high_s=3.3)]
    found = expected(STEP, T4, known)
    assert (found.value_s, found.low_s, found.high_s, found.why) == (3.0, 2.9, 3.3, "measured on T4")


# Facts of the step, GPU, known steps; least time, and why there is no interval.
REFUSED: dict[str, tuple[dict[str, Any], Gpu, list[MeasuredStep], float | None, str]] = {
    "no units": ({"precision": "bf16"}, T4, [], None, "T4 has no units for bf16"),
    "no precision": ({"precision": None}, T4, [], None, "the precision is unknown"),
    "several devices": ({"devices": 2}, T4, [], None, "a run of several devices says nothing about one"),
    "no FLOP": ({"flop": None}, T4, [], None, "no run has the FLOP and bytes of its step"),
    "no bytes": ({"bytes_upper": None}, T4, [], None, "no run has the FLOP and bytes of its step"),
    "unknown operations": ({"unknown_share": 0.06}, T4, [], None, "FLOP and bytes of 6 % of the step's time"),
    "compiled": ({"is_compiled": True}, T4, [], 0.5, "no published step is compiled"),
    "intensity": ({"flop": 4.05e13}, T4, [], 5.0, "no known step has 316 FLOP per byte, but 4 to 133"),
    "short": (
        {"flop": 4.05e10, "bytes_lower": 0.64e9, "bytes_upper": 1.28e9}, T4, [], 0.005, "no known step is so short"
    ),
    "unlike the published": ({}, PCIE, [took(3)], 4.05 / 14, "on L4 the step took 3 times as long as published steps"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_steps_unlike_the_known_ones_have_no_interval(case: str) -> None:
    facts, gpu, known, roof_s, why = REFUSED[case]
    found = expected(replace(STEP, **facts), gpu, known)
    assert found.roof_s == (None if roof_s is None else pytest.approx(roof_s))
    assert (found.value_s, found.low_s, found.high_s) == (None, None, None)
    assert found.why.startswith(why)


def test_gpu_without_tf32_computes_in_fp32() -> None:
    assert expected(replace(STEP, precision="tf32"), T4).roof_s == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("case", "share", "number"),
    [("GPU never seen", 0.88, 68), ("model never seen", 0.88, 68), ("model not seen on this GPU", 0.88, 31)],
)
def test_intervals_have_what_was_held_out(case: str, share: float, number: int) -> None:
    from benchmarks.step_times import held_out

    inside, widths = zip(*held_out(case), strict=True)
    assert len(inside) == number
    assert sum(inside) / number >= share
    assert max(widths) < 2.5


def record(**facts: Any) -> Record:
    device = DeviceFacts(type="cuda", name="Tesla T4", memory_total_bytes=15.8e9)
    work = ComplexityRecord(
        train_flop_per_step=4.05e12, bytes_per_step_lower=64e9, bytes_per_step_upper=128e9, unattributed_share=0.01
    )
    times = StepSeconds(median=3.0, p5=2.9, p95=3.3)
    made = Record(
        run_id="a",
        status=Status.COMPLETED,
        spec=Spec(model="train.py", batch_size=64, precision="fp32"),
        environment=Environment(device=device),
        complexity=work,
        timing=Timing(step_s=times),
    )
    return replace(made, **facts)


def test_runs_on_known_gpus_are_measured_steps() -> None:
    step = replace(STEP, unknown_share=0.01)
    assert step_of(record()) == step
    assert measured([record()]) == [MeasuredStep(gpu=T4, step=step, step_s=3.0, low_s=2.9, high_s=3.3)]


@pytest.mark.parametrize(
    "facts",
    [
        {"status": Status.FAILED},
        {"complexity": None},
        {"timing": Timing()},
        {"environment": Environment(device=DeviceFacts(type="cpu", name="Tesla T4"))},
        {"environment": Environment(device=DeviceFacts(type="cuda", name="GPU of 2031"))},
        {"spec": Spec(model="train.py", batch_size=64, precision="bf16")},
        {"spec": Spec(model="train.py", batch_size=64, precision="fp32", devices=2)},
    ],
)
def test_other_runs_are_none(facts: dict[str, Any]) -> None:
    assert measured([record(**facts)]) == []
