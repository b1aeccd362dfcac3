"""Measures a script: finds its training step, counts the work of a few steps, times the others, and ends the script.

The measurement happens inside the script's own calls: between two steps the script waits for us, inside a step it loses
a few microseconds.
"""

import math
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from workload import log
from workload.contract.errors import ExitCode, RooflaunchError, UsageError
from workload.contract.process import pending_interruption
from workload.contract.spec import Device
from workload.measure.recorder import Aside, StepPart, StepPhase
from workload.steps.data_length import samples_of_step
from workload.steps.model_input import ModelInput
from workload.steps.program import STEP_HINT, EndOfScript, Program, end_by_force_after, no_optimizer, several_processes
from workload.steps.step import (
    Amount,
    Batch,
    Fetch,
    Inputs,
    Limits,
    OpenStep,
    Optimizers,
    Phase,
    Step,
    StepReceiver,
    describe,
    fetched_at,
    tensors_of,
)
from workload.steps.step_finder import MOST_SEGMENTS, REPEATS, Captures, OptimizerStep, Pattern, Seen, StepFinder
from workload.steps.step_memory import StorageFollower
from workload.steps.step_work import MOST_COUNTED, Evaluations, Site, Work, WorkCounter, chosen, usual

LOGGER = log.LOGGER
# No script accumulates gradients over this many backward passes: a script with so many passes and no optimizer step
# updates its parameters without an optimizer of torch.
BACKWARD_WITHOUT_STEP = 500


class Stage(Enum):
    """Purpose of the next step."""

    SEARCHING = auto()
    FOUND = auto()
    COUNTING = auto()
    WARMUP = auto()
    MEASURED = auto()
    OVER = auto()


# Function that returns the receiver of all later steps. Called when the training step is known and, if counting is on,
# the step's work was counted.
Open = Callable[[Step, Work | None, Device], StepReceiver]
# A buffered event: a method of `Session`, a time mark, and the method's arguments.
Event = tuple[Callable[..., None], Any, tuple[Any, ...]]


