"""Which of several agents works on a launch; on every kind of store: tests/workload/storage/test_store_contract.py."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.agent import lease as leases
from launcher.agent.lease import STALE_POLLS, Lease, take
from launcher.protocol.records import lease_object, result_object, status_object
from workload.contract.errors import InterruptedRunError
from workload.storage.address import open_store
from workload.storage.store import Store

NAME = "rooflaunch-tower-20261121-100000-0000aa"
NOW_S = 1_795_255_200.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return open_store(str(tmp_path / "store"))


def taken(store: Store, wait: Callable[[float], bool] = lambda _: pytest.fail("it waits")) -> Lease | None:
    return take(store, NAME, now=lambda: NOW_S, wait=wait)


def waits_for(store: Store) -> int:
    """After how many looks the second lease is taken."""
    waits: list[float] = []
    assert number_of(taken(store, lambda seconds: bool(waits.append(seconds)))) == 2
    return len(waits)


def number_of(lease: Lease | None) -> int:
    assert lease is not None
    return lease.number


def change(store: Store, **fields: object) -> None:
    """Have the first lease be that of another process."""
    held = json.loads(store.read(lease_object(NAME, 1)) or b"")
    store.write(lease_object(NAME, 1), json.dumps({**held, **fields}).encode())


def test_the_first_agent_has_the_lease_and_is_told_when_it_is_lost(store: Store) -> None:
    first = taken(store)
    assert first is not None
    assert (first.number, first.is_lost()) == (1, False)
    document = json.loads(store.read(lease_object(NAME, 1)) or b"")
    assert document["at"] == "2026-11-21T10:00:00.000Z"
    assert document["process"].split()[1] == str(os.getpid())
    first.release()
    second = taken(store)
    assert (number_of(second), first.is_lost()) == (2, True)


def test_a_second_agent_waits_while_the_first_ones_heart_beats(store: Store) -> None:
    first, beats = taken(store), itertools.count()

    def wait(seconds: float) -> bool:
        assert seconds == 15
        if (beat := next(beats)) < 3 * STALE_POLLS:
            store.write(status_object(NAME), str(beat).encode())
        else:
            store.write(result_object(NAME), b"{}")
        return False

    assert taken(store, wait) is None, "the launch has ended"
    assert next(beats) == 3 * STALE_POLLS + 1
    assert first is not None
    assert not first.is_lost()


def test_an_ended_launch_has_a_lease_only_for_what_was_left_behind(store: Store) -> None:
    store.write(result_object(NAME), b"{}")
    assert taken(store) is None
    left = take(store, NAME, now=lambda: NOW_S, wait=lambda _: pytest.fail("it waits"), after_end=True)
    assert number_of(left) == 1


def test_who_is_told_to_stop_while_it_waits_ends(store: Store) -> None:
    taken(store)
    with pytest.raises(InterruptedRunError) as stopped:
        taken(store, lambda _: True)
    assert str(stopped.value) == f"asked to stop while another agent works on '{NAME}'"
    assert stopped.value.hint == f"launch status {NAME}"
    assert store.read(lease_object(NAME, 2)) is None


# What differs from this process in the record of the one that holds the lease, and whether it must have ended.
HOLDERS: dict[str, tuple[dict[str, object], bool]] = {
    "this process": ({}, False),
    "an earlier boot": ({"boot": "0-1"}, True),
    "another machine": ({"host": "node-2", "boot": "0-1"}, False),
    "a system without boots": ({"boot": ""}, False),
    "another container": ({"process": "pid:[1] 4194999 7"}, True),
    "no process": ({"process": "odd"}, False),
    "released": ({"host": "node-2", "released": True}, True),
}


@pytest.mark.parametrize(("fields", "has_ended"), HOLDERS.values(), ids=list(HOLDERS))
def test_an_agent_that_must_have_ended_is_not_waited_for(
    fields: dict[str, object], has_ended: bool, store: Store
) -> None:
    first = taken(store)
    change(store, **fields)
    assert waits_for(store) == (0 if has_ended else STALE_POLLS)
    assert first is not None
    assert first.is_lost()


def test_a_record_that_cannot_be_read_is_a_lease_all_the_same(store: Store) -> None:
    store.write(lease_object(NAME, 1), b"{")
    assert waits_for(store) == STALE_POLLS


@pytest.mark.world
@pytest.mark.parametrize("lives", [True, False])
def test_a_process_of_this_machine_is_seen_to_end(lives: bool, store: Store) -> None:
    taken(store)
    space = Path("/proc/self/ns/pid").readlink()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        change(store, process=f"{space} {other.pid} {leases._started(other.pid)}")
        if not lives:
            other.kill()
            other.wait()
        assert waits_for(store) == (STALE_POLLS if lives else 0)
        other.kill()
