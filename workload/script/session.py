"""The measurement of a script: hears what it does, finds its step, counts one, times the others, and ends it.

All of this happens inside the script's own calls: between two of its steps the script waits for us, inside a step it
loses a few microseconds.
"""

import math
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch

from workload import log
from workload.contract.errors import ExitCode, RooflaunchError, UsageError
from workload.contract.interrupt import asked
from workload.contract.spec import Device
from workload.recorder import Aside, StepPart, StepPhase
from workload.script.batches import Batch, Unit, fetched_at, measure
from workload.script.ending import EndOfScript, end_by_force_after
from workload.script.pattern import MOST_SEGMENTS, Pattern, Seen, Segment, StepFinder
from workload.script.program import Program
from workload.script.step import Fetch, Limits, Loader, Step
from workload.script.taker import StepTaker
from workload.script.work import MOST_COUNTED, Work, WorkCounter, chosen, usual

LOGGER = log.LOGGER
# A hand-written update steps no optimizer of torch's, however many backward passes there are.
BACKWARD_WITHOUT_STEP = 2000
API_HINT = (
    "say what a step is, in the script: `import rooflaunch`, then `rooflaunch.step_done()` at its end, or"
    " `with rooflaunch.step():` around it"
)


class Stage(Enum):
    """What the next step is for."""

    SEARCHING = auto()
    COUNTING = auto()
    WARMUP = auto()
    MEASURED = auto()
    OVER = auto()


# Called when the step is known and one has been counted, if it is: returns who takes the steps from here on.
Open = Callable[[Step, Work | None, Device], StepTaker]


@dataclass(kw_only=True)
class _Now:
    """What has happened since the last optimizer step, and since the last end of a step."""

    backward: int = 0
    closures: int = 0
    batches: int = 0
    skipped: int = 0
    fetches: list[Fetch] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)


