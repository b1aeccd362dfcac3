"""The door of a backend: all that `launch` asks of whoever has machines. Standard library only.

A backend turns a job into machines and tells what became of them. It owns no queue, no state and no results: what was
asked for and what came of it lies in the job's store (launcher/jobs/records.py), and a launcher may end at any moment.

A backend is a package, named in `launcher.backends.BACKENDS`, with two modules: `options` declares its command and
nothing else, since the command line loads it for `--help`; `backend` has its `backend: Backend`, imported when used.
`tests/launcher/backends/contract.py` says what every backend must hold to.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, Self, TypeVar

from launcher.backends import BACKENDS
from launcher.checks import Check
from launcher.jobs.records import Request
from workload.contract.errors import UsageError
from workload.contract.spec import Resolved, RunSpec
from workload.contract.task import Task

T = TypeVar("T")
# Takes a line for the user while something long goes on.
Tell = Callable[[str], None]
# In place of a zone: the place did not say where its list has a gap.
ANYWHERE = "some zone"


class Condition(StrEnum):
    """What a machine is doing, as its backend sees it. `stopped`: it is there and costs, and computes nothing."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of ours. Times are seconds since 1970 by the place's own clock, never by this machine's.

    `zone`: where it is, in the place's words: a zone, a host, a partition. `status`: the place's own word for its
    condition. `deadline_s`: when the place itself ends it. `restarts`: the place starts it again after a failure of its
    own, of a stopped one until `restarts_until_s`. `queued`: one that is starting waits for its turn, and neither its
    boot nor its limit has begun. `preempted`, `why`: of one that is gone, as far as the place knows.
    """

    name: str
    zone: str
    condition: Condition
    status: str = ""
    created_s: float | None = None
    deadline_s: float | None = None
    restarts: bool = False
    restarts_until_s: float | None = None
    queued: bool = False
    preempted: bool = False
    why: str = ""

    def may_start_again(self, now_s: float) -> bool:
        """Whether it is stopped and the place may yet start it again, to save what it measured."""
        in_time = self.restarts_until_s is not None and now_s < self.restarts_until_s
        return self.condition is Condition.STOPPED and self.restarts and in_time

    def stopped_for_good(self, now_s: float) -> bool:
        """Whether nobody starts it again, and the place never ends it."""
        return self.condition is Condition.STOPPED and not self.may_start_again(now_s)


@dataclass(frozen=True, kw_only=True)
class Listing(Generic[T]):
    """What a list over all zones has. In an outage it may lack a zone: `unreachable`, of which nothing is known."""

    there: tuple[T, ...] = ()
    unreachable: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[T]:
        return iter(self.there)

    def lacks(self, zone: str) -> bool:
        """Whether that zone may have more than is listed."""
        return any(place in (zone, zone.rpartition("-")[0], ANYWHERE) for place in self.unreachable)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a machine printed from some position on; ask from `next_start` the next time."""

    text: str
    next_start: int


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A zone that did not have the machines, or that may not have them; `code` as the place said it."""

    zone: str
    code: str
    message: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """The machines of a job, and where they were not to be had before."""

    machines: tuple[Machine, ...]
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """Something of ours that costs and that nobody needs any more: a machine or its disk; `why` says so.

    `kind`: what the place calls it in a sentence: `VM`, `disk`.
    """

    kind: str
    name: str
    zone: str
    why: str

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Removed:
    """What became of one; `gone`: a later question has confirmed it, else `reason` says what stood against it.

    Without an answer of its zone it is `unknown` what became of it.
    """

    kind: str
    name: str
    zone: str
    gone: bool
    reason: str = ""
    unknown: bool = False

    @classmethod
    def unanswered(cls, kind: str, name: str, zones: Sequence[str]) -> Self:
        """What may be in zones that do not answer."""
        answer = "the zone does not answer" if len(zones) == 1 else "these zones do not answer"
        return cls(kind=kind, name=name, zone=", ".join(zones), gone=False, reason=answer, unknown=True)

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a backend is asked for; `token`: hex digits that make its name unlike that of any other job.

    `task`: the runs of a sweep that one machine works through; without one it is the resolved spec, `repeats` times.
    """

    resolved: Resolved
    token: str
    task: Task | None = None

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """The options of each run that the machine does."""
        return tuple(run.spec for run in self.task.runs) if self.task else (self.resolved.spec,)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How long a machine is expected to be had, in seconds, and what it costs; None: unknown.

    `ready_s`: until its first run; `run_s`: for all its runs; `limit_s`: at most; `most_usd`: where it runs into that,
    in the dearest place of those with a known price, `is_most_partial` where others may be tried too.
    """

    ready_s: float = 0.0
    run_s: float | None = None
    limit_s: float | None = None
    usd_per_h: float | None = None
    most_usd: float | None = None
    is_most_partial: bool = False


class Plan(Protocol):
    """What is about to happen: a frozen value that a dry run prints and `Machines.submit` sends.

    One that knows has an `estimate` too (`Estimate`), which the plan of a sweep adds up, and `notes` for its user.
    """

    @property
    def request(self) -> Request:
        """What lies in the store and is read by the machine; its `name` is that of the job and of its machine."""

    @property
    def attempts(self) -> int:
        """How often it is started at most, where the place takes machines back."""

    def renamed(self, request: Request) -> Self:
        """The same plan as a job of its own."""

    def text(self, width: int | None = None) -> str:
        """What a user reads before anything costs: machine, price, limit, what it cannot promise."""

    def sent_text(self) -> str:
        """What the place would be sent, with its long texts left short."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--dry-run --format json`."""


