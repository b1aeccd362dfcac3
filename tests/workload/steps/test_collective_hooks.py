"""Hooks around functions that stand for those of torch.distributed, with a clock that only they move."""

import csv
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workload.measure.clock import Collectives, HostClock
from workload.steps.agreement import CollectiveHooks, largest_bytes


class SteppedClock(HostClock):
    """A clock that stands still between steps of the test, on the stream of the test's choice."""

    def __init__(self) -> None:
        self.now_s, self.current = 0.0, "home"
        self.mark = lambda: self.now_s

    def passed(self, mark: float) -> bool:
        return mark <= self.now_s

    def stream(self) -> str:
        return self.current


class Work:
    """An asynchronous operation that is done `lasts_s` after its beginning; `tells`: whether it has a future."""

    def __init__(self, clock: SteppedClock, lasts_s: float, *, tells: bool = True) -> None:
        self.clock, self.done_s, self.tells = clock, clock.now_s + lasts_s, tells
        self.callbacks: list[Callable[[object], None]] = []

    def get_future(self) -> Any:
        if not self.tells:
            raise RuntimeError("Work::getFuture not implemented.")
        return SimpleNamespace(add_done_callback=self.callbacks.append)

    def run_to(self, now_s: float) -> None:
        """Compute until `now_s`; the work may end meanwhile."""
        if self.clock.now_s <= self.done_s <= now_s:
            self.clock.now_s = self.done_s
            for callback in self.callbacks:
                callback(None)
        self.clock.now_s = now_s

    def wait(self) -> bool:
        self.run_to(max(self.clock.now_s, self.done_s))
        return True


class Distributed:
    """Stands for torch.distributed: a blocking operation takes 1 s, an asynchronous one `lasts_s`."""

    tells = True

    def __init__(self, clock: SteppedClock, lasts_s: float = 3.0) -> None:
        self.clock, self.lasts_s = clock, lasts_s

    def all_gather_into_tensor(self, *_: Any, async_op: bool = False) -> Work | None:
        if async_op:
            return Work(self.clock, self.lasts_s, tells=self.tells)
        self.clock.now_s += 1.0
        return None

    def batch_isend_irecv(self, operations: list[Any]) -> list[Work]:
        return [Work(self.clock, self.lasts_s, tells=False) for _ in operations]

    def all_gather_object(self, *_: Any) -> None:
        self.all_gather_into_tensor(8)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    clock, hooks = SteppedClock(), CollectiveHooks()
    dist = Distributed(clock)
    hooks._wrap_functions(dist)
    monkeypatch.setattr(Work, "wait", Work.wait)  # restores it
    hooks._observe_waits(Work)
    with Collectives(tmp_path, clock) as collectives:
        hooks.receiver = collectives
        yield SimpleNamespace(clock=clock, hooks=hooks, dist=dist, collectives=collectives, folder=tmp_path)


def rows(stage: SimpleNamespace) -> dict[str, list[float]]:
    """Number, bytes, own, hidden and exposed time by kind, of a step from 0 s until now."""
    end_s = stage.clock.now_s
    stage.collectives.write(0, stage.collectives.of_step(), began=0.0, passes=[], counted=[(0.0, end_s)])
    stage.collectives.flush()
    lines = list(csv.reader((stage.folder / "collectives.csv").read_text().splitlines()[1:]))
    return {kind: [float(cell) for cell in cells] for _, kind, *cells in lines}


