"""Outcome of a sweep: the runs done at each place, the failures with their remedies, and the commands to type next."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.protocol.records import NAME
from launcher.protocol.task import TaskRun
from launcher.sweep.places import PlacePlan
from launcher.sweep.until import Decision
from launcher.sweep.work import Failure, configuration_text, too_large_text
from workload.contract.errors import ExitCode
from workload.contract.invocation import as_typed
from workload.contract.spent import Spent
from workload.contract.text import counted, duration, plain, unbroken, wrapped
from workload.stats.blocks_interval import BlocksInterval

TEXT_COLUMN = 16
# Largest number of runs that are named for each reason of failure.
FEW = 3


@dataclass(frozen=True, kw_only=True)
class PlaceOutcome:
    """Outcome of one place. `done`: number of runs that have a result or are too large for the memory.

    `new`: runs that ended during this process; `spent`: where their time went. `decision`: last decision of `--until`,
    with each configuration's interval.
    """

    plan: PlacePlan
    done: int
    new: int
    failures: tuple[Failure, ...] = ()
    too_large: Mapping[str, int] = field(default_factory=dict)
    unanswered: tuple[TaskRun, ...] = ()
    usd: float | None = None
    calls: Mapping[str, int] = field(default_factory=dict)
    decision: Decision | None = None
    spent: Spent = field(default_factory=Spent)

    @property
    def name(self) -> str:
        return self.plan.place.name

    @property
    def not_begun(self) -> tuple[TaskRun, ...]:
        """Runs that were never begun: they have neither a result nor a failure."""
        failed = {failure.run.run_key for failure in self.failures}
        return tuple(run for run in self.unanswered if run.run_key not in failed)


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """Outcome of a sweep at all places.

    `why_not`: reason why no more runs were started, or empty; `exit_code`: see `exit_code_of`.
    """

    name: str
    places: tuple[PlaceOutcome, ...]
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


def exit_code_of(places: Sequence[PlaceOutcome], *, was_interrupted: bool) -> int:
    """Exit code of a sweep: 130 (interrupted); 0 (every run has a result or is too large); else 6 (runs failed).

    If no run is done and all failures have the same code, the sweep has this code.
    """
    if was_interrupted:
        return ExitCode.INTERRUPTED
    if not any(place.unanswered for place in places):
        return ExitCode.DONE
    codes = {failure.code for place in places for failure in place.failures}
    is_any_done = any(place.done for place in places)
    return codes.pop() if len(codes) == 1 and not is_any_done else ExitCode.RUN_FAILED


def _rows(place: PlaceOutcome, why_not: str) -> Iterator[tuple[str, str]]:
    new = f", {place.new} of them now" if place.new != place.done else ""
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
    """Text with a figure and its 95 % interval, or the reason why there is no interval."""
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


def _to_json(place: PlaceOutcome) -> dict[str, Any]:
    def named(run: TaskRun) -> dict[str, Any]:
        return {"run_key": run.run_key, "block": run.block, "configuration": configuration_text(run, place.plan)}

    precisions = place.decision.precisions if place.decision else {}
    return {
        "name": place.name,
        "runs": len(place.plan.runs),
        "done": place.done,
        "new": place.new,
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
                    "value": interval.value,
                    "low": interval.low,
                    "high": interval.high,
                    "half_width": interval.half_width,
                    "correlation": interval.correlation,
                    "trend_per_block": interval.trend,
                }
                for name, interval in precisions.items()
            },
        },
    }
