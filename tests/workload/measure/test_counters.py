import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from tests.workload.conftest import LayOut
from workload.environment.machine import HostSystem
from workload.measure.counters import CounterRate, HostCounters

PID = 50


@dataclass
class FakeProcess:
    """A process with times that a test sets; psutil's own list of children is a table too."""

    pid: int
    user_s: float = 0.0
    reaped_s: float = 0.0
    gone: bool = False
    below: list["FakeProcess"] = field(default_factory=list)

    def cpu_times(self) -> SimpleNamespace:
        if self.gone:
            raise psutil.NoSuchProcess(self.pid)
        half_s = self.reaped_s / 2
        return SimpleNamespace(user=self.user_s, system=1.0, children_user=half_s, children_system=half_s)

    def memory_info(self) -> SimpleNamespace:
        return SimpleNamespace(rss=4096)

    def children(self, *, recursive: bool) -> list["FakeProcess"]:
        assert recursive
        return self.below


def counters(machine: HostSystem, *processes: FakeProcess) -> HostCounters:
    table = {process.pid: process for process in processes}

    def find(pid: int) -> psutil.Process:
        if pid not in table:
            raise psutil.NoSuchProcess(pid)
        return cast("psutil.Process", table[pid])

    return HostCounters(machine, pid=processes[0].pid, find=find)


def read(found: HostCounters, column: str, now_s: float) -> float | None:
    return found.readings()[column](now_s)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(5, 1), (7, 2), (8, 4)], [None, 2.0, 0.5]),
        ([(5, 1), (5, 2)], [None, 0.0]),
        ([(5, 1), (6, 1.4), (7, 2)], [None, None, 2.0]),
        ([(5, 1), (6, 1.5)], [None, 2.0]),
        ([(5, 1), (4, 2), (6, 3)], [None, None, 2.0]),
        ([(5, 1), (6, 0)], [None, None]),
    ],
    ids=[
        "growth over growth",
        "standing still",
        "too soon: joined to the next",
        "just long enough",
        "a total that went back",
        "a clock that went back",
    ],
)
def test_rate(readings: list[tuple[float, float]], expected: list[float | None]) -> None:
    rate = CounterRate(shortest=0.5)
    assert [rate.update(total, against) for total, against in readings] == expected


def test_cpu_percent_of_one_process(lay_out: LayOut) -> None:
    process = FakeProcess(PID, user_s=10.0)
    found = counters(lay_out(), process)
    assert read(found, "cpu_percent", 1.0) is None
    process.user_s += 3.0
    assert read(found, "cpu_percent", 3.0) == pytest.approx(150.0)


CHILDREN = f"/proc/{PID}/task/{PID}/children"


def test_cpu_percent_counts_the_kernels_children_of_children(lay_out: LayOut) -> None:
    files = {CHILDREN: "51 52 ", f"/proc/{PID}/task/77/children": "53", "/proc/51/task/51/children": "54"}
    family = [FakeProcess(pid) for pid in (PID, 51, 53, 54)]
    found = counters(lay_out(files), *family)
    read(found, "cpu_percent", 1.0)
    for process in family:
        process.user_s += 0.25
    assert read(found, "cpu_percent", 2.0) == pytest.approx(100.0)


def test_cpu_percent_keeps_the_time_of_a_reaped_child(lay_out: LayOut) -> None:
    parent, child = FakeProcess(PID), FakeProcess(51, user_s=4.0)
    machine = lay_out({CHILDREN: "51"})
    found = counters(machine, parent, child)
    read(found, "cpu_percent", 1.0)
    machine.path(CHILDREN).write_text("")
    parent.reaped_s = 4.0 + 1.0 + 0.5
    assert read(found, "cpu_percent", 2.0) == pytest.approx(50.0)


def test_cpu_percent_is_unknown_where_time_is_lost(lay_out: LayOut) -> None:
    parent, child = FakeProcess(PID), FakeProcess(51, user_s=4.0)
    found = counters(lay_out({CHILDREN: "51"}), parent, child)
    read(found, "cpu_percent", 1.0)
    child.gone = True
    assert read(found, "cpu_percent", 2.0) is None


