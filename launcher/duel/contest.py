"""The segments of a duel, one after the other, until it is decided or its budget is used up.

A segment is a run in a process of its own, as every other run: how memory and code lie differs from process to process,
and so do speeds. Two processes that lived as long as the duel would differ by that alone, and the rule would call it a
difference between A and B; a process for every segment makes it part of the noise, which the lot evens out.
"""

import re
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from launcher import sizes
from launcher.duel.sides import Pair, Side
from launcher.machine import local
from launcher.machine.local import LocalOutcome
from launcher.machine.watcher import Trainer, Watcher
from workload.contract import bundle, verdict
from workload.contract.bundle import Bundle, Status
from workload.contract.duel import LEAST_QUADRUPLES, MARGIN, SEGMENTS, DuelState, Segment, judge, order
from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
    ToolError,
    UsageError,
)
from workload.contract.interrupt import SIGNALS_UNTIL_KILLED, handled_by, interruption
from workload.contract.record import JobPlace
from workload.contract.text import counted, minutes, percent

# A margin beyond this is no question of a duel, and one below it takes thousands of segments.
LEAST_MARGIN, MOST_MARGIN = 0.001, 0.5
# The last words of a trainer that failed.
LAST_LINES = 40
# The first quadruples tell how long one takes.
KNOWN_AFTER = 2
ERRORS: dict[int, type[RooflaunchError]] = {
    kind.exit_code: kind for kind in (OutOfDeviceMemoryError, UsageError, ToolError)
}

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """`margin`: a smaller difference is the same."""

    margin: float = MARGIN
    max_time_s: float
    max_segments: int | None = None

    def ended(self, segments: int, elapsed_s: float) -> str | None:
        """Why there is no further quadruple after so many segments in so many seconds; None: there is one."""
        quadruples = segments // SEGMENTS
        if self.max_segments is not None and segments + SEGMENTS > self.max_segments:
            return f"the limit of {self.max_segments} segments was reached"
        if not quadruples:
            return None
        quadruple_s = elapsed_s / quadruples
        allowed = minutes(self.max_time_s)
        if KNOWN_AFTER <= quadruples < LEAST_QUADRUPLES and quadruple_s * LEAST_QUADRUPLES > self.max_time_s:
            least = f"{counted(LEAST_QUADRUPLES, 'quadruple')}, the fewest that decide,"
            return f"{least} take about {minutes(quadruple_s * LEAST_QUADRUPLES)}, and {allowed} were allowed"
        return f"the time of {allowed} was used up" if elapsed_s + quadruple_s > self.max_time_s else None


def make_budget(*, same_within: str, max_time: str, max_segments: int | None) -> Budget:
    """From what was typed. Raises `UsageError`."""
    number = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%", same_within.strip())
    margin = float(number[1]) / 100 if number else 0.0
    if not LEAST_MARGIN <= margin <= MOST_MARGIN:
        raise UsageError(
            f"--same-within must be a share from {percent(LEAST_MARGIN)} to {percent(MOST_MARGIN)}, as 2%;"
            f" got '{sizes.shown(same_within)}'",
            hint="--same-within 2%",
        )
    least = SEGMENTS * LEAST_QUADRUPLES
    if max_segments is not None and max_segments < least:
        raise UsageError(
            f"a verdict takes {least} segments or more; got --max-segments {max_segments}",
            hint=f"--max-segments {least}",
        )
    max_time_s = sizes.parse_duration_s(max_time, "--max-time")
    return Budget(margin=margin, max_time_s=max_time_s, max_segments=max_segments)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A segment: seconds per image of its median step, waits for data included, and of its wall time.

    `busy`: how other work disturbed it, in words; None where none did.
    """

    position: int
    variant: str
    image_s: float
    wall_image_s: float
    folder: Path
    busy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`wall`: what the same rule says of the wall times. `interrupted`: the user ended it."""

    name: str
    state: DuelState
    wall: DuelState
    segments: tuple[Measured, ...]
    elapsed_s: float
    interrupted: InterruptedRunError | None = None


class Measure(Protocol):
    """Runs one segment of a side."""

    def __call__(self, side: Side, *, name: str, position: int) -> Measured:
        """Raises the error of a side that failed, `InterruptedRunError` where the user ended it."""


def new_name() -> str:
    """Of a duel; its digits are the seed of its order."""
    return f"duel-{secrets.token_hex(3)}"


