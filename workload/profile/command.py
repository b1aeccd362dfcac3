"""The command lines of a profile pass, and how long they may take. Pure: nothing is started here."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from workload.contract.invocation import TRAINER
from workload.contract.spec import Profile, RunSpec, arguments
from workload.profile.metrics import MetricSet

# cuDNN's autotuning and the allocator have settled by then, also where the timing run warmed up for less.
WARMUP_STEPS = 20
# A step whose optimizer AMP left out is no whole step: it is profiled again, after more warm-up, at most so often.
RETAKES = 2

LOCALE = {"LC_ALL": "C"}  # thousands and decimal marks follow the locale

# An A100 took 0.8 s for a kernel in 3 passes whatever its length: it is ncu's own work between the passes.
KERNEL_S, KERNEL_PASSES = 0.8, 3
KERNEL_LIMIT_S = 2.0
# The profiled process starts slower under ncu than the counting one did: modules are patched as they are loaded.
START_LIMIT_S = 120.0
START_LIMIT_FACTOR = 5
# torch.profiler and its trace: a step takes up to some times as long, and the trace is written afterwards.
TRACE_LIMIT_S = 300.0
TRACE_LIMIT_FACTOR = 20
# Where torch.profiler saw no kernel to count: as many as large models launch in a step.
UNKNOWN_KERNELS = 2000


class Mode(StrEnum):
    """What the profiled process does."""

    COUNT = "count"
    CALIBRATED = "calibrated"
    STEPS = "steps"
    TRACE = "trace"


class Replay(StrEnum):
    """How ncu takes its passes: kernel by kernel, or the whole step by running the application again."""

    KERNEL = "kernel"
    RANGE = "app-range"


class Caches(StrEnum):
    """Flushed before every kernel, or as the step finds them."""

    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class ExpectedTime:
    """Seconds that a run under ncu is expected to take, and may take."""

    expected_s: float
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class Application:
    """The process of ours that is profiled: its command by mode, report and warm-up steps (None: as usual).

    `shown`: the command without secrets. `setup_s`: what its preparation may add to the time limits. `is_script`: a
    step that is no whole one may hold anything, and not only AMP's left-out optimizer.
    """

    words: Callable[[Mode, Path, int | None], list[str]]
    shown: Callable[[Sequence[str]], Sequence[str]] = tuple
    without_secrets: Callable[[str], str] = str
    setup_s: float = 0.0
    is_script: bool = False

    def skipped(self, number: int, steps: int) -> str:
        """What became of steps that were no whole ones."""
        of = f"{number} of {counted_steps(steps)}"
        if not self.is_script:
            return f"AMP skipped {of}"
        return f"{of} held validation, a checkpoint or parts in another order, or had the optimizer left out"


def profiled_process(
    spec: RunSpec, mode: Mode, report: Path, owner: int, warmup_steps: int = WARMUP_STEPS
) -> list[str]:
    """Our own process that trains the steps; it ends itself when the process `owner` is gone."""
    plain = replace(
        spec,
        repeats=1,
        profile=Profile.NONE,
        profile_step_bytes=False,
        profile_throughput=False,
    )
    told = ["--mode", mode, "--report", str(report), "--owner", str(owner)]
    if warmup_steps != WARMUP_STEPS:
        told += ["--warmup-steps", str(warmup_steps)]
    return [*TRAINER, "profiled-step", *told, *arguments(plain)]


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
    """Run `application` under ncu, which writes `report`. The range is what the process marks by cudaProfilerStart.

    Clocks are left alone: locking them to base would show a T4 at 585 of its 1590 MHz.
    """
    # Newer ones collect min, max and average beside each sum unless told otherwise.
    suffixes = ["--disable-extra-suffixes"] if plain_suffixes else []
    # Ranges have no such option: they start with the profiler anyway, and ncu refuses it.
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
    """Print the report as CSV; `--csv` alone would not give base units, whatever the manual says."""
    return [str(ncu), "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]


def quoted(command: Sequence[str], *, under_ncu: bool) -> str:
    """The command as a shell takes it."""
    prefix = "".join(f"{name}={value} " for name, value in LOCALE.items()) if under_ncu else ""
    return prefix + shlex.join(command)


def estimate_kernels(kernels: int | None, passes: int | None, start_s: float) -> ExpectedTime:
    """For kernel replay; `start_s` is what the counting process took to start and warm up."""
    factor = max(1.0, (passes or KERNEL_PASSES) / KERNEL_PASSES)
    number = UNKNOWN_KERNELS if kernels is None else kernels
    return ExpectedTime(
        expected_s=start_s + KERNEL_S * factor * number,
        limit_s=_start_limit_s(start_s) + KERNEL_LIMIT_S * factor * number,
    )


def estimate_range(passes: int | None, start_s: float) -> ExpectedTime:
    """For range replay: the application starts again for every pass."""
    times = passes or KERNEL_PASSES
    return ExpectedTime(expected_s=times * start_s, limit_s=times * _start_limit_s(start_s))


def _start_limit_s(start_s: float) -> float:
    return START_LIMIT_S + START_LIMIT_FACTOR * start_s


def trace_limit_s(step_s: float, steps: int) -> float:
    """For a pass with torch.profiler of `steps` steps, warm-up included, that took `step_s` each without it."""
    return TRACE_LIMIT_S + TRACE_LIMIT_FACTOR * step_s * steps


def counted_steps(number: int) -> str:
    """`1 step`, `4 steps`."""
    return f"{number} step{'s' if number > 1 else ''}"
