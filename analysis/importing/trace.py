"""Make the bundle of a trace of torch.profiler, and find contradictions between the trace and the user's options."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from analysis.importing import traced_run
from analysis.importing.bundle import Facts, File, Given, new_record, required, seal, without_peaks
from analysis.importing.traced_run import TracedRun
from analysis.loading.gpu_names import fits, gpus_named
from analysis.readers.text import Decoded
from analysis.roofline import against_model
from workload.contract.spec import Device, Profile


def make(file: File, decoded: Decoded, given: Given, output: Path) -> Path:
    """Make the bundle and return its folder; `UsageError` if the trace cannot be understood or lacks required facts."""
    run = traced_run.read(decoded, file.content, given, file=str(file.path))
    model, batch_size = required(file.path, given.model, given.batch_size or run.model.batch_size)
    facts = Facts(
        model=model,
        batch_size=batch_size,
        precision=given.precision.lower() if given.precision else run.precision,
        # The name that the device reported takes precedence over the user's.
        device_name=run.device_name or (None if _is_told_a_gpu(run, given) else given.gpu),
        device_type=run.device_type,
        place=None,
        image_size=run.model.image_size,
    )
    imported = file.described(Profile.TORCH, given)
    record = new_record(facts, given, imported, started_at=None, measured=None)
    contradictions = [*_contradictions(run, given)]
    if run.complexity and run.shares_passes:
        contradictions += against_model.of_trace(
            record.spec,
            run.flop_once,
            run.model,
            passes_per_step=run.passes_per_step,
            has_backward=run.has_backward,
        )
    record = replace(
        record,
        imported=replace(imported, losses=list(run.losses) or None, contradictions=contradictions or None),
        profile=replace(run.profile, device=run.device_name),
        complexity=run.complexity,
        notes=[*run.notes, *without_peaks(run.device_name), *contradictions],
    )
    return seal(output, record, run.files)


def _contradictions(run: TracedRun, given: Given) -> Iterator[str]:
    """Sentences on differences between the trace and the user's options: device, precision, steps and first input."""
    found = run.model
    if run.device_name and given.gpu and not fits(given.gpu, run.device_name):
        yield f"the trace says device '{run.device_name}', the import was told '{given.gpu}'"
    if _is_told_a_gpu(run, given):
        yield f"the trace has no kernels and is of a CPU, the import was told device '{given.gpu}'"
    if run.precision and given.precision and run.precision != given.precision.lower():
        yield f"the trace says precision '{run.precision}', the import was told '{given.precision}'"
    if run.steps_contradiction:
        yield run.steps_contradiction
    if found.batch_size and given.batch_size not in {None, found.batch_size, found.batch_size * run.passes_per_step}:
        yield f"the trace says batch size {found.batch_size} ({found.first}), the import was told {given.batch_size}"
    if found.image_size and given.image_size not in {None, found.image_size}:
        yield f"the trace says image size {found.image_size} ({found.first}), the import was told {given.image_size}"


def _is_told_a_gpu(run: TracedRun, given: Given) -> bool:
    return run.device_type is Device.CPU and bool(given.gpu and gpus_named(given.gpu))
