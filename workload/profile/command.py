"""Command lines of a profile pass, and their time limits. Pure functions, which start no process."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from workload.contract.invocation import TRAINER
from workload.contract.record import Record
from workload.contract.spec import Profile, RunSpec, arguments
from workload.profile.metrics import MetricSet

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


class Caches(StrEnum):
    """State of the GPU's caches: flushed before every kernel, or as the step leaves them."""

    ALL = "all"
    NONE = "none"


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
    caches: Caches = Caches.ALL,
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
