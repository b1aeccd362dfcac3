"""Liveness of a launch: ended, alive, silent, over its limit, preempted or lost. Only this module decides it.

A table decides by the machine's state at its place, the newest record in the store, the time without a heartbeat, and
the time past the limit. `launch status`, the follower of one launch, and a sweep use this table. Each of them measures
times by the clock that it can trust, and chooses its own messages and actions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

from launcher.protocol.records import Request

# Longer than any provisioning takes. A request of this age without a VM never got one, or lost it.
PROVISIONING_S = 20 * 60
# Time up to the first heartbeat: driver, Docker, image. Installing a driver takes 5 to 10 min more, with reboots.
BOOT_LIMIT_S = 15 * 60
INSTALLING_BOOT_LIMIT_S = 25 * 60
# Longest time without a heartbeat, which comes every 15 s.
SILENCE_LIMIT_S = 5 * 60
# Tolerance after the limit: the cloud may act 30 s late.
AFTER_LIMIT_S = 5 * 60


class PlaceSays(StrEnum):
    """State of a launch's machine according to its place. `queued`: neither its boot nor its limit has begun."""

    UNREACHABLE = "unreachable"
    GONE = "gone"
    STOPPED = "stopped"
    QUEUED = "queued"
    UP = "up"


class StoreSays(StrEnum):
    """Newest record that the machine has written into the store."""

    NOTHING = "nothing"
    HEARTBEAT = "heartbeat"
    RESULT = "result"


class Liveness(StrEnum):
    """Verdict on a launch, as decided by the rows of the table `ROWS`."""

    ENDED = "ended"  # the store has a result
    REQUESTED = "requested"  # no machine yet, and the request is young
    PREEMPTED = "preempted"  # the machine is gone: its place took it away
    OUT_OF_TIME = "out of time"  # the machine is gone, after its limit
    LOST = "lost"  # the machine is gone, for no known reason
    GIVEN_UP = "given up"  # the place does not answer, and the limit passed long ago
    UNKNOWN = "unknown"  # the place does not answer, and there is no recent heartbeat
    RESTARTING = "restarting"  # the machine is stopped, and its place may restart it
    STOPPED = "stopped"  # the machine is stopped for good
    OVERDUE = "overdue"  # the machine still exists long after its limit
    QUEUED = "queued"  # the machine waits for its turn
    SILENT = "silent"  # the machine is up, but its heartbeat stopped
    NEVER_CAME_UP = "never came up"  # the machine is up, but sent no heartbeat within the boot's limit
    BOOTING = "booting"  # the machine is up, and its boot may still take time
    ALIVE = "alive"  # the last heartbeat is recent


# An existing machine with one of these verdicts is removed: it does no work any more, but costs money.
TO_BE_REMOVED = frozenset({Liveness.STOPPED, Liveness.OVERDUE, Liveness.SILENT, Liveness.NEVER_CAME_UP})


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Observations on a launch, all times in seconds.

    `age_s`: since its request. `silent_s`: since its last heartbeat or phase. `booting_s`: since its machine began to
    boot; `boot_limit_s`: longest time allowed for the boot. `over_limit_s`: since its time limit, negative before.
    `may_restart`: the place may still restart the stopped machine. `was_preempted`: called only if the machine is gone.
    """

    place: PlaceSays
    store: StoreSays
    age_s: float = inf
    silent_s: float = 0.0
    booting_s: float = 0.0
    boot_limit_s: float = BOOT_LIMIT_S
    over_limit_s: float = -inf
    may_restart: bool = False
    was_preempted: Callable[[], bool] = lambda: False


class Row(NamedTuple):
    """Row of the table. It applies if `place` and `store` were observed (None: any value) and `when` returns True."""

    liveness: Liveness
    place: PlaceSays | None
    store: StoreSays | None = None
    when: Callable[[Observed], bool] = lambda _: True

    def holds(self, seen: Observed) -> bool:
        """Whether this row describes what was observed."""
        return self.place in (None, seen.place) and self.store in (None, seen.store) and self.when(seen)


# The first row that applies decides.
ROWS = (
    Row(Liveness.ENDED, None, StoreSays.RESULT),
    # A machine that is not created yet is in no list, like one that is gone.
    Row(Liveness.REQUESTED, PlaceSays.GONE, StoreSays.NOTHING, lambda seen: seen.age_s < PROVISIONING_S),
    Row(Liveness.PREEMPTED, PlaceSays.GONE, None, lambda seen: seen.was_preempted()),
    Row(Liveness.OUT_OF_TIME, PlaceSays.GONE, None, lambda seen: seen.over_limit_s > 0),
    Row(Liveness.LOST, PlaceSays.GONE),
    # The cloud must have deleted the machine by now.
    Row(Liveness.GIVEN_UP, PlaceSays.UNREACHABLE, None, lambda seen: seen.over_limit_s > AFTER_LIMIT_S),
    # The store still shows that the machine works.
    Row(Liveness.ALIVE, PlaceSays.UNREACHABLE, StoreSays.HEARTBEAT, lambda seen: seen.silent_s <= SILENCE_LIMIT_S),
    Row(Liveness.UNKNOWN, PlaceSays.UNREACHABLE),
    Row(Liveness.RESTARTING, PlaceSays.STOPPED, None, lambda seen: seen.may_restart),
    Row(Liveness.STOPPED, PlaceSays.STOPPED),
    Row(Liveness.OVERDUE, None, None, lambda seen: seen.over_limit_s > AFTER_LIMIT_S),
    Row(Liveness.QUEUED, PlaceSays.QUEUED),
    Row(Liveness.SILENT, PlaceSays.UP, StoreSays.HEARTBEAT, lambda seen: seen.silent_s > SILENCE_LIMIT_S),
    Row(Liveness.NEVER_CAME_UP, PlaceSays.UP, StoreSays.NOTHING, lambda seen: seen.booting_s > seen.boot_limit_s),
    Row(Liveness.BOOTING, PlaceSays.UP, StoreSays.NOTHING),
    Row(Liveness.ALIVE, PlaceSays.UP, StoreSays.HEARTBEAT),
)


def liveness(seen: Observed) -> Liveness:
    """Judge a launch by the first row of the table that applies."""
    return next(row.liveness for row in ROWS if row.holds(seen))


def boot_limit_s(request: Request) -> float:
    """Longest time in seconds that a launch's machine may take up to its first heartbeat."""
    return INSTALLING_BOOT_LIMIT_S if request.options.get("driver") == "install" else BOOT_LIMIT_S
