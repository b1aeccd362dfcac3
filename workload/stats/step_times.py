"""Time of a training step on a GPU that was not run, with a 90 % interval or only the bound of the GPU's peaks."""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median

import numpy as np

from workload.contract import peaks
from workload.contract.peaks import Gpu, PeakRow
from workload.contract.record import Record, Status
from workload.contract.spec import Device, Precision
from workload.contract.text import counted, percent
from workload.contract.verdict import MOST_UNATTRIBUTED

# Kernels of eager PyTorch read and write the upper bound of bytes at about half of the bandwidth.
PASSES = 2.0
TAILS = (0.05, 0.95)
# A wider interval (high / low) helps nobody to choose a GPU.
WIDEST = 2.5
# Waits for data below this share of the wall time are not worth a sentence.
WAITED = 0.05
ROWS = Path(__file__).with_name("step_times.csv")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Work of one training step: FLOP and bounds of the bytes moved, None if unknown.

    `model`: name of the model or script. `unknown_share`: share of the step's time in operations without a formula.
    `data_wait_share`: share of the wall time for which the run waited for data.
    """

    model: str
    precision: str | None
    flop: float | None
    bytes_lower: float | None
    bytes_upper: float | None
    devices: int = 1
    unknown_share: float = 0.0
    data_wait_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step that ran on `gpu` (its name in peaks.toml) in `step_s`, without waits for data.

    `source`: program and settings that ran it: steps of one source differ less. `low_s`, `high_s`: 5 % and 95 % of the
    steps of the run, if known.
    """

    gpu: str
    step: Step
    step_s: float
    source: str
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Time of a step in seconds, without waits for data.

    `roof_s`: at the GPU's peaks without any loss, None if unknown. `value_s` with `low_s` to `high_s`: expected value
    and 90 % interval, all None if there is only the bound. `is_measured`: the step ran on this GPU. `why`: sentence
    about the origin of the figures, or why there is no interval.
    """

    roof_s: float | None = None
    value_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    is_measured: bool = False
    why: str


def step_of(run: Record) -> Step:
    """Work of a run's step."""
    work, spec = run.complexity, run.spec
    unknown = (
        None if work is None else work.unattributed_share if work.uncounted_share is None else work.uncounted_share
    )
    return Step(
        model=spec.model,
        precision=spec.precision,
        flop=work and work.train_flop_per_step,
        bytes_lower=work and work.bytes_per_step_lower,
        bytes_upper=work and work.bytes_per_step_upper,
        devices=int(spec.devices or 1),
        unknown_share=unknown or 0.0,
        data_wait_share=run.timing.data_wait_fraction or 0.0,
    )


def measured(runs: Iterable[Record]) -> tuple[MeasuredStep, ...]:
    """Steps that completed on a known GPU and whose work is known."""
    found = list[MeasuredStep]()
    for run in runs:
        device, times, step = run.environment.device, run.timing.step_s, step_of(run)
        gpu = peaks.find_gpu(device.name, memory_bytes=device.memory_total_bytes)
        timed = run.status == Status.COMPLETED and device.type == Device.CUDA and times and times.median
        if gpu and times and times.median and timed and not _lacks(step):
            found.append(
                MeasuredStep(
                    gpu=gpu.gpu,
                    step=step,
                    step_s=times.median,
                    source=step.model,
                    low_s=times.p5,
                    high_s=times.p95,
                )
            )
    return tuple(found)


def expected(step: Step, gpu: Gpu, known: Sequence[MeasuredStep] = ()) -> Expected:
    """Time of `step` on `gpu`, from `known` steps of the user's own runs, else from published ones.

    Without an interval, `why` says why there is none.
    """
    peak = peak_of(step, gpu)
    if peak is None or _lacks(step):
        return Expected(why=_lacks(step) or f"{gpu.gpu} has no units for {step.precision}")
    roof_s = max((step.flop or 0.0) / (peak.tflop_per_s * 1e12), (step.bytes_lower or 0.0) / gpu.bytes_per_s)
    same = [one for one in known if one.step.model == step.model and _kind(one.step) == _kind(step)]
    here = [one for one in same if one.gpu == gpu.gpu]
    if ran := [one for one in here if one.step == replace(step, data_wait_share=one.step.data_wait_share)]:
        return Expected(
            roof_s=roof_s,
            value_s=median(one.step_s for one in ran),
            low_s=min(one.low_s or one.step_s for one in ran),
            high_s=max(one.high_s or one.step_s for one in ran),
            is_measured=True,
            why=f"measured on {gpu.gpu}{_waited(ran)}",
        )
    modelled_s = _modelled_s(step, gpu)
    rows = published()
    if here:
        anchors, errors, origin = here, _errors(_same_gpu), f"{step.model} measured on {gpu.gpu} at another batch size"
    elif same:
        places = ", ".join(dict.fromkeys(one.gpu for one in same))
        anchors, errors, origin = same, _errors(_same_source), f"{step.model} measured on {places}"
    else:
        anchors, errors = [*known, *rows], _errors(_another)
        models, gpus = ({one.step.model for one in rows}, {one.gpu for one in rows})
        origin = f"{len(rows)} published steps of {counted(len(models), 'model')} on {counted(len(gpus), 'GPU')}"
    low, high = np.exp(np.quantile(errors, TAILS))
    if high / low > WIDEST:
        return Expected(roof_s=roof_s, why=f"measured steps differ {high / low:.1f} times from each other")
    value_s = modelled_s * exp(_center(anchors))
    why = f"from {origin}{_waited(same)}"
    return Expected(roof_s=roof_s, value_s=value_s, low_s=value_s * low, high_s=value_s * high, why=why)


