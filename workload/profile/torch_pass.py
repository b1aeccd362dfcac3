"""Profile pass with torch.profiler: needs no privileges, runs on any device. The pass's process imports no torch."""

import json
import logging
from dataclasses import replace
from pathlib import Path

from workload.contract.fields import from_facts
from workload.contract.record import Record
from workload.contract.record_sections import ProfileResult
from workload.contract.spec import Profile, RunSpec
from workload.profile import command, diagnosis, supervise
from workload.profile.command import Application, Mode
from workload.profile.status import ProfileError, ProfileStatus

FOLDER = "torch"
LOG, COMMANDS = "torch.log", "command.txt"
LOOK = f"{FOLDER}/{LOG} in the bundle has the output of the process"

LOGGER = logging.getLogger("workload")


def profile(spec: RunSpec, record: Record, folder: Path, application: Application) -> ProfileResult:
    """Profile the bundle with this `record` and return run.json's `profile`; files go to `folder`, which must exist.

    Raises `ProfileError` if nothing could be collected. The caller must be within `interrupt.stoppable`.
    """
    report = folder / "answer.json"
    words = application.words(Mode.TRACE, report, None)
    line = command.quoted(application.shown(words), under_ncu=False)
    LOGGER.info("profile    %s with torch.profiler", command.counted_steps(spec.profile_steps))
    LOGGER.info("command    %s", line)
    (folder / COMMANDS).write_text(f"{line}\n", encoding="utf-8")
    limit_s = command.trace_limit_s(record, (spec.warmup or 0) + spec.profile_steps + 1) + application.setup_s
    end = supervise.run(words, log=folder / LOG, limit_s=limit_s)
    hide_secrets(folder / LOG, application)
    if not report.is_file():
        raise _error_without_trace(end, limit_s)
    traced = from_facts(ProfileResult, json.loads(report.read_text(encoding="utf-8")))
    report.unlink()
    return replace(
        traced,
        status=ProfileStatus.COMPLETED,
        kind=Profile.TORCH,
        device=traced.device or record.environment.device.name,
        elapsed_s=end.elapsed_s,
        files=sorted(f"{FOLDER}/{path.name}" for path in folder.iterdir()),
    )


def hide_secrets(log: Path, application: Application) -> None:
    """Remove secrets from the log, which is shared with the bundle: a user's script may print its arguments."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if text != (shown := application.without_secrets(text)):
        log.write_text(shown, encoding="utf-8")


def _error_without_trace(end: supervise.End, limit_s: float) -> ProfileError:
    reason = f"the profiled process ended with exit code {end.returncode}"
    return (
        diagnosis.cut_off(end, limit_s, "before it was complete")
        or diagnosis.own_error(end.output)
        or ProfileError(ProfileStatus.FAILED, reason, hint=LOOK)
    )
