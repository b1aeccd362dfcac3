"""Profile pass with torch.profiler: needs no privileges, runs on any device. The pass's process imports no torch.

Its results are a Chrome trace, and a table of the kernels or operators in it.
"""

import csv
import gzip
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workload.contract.fields import from_facts
from workload.contract.record import Record
from workload.contract.record_sections import ProfileResult
from workload.contract.spec import Profile, RunSpec
from workload.profile import command, diagnosis
from workload.profile.command import Application, Mode, ProfileError, ProfileStatus

FOLDER = "torch"
LOG, COMMANDS = "torch.log", "command.txt"
TRACE, TABLE = "trace.json.gz", "kernels.csv"
COLUMNS = ("name", "calls", "total_s", "mean_s", "share")
# Kineto's category of GPU kernels. Copies and fills have their own categories.
KERNEL_CATEGORY = "kernel"
LABEL_CATEGORY = "user_annotation"
US_PER_S = 1e6
TOP = 5
LOOK = f"{FOLDER}/{LOG} in the bundle has the output of the process"

LOGGER = logging.getLogger("workload")


def profile(spec: RunSpec, record: Record, folder: Path, application: Application) -> ProfileResult:
    """Profile the bundle with this `record` and return run.json's `profile`; files go to `folder`, which must exist.

    Raises `ProfileError` if nothing could be collected. The caller must be within `process.stoppable`.
    """
    report = folder / "answer.json"
    words = application.words(Mode.TRACE, report, None)
    line = command.quoted(application.shown(words), under_ncu=False)
    LOGGER.info("profile    %s with torch.profiler", command.counted_steps(spec.profile_steps))
    LOGGER.info("command    %s", line)
    (folder / COMMANDS).write_text(f"{line}\n", encoding="utf-8")
    limit_s = command.trace_limit_s(record, (spec.warmup or 0) + spec.profile_steps + 1) + application.setup_s
    end = command.run(words, log=folder / LOG, limit_s=limit_s)
    hide_secrets(folder / LOG, application)
    if not report.is_file():
        reason = f"the profiled process ended with exit code {end.returncode}"
        raise (
            diagnosis.cut_off(end, limit_s, "before it was complete")
            or diagnosis.own_error(end.output)
            or ProfileError(ProfileStatus.FAILED, reason, hint=LOOK)
        )
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


# --- the trace and its table


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """Total time and number of calls of one GPU kernel over all profiled steps.

    On a CPU a row is an operator, and its time excludes the operators that it calls.
    """

    name: str
    calls: int
    total_s: float


def read(path: Path) -> list[dict[str, Any]]:
    """Events of the Chrome trace in the gzip file `path`."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as text:
        events: list[dict[str, Any]] = json.load(text)["traceEvents"]
    return events


def kernels(events: Iterable[dict[str, Any]]) -> list[TraceRow]:
    """Rows of the GPU kernels, one for each name, with the largest total time first."""
    durations_s: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == KERNEL_CATEGORY:
            durations_s.setdefault(event["name"], []).append(event["dur"] / US_PER_S)
    return rows_of(durations_s)


def rows_of(durations_s: Mapping[str, Sequence[float]]) -> list[TraceRow]:
    """Rows of kernels from the seconds of each call, by name, with the largest total time first."""
    return ordered(TraceRow(name=name, calls=len(times), total_s=sum(times)) for name, times in durations_s.items())


def kernels_within(events: Sequence[dict[str, Any]], labels: Collection[str]) -> list[TraceRow]:
    """GPU kernels that began during a host event named in `labels`, at whose start and end the device must be idle."""
    windows = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == LABEL_CATEGORY and event.get("name") in labels
    ]
    return kernels(event for event in events if any(low <= event.get("ts", -1) <= high for low, high in windows))


def ordered(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """Rows in the order of their total time, longest first."""
    return sorted(rows, key=lambda row: -row.total_s)


def write(path: Path, rows: Sequence[TraceRow]) -> None:
    """Write the rows as CSV."""
    total_s = sum(row.total_s for row in rows)
    with path.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            seconds = (row.total_s, row.total_s / row.calls)
            writer.writerow([row.name, row.calls, *(f"{each:.9f}" for each in seconds), f"{_share(row, total_s):.6f}"])


def top(rows: Sequence[TraceRow], steps: int) -> list[dict[str, Any]]:
    """Name, calls and seconds per step, and share of the time, of the first five rows."""
    total_s = sum(row.total_s for row in rows)
    return [
        {
            "name": row.name,
            "calls_per_step": row.calls / steps,
            "time_s_per_step": row.total_s / steps,
            "share": _share(row, total_s),
        }
        for row in rows[:TOP]
    ]


def _share(row: TraceRow, total_s: float) -> float:
    return row.total_s / total_s if total_s else 0.0
