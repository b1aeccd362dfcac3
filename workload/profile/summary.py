"""Figures of a step from its kernels, and checks of how far the figures can be trusted. Pure functions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workload.contract.vocabulary import (
    CALIBRATED_FROM,
    CALIBRATED_TO,
    CALIBRATION_RANGE,
    MODEL_RATIO_FROM,
    MODEL_RATIO_TO,
    STEP_RANGE,
)
from workload.profile import torch_pass
from workload.profile.metrics import FLOATS, TENSOR_PREFIX, Kernel

FORWARD, BACKWARD = "forward", "backward"

# Below this ratio of FLOP, the backward pass counts as missing from the profile. A ratio of about 2 is usual: a
# backward pass has two products for each product of the forward pass, one less in the first layer. Algorithms
# that save FLOP, such as Winograd's convolution, lower the ratio further.
LEAST_BACKWARD_OVER_FORWARD = 0.5
# fp16 work outside tensor cores is element-wise, a few per cent of a step. From this share of the step's FLOP on, the
# counted fp16 operations are most likely instructions that build constants (HFMA2.MMA), which are no work.
FP16_IS_CONSTANTS_FROM = 0.2

TOTALS = ("dram_bytes", "dram_read_bytes", "dram_write_bytes", "l2_bytes", "l1_bytes")
PERCENTAGES = ("sm_percent", "memory_percent", "dram_percent")


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Kernels of a profile, grouped by NVTX range: the named span of the profiled process that launched them.

    `steps`: by number of the step, then by its part. `calibrations`: by element type; a calibration is a matrix product
    of known size that checks the counters. `outside`: kernels outside of all ranges.
    """

    steps: Mapping[int, Mapping[str, Sequence[Kernel]]]
    calibrations: Mapping[str, Sequence[Kernel]]
    outside: Sequence[Kernel]

    @property
    def kernels_of_steps(self) -> list[Kernel]:
        """Kernels of all parts of all steps."""
        return [kernel for parts in self.steps.values() for kernels in parts.values() for kernel in kernels]

    def complete(self, *, finished: bool) -> "Labelled":
        """Drop the last step unless the process `finished`, because the profile may have ended within that step."""
        if finished or not self.steps:
            return self
        last = max(self.steps)
        kept = {number: parts for number, parts in self.steps.items() if number != last}
        return Labelled(steps=kept, calibrations=self.calibrations, outside=self.outside)


def label(kernels: Sequence[Kernel]) -> Labelled | None:
    """Group kernels by the range around each launch; None if the table has no ranges."""
    if any(kernel.marks is None for kernel in kernels):
        return None
    steps: dict[int, dict[str, list[Kernel]]] = {}
    calibrations: dict[str, list[Kernel]] = defaultdict(list)
    outside: list[Kernel] = []
    for kernel in kernels:
        if step := STEP_RANGE.search(kernel.marks or ""):
            steps.setdefault(int(step[1]), {}).setdefault(step[2], []).append(kernel)
        elif calibration := CALIBRATION_RANGE.search(kernel.marks or ""):
            calibrations[calibration[1]].append(kernel)
        else:
            outside.append(kernel)
    return Labelled(steps=steps, calibrations=calibrations, outside=outside)


def per_step(labelled: Labelled) -> dict[str, Any]:
    """Means over the steps: figures, parts, and the kernels with the most time."""
    number = len(labelled.steps)
    every_kernel = labelled.kernels_of_steps
    by_part: dict[str, list[Kernel]] = defaultdict(list)
    for parts in labelled.steps.values():
        for part, kernels in parts.items():
            by_part[part] += kernels
    return {
        "steps_profiled": number,
        **figures(every_kernel, number),
        "by_part": {part: _part(kernels, number) for part, kernels in by_part.items()},
        "top_kernels": top(every_kernel, number),
    }


