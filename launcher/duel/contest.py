"""Runs of a duel ("segments"), one after the other, until it is decided or its budget is used up.

Each segment is a process of its own, because the layout of memory and code differs between processes, and so does their
speed. With one long-lived process per side, this difference would look like a difference between A and B. With a
process for every segment, it is part of the noise, which the random order evens out. The segments of a quadruple may be
forks of one process, with one layout: it changes neither variant's order, and the next quadruple has another layout.
"""

import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from launcher import values
from launcher.duel.decision import ERROR, LEAST_QUADRUPLES, MARGIN, SEGMENTS, DuelState, Segment, judge, order
from launcher.machine import local
from launcher.machine.local import LocalOutcome, LocalPlan
from launcher.machine.watcher import Printed, Trainers, Watcher, repeated_every
from workload.contract import bundle, verdict
from workload.contract.bundle import Bundle
from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
    ToolError,
    UsageError,
)
from workload.contract.process import handled_by, interruption
from workload.contract.record import JobPlace, Status
from workload.contract.spent import units_per_s
from workload.contract.text import MINUTE_S, counted, duration, minutes, si
from workload.contract.trainer import Forks

# Range of margins: a larger difference needs no duel, and a smaller one takes thousands of segments.
LEAST_MARGIN, MOST_MARGIN = 0.001, 0.5
# Time for a trainer to seal its bundle before it is killed.
UNTIL_KILLED_S = 20.0
# Steps that differ by less than this share are the same work: batches of padded or random texts differ by less.
SAME_WORK = 0.01
# Unit of throughput if it is unknown what a step trains on.
STEPS = "steps"
# Approximate time for a process to start and to warm up, used to recommend a budget.
START_S = 5.0
# Number of quadruples after which the time per quadruple is known.
KNOWN_AFTER = 2
# Form of the last line of a traceback.
RAISED = re.compile(r"[\w.]+(Error|Exception|Interrupt|Warning)\b")
ERRORS: dict[int, type[RooflaunchError]] = {
    kind.exit_code: kind for kind in (OutOfDeviceMemoryError, UsageError, ToolError, InterruptedRunError)
}

Tell = Callable[[str], None]
Variant = Literal["A", "B"]
VARIANTS: tuple[Variant, Variant] = ("A", "B")


@dataclass(frozen=True, kw_only=True)
class Side:
    """Side of a duel; `label`: name for the user; `plan`: plan of one segment."""

    variant: Variant
    label: str
    plan: LocalPlan


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Sides of a duel. `are_equal`: A and B are the same program with the same options.

    `compares_code`: the sides are commits. `warnings`: sentences on doubts. `facts`: further lines of the plan, each
    with its label.
    """

    a: Side
    b: Side
    are_equal: bool
    compares_code: bool = False
    warnings: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def run_s(self) -> float:
        """Seconds that a run measures, averaged over both sides."""
        return fmean(side.plan.spec.min_seconds or 0.0 for side in (self.a, self.b))

    def side(self, variant: str) -> Side:
        """Side A or B."""
        return self.a if variant == "A" else self.b


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a duel. `same_within`: smallest difference that matters, as a share of A's time."""

    same_within: float = MARGIN
    max_time_s: float
    max_segments: int | None = None

    def warning(self, run_s: float) -> str | None:
        """Warning if the fewest runs that can decide the duel do not fit into the time; else None.

        `run_s`: seconds that a run measures.
        """
        runs = SEGMENTS * LEAST_QUADRUPLES
        if runs * run_s <= self.max_time_s:
            return None
        enough = f"--max-time {ceil(runs * (run_s + START_S) / MINUTE_S)}m"
        return (
            f"no verdict is possible within {minutes(self.max_time_s)}: at least {runs} runs are needed, "
            f"which measure for {minutes(runs * run_s)} and each need some seconds to start; {enough} or a "
            "shorter --min-seconds would do"
        )

    def ended(self, segments: int, elapsed_s: float, fewest: int | None = None, *, begun: int = 0) -> str | None:
        """Reason to stop after this number of segments and seconds; None if another quadruple may run.

        `fewest`: total of quadruples without which a verdict is not plausible. `begun`: how many of the segments were
        measured before these seconds.
        """
        quadruples = segments // SEGMENTS
        if self.max_segments is not None and segments + SEGMENTS > self.max_segments:
            return f"the limit of {self.max_segments} runs was reached"
        if segments < begun + SEGMENTS:
            return None
        quadruple_s = elapsed_s * SEGMENTS / (segments - begun)
        allowed = minutes(self.max_time_s)
        if (
            not begun
            and KNOWN_AFTER <= quadruples < LEAST_QUADRUPLES
            and quadruple_s * LEAST_QUADRUPLES > self.max_time_s
        ):
            least = f"{counted(SEGMENTS * LEAST_QUADRUPLES, 'run')}, the minimum for a verdict,"
            return f"{least} take about {minutes(quadruple_s * LEAST_QUADRUPLES)}, and {allowed} were allowed"
        if elapsed_s + quadruple_s > self.max_time_s:
            return f"the time of {allowed} was used up"
        runs = (fewest or 0) * SEGMENTS
        are_too_many = self.max_segments is not None and runs > self.max_segments
        limit = f"{self.max_segments} runs" if are_too_many else allowed
        is_hopeless = are_too_many or (runs - begun) / SEGMENTS * quadruple_s > self.max_time_s
        return f"given up, because {limit} would not suffice," if is_hopeless else None


