"""Start the machine of a plan, trying zone after zone within a time budget; the same loop for every cloud.

A cloud's subclass asks for a machine in one zone, judges the errors, and removes what an attempt may have left. Ages
and limits of machines are judged by the cloud's time, `CloudClock`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from launcher.backends.rented_plan import RentedPlan
from launcher.protocol.backend import Machine, Submitted, Tried
from launcher.protocol.records import region_of
from workload.contract.errors import NoCapacityError, RooflaunchError, ToolError
from workload.storage.buckets import Service

BUDGET_S = 600.0
# When the time budget ends, an operation that is under way has at least so many seconds left.
LAST_CHANCE_S = 30.0
# After a request whose answer was lost, check this long that no machine exists: the request may still create one.
SETTLE_S = 9.0


class Scope(StrEnum):
    """Part of the cloud in which a failure rules out further attempts. `fatal`: no attempt can succeed anywhere."""

    ZONE = "zone"
    REGION = "region"
    PROJECT = "project"
    FATAL = "fatal"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An error of an attempt. `zones_available`: zones with a free machine right now, if the cloud named them."""

    code: str
    message: str
    zones_available: tuple[str, ...] = ()


@dataclass(kw_only=True)
class ZoneByZone(ABC):
    """Attempts of one launch to start its machine, zone by zone, with the results so far.

    `budget_s`: no request starts later than this many seconds after the beginning.
    """

    plan: RentedPlan
    now: Callable[[], float]
    sleep: Callable[[float], None]
    on_event: Callable[[str], None]
    budget_s: float = BUDGET_S

    def __post_init__(self) -> None:
        self._end_s = self.now() + self.budget_s
        self._tried: list[Tried] = []
        self._done: list[str] = []
        self._blocked: set[str] = set()
        self._suggested: list[str] = []
        self._may_live = False

    def run(self) -> Submitted:
        """Start the machine in the first zone with a free one; return it once it runs.

        Raises `NoCapacityError`, which names every attempt, and `ToolError`. After an error or an interrupt no machine
        is left.
        """
        if not self._has_quota_in_project():
            raise self._no_capacity()
        while (zone := self._next_zone()) is not None and self.now() < self._end_s:
            if not self._has_quota_in(region_of(zone)):
                continue
            self._done.append(zone)
            machine = self._try(zone)
            if machine is not None:
                return Submitted(machines=(machine,), tried=tuple(self._tried))
        raise self._no_capacity()

    # What a cloud does in its own way.

    def _has_quota_in_project(self) -> bool:
        """Whether the quotas of the whole project may have room; if not, the reason is in the list of attempts."""
        return True

    def _has_quota_in(self, region: str) -> bool:
        """Whether the region's quotas may have room for the machine; if not, block all zones of the region."""
        return region not in self._blocked

    @abstractmethod
    def _insert(self, zone: str) -> Machine | tuple[Fault, ...]:
        """Ask for the machine in this zone and wait until it runs. `_may_live` is True while one may exist."""

    @abstractmethod
    def _clear(self, zone: str, faults: tuple[Fault, ...]) -> None:
        """Remove a machine that a failed attempt may have left. Raises `ToolError` if it may still be there."""

    @abstractmethod
    def _remove(self, zone: str, *, settle_s: float) -> bool:
        """Delete the machine; return True once none has existed for `settle_s` seconds."""

    @abstractmethod
    def _scope(self, fault: Fault) -> Scope:
        """Scope in which this error rules out further attempts."""

    @abstractmethod
    def _fatal(self, zone: str, faults: tuple[Fault, ...]) -> RooflaunchError:
        """Error for faults after which no zone is tried."""

    @abstractmethod
    def _what_next(self) -> str:
        """Hint for the user if no zone has the machine."""

    @abstractmethod
    def _error_text(self, code: str, message: str) -> str:
        """Error code, with its message unless the code explains itself."""

    # The order of zones.

    def _next_zone(self) -> str | None:
        """Next zone to try; None if no zone is left.

        Order: requested zones, zones that the cloud suggested, zones in regions that were tried, other zones.
        """
        near = {region_of(zone) for zone in self._done}

        def rank(zone: str) -> tuple[int, int]:
            if zone in self.plan.options.zones:
                return 0, 0
            if zone in self._suggested:
                return 1, self._suggested.index(zone)
            return (2 if region_of(zone) in near else 3), 0

        return min(self._open_zones(), key=rank, default=None)

    def _open_zones(self) -> list[str]:
        return [zone for zone in self._reach() if zone not in self._done and region_of(zone) not in self._blocked]

    def _reach(self) -> list[str]:
        return list(self.plan.zones)

    # One zone.

    def _try(self, zone: str) -> Machine | None:
        """Start the VM in this zone and return it once it runs. If the attempt fails, remove the VM and return None."""
        asked_s = self.now()
        self.on_event(f"{zone}: asking for {self._what()}")
        try:
            result = self._insert(zone)
            if isinstance(result, Machine):
                self.on_event(f"{zone}: the VM runs")
                return result
            self._clear(zone, result)
        except BaseException:
            if self._may_live:
                self._abandon(zone)
            raise
        self._note(zone, result, asked_s)
        self._learn(zone, result)
        return None

    def _abandon(self, zone: str) -> None:
        """Remove the VM that a request may have made.

        Errors of the removal are only reported to the user, because the caller is already raising an exception.
        """
        self.on_event(f"{zone}: checking that no VM is left")
        try:
            gone = self._remove(zone, settle_s=SETTLE_S)
        except RooflaunchError as error:
            self.on_event(str(error))
            gone = False
        if not gone:
            self.on_event(f"{self._not_confirmed(zone)}: launch down {self.plan.name}")

    def _removed(self, zone: str, *, settle_s: float) -> None:
        if not self._remove(zone, settle_s=settle_s):
            self._may_live = False  # `_try` need not repeat the removal, which was tried just now
            raise ToolError(self._not_confirmed(zone), hint=f"launch down {self.plan.name}")

    def _patience_s(self, limit_s: float) -> float:
        return min(limit_s, max(self._end_s - self.now(), LAST_CHANCE_S))

    def _learn(self, zone: str, faults: tuple[Fault, ...]) -> None:
        self._suggested += [zone for fault in faults for zone in fault.zones_available if zone not in self._suggested]
        match widest(map(self._scope, faults)):
            case Scope.ZONE:
                return
            case Scope.REGION:
                self._blocked.add(region_of(zone))
            case Scope.PROJECT:
                raise self._no_capacity()
            case Scope.FATAL:
                raise self._fatal(zone, faults)

    def _note(self, where: str, faults: tuple[Fault, ...], asked_s: float) -> None:
        fault = faults[0]
        took_s = self.now() - asked_s
        self._tried.append(Tried(zone=where, code=fault.code, message=fault.message, seconds=took_s))
        self.on_event(f"{where}: {self._error_text(fault.code, fault.message)}")

    # Messages.

    def _not_confirmed(self, zone: str) -> str:
        return f"VM '{self.plan.name}' in {zone} is not confirmed to be gone (the cloud deletes it at its time limit)"

    def _what(self) -> str:
        request = self.plan.request
        count = f"{request.gpu_count} x " if request.gpu_count > 1 else ""
        return f"{request.machine_type} with {count}{self.plan.gpu.title}{' (spot)' if request.spot else ''}"

    def _no_capacity(self) -> NoCapacityError:
        lines = [
            f"{tried.zone}: {self._error_text(tried.code, tried.message)} ({tried.seconds:.0f} s)"
            for tried in self._tried
        ]
        untried = self._open_zones()
        if untried and self.now() >= self._end_s:
            lines.append(f"not tried, as {self.budget_s:g} s have passed: {', '.join(untried)}")
        return NoCapacityError(f"no {self._what()} is free; tried: {'; '.join(lines)}", hint=self._what_next())

    def _run_again(self) -> str:
        other = "without --spot" if self.plan.request.spot else "with --spot"
        wider = "" if self.plan.options.fallback else ", without --no-fallback"
        return f"run again later{wider}, {other}, or with another --gpu"