def figures(kernels: Sequence[Kernel], steps: int) -> dict[str, Any]:
    """Sums per step; a sum is None if the figure was not counted for every kernel."""
    flop_by_class = _flop_by_class(kernels, steps)
    flop = _total([flop_by_class[kind] for kind in flop_by_class])
    sums = {f"{role}_per_step": _sum(kernels, role, steps) for role in TOTALS}
    dram_bytes = sums["dram_bytes_per_step"]
    hidden = hidden_tensor_work(kernels)
    return {
        "kernels_per_step": len(kernels) / steps,
        "kernel_time_s_per_step": _sum(kernels, "time_s", steps),
        "flop_per_step": flop,
        "flop_by_class": flop_by_class,
        "tensor_flop_per_step": _tensor_flop(kernels, flop_by_class),
        "flop_is_lower_bound": hidden is not None,
        "lower_bound_reason": hidden,
        **sums,
        "intensity_flop_per_byte": flop / dram_bytes if flop is not None and dram_bytes else None,
    }


def _part(kernels: Sequence[Kernel], steps: int) -> dict[str, Any]:
    return {
        "kernels_per_step": len(kernels) / steps,
        "kernel_time_s_per_step": _sum(kernels, "time_s", steps),
        "flop_per_step": _flop(kernels, steps),
        "dram_bytes_per_step": _sum(kernels, "dram_bytes", steps),
    }


def _sum(kernels: Sequence[Kernel], role: str, steps: int) -> float | None:
    total = _total([kernel.values.get(role) for kernel in kernels])
    return None if total is None else total / steps


def _total(values: Sequence[float | None]) -> float | None:
    """Sum of the values; None if any value is unknown, because the sum would be too low."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _flop(kernels: Sequence[Kernel], steps: int) -> float | None:
    return _total(list(_flop_by_class(kernels, steps).values()))


def _flop_by_class(kernels: Sequence[Kernel], steps: int) -> dict[str, float | None]:
    columns: dict[str, list[float | None]] = {kind: [] for kind in FLOATS}
    for kernel in kernels:
        for kind, flop in kernel.flop_by_class.items():
            columns.setdefault(kind, []).append(flop)
    totals = {kind: _total(column) for kind, column in columns.items()}
    return {kind: None if total is None else total / steps for kind, total in totals.items()}


def _tensor_flop(kernels: Sequence[Kernel], flop_by_class: Mapping[str, float | None]) -> float | None:
    counted = [flop for kind, flop in flop_by_class.items() if kind.startswith("tensor_")]
    if counted:
        return _total(counted)
    # No tensor FLOP were collected: they are 0 only if the counter of tensor instructions shows none.
    idle = all(kernel.tensor_products == 0 for kernel in kernels)
    return 0.0 if kernels and idle else None


def hidden_tensor_work(kernels: Sequence[Kernel]) -> str | None:
    """Reason why the counted FLOP are too few: kernels use tensor cores, whose FLOP were not counted. Else None."""
    hidden = [kernel for kernel in kernels if kernel.uses_tensor_cores and kernel.tensor_flop == 0]
    if not hidden:
        return None
    is_requested = any(role.startswith(TENSOR_PREFIX) for kernel in hidden for role in kernel.values)
    what = "no requested metric counts" if is_requested else "this ncu has no metric to count"
    number = f"{len(hidden)} kernel launches use" if len(hidden) > 1 else "1 kernel launch uses"
    return f"{number} tensor cores, whose FLOP {what}: {hidden[0].name[:80]}"


def top(kernels: Sequence[Kernel], steps: int) -> list[dict[str, Any]]:
    """Kernel names with the most total time: their calls and seconds per step, and their share of the time."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        by_name[kernel.name].append(kernel.values.get("time_s") or 0.0)
    return torch_pass.top(torch_pass.rows_of(by_name), steps)


# --- checks


