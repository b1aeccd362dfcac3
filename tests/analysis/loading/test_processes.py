import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from analysis.loading import index, processes
from analysis.loading.processes import Sharing, reused, share
from benchmarks.synthetic_bundles import make
from tests.analysis.own_peaks import own_t4
from workload.contract import peaks


@pytest.fixture(autouse=True)
def three_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_cpus", lambda: 3)


def square(number: int) -> int:
    print("work may print")
    return number * number


def die_elsewhere(process: int) -> int:
    if os.getpid() != process:
        os._exit(1)
    return process


def fail(part: int) -> int:
    raise IndexError(part)


@pytest.mark.world
def test_results_are_in_order() -> None:
    assert share(square, range(20)) == [number * number for number in range(20)]


def own_peaks_of(_: int) -> tuple[int, object]:
    return os.getpid(), peaks.in_use()


@pytest.mark.slow
@pytest.mark.world
def test_processes_use_the_same_peaks(tmp_path: Path) -> None:
    own = peaks.own_peaks(own_t4(tmp_path / "lab.toml", tflop_per_s=11))
    peaks.use(own)
    try:
        answers = share(own_peaks_of, range(300))
    finally:
        peaks.use(None)
    assert {used for _, used in answers} == {own}


@pytest.mark.world
def test_parts_of_a_process_that_died_are_done_here() -> None:
    assert share(die_elsewhere, [os.getpid()] * 9) == [os.getpid()] * 9


@pytest.mark.world
def test_error_is_raised_and_other_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    real = subprocess.Popen

    def spy(*words: Any, **options: Any) -> Any:
        started.append(real(*words, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", spy)
    with pytest.raises(IndexError, match="7"):
        share(fail, [7] * 5)
    assert [process.returncode is not None for process in started] == [True, True]


@pytest.mark.world
def test_a_process_ends_if_its_part_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = list[str]()
    monkeypatch.setattr(threading, "excepthook", lambda caught: reasons.append(str(caught.exc_value)))
    sharing = Sharing(str, [lambda: None], others=1)
    [other] = sharing._busy
    sharing._threads[0].join()
    assert other.returncode is not None
    assert ["pickle" in reason for reason in reasons] == [True]


def process_of(_: int) -> int:
    return os.getpid()


@pytest.mark.slow
@pytest.mark.world
def test_a_process_is_reused_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    real = subprocess.Popen

    def spy(*words: Any, **options: Any) -> Any:
        started.append(real(*words, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", spy)
    monkeypatch.setattr(processes, "_cpus", lambda: 2)
    with reused():
        for _ in range(2):
            sharing = Sharing(process_of, [0, 0])
            # The other process has done all before this one could begin.
            sharing._threads[0].join()
            assert sharing.results() == [started[0].pid] * 2
        assert started[0].returncode is None
    assert [process.returncode is not None for process in started] == [True]


def hold(lock: Path) -> None:
    """Hold a lock until this process ends."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lock.with_suffix(".held").touch()
        signal.alarm(100)
        signal.pause()


@pytest.mark.world
def test_no_process_survives_this_one(tmp_path: Path) -> None:
    lock, held = tmp_path / "x.lock", tmp_path / "x.held"
    code = f"""if True:
        import pathlib
        from analysis.loading.processes import Sharing
        from tests.analysis.loading.test_processes import hold
        begun = Sharing(hold, [pathlib.Path({str(lock)!r})], others=1)
        while not pathlib.Path({str(held)!r}).exists():
            pass
        raise KeyboardInterrupt
    """
    subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.DEVNULL)
    with lock.open("w") as file:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
    pytest.fail("the other process still waits")


@pytest.mark.world
def test_a_single_part_is_done_elsewhere_on_request() -> None:
    sharing = Sharing(process_of, [0], others=1)
    sharing._threads[0].join()
    assert sharing.results() != [os.getpid()]


@pytest.mark.world
def test_machine_without_room_for_threads_does_all_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(processes.Thread, "start", refuse)
    assert share(die_elsewhere, [os.getpid()] * 3) == [os.getpid()] * 3


def test_machine_without_room_for_processes_does_all_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert share(die_elsewhere, [os.getpid()] * 3) == [os.getpid()] * 3


@pytest.mark.slow
@pytest.mark.world
def test_bundles_read_by_several_processes_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [make(tmp_path / "results", number) for number in range(7)]
    (folders[2] / "telemetry.csv").unlink()
    (folders[4] / "MANIFEST.json").unlink()
    candidates, _ = index.find(str(tmp_path / "results"))
    alone = index.read(candidates)
    monkeypatch.setattr(index, "CHUNK", 2)
    monkeypatch.setattr(index, "FEWEST_SHARED", 1)
    table, problems = index.read(candidates)
    assert table.num_rows == 5
    assert (table.combine_chunks(), problems) == (alone[0].combine_chunks(), alone[1])