def make_limits(*, same_within: str, max_time: str, max_segments: int | None) -> Limits:
    """Parse the options of `launch duel` that set its limits. Raises `UsageError` for an invalid value."""
    margin = values.parse_share(same_within, "--same-within", example="2%", least=LEAST_MARGIN, most=MOST_MARGIN)
    least = SEGMENTS * LEAST_QUADRUPLES
    if max_segments is not None and max_segments < least:
        raise UsageError(
            f"a verdict takes {least} runs or more; got --max-runs {max_segments}", hint=f"--max-runs {least}"
        )
    max_time_s = values.parse_duration_s(max_time, "--max-time")
    return Limits(same_within=margin, max_time_s=max_time_s, max_segments=max_segments)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of one step. `samples`: number of `unit` (images, tokens, samples, or steps if the unit is unknown).

    `flop`: FLOP of a step; None if they were not counted.
    """

    unit: str = "images"
    samples: float
    flop: float | None = None

    def __str__(self) -> str:
        """Words for a table: `16 images and 1.2 GFLOP`."""
        unit = self.unit if self.samples != 1 else singular(self.unit)
        samples = "" if self.unit == STEPS else f"{self.samples:g} {unit}"
        flop = si(self.flop, "FLOP") if self.flop else ""
        return " and ".join(filter(None, (samples, flop))) or "not known"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurement of a segment, in seconds per step and per sample: from the median step, and from the wall time.

    The median step includes waits for data. `files`: hash of the files that a script imported. `busy`: text on how
    other work disturbed the segment; None if no other work did. `faults`: page faults, if they slow the segment down.
    `losses`: of a script's first backward passes, if a change is judged.
    """

    position: int
    variant: str
    step_s: float
    sample_s: float
    wall_step_s: float
    wall_sample_s: float
    work: Work
    folder: Path
    files: str | None = None
    busy: str | None = None
    faults: verdict.PageFaults | None = None
    losses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Figure that compares A and B: seconds per step, or per sample if their steps are not the same work.

    `a`, `b`: the work of a step, None before both are known.
    """

    a: Work | None = None
    b: Work | None = None

    @property
    def is_same_work(self) -> bool:
        """Whether a step of A and a step of B do the same work, as far as known."""
        if self.a is None or self.b is None:
            return True
        is_same_flop = self.a.flop is None or self.b.flop is None or _are_close(self.a.flop, self.b.flop)
        return self.a.unit == self.b.unit and _are_close(self.a.samples, self.b.samples) and is_same_flop

    @property
    def by_sample(self) -> bool:
        """Whether seconds per sample are compared; possible only if both sides count the same unit."""
        return not self.is_same_work and self.a is not None and self.b is not None and self.a.unit == self.b.unit

    @property
    def unit(self) -> str:
        """Unit that throughput counts."""
        return self.a.unit if self.a else STEPS

    @property
    def text(self) -> str:
        """Warning that a step of A and a step of B are not the same work; empty if they are."""
        if self.is_same_work:
            return ""
        how = (
            f"throughput is compared, in {self.unit}/s"
            if self.by_sample
            else "the times of steps are compared nevertheless"
        )
        return f"a step is different work, A {self.a} and B {self.b}: {how}"

    def seconds(self, segment: Measured, *, wall: bool = False) -> float:
        """Seconds of a segment to compare: from the median step, or with `wall` from the wall time."""
        if self.by_sample:
            return segment.wall_sample_s if wall else segment.sample_s
        return segment.wall_step_s if wall else segment.step_s


def singular(unit: str) -> str:
    """Singular of a unit: `image` for `images`."""
    return unit.removesuffix("s")


def _are_close(a: float, b: float) -> bool:
    return abs(a - b) <= SAME_WORK * max(a, b)


def comparison_of(segments: Sequence[Measured]) -> Comparison:
    """Comparison for these segments.

    The first segment of each side decides, so that the comparison never changes during a duel.
    """
    works: dict[str, Work] = {}
    for segment in segments:
        works.setdefault(segment.variant, segment.work)
    return Comparison(a=works.get("A"), b=works.get("B"))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a duel. `state` is judged by the rule, usually by the median step times; `wall` by the wall times.

    `interrupted`: the error if the user ended the duel, else None.
    """

    name: str
    state: DuelState
    wall: DuelState
    segments: tuple[Measured, ...]
    elapsed_s: float
    interrupted: InterruptedRunError | None = None

    @property
    def comparison(self) -> Comparison:
        """Figure by which the sides were compared."""
        return comparison_of(self.segments)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule by which a duel ends before its limits.

    `error`: share of duels whose interval may exclude the truth. `by_wall`: judge by the whole wall time, not by the
    median step. `seeks_faster`: also end a duel in which B is certainly not faster by the margin, however slow it is.
    """

    error: float = ERROR
    by_wall: bool = False
    seeks_faster: bool = False

    def state(self, segments: "Sequence[Measured]", limits: Limits, ended: str | None = None) -> DuelState:
        """State of the duel after these segments."""
        return judge(as_segments(segments, wall=self.by_wall), margin=limits.same_within, error=self.error, ended=ended)

    def is_not_faster(self, segments: "Sequence[Measured]", limits: Limits) -> bool:
        """Whether B is not faster by the margin: false in at most `ERROR` of the duels in which it is."""
        low = judge(as_segments(segments, wall=self.by_wall), margin=limits.same_within, error=2 * ERROR).low
        return low is not None and low > 1 - limits.same_within


class OutOfTimeError(Exception):
    """Error: the duel's time was used up during a segment, which was ended."""