def calibrations(labelled: Labelled, known_flop: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Counted FLOP of a matrix product of known size, by type, compared with the known FLOP."""
    results = {}
    for kind, known in known_flop.items():
        counted = _flop(labelled.calibrations.get(kind, ()), 1)
        ratio = None if counted is None else counted / known
        results[kind] = {
            "ratio": ratio,
            "verified": ratio is not None and CALIBRATED_FROM <= ratio <= CALIBRATED_TO,
        }
    return results


def backward(labelled: Labelled) -> dict[str, Any]:
    """Check that the profile has the kernels of the backward pass, which another thread launches."""
    number = len(labelled.steps)
    parts = {
        part: [kernel for step in labelled.steps.values() for kernel in step.get(part, ())]
        for part in (FORWARD, BACKWARD)
    }
    forward_flop, backward_flop = (_flop(parts[part], number) for part in (FORWARD, BACKWARD))
    ratio = backward_flop / forward_flop if backward_flop is not None and forward_flop else None
    return {
        "kernels_per_step": len(parts[BACKWARD]) / number,
        "flop_over_forward": ratio,
        "present": bool(parts[BACKWARD]) and (ratio is None or ratio >= LEAST_BACKWARD_OVER_FORWARD),
    }


def model_flop(figure: Mapping[str, Any], model_flop_per_step: float | None, *, has_backward: bool) -> dict[str, Any]:
    """Counted FLOP compared with those of the model's formulas; with a likely cause if the ratio is unusual."""
    counted = figure["flop_per_step"]
    ratio = counted / model_flop_per_step if counted is not None and model_flop_per_step else None
    flagged = ratio is not None and not MODEL_RATIO_FROM <= ratio <= MODEL_RATIO_TO
    too_few = ratio is not None and ratio < MODEL_RATIO_FROM
    cause = _likely_cause(figure, too_few=too_few, has_backward=has_backward) if flagged else None
    return {
        "counted_over_model": ratio,
        "flagged": flagged,
        "likely_cause": cause,
    }


def _likely_cause(figure: Mapping[str, Any], *, too_few: bool, has_backward: bool) -> str:
    if not too_few:
        fp16 = figure["flop_by_class"].get("fp16") or 0.0
        if fp16 >= FP16_IS_CONSTANTS_FROM * figure["flop_per_step"]:
            return "HFMA2.MMA instructions, which build constants on an A100 or H100 and may count as fp16 FLOP"
        return "kernels that compute more than the model needs: padded tiles, recomputation, element-wise work"
    if not has_backward:
        return "the backward pass is missing from the profile"
    if figure["flop_is_lower_bound"]:
        return f"hidden tensor operations: {figure['lower_bound_reason']}"
    return "Winograd or FFT kernels, which execute fewer FLOP than the formula counts"


# --- further runs


def step_bytes(kernels: Sequence[Kernel], steps: int) -> dict[str, Any]:
    """Bytes per step, from a single row for the range of all steps."""
    return {f"{role}_per_step": _sum(kernels, role, steps) for role in TOTALS}


def throughput(labelled: Labelled) -> dict[str, Any]:
    """Use of SMs, memory and DRAM in per cent of peak: means over the kernels, weighted by each kernel's time."""
    kernels = labelled.kernels_of_steps
    return {f"{role}_time_weighted": _weighted(kernels, role) for role in PERCENTAGES} | {
        "kernels": len(kernels),
        "passes": passes(kernels),
    }


def _weighted(kernels: Sequence[Kernel], role: str) -> float | None:
    pairs = [(kernel.values.get(role), kernel.values.get("time_s")) for kernel in kernels]
    known = [(value, time_s) for value, time_s in pairs if value is not None and time_s is not None]
    total_s = sum(time_s for _, time_s in known)
    if len(known) < len(pairs) or not total_s:
        return None
    return sum(value * time_s for value, time_s in known) / total_s


def passes(kernels: Sequence[Kernel]) -> float | None:
    """Largest number of passes that ncu took for a kernel; None if unknown."""
    return max((kernel.passes for kernel in kernels if kernel.passes is not None), default=None)
