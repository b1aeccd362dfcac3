"""`launch status` where there are thousands of launches."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.jobs import launches
from launcher.jobs.launches import LaunchState
from launcher.jobs.session import Session
from launcher.protocol.backend import Listing, Machine
from launcher.protocol.records import Result, request_object, result_object
from tests.launcher.rented_vm import LAUNCHED_S, REQUEST
from workload.storage.folder import Folder
from workload.storage.store import StoredObject

MANY = 2000
RESULT = Result(exit_code=0, zone="us-central1-a", runs=[], phases={}, ended_at="2026-11-21T12:00:00Z").to_bytes()


class CountedFolder(Folder):
    """A store that counts what it is asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads, self.lists = 0, 0

    def read(self, name: str, **limits: Any) -> bytes | None:
        self.reads += 1
        return super().read(name, **limits)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        self.lists += 1
        return super().objects(prefix)

    def folders(self, prefix: str) -> list[str]:
        self.lists += 1
        return super().folders(prefix)


class NoMachines:
    noun, place = "VM", "my-project"
    looks = 0

    def now_s(self) -> float:
        return LAUNCHED_S

    def look(self, _: object = None) -> Listing[Machine]:
        self.looks += 1
        return Listing()


def test_the_newest_are_shown_by_one_list_and_the_records_of_these_alone(tmp_path: Path) -> None:
    names = [f"rooflaunch-t4-20261121-{i // 3600:02d}{i // 60 % 60:02d}{i % 60:02d}-{i:06x}" for i in range(MANY)]
    for name in names:
        (tmp_path / "launches" / name).mkdir(parents=True)
        (tmp_path / result_object(name)).write_bytes(RESULT)
    for name in names[-launches.SHOWN :]:
        (tmp_path / request_object(name)).write_bytes(replace(REQUEST, name=name).to_bytes())
    store, machines = CountedFolder(tmp_path), NoMachines()
    listing = launches.list_launches(Session(machines=machines, store=store))  # type: ignore[arg-type] # what is asked
    assert [launch.seen.name for launch in listing] == names[: -launches.SHOWN - 1 : -1]
    assert {launch.state for launch in listing} == {LaunchState.DONE}
    assert (store.lists, store.reads, machines.looks) == (1, 2 * launches.SHOWN, 1)
