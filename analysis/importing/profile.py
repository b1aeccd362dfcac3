"""Makes the bundle of a profile of Nsight Compute."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.importing.bundle import (
    File,
    ImportedFacts,
    UserFacts,
    new_record,
    notes_on_peaks,
    require_model_and_batch,
    seal,
)
from analysis.loading.gpu_names import can_name
from analysis.readers import ncu
from analysis.readers.ncu import NcuFile, report
from analysis.roofline import against_model
from workload.contract.errors import UsageError
from workload.contract.record_sections import NcuTool, ProfileResult
from workload.contract.spec import Device, Profile

# Paths of our own profiles in a bundle.
KERNELS_COPY, REPORT_COPY = "ncu/kernels.csv", "ncu/profile.ncu-rep"


def make(file: File, user: UserFacts, output: Path) -> Path:
    """Make the bundle and return its folder; `UsageError` if required facts are missing, or for several GPUs."""
    ncu_file = ncu.read(file.path)
    if len(ncu_file.gpus) > 1:
        launches = ", ".join(f"{gpu}: {number}" for gpu, number in ncu_file.gpus.items())
        raise UsageError(
            f"'{file.path}' holds the launches of {len(ncu_file.gpus)} GPUs, but a run has one ({launches})",
            hint="keep only the rows of one GPU (column Device), or profile with CUDA_VISIBLE_DEVICES=0",
        )
    model, batch_size = require_model_and_batch(file.path, user.model, user.batch_size)
    device_name = ncu_file.device_name
    facts = ImportedFacts(
        model=model,
        batch_size=batch_size,
        precision=None if user.precision is None else user.precision.lower(),
        # The name that the device reported takes precedence over the user's.
        device_name=device_name or user.gpu,
        device_type=Device.CUDA,
        place=None,
    )
    notes = [f"ncu: {warning}" for warning in ncu_file.warnings]
    contradictions = []
    if device_name and user.gpu and not can_name(user.gpu, device_name):
        contradictions.append(f"the profile says device '{device_name}', but the import was given '{user.gpu}'")
    notes += [*notes_on_peaks(device_name), *contradictions]
    copy = REPORT_COPY if file.path.suffix == report.SUFFIX else KERNELS_COPY
    imported = replace(
        file.described(Profile.NCU, user), losses=list(ncu_file.losses) or None, contradictions=contradictions or None
    )
    record = new_record(facts, user, imported, started_at=None, measured=None)
    wrong = against_model.contradiction(
        record.spec, ncu_file.kernels, steps=user.profile_steps, is_partial=ncu_file.is_partial
    )
    notes += [wrong] if wrong else []
    device = replace(record.environment.device, compute_capability=ncu_file.compute_capability)
    record = replace(
        record,
        environment=replace(record.environment, device=device),
        profile=replace(_profile(ncu_file, user.profile_steps), files=[copy]),
        notes=notes,
    )
    return seal(output, record, {copy: file.content})


def _profile(ncu_file: NcuFile, steps: int | None) -> ProfileResult:
    """Section `profile` of run.json; figures per step only if the user gave the number of steps in the profile."""
    kernels = ncu_file.kernels
    uncounted = against_model.uncounted_operations(kernels)
    return ProfileResult(
        status="partial" if ncu_file.is_partial else "completed",
        reason="; ".join(ncu_file.warnings) or None if ncu_file.is_partial else None,
        kind=Profile.NCU,
        ncu=NcuTool(version=ncu_file.ncu_version),
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
