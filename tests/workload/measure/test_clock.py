from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tests.workload.fake_cuda import FakeCuda
from workload.contract.spec import Device
from workload.measure import clock
from workload.measure.recorder import ItemReader, Recorder, StepPart, StepPhase


class MpsEvent:
    """An event of torch.mps: one that ends two intervals waits for ever, and an empty interval raises."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.was_an_end = False

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: "MpsEvent") -> float:
        assert not later.was_an_end, "this would wait for ever"
        later.was_an_end = True
        raise RuntimeError("End event was not recorded after start event")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Function that returns how often the fake Apple GPU was synchronized."""
    count = 0

    def synchronize() -> None:
        nonlocal count
        count += 1

    monkeypatch.setattr(torch.mps, "synchronize", synchronize)
    monkeypatch.setattr(torch.mps, "Event", MpsEvent)
    return lambda: count


def test_on_mps_a_mark_waits_for_the_device_and_asks_no_event(waits: Callable[[], int]) -> None:
    mps = clock.clock_for(Device.MPS)
    first, second = mps.mark(), mps.mark()
    assert waits() == 2
    assert mps.passed(second)
    assert mps.seconds_between(first, second) > 0
    assert mps.seconds_between(first, first) == 0, "an empty interval is one"


def test_rows_of_a_run_on_mps_come_to_their_end(waits: Callable[[], int], tmp_path: Path) -> None:
    with closing(Recorder(tmp_path, clock.clock_for(Device.MPS), ItemReader(), started_s=0.0)) as recorder:
        for _ in range(2):
            recorder.begin(StepPhase.MEASURED, 8)
            for part in StepPart:
                recorder.mark(part)
            recorder.end(torch.tensor(6.9))
        recorder.drain()
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 3
    assert waits() > 0


def test_clock_of_a_gpu_keeps_to_it_while_another_one_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    with torch.cuda.device(1):
        of_second = clock.clock_for(Device.CUDA)
        in_backward_pass = of_second.mark()
    in_main_thread = of_second.mark()
    assert of_second.seconds_between(in_backward_pass, in_main_thread) == 0.001
    of_second.synchronize()
    assert cuda.waits == [1]
