"""The interface that every backend implements: what `launch` may ask of a provider of machines. Standard library only.

A backend turns a job into machines and reports what became of them. A backend keeps no queue, no state and no results:
request and results are in the job's store (launcher/protocol/records.py), so a launcher may end at any moment.

A backend is a package, named in `launcher.backends.BACKENDS`, with two modules. `options` only declares the backend's
command, because the command line loads it for `--help`. `backend` has the object `backend: Backend` and is imported
when it is used. `tests/launcher/backends/contract.py` has the tests that every backend must pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, Self, TypeVar

from launcher.protocol.records import Request, Task
from workload.contract.errors import RooflaunchError
from workload.contract.spec import Resolved, RunSpec

T = TypeVar("T")
# Called with a line for the user while a long operation goes on.
Tell = Callable[[str], None]
# Name for an unknown zone: the place did not say which zone is missing from its list.
ANYWHERE = "some zone"


# --- results of `launch doctor`


class Health(StrEnum):
    """Result of a check. `note`: worth knowing, but nothing to repair."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of a check: its name, what was found, and the cure. `part`: `docker`, `gpu`, or a backend's name."""

    part: str
    name: str
    state: Health
    found: str
    cure: str = ""


@dataclass(frozen=True)
class CheckPart:
    """Makes the checks of `launch doctor` for one part; `name`: the part, such as `docker`."""

    name: str

    def ok(self, name: str, found: str) -> Check:
        """Check without a problem."""
        return Check(part=self.name, name=name, state=Health.OK, found=found)

    def note(self, name: str, found: str, cure: str = "") -> Check:
        """Check whose result is worth knowing, with nothing to repair."""
        return Check(part=self.name, name=name, state=Health.NOTE, found=found, cure=cure)

    def problem(self, name: str, found: str, cure: str) -> Check:
        """Check that found a problem that affects runs."""
        return Check(part=self.name, name=name, state=Health.PROBLEM, found=found, cure=cure)

    def looked(self, name: str, look: Callable[[], str]) -> Check:
        """Check with the text that `look` returns; a problem if `look` raises an error."""
        try:
            return self.ok(name, look())
        except RooflaunchError as error:
            return self.failed(name, error)

    def failed(self, name: str, error: RooflaunchError) -> Check:
        """Check that an error prevented, with the error's hint as the cure."""
        return self.problem(name, str(error), error.hint)


# --- machines and backends


class Condition(StrEnum):
    """State of a machine as its backend sees it. `stopped`: the machine exists and costs money but computes nothing."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of ours. Times are seconds since 1970 by the place's own clock, never by this computer's clock.

    `zone`: where the machine is, in the place's words: a zone, a host, a partition. `status`: the place's own word for
    the condition. `deadline_s`: when the place itself ends the machine. `restarts`: the place restarts the machine
    after a failure of the place. `restarts_until_s`: when the place gives up restarting a stopped machine. `queued`: a
    starting machine that waits for its turn, so neither its boot nor its limit has begun. `preempted`: whether a
    machine that is gone was preempted. `why`: why a machine ended, or why a starting one does not start by itself, as
    far as the place knows.
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

    @property
    def why_not_starting(self) -> str:
        """Why the machine does not start by itself; empty if it has started, is gone, or may start."""
        return self.why if self.condition is Condition.STARTING else ""

    def may_start_again(self, now_s: float) -> bool:
        """Whether the machine is stopped and the place may yet restart it, to save what it measured."""
        in_time = self.restarts_until_s is not None and now_s < self.restarts_until_s
        return self.condition is Condition.STOPPED and self.restarts and in_time

    def stopped_for_good(self, now_s: float) -> bool:
        """Whether the machine is stopped for good: the place neither restarts nor deletes it."""
        return self.condition is Condition.STOPPED and not self.may_start_again(now_s)


@dataclass(frozen=True, kw_only=True)
class Listing(Generic[T]):
    """Result of a list over all zones. `unreachable`: zones that did not answer, for example in an outage."""

    there: tuple[T, ...] = ()
    unreachable: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[T]:
        return iter(self.there)

    def may_have_more(self, zone: str) -> bool:
        """Whether `zone` may have more items than are listed, because it did not answer."""
        # A region that did not answer stands for all of its zones.
        region = zone.rpartition("-")[0]
        return any(silent in (zone, region, ANYWHERE) for silent in self.unreachable)

    def overdue(self, now_s: float, *, late_s: float, kind: str, why: str) -> "Listing[Leftover]":
        """Leftovers in a list of machines: those that still run `late_s` seconds after their deadline."""
        machines: tuple[Any, ...] = self.there
        late = [item for item in machines if item.deadline_s is not None and now_s > item.deadline_s + late_s]
        left = tuple(Leftover(kind=kind, name=item.name, zone=item.zone, why=why) for item in late)
        return Listing(there=left, unreachable=self.unreachable)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Text that a machine printed from some position on. `next_start`: position from which to ask next."""

    text: str
    next_start: int


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A zone that did not have the machines, or in which they are not allowed. `code`: error code of the place."""

    zone: str
    code: str
    message: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """The machines of a job. `tried`: the zones that were tried before without success."""

    machines: tuple[Machine, ...]
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A machine or disk of ours that costs money and that nobody needs any more. `why`: why it is not needed.

    `kind`: the place's word for such a resource in a sentence: `VM`, `disk`.
    """

    kind: str
    name: str
    zone: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Removed:
    """Result of a deletion. `gone`: a later request has confirmed the deletion; if not, `reason` tells why.

    `unknown`: the zone did not answer, so the result is not known.
    """

    kind: str
    name: str
    zone: str
    gone: bool
    reason: str = ""
    unknown: bool = False

    @classmethod
    def unanswered(cls, kind: str, name: str, zones: Sequence[str]) -> Self:
        """Result for an item that may be in zones that do not answer."""
        answer = "the zone does not answer" if len(zones) == 1 else "these zones do not answer"
        return cls(kind=kind, name=name, zone=", ".join(zones), gone=False, reason=answer, unknown=True)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work that a backend is asked to run. `token`: hex digits that make the job's name unique.

    `task`: the runs of a sweep that one machine works through. Without a task the machine runs the resolved spec
    `repeats` times.
    """

    resolved: Resolved
    token: str
    task: Task | None = None

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """Specs of all runs that the machine does."""
        return tuple(run.spec for run in self.task.runs) if self.task else (self.resolved.spec,)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How long a machine is expected to be held, in seconds, and what it costs. None: unknown.

    `ready_s`: until the first run starts. `run_s`: for all runs. `limit_s`: longest time. `most_usd`: cost in the
    dearest place with a known price if the machine reaches its limit. `is_most_partial`: places without a known price
    may be tried too.
    """

    ready_s: float = 0.0
    run_s: float | None = None
    limit_s: float | None = None
    usd_per_h: float | None = None
    most_usd: float | None = None
    is_most_partial: bool = False