def fight(
    pair: Pair,
    budget: Budget,
    *,
    tell: Tell,
    measure: Measure | None = None,
    name: str | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Alternate until decided. Raises the error of a side that fails."""
    measure, name, began_s = measure or run_segment, name or new_name(), now()
    segments: list[Measured] = []
    interrupted: InterruptedRunError | None = None
    ended: str | None = None
    for position, variant in enumerate(order(int(name.rpartition("-")[2], 16))):
        if position % SEGMENTS == 0:
            state = judge([as_segment(one) for one in segments], margin=budget.margin)
            ended = budget.ended(position, now() - began_s)
            if position:
                tell(state.reason)
            if state.verdict or ended:
                break
        try:
            segments.append(measure(pair.side(variant), name=name, position=position))
        except InterruptedRunError as error:
            interrupted, ended = error, str(error)
            break
    return Outcome(
        name=name,
        state=judge([as_segment(one) for one in segments], margin=budget.margin, ended=ended),
        wall=judge([as_segment(one, wall=True) for one in segments], margin=budget.margin, ended=ended),
        segments=tuple(segments),
        elapsed_s=now() - began_s,
        interrupted=interrupted,
    )


def as_segment(measured: Measured, *, wall: bool = False) -> Segment:
    """As the rule takes it."""
    seconds = measured.wall_image_s if wall else measured.image_s
    return Segment(
        position=measured.position, variant=measured.variant, seconds=seconds, is_busy=measured.busy is not None
    )


# --- one segment


def run_segment(side: Side, *, name: str, position: int) -> Measured:
    """Run it to its end; its bundle says which segment of which duel it is, also where it broke off."""
    block, place = divmod(position, SEGMENTS)
    with _heard() as (watcher, lines, signals):
        outcome = local.run(side.plan, watcher=watcher)
        for one in outcome.bundles:
            job = JobPlace(name=name, variant=side.variant, block=block + 1, position=place + 1)
            bundle.place_in_job(one.path, job)
    if signals:
        raise interruption(signals[0])
    if outcome.exit_code != ExitCode.DONE or not outcome.bundles:
        raise _failed(side, position, outcome, lines)
    return _measured(outcome.bundles[0], side, position)


@contextmanager
def _heard() -> Iterator[tuple[Watcher, deque[str], list[int]]]:
    """A watcher that keeps the trainer's last words, and passes signals on to it, which it keeps too."""
    lines, signals = deque[str](maxlen=LAST_LINES), list[int]()
    trainers: list[Trainer] = []
    lock = threading.Lock()

    def stop(number: int, _: object) -> None:
        signals.append(number)
        impatient = len(signals) >= SIGNALS_UNTIL_KILLED
        for trainer in trainers:
            trainer.signal("SIGKILL" if impatient else signal.Signals(number).name)

    def keep(line: str) -> None:
        with lock:
            lines.append(line)

    def begin(trainer: Trainer) -> None:
        trainers.append(trainer)
        if signals:  # while it was starting
            trainer.signal(signal.Signals(signals[0]).name)

    watcher = Watcher(on_message=keep, on_bundle=lambda _: None, on_started=begin, on_ended=trainers.clear)
    with handled_by(stop):
        yield watcher, lines, signals


def _failed(side: Side, position: int, outcome: LocalOutcome, lines: deque[str]) -> RooflaunchError:
    """Its own error, with the side's name in front."""
    said = {key: text for key, _, text in (line.partition(": ") for line in lines) if key in ("error", "hint")}
    recorded = outcome.bundles[0].record.error if outcome.bundles else None
    if outcome.error:
        why, hint = str(outcome.error), outcome.error.hint
    else:
        # The last line of a traceback names the error, where the bundle has its text alone.
        last = lines[-1] if lines else f"exit code {outcome.exit_code}"
        why = said.get("error") or (last if outcome.exit_code == ExitCode.BUG else recorded) or last
        hint = said.get("hint", "")
    kind = ERRORS.get(outcome.exit_code, RunFailedError)
    where = f"segment {position + 1}, of {side.variant} ({side.label})"
    return kind(f"{where}: {why}", hint=hint or "python -m workload train with its options shows all")


def _measured(sealed: Bundle, side: Side, position: int) -> Measured:
    rate = sealed.record.timing.images_per_s
    steps = [row for row in bundle.read_steps(sealed.path) if row["phase"] == "measured"]
    if sealed.record.status is not Status.COMPLETED or not steps or not rate:
        raise RunFailedError(
            f"segment {position + 1}, of {side.variant} ({side.label}), measured no step",
            hint=f"{sealed.path}/{bundle.LOG} tells",
        )
    image_s = median((float(row["step_s"]) + float(row["data_s"])) / int(row["images"]) for row in steps)
    # A trainer of another version may not say it.
    said = sealed.record.bound.busy if sealed.record.bound else None
    return Measured(
        position=position,
        variant=side.variant,
        image_s=image_s,
        wall_image_s=1 / rate,
        folder=sealed.path,
        busy=said or verdict.competition(sealed.record),
    )
