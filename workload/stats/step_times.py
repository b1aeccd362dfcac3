"""Time of a training step on a GPU that was not run: a 90 % interval, or only the bound of the GPU's peaks.

The rule: seconds of the FLOP at the peak plus `PASSES` times those of the bytes at the bandwidth, times a factor. The
factor is the median over published steps of eager PyTorch; if steps on this GPU or of this script are known, it is half
way (in logarithms) between that median and theirs. The interval is the spread of the errors that this rule makes for
published steps on a GPU, or of a model on a GPU, that it does not know. `benchmarks/step_times.py` measures it on steps
that were held out with all that belongs to them: on GPUs never seen, 94 % are inside intervals with high / low of 2.3;
of models never seen, 91 %, 2.0; of a model not seen on a known GPU, 90 %, 2.0; of a program timed on another GPU, 93 %,
2.2. By FLOP alone, high / low is 20 to 74; by the longer of both times, 81 % to 87 % are inside 2.2 to 2.4.

No published step is compiled, or shorter than 0.06 s, where starting the kernels may take longer than their work. Steps
unlike the known ones have no interval. Winograd's convolutions in fp32 need fewer FLOP: a step may beat the bound.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, isclose, log
from pathlib import Path
from statistics import median, quantiles

from workload.contract import peaks
from workload.contract.peaks import Gpu, PeakRow
from workload.contract.record import ComplexityRecord, Record, Status
from workload.contract.spec import Device, Precision
from workload.contract.text import counted, percent
from workload.contract.verdict import MOST_UNATTRIBUTED

# PyTorch's kernels reach about two thirds of the bandwidth, and eager operations move the upper bound of bytes.
PASSES = 1.5
# Percentiles of the errors. From 5 to 95, intervals covered only 84 % of the steps on GPUs that were held out.
LOW, HIGH = 3, 97
# From this number on, models are counted, not named.
NAMED = 3
# Counts of the same step on two devices differ by less than this.
SAME = 0.01
ROWS = Path(__file__).with_name("step_times.csv")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Work of one training step: FLOP and bounds of the bytes moved, None if unknown.

    `model`: name of the model or script. `unknown_share`: share of the step's time in operations without a formula.
    """

    model: str
    precision: str | None
    flop: float | None
    bytes_lower: float | None
    bytes_upper: float | None
    devices: int = 1
    is_compiled: bool = False
    unknown_share: float = 0.0

    @property
    def has_16_bits(self) -> bool:
        return self.precision in (Precision.AMP, Precision.BF16)

    @property
    def intensity(self) -> float:
        """FLOP per byte, of the upper bound of bytes; 0 if unknown."""
        return (self.flop or 0.0) / self.bytes_upper if self.bytes_upper else 0.0

    def is_same_as(self, other: "Step") -> bool:
        """Whether both are the same work; counts differ a little between devices, whose kernels are not the same."""
        names = ((one.model, one.precision, one.is_compiled) for one in (self, other))
        return len({*names}) == 1 and isclose(self.flop or 0.0, other.flop or 0.0, rel_tol=SAME)


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step that took `step_s` seconds on `gpu`; `low_s`, `high_s`: its 5 % and 95 % percentiles, if known."""

    gpu: Gpu
    step: Step
    step_s: float
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Time of a step in seconds, without waits for data.

    `roof_s`: least time at the GPU's peaks, None if unknown. `value_s`, from `low_s` to `high_s`: expected time and its
    90 % interval, all None if only the bound is known; of a step that ran on this GPU, the interval has 90 % of its
    steps. `why`: origin of the figures, or why there is no interval.
    """

    roof_s: float | None = None
    value_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    why: str


