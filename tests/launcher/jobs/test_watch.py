"""Several launches under one watch; a single launch: test_follow.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.jobs.liveness import AFTER_LIMIT_S, Liveness
from launcher.jobs.session import Session
from launcher.jobs.watch import Watch, WatchedLaunch
from launcher.protocol.backend import Condition, Listing, Machine
from launcher.protocol.records import Result, result_object
from tests.launcher.own_machine import NAME, own_machine_request
from workload.contract.errors import ToolError
from workload.storage.folder import Folder

NAMES = (f"{NAME[:-1]}a", f"{NAME[:-1]}b")
RESULT = Result(exit_code=0, zone="zone", runs=[], phases={}, ended_at="2026-11-21T14:30:00Z").to_bytes()


class Place:
    """A place in memory; `unanswered`: machines whose zone does not answer."""

    noun = "job"

    def __init__(self) -> None:
        self.time_s = 1e9
        self.conditions = dict.fromkeys(NAMES, Condition.RUNNING)
        self.unanswered: tuple[str, ...] = ()

    def now_s(self) -> float:
        return self.time_s

    def look(self, names: Mapping[str, Sequence[str]]) -> Listing[Machine]:
        machines = [
            Machine(name=name, zone="zone", condition=self.conditions[name])
            for name in names
            if name not in self.unanswered
        ]
        return Listing(there=tuple(machines), unreachable=("zone",) if self.unanswered else ())


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def watch(place: Any, tmp_path: Path) -> Watch:
    return Watch(Session(machines=place, store=Folder(tmp_path)))


@pytest.fixture
def launches() -> list[WatchedLaunch]:
    return [WatchedLaunch(request=own_machine_request(name=name, limit_s=7200), zones=("zone",)) for name in NAMES]


def test_one_ends_and_the_other_goes_on(
    watch: Watch, place: Place, launches: list[WatchedLaunch], tmp_path: Path
) -> None:
    watch.poll(launches)
    assert [launch.liveness for launch in launches] == [Liveness.BOOTING] * 2
    Folder(tmp_path).write(result_object(NAMES[0]), RESULT)
    place.conditions[NAMES[0]] = Condition.GONE
    watch.poll(launches)
    assert [(launch.liveness, launch.has_ended, launch.is_gone) for launch in launches] == [
        (Liveness.ENDED, True, True),
        (Liveness.BOOTING, False, False),
    ]
    assert launches[0].error is None


def test_a_launch_whose_zone_never_answers_is_given_up_after_its_limit(
    watch: Watch, place: Place, launches: list[WatchedLaunch]
) -> None:
    place.unanswered = NAMES[:1]
    watch.poll(launches)
    assert [launch.has_ended for launch in launches] == [False, False]
    place.time_s += 7200 + AFTER_LIMIT_S + 1
    watch.poll(launches)
    assert launches[0].liveness is Liveness.GIVEN_UP
    assert isinstance(launches[0].error, ToolError)
    assert str(launches[0].error) == (
        f"'{NAMES[0]}' could not be followed to its time limit: nothing is known of '{NAMES[0]}': zone does not answer"
    )