def test_cpu_percent_asks_psutil_where_the_kernel_lists_no_children(lay_out: LayOut) -> None:
    child = FakeProcess(51)
    found = counters(lay_out(), FakeProcess(PID, below=[child]))
    read(found, "cpu_percent", 1.0)
    child.user_s = 0.75
    assert read(found, "cpu_percent", 2.0) == pytest.approx(75.0)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("cpu  100 0 50 800 0 0 0 50 0 0\ncpu0 1", "cpu  150 0 60 820 0 0 0 70 0 0\ncpu0 1", 20.0),
        ("cpu  100 0 50 800 0 0 0 50 70 0", "cpu  200 0 50 800 0 0 0 75 170 0", 20.0),
        ("cpu  100 0 50 800 0 0 0 50", "cpu  104 0 50 804 0 0 0 51", None),
        ("cpu  100 0 50 800 0 0 0", "cpu  200 0 50 900 0 0 0", None),
        ("", "", None),
    ],
    ids=["a fifth", "guest time is in user time", "too soon", "a kernel without steal", "no /proc/stat"],
)
def test_steal(lay_out: LayOut, first: str, second: str, expected: float | None) -> None:
    machine = lay_out({"/proc/stat": first})
    found = counters(machine, FakeProcess(PID))
    assert read(found, "cpu_steal_percent", 1.0) is None
    machine.path("/proc/stat").write_text(second)
    assert read(found, "cpu_steal_percent", 2.0) == expected


CURRENT = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"


@pytest.mark.parametrize(
    ("allowed", "clocks_khz", "expected"),
    [
        ("0-1", {0: "2000000", 1: "3000000"}, 2500.0),
        ("1", {0: "2000000", 1: "3000000"}, 3000.0),
        ("0-15", {cpu: f"{1_000_000 * (1 + cpu % 2)}" for cpu in range(16)}, 1000.0),
        ("0-1", {}, None),
        ("0-1", {0: "2000000", 1: "<unknown>"}, 2000.0),
    ],
    ids=["mean", "allowed ones", "every second of sixteen", "a virtual machine", "one that does not know"],
)
def test_clock(lay_out: LayOut, allowed: str, clocks_khz: dict[int, str], expected: float | None) -> None:
    files = {CURRENT.format(cpu): khz for cpu, khz in clocks_khz.items()}
    machine = lay_out({"/proc/self/status": f"Cpus_allowed_list:\t{allowed}\n", **files})
    assert read(counters(machine, FakeProcess(PID)), "cpu_mhz", 1.0) == expected


def test_throttling_counts_from_the_start(lay_out: LayOut) -> None:
    machine = lay_out(
        {
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "/sys/fs/cgroup/cpu.stat": "throttled_usec 1000000\n",
        }
    )
    found = counters(machine, FakeProcess(PID))
    assert read(found, "cgroup_throttled_s", 1.0) == 0.0
    machine.path("/sys/fs/cgroup/cpu.stat").write_text("throttled_usec 1750000\n")
    assert read(found, "cgroup_throttled_s", 2.0) == 0.75


def test_pressure(lay_out: LayOut) -> None:
    machine = lay_out({"/proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=500000\nfull total=9\n"})
    found = counters(machine, FakeProcess(PID))
    assert read(found, "cpu_pressure_percent", 1.0) is None
    machine.path("/proc/pressure/cpu").write_text("some avg10=1.00 total=700000\nfull total=9\n")
    assert read(found, "cpu_pressure_percent", 3.0) == pytest.approx(10.0)


def test_memory(lay_out: LayOut) -> None:
    found = counters(lay_out({"/proc/meminfo": "MemAvailable: 4 kB\n"}), FakeProcess(PID))
    assert read(found, "memory_available_bytes", 1.0) == 4096
    assert read(found, "rss_bytes", 1.0) == 4096


def test_a_machine_that_tells_nothing(lay_out: LayOut) -> None:
    found = counters(lay_out(), FakeProcess(PID))
    for now_s in (1.0, 2.0):
        cells = {column: reading(now_s) for column, reading in found.readings().items()}
    assert {column for column, value in cells.items() if value is not None} == {"cpu_percent", "rss_bytes"}


@pytest.fixture
def busy_child() -> Iterator[psutil.Process]:
    pid = os.fork()
    if pid == 0:
        while True:
            pass
    yield psutil.Process(pid)
    os.kill(pid, 9)
    os.waitpid(pid, 0)


@pytest.mark.world
def test_a_real_child_is_seen(busy_child: psutil.Process) -> None:
    found = HostCounters(HostSystem())
    read(found, "cpu_percent", 1.0)
    before_s = busy_child.cpu_times().user
    while busy_child.cpu_times().user < before_s + 0.5:
        time.sleep(0.01)
    percent = read(found, "cpu_percent", 2.0)
    assert percent is not None
    assert percent >= 50
