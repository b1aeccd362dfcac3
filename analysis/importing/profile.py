"""Makes the bundle of a profile of Nsight Compute."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.importing.bundle import Facts, File, Given, new_record, required, seal, without_peaks
from analysis.loading.gpu_names import fits
from analysis.readers import ncu
from analysis.readers.ncu import NcuFile, report
from analysis.readers.ncu.metrics import DEVICE_NAME
from analysis.roofline import against_model, lower_bound
from workload.contract.errors import UsageError
from workload.contract.profile_record import NcuTool, ProfileResult
from workload.contract.spec import Device, Profile

# Paths of our own profiles in a bundle.
KERNELS_COPY, REPORT_COPY = "ncu/kernels.csv", "ncu/profile.ncu-rep"


def make(file: File, given: Given, output: Path) -> Path:
    """Make the bundle and return its folder; `UsageError` if required facts are missing, or for several GPUs."""
    found = ncu.read(file.path)
    if len(found.gpus) > 1:
        launches = ", ".join(f"{gpu}: {number}" for gpu, number in found.gpus.items())
        raise UsageError(
            f"'{file.path}' holds the launches of {len(found.gpus)} GPUs, but a run has one ({launches})",
            hint="keep only the rows of one GPU (column Device), or profile with CUDA_VISIBLE_DEVICES=0",
        )
    model, batch_size = required(file.path, given.model, given.batch_size)
    device_name = found.attributes.get(DEVICE_NAME)
    facts = Facts(
        model=model,
        batch_size=batch_size,
        precision=None if given.precision is None else given.precision.lower(),
        # The name that the device reported takes precedence over the user's.
        device_name=device_name or given.gpu,
        device_type=Device.CUDA,
        place=None,
    )
    notes = [f"ncu: {warning}" for warning in found.warnings]
    contradictions = []
    if device_name and given.gpu and not fits(given.gpu, device_name):
        contradictions.append(f"the profile says device '{device_name}', but the import was given '{given.gpu}'")
    notes += [*without_peaks(device_name), *contradictions]
    copy = REPORT_COPY if file.path.suffix == report.SUFFIX else KERNELS_COPY
    imported = replace(
        file.described(Profile.NCU, given), losses=list(found.losses) or None, contradictions=contradictions or None
    )
    record = new_record(facts, given, imported, started_at=None, measured=None)
    wrong = against_model.contradiction(
        record.spec, found.kernels, steps=given.profile_steps, is_partial=found.is_partial
    )
    notes += [wrong] if wrong else []
    device = replace(record.environment.device, compute_capability=_one(found.kernels["compute_capability"]))
    record = replace(
        record,
        environment=replace(record.environment, device=device),
        profile=replace(_profile(found, given.profile_steps), files=[copy]),
        notes=notes,
    )
    return seal(output, record, {copy: file.content})


def _one(values: "pd.Series[str]") -> str | None:
    """The one value on which all launches agree, else None."""
    known = values.dropna().unique()
    return str(known[0]) if len(known) == 1 else None


def _profile(found: NcuFile, steps: int | None) -> ProfileResult:
    """Section `profile` of run.json; figures per step only if the user gave the number of steps in the profile."""
    kernels = found.kernels
    uncounted = lower_bound.of_kernels(kernels)
    return ProfileResult(
        status="partial" if found.is_partial else "completed",
        reason="; ".join(found.warnings) or None if found.is_partial else None,
        kind=Profile.NCU,
        ncu=NcuTool(version=found.ncu_version),
        kernels_profiled=len(kernels),
        steps_profiled=steps,
        kernel_time_s_per_step=_per_step(kernels["duration_s"], steps),
        flop_per_step=_per_step(kernels["flop"], steps),
        tensor_flop_per_step=_per_step(kernels["flop_tensor"], steps),
        flop_is_lower_bound=uncounted is not None,
        lower_bound_reason=uncounted,
        dram_bytes_per_step=_per_step(kernels["dram_bytes"], steps),
        l2_bytes_per_step=_per_step(kernels["l2_bytes"], steps),
        l1_bytes_per_step=_per_step(kernels["l1_bytes"], steps),
    )


def _per_step(values: "pd.Series[float]", steps: int | None) -> float | None:
    """Sum per step; None if any launch lacks a value, because the sum would be too low."""
    if steps is None or values.empty or values.isna().any():
        return None
    total = float(values.sum()) / steps
    return total if math.isfinite(total) else None