def widest(scopes: Iterable[Scope]) -> Scope:
    """The widest of these scopes."""
    given = set(scopes)
    return next(scope for scope in (Scope.FATAL, Scope.PROJECT, Scope.REGION, Scope.ZONE) if scope in given)


class CloudClock:
    """The cloud's time: the date of its answers, plus the seconds since then by the clock `monotonic`.

    This computer's own date may be hours off, so no decision about a VM uses it.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead_s: float | None = None

    def read_date(self, response: Any, **_: object) -> None:
        """Set the clock by the date of an answer; ignore a page of a proxy. `requests` calls this for each answer."""
        if response.ok and "json" in response.headers.get("Content-Type", ""):
            self.set(response.headers.get("Date"))

    def set(self, date: str | None) -> None:
        """Set the clock by the header `Date` of an answer; ignore a date that is missing or unreadable."""
        with suppress(TypeError, ValueError):
            ahead_s = parsedate_to_datetime(date or "").timestamp() - self._monotonic()
            # Dates are rounded down to seconds and delayed by the network, so the largest `ahead_s` is best.
            self._ahead_s = ahead_s if self._ahead_s is None else max(self._ahead_s, ahead_s)

    def now_s(self, service: Service, items: str, ask: Callable[[], object]) -> float:
        """Seconds since 1970. `ask`: sends any request, in case there was no answer with a date yet.

        Raises `ToolError` if the answers have no date; the error's message names `service` and `items` (such as "VMs").
        """
        if self._ahead_s is None:
            ask()
        if self._ahead_s is None:
            raise ToolError(
                f"{service.name}'s answers have no date, so the age of {items} is unknown",
                hint=f"curl -I {service.public}: perhaps a proxy removes the date",
            )
        return self._monotonic() + self._ahead_s
