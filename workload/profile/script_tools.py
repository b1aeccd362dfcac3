"""Profiled run of a script: finds the step again, warms up, profiles the requested steps and ends the script.

Only whole and usual steps are kept. Their parts have the most common order, they contain no validation loop, checkpoint
or step of another kind, and no GradScaler skipped the optimizer.
"""

import functools
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from workload.contract.errors import RunFailedError, ToolError
from workload.contract.operating_system import replace_text
from workload.contract.spec import Device, Precision
from workload.contract.vocabulary import step_range
from workload.measure.clock import clock_for
from workload.measure.recorder import Aside, StepPart, StepPhase
from workload.profile import profiled_step
from workload.profile.command import Mode, counted_steps
from workload.steps.program import Program
from workload.steps.session import Session
from workload.steps.step import Limits, Step
from workload.steps.step_work import Work

# The profile is given up after this many incomplete or unusual steps. The end of an epoch has one such step.
MOST_UNUSUAL = 50
Part = StepPart | Aside
BETWEEN_STEPS = {Aside.VALIDATION, Aside.CHECKPOINT, Aside.IRREGULAR}
# Range for each part of a step; other work between the parts belongs to the forward pass, as in steps.csv. Work outside
# of steps has no range.
RANGES: Mapping[Part, StepPart] = {**{part: part for part in StepPart}, Aside.OTHER: StepPart.FORWARD}


@dataclass(frozen=True, kw_only=True)
class Request:
    """Settings of the pass; `began_s`: start of the process, in seconds of `time.perf_counter`."""

    mode: Mode
    report: Path
    steps: int
    warmup: int
    precision: Precision
    began_s: float


class ProfiledScript:
    """Session whose steps are profiled, and whose result is written to a file afterwards."""

    def __init__(self, request: Request, program: Program) -> None:
        self.is_done = False
        self._request, self._name = request, program.name
        self._tool: Tool | None = None
        self._refuse_profilers()
        # No least measuring time: the tool decides how many steps it needs.
        limits = Limits(warmup=request.warmup, iterations=1, samples_per_step=None, min_seconds=0.0)
        self.session = Session(limits, program, self._open_receiver, self._finish, goes_on=False, counts=False)
        self.session.unended = RunFailedError(
            f"{program.name} ignores the request to exit (it catches SystemExit, or waits for a thread or a "
            "process), but a profile can be written only after it has ended",
            hint="let SystemExit through, as `except Exception:` does",
        )

    def _refuse_profilers(self) -> None:
        start = torch.profiler.profile.start

        @functools.wraps(start)
        def start_alone(profiler: torch.profiler.profile) -> None:
            if not self.is_done and not isinstance(profiler, _Profiler):
                raise _two_profilers()
            start(profiler)

        torch.profiler.profile.start = start_alone  # type: ignore[method-assign, assignment]

    def _open_receiver(self, _: Step, __: Work | None, device: Device) -> "ProfiledSteps":
        match self._request.mode:
            case Mode.TRACE:
                self._tool = Trace(self._request, device)
            case Mode.COUNT:
                self._tool = Count(self._request)
            case Mode.CALIBRATED | Mode.STEPS:
                self._tool = Counters(self._request)
        return ProfiledSteps(self._tool, device, self.session)

    def _finish(self) -> None:
        self.is_done = True

    def write(self) -> None:
        """Write the result, after the script has ended."""
        assert self._tool is not None
        replace_text(self._request.report, json.dumps(self._tool.answer()), durable=False)

    def error_without_profile(self) -> RunFailedError:
        """Error for a script that ended without failure, but before it was profiled."""
        steps = self.session.optimizer_steps
        return RunFailedError(
            f"{self._name} ended after {steps} optimizer step{'' if steps == 1 else 's'}, before the profile of"
            f" {counted_steps(self._request.steps)} was whole",
            hint="fewer --profile-steps, or a script that trains longer",
        )


