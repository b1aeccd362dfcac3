"""Least step times on GPUs that were not run: the work of a step at the roofs of the GPU. Pure.

A kernel takes at least the time of its FLOP at the compute roof, and at least that of its bytes at the memory roof. A
step at its roofs takes the sum of these times over its kernels. Without kernels, the sum is known only within limits:
the longer of the two times of all work, and both together. Real steps take longer; `roof_shares.toml` says by how
much published steps did.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.kernels.breakdown import launched_in_steps
from analysis.kernels.operators import WORK_FILE, read_work
from analysis.loading.configurations import UNNAMED, WORK_NAMED, Group, completed, group
from analysis.loading.gpu_names import gpus_named
from analysis.loading.tables import Tables, frame, joined, names_of
from analysis.readers.ncu.families import is_backward
from analysis.roofline.against_model import model_flop
from analysis.roofline.points import lower_bounds
from analysis.statistics.samples import Floats
from workload.contract import peaks
from workload.contract.errors import BundleError, NothingToDoError, UsageError
from workload.contract.peaks import Gpu, PeakRow, folded
from workload.contract.spec import Device, Precision
from workload.contract.text import did_you_mean, percent
from workload.contract.verdict import MOST_UNATTRIBUTED

SHARES_FILE = Path(__file__).with_name("roof_shares.toml")
# Share of FLOP in double precision above which kernels predict nothing: peaks.toml has no peaks for them.
MOST_FP64 = 0.01


class Tier(StrEnum):
    """Evidence of a prediction, the best first: counted kernels, traced operators, or a model's totals by formula."""

    KERNELS = "kernels"
    OPERATORS = "operators"
    MODEL = "model"


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of a step, in parts that run one after another: arrays with an element for each part.

    `flop`: FLOP at the peak of the run's precision, `flop_fp32`: further FLOP at the fp32 peak. A part is a single
    launch of a kernel, or else the total of several.
    """

    tier: Tier
    flop: Floats
    flop_fp32: Floats
    bytes_low: Floats
    bytes_high: Floats

    @classmethod
    def total(cls, flop: float, bytes_low: float, bytes_high: float) -> "Work":
        """A single part, for work with only its totals known."""
        flop_, low, high = (np.array([value], dtype=np.float64) for value in (flop, bytes_low, bytes_high))
        return cls(tier=Tier.MODEL, flop=flop_, flop_fp32=np.zeros(1), bytes_low=low, bytes_high=high)


@dataclass(frozen=True, kw_only=True)
class PredictionRow:
    """A row of `predict`: a group of runs, and a GPU. Every figure is predicted, and its name says so."""

    place: str | None
    device_name: str | None
    model: str
    batch_size: float | None
    precision: str | None
    image_size: float | None
    gpu: str
    tier: str | None = None
    predicted_roof_step_s_low: float | None = None
    predicted_roof_step_s_high: float | None = None
    peak_source: str | None = None
    note: str | None = None


COLUMNS = (*names_of(PredictionRow), *UNNAMED)


class Unpredictable(Exception):  # noqa: N818 - a reason, which becomes a note
    """The work of a run, or a GPU's roof for it, is unknown; the reason, and the next step as `hint`."""

    def __init__(self, reason: str, *, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def predict(results: Tables, gpus: Sequence[str]) -> pd.DataFrame:
    """Step times on GPUs: a row per group of runs that may be pooled and GPU, with `COLUMNS`.

    `predicted_roof_step_s_*`: at the vendor's roofs, without any loss; an interval if the bytes or kernels are unknown.
    `note`: assumptions, and why a row has no figures. Raises `UsageError` for an unknown GPU, and `NothingToDoError`
    if every row lacks figures.
    """
    targets = find_gpus(gpus)
    launches = results.kernels.groupby("run_id", sort=False).indices
    rows, reasons = list[dict[str, Any]](), list[Unpredictable]()
    for pool in group(completed(results.runs)):
        facts = {name: pool[name] for name in WORK_NAMED}
        try:
            work, notes = _work(results, pool, launches)
        except Unpredictable as reason:
            reasons.append(reason)
            rows += [{**pool.facts, **vars(PredictionRow(**facts, gpu=gpu.gpu, note=str(reason)))} for gpu in targets]
            continue
        for gpu in targets:
            try:
                row = _row(pool, facts, gpu, work, notes)
            except Unpredictable as reason:
                reasons.append(reason)
                row = PredictionRow(**facts, gpu=gpu.gpu, note=joined([str(reason), *pool.apart]))
            rows.append({**pool.facts, **vars(row)})
    if len(reasons) and all(row["predicted_roof_step_s_low"] is None for row in rows):
        others = len({str(reason) for reason in reasons}) - 1
        more = f" (and {others} other reason{'s' if others > 1 else ''})" if others else ""
        raise NothingToDoError(f"no step time can be predicted: {reasons[0]}{more}", hint=reasons[0].hint)
    if not rows:
        raise NothingToDoError("no step time can be predicted: no run completed", hint="analyze summary RESULTS")
    return frame(rows, COLUMNS)


def find_gpus(labels: Sequence[str]) -> list[Gpu]:
    """GPUs with these names; a short name such as `v100` stands for every variant. Raises `UsageError` if unknown."""
    found: dict[str, Gpu] = {}
    # The steps of roof_shares.toml were measured on such GPUs alone.
    gpus = [gpu for gpu in peaks.gpus() if gpu.device == Device.CUDA]
    for label in labels:
        variants = [gpu for gpu in gpus if folded(label) in map(folded, (gpu.gpu, *gpu.names))]
        variants = variants or [gpu for gpu in gpus if _names(label, gpu)]
        if not variants:
            short = sorted({name for gpu in gpus for name in gpus_named(gpu.gpu)})
            nearest = did_you_mean(label.casefold(), short, after=" ")
            known = ", ".join(gpu.gpu for gpu in gpus)
            raise UsageError(
                f"the peaks of GPU '{label}' are unknown", hint=f"{nearest}known: {known}; others: --peaks FILE"
            )
        found |= {gpu.gpu: gpu for gpu in variants}
    return list(found.values())


def _names(label: str, gpu: Gpu) -> bool:
    """Whether the label is a name of the GPU, or a short name with details that this GPU has too, as `A100-SXM-80`."""
    names = [name.casefold() for name in (gpu.gpu, *gpu.names)]
    words, short = re.findall(r"[a-z0-9]+", label.casefold()), gpus_named(label)
    squeezed = [re.sub(r"[^a-z0-9]", "", name) for name in names]
    has_words = all(any(word in name for name in squeezed) for word in words)
    return bool(short) and has_words and any(short == gpus_named(name) for name in names)


# --- the work of a step


def _work(results: Tables, pool: Group, launches: Mapping[Any, Any]) -> tuple[Work, list[str]]:
    """Work of a step from the best evidence, and notes on it. Raises `Unpredictable` if there is none."""
    if (pool["devices"] or 1) > 1:
        raise Unpredictable(
            "a run of several devices predicts nothing: its steps also wait for collectives",
            hint="predict from a run of one device",
        )
    if pool["precision"] is None:
        raise Unpredictable("the precision is unknown", hint="analyze import FILE --precision fp32")
    notes = list[str]()
    for tier in (_kernels, _operators):
        try:
            if work := tier(results, pool, launches):
                return work, [*notes, *pool.apart]
        except Unpredictable as reason:
            notes.append(str(reason))
    flop, low, high = (
        pool.median(name) for name in ("train_flop_per_step", "bytes_lower_per_step", "bytes_upper_per_step")
    )
    uncounted = pool.median("uncounted_share")
    unknown = (pool.median("unattributed_share") or 0.0) if uncounted is None else uncounted
    if not flop or low is None or high is None:
        why = joined([*notes, "no run has the FLOP and bytes of its step"])
        raise Unpredictable(str(why), hint="launch local counts them; for a log: analyze import FILE --model resnet50")
    if unknown > MOST_UNATTRIBUTED:
        why = joined([*notes, f"FLOP and bytes of {percent(unknown)} of the step's time are unknown"])
        raise Unpredictable(str(why), hint="analyze kernels RESULTS --row operator names these operations")
    assumptions = dict.fromkeys(pool.texts("work_assumption"))
    return Work.total(flop, low, high), [*notes, *assumptions, *pool.apart]


def _kernels(results: Tables, pool: Group, launches: Mapping[Any, Any]) -> Work | None:
    """Counted work by launch; None without a profile. Raises `Unpredictable` if the counters are incomplete."""
    if launches.keys().isdisjoint(pool.values("run_id")):
        return None
    kernels, steps, _ = launched_in_steps(results, pool, launches)
    if not steps:
        raise _unused("its number of steps is unknown")
    flop, tensor, moved = (kernels[name].to_numpy(dtype=float) for name in ("flop", "flop_tensor", "dram_bytes"))
    if np.isnan(flop).any() or np.isnan(moved).any():
        raise _unused("a kernel lacks its FLOP or bytes")
    has_backward = any(is_backward(str(name)) for name in kernels["name"].unique())
    if bounds := lower_bounds(pool, has_backward, model_flop(kernels)[1] / steps):
        raise _unused(bounds[0])
    if np.nansum(kernels["flop_fp64"].to_numpy(dtype=float)) > MOST_FP64 * flop.sum():
        raise _unused("it has FLOP in double precision")
    tensor = np.nan_to_num(tensor)
    return Work(
        tier=Tier.KERNELS,
        flop=tensor / steps,
        flop_fp32=(flop - tensor) / steps,
        bytes_low=moved / steps,
        bytes_high=moved / steps,
    )


def _unused(why: str) -> Unpredictable:
    return Unpredictable(f"the profile is not used: {why}", hint="analyze kernels RESULTS")


def _operators(results: Tables, pool: Group, _: Any) -> Work | None:
    """Modelled work of the operators in the group's first imported trace; None without a trace."""
    for run_id, folder in zip(pool.values("run_id"), pool.values("path"), strict=True):
        path = Path(str(folder)) / WORK_FILE
        if not path.is_file():
            continue
        with suppress(OSError, ValueError, KeyError, BundleError):
            table, steps = read_work(path), results.record(str(run_id)).profile.steps
            # Operators that lack both are few, by their share of the time.
            known = table[table["flop"].notna() & table["bytes_upper"].notna()]
            share = table.loc[table["lack"].notna(), "total_s"].sum() / table["total_s"].sum()
            if steps and len(known) and share <= MOST_UNATTRIBUTED:
                flop, low, high = (
                    known[name].fillna(0.0).to_numpy(dtype=float) / steps
                    for name in ("flop", "bytes_lower", "bytes_upper")
                )
                return Work(
                    tier=Tier.OPERATORS, flop=flop, flop_fp32=np.zeros(len(flop)), bytes_low=low, bytes_high=high
                )
        raise Unpredictable(
            "the trace is not used: operators without FLOP and bytes, or a damaged table",
            hint="analyze kernels RESULTS",
        )
    return None


# --- the time of a step


def roof_step_s(work: Work, gpu: Gpu, precision: str) -> tuple[float, float]:
    """Least and most seconds of a step at a GPU's roofs. Raises `Unpredictable` if it lacks units for the precision."""
    # A profile in fp32 with tensor operations used TF32.
    if precision == Precision.FP32 and work.tier is Tier.KERNELS and work.flop.any():
        precision = Precision.TF32
    peak = _peak(gpu, precision)
    fp32 = _peak(gpu, Precision.FP32) if work.flop_fp32.any() else peak
    fast = work.flop / (peak.tflop_per_s * 1e12) + work.flop_fp32 / (fp32.tflop_per_s * 1e12)
    slow = work.flop / _slowest(peak) + work.flop_fp32 / _slowest(fp32)
    low_s, high_s = work.bytes_low / gpu.bytes_per_s, work.bytes_high / gpu.bytes_per_s
    # The launches in a total may be limited by different roofs: their times add up.
    most = np.maximum(slow, high_s) if work.tier is Tier.KERNELS else slow + high_s
    return float(np.maximum(fast, low_s).sum()), float(most.sum())


def _peak(gpu: Gpu, precision: str) -> PeakRow:
    rows = {row.precision: row for row in gpu.peaks}
    # A GPU without TF32 computes the same products in fp32.
    if precision == Precision.TF32 and precision not in rows:
        precision = Precision.FP32
    if precision not in rows:
        raise Unpredictable(
            f"{gpu.gpu} has no units for {precision}", hint=f"runs in {' or '.join(rows)}, or --gpu of another GPU"
        )
    return rows[precision]


def _slowest(peak: PeakRow) -> float:
    """FLOP/s at the lowest power limit."""
    return (peak.tflop_per_s if peak.tflop_per_s_low is None else peak.tflop_per_s_low) * 1e12


def longer_than_roofs(precision: str) -> str:
    """Sentence on how much longer published steps of this kind of precision took than at the roofs."""
    kind = precision if precision in (Precision.FP32, Precision.TF32) else "16-bit"
    row = tomllib.loads(SHARES_FILE.read_text(encoding="utf-8"))[kind]
    times = f"{row['low']:.1f} to {row['high']:.1f} times the longer figure"
    return f"published {kind} steps took {times} (5 % to 95 % of {row['steps']} steps on {row['gpus']} GPUs)"


def _row(pool: Group, facts: Mapping[str, Any], gpu: Gpu, work: Work, notes: Sequence[str]) -> PredictionRow:
    roof_s = roof_step_s(work, gpu, pool["precision"])
    return PredictionRow(
        **facts,
        gpu=gpu.gpu,
        tier=str(work.tier),
        predicted_roof_step_s_low=roof_s[0],
        predicted_roof_step_s_high=roof_s[1],
        peak_source=_peak(gpu, pool["precision"]).source,
        note=joined([*_notes(pool, gpu), *notes]),
    )


def _notes(pool: Group, gpu: Gpu) -> Iterator[str]:
    """Notes on the GPU's memory and units, and on a GPU that was run after all."""
    if pool["precision"] == Precision.TF32 != _peak(gpu, Precision.TF32).precision:
        yield f"{gpu.gpu} has no units for tf32 and computes in fp32"
    needed = pool.median("peak_memory_bytes") if pool["device_type"] == Device.CUDA and gpu.memory_gb else None
    if needed is not None:
        if needed > max(gpu.memory_gb) * 1e9:
            yield f"does not fit: the run used {needed / 1e9:.1f} GB, and {gpu.gpu} has {max(gpu.memory_gb):g} GB"
        elif needed > min(gpu.memory_gb) * 1e9:
            yield f"the run used {needed / 1e9:.1f} GB, which fits only the {gpu.gpu} with {max(gpu.memory_gb):g} GB"
    if peaks.find_gpu(pool["device_name"]) == gpu and pool.known("step_median_s"):
        yield "this GPU was run: analyze summary has the measured step"
