"""Writes steps.csv during the run, from marks of the device's clock; no row is written while a step is open."""

import csv
import time
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from workload.contract.bundle import STEP_COLUMNS, STEPS
from workload.contract.spec import Device
from workload.measure.clock import NO_MARKS, Clock, Collectives, StepMarks

FLUSH_EVERY_S = 1.0
# With this many unread steps the host waits for the device. The ring buffer of `PinnedReader` has room for twice as
# many losses, so no unread loss is overwritten.
MAX_PENDING = 1024


class StepPhase(StrEnum):
    """Phase of a step; warm-up steps are recorded separately."""

    WARMUP = "warmup"
    MEASURED = "measured"


class StepPart(StrEnum):
    """Part of a step that the time since the previous mark belongs to."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Aside(StrEnum):
    """Kind of work of a user's script besides the four parts of a step.

    `OTHER`: work between the parts, such as logging; it counts as forward pass. The time of all other kinds belongs to
    no step: `MEASURING`: the script waits for the measurement itself; `VALIDATION`: an evaluation; `CHECKPOINT`: a file
    is saved; `OUTSIDE`: work before a step that the script marks by `with step():`; `IRREGULAR`: work up to an
    optimizer's step that ends no training step.
    """

    OTHER = "other"
    MEASURING = "measuring"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    OUTSIDE = "outside"
    IRREGULAR = "irregular"


# Tuples, because iterating over an enum's class takes microseconds for each row.
PARTS = tuple(StepPart)
GAPS = tuple(aside for aside in Aside if aside not in (Aside.OTHER, Aside.MEASURING))
# Parts whose time belongs to no step.
NOT_COUNTED = (*GAPS, Aside.MEASURING)


@dataclass(kw_only=True)
class Gap:
    """Gaps of one kind between steps: their number and total seconds."""

    number: int = 0
    seconds: float = 0.0


@dataclass(kw_only=True)
class PhaseTotals:
    """Totals of one phase. `step_s`, `data_s`: seconds of each step, and of its wait for data.

    `ended_at_s`: end of the last step, in seconds since the run began. `pauses`: beginnings and ends of the times that
    belong to no step, on the same clock.
    """

    step_s: "array[float]" = field(default_factory=lambda: array("d"))
    data_s: "array[float]" = field(default_factory=lambda: array("d"))
    images: int = 0
    ended_at_s: float = 0.0
    gaps: dict[Aside, Gap] = field(default_factory=dict)
    measuring_s: float = 0.0
    pauses: list[tuple[float, float]] = field(default_factory=list)


@dataclass(kw_only=True)
class _Pending:
    phase: StepPhase
    images: int
    began: Any
    # Part that the time since the previous mark belongs to, and the mark. One tuple, so that a signal never finds half
    # an entry.
    parts: list[tuple[StepPart | Aside, Any]] = field(default_factory=list)
    loss: Any = None
    is_step: bool = True
    # Mark after the copy of the loss to the host, which is queued after the step.
    done: Any = None
    # Marks of the step's collectives; none in a run of one device.
    collectives: StepMarks = NO_MARKS


class ItemReader:
    """Loss reader for a CPU, where the value is available at once, and for MPS, which has no pinned memory."""

    def put(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss itself as the handle."""
        return loss

    def read(self, handle: torch.Tensor) -> float:
        """Read the tensor's value."""
        return float(handle)


class PinnedReader:
    """Loss reader for CUDA: copies each loss into pinned memory after its step, so that reading never synchronises."""

    def __init__(self) -> None:
        self._ring = torch.empty(2 * MAX_PENDING, dtype=torch.float32, pin_memory=True)
        self._next = 0

    def put(self, loss: torch.Tensor) -> int:
        """Queue the copy of the loss; return its slot in the ring buffer."""
        slot = self._next
        self._ring[slot].copy_(loss, non_blocking=True)
        self._next = (slot + 1) % len(self._ring)
        return slot

    def read(self, handle: int) -> float:
        """Value of the loss in the slot `handle`. The device must have passed a mark that was set after `put`."""
        return float(self._ring[handle])


# Copies a loss to the host without making the host wait for the device.
LossReader = ItemReader | PinnedReader


def loss_reader_for(device: Device) -> LossReader:
    """Loss reader that does not stall this device."""
    return PinnedReader() if device is Device.CUDA else ItemReader()