def fight(
    pair: Pair,
    limits: Limits,
    *,
    tell: Tell,
    measure: Callable[..., Measured] | None = None,
    name: str | None = None,
    now: Callable[[], float] = time.monotonic,
    rule: Rule = Rule(),
    begun: Sequence[Measured] = (),
) -> Outcome:
    """Run segments until the duel is decided. Raises the error of a side that fails.

    The digits of `name` are the seed of the random order of A and B. By default, the digits are random too. `measure`:
    a function like `run_segment`. `begun`: the first segments of the duel `name`, measured earlier.
    """
    name, began_s = name or f"duel-{secrets.token_hex(3)}", now()
    segments = [*begun]
    interrupted: InterruptedRunError | None = None
    ended: str | None = None
    with Forks(tell) as forks:
        # Ranks are never forks: neither side is, if one has several.
        forked = None if any(side.plan.spec.ranks > 1 for side in (pair.a, pair.b)) else forks
        run = measure or partial(run_segment, forks=forked)
        for position, variant in enumerate(order(int(name.rpartition("-")[2], 16))):
            if position < len(begun):
                continue
            if position % SEGMENTS == 0:
                state = rule.state(segments, limits)
                ended = limits.ended(position, now() - began_s, state.fewest, begun=len(begun))
                if position == SEGMENTS and (text := comparison_of(segments).text):
                    tell(text)
                if position:
                    tell(state.reason)
                if state.verdict or ended or (rule.seeks_faster and rule.is_not_faster(segments, limits)):
                    break
            left_s = limits.max_time_s - (now() - began_s)
            try:
                segments.append(run(pair.side(variant), name=name, position=position, left_s=left_s, tell=tell))
            except OutOfTimeError:
                ended = f"the time of {minutes(limits.max_time_s)} was used up"
                break
            except InterruptedRunError as error:
                interrupted, ended = error, str(error)
                break
    return Outcome(
        name=name,
        state=rule.state(segments, limits, ended),
        wall=judge(as_segments(segments, wall=True), margin=limits.same_within, ended=ended),
        segments=tuple(segments),
        elapsed_s=now() - began_s,
        interrupted=interrupted,
    )


def as_segments(measured: Sequence[Measured], *, wall: bool = False) -> list[Segment]:
    """Segments with the compared seconds, in the form that `launcher.duel.decision` judges."""
    comparison = comparison_of(measured)
    return [
        Segment(
            position=segment.position,
            variant=segment.variant,
            seconds=comparison.seconds(segment, wall=wall),
            is_busy=segment.busy is not None,
        )
        for segment in measured
    ]


# --- one segment


