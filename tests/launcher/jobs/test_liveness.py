"""The table that judges launches: each row by name, on both sides of its limit."""

from typing import Any

import pytest

from launcher.jobs.liveness import (
    AFTER_LIMIT_S,
    BOOT_LIMIT_S,
    PROVISIONING_S,
    ROWS,
    SILENCE_LIMIT_S,
    Liveness,
    Observed,
    PlaceSays,
    StoreSays,
    liveness,
)

UNREACHABLE, GONE, STOPPED, QUEUED, UP = PlaceSays
NOTHING, HEARTBEAT, RESULT = StoreSays
PREEMPTED: dict[str, Any] = {"was_preempted": lambda: True}

CASES: list[tuple[PlaceSays, StoreSays, dict[str, Any], Liveness]] = [
    *((place, RESULT, {"over_limit_s": 1e6, "silent_s": 1e6}, Liveness.ENDED) for place in PlaceSays),
    (GONE, NOTHING, {"age_s": PROVISIONING_S - 1, **PREEMPTED}, Liveness.REQUESTED),
    (GONE, NOTHING, {"age_s": PROVISIONING_S}, Liveness.LOST),
    (GONE, HEARTBEAT, {"age_s": 1}, Liveness.LOST),
    (GONE, NOTHING, PREEMPTED, Liveness.PREEMPTED),
    (GONE, HEARTBEAT, {"over_limit_s": 1, **PREEMPTED}, Liveness.PREEMPTED),
    (GONE, HEARTBEAT, {"over_limit_s": 1}, Liveness.OUT_OF_TIME),
    (GONE, HEARTBEAT, {"over_limit_s": 0}, Liveness.LOST),
    (UNREACHABLE, HEARTBEAT, {"over_limit_s": AFTER_LIMIT_S + 1}, Liveness.GIVEN_UP),
    (UNREACHABLE, NOTHING, {"over_limit_s": AFTER_LIMIT_S}, Liveness.UNKNOWN),
    (UNREACHABLE, HEARTBEAT, {"silent_s": SILENCE_LIMIT_S}, Liveness.ALIVE),
    (UNREACHABLE, HEARTBEAT, {"silent_s": SILENCE_LIMIT_S + 1}, Liveness.UNKNOWN),
    (STOPPED, HEARTBEAT, {"may_restart": True, "over_limit_s": 1e6}, Liveness.RESTARTING),
    (STOPPED, NOTHING, {}, Liveness.STOPPED),
    (QUEUED, NOTHING, {"booting_s": 1e6}, Liveness.QUEUED),
    (QUEUED, NOTHING, {"over_limit_s": AFTER_LIMIT_S + 1}, Liveness.OVERDUE),
    (UP, HEARTBEAT, {"over_limit_s": AFTER_LIMIT_S + 1}, Liveness.OVERDUE),
    (UP, HEARTBEAT, {"over_limit_s": AFTER_LIMIT_S}, Liveness.ALIVE),
    (UP, HEARTBEAT, {"silent_s": SILENCE_LIMIT_S + 1}, Liveness.SILENT),
    (UP, HEARTBEAT, {"silent_s": SILENCE_LIMIT_S, "booting_s": 1e6}, Liveness.ALIVE),
    (UP, NOTHING, {"booting_s": BOOT_LIMIT_S + 1}, Liveness.NEVER_CAME_UP),
    (UP, NOTHING, {"booting_s": BOOT_LIMIT_S, "silent_s": 1e6}, Liveness.BOOTING),
    (UP, NOTHING, {"booting_s": BOOT_LIMIT_S + 1, "boot_limit_s": 2 * BOOT_LIMIT_S}, Liveness.BOOTING),
]


@pytest.mark.parametrize(("place", "store", "facts", "expected"), CASES)
def test_rows(place: PlaceSays, store: StoreSays, facts: dict[str, Any], expected: Liveness) -> None:
    assert liveness(Observed(place=place, store=store, **facts)) is expected


def test_every_row_has_a_case_and_every_observation_a_row() -> None:
    assert {row.liveness for row in ROWS} == set(Liveness) == {expected for *_, expected in CASES}
    for place in PlaceSays:
        for store in StoreSays:
            assert liveness(Observed(place=place, store=store)) in Liveness
