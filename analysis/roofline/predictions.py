"""Least step times on GPUs that were not run: the work of a step at the roofs of the GPU. Pure.

A step takes at least the longer of two times: that of its FLOP at the compute roof, and that of its bytes at the memory
roof. Kernels run one after another, each below a roof of its own, so at the roofs a step may take as long as both times
together. Real steps take longer; `roof_shares.toml` says by how much published steps did.
"""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.loading.configurations import UNNAMED, WORK_NAMED, Group, completed, group
from analysis.loading.gpu_names import folded, gpus_named
from analysis.loading.tables import Tables, frame, joined
from workload.contract import peaks
from workload.contract.errors import NothingToDoError, UsageError
from workload.contract.peaks import Gpu, PeakRow
from workload.contract.spec import Device, Precision
from workload.contract.text import did_you_mean, percent
from workload.contract.verdict import MOST_UNATTRIBUTED

SHARES_FILE = Path(__file__).with_name("roof_shares.toml")
# Every figure is predicted, and its name says so.
COLUMNS = (
    *WORK_NAMED,
    "gpu",
    "predicted_roof_step_s_low",
    "predicted_roof_step_s_high",
    "peak_source",
    "note",
    *UNNAMED,
)


def predict(results: Tables, gpus: Sequence[str]) -> pd.DataFrame:
    """Step times on GPUs: a row per group of runs that may be pooled and GPU, with `COLUMNS`.

    `predicted_roof_step_s_*`: at the vendor's roofs, without any loss. `note`: assumptions, and why a row has no
    figures. Raises `UsageError` for an unknown GPU, and `NothingToDoError` if every row lacks figures.
    """
    targets = find_gpus(gpus)
    rows = [_row(pool, gpu) for pool in group(completed(results.runs)) for gpu in targets]
    if not any(row.get("predicted_roof_step_s_low") for row in rows):
        why = rows[0]["note"] if rows else "no run completed"
        raise NothingToDoError(
            f"no step time can be predicted: {why}",
            hint="launch local counts FLOP and bytes; for a log: analyze import FILE --model resnet50 --precision fp32",
        )
    return frame(rows, COLUMNS)


def find_gpus(labels: Sequence[str]) -> list[Gpu]:
    """GPUs with these names; a short name such as `v100` stands for every variant. Raises `UsageError` if unknown."""
    found: dict[str, Gpu] = {}
    # The steps of roof_shares.toml were measured on such GPUs alone.
    gpus = [gpu for gpu in peaks.gpus() if gpu.device == Device.CUDA]
    for label in labels:
        short = gpus_named(label)
        variants = [gpu for gpu in gpus if folded(label) in map(folded, (gpu.gpu, *gpu.names))]
        variants = variants or [gpu for gpu in gpus if short and short == gpus_named(gpu.gpu)]
        if not variants:
            names = sorted({name for gpu in gpus for name in gpus_named(gpu.gpu)})
            nearest = did_you_mean(label.casefold(), names, after=" ")
            known = ", ".join(gpu.gpu for gpu in gpus)
            raise UsageError(
                f"the peaks of GPU '{label}' are unknown", hint=f"{nearest}known: {known}; others: --peaks FILE"
            )
        found |= {gpu.gpu: gpu for gpu in variants}
    return list(found.values())


def _row(pool: Group, gpu: Gpu) -> dict[str, Any]:
    peaks_of = {row.precision: row for row in gpu.peaks}
    precision = pool["precision"]
    # A GPU without TF32 computes the same products in fp32.
    peak = peaks_of.get(precision) or (peaks_of.get(Precision.FP32) if precision == Precision.TF32 else None)
    why = _lacks(pool) or (None if peak else f"{gpu.gpu} has no units for {pool['precision']}")
    row = {**pool.facts, "gpu": gpu.gpu, "note": joined([why, *pool.apart])}
    if why or peak is None:
        return row
    flop, low, high = (
        pool.median(name) or 0.0 for name in ("train_flop_per_step", "bytes_lower_per_step", "bytes_upper_per_step")
    )
    # A GPU whose clock depends on its power limit has an interval of peaks.
    slowest = peak.tflop_per_s if peak.tflop_per_s_low is None else peak.tflop_per_s_low
    return row | {
        "predicted_roof_step_s_low": max(flop / (peak.tflop_per_s * 1e12), low / gpu.bytes_per_s),
        "predicted_roof_step_s_high": flop / (slowest * 1e12) + high / gpu.bytes_per_s,
        "peak_source": peak.source,
        "note": joined([*_notes(pool, gpu, peak), *dict.fromkeys(pool.texts("work_assumption")), *pool.apart]),
    }


def _lacks(pool: Group) -> str | None:
    uncounted = pool.median("uncounted_share")
    unknown = (pool.median("unattributed_share") or 0.0) if uncounted is None else uncounted
    if (pool["devices"] or 1) > 1:
        return "a run of several devices predicts nothing: its steps also wait for collectives"
    if pool["precision"] is None:
        return "the precision is unknown"
    if not pool.median("train_flop_per_step") or pool.median("bytes_upper_per_step") is None:
        return "no run has the FLOP and bytes of its step"
    if unknown > MOST_UNATTRIBUTED:
        return f"FLOP and bytes of {percent(unknown)} of the step's time are unknown"
    return None


def _notes(pool: Group, gpu: Gpu, peak: PeakRow) -> Iterator[str]:
    if pool["precision"] != peak.precision:
        yield f"{gpu.gpu} has no units for {pool['precision']} and computes in {peak.precision}"
    needed = pool.median("peak_memory_bytes") if pool["device_type"] == Device.CUDA and gpu.memory_gb else None
    if needed is not None:
        if needed > max(gpu.memory_gb) * 1e9:
            yield f"does not fit: the run used {needed / 1e9:.1f} GB, and {gpu.gpu} has {max(gpu.memory_gb):g} GB"
        elif needed > min(gpu.memory_gb) * 1e9:
            yield f"the run used {needed / 1e9:.1f} GB, which fits only the {gpu.gpu} with {max(gpu.memory_gb):g} GB"
    if peaks.find_gpu(pool["device_name"]) == gpu and pool.known("step_median_s"):
        yield "this GPU was run: analyze summary has the measured step"


def longer_than_roofs(precision: str) -> str:
    """Sentence on how much longer published steps of this kind of precision took than at the roofs."""
    kind = precision if precision in (Precision.FP32, Precision.TF32) else "16-bit"
    row = tomllib.loads(SHARES_FILE.read_text(encoding="utf-8"))[kind]
    times = f"{row['low']:.1f} to {row['high']:.1f} times the longer figure"
    return f"published {kind} steps took {times} (5 % to 95 % of {row['steps']} steps on {row['gpus']} GPUs)"