class Plan(Protocol):
    """A launch that is about to happen: a frozen value that a dry run prints and `Machines.submit` sends.

    A plan may also have `estimate` (an `Estimate`), which the plan of a sweep adds up, and `notes` for its user.
    """

    @property
    def request(self) -> Request:
        """Request, which the machine reads from the store. Its `name` is the name of the job and of the machine."""

    @property
    def submissions(self) -> int:
        """Maximum number of times that the job is started if the place preempts machines."""

    def renamed(self, request: Request) -> Self:
        """Copy of the plan as a job of its own, under the name in `request`."""

    def text(self, width: int | None = None) -> str:
        """Text for the user before anything costs money: machine, price, limit, and what the plan cannot promise."""

    def sent_text(self) -> str:
        """Request as it would be sent to the place, with long texts shortened."""

    def to_json(self) -> dict[str, Any]:
        """Plan as JSON values, for `--dry-run --format json`."""


class Machines(Protocol):
    """The machines of one place: a project, a cluster, a host. Every method may raise `RooflaunchError`s.

    Every method must work in any situation: two launchers at once, a launcher that was killed, a list with gaps, a slow
    clock. A place with a queue of its own may also have `submit_together(plans, tell)`, which submits all plans of a
    sweep at once and returns machines in the order of the plans: all of them or none.
    """

    @property
    def place(self) -> str:
        """Name of the place in messages: `my-project`, `user@box`."""

    @property
    def noun(self) -> str:
        """Word for one machine in messages: `VM`."""

    @property
    def calls(self) -> Mapping[str, int]:
        """Number of requests to the place through this object, by kind. Empty if requests are not counted."""

    def now_s(self) -> float:
        """Seconds since 1970 by the place's clock, which decides every age and limit."""

    def submit(self, plan: Any, tell: Tell) -> Submitted:
        """Start the plan's machines; for a job that was submitted before, return the machines that exist.

        Raises `NoCapacityError` with all that was tried. If interrupted or refused, `submit` leaves no machine behind,
        or names the machine that may be left.
        """

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        """Look up the named machines in one go, gone ones included; without `names`, list every existing machine.

        `names`: by machine, the zones where it may be; () if the zones are not known. A machine whose zone does not
        answer is not in the list, and its zone is in `unreachable`. Raises `UnreachableError` if the place tells the
        state of no machine.
        """

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        """End the machines, all at once; repeated calls are safe. Results are in the order given.

        `gone` is True only if a later request confirms the end. A failure is reported in the `Removed`, never raised.
        """

    def output(self, machine: Machine, start: int) -> Output:
        """Text that the machine printed from position `start` on; empty if the machine is gone or not up yet."""

    def phases(self, machine: Machine) -> Mapping[str, str]:
        """Times (ISO 8601) of start-up phases before the first heartbeat, by `records.LaunchPhase`; {} if unknown."""

    def leftovers(self) -> Listing[Leftover]:
        """Machines and disks that are stopped for good or past their limit."""


class Backend(Protocol):
    """A kind of place, such as a cloud or a cluster.

    The module `options` of a backend's package has `COMMAND` and two dataclasses. The fields of `Options` become the
    options of `launch NAME`. `Where` selects the place, in the same way for every command. `launcher.values.choice`
    declares a field.
    """

    @property
    def name(self) -> str:
        """Name of the backend, as in `launch NAME`."""

    def settings(self, where: Any, options: Any = None, *, offline: bool = False) -> Any:
        """Settings from options, environment and configuration. `offline`: ask no service."""

    def plan(self, job: Job, options: Any, settings: Any, *, now: datetime, offline: bool = False) -> Plan:
        """Plan of a launch with its price, its limit and what it cannot promise. Nothing is created.

        Raises `UsageError` for any error in the options. `offline`: ask no service, not even for a price.
        """

    def prepare(self, draft: Any, machines: Any) -> Plan:
        """Prepare what the machines need (an image in a registry), and return the final plan."""

    def machines(self, settings: Any) -> Machines:
        """Connect to the place."""

    def store(self, settings: Any) -> Any:
        """Store for records and bundles of the place's jobs."""

    def checks(self, where: Any) -> Iterator[Check]:
        """Checks of `launch doctor NAME`."""
