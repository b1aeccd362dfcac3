"""Runs of a sweep: which a folder has, those of one place with their results so far, and the outcome of the sweep.

Uses no network.
"""

import re
import shlex
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from launcher.machine.task import FINAL
from launcher.protocol.records import NAME, Task, TaskRun
from launcher.sweep import places as stopping
from launcher.sweep.places import Decision, PlacePlan, Until
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode
from workload.contract.invocation import as_typed
from workload.contract.record import Record, Status
from workload.contract.spent import Spent
from workload.contract.text import counted, duration, plain, unbroken, wrapped
from workload.stats.design import Run
from workload.stats.intervals import BlocksInterval
from workload.storage.inventory import SealedRun, sealed_in

TEXT_COLUMN = 16
# Largest number of runs that are named for each reason of failure.
FEW = 3
LOG_HINT = "see log.txt in the run's bundle; the same command repeats the run"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Reason why a requested run has no result; `hint`: the remedy."""

    run: TaskRun
    why: str
    hint: str
    code: int = ExitCode.RUN_FAILED


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended, according to its bundle; `path`: None if the bundle is not in the folder of results.

    `position`: position in the block as measured; a matrix that got more configurations since has another order.
    """

    status: Status
    images_per_s: float | None = None
    path: Path | None = None
    position: float | None = None

    @classmethod
    def of(cls, record: Record, path: Path) -> Self:
        """Read from the record of a sealed bundle how its run ended."""
        rate = record.timing.images_per_s if record.timing else None
        position = record.job.position if record.job else None
        return cls(status=Status(record.status), images_per_s=rate, path=path, position=position)


@dataclass(frozen=True, kw_only=True)
class ExistingRuns:
    """Sealed runs of a folder. `by_key`: runs that need no repetition; `damaged`: damage of a bundle, by run_id."""

    runs: tuple[SealedRun, ...]
    by_key: Mapping[str, SealedRun]
    damaged: Mapping[str, str]

    def done(self, plan: PlacePlan) -> frozenset[str]:
        """Keys of a place's runs that need not run again."""
        return frozenset(run.run_key for run in plan.runs if run.run_key in self.by_key)

    def out_of_memory(self, plan: PlacePlan) -> frozenset[str]:
        """Keys of this plan's runs that ran out of memory."""
        return frozenset(key for key in self.done(plan) if self.by_key[key].status == Status.OUT_OF_MEMORY)

    def verified(self, keys: Collection[str], results: Path) -> "ExistingRuns":
        """Copy without the runs of these keys whose bundle is damaged."""
        damaged: dict[str, str] = {}
        for run in self.runs:
            if run.run_key in keys and run.status in FINAL:
                try:
                    bundle.read(results / run.run_id)
                except BundleError as error:
                    damaged[run.run_id] = str(error).removeprefix(f"'{results / run.run_id}' is damaged: ")
        return _existing([run for run in self.runs if run.run_id not in damaged], damaged)


def existing_runs(results: Path) -> ExistingRuns:
    """Read the manifests of a folder's bundles. A key counts as done if any bundle with the key has a final status."""
    return _existing(sealed_in(results), {})


def _existing(sealed: Iterable[SealedRun], damaged: Mapping[str, str]) -> ExistingRuns:
    runs = tuple(sealed)
    by_key = {run.run_key: run for run in runs if run.run_key and run.status in FINAL}
    return ExistingRuns(runs=runs, by_key=by_key, damaged=damaged)