def step_of(run: Record) -> Step:
    """Work of a run's step."""
    work, spec = run.complexity or ComplexityRecord(), run.spec
    shares = (work.uncounted_share, work.unattributed_share)
    return Step(
        model=spec.model,
        precision=spec.precision,
        flop=work.train_flop_per_step,
        bytes_lower=work.bytes_per_step_lower,
        bytes_upper=work.bytes_per_step_upper,
        devices=spec.ranks,
        is_compiled=bool(spec.compile),
        unknown_share=next((share for share in shares if share is not None), 0.0),
    )


def measured(runs: Iterable[Record]) -> list[MeasuredStep]:
    """Steps of completed runs on a known GPU. A CPU's times say nothing about a GPU's."""
    found = list[MeasuredStep]()
    for run in runs:
        device, times, step = run.environment.device, run.timing.step_s, step_of(run)
        gpu = peaks.find_gpu(device.name, memory_bytes=device.memory_total_bytes)
        is_usable = run.status == Status.COMPLETED and device.type == Device.CUDA and not _lacks(step)
        if is_usable and gpu and peak_of(step, gpu) and times and times.median:
            low_s, high_s = times.p5, times.p95
            found.append(MeasuredStep(gpu=gpu, step=step, step_s=times.median, low_s=low_s, high_s=high_s))
    return found


def expected(step: Step, gpu: Gpu, known: Sequence[MeasuredStep] = ()) -> Expected:
    """Time of `step` on `gpu`, from `known` steps of the user's own runs and from published ones."""
    peak = peak_of(step, gpu)
    why = _lacks(step) or (None if peak else f"{gpu.gpu} has no units for {step.precision}")
    if why or peak is None or step.flop is None or step.bytes_lower is None:
        return Expected(why=why or "")
    roof_s = max(step.flop / (peak.tflop_per_s * 1e12), step.bytes_lower / gpu.bytes_per_s)
    same = [one for one in known if one.step.model == step.model and one.step.has_16_bits == step.has_16_bits]
    here = [one for one in same if one.gpu == gpu]
    if ran := [one for one in here if one.step.is_same_as(step)]:
        return Expected(
            roof_s=roof_s,
            value_s=median(one.step_s for one in ran),
            low_s=min(one.low_s or one.step_s for one in ran),
            high_s=max(one.high_s or one.step_s for one in ran),
            why=f"measured on {gpu.gpu}",
        )
    rows, elsewhere = published(), [one for one in same if one.gpu != gpu]
    on_gpu = here or [one for one in (*known, *rows) if one.gpu == gpu]
    value_s = modelled_s(step, gpu) * exp(factor(here) if here else factor(rows, [*on_gpu, *elsewhere]))
    if why := _unlike(step, value_s, same):
        return Expected(roof_s=roof_s, why=why)
    low, high = _interval(bool(on_gpu))
    sources = [_named(on_gpu), *([] if here else [_named(elsewhere), f"{len(rows)} published steps"])]
    why = f"from {' and '.join(filter(None, sources))}"
    return Expected(roof_s=roof_s, value_s=value_s, low_s=value_s * low, high_s=value_s * high, why=why)


def peak_of(step: Step, gpu: Gpu) -> PeakRow | None:
    """Peak of `gpu` in the precision of `step`; a GPU without TF32 computes the same products in fp32."""
    rows = {row.precision: row for row in gpu.peaks}
    return rows.get(step.precision or "") or (rows.get(Precision.FP32) if step.precision == Precision.TF32 else None)


def modelled_s(step: Step, gpu: Gpu) -> float:
    """Seconds of the FLOP at the peak and of `PASSES` times the bytes at the bandwidth, one after the other."""
    peak = peak_of(step, gpu)
    assert peak
    return (step.flop or 0.0) / (peak.tflop_per_s * 1e12) + PASSES * (step.bytes_upper or 0.0) / gpu.bytes_per_s


