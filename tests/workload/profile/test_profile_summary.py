"""Figures of a step, from hand-made kernels."""

from dataclasses import replace
from typing import Any

import pytest

from workload.profile import summary
from workload.profile.metrics import Kernel
from workload.profile.summary import label

ZERO = {f"{kind}_{op}": 0.0 for kind in ("fp64", "fp32", "fp16") for op in ("add", "mul", "fma")}


def kernel(marks: str | None, name: str = "k", *, passes: float = 4, **values: float | None) -> Kernel:
    base: dict[str, float | None] = {
        **ZERO,
        "tensor_instructions": 0,
        "tensor_flop_tf32": 0,
        "time_s": 1e-3,
        "dram_bytes": 100,
    }
    return Kernel(process_id="1", index="0", name=name, marks=marks, passes=passes, values=base | values)


def mark(text: str) -> str:
    return f'7  "<default domain>:{text}:none:none:none:none:none:none" '


STEP = [
    kernel(mark("step 0 data"), "copy"),
    kernel(mark("step 0 forward"), "conv", fp32_fma=500, time_s=2e-3),
    kernel(mark("step 0 backward"), "dgrad", fp32_fma=1000, time_s=3e-3),
    kernel(mark("step 0 optimizer"), "sgd", fp32_add=100, dram_bytes=700),
]


def as_step(kernels: list[Kernel], number: int) -> list[Kernel]:
    return [replace(each, marks=(each.marks or "").replace("step 0", f"step {number}")) for each in kernels]


def labelled(kernels: list[Kernel]) -> summary.Labelled:
    found = label(kernels)
    assert found is not None
    return found


def test_kernels_are_told_apart_by_their_ranges() -> None:
    found = labelled([kernel(mark("calibration fp32")), *STEP, *as_step(STEP, 10), kernel("")])
    assert sorted(found.steps) == [0, 10]
    assert list(found.steps[10]) == ["data", "forward", "backward", "optimizer"]
    assert [len(found.calibrations["fp32"]), len(found.outside)] == [1, 1]
    assert label([kernel(None), *STEP]) is None, "without the column nothing is guessed"


def test_figures_are_means_over_steps() -> None:
    found = summary.per_step(labelled([*STEP, *as_step(STEP, 1)]))
    assert found["steps_profiled"] == 2
    assert found["kernels_per_step"] == 4
    # 2*500 forward + 2*1000 backward + 100 additions of the optimizer.
    assert found["flop_per_step"] == 3100
    assert found["flop_by_class"] == {"fp64": 0, "fp32": 3100, "fp16": 0, "tensor_tf32": 0}
    assert found["tensor_flop_per_step"] == 0
    assert found["kernel_time_s_per_step"] == pytest.approx(7e-3)
    assert found["dram_bytes_per_step"] == 1000
    assert found["intensity_flop_per_byte"] == pytest.approx(3.1), "sum over sum, no mean of intensities"
    assert found["l2_bytes_per_step"] is None, "not collected is not 0"
    assert not found["flop_is_lower_bound"]
    assert found["by_part"]["backward"] == {
        "kernels_per_step": 1,
        "kernel_time_s_per_step": pytest.approx(3e-3),
        "flop_per_step": 2000,
        "dram_bytes_per_step": 100,
    }
    assert found["top_kernels"][0] == {
        "name": "dgrad",
        "calls_per_step": 1,
        "time_s_per_step": pytest.approx(3e-3),
        "share": pytest.approx(3 / 7),
    }


def test_last_step_counts_only_if_it_came_to_its_end() -> None:
    found = labelled([*STEP, *as_step(STEP[:2], 1)])
    assert sorted(found.complete(finished=False).steps) == [0]
    assert sorted(found.complete(finished=True).steps) == [0, 1]
    assert labelled([]).complete(finished=False).steps == {}


def test_one_unknown_value_makes_the_sum_unknown() -> None:
    found = summary.per_step(labelled([*STEP, kernel(mark("step 0 forward"), dram_bytes=None, fp32_mul=None)]))
    unknown = [found[name] for name in ("dram_bytes_per_step", "flop_per_step", "intensity_flop_per_byte")]
    assert (unknown, found["flop_by_class"]["fp64"]) == ([None] * 3, 0)
    no_bytes = summary.per_step(labelled([kernel(mark("step 0 forward"), dram_bytes=0, fp32_add=5)]))
    assert no_bytes["intensity_flop_per_byte"] is None


@pytest.mark.parametrize(
    ("values", "bound", "tensor_flop"),
    [
        ({"tensor_pipe_instructions": 8, "hfma2_instructions": 8, "tensor_flop_tf32": 0}, None, 0),
        ({"tensor_instructions": 8, "tensor_flop_tf32": 4096}, None, 4096),
        ({"tensor_instructions": 0, "tensor_flop_tf32": 0}, None, 0),
        ({"tensor_instructions": 8, "tensor_flop_tf32": 0}, "whose FLOP no requested metric counts: k", 0),
    ],
)
def test_hidden_tensor_work_makes_a_lower_bound(
    values: dict[str, float], bound: str | None, tensor_flop: float
) -> None:
    found = summary.per_step(labelled([kernel(mark("step 0 forward"), **values)]))
    assert found["flop_is_lower_bound"] is (bound is not None)
    assert found["tensor_flop_per_step"] == tensor_flop
    if bound:
        assert found["lower_bound_reason"] == f"1 kernel launch uses tensor cores, {bound}"