def tensor(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def test_a_blocking_collective_is_exposed(stage: SimpleNamespace) -> None:
    stage.dist.all_gather_into_tensor(tensor(80), tensor(40))
    stage.dist.all_gather_object([None], {})  # calls the function above
    assert rows(stage)["all_gather"] == [2, 80, 2, 0, 2]
    assert stage.hooks.begun == 2


@pytest.mark.parametrize(
    ("computes_s", "tells", "times"),
    [
        (2.0, True, [3, 2, 1]),
        (5.0, True, [3, 3, 0]),  # done before the wait
        (2.0, False, [1, 0, 1]),  # the library does not tell the end: only the wait is known
        (5.0, False, [0, 0, 0]),
    ],
)
def test_an_asynchronous_collective_is_exposed_where_the_script_waits(
    stage: SimpleNamespace, computes_s: float, tells: bool, times: list[float]
) -> None:
    stage.dist.tells = tells
    work = stage.dist.all_gather_into_tensor(tensor(80), async_op=True)
    work.run_to(computes_s)
    assert work.wait() is True
    assert work.wait() is True, "a second wait takes no time"
    assert isinstance(work, Work)
    assert rows(stage)["all_gather"] == [1, 80, *times]


def test_messages_are_counted_one_by_one_and_timed_while_the_script_waits(stage: SimpleNamespace) -> None:
    messages = [SimpleNamespace(tensor=tensor(30)), SimpleNamespace(tensor=tensor(20))]
    works = stage.dist.batch_isend_irecv(messages)
    stage.clock.now_s = 2.5
    for work in works:
        work.wait()
    assert rows(stage)["point_to_point"] == [2, 50, 0.5, 0, 0.5]
    assert stage.hooks.begun == 0, "ranks send different numbers of messages"


def test_collectives_beside_the_training_do_not_count(stage: SimpleNamespace) -> None:
    stage.hooks.thread = threading.get_ident()
    thread = threading.Thread(target=stage.dist.all_gather_into_tensor, args=[tensor(80)])
    thread.start()
    thread.join()
    assert list(rows(stage)) == ["all"]


def test_waits_of_the_training_for_another_stream(stage: SimpleNamespace) -> None:
    """As FSDP on a GPU: an all-gather on a stream of its own, whose event the training's stream waits for."""

    class Stream(str):
        __slots__ = ()

        def record_event(self, event: Any = None) -> Any:
            return event or SimpleNamespace()

        def wait_event(self, event: Any) -> None:
            stage.clock.now_s += event.lasts_s

    stage.hooks._observe_streams(Stream)
    home, beside = Stream("home"), Stream("beside")
    stage.clock.current = beside
    stage.dist.all_gather_into_tensor(tensor(80))
    gathered, other = beside.record_event(), home.record_event()
    gathered.lasts_s, other.lasts_s = 0.25, 7.0
    stage.clock.current = home
    for stream, event in ((home, gathered), (home, other), (beside, gathered)):
        stream.wait_event(event)
    assert rows(stage)["all_gather"] == [1, 80, 1, 0.75, 0.25]


def test_functional_collectives_are_exposed_where_their_result_is_waited_for(
    stage: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_tensor(result: Any) -> Any:
        stage.clock.now_s += 0.5
        return result

    functions = SimpleNamespace(all_reduce=lambda value, *_: value, wait_tensor=wait_tensor)
    monkeypatch.setitem(sys.modules, "torch.distributed._functional_collectives", functions)
    stage.hooks.observe_functional()
    result = functions.all_reduce(tensor(80), "sum", [0, 1])
    stage.clock.now_s += 2.0
    assert functions.wait_tensor(result) is result
    assert rows(stage)["all_reduce"] == [1, 80, 0.5, 0, 0.5]


def test_bytes_are_those_of_the_larger_of_input_and_output() -> None:
    assert largest_bytes([tensor(8), tensor(8)], tensor(10), "sum", group=[0, 1]) == 16
    assert largest_bytes(tensor(8), out=tensor(9)) == 9
    assert largest_bytes() == 0


def test_without_a_receiver_collectives_are_only_counted(stage: SimpleNamespace) -> None:
    stage.hooks.receiver = None
    work = stage.dist.all_gather_into_tensor(tensor(80), async_op=True)
    work.wait()
    stage.hooks.receiver = stage.collectives
    assert (stage.hooks.begun, list(rows(stage))) == (1, ["all"])
