"""Command lines of a profile pass, and their time limits. Pure functions, which start no process."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from threading import Thread
from typing import IO

from workload.contract.errors import ExitCode, InterruptedRunError, RooflaunchError
from workload.contract.invocation import TRAINER
from workload.contract.operating_system import SIGKILL, is_alive, start_child
from workload.contract.process import signal_group
from workload.contract.record import Record
from workload.contract.record_sections import ProfileResult
from workload.contract.spec import Profile, RunSpec, arguments
from workload.contract.trainer import Context
from workload.profile.metrics import MetricSet


class ProfileStatus(StrEnum):
    """Status of a pass. `partial`: `reason` names the missing figures; `unavailable`: not possible on this machine."""

    NOT_REQUESTED = "not requested"
    NOT_PROFILED = "not profiled"
    COMPLETED = "completed"
    PARTIAL = "partial"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"


class ProfileError(RooflaunchError):
    """Reason why there is no profile; the timing run stays valid."""

    exit_code = ExitCode.TOOL

    def __init__(self, status: ProfileStatus, reason: str, *, hint: str) -> None:
        super().__init__(reason, hint=hint)
        self.status = status

    def headline(self) -> str:
        """Text after `error:`."""
        return f"profile {self.status}: {self}"

    def recorded(self, kind: Profile | None = None) -> ProfileResult:
        """Section `profile` of run.json for a pass that ended with this error; `kind`: the requested profile."""
        return ProfileResult(status=self.status, reason=str(self), hint=self.hint, kind=kind)


def unavailable(reason: str, *, hint: str) -> ProfileError:
    """Error for something that the machine lacks or forbids."""
    return ProfileError(ProfileStatus.UNAVAILABLE, reason, hint=hint)


def before_the_pass(profile: Profile, context: Context) -> ProfileResult:
    """Section `profile` of run.json as the timing run writes it, before the profile pass.

    In a sweep each run has its own profile; among the repeats of a run only the first repeat has a profile.
    """
    if profile is Profile.NONE:
        return ProfileResult(status=ProfileStatus.NOT_REQUESTED)
    has_its_own = context.repeat == 1 or context.job is not None
    reason = (
        "the profile pass has not run yet"
        if has_its_own
        else f"the profile is in the bundle of repeat 1 of {context.repeats}"
    )
    return ProfileResult(status=ProfileStatus.NOT_PROFILED, kind=profile, reason=reason)


def was_interrupted(profile: ProfileResult) -> bool:
    """Whether the user ended the pass, or one of its further runs."""
    parts = (profile, profile.step_bytes, profile.throughput)
    return any(part is not None and part.status == ProfileStatus.INTERRUPTED for part in parts)


# Number of warm-up steps. After this many steps cuDNN's autotuning and the allocator have settled, even if the timing
# run had fewer warm-up steps.
WARMUP_STEPS = 20
# If AMP skipped the optimizer in a profiled step, the step is incomplete. The steps are then profiled again after more
# warm-up, at most this many times.
RETAKES = 2

LOCALE = {"LC_ALL": "C"}  # ncu's thousands and decimal marks follow the locale

# On an A100, ncu took 0.8 s for a kernel of any length in 3 passes, because ncu itself works between the passes.
KERNEL_S, KERNEL_PASSES = 0.8, 3
KERNEL_LIMIT_S = 2.0
# Time limit for the start under ncu: START_LIMIT_S seconds plus START_LIMIT_FACTOR times the seconds that the counting
# process took to start. Under ncu a process starts slower, because ncu patches modules as they are loaded.
START_LIMIT_S = 120.0
START_LIMIT_FACTOR = 5
# Time limit with torch.profiler: TRACE_LIMIT_S seconds plus TRACE_LIMIT_FACTOR times the seconds of the steps without a
# profiler. With torch.profiler a step takes a few times as long, and the trace is written afterwards.
TRACE_LIMIT_S = 300.0
TRACE_LIMIT_FACTOR = 20
# Step time in seconds to assume if the run has none.
UNKNOWN_STEP_S = 1.0
# Kernels per step to assume if torch.profiler saw none: large models launch this many.
UNKNOWN_KERNELS = 2000


class Mode(StrEnum):
    """Task of the profiled process."""

    COUNT = "count"
    CALIBRATED = "calibrated"
    STEPS = "steps"
    TRACE = "trace"


class Replay(StrEnum):
    """Unit that ncu repeats for its passes: each kernel, or the whole step by running the application again."""

    KERNEL = "kernel"
    RANGE = "app-range"


@dataclass(frozen=True, kw_only=True)
class ExpectedTime:
    """Expected duration and time limit of a run under ncu, in seconds."""

    expected_s: float
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class Application:
    """Process to be profiled. `words` returns its command for a mode, a report and a number of warm-up steps.

    The command uses the default number of warm-up steps if the number is None. `shown` and `without_secrets` remove
    secrets from a command and from text. `setup_s`: seconds that preparing the process adds to the time limits.
    `is_script`: the process runs a user's script, whose steps may be incomplete for other reasons than an optimizer
    skipped by AMP.
    """

    words: Callable[[Mode, Path, int | None], list[str]]
    shown: Callable[[Sequence[str]], Sequence[str]] = tuple
    without_secrets: Callable[[str], str] = str
    setup_s: float = 0.0
    is_script: bool = False

    def skipped(self, number: int, steps: int) -> str:
        """Part of a sentence: `number` of `steps` steps were incomplete, and the possible reasons."""
        share = f"{number} of {counted_steps(steps)}"
        if not self.is_script:
            return f"AMP skipped {share}"
        return f"{share} contained validation, a checkpoint or parts in another order, or skipped the optimizer"


def profiled_process(
    spec: RunSpec, mode: Mode, report: Path, owner: int, warmup_steps: int = WARMUP_STEPS
) -> list[str]:
    """Command of a trainer process that is profiled; the process ends when the process with the id `owner` is gone."""
    plain = replace(spec, repeats=1, profile=Profile.NONE, ncu_metrics=None)
    plain = replace(plain, profile_step_bytes=False, profile_throughput=False)
    options = ["--mode", mode, "--report", str(report), "--owner", str(owner)]
    if warmup_steps != WARMUP_STEPS:
        options += ["--warmup-steps", str(warmup_steps)]
    return [*TRAINER, "profiled-step", *options, *arguments(plain)]


def profile(
    ncu: Path,
    report: Path,
    metrics: MetricSet,
    application: Sequence[str],
    *,
    replay: Replay = Replay.KERNEL,
    plain_suffixes: bool,
) -> list[str]:
    """Command that runs `application` under ncu, which writes `report`.

    Profiling starts when the application calls cudaProfilerStart. Clocks are not locked to the base clock: a T4 would
    then run at 585 instead of 1590 MHz.
    """
    # Newer versions of ncu also collect min, max and average of each sum by default.
    suffixes = ["--disable-extra-suffixes"] if plain_suffixes else []
    # ncu refuses this option when it replays ranges, which begin only when the profiler starts anyway.
    from_start = ["--profile-from-start", "off"] if replay is Replay.KERNEL else []
    # The GPU's caches are flushed before every kernel, but a range finds them as the step leaves them.
    caches = "all" if replay is Replay.KERNEL else "none"
    return [
        str(ncu),
        *(*from_start, "--target-processes", "all"),
        *("--replay-mode", replay, "--clock-control", "none", "--cache-control", caches),
        *("--nvtx", *suffixes, "--metrics", ",".join(metrics.names)),
        # ncu expands %-macros in the report's name.
        *("-f", "-o", str(report).replace("%", "%%")),
        *application,
    ]


def import_report(ncu: Path, report: Path) -> list[str]:
    """Command that prints the report as CSV; despite the manual, `--csv` alone does not give base units."""
    return [str(ncu), "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]


def quoted(command: Sequence[str], *, under_ncu: bool) -> str:
    """Command as text for a shell; with `under_ncu` the text also sets the locale."""
    prefix = "".join(f"{name}={value} " for name, value in LOCALE.items()) if under_ncu else ""
    return prefix + shlex.join(command)


def estimate_kernels(kernels: int | None, passes: int | None, start_s: float) -> ExpectedTime:
    """Expected and longest seconds of kernel replay; `start_s`: seconds until the counting process had warmed up."""
    factor = max(1.0, (passes or KERNEL_PASSES) / KERNEL_PASSES)
    number = UNKNOWN_KERNELS if kernels is None else kernels
    return ExpectedTime(
        expected_s=start_s + KERNEL_S * factor * number,
        limit_s=_start_limit_s(start_s) + KERNEL_LIMIT_S * factor * number,
    )


def estimate_range(passes: int | None, start_s: float) -> ExpectedTime:
    """Expected and longest seconds of range replay, in which the application starts again for every pass."""
    times = passes or KERNEL_PASSES
    return ExpectedTime(expected_s=times * start_s, limit_s=times * _start_limit_s(start_s))


def _start_limit_s(start_s: float) -> float:
    return START_LIMIT_S + START_LIMIT_FACTOR * start_s


def trace_limit_s(record: Record, steps: int) -> float:
    """Time limit in seconds for torch.profiler; `steps`: number of steps with warm-up, each as long as in `record`."""
    step_s = (record.timing.step_s.median if record.timing.step_s else None) or UNKNOWN_STEP_S
    return TRACE_LIMIT_S + TRACE_LIMIT_FACTOR * step_s * steps


def counted_steps(number: int) -> str:
    """Number of steps as text: `1 step`, `4 steps`."""
    return f"{number} step{'s' if number > 1 else ''}"


# --- the child process of a pass

# When interrupted, ncu writes a report of the kernels so far; for a thousand kernels that takes seconds.
GRACE_S = 30.0
TICK_S = 0.5
READER_LIMIT_S = 5.0
OWNER_CHECK_S = 1.0
# The original function: `os._exit` itself is wrapped while a script is measured.
LEAVE = os._exit

OnLine = Callable[[str], None]
OnTick = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class End:
    """End of a child process; `output`: text that the child printed. `returncode` is negative for a signal."""

    returncode: int
    output: str
    elapsed_s: float
    timed_out: bool = False
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether the child ended by itself with exit code 0."""
        return self.returncode == 0 and not self.timed_out and not self.interrupted