@pytest.mark.parametrize(
    ("instructions", "tensor_flop", "is_bound"), [(0, 0.0, False), (5, None, True), (None, None, False)]
)
def test_without_tensor_metrics_they_are_unavailable_or_certainly_none(
    instructions: float | None, tensor_flop: float | None, is_bound: bool
) -> None:
    """A V100 in fp32 has no tensor metrics, nor has an ncu before 2023.2."""
    counted = kernel(mark("step 0 forward"), tensor_instructions=instructions)
    uncounted = replace(
        counted, values={role: value for role, value in counted.values.items() if role != "tensor_flop_tf32"}
    )
    found = summary.per_step(labelled([uncounted]))
    assert found["tensor_flop_per_step"] == tensor_flop
    assert found["flop_is_lower_bound"] is is_bound
    if is_bound:
        assert "this ncu has no metric to count" in found["lower_bound_reason"]


@pytest.mark.parametrize(
    ("fma", "ratio", "verified"),
    [(500, 1.0, True), (489, 0.978, False), (490, 0.98, True), (550, 1.10, True), (551, 1.102, False), (0, 0, False)],
)
def test_calibration(fma: float, ratio: float, verified: bool) -> None:
    known = {"fp32": 1000, "fp16": 1000}
    found = summary.calibrations(labelled([kernel(mark("calibration fp32"), fp32_fma=fma)]), known)
    assert found["fp32"] == {"ratio": pytest.approx(ratio), "verified": verified}
    assert found["fp16"] == {"ratio": None, "verified": False}, "it has no kernels"


# A range of only the thread that called `backward` has few kernels: autograd launches from another thread.
LITTLE = kernel(mark("step 0 backward"), "mul", fp32_mul=10)


@pytest.mark.parametrize(
    ("kernels", "present", "ratio"),
    [
        (STEP, True, 2.0),
        ([STEP[0], STEP[1], STEP[3]], False, None),
        ([STEP[1]], False, None),
        ([STEP[1], LITTLE], False, pytest.approx(0.01)),
    ],
)
def test_backward_pass_is_there(kernels: list[Kernel], present: bool, ratio: float | None) -> None:
    found = summary.backward(labelled(kernels))
    assert (found["present"], found["flop_over_forward"]) == (present, ratio)


@pytest.mark.parametrize(
    ("counted", "fp16", "bound", "has_backward", "cause"),
    [
        (700, 0, False, True, None),
        (1500, 900, False, True, None),
        (699, 0, False, True, "Winograd or FFT kernels"),
        (300, 0, True, True, "hidden tensor operations: because"),
        (300, 0, True, False, "the backward pass is missing"),
        (1501, 299, False, True, "kernels that compute more than the model needs"),
        (1501, None, False, True, "kernels that compute more than the model needs"),
        (1501, 301, False, True, "HFMA2.MMA instructions, which build constants"),
        (None, None, False, True, None),
    ],
)
def test_counted_against_the_model(
    counted: float | None, fp16: float | None, bound: bool, has_backward: bool, cause: str | None
) -> None:
    figures: dict[str, Any] = {
        "flop_per_step": counted,
        "flop_by_class": {"fp16": fp16, "fp32": None},
        "flop_is_lower_bound": bound,
        "lower_bound_reason": "because" if bound else None,
    }
    found = summary.model_flop(figures, 1000, has_backward=has_backward)
    assert found["flagged"] is (cause is not None)
    assert (found["likely_cause"] or "").startswith(cause or "")
    assert (found["likely_cause"] is None) is (cause is None)
    assert found["counted_over_model"] == (None if counted is None else counted / 1000)
    assert summary.model_flop(figures, None, has_backward=has_backward)["counted_over_model"] is None


def test_step_bytes_are_shared_out() -> None:
    whole_range = kernel("", "range", dram_bytes=4000, dram_read_bytes=3000, time_s=0.4)
    found = summary.step_bytes([whole_range], 4)
    assert (found["dram_bytes_per_step"], found["dram_read_bytes_per_step"]) == (1000, 750)
    assert found["dram_write_bytes_per_step"] is None


def test_throughput_is_weighted_by_time() -> None:
    found = summary.throughput(
        labelled(
            [
                kernel(mark("step 0 forward"), sm_percent=90, memory_percent=10, time_s=3e-3),
                kernel(mark("step 0 backward"), sm_percent=10, memory_percent=50, time_s=1e-3, passes=8),
                kernel(mark("calibration fp32"), sm_percent=99, memory_percent=99, time_s=1),
            ]
        )
    )
    # By hand: 3 ms of 90 % and 1 ms of 10 %; 3 ms of 10 % and 1 ms of 50 %.
    assert found["sm_percent_time_weighted"] == pytest.approx(70)
    assert found["memory_percent_time_weighted"] == pytest.approx(20)
    assert found["dram_percent_time_weighted"] is None
    assert (found["kernels"], found["passes"]) == (2, 8)
