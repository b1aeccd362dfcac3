"""A run's first run.json, and the seal of a run whose trainer ended before it could seal its bundle itself.

Standard library only.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode, InterruptedRunError, OutOfDeviceMemoryError, RunFailedError
from workload.contract.fields import from_facts
from workload.contract.record import ComplexityRecord, JobPlace, Memory, Record, Repeat, Spec, Status, Timing
from workload.contract.record_sections import Environment
from workload.contract.script_words import script_name, slug
from workload.contract.spec import Device, Profile, RunSpec
from workload.contract.trainer import Context, this_start
from workload.environment.cloud import outside_facts
from workload.environment.machine import HostSystem
from workload.profile.command import before_the_pass

NOTE = "the trainer ended before it could describe the run: this record was made from outside"


def first_record(
    run_id: str,
    context: Context,
    *,
    spec: Spec,
    spec_origin: Mapping[str, str] | None,
    facts: Mapping[str, Any],
    started_at: str,
    complexity: ComplexityRecord | None = None,
    notes: Sequence[str] = (),
) -> Record:
    """Record of a run that begins. `facts`: sections of the environment that `context` does not have."""
    where = {
        "place": context.place_on(str(spec.device)),
        "backend": context.backend,
        "runtime": context.runtime,
        "runtime_reason": context.runtime_reason,
        "start": this_start(),
    }
    return Record(
        run_id=run_id,
        status=Status.RUNNING,
        repeat=Repeat(index=context.repeat, of=context.repeats),
        job=None if context.job is None else JobPlace(**context.job),
        run_key=context.run_key or None,
        spec=spec,
        spec_origin=spec_origin,
        environment=from_facts(Environment, {**where, **facts}),
        timing=Timing(started_at=started_at),
        complexity=complexity,
        memory=Memory(),
        profile=before_the_pass(Profile(spec.profile or Profile.NONE), context),
        notes=list(notes),
    )


def seal_all(
    code: int, error: Exception | None, folders: Sequence[Path], *, output: Path, spec: RunSpec, context: Context
) -> list[Path]:
    """Seal the bundles of a trainer that ended with a bug or by `error`; return the folders of all its bundles.

    `code`: the trainer's exit code, which shows a bug. `folders`: bundles that the trainer had opened. If the run in
    progress had no bundle yet, a bundle is written for this run, unless the trainer was interrupted.
    """
    if error is None and code != ExitCode.BUG:
        return list(folders)
    why = error or RunFailedError("the trainer ended with a traceback", hint="")
    for folder in folders:
        # A full disk has been reported by the trainer.
        with suppress(BundleError, OSError):
            seal(folder, spec, context, why)
    is_next = len(folders) < spec.repeats and all(_is_completed(folder) for folder in folders)
    if not is_next or isinstance(why, InterruptedRunError):
        return list(folders)
    numbered = replace(context, repeat=len(folders) + 1, repeats=spec.repeats) if spec.repeats > 1 else context
    return [*folders, write_new(output, spec, numbered, why)]


def status_of(error: Exception) -> Status:
    """Status that run.json records for a run that failed with `error`."""
    match error:
        case OutOfDeviceMemoryError():
            return Status.OUT_OF_MEMORY
        case InterruptedRunError():
            return Status.INTERRUPTED
        case _:
            return Status.FAILED


def _is_completed(folder: Path) -> bool:
    with suppress(BundleError):
        return bundle.read(folder).record.status is Status.COMPLETED
    return False


def write_new(output: Path, spec: RunSpec, context: Context, error: Exception) -> Path:
    """Write a sealed bundle for a trainer that ended before it opened one; return its folder."""
    now, spec = datetime.now(UTC), _filled(spec)
    assert spec.batch_size is not None
    run_id = bundle.make_run_id(
        now=now,
        place=context.place_on(spec.device),
        model=slug(script_name(spec.script)) if spec.script else spec.model,
        batch_size=1 if spec.script else spec.batch_size,
        precision=spec.precision,
    )
    folder = bundle.create(output, run_id)
    seal(folder, spec, context, error)
    return folder


def seal(folder: Path, spec: RunSpec, context: Context, error: Exception) -> None:
    """Seal a bundle that a trainer left open, with the steps that it had flushed; a complete bundle is not changed."""
    if (folder / bundle.MANIFEST).exists():
        return
    if not (folder / bundle.RECORD).exists():
        bundle.write_record(folder, _record(folder.name, _filled(spec), context))
        for name, columns in ((bundle.STEPS, bundle.STEP_COLUMNS), (bundle.TELEMETRY, bundle.TELEMETRY_COLUMNS)):
            if not (folder / name).exists():
                (folder / name).write_text(f"{','.join(columns)}\n", encoding="utf-8")
        with (folder / bundle.LOG).open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} ERROR {error}\n")
    bundle.seal_unfinished(folder, status_of(error), str(error), getattr(error, "hint", ""))


def _filled(spec: RunSpec) -> RunSpec:
    """Fill in defaults without torch; `auto` becomes the device that the trainer would most likely choose."""
    device = spec.device
    if device is Device.AUTO:
        gpu = Device.CUDA if HostSystem().exists("/dev/nvidiactl") else Device.CPU
        device = Device.MPS if sys.platform == "darwin" else gpu
    return spec.filled(device, cpus=1)


def _record(run_id: str, spec: RunSpec, context: Context) -> Record:
    """First record of a run, with the facts that are known without its trainer."""
    # A launcher that starts containers has collected these facts already.
    seen: dict[str, dict[str, object]] = {} if "host" in context.outside else outside_facts()
    sections = {name: {**seen.get(name, {}), **context.outside.get(name, {})} for name in {*seen, *context.outside}}
    device = {"type": spec.device.value, **sections.get("device", {})}
    return first_record(
        run_id,
        context,
        spec=Spec.from_run_spec(spec),
        spec_origin=context.spec_origin,
        facts={"host": {}, "software": {}} | sections | {"device": device},
        started_at=datetime.now(UTC).isoformat(),
        notes=[NOTE],
    )