def run(
    command: Sequence[str],
    *,
    log: Path,
    limit_s: float,
    grace_s: float | None = None,
    environment: Mapping[str, str] | None = None,
    on_line: OnLine = lambda _: None,
    on_tick: OnTick = lambda: None,
    monotonic: Callable[[], float] = time.monotonic,
) -> End:
    """Run `command` in its own process group until it ends, reaches its time limit or the user interrupts.

    The caller must be within `process.stoppable`, whose error ends the child: the group gets SIGINT, as from a
    terminal, and after `grace_s` (30 s) SIGKILL. Raises `OSError` if the command cannot be started.
    """
    began_s = monotonic()
    timed_out = interrupted = False
    lines: list[str] = []
    with log.open("a", encoding="utf-8") as kept, _start(command, environment) as child:
        reader = Thread(target=_read, args=(child.stdout, kept, lines, on_line), daemon=True)
        reader.start()
        try:
            timed_out = not _wait(child, began_s + limit_s, on_tick, monotonic)
        except InterruptedRunError:
            interrupted = True
        finally:
            _end_group(child, (GRACE_S if grace_s is None else grace_s) if timed_out or interrupted else 0.0)
        reader.join(READER_LIMIT_S)
    return End(
        returncode=child.returncode,
        output="".join(lines),
        elapsed_s=monotonic() - began_s,
        timed_out=timed_out,
        interrupted=interrupted,
    )


