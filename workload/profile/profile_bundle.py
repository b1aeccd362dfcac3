"""Profiles a complete bundle: the profile is collected beside the bundle, then put into it and sealed.

The bundle does not change before that: killing the pass loses only the profile.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, assert_never

from workload import log
from workload.contract import bundle, verdict
from workload.contract.bundle import Bundle
from workload.contract.errors import InterruptedRunError, RooflaunchError, UsageError
from workload.contract.process import interruption_deferred, stoppable
from workload.contract.record import Record, Status
from workload.contract.record_sections import ProfileResult
from workload.contract.script_words import redacted, without_secrets_in
from workload.contract.spec import Profile, RunSpec
from workload.profile import command, ncu_pass, profiled_script, torch_pass
from workload.profile.command import Application, ProfileError, ProfileStatus

WORK = "profile.tmp"
# Seconds added to the time limit per second of the run's setup: a script prepares its data again, and ncu patches
# modules as they are loaded.
SETUP_LIMIT_FACTOR = 5
FOLDERS = {Profile.NCU: ncu_pass.FOLDER, Profile.TORCH: torch_pass.FOLDER}


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """Options of a profile that the user typed; None: as in the bundle's own spec."""

    profile: Profile | None = None
    profile_steps: int | None = None
    profile_step_bytes: bool | None = None
    profile_throughput: bool | None = None
    ncu_metrics: str | None = None


def profile(
    folder: Path, request: ProfileRequest, script: Sequence[str] = (), *, data: str | None = None
) -> ProfileResult:
    """Profile the configuration of a bundle and seal the result into it; return run.json's `profile`.

    A pass that collects nothing is recorded, unless the bundle holds an earlier profile, which is then kept. Raises
    `BundleError` or `UsageError` if there is nothing to profile, but never for a failed pass. `script`: the user's own
    script and its arguments as typed, by default those of the bundle. `data`: replaces `{data}` in them.
    """
    profiled = bundle.read(folder)
    spec = wanted_spec(profiled, request)
    words = profiled_script.words_of(profiled, script, spec.profile, data=data)
    application = _application(spec, profiled, words, data)
    with bundle.guarded_writes(folder), _work_folder(folder) as work:
        with log.to_file(work / bundle.LOG):
            collected = _collect(spec, profiled, work, application)
            replaces = _replaces(profiled, collected)
        with interruption_deferred():
            _close(profiled, collected if replaces else None, spec.profile, work)
        return collected


def wanted_spec(profiled: Bundle, request: ProfileRequest) -> RunSpec:
    """Spec of the bundle with the request's profile. Raises `UsageError` if the run cannot be profiled as requested."""
    status = profiled.record.status
    if status is not Status.COMPLETED:
        raise UsageError(
            f"'{profiled.path}' cannot be profiled: the run is '{status}', not completed",
            hint="profile a completed run, or run again with --profile",
        )
    requested: dict[str, Any] = {name: value for name, value in vars(request).items() if value is not None}
    # The spec of a run profiled by ncu may have these options, which torch.profiler does not support.
    if request.profile is Profile.TORCH:
        without = {"profile_step_bytes": False, "profile_throughput": False, "ncu_metrics": None}
        requested = without | requested
    # The recorded spec has all defaults filled in. Options newer than the bundle have their defaults.
    recorded = profiled.record.spec
    if recorded.script and (request.profile_step_bytes or request.profile_throughput):
        raise UsageError(
            "--profile-step-bytes and --profile-throughput repeat the whole program many times, which is "
            "not done with your own script",
            hint="leave them out",
        )
    spec = replace(profiled_script.spec_of(profiled) if recorded.script else recorded.run_spec(), **requested).checked()
    if spec.profile is Profile.NONE:
        raise UsageError(
            f"'{profiled.path}' has no --profile option of its own", hint="--profile ncu, or --profile torch"
        )
    existing = profiled.record.profile
    if existing.is_collected and existing.kind != spec.profile:
        train_again = f"python -m workload train … --profile {spec.profile}"
        script_again = f"python -m rooflaunch script --profile {spec.profile} -- …"
        new_run = script_again if profiled.record.spec.script else train_again
        raise UsageError(
            f"'{profiled.path}' already holds a profile by {existing.kind}; a bundle has only one profile",
            hint=f"make a new run: {new_run}",
        )
    return spec


def _application(spec: RunSpec, profiled: Bundle, script: Sequence[str], data: str | None) -> Application:
    owner = os.getpid()
    if script:
        return Application(
            words=lambda mode, report, warmup: profiled_script.command(script, spec, mode, report, owner, warmup, data),
            shown=redacted,
            without_secrets=without_secrets_in,
            setup_s=SETUP_LIMIT_FACTOR * (profiled.record.timing.setup_s or 0.0),
            is_script=True,
        )
    return Application(
        words=lambda mode, report, warmup: command.profiled_process(
            spec, mode, report, owner, *([warmup] if warmup else [])
        )
    )


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    work = folder / WORK
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _collect(spec: RunSpec, profiled: Bundle, work: Path, application: Application) -> ProfileResult:
    """Run the profile pass and return run.json's `profile`, even if the pass failed; only bugs are raised."""
    try:
        with stoppable():
            return _run(spec, profiled.record, work, application)
    except ProfileError as error:
        failed = error
    except InterruptedRunError as error:
        failed = ProfileError(ProfileStatus.INTERRUPTED, str(error), hint="python -m workload profile BUNDLE")
    except (RooflaunchError, OSError, subprocess.SubprocessError) as error:
        hint = error.hint if isinstance(error, RooflaunchError) else "log.txt in the bundle"
        failed = ProfileError(ProfileStatus.FAILED, str(error), hint=hint)
    log.LOGGER.error("%s", failed.report())
    return failed.recorded(spec.profile)


def _run(spec: RunSpec, record: Record, work: Path, application: Application) -> ProfileResult:
    folder = work / FOLDERS[spec.profile]
    folder.mkdir()
    match spec.profile:
        case Profile.NCU:
            return ncu_pass.profile(spec, record, folder, application)
        case Profile.TORCH:
            return torch_pass.profile(spec, record, folder, application)
        case Profile.NONE:
            raise ValueError("no profile was requested")
        case _:
            assert_never(spec.profile)


def _replaces(profiled: Bundle, collected: ProfileResult) -> bool:
    """Whether to put the result into the bundle: an earlier profile is worth more than the record of a failure."""
    if collected.is_collected or not profiled.record.profile.is_collected:
        return True
    log.LOGGER.info("note       the bundle keeps the profile that it had")
    return False


def _close(profiled: Bundle, collected: ProfileResult | None, kind: Profile, work: Path) -> None:
    """Put log, files and record into the bundle and seal it; with `collected` None the bundle keeps its profile."""
    record = profiled.record
    if collected is not None:
        # Replace the folder `target` by `source`; if `source` has no files, only remove `target`.
        source = work / FOLDERS[kind]
        target = profiled.path / FOLDERS[kind]
        shutil.rmtree(target, ignore_errors=True)
        if source.is_dir() and any(source.iterdir()):
            source.replace(target)
        record = replace(record, profile=collected)
        record = replace(record, bound=verdict.from_record(record))
        if record.bound and record.bound != profiled.record.bound:
            name = verdict.NAMES.get(record.bound.bound, record.bound.bound)
            log.LOGGER.info("note       with the profile, the limit is %s: %s", name, record.bound.why)
    with (profiled.path / bundle.LOG).open("ab") as kept:
        kept.write((work / bundle.LOG).read_bytes())
    shutil.rmtree(work)
    bundle.reseal(profiled.path, record)