def _waited(runs: Sequence[MeasuredStep]) -> str:
    share = max((one.step.data_wait_share for one in runs), default=0.0)
    return f"; without the waits for data, {percent(share)} of that run" if share > WAITED else ""


def _kind(step: Step) -> bool:
    """Whether the factors of products have 16 bits."""
    return step.precision in (Precision.AMP, Precision.BF16)


def _modelled_s(step: Step, gpu: Gpu) -> float:
    """Seconds of the FLOP at the peak, and of `PASSES` times the upper bound of bytes at the bandwidth."""
    peak = peak_of(step, gpu)
    assert peak
    return (step.flop or 0.0) / (peak.tflop_per_s * 1e12) + PASSES * (step.bytes_upper or 0.0) / gpu.bytes_per_s


def _residual(one: MeasuredStep) -> float:
    return log(one.step_s / _modelled_s(one.step, peaks.named(one.gpu)))


def _center(anchors: Sequence[MeasuredStep]) -> float:
    """Median of the residuals, in which each model on each GPU counts once."""
    groups = dict[tuple[str, str, bool], list[float]]()
    for one in anchors:
        groups.setdefault((one.gpu, one.step.model, _kind(one.step)), []).append(_residual(one))
    return median(median(group) for group in groups.values())


def _same_gpu(one: MeasuredStep, other: MeasuredStep) -> bool:
    return _is_same(one, other) and one.gpu == other.gpu and one.step != other.step


def _same_source(one: MeasuredStep, other: MeasuredStep) -> bool:
    return _is_same(one, other) and one.gpu != other.gpu


def _is_same(one: MeasuredStep, other: MeasuredStep) -> bool:
    is_alike = one.step.model == other.step.model and _kind(one.step) == _kind(other.step)
    return is_alike and one.source == other.source


def _another(one: MeasuredStep, other: MeasuredStep) -> bool:
    return one.gpu != other.gpu and one.step.model != other.step.model


@cache
def _errors(is_known: Callable[[MeasuredStep, MeasuredStep], bool]) -> tuple[float, ...]:
    """Errors of the logarithm of each published step, estimated from those steps that `is_known` lets it know."""
    rows = published()
    peers = ([other for other in rows if is_known(one, other)] for one in rows)
    return tuple(_residual(one) - _center(others) for one, others in zip(rows, peers, strict=True) if others)


@cache
def published() -> tuple[MeasuredStep, ...]:
    """Steps that others published; benchmarks/step_times.py makes the file."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return tuple(
            MeasuredStep(
                gpu=row["gpu"],
                step=Step(
                    model=row["model"],
                    precision=row["precision"],
                    flop=float(row["flop"]),
                    bytes_lower=float(row["bytes_lower"]),
                    bytes_upper=float(row["bytes_upper"]),
                ),
                step_s=float(row["batch"]) / float(row["img_per_s"]),
                source=row["program"],
            )
            for row in csv.DictReader(file)
        )


def peak_of(step: Step, gpu: Gpu) -> PeakRow | None:
    """Peak of `gpu` in the precision of `step`; a GPU without TF32 computes the same products in fp32."""
    rows = {row.precision: row for row in gpu.peaks}
    return rows.get(step.precision or "") or (rows.get(Precision.FP32) if step.precision == Precision.TF32 else None)


def _lacks(step: Step) -> str | None:
    if step.devices > 1:
        return "a run of several devices predicts nothing: its steps also wait for collectives"
    if step.precision is None:
        return "the precision is unknown"
    if not step.flop or step.bytes_lower is None or step.bytes_upper is None:
        return "no run has the FLOP and bytes of its step"
    if step.unknown_share > MOST_UNATTRIBUTED:
        return f"FLOP and bytes of {percent(step.unknown_share)} of the step's time are unknown"
    return None
