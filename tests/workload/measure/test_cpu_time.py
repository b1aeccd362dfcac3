import time
from collections.abc import Callable

import pytest

from workload.environment.machine import HostSystem
from workload.measure.cpu_time import CpuMeter

LayOut = Callable[..., HostSystem]
TASKS = "/proc/self/task"


def test_waits_of_all_threads_count(lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2 s one thread waited 1 s and another one 0.5 s; a third is new."""
    monkeypatch.setattr("workload.measure.cpu_time.psutil.cpu_times", object)
    clock = iter([10.0, 12.0])
    machine = lay_out({f"{TASKS}/1/schedstat": "7 1000000000 3", f"{TASKS}/2/schedstat": "7 0 3"})
    meter = CpuMeter(machine, now_s=lambda: next(clock))
    lay_out(
        {
            f"{TASKS}/1/schedstat": "9 2000000000 5",
            f"{TASKS}/2/schedstat": "9 500000000 4",
            f"{TASKS}/3/schedstat": "1 500000000 1",
        }
    )
    assert meter.share().waited == pytest.approx(1.0)


@pytest.mark.parametrize("files", [{}, {f"{TASKS}/1/schedstat": "0"}, {f"{TASKS}/1/schedstat": "gone away"}])
def test_a_system_that_does_not_tell(lay_out: LayOut, files: dict[str, str]) -> None:
    assert CpuMeter(lay_out(files)).share().waited is None


def test_work_of_this_process_is_seen() -> None:
    meter, ends_s = CpuMeter(), time.process_time() + 0.05
    while time.process_time() < ends_s:
        pass
    assert meter.share().got > 0