class Recorder:
    """Collects the marks of each step, and writes its row once the device has passed the step.

    `on_flush` is called after each flush, at most once a second; `started_s`: value of `now` at the run's start.
    """

    on_flush: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        losses: LossReader,
        *,
        started_s: float,
        now: Callable[[], float] = time.perf_counter,
        collectives: Collectives | None = None,
    ) -> None:
        self._file = (folder / STEPS).open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(STEP_COLUMNS)
        self._clock = clock
        self._losses = losses
        self._now = now
        self._collectives = collectives
        # If another rank fails, this process may be killed at any time, so that rows are written at once.
        self._flush_every_s = FLUSH_EVERY_S if collectives is None else 0.0
        self._started_s = started_s
        self._pending: deque[_Pending] = deque()
        self._origin: Any = None
        self._origin_s = 0.0
        self._current: _Pending | None = None
        self._written = 0
        self._gaps_s = 0.0
        self._last_flush_s = now()
        self.totals = {phase: PhaseTotals() for phase in StepPhase}

    def close(self) -> None:
        """Close the file."""
        # The write that failed has reported a full disk. A second error from close would hide the first.
        with suppress(OSError):
            self._file.close()

    def begin(self, phase: StepPhase, images: int, mark: Any = None) -> None:
        """Open a step, now or at `mark`, which was taken earlier."""
        mark = self._clock.mark() if mark is None else mark
        if self._origin is None:
            self._origin, self._origin_s = mark, self._now() - self._started_s
        self._current = _Pending(phase=phase, images=images, began=mark)

    def mark(self, part: StepPart | Aside, mark: Any = None) -> int:
        """Assign the time since the previous mark to `part`; return the number of parts of the step.

        The time ends now, or at `mark`, which was taken earlier.
        """
        assert self._current is not None
        parts = self._current.parts
        parts.append((part, self._clock.mark() if mark is None else mark))
        return len(parts)

    def relabel(self, parts: int, aside: Aside, *, but: StepPart | None = None) -> None:
        """Reassign the first `parts` parts of the open step to `aside`, except parts of kind `but`."""
        assert self._current is not None
        known = self._current.parts
        known[:parts] = [(part if part is but else aside, mark) for part, mark in known[:parts]]

    def end(self, loss: torch.Tensor | None = None, *, images: int | None = None, is_step: bool = True) -> None:
        """Close a step; rows are written at most once a second, between steps.

        `images`: number of images, if unknown when the step began. With `is_step` False the whole time counts as a gap,
        and no row is written.
        """
        assert self._current is not None
        if images is not None:
            self._current.images = images
        self._current.is_step = is_step
        if loss is None:
            self._current.done = self._current.parts[-1][1]
        else:
            self._current.loss = self._losses.put(loss)
            self._current.done = self._clock.mark()
        if self._collectives is not None:
            self._current.collectives = self._collectives.of_step()
        self._pending.append(self._current)
        self._current = None
        if self._now() - self._last_flush_s >= self._flush_every_s:
            self.flush()
        elif len(self._pending) >= MAX_PENDING:
            self.drain()

    def flush(self) -> None:
        """Write the rows of all steps that the device has passed."""
        while self._pending and self._clock.passed(self._pending[0].done):
            self._write(self._pending.popleft())
        if self._collectives is not None:
            self._collectives.flush()
        self._file.flush()
        self._last_flush_s = self._now()
        self.on_flush()

    def drain(self) -> None:
        """Wait for the device, then write every row."""
        self._clock.synchronize()
        self.flush()

    def _write(self, step: _Pending) -> None:
        seconds: dict[StepPart | Aside, float] = dict.fromkeys(PARTS, 0.0)
        earlier, totals = step.began, self.totals[step.phase]
        for part, mark in step.parts:
            part_s = self._clock.seconds_between(earlier, mark)
            seconds[part] = seconds.get(part, 0.0) + part_s
            earlier = mark
            if part in NOT_COUNTED or not step.is_step:
                ended_s = self._origin_s + self._clock.seconds_between(self._origin, mark)
                totals.pauses.append((ended_s - part_s, ended_s))
        measuring_s = seconds.pop(Aside.MEASURING, 0.0)
        totals.measuring_s += measuring_s
        self._gaps_s += measuring_s
        if not step.is_step:
            seconds = {Aside.IRREGULAR: sum(seconds.values())}
        for gap in GAPS:
            if gap in seconds:
                total = totals.gaps.setdefault(gap, Gap())
                total.number, total.seconds = total.number + 1, total.seconds + seconds[gap]
                # Time stamps leave out gaps, as does the measured wall time.
                self._gaps_s += seconds.pop(gap)
        totals.ended_at_s = ended_at_s = self._origin_s + self._clock.seconds_between(self._origin, earlier)
        if not step.is_step:
            # Ranks are compared step by step, so the later steps of a rank that leaves out a step keep their numbers.
            self._written += self._collectives is not None
            return
        data_s = seconds.pop(StepPart.DATA)
        # Other work of a script between the parts of a step, such as logging and schedulers, counts as forward pass.
        seconds[StepPart.FORWARD] += seconds.pop(Aside.OTHER, 0.0)
        step_s = sum(seconds.values())
        cells = [f"{value:.7f}" for value in (ended_at_s - self._gaps_s, step_s, data_s, *seconds.values())]
        loss = "" if step.loss is None else f"{self._losses.read(step.loss):.6g}"
        self._writer.writerow([self._written, step.phase, *cells, step.images, loss])
        if self._collectives is not None:
            marks = [step.began, *(mark for _, mark in step.parts)]
            spans = [(part, since, end) for (part, _), since, end in zip(step.parts, marks, marks[1:], strict=False)]
            self._collectives.write(
                self._written,
                step.collectives,
                began=step.began,
                passes=[(since, end) for part, since, end in spans if part is StepPart.BACKWARD],
                counted=[(since, end) for part, since, end in spans if part not in NOT_COUNTED],
            )
        self._written += 1
        totals.step_s.append(step_s)
        totals.data_s.append(data_s)
        totals.images += step.images
