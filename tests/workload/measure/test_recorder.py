import csv
from contextlib import closing
from pathlib import Path

import pytest
import torch

from workload.measure import recorder as module
from workload.measure.clock import EventClock
from workload.measure.recorder import ItemReader, Recorder, StepPart, StepPhase


class FakeGpu:
    """A fake CUDA stream. Its events carry a time, and have passed if it is at most `done_s`."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.done_s = 0.0
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1
        self.done_s = self.now_s

    def clock(self) -> EventClock:
        return EventClock(lambda: FakeEvent(self), lambda: None, self.synchronize)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.at_s: float | None = None

    def record(self, _: None) -> None:
        self.at_s = self._gpu.now_s

    def query(self) -> bool:
        assert self.at_s is not None
        return self.at_s <= self._gpu.done_s

    def elapsed_time(self, later: "FakeEvent") -> float:
        assert self.query(), "read before the device passed it"
        assert later.query(), "read before the device passed it"
        assert self.at_s is not None
        assert later.at_s is not None
        return (later.at_s - self.at_s) * 1000


class FakeHost:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def one_step(recorder: Recorder, gpu: FakeGpu, *, phase: StepPhase = StepPhase.MEASURED, accumulate: int = 1) -> None:
    recorder.begin(phase, 8)
    for _ in range(accumulate):
        for part, duration_s in ((StepPart.DATA, 0.5), (StepPart.FORWARD, 1.0), (StepPart.BACKWARD, 2.0)):
            gpu.now_s += duration_s
            recorder.mark(part)
    gpu.now_s += 0.25
    recorder.mark(StepPart.OPTIMIZER)
    recorder.end(torch.tensor(6.9))


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "steps.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


def make(folder: Path, gpu: FakeGpu, host: FakeHost) -> Recorder:
    return Recorder(folder, gpu.clock(), ItemReader(), started_s=97.0, now=host)


def test_parts_of_a_step_are_its_columns(tmp_path: Path, gpu: FakeGpu) -> None:
    with closing(make(tmp_path, gpu, FakeHost())) as recorder:
        one_step(recorder, gpu, phase=StepPhase.WARMUP)
        one_step(recorder, gpu)
        recorder.drain()
    first, second = rows(tmp_path)
    expected = {
        "step": "0",
        "phase": "warmup",
        # 3 s on the host before the first step began, then 3.75 s of device time.
        "ended_at_s": "6.7500000",
        "step_s": "3.2500000",
        "data_s": "0.5000000",
        "forward_s": "1.0000000",
        "backward_s": "2.0000000",
        "optimizer_s": "0.2500000",
        "images": "8",
        "loss": "6.9",
    }
    assert first == expected
    assert second == expected | {"step": "1", "phase": "measured", "ended_at_s": "10.5000000"}
    assert list(recorder.totals[StepPhase.MEASURED].step_s) == [3.25]
    assert recorder.totals[StepPhase.WARMUP].images == 8


def test_accumulated_batches_are_one_step(tmp_path: Path, gpu: FakeGpu) -> None:
    with closing(make(tmp_path, gpu, FakeHost())) as recorder:
        one_step(recorder, gpu, accumulate=3)
        recorder.drain()
    (row,) = rows(tmp_path)
    assert (row["data_s"], row["forward_s"], row["backward_s"]) == ("1.5000000", "3.0000000", "6.0000000")
    assert row["step_s"] == "9.2500000"


def test_rows_grow_once_a_second_without_a_synchronisation(tmp_path: Path, gpu: FakeGpu) -> None:
    host, flushed = FakeHost(), []
    with closing(make(tmp_path, gpu, host)) as recorder:
        recorder.on_flush = lambda: flushed.append(host.now_s)
        for _ in range(20):
            one_step(recorder, gpu)
            gpu.done_s = gpu.now_s - 4
            host.now_s += 0.125
        # The flush of step 17 finds the device 4 s behind the end of step 16: 14 steps have passed.
        assert flushed == [101.0, 102.0]
        assert len(rows(tmp_path)) == 14
        assert gpu.waits == 0
        recorder.drain()
    assert len(rows(tmp_path)) == 20
    assert gpu.waits == 1


def test_host_that_runs_far_ahead_waits(tmp_path: Path, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 4)
    with closing(make(tmp_path, gpu, FakeHost())) as recorder:
        for _ in range(9):
            one_step(recorder, gpu)
    assert gpu.waits == 2
    assert len(rows(tmp_path)) == 8


def test_write_that_fails_is_reported_once(tmp_path: Path, gpu: FakeGpu) -> None:
    (tmp_path / "steps.csv").symlink_to("/dev/full")
    recorder = make(tmp_path, gpu, FakeHost())
    one_step(recorder, gpu)
    with pytest.raises(OSError, match="No space left"):
        recorder.drain()
    recorder.close()