class ProfiledSteps:
    """Receives a script's steps, which `Region` would time, and passes the steps after the warm-up to the profiler."""

    def __init__(self, tool: "Tool", device: Device, session: Session) -> None:
        self.phase = StepPhase.WARMUP
        self.is_open = False
        # Events must be reported at once, because a profiler starts and stops with the steps.
        self.instant = None
        self._tool, self._session = tool, session
        self._clock = clock_for(device)
        self._number = self._unusual = self._skipped = 0
        self._is_behind_gap = False
        self._parts: list[Part] = []
        self._seen: list[tuple[Part, ...]] = []

    @property
    def recorder(self) -> "ProfiledSteps":
        """Recorder of a step's parts: this object itself."""
        return self

    @property
    def wants_more(self) -> bool:
        """Whether more steps must be profiled."""
        return self._tool.wants_more

    def enter(self, phase: StepPhase) -> None:
        """Begin a phase of steps."""
        self.phase = phase
        self._clock.synchronize()

    def begin(self, mark: None = None) -> None:
        """Begin a step."""
        del mark
        self.is_open, self._parts, self._skipped = True, [], self._session.skipped.total()
        if self.phase is StepPhase.MEASURED:
            self._tool.begin(self._usual)

    @property
    def _usual(self) -> tuple[Part, ...]:
        # If several orders are equally common, take the last one.
        return next((parts for parts, _ in Counter(reversed(self._seen)).most_common(1)), ())

    def mark(self, part: Part, mark: None = None) -> int:
        """End a part of the step; return the number of its parts so far."""
        del mark
        self._parts.append(part)
        if self.phase is StepPhase.MEASURED:
            self._tool.passed(part)
        return len(self._parts)

    def relabel(self, parts: int, aside: Aside, *, but: StepPart | None = None) -> None:
        """Reassign the first `parts` parts to `aside`, except parts of kind `but`."""
        self._parts[:parts] = [part if part is but else aside for part in self._parts[:parts]]

    def end(self, images: int, *, is_step: bool) -> None:
        """End the step; `is_step` is False if it was no training step."""
        del images
        self.is_open = False
        parts = tuple(self._parts)
        if is_step and not BETWEEN_STEPS & set(parts):
            self._seen.append(parts)
        is_skipped = self._skipped != self._session.skipped.total()
        # A step after other work is not whole: in the next run of the script it would not directly follow the warm-up.
        is_whole = is_step and not is_skipped and not self._is_behind_gap and parts == self._usual
        self._is_behind_gap = not is_step
        if self.phase is StepPhase.MEASURED:
            self._unusual += not is_whole
            self._tool.end(self._number, is_whole=is_whole)
            if self._unusual > MOST_UNUSUAL and self._tool.wants_more:
                raise RunFailedError(
                    f"{self._unusual} steps after the warm-up were not complete and equal: they differ in "
                    "their order, contain validation or checkpoints, or a GradScaler skipped the optimizer",
                    hint="--profile-steps 1, or mark the step in the script: `with rooflaunch.step():`",
                )
        self._number += is_step

    def leave(self) -> None:
        """End the phase."""
        self._clock.synchronize()

    def close(self) -> None:
        """Do nothing: no step will follow."""


class _Profiler(torch.profiler.profile):
    """Marks our own profiler, to tell it from the script's."""


def _two_profilers() -> ToolError:
    return ToolError(
        "the script uses torch.profiler itself, and two profilers cannot run at once",
        hint="switch the script's own profiler off for this run",
    )


class Trace:
    """Trace by torch.profiler from the first profiled step to the script's end. An earlier step is timed untraced.

    Only whole steps are kept. The profiler must not be stopped before the script has ended: an operation of the script
    that is still running would write into freed memory.
    """

    def __init__(self, request: Request, device: Device) -> None:
        self.wants_more = True
        self._request, self._device = request, device
        self._clock = clock_for(device)
        self._profiler: torch.profiler.profile | None = None
        self._label: torch.profiler.record_function | None = None
        self._labels = 0
        self._began_s = 0.0
        self._plain_s: float | None = None
        self._first = 0
        # Seconds of each kept step, by its label.
        self._step_s: dict[str, float] = {}

    def begin(self, usual: tuple[Part, ...]) -> None:
        """Open a profiler range, the step's label, which `end` closes; the parts of the usual step are not needed."""
        del usual
        self._clock.synchronize()
        if self._plain_s is not None:
            if self._profiler is None:
                self._start()
            self._label = torch.profiler.record_function(profiled_step.label(self._labels))
            self._label.__enter__()
        self._began_s = time.perf_counter()

    def _start(self) -> None:
        if torch._C._autograd._profiler_enabled():  # noqa: SLF001 - a second one would end the first without a word
            raise _two_profilers()
        self._profiler = _Profiler(activities=profiled_step.activities(self._device))
        self._profiler.start()

    def passed(self, part: Part) -> None:
        """Restart the step's label and clock after a part outside of steps.

        For example, work before `with rooflaunch.step():` is outside.
        """
        if part is Aside.OUTSIDE:
            self._close_label()
            self.begin(())

    def _close_label(self) -> None:
        if self._label:
            self._label.__exit__(None, None, None)
            self._label = None
            self._labels += 1

    def end(self, number: int, *, is_whole: bool) -> None:
        """Keep a whole step's time: under its label or, before the profiler starts, as the time without a profiler."""
        self._clock.synchronize()
        step_s = time.perf_counter() - self._began_s
        self._close_label()
        if is_whole and self._profiler is None:
            self._plain_s = step_s
        elif is_whole:
            self._first = self._first or number
            self._step_s[profiled_step.label(self._labels - 1)] = step_s
        self.wants_more = len(self._step_s) < self._request.steps

    def answer(self) -> dict[str, Any]:
        """Result in the same form as the trace of our own trainer; called after the script has ended."""
        assert self._profiler is not None
        self._profiler.stop()
        answer = profiled_step.write_trace(
            self._profiler,
            self._request.report.parent,
            self._device,
            step_s=self._step_s,
            step_without_profiler_s=self._plain_s,
        )
        return answer | {"warmup_steps": self._first}