def run_segment(
    side: Side,
    *,
    name: str,
    position: int,
    left_s: float,
    tell: Tell,
    forks: Forks | None = None,
    also: Watcher | None = None,
) -> Measured:
    """Run a segment to its end. Its bundle records the duel and the position, even if the run broke off.

    After `left_s` seconds the run is ended, and `OutOfTimeError` is raised. Otherwise raises the error of a side that
    failed, or `InterruptedRunError` if the run was ended. `tell` gets lines while it runs. `forks`: starts our trainer
    as a fork. `also`: gets the trainer and its bundle too.
    """
    block, place = divmod(position, SEGMENTS)
    if forks and place == 0:
        # Forks of one server share its memory layout: each quadruple has another one.
        forks.end()
    run = f"run {position + 1}, of {side.variant}"
    printed, trainers = Printed(), Trainers()
    watcher = Watcher(on_message=printed.append, on_started=trainers.started, on_ended=trainers.ended)
    watcher = watcher.with_other(also) if also else watcher
    with (
        handled_by(trainers.pass_on),
        trainers.ended_after(left_s, UNTIL_KILLED_S) as is_late,
        repeated_every(lambda passed_s: tell(f"{run}: {duration(passed_s)} so far")),
    ):
        outcome = local.run(side.plan, watcher=watcher, forks=forks)
        for sealed in outcome.bundles:
            job = JobPlace(name=name, variant=side.variant, block=block + 1, position=place + 1)
            bundle.place_in_job(sealed.path, job)
    if trainers.signals:
        raise interruption(trainers.signals[0])
    is_done = outcome.exit_code == ExitCode.DONE and bool(outcome.bundles)
    if is_late.is_set() and not is_done:
        raise OutOfTimeError
    if not is_done:
        raise _failed(side, position, outcome, printed)
    return measured_of(outcome.bundles[0], side.variant, position, side.label)


def _failed(side: Side, position: int, outcome: LocalOutcome, printed: Printed) -> RooflaunchError:
    record = outcome.bundles[0].record if outcome.bundles else None
    last = printed[-1] if printed else f"exit code {outcome.exit_code}"
    if outcome.error:
        why, hint = str(outcome.error), outcome.error.hint
    elif outcome.exit_code == ExitCode.BUG:
        # The last line of a traceback has the class of the error; the record has only the error's text.
        why, hint = last, ""
    elif record:
        why, hint = record.error or last, record.hint or ""
    else:
        why, hint = printed.message("error") or last, printed.message("hint")
    usual = "run python -m workload train with its options to see the whole error"
    if side.plan.workplace:
        # The script's own message; our trainer reports only the class of its error.
        raised = next((line for line in reversed(printed) if RAISED.match(line)), "")
        why, usual = f"{why}: {raised}" if raised else why, f"python {side.plan.spec.title} alone shows the whole error"
    kind = ERRORS.get(outcome.exit_code, RunFailedError)
    where = f"run {position + 1}, of {side.variant} ({side.label})"
    return kind(f"{where}: {why}", hint=hint or usual)


def measured_of(sealed: Bundle, variant: str, position: int, label: str = "") -> Measured:
    """Measurement of a segment from its bundle. `label`: name of the side. Raises `RunFailedError` without steps."""
    # A step of several devices has the samples of all.
    devices, rate = sealed.record.spec.ranks, units_per_s(sealed.record)
    steps = [row for row in bundle.read_steps(sealed.path) if row["phase"] == "measured"]
    if sealed.record.status is not Status.COMPLETED or not steps or not rate:
        raise RunFailedError(
            f"run {position + 1}, of {variant} ({label or sealed.record.spec.model}), measured no step",
            hint=f"{sealed.path}/{bundle.LOG} gives the reason",
        )
    record = sealed.record
    times = [(float(row["step_s"]) + float(row["data_s"]), int(row["images"]) * devices) for row in steps]
    script = record.spec.script
    work = Work(
        unit=(script and script.unit) or "images",
        samples=median(samples for _, samples in times),
        flop=flop * devices if (flop := record.complexity and record.complexity.train_flop_per_step) else None,
    )
    # A trainer of another version may not record whether the machine was busy.
    recorded_busy = record.bound.busy if record.bound else None
    return Measured(
        position=position,
        variant=variant,
        step_s=median(seconds for seconds, _ in times),
        sample_s=median(seconds / samples for seconds, samples in times),
        wall_step_s=sum(samples for _, samples in times) / rate / len(times),
        wall_sample_s=1 / rate,
        work=work,
        folder=sealed.path,
        files=script.sha256 if script else None,
        busy=recorded_busy or verdict.competition(record),
        faults=verdict.page_faults(record),
        losses=tuple((script and script.losses) or ()),
    )