class Machines(Protocol):
    """The machines of one place: a project, a cluster, a host. Every method may raise `RooflaunchError`s.

    Each must hold whatever else goes on: two launchers at once, one that was killed, a list with gaps, a slow clock.
    A place with a queue of its own may also have `submit_together(plans, tell)`, which is `submit` for all plans of a
    sweep at once: machines in the order of the plans, and all of them or none.
    """

    @property
    def place(self) -> str:
        """How messages name it: `my-project`, `user@box`."""

    @property
    def noun(self) -> str:
        """What messages call one of its machines: `VM`."""

    @property
    def calls(self) -> Mapping[str, int]:
        """How often what was asked of the place through this object; empty where nobody counts."""

    def now_s(self) -> float:
        """Seconds since 1970 by the place's clock, which decides every age and limit."""

    def submit(self, plan: Any, tell: Tell) -> Submitted:
        """Have the plan's machines running; of a job that was submitted before, those that are there.

        Raises `NoCapacityError` with all that was tried. Interrupted or refused, it leaves no machine behind, or tells
        which one may be left.
        """

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        """These machines, asked for together, also those that are gone; without names every one that is there.

        `names`: each with the zones where it may be; () where nobody knows. A machine of which nothing is known, as
        its zone does not answer, is not in the list, and the zone is `unreachable`. Where nothing at all is known,
        `UnreachableError` says why.
        """

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        """End them, all at once, however often that was asked before. `gone` only where a later question confirms it.

        In the order given. What stands against it is told for each, never raised.
        """

    def output(self, machine: Machine, start: int) -> Output:
        """What it printed from `start` on; nothing if it is gone or not up yet."""

    def phases(self, machine: Machine) -> Mapping[str, str]:
        """What it tells of its way before its first heartbeat: times (ISO 8601) by `records.LaunchPhase`, or none."""

    def leftovers(self) -> Listing[Leftover]:
        """What is stopped for good or past its limit."""


class Backend(Protocol):
    """One kind of place.

    The module `options` of its package has `COMMAND` and two dataclasses: `Options`, whose fields become the options of
    `launch NAME`, and `Where`: which place, as every command asks for it (`launcher.choice.choice` declares a field).
    """

    @property
    def name(self) -> str:
        """As in `launch NAME`."""

    def settings(self, where: Any, options: Any = None, *, offline: bool = False) -> Any:
        """Where things lie, from options, environment and configuration; `offline`: nobody is asked."""

    def plan(self, job: Job, options: Any, settings: Any, *, now: datetime, offline: bool = False) -> Plan:
        """What is about to happen, with its price, its limit and what it cannot promise; nothing is made by it.

        Raises `UsageError` for whatever is wrong with the options. `offline`: nobody is asked, not even for a price.
        """

    def prepare(self, draft: Any, machines: Any) -> Plan:
        """Have ready what the machines need (an image in a registry); the plan as it will be done, now."""

    def machines(self, settings: Any) -> Machines:
        """Connect to the place."""

    def store(self, settings: Any) -> Any:
        """Where its jobs' records and bundles go."""

    def checks(self, where: Any) -> Iterator[Check]:
        """What `launch doctor NAME` looks at."""


def backend(name: str) -> Backend:
    """The backend of that name, imported now. Raises `UsageError` where there is none."""
    if name not in BACKENDS:
        raise UsageError(f"there is no backend '{name}'", hint=f"one of {', '.join(BACKENDS)}")
    made: Backend = importlib.import_module(f"{BACKENDS[name]}.backend").backend
    return made