class Count:
    """Counts what a run under ncu needs: kernels and seconds of a step, and the number of warm-up steps.

    The warm-up ends before the first series of consecutive whole steps that is as long as the profile needs. The next
    run of the script profiles this series, because a script's steps have the same order in each run.
    """

    def __init__(self, request: Request) -> None:
        self.wants_more = True
        self._request = request
        self._start_s: float | None = None
        self._step_s: list[float] = []
        self._kernels: int | None = None
        self._profiler: torch.profiler.profile | None = None
        self._row = 0
        self._warmup: int | None = None
        self._is_counted = False

    def begin(self, usual: tuple[Part, ...]) -> None:
        """Start the clock and, after enough timed steps, count the kernels of a step."""
        del usual
        torch.cuda.synchronize()
        self._began_s = time.perf_counter()
        if self._start_s is None:
            self._start_s = self._began_s - self._request.began_s
        if len(self._step_s) >= profiled_step.TIMED_STEPS and not self._is_counted:
            self._profiler = _Profiler(activities=[ProfilerActivity.CUDA])
            self._profiler.start()

    def passed(self, part: Part) -> None:
        """Do nothing: only complete steps are timed and counted."""

    def end(self, number: int, *, is_whole: bool) -> None:
        """Keep the time of a whole step or, with the profiler on, its number of kernels."""
        torch.cuda.synchronize()
        step_s = time.perf_counter() - self._began_s
        if self._profiler:
            self._profiler.stop()
            if is_whole:
                self._kernels, self._is_counted = profiled_step.kernels_in(self._profiler), True
            self._profiler = None
        elif is_whole and not self._is_counted:
            self._step_s.append(step_s)
        self._row = self._row + 1 if is_whole else 0
        if self._warmup is None and self._row >= self._request.steps:
            self._warmup = number + 1 - self._request.steps
        self.wants_more = self._warmup is None or not self._is_counted

    def answer(self) -> dict[str, Any]:
        """Result in the same form as the count of our own trainer."""
        step_s = sum(self._step_s) / len(self._step_s)
        answer = profiled_step.count(self._request.precision, step_s=step_s, kernels_per_step=self._kernels)
        return answer | {"start_s": self._start_s, "warmup_steps": self._warmup}


class Counters:
    """Steps under ncu, between start and stop of the profiler, with a range for each part."""

    def __init__(self, request: Request) -> None:
        self.wants_more = True
        self._request = request
        self._is_on = False
        self._taken = self._broken = self._first = 0
        self._usual: tuple[Part, ...] = ()
        self._place = 0
        self._handle: int | None = None

    def begin(self, usual: tuple[Part, ...]) -> None:
        """Start the profiler before the first step, and open the range of the step's first part."""
        if not self._is_on:
            self._is_on = True
            is_calibrated = self._request.mode is Mode.CALIBRATED
            profiled_step.start_profiler(
                profiled_step.calibration_products(self._request.precision) if is_calibrated else {}
            )
        self._usual, self._place = usual, 0
        self._open()

    def _open(self) -> None:
        part = RANGES.get(self._usual[self._place]) if self._place < len(self._usual) else None
        self._handle = torch.cuda.nvtx.range_start(step_range(self._taken, part)) if part else None

    def _shut(self) -> None:
        if self._handle is not None:
            torch.cuda.nvtx.range_end(self._handle)
        self._handle = None

    def passed(self, part: Part) -> None:
        """Close the range of the part that has ended and open the range of the next part."""
        del part
        self._shut()
        self._place += 1
        self._open()

    def end(self, number: int, *, is_whole: bool) -> None:
        """Count the step; stop the profiler after the last requested step."""
        self._shut()
        self._first = self._first or number
        self._taken += 1
        self._broken += not is_whole
        if self._taken >= self._request.steps:
            profiled_step.stop_profiler()
            self.wants_more = False

    def answer(self) -> dict[str, Any]:
        """Numbers of profiled steps, of incomplete profiled steps, and of steps before the first profiled step."""
        return {"steps": self._taken, "skipped_steps": self._broken, "warmup_steps": self._first}


# Profilers of the steps after the warm-up.
Tool = Trace | Count | Counters