class Session:
    """Hears the script. `active` while there is something to measure; see `workload.script.hooks.Observer`."""

    def __init__(
        self,
        limits: Limits,
        program: Program,
        open_taker: Open,
        finish: Callable[[], None],
        *,
        goes_on: bool,
        counts: bool = True,
    ) -> None:
        self.active = True
        self.stage = Stage.SEARCHING
        self.refusal: RooflaunchError | None = None
        # What there is to say of a script that does not end when it is asked to, beside that it does not.
        self.unended: RooflaunchError | None = None
        self.bug: Exception | None = None
        self.step: Step | None = None
        self.backward_passes = self.optimizer_steps = 0
        self.skipped: Counter[StepPhase] = Counter()
        self.region: StepTaker | None = None
        self._limits, self._goes_on, self._counts = limits, goes_on, counts
        self._name, self._folder = program.name, program.folder
        self._open, self._finish = open_taker, finish
        self._finder = StepFinder()
        self._optimizers: list[Any] = []
        self._loaders: dict[int, Loader] = {}
        self.thread: int | None = None
        self._by_hand = False
        self._in_optimizer = False
        self._stepped_in_backward: Any = None
        self._steps_in_backward = self._in_backward = False
        # Of what is heard later than it happened: the mark of then, and whether more of the kind follows.
        self._then: Any = None
        self._is_behind = False
        self._now = _Now()
        self._guard = _Guard(self)
        self._device = Device.CPU
        self._counter: WorkCounter | None = None
        self._works: list[Work] = []
        self._recent: list[tuple[int, Unit, int]] = []
        self._last_fetches: list[Fetch] = []
        self._taken = 0
        self._began_s = 0.0

    @property
    def measured_steps(self) -> int:
        """Taken so far."""
        return self._taken if self.stage is Stage.MEASURED else 0

    def silence(self) -> None:
        """This process is a copy of the measured one: nothing of it is heard."""
        self.active = False

    # --- what is heard

    def fetch_began(self) -> None:
        """The time until here was the script's own."""
        if self._is_ours():
            self._mark(Aside.OTHER)

    def fetched(self, loader: Any, batch: Any) -> None:
        """The time since `fetch_began` was a wait for data."""
        if self._is_ours():
            self.came(self.batch_of(loader, batch))

    def batch_of(self, loader: Any, batch: Any) -> Batch | None:
        """What the batch holds; None at the end of the data."""
        if batch is None:
            return None
        try:
            number = id(loader)
            if number not in self._loaders:
                workers = int(getattr(loader, "num_workers", 0))
                self._loaders[number] = Loader(where=fetched_at(self._folder), workers=workers)
            return measure(batch, number)
        except Exception as error:  # noqa: BLE001 - as with the guard, which costs time in each step
            self.failed(error)
            return None

    def came(self, batch: Batch | None) -> None:
        """The time since `fetch_began` was a wait for this batch."""
        parts = self._mark(StepPart.DATA) - 2
        if batch is not None:
            self._now.batches += 1
            self._now.fetches.append(Fetch(batch=batch, parts=max(0, parts)))

    def backward_began(self) -> None:
        """The time until here was the forward pass."""
        if self._is_ours():
            self._in_backward = True
            if self._counter:
                self._counter.in_backward = True
            self._mark(StepPart.FORWARD)

    def backward_ended(self) -> None:
        """The time since then was the backward pass."""
        if not self._is_ours():
            return
        self._in_backward = False
        if self._counter:
            self._counter.in_backward = False
        self._mark(StepPart.BACKWARD)
        self.backward_passes += 1
        if self._in_optimizer:
            self._now.closures += 1
        else:
            self._now.backward += 1
        if self._stepped_in_backward is not None:
            optimizer, self._stepped_in_backward = self._stepped_in_backward, None
            self._optimizer_stepped(optimizer, skipped=False)
        elif self._now.backward >= BACKWARD_WITHOUT_STEP and not self._by_hand:
            self._refuse(
                UsageError(
                    f"{self._now.backward} backward passes and no step of an optimizer of torch.optim",
                    hint=API_HINT,
                )
            )

    def stepping(self, _: Any) -> None:
        """Passes from here on are those of a closure."""
        if self.thread is None or self.thread == threading.get_ident():
            self._in_optimizer = True

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped: a segment of the script's work is over."""
        self._heard_of(optimizer, skipped=False)

    def left_out(self, optimizer: Any) -> None:
        """A GradScaler has left its step out."""
        self._heard_of(optimizer, skipped=True)

    def _heard_of(self, optimizer: Any, *, skipped: bool) -> None:
        if not self.active:
            return
        if self.stage is Stage.OVER:
            raise EndOfScript
        if self.thread is None:
            self.thread = threading.get_ident()
        elif self.thread != threading.get_ident():
            self._refuse(
                UsageError("optimizers step in more than one thread of the script", hint="train in one thread")
            )
        self._in_optimizer = False
        if self._in_backward:
            # An optimizer a parameter, each of which steps as soon as its gradient is there.
            self._stepped_in_backward = self._stepped_in_backward or optimizer
            self._steps_in_backward = True
            return
        self._optimizer_stepped(optimizer, skipped=skipped)

    def saving(self) -> None:
        """The time until here was the script's own."""
        if self._is_ours():
            self._mark(Aside.OTHER)

    def saved(self) -> None:
        """The time since then was a checkpoint's."""
        if self._is_ours():
            self._mark(Aside.CHECKPOINT)

    def step_began(self) -> None:
        """`with rooflaunch.step():`: what came before, but for waits for data, is no part of a step."""
        if not self.active or self.stage is Stage.OVER:
            return
        self._say_by_hand()
        if self.region and self.region.is_open:
            parts = self.region.recorder.mark(Aside.OUTSIDE, self._then)
            self.region.recorder.relabel(parts, Aside.OUTSIDE, but=StepPart.DATA)

    def step_done(self) -> None:
        """The script says that a step is over."""
        if not self.active:
            return
        if self.stage is Stage.OVER:
            raise EndOfScript
        self._say_by_hand()
        self._mark(StepPart.OPTIMIZER)
        with self._guard:
            self._step_ended(is_regular=True)

    def _say_by_hand(self) -> None:
        self.thread = self.thread or threading.get_ident()
        if not self._by_hand:
            self._by_hand = True
            if self.stage is not Stage.SEARCHING:
                self._start_again()
            self._now = _Now()

    # --- what is heard later than it happened

    @property
    def instant(self) -> Callable[[], Any] | None:
        """Reads the clock for what may be heard later; None: it must be heard at once."""
        taker = self.region
        is_on = self.active and self.stage is not Stage.OVER and not self._steps_in_backward
        return taker.instant if is_on and taker and taker.is_open else None

    def patience(self) -> tuple[int, float]:
        """How many steps of optimizers may be told later, and until when on the clock of `time.perf_counter`."""
        warmup, iterations, least_s = self._limits.filled(self._device)
        left = (warmup if self.stage is Stage.WARMUP else iterations) - self._taken
        if left > 0:
            return left * (len(self.step.pattern.segments) if self.step and self.step.pattern else 1), math.inf
        # The steps asked for, but not their least time.
        until_s = self._began_s + least_s
        return (sys.maxsize, until_s) if time.perf_counter() < until_s else (1, math.inf)

    def hear_again(self, events: Sequence[tuple[str, Any, tuple[Any, ...]]], *, is_over: bool) -> None:
        """Method, mark and arguments of each; the script is ended with the last at most, and not if that `is_over`."""
        region, last = self.region, None if is_over else len(events) - 1
        try:
            for place, (name, self._then, details) in enumerate(events):
                self._is_behind = place != last
                getattr(self, name)(*details)
                # What was taken for a step is none: one is looked for in what happens from now on.
                if self.region is not region:
                    return
        finally:
            self._then, self._is_behind = None, False
        # The script has waited for us.
        self._mark(Aside.MEASURING)

    # --- what follows from it

    def _is_ours(self) -> bool:
        is_on = self.active and self.stage is not Stage.OVER
        return is_on and (self.thread is None or self.thread == threading.get_ident())

    def _mark(self, part: StepPart | Aside) -> int:
        return self.region.recorder.mark(part, self._then) if self.region and self.region.is_open else 0

    def _optimizer_stepped(self, optimizer: Any, *, skipped: bool) -> None:
        self._mark(StepPart.OPTIMIZER)
        with self._guard:
            self.optimizer_steps += 1
            now = self._now
            now.skipped += skipped
            segment = Segment(
                optimizer=self._number_of(optimizer),
                backward=now.backward,
                closures=now.closures,
                batches=now.batches,
            )
            now.backward = now.closures = now.batches = 0
            now.segments.append(segment)
            self._refuse_several_processes()
            if not self._by_hand:
                self._follow(self._finder.add(segment))

    def _number_of(self, optimizer: Any) -> int:
        number = next((place for place, known in enumerate(self._optimizers) if known is optimizer), None)
        if number is None:
            number = len(self._optimizers)
            self._optimizers.append(optimizer)
        return number

    def _follow(self, seen: Seen) -> None:
        match seen:
            case Seen.UNKNOWN | Seen.INSIDE:
                if self.stage is Stage.SEARCHING:
                    self._remember()
            case Seen.FOUND:
                self._remember()
                self._found()
            case Seen.STEP:
                self._step_ended(is_regular=True)
            case Seen.IRREGULAR:
                self._step_ended(is_regular=False)
            case Seen.LOST:
                LOGGER.info("script     what was taken for a step is none: looking again")
                self._start_again()
            case Seen.UNCLEAR:
                self._refuse(
                    UsageError(
                        f"{MOST_SEGMENTS} optimizer steps repeat in no order, so it is unclear what a step is",
                        hint=API_HINT,
                    )
                )

    def _remember(self) -> None:
        """Keep what the optimizer's step was made of, until the rule is known."""
        counts = Counter(fetch.batch.unit for fetch in self._now.fetches)
        unit = counts.most_common(1)[0][0] if counts else Unit.STEPS
        self._recent.append((sum(fetch.batch.count for fetch in self._now.fetches), unit, len(self._now.fetches)))
        self._last_fetches = self._now.fetches or self._last_fetches
        self._now = _Now()

    def _start_again(self) -> None:
        if self._counter:
            self._counter.stop()
        self._counter, self._works, self._recent, self._taken = None, [], [], 0
        if self.region:
            self.region.close()
        self.region, self.stage, self._now = None, Stage.SEARCHING, _Now()

    def _found(self) -> None:
        """The rule is known: say it, and count the next step."""
        pattern = self._finder.pattern
        self._describe(pattern)
        self._begin_counting()

    def _describe(self, pattern: Pattern | None) -> None:
        length = len(pattern.segments) if pattern else 1
        # The usual amount of the last few steps: one may hold the short batch at the end of the data.
        sums = [self._recent[end - length : end] for end in range(length, len(self._recent) + 1, length)]
        amounts = Counter((sum(row[0] for row in rows), sum(row[2] for row in rows)) for rows in sums)
        (samples, batches), _ = amounts.most_common(1)[0] if amounts else ((0, 0), 0)
        unit = next((row[1] for row in reversed(self._recent) if row[2]), Unit.STEPS)
        if self._limits.samples_per_step:
            samples, unit = self._limits.samples_per_step, Unit.SAMPLES if unit is Unit.STEPS else unit
        elif not samples:
            samples, unit = 1, Unit.STEPS
        used = {segment.optimizer for segment in pattern.segments} if pattern else set(range(len(self._optimizers)))
        optimizers = [self._optimizers[number] for number in sorted(used)]
        names = tuple(type(optimizer).__name__ for optimizer in self._optimizers)
        loaders = {fetch.batch.loader for fetch in self._last_fetches}
        workers = [self._loaders[number].workers for number in loaders if number in self._loaders]
        self._device = _device_of(optimizers)
        what = pattern.words(names) if pattern else "what the script marks by `import rooflaunch`"
        text = f"a step = {what}, {self._data_words(samples, unit, loaders)}"
        self.step = Step(
            pattern=pattern,
            unit=unit,
            samples=samples,
            batches=max(1, batches),
            text=text,
            optimizers=tuple(type(optimizer).__name__ for optimizer in optimizers),
            parameters=_parameters(optimizers),
            workers=max(workers) if workers else None,
        )
        LOGGER.info("script     %s", text)

    def _data_words(self, samples: int, unit: Unit, loaders: set[int]) -> str:
        if unit is Unit.STEPS:
            return "no batch from a DataLoader: throughput counts steps (--samples-per-step N)"
        places = sorted({self._loaders[number].where for number in loaders if number in self._loaders})
        amount = f"{samples:,} {unit}" if samples != 1 else f"1 {unit.value[:-1]}"
        if self._limits.samples_per_step or not places:
            return f"{amount} (--samples-per-step)"
        return f"{amount} from {'DataLoaders' if len(places) > 1 else 'DataLoader'} at {' and '.join(places)}"

    def _step_ended(self, *, is_regular: bool) -> None:
        now, self._now = self._now, _Now()
        if not self._is_behind and asked():
            raise EndOfScript
        match self.stage:
            case Stage.SEARCHING:
                self._now = now
                self._remember()
                if len(self._recent) > 1:
                    self._describe(None)
                    self._begin_counting()
            case Stage.COUNTING:
                self._counted(now, is_regular=is_regular)
            case Stage.WARMUP | Stage.MEASURED:
                self._timed(now, is_regular=is_regular)
            case Stage.OVER:
                pass

    # --- counting

    def _begin_counting(self) -> None:
        if not self._counts:
            self._begin_taking(None)
            return
        self.stage = Stage.COUNTING
        self._now = _Now()
        if "torch._dynamo" in sys.modules and torch._dynamo.utils.counters["stats"]["unique_graphs"]:  # noqa: SLF001
            torch.compiler.set_stance("force_eager")
        self._counter = WorkCounter(self._device).start()

    def _counted(self, now: _Now, *, is_regular: bool) -> None:
        assert self._counter is not None
        assert self.step is not None
        work = self._counter.stop()
        self._counter = None
        is_whole = is_regular and not now.skipped and not self._excess(now)
        full = sum(fetch.batch.count for fetch in now.fetches) in (0, self.step.samples)
        self._taken += 1
        if is_whole and (full or self._limits.samples_per_step):
            self._works.append(work)
        known = usual(self._works)
        if known is None and self._taken < 2 * MOST_COUNTED and len(self._works) < MOST_COUNTED:
            self._begin_counting()
            return
        if "torch._dynamo" in sys.modules:
            torch.compiler.set_stance("default")
        self._begin_taking(known or chosen(self._works or [work]))

    def _begin_taking(self, work: Work | None) -> None:
        assert self.step is not None
        self._taken, self._now = 0, _Now()
        self.region = self._open(self.step, work, self._device)
        self._enter(Stage.WARMUP if self._limits.filled(self._device)[0] else Stage.MEASURED)

    # --- timing

    def _enter(self, stage: Stage) -> None:
        assert self.region is not None
        self.stage, self._taken = stage, 0
        self.region.enter(StepPhase.WARMUP if stage is Stage.WARMUP else StepPhase.MEASURED)
        self._began_s = time.perf_counter()
        self.region.begin()

    def _excess(self, now: _Now) -> list[Fetch]:
        """The batches before those that the step trained on: of a validation loop, say."""
        assert self.step is not None
        if self.step.pattern is None:
            return []
        extra = len(now.fetches) - self.step.pattern.batches
        if extra <= 0:
            return []
        kept = {fetch.batch.loader for fetch in now.fetches[extra:]}
        is_foreign = any(fetch.batch.loader not in kept for fetch in now.fetches[:extra])
        # One batch more of the same loader is one that is fetched ahead at the beginning of the data.
        return now.fetches[:extra] if extra > 1 or (extra == 1 and is_foreign) else []

    def _timed(self, now: _Now, *, is_regular: bool) -> None:
        assert self.region is not None
        assert self.step is not None
        excess = self._excess(now) if is_regular else []
        if excess and len(excess) < len(now.fetches):
            self.region.recorder.relabel(now.fetches[len(excess)].parts + 1, Aside.VALIDATION)
        kept = now.fetches[len(excess) :]
        images = sum(fetch.batch.count for fetch in kept)
        if self._limits.samples_per_step or len(kept) != self.step.batches or self.step.unit is Unit.STEPS:
            images = self.step.samples
        if is_regular:
            self._taken += 1
            self.skipped[self.region.phase] += now.skipped
        self.region.end(images, is_step=is_regular)
        warmup, iterations, least_s = self._limits.filled(self._device)
        if self.stage is Stage.WARMUP and self._taken >= warmup:
            self.region.leave()
            self._enter(Stage.MEASURED)
            return
        if (
            self.stage is Stage.MEASURED
            and self._taken >= iterations
            and not self._is_behind
            and not self.region.wants_more
            and time.perf_counter() - self._began_s >= least_s
        ):
            self.complete()
            return
        self.region.begin(self._then)

    def complete(self) -> None:
        """All steps are taken: write everything down, then end the script or let it go."""
        assert self.region is not None
        # A script that catches the end and steps again is ended again.
        self.active, self.stage = not self._goes_on, Stage.OVER
        self.region.leave()
        self._finish()
        if not self._goes_on:
            code, last_words = (self.unended.exit_code, self.unended.report()) if self.unended else (ExitCode.DONE, "")
            end_by_force_after(self._name, code, last_words=last_words)
            raise EndOfScript

    # --- refusals

    def _refuse_several_processes(self) -> None:
        distributed = torch.distributed
        if self.stage is Stage.SEARCHING and distributed.is_available() and distributed.is_initialized():
            size = distributed.get_world_size()
            if size > 1:
                self._refuse(
                    UsageError(
                        f"the script trains with {size} processes: a step of several cannot be measured yet",
                        hint="run it as one process on one GPU",
                    )
                )

    def _refuse(self, error: RooflaunchError) -> None:
        self.active, self.stage, self.refusal = not self._goes_on, Stage.OVER, self.refusal or error
        if self._goes_on:
            LOGGER.error("%s", error.report())
            return
        end_by_force_after(self._name, error.exit_code, last_words=error.report())
        raise EndOfScript

    def failed(self, error: Exception) -> None:
        """A bug of ours: the script goes on without us."""
        self.active, self.stage, self.bug = False, Stage.OVER, error
        LOGGER.error("script     not measured any further, for a bug of ours: %r", error)
        LOGGER.debug("%s", "".join(traceback.format_exception(error)))


class _Guard:
    """Keeps what we do wrong out of the script."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, RooflaunchError):
            self._session._refuse(error)  # noqa: SLF001 - a part of it
            return True
        if not isinstance(error, Exception):
            return False
        self._session.failed(error)
        return True


def _device_of(optimizers: list[Any]) -> Device:
    """Where the parameters lie; the host for what we have no clock for."""
    kinds = {parameter.device.type for optimizer in optimizers for parameter in _parameters_of(optimizer)}
    return next((device for device in (Device.CUDA, Device.MPS) if device in kinds), Device.CPU)


def _parameters(optimizers: list[Any]) -> int:
    unique = {id(p): p.numel() for optimizer in optimizers for p in _parameters_of(optimizer)}
    return sum(unique.values())


def _parameters_of(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