class PlaceWork:
    """Runs of one place; safe to share between threads.

    `known`: by key, how runs with a sealed bundle ended, at this place or another.
    `until`: rule for when to stop adding blocks; None: add no blocks.
    """

    def __init__(self, plan: PlacePlan, *, known: dict[str, Ended], until: Until | None = None) -> None:
        # `plan` grows by the blocks that `--until` adds. `decision`: the last of `--until`, None before the first.
        self.plan, self._until = plan, until
        self.decision: Decision | None = None
        # Number of runs that ended during this process.
        self.new_runs = 0
        # Cost in USD, uploads and number of requests by kind, of the machines of a rented place.
        self.usd: float | None = None
        self.uploads: Sequence[Spent] = ()
        self.calls: Mapping[str, int] = {}
        self._lock = threading.RLock()
        self._ended: dict[str, Ended] = {}
        self._failures: dict[str, Failure] = {}
        self._asked = {run.run_key: run for run in plan.runs}
        # Keys of the runs that ran out of memory. Runs left out because of them: by key, the size of the smaller batch.
        self._out_of_memory: frozenset[str] = frozenset()
        self._too_large: dict[str, int] = {}
        # Number of figures when blocks were last added. If the number has not grown since, no more blocks are added.
        self._figures_at_last_addition = -1
        self._spent: list[Spent] = []
        for key in plan.done:
            self._ended[key] = known.get(key, Ended(status=Status.COMPLETED))
        for key, ended in known.items():
            if key in self._asked and ended.status in FINAL:
                self._ended[key] = ended

    @property
    def name(self) -> str:
        return self.plan.place.name

    @property
    def runs(self) -> tuple[TaskRun, ...]:
        """All requested runs, done or not."""
        return self.plan.runs

    @property
    def spent(self) -> Spent:
        """Where the time of the new runs went, and of the uploads."""
        with self._lock:
            return Spent.total([*self._spent, *self.uploads])

    def has(self, run_key: str) -> bool:
        """Whether a key belongs to a run of this place."""
        with self._lock:
            return run_key in self._asked

    def status(self, run_key: str) -> Status | None:
        """Status of a run that need not run again; None for any other run."""
        with self._lock:
            ended = self._ended.get(run_key)
            return ended.status if ended else None

    def statuses(self) -> dict[str, str]:
        """Status by key of all runs that need not run again."""
        with self._lock:
            return {key: ended.status.value for key, ended in self._ended.items()}

    def take(self, record: Record, path: Path, whole_s: float | None = None) -> TaskRun | None:
        """Record a sealed bundle. Returns its run; None if the run does not belong to this place.

        A run that was interrupted from outside counts as not begun. `whole_s`: seconds of the whole process.
        """
        with self._lock:
            run = self._asked.get(record.run_key or "")
            if run is None:
                return None
            if record.status in FINAL:
                if run.run_key not in self._ended:
                    self.new_runs += 1
                    self._spent.append(Spent.of(record, whole_s))
                self._ended[run.run_key] = Ended.of(record, path)
                self._failures.pop(run.run_key, None)
            elif record.status is Status.FAILED:
                self.fail([run], why=record.error or "it failed", hint=LOG_HINT)
            return run

    def settle(self, run_key: str, status: Status) -> None:
        """Record that the store has a sealed bundle of a run, before it is fetched."""
        with self._lock:
            if run_key in self._asked and status in FINAL:
                self._ended.setdefault(run_key, Ended(status=status))

    def lose(self, run_key: str) -> None:
        """Mark a settled run as missing again, because its bundle in the store is damaged."""
        with self._lock:
            if (ended := self._ended.get(run_key)) and ended.path is None:
                del self._ended[run_key]

    def fail(self, runs: Iterable[TaskRun], *, why: str, hint: str, code: int = ExitCode.RUN_FAILED) -> None:
        """Mark runs as failed, so that this process does not try them again."""
        with self._lock:
            for run in runs:
                if run.run_key not in self._ended:
                    self._failures[run.run_key] = Failure(run=run, why=why, hint=hint, code=code)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Failures in the order of the runs, without runs that are left out."""
        with self._lock:
            keys = self._failures.keys() - self._closed()
            return tuple(self._failures[key] for key in self._asked if key in keys)

    @property
    def too_large(self) -> dict[str, int]:
        """Runs left out because a smaller batch ran out of memory: by key, the size of that batch."""
        with self._lock:
            keys = frozenset(key for key, ended in self._ended.items() if ended.status is Status.OUT_OF_MEMORY)
            if keys != self._out_of_memory:
                self._out_of_memory, self._too_large = keys, self.plan.too_large(keys)
            return {key: size for key, size in self._too_large.items() if key not in self._ended}

    @property
    def done(self) -> int:
        """Number of runs with nothing left to do: the run has ended, or its batch is too large."""
        with self._lock:
            return len(self._ended) + len(self.too_large)

    @property
    def to_do(self) -> int:
        """Number of runs that have neither a result nor a failure, and are not left out."""
        return len(self.runs) - self.done - len(self.failures)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len({run.block for run in self.runs})

    def counts(self) -> dict[str, int]:
        """Numbers of blocks and runs, done and in total, by their names in `PlaceState`."""
        with self._lock:
            closed = self._closed()
            open_blocks = {run.block for run in self.runs if run.run_key not in closed}
            blocks_done = self.blocks - len(open_blocks)
            return {"blocks_done": blocks_done, "blocks": self.blocks, "done": self.done, "runs": len(self.runs)}

    def open_tasks(self, without: Collection[str] = ()) -> tuple[Task, ...]:
        """Tasks with the runs that have not ended, failed or been left out, and whose keys are not in `without`."""
        with self._lock:
            return self.plan.without({*self._closed(), *self._failures, *without})

    def remaining(self, runs: Iterable[TaskRun]) -> tuple[TaskRun, ...]:
        """Subset of `runs`: runs that have neither ended nor failed, and are not left out."""
        with self._lock:
            closed = {*self._closed(), *self._failures}
            return tuple(run for run in runs if run.run_key not in closed)

    @property
    def not_begun(self) -> tuple[TaskRun, ...]:
        """Runs that were never begun: they have neither a result nor a failure."""
        return self.remaining(self.runs)

    def _closed(self) -> set[str]:
        return {*self._ended, *self.too_large}

    # Methods for the blocks that --until adds.

    @property
    def figures(self) -> list[Run]:
        """Images per second of every completed run whose bundle is in the folder of results, block after block."""
        with self._lock:
            return [
                Run(figure=ended.images_per_s, configuration=run.spec, block=run.block, position=ended.position)
                for run in sorted(self._asked.values(), key=lambda run: run.block)
                if (ended := self._ended.get(run.run_key)) is not None and ended.images_per_s
            ]

    def add_blocks(self) -> int:
        """Add the blocks that `--until` asks for, and return their number. Call only while no run is under way."""
        with self._lock:
            if self._until is None:
                return 0
            figures = self.figures
            self.decision = stopping.decide(self._until, self.plan.configurations, figures)
            count = len(figures)
            most = self._until.most
            add = self.decision.add if most is None else min(self.decision.add, most - self.blocks)
            if self.decision.is_done or add <= 0 or count == self._figures_at_last_addition:
                return 0
            self._figures_at_last_addition = count
            self.plan = self.plan.with_blocks(self.blocks + add)
            self._asked = {run.run_key: run for run in self.plan.runs}
            self._out_of_memory = frozenset()
            return add


def configuration_text(run: TaskRun, plan: PlacePlan) -> str:
    """Name of a run in messages: its configuration."""
    texts = {configuration.spec: configuration.text for configuration in plan.configurations}
    batch = "" if run.spec.batch_size is None else f", batch {run.spec.batch_size}"
    return texts.get(run.spec) or f"{run.spec.model}{batch}, {run.spec.precision}"


def rate_text(record: Record) -> str:
    """Throughput in words, in the unit that the run counts: `250 images/s`; with several devices: of each."""
    unit = (record.spec.script and record.spec.script.unit) or "images"
    devices = record.spec.ranks
    each = f" on each of {devices:g} devices" if devices > 1 else ""
    return f"{plain(record.timing.images_per_s or 0.0, 4)} {unit}/s{each}"


def too_large_text(batch_size: int | str) -> str:
    """Reason why a run is left out. `batch_size`: the smaller batch size that ran out of memory."""
    return f"batch {batch_size} of the same configuration ran out of memory here"


def progress_text(work: PlaceWork, run: TaskRun, result: str) -> str:
    """Message on an ended run: `3/18  block 1, resnet18: 250 images/s`."""
    name = configuration_text(run, work.plan)
    return f"{work.done}/{len(work.runs)}  block {run.block}, {name}: {result}"


# The outcome: runs done at each place, failures with their remedies, and the commands to type next.


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """Outcome of a sweep at all places.

    `why_not`: reason why no more runs were started, or empty; `exit_code`: see `exit_code_of`.
    """

    name: str
    places: tuple[PlaceWork, ...]
    output: Path
    exit_code: int
    seconds: float
    why_not: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 1),
            "why_not": self.why_not or None,
            "places": [_to_json(place) for place in self.places],
        }

    def text(self, width: int | None = None) -> str:
        """Text for a person: how many runs are done, why the rest are not, and what to type next."""
        rows = [row for place in self.places for row in _rows(place, self.why_not)]
        rows.append(("took", duration(self.seconds)))
        if any(place.done for place in self.places):
            folder = shlex.quote(str(self.output))
            rows += [("next", unbroken(f"analyze compare {folder}")), ("next", unbroken(f"analyze report {folder}"))]
        return "\n".join(wrapped(as_typed(text), width, indent=TEXT_COLUMN, first=f"  {label}") for label, text in rows)


def exit_code_of(places: Sequence[PlaceWork], *, was_interrupted: bool) -> int:
    """Exit code of a sweep: 130 (interrupted); 0 (every run has a result or is too large); else 6 (runs failed).

    If no run is done and all failures have the same code, the sweep has this code.
    """
    if was_interrupted:
        return ExitCode.INTERRUPTED
    codes = {failure.code for place in places for failure in place.failures}
    if not codes and not any(place.not_begun for place in places):
        return ExitCode.DONE
    is_any_done = any(place.done for place in places)
    return codes.pop() if len(codes) == 1 and not is_any_done else ExitCode.RUN_FAILED


def _rows(place: PlaceWork, why_not: str) -> Iterator[tuple[str, str]]:
    new = f", {place.new_runs} of them now" if place.new_runs != place.done else ""
    cost = f"; {place.usd:.3f} USD" if place.usd is not None else ""
    yield place.name, f"{place.done} of {counted(len(place.plan.runs), 'run')} have a result{new}{cost}"
    if place.spent.runs:
        yield "", place.spent.text()
    if place.decision is not None:
        yield "", place.decision.reason
        for name, interval in place.decision.precisions.items():
            yield "", f"{name}: {_interval_text(interval)}"
    for batch_size, count in Counter(place.too_large.values()).items():
        yield "", f"{counted(count, 'run')} left out: {too_large_text(batch_size)}"
    for why, failures in _by_cause(place.failures).items():
        runs = [f"{configuration_text(failure.run, place.plan)} (block {failure.run.block})" for failure in failures]
        some = ", ".join(runs[:FEW]) + (f" and {len(runs) - FEW} more" if len(runs) > FEW else "")
        yield "failed", f"{some}: {why}"
        yield "cure", failures[0].hint
    if place.not_begun:
        unfinished = counted(len(place.not_begun), "run")
        yield "unfinished", f"{unfinished}: {why_not or 'no result'}; the same command continues"


def _interval_text(interval: BlocksInterval) -> str:
    if interval.value is None or interval.low is None or interval.high is None or interval.half_width is None:
        return interval.reason or "no interval"
    value, low, high = (plain(figure, 4) for figure in (interval.value, interval.low, interval.high))
    return f"{value}, from {low} to {high} ({counted(interval.blocks, 'block')}, {interval.width})"


def _by_cause(failures: Sequence[Failure]) -> dict[str, list[Failure]]:
    """Failures grouped by reason, ignoring the machines' names in it."""
    causes: dict[str, list[Failure]] = {}
    for failure in failures:
        causes.setdefault(re.sub(f"'?{NAME.pattern}'?", "a machine", failure.why), []).append(failure)
    return causes


def _to_json(place: PlaceWork) -> dict[str, Any]:
    def named(run: TaskRun) -> dict[str, Any]:
        return {"run_key": run.run_key, "block": run.block, "configuration": configuration_text(run, place.plan)}

    precisions = place.decision.precisions if place.decision else {}
    return {
        "name": place.name,
        "runs": len(place.plan.runs),
        "done": place.done,
        "new": place.new_runs,
        "usd": place.usd,
        "time": place.spent.to_json(),
        "calls": dict(place.calls),
        "failures": [
            {**named(failure.run), "why": failure.why, "hint": failure.hint, "exit_code": failure.code}
            for failure in place.failures
        ],
        "too_large": [{"run_key": key, "why": too_large_text(size)} for key, size in place.too_large.items()],
        "not_begun": [named(run) for run in place.not_begun],
        "until": None
        if place.decision is None
        else {
            "is_narrow": place.decision.is_narrow,
            "blocks": place.decision.blocks,
            "reason": place.decision.reason,
            "target": place.decision.target,
            "intervals": {
                name: {
                    **{key: getattr(interval, key) for key in ("value", "low", "high", "half_width", "correlation")},
                    "trend_per_block": interval.trend,
                }
                for name, interval in precisions.items()
            },
        },
    }