def factor(rows: Iterable[MeasuredStep], near: Iterable[MeasuredStep] = ()) -> float:
    """Logarithm of measured over modelled time: median over `rows`, or half way from there to the median over `near`.

    Each model counts once on each GPU.
    """
    medians = list[float]()
    for steps in (rows, near):
        groups = dict[tuple[str, str, bool], list[float]]()
        for one in steps:
            key = (one.gpu.gpu, one.step.model, one.step.has_16_bits)
            groups.setdefault(key, []).append(log(one.step_s / modelled_s(one.step, one.gpu)))
        medians += [median(map(median, groups.values()))] if groups else []
    return sum(medians) / len(medians)


def errors(rows: Sequence[MeasuredStep], *, is_near: bool) -> list[float]:
    """Error of the logarithm of each step, estimated without the steps on its GPU; `is_near`: from other models there.

    Steps on a GPU where no other model ran are left out if `is_near`.
    """
    found = list[float]()
    for one in rows:
        others = [other for other in rows if other.gpu != one.gpu]
        near = [other for other in rows if other.gpu == one.gpu and other.step.model != one.step.model]
        if near or not is_near:
            found.append(factor([one]) - factor(others, near if is_near else ()))
    return found


@cache
def _interval(is_near: bool) -> tuple[float, float]:
    """Ends of the interval as multiples of the expected time."""
    ends = quantiles(errors(published(), is_near=is_near), n=100, method="inclusive")
    return exp(ends[LOW - 1]), exp(ends[HIGH - 1])


@cache
def published() -> tuple[MeasuredStep, ...]:
    """Steps that others published, on the vendors' peaks; benchmarks/step_times.py makes the file."""
    gpus = {gpu.gpu: gpu for gpu in peaks.vendors()}
    with ROWS.open(encoding="utf-8", newline="") as file:
        return tuple(
            MeasuredStep(
                gpu=gpus[row["gpu"]],
                step=Step(
                    model=row["model"],
                    precision=row["precision"],
                    flop=float(row["flop"]),
                    bytes_lower=float(row["bytes_lower"]),
                    bytes_upper=float(row["bytes_upper"]),
                ),
                step_s=float(row["batch"]) / float(row["img_per_s"]),
            )
            for row in csv.DictReader(file)
        )


def _lacks(step: Step) -> str | None:
    if step.devices > 1:
        return "a run of several devices says nothing about one: its steps also wait for collectives"
    if step.precision is None:
        return "the precision is unknown"
    if not step.flop or step.bytes_lower is None or not step.bytes_upper:
        return "no run has the FLOP and bytes of its step"
    if step.unknown_share > MOST_UNATTRIBUTED:
        return f"FLOP and bytes of {percent(step.unknown_share)} of the step's time are unknown"
    return None


def _unlike(step: Step, value_s: float, same: Sequence[MeasuredStep]) -> str | None:
    """Why no known step resembles this one: neither a published one nor the `same` on any GPU."""
    rows = [*same, *published()]
    alike = [one.step.intensity for one in rows if one.step.has_16_bits == step.has_16_bits]
    if step.is_compiled:
        return "no published step is compiled, and a compiled one moves fewer bytes"
    if not min(alike) <= step.intensity <= max(alike):
        return f"no known step has {step.intensity:.3g} FLOP per byte, but {min(alike):.2g} to {max(alike):.3g}"
    if value_s < min(one.step_s for one in rows):
        return "no known step is so short: starting its kernels may take longer than their work"
    low, high = _interval(False)
    times = exp(factor(same) - factor(published())) if same else 1.0
    if not low <= times <= high:
        return f"on {same[0].gpu.gpu} the step took {times:.2g} times as long as published steps of such work take"
    return None


def _named(steps: Sequence[MeasuredStep]) -> str:
    """Models and GPUs of `steps`: "resnet18 and resnet34 on L4"; empty without steps."""
    models, gpus = dict.fromkeys(one.step.model for one in steps), dict.fromkeys(one.gpu.gpu for one in steps)
    named = " and ".join(models) if len(models) < NAMED else counted(len(models), "model")
    return f"{named} on {' and '.join(gpus)}" if steps else ""