class Session:
    """Observer of a script, which the hooks call; `active` while something is left to measure."""

    def __init__(
        self,
        limits: Limits,
        program: Program,
        open_receiver: Open,
        finish: Callable[[], None],
        *,
        goes_on: bool,
        counts: bool = True,
    ) -> None:
        self.active = True
        self.stage = Stage.SEARCHING
        self.refusal: RooflaunchError | None = None
        # Why the script ignored the request to end, if known.
        self.unended: RooflaunchError | None = None
        self.bug: Exception | None = None
        self.step: Step | None = None
        self.phases: list[Phase] = []
        self.backward_passes = self.optimizer_steps = self.gradients = 0
        self.skipped: Counter[StepPhase] = Counter()
        # Data of each step of the phase so far: of the step's unit, sequences of tokens if known, tokens.
        self.amounts: list[tuple[int, int | None, int]] = []
        self.receiver: StepReceiver | None = None
        self.evaluations = Evaluations()
        self._limits, self.goes_on, self._counts = limits, goes_on, counts
        self._name, self._folder = program.name, program.folder
        self._open, self._finish = open_receiver, finish
        self._finder = StepFinder()
        self.optimizers = Optimizers()
        self._loaders = Inputs(program.folder)
        # DataLoaders of the steps whose work is counted, as long as the script keeps them.
        self._counted_loaders = weakref.WeakValueDictionary[int, Any]()
        self.model_input = ModelInput(program.folder)
        self.thread: int | None = None
        self._stepped_in_backward: Any = None
        self.is_marked = self._in_optimizer = self._steps_in_backward = self._in_backward = False
        # While replaying an event: its original time stamp, and whether more events of its kind are queued.
        self._event_mark: Any = None
        self._more_events_follow = False
        self._open_step = OpenStep()
        self._device = Device.CPU
        # Makes the GPU of the step the current one, for clocks, telemetry and facts of the device.
        self._on_gpu: AbstractContextManager[Any] = nullcontext()
        self.captures = Captures()
        self._taken, self._began_s, self._unused = 0, 0.0, ""
        self._memory: StorageFollower | None = None
        self._works, self._recent, self._last_fetches = list[Work](), list[Amount](), list[Fetch]()

    @property
    def measured_steps(self) -> int:
        """Number of measured steps so far."""
        return self._taken if self.stage is Stage.MEASURED else 0

    def in_step(self) -> set[int]:
        """Identities of the DataLoaders and optimizers of the training step."""
        pattern = self.step.pattern if self.step else None
        used = {segment.optimizer for segment in pattern.segments} if pattern else range(len(self.optimizers.known))
        loaders = {fetch.batch.loader for fetch in self._last_fetches} - self._loaders.evaluated
        return self._loaders.identities(loaders) | self.optimizers.identities(used)

    def silence(self) -> None:
        """Stop observing: this process is a forked copy of the measured one."""
        self.active = False

    # --- events

    def fetch_began(self) -> None:
        """Assign the time since the last event to the script's own work."""
        if self._is_observed():
            self._mark(Aside.OTHER)

    def fetched(self, loader: Any, batch: Any) -> None:
        """Assign the time since `fetch_began` to the wait for data."""
        if self._is_observed():
            self.batch_arrived(self.batch_of(loader, batch))

    def batch_of(self, loader: Any, batch: Any) -> Batch | None:
        """Contents of the batch; None at the end of the data."""
        try:
            follow = counter.without_gradients.fetched if (counter := self.evaluations.counter) else None
            found = None if batch is None else self._loaders.batch_of(loader, batch, follow)
            if counter and found:
                self._counted_loaders[found.loader] = loader
            if counter and counter.memory and batch is not None:
                counter.memory.arrived(list(tensors_of(batch)))
        except Exception as error:  # noqa: BLE001 - as with the guard, which costs time in each step
            self.failed(error)
            return None
        return found

    def batch_arrived(self, batch: Batch | None) -> None:
        """Assign the time since `fetch_began` to the wait for this batch."""
        receiver = self.receiver
        if self.evaluations.counter and receiver and receiver.is_open and self.evaluations.ended_at_batch():
            receiver.recorder.relabel(receiver.recorder.mark(Aside.OTHER, self._event_mark), Aside.VALIDATION)
        is_evaluated = self.evaluations.is_on or (batch is not None and batch.loader in self._loaders.evaluated)
        parts = self._mark(Aside.VALIDATION if is_evaluated else StepPart.DATA) - 2
        if batch is not None and not is_evaluated:
            self._open_step.batches += 1
            self._open_step.fetches.append(Fetch(batch=batch, parts=max(0, parts)))

    def backward_began(self, losses: Any = ()) -> None:
        """Assign the time since the last event to the forward pass."""
        if self._is_observed():
            self._in_backward = self.evaluations.in_backward(True, losses)
            self._mark(StepPart.FORWARD)

    def backward_ended(self) -> None:
        """Assign the time since `backward_began` to the backward pass."""
        if not self._is_observed():
            return
        self._in_backward = self.evaluations.in_backward(False)
        self._mark(StepPart.BACKWARD)
        if self.stage is not Stage.COUNTING:
            self.evaluations.classify()
        self.backward_passes += 1
        if self._in_optimizer:
            self._open_step.closures += 1
        else:
            self._open_step.backward += 1
        if self._stepped_in_backward is not None:
            optimizer, self._stepped_in_backward = self._stepped_in_backward, None
            self._optimizer_stepped(optimizer, skipped=False)
        elif self._open_step.backward >= BACKWARD_WITHOUT_STEP and not self.is_marked:
            self.refuse(no_optimizer(f"{self._open_step.backward} backward passes", fetched_at(self._folder)))

    def gradient_taken(self) -> None:
        """Count gradients that `torch.autograd.grad` returned, of a penalty or of the loss."""
        self.gradients += 1
        is_all = self.optimizer_steps == self.backward_passes == 0
        if is_all and self.gradients >= BACKWARD_WITHOUT_STEP and not self.is_marked and self._is_observed():
            what = f"torch.autograd.grad was called {self.gradients} times"
            self.refuse(no_optimizer(what, fetched_at(self._folder)))

    def stepping(self, optimizer: Any) -> None:
        """Count further backward passes as those of a closure, until the step has ended."""
        if self.thread is None or self.thread == threading.get_ident():
            self._in_optimizer = True
            if self.evaluations.counter:
                self.evaluations.counter.stepping(optimizer)

    def left_out(self, optimizer: Any) -> None:
        """End a segment of the script's work: a GradScaler skipped the optimizer's step."""
        self.stepped(optimizer, skipped=True)

    def stepped(self, optimizer: Any, *, skipped: bool = False) -> None:
        """End a segment of the script's work: an optimizer has stepped."""
        if not self.active:
            return
        if self.stage is Stage.OVER:
            raise EndOfScript
        if self.thread is None:
            self.thread = threading.get_ident()
        elif self.thread != threading.get_ident():
            self.refuse(UsageError("the script calls optimizers in more than one thread", hint="train in one thread"))
        self._in_optimizer = False
        if self.captures.is_open:
            self.captures.has_step = True
            return
        if self._in_backward:
            # The script has an optimizer for each parameter, which steps as soon as its gradient is computed.
            self._stepped_in_backward = self._stepped_in_backward or optimizer
            self._steps_in_backward = True
            return
        self._optimizer_stepped(optimizer, skipped=skipped)

    def gradients_off(self, site: Site) -> None:
        """Note that the script has turned gradients off, for an evaluation or for values that the loss uses."""
        if not self._is_observed():
            return
        is_timed = self.stage in (Stage.WARMUP, Stage.MEASURED)
        if is_timed and self.evaluations.sites.get(site) is not False:
            self._mark(Aside.OTHER)
        with self._on_gpu:
            self.evaluations.gradients_off(site, self._device if is_timed and self._counts else None)

    def gradients_on(self) -> None:
        """Note that gradients are on again; an evaluation that ends here counts as validation."""
        if self._is_observed():
            if self.evaluations.is_on:
                self._mark(Aside.VALIDATION)
            self.evaluations.gradients_on()

    def capture_began(self) -> None:
        """Observe nothing until `capture_ended`, and stop counting: while a graph is captured, nothing may wait."""
        if self._is_observed():
            self.captures.is_open = True
            self.evaluations.stop_counting()
            self._follow_no_memory()
            self.stage = Stage.FOUND if self.stage is Stage.COUNTING else self.stage

    def capture_ended(self) -> None:
        """Observe again. If a whole step was captured, all earlier steps only prepared its replays."""
        if self.captures.is_open and self.captures.has_step:
            self._start_again()
            self._finder, self.phases[:] = StepFinder(), []
        self.captures.is_open = False

    def replayed(self) -> None:
        """Note that a CUDA graph was replayed: the work of a step that is being counted is then unknown."""
        if self._is_observed():
            if self.evaluations.counter:
                self.evaluations.counter.has_replay = True
            self.captures.replays += self.captures.has_step
            if error := self.captures.error(is_marked=self.is_marked):
                self.refuse(error)

    # What precedes a checkpoint is the script's own work too.
    saving = fetch_began

    def saved(self) -> None:
        """Assign the time since `saving` to a checkpoint."""
        if self._is_observed():
            self._mark(Aside.CHECKPOINT)

    def step_began(self) -> None:
        """Begin a step at `with rooflaunch.step():`.

        Of the script's work since the previous step, only the waits for data belong to the new step.
        """
        if not self.active or self.stage is Stage.OVER:
            return
        self._use_marks()
        if self.receiver and self.receiver.is_open:
            parts = self.receiver.recorder.mark(Aside.OUTSIDE, self._event_mark)
            self.receiver.recorder.relabel(parts, Aside.OUTSIDE, but=StepPart.DATA)

    def step_done(self) -> None:
        """End a step that the script marks."""
        if not self.active:
            return
        if self.stage is Stage.OVER:
            raise EndOfScript
        self._use_marks()
        self._mark(StepPart.OPTIMIZER)
        self._guarded(self._follow_mark)

    def _use_marks(self) -> None:
        self.thread = self.thread or threading.get_ident()
        if not self.is_marked:
            self.is_marked = True
            if self.stage is not Stage.SEARCHING:
                self._start_again()
            self._open_step = OpenStep()

    # --- replay of buffered events

    @property
    def instant(self) -> Callable[[], Any] | None:
        """Function that reads the clock for an event reported later; None if events must be reported at once."""
        receiver = self.receiver
        is_on = self._is_observed() and not self._steps_in_backward and not self.evaluations.counter
        return receiver.instant if is_on and receiver and receiver.is_open else None

    def buffer_limits(self) -> tuple[int, float]:
        """Number of optimizer steps that may be buffered, and the end of buffering on the clock `time.perf_counter`."""
        warmup, iterations, least_s = self._limits.filled(self._device)
        remaining = (warmup if self.stage is Stage.WARMUP else iterations) - self._taken
        if remaining > 0:
            return remaining * (len(self.step.pattern.segments) if self.step and self.step.pattern else 1), math.inf
        # All requested steps are taken, but the least measuring time has not passed.
        until_s = self._began_s + least_s
        return (sys.maxsize, until_s) if time.perf_counter() < until_s else (1, math.inf)

    def replay(self, events: Sequence[Event], *, is_over: bool) -> None:
        """Replay `events`. Only the last event may end the script, and none if the script `is_over`."""
        last = None if is_over else len(events) - 1
        try:
            for index, (method, self._event_mark, details) in enumerate(events):
                self._more_events_follow = index != last
                method(self, *details)
        finally:
            self._event_mark, self._more_events_follow = None, False
        # The script waited during the replay: count this time as measuring.
        self._mark(Aside.MEASURING)

    # --- reactions

    def _is_observed(self) -> bool:
        is_on = self.active and self.stage is not Stage.OVER and not self.captures.is_open
        return is_on and (self.thread is None or self.thread == threading.get_ident())

    def _mark(self, part: StepPart | Aside) -> int:
        receiver = self.receiver
        if receiver is None or not receiver.is_open:
            return 0
        return receiver.recorder.mark(Aside.VALIDATION if self.evaluations.is_on else part, self._event_mark)

    def _optimizer_stepped(self, optimizer: Any, *, skipped: bool) -> None:
        self._mark(StepPart.OPTIMIZER)
        self._guarded(self._segment_ended, optimizer, skipped)

    def _guarded(self, follow: Callable[..., None], *details: Any) -> None:
        """Call `follow`, and keep our own exceptions out of the script."""
        try:
            follow(*details)
        except RooflaunchError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours
            self.failed(error)

    def _segment_ended(self, optimizer: Any, skipped: bool) -> None:
        self.optimizer_steps += 1
        now = self._open_step
        now.skipped += skipped
        number = self.optimizers.number_of(optimizer)
        segment = OptimizerStep(
            optimizer=number,
            kind=self.optimizers.known[number].kind,
            backward=now.backward,
            closures=now.closures,
            batches=now.batches,
        )
        now.backward = now.closures = now.batches = 0
        if self.stage is Stage.SEARCHING and (error := self._unjoined()):
            self.refuse(error)
        if not self.is_marked:
            self._follow(self._finder.add(segment))

    def _unjoined(self) -> RooflaunchError | None:
        """Error for a script that trains with processes which are not measured."""
        return several_processes()

    def _follow_mark(self) -> None:
        self._step_ended(is_regular=True)

    def _follow(self, seen: Seen) -> None:
        match seen:
            case Seen.UNKNOWN | Seen.INSIDE if self.stage is Stage.SEARCHING:
                self._remember()
            case Seen.FOUND:
                self._remember()
                self._start_phase(self._finder.pattern)
            case Seen.STEP:
                self.phases[-1].steps += 1
                self._step_ended(is_regular=True)
            case Seen.IRREGULAR:
                self._step_ended(is_regular=False)
            case Seen.LOST:
                LOGGER.info("script     the steps have changed: looking for the new training step")
                self._start_again()
            case Seen.UNCLEAR if self._more_events_follow:
                pass
            case Seen.UNCLEAR if self._counts and any(phase.taken for phase in self.phases):
                self.complete()
            case Seen.UNCLEAR:
                self.refuse(
                    UsageError(
                        f"{MOST_SEGMENTS} optimizer steps have no repeating order, so it is unclear what a step is",
                        hint=STEP_HINT,
                    )
                )

    def _remember(self) -> None:
        """Keep the data fetched for an optimizer's step until the training step is known."""
        fetches, self._open_step = self._open_step.fetches, OpenStep()
        self._recent.append(Amount.of(fetches))
        self._last_fetches = fetches or self._last_fetches

    def _start_again(self) -> None:
        self.evaluations.start_again()
        self._follow_no_memory()
        if self.phases and self.stage is Stage.MEASURED:
            self.phases[-1].taken = self._taken
        self._works, self._recent, self._taken = [], [], 0
        if self.receiver:
            self.receiver.close()
        self.receiver, self.stage, self._open_step = None, Stage.SEARCHING, OpenStep()

    def _start_phase(self, pattern: Pattern | None) -> None:
        """Begin a phase whose steps follow `pattern` or, if None, the script's marks; count FLOP in the next step."""
        self._loaders.evaluated.clear()
        self._unused = ""
        self.step = describe(pattern, self._recent, self._loaders.of(self._last_fetches), self.optimizers, self._limits)
        used = {segment.optimizer for segment in pattern.segments} if pattern else range(len(self.optimizers.known))
        self._device, self._on_gpu = self.optimizers.device(used), self.optimizers.on_gpu(used)
        if self.phases and pattern and self.phases[-1].step.is_part_of(pattern):
            self.phases.pop()
        self.phases.append(Phase(step=self.step, steps=REPEATS))
        self._begin_counting()

    def _step_ended(self, *, is_regular: bool) -> None:
        now, self._open_step = self._open_step, OpenStep()
        if not self._more_events_follow and pending_interruption():
            raise EndOfScript
        match self.stage:
            case Stage.SEARCHING:
                self._open_step = now
                self._remember()
                # The first marked step lacks a batch that was fetched before its mark.
                if len(self._recent) >= REPEATS:
                    self._start_phase(None)
            case Stage.FOUND:
                self._begin_counting()
            case Stage.COUNTING:
                self._counted(now, is_regular=is_regular)
            case Stage.WARMUP | Stage.MEASURED:
                self._timed(now, is_regular=is_regular)

    # --- counting

    def _begin_counting(self) -> None:
        self.stage, self._open_step = Stage.FOUND, OpenStep()
        if self._counts and not self._more_events_follow:
            self.stage = Stage.COUNTING
            known = self._memory
            self._memory = known or StorageFollower(self._device.value, self._folder, self.optimizers.living())
            with self._on_gpu:
                self.evaluations.counter = WorkCounter(self._device, self.model_input, self._memory).start()
        elif not self._more_events_follow:
            self._start_receiver(None)

    def _counted(self, now: OpenStep, *, is_regular: bool) -> None:
        assert self.step is not None
        assert self._memory is not None
        has_evaluation, counter, work = self.evaluations.counted()
        memory = self._memory.end_step(self.optimizers.living())
        work = replace(work, memory=replace(memory, sequences=work.entered.samples if work.entered else None))
        # Hooks do not see the backward pass inside `torch.autograd.grad`.
        evaluated = set() if self.gradients else counter.without_gradients.loaders_of_evaluations()
        if self._loaders.leave_out(evaluated, now):
            known, loaders = [Amount.of(now.fetches)], self._loaders.of(now.fetches)
            self.step = describe(self.step.pattern, known, loaders, self.optimizers, self._limits)
            self._unused = "; no backward pass uses the other batches"
        is_whole = not has_evaluation and is_regular and not now.skipped and not now.excess(self.step.pattern)
        full = sum(fetch.batch.count for fetch in now.fetches) in (0, self.step.samples)
        self._taken += 1
        if is_whole and (full or self._limits.samples_per_step):
            tokens = sum(fetch.batch.real_tokens for fetch in now.fetches)
            self._works.append(replace(work, fetched_tokens=tokens))
        if self._has_counted_enough():
            fetches = now.fetches[len(now.excess(self.step.pattern)) :]
            in_pass = samples_of_step(self._counted_loaders, fetches, self._limits.samples_per_step)
            self.step = self.phases[-1].step = replace(self.step, samples_in_pass=in_pass)
            self._start_receiver(usual(self._works) or chosen(self._works or [work]))
        else:
            self._begin_counting()

    def _has_counted_enough(self) -> bool:
        is_known = usual(self._works) is not None
        return is_known or self._taken >= 2 * MOST_COUNTED or len(self._works) >= MOST_COUNTED

    def _start_receiver(self, work: Work | None) -> None:
        assert self.step is not None
        self._taken, self._open_step = 0, OpenStep()
        found = [(each.entered, each.fetched_tokens) for each in self._works]
        self.step = self.phases[-1].step = self.step.entered(found, work.entered if work else None)
        if work and work.memory and self._memory:
            work = replace(work, memory=replace(work.memory, growth_bytes=self._memory.growth_bytes()))
        self._follow_no_memory()
        LOGGER.info("script     %s%s", self.step.text, self._unused)
        try:
            with self._on_gpu:
                self.receiver = self._open(self.step, work, self._device)
        except KeyboardInterrupt:
            # While the ceilings are measured. The script may catch it, and train on.
            self.stage = Stage.FOUND
            raise
        self.skipped = Counter()
        self._enter(Stage.WARMUP if self._limits.filled(self._device)[0] else Stage.MEASURED)

    def _follow_no_memory(self) -> None:
        if self._memory:
            self._memory.stop()
        self._memory, self._works = None, [replace(work, memory=None) for work in self._works]

    # --- timing

    def _enter(self, stage: Stage) -> None:
        assert self.receiver is not None
        self.stage, self._taken = stage, 0
        self.amounts = []
        self.receiver.enter(StepPhase.WARMUP if stage is Stage.WARMUP else StepPhase.MEASURED)
        self._began_s = time.perf_counter()
        self.receiver.begin()

    def _timed(self, now: OpenStep, *, is_regular: bool) -> None:
        assert self.receiver is not None
        assert self.step is not None
        is_regular = not self.evaluations.was_classified() and is_regular
        excess = now.excess(self.step.pattern) if is_regular else []
        if excess and len(excess) < len(now.fetches):
            self.receiver.recorder.relabel(now.fetches[len(excess)].parts + 1, Aside.VALIDATION)
        kept = now.fetches[len(excess) :]
        amount = self.step.amount(kept)
        if is_regular:
            self._taken += 1
            self.skipped[self.receiver.phase] += now.skipped
            self.amounts.append(amount)
        self.receiver.end(amount[0], is_step=is_regular)
        if not self._is_phase_over(self.receiver):
            self.receiver.begin(self._event_mark)
        elif self.stage is Stage.MEASURED:
            self.complete()
        else:
            self.receiver.leave()
            self._enter(Stage.MEASURED)

    def _is_phase_over(self, receiver: StepReceiver) -> bool:
        warmup, iterations, least_s = self._limits.filled(self._device)
        if self.stage is Stage.WARMUP or self._taken < iterations:
            return self.stage is Stage.WARMUP and self._taken >= warmup
        passed_s = time.perf_counter() - self._began_s
        return not self._more_events_follow and not receiver.wants_more and passed_s >= least_s

    def complete(self) -> None:
        """Write the results after the last step, then end the script or let the script continue."""
        # If the script catches the exit and steps again, it is ended again.
        self.active, self.stage = not self.goes_on, Stage.OVER
        if self.receiver:
            self.receiver.leave()
        self._finish()
        if not self.goes_on:
            code, last_words = (self.unended.exit_code, self.unended.report()) if self.unended else (ExitCode.DONE, "")
            end_by_force_after(self._name, code, last_words=last_words)
            raise EndOfScript

    # --- refusals

    def refuse(self, error: RooflaunchError) -> None:
        """End the script because of `error`, or only the measurement if the script goes on."""
        is_first, self.refusal = self.refusal is None, self.refusal or error
        self.active, self.stage = not self.goes_on, Stage.OVER
        if self.goes_on and is_first:
            LOGGER.error("%s", error.report())
        if self.goes_on:
            return
        end_by_force_after(self._name, error.exit_code, last_words=error.report())
        raise EndOfScript

    def failed(self, error: Exception) -> None:
        """Report a bug of ours and stop measuring; the script continues."""
        self.active, self.stage, self.bug = False, Stage.OVER, error
        LOGGER.error("script     not measured any further, because of a bug in rooflaunch: %r", error)
        LOGGER.debug("%s", "".join(traceback.format_exception(error)))