def _start(command: Sequence[str], environment: Mapping[str, str] | None) -> "subprocess.Popen[str]":
    return start_child(
        command,
        apart=sys.platform == "win32",
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _read(source: IO[str], kept: IO[str], lines: list[str], on_line: OnLine) -> None:
    # A leftover process may keep this reader waiting until the log is closed; then a write raises ValueError.
    with suppress(ValueError):
        for line in source:
            kept.write(line)
            kept.flush()
            lines.append(line)
            on_line(line)


def _wait(child: "subprocess.Popen[str]", end_s: float, on_tick: OnTick, monotonic: Callable[[], float]) -> bool:
    """Wait for the child; return whether it ended by `end_s`, a time of the clock `monotonic`."""
    while monotonic() < end_s:
        with suppress(subprocess.TimeoutExpired):
            child.wait(TICK_S)
            return True
        on_tick()
    return child.poll() is not None


def _end_group(child: "subprocess.Popen[str]", grace_s: float) -> None:
    """Interrupt the process group, then kill it: a group outlives its leader if the profiled process hangs."""
    if grace_s:
        signal_group(child, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired, InterruptedRunError):
            child.wait(grace_s)
    signal_group(child, SIGKILL)
    child.wait()


def end_with(owner: int) -> None:
    """End this process, which uses a GPU, when the process `owner` is gone, even by SIGKILL."""

    def watch() -> None:
        while is_alive(owner):
            time.sleep(OWNER_CHECK_S)
        LEAVE(ExitCode.INTERRUPTED)

    Thread(target=watch, daemon=True).start()
