import csv
import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch

from tests.workload.conftest import LayOut
from workload.contract.bundle import TELEMETRY_COLUMNS
from workload.environment.device import GpuSensors
from workload.environment.machine import HostSystem
from workload.measure import telemetry as module
from workload.measure.telemetry import CounterRate, HostCounters, Telemetry, gpu_source, sources_of

# Longer than any test: the thread waits, and the test alone says when a row is due.
NEVER_S = 3600.0


class Clock:
    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def started(path: Path, sources: Mapping[str, Any], clock: Callable[[], float], **options: float) -> Telemetry:
    return Telemetry(
        path,
        device="cpu",
        origin_s=90.0,
        clock=clock,
        interval_s=options.get("interval_s", NEVER_S),
        sources=sources,
    )


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_a_row_on_entry_in_between_and_on_exit(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "telemetry.csv"
    with started(path, {"load": lambda now_s: {"cpu_percent": now_s / 2}}, clock) as telemetry:
        assert [row["t_s"] for row in rows(path)] == ["10.000"]
        clock.now_s = 101.25
        telemetry.record()
        # Seen while it runs: a killed run keeps its rows.
        assert [row["t_s"] for row in rows(path)] == ["10.000", "11.250"]
        clock.now_s = 102.0
    assert [(row["t_s"], row["cpu_percent"]) for row in rows(path)] == [
        ("10.000", "50.000"),
        ("11.250", "50.625"),
        ("12.000", "51.000"),
    ]
    assert path.read_text().splitlines()[0] == ",".join(TELEMETRY_COLUMNS)
    assert (telemetry.error, telemetry.sample_errors) == (None, {})


@pytest.mark.parametrize(
    ("column", "value", "cell"),
    [
        ("power_w", 69.25, "69.250"),
        ("sm_clock_mhz", 1590, "1590"),
        ("rss_bytes", 12_345_678_901, "12345678901"),
        ("clock_event_reasons", 0, "0x0"),
        ("clock_event_reasons", 0x8000000000000000, "0x8000000000000000"),
        ("cpu_percent", None, ""),
    ],
)
def test_cells(tmp_path: Path, column: str, value: float | None, cell: str) -> None:
    path = tmp_path / "telemetry.csv"
    with started(path, {"one": lambda _now_s: {column: value, "not a column": 1.0}}, Clock()):
        pass
    for row in rows(path):
        assert set(row) == set(TELEMETRY_COLUMNS)
        assert {name: text for name, text in row.items() if text and name != "t_s"} == ({column: cell} if cell else {})


def test_a_failing_source_loses_its_own_cells(tmp_path: Path) -> None:
    failures = iter([ValueError("first"), RuntimeError("second")])

    def fail(_now_s: float) -> dict[str, float | None]:
        raise next(failures)

    path = tmp_path / "telemetry.csv"
    sources = {"bad": fail, "good": lambda _now_s: {"temperature_c": 61}}
    with started(path, sources, Clock()) as telemetry:
        pass
    assert [row["temperature_c"] for row in rows(path)] == ["61", "61"]
    assert {name: str(error) for name, error in telemetry.sample_errors.items()} == {"bad": "first"}
    assert telemetry.error is None


def test_a_file_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    with started(tmp_path / "absent" / "telemetry.csv", {}, Clock()) as telemetry:
        telemetry.record()
    assert isinstance(telemetry.error, FileNotFoundError)


class FullDisk:
    """A raw file on a disk with `free_bytes` left: takes what fits, then refuses."""

    def __init__(self, free_bytes: int) -> None:
        self.content = b""
        self.closed = False
        self._free_bytes = free_bytes

    def write(self, data: memoryview) -> int:
        assert not self.closed
        taken = bytes(data[: self._free_bytes - len(self.content)])
        if not taken:
            raise OSError(28, "No space left on device")
        self.content += taken
        return len(taken)

    def truncate(self, size: int) -> None:
        self.content = self.content[:size]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("spare_bytes", [0, 5], ids=["at the end of a row", "in the middle of one"])
def test_a_full_disk_ends_the_telemetry_with_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare_bytes: int
) -> None:
    header = ",".join(TELEMETRY_COLUMNS) + "\n"
    row = "10.000" + "," * (len(TELEMETRY_COLUMNS) - 1) + "\n"
    disk = FullDisk(len(header + row) + spare_bytes)
    monkeypatch.setattr(Path, "open", lambda *_arguments, **_options: disk)
    with started(tmp_path / "telemetry.csv", {}, Clock()) as telemetry:
        assert telemetry.error is None
        telemetry.record()
        first = telemetry.error
        telemetry._thread.join(60)
        assert not telemetry._thread.is_alive()
        telemetry.record()
    assert isinstance(first, OSError)
    assert telemetry.error is first
    assert disk.content.decode() == header + row
    assert disk.closed


def test_a_query_that_never_returns_does_not_hold_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_LIMIT_S", 0.01)
    inside, release = threading.Event(), threading.Event()
    main = threading.current_thread()

    def hang(_now_s: float) -> dict[str, float | None]:
        if threading.current_thread() is not main:
            inside.set()
            release.wait(60)
        return {}

    path = tmp_path / "telemetry.csv"
    telemetry = started(path, {"hangs": hang}, Clock(), interval_s=0.001)
    with telemetry:
        assert inside.wait(60)
    assert len(rows(path)) == 1
    release.set()
    telemetry._thread.join(60)
    telemetry._file.close() if telemetry._file else None


@pytest.mark.parametrize(
    ("now_s", "expected"),
    [(100.0, 1.0), (100.25, 0.75), (101.5, 0.5), (105.75, 0.25)],
    ids=["at once", "in the first second", "one row late", "five rows late: no burst"],
)
def test_rows_keep_their_rhythm(tmp_path: Path, now_s: float, expected: float) -> None:
    clock = Clock(now_s)
    assert started(tmp_path / "t.csv", {}, clock, interval_s=1.0)._to_next_s(100.0) == pytest.approx(expected)


def test_host_readings_are_columns(lay_out: LayOut) -> None:
    sources = sources_of("cpu", lay_out({"/proc/meminfo": "MemAvailable: 4 kB\n"}))
    cells = {name: value for source in sources.values() for name, value in source(1.0).items()}
    assert set(cells) == set(TELEMETRY_COLUMNS[8:])
    assert cells["memory_available_bytes"] == 4096


SAMPLE = {
    "sm_clock_mhz": 1590,
    "memory_clock_mhz": 5000,
    "temperature_c": 61,
    "power_w": 69.25,
    "clock_event_reasons": 4,
    "gpu_utilization_percent": 97,
    "memory_used_bytes": 500,
}


def test_gpu_sample_fills_the_devices_columns() -> None:
    cells = gpu_source(cast("GpuSensors", SimpleNamespace(sample=lambda: SAMPLE)))(1.0)
    assert set(TELEMETRY_COLUMNS[1:8]) <= set(cells)
    assert cells["gpu_memory_used_bytes"] == 500


@pytest.mark.parametrize(("device", "opened"), [("cuda:2", [2]), ("cuda", [1]), ("cpu", []), ("mps", [])], ids=str)
@pytest.mark.parametrize("known", [True, False], ids=["NVML", "no NVML"])
def test_which_gpu_is_sampled(
    lay_out: LayOut, monkeypatch: pytest.MonkeyPatch, device: str, opened: list[int], known: bool
) -> None:
    asked: list[int] = []

    def open_gpu(index: int) -> object:
        asked.append(index)
        return SimpleNamespace(sample=lambda: SAMPLE) if known else None

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(module, "GpuSensors", SimpleNamespace(open=open_gpu))
    sources = sources_of(device, lay_out())
    assert asked == opened
    assert ("nvml" in sources) == (known and opened != [])


# --- readings of the host

PID = 50


@dataclass
class FakeProcess:
    """A process whose CPU times and children a test sets."""

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
        pytest.param([(5, 1), (7, 2), (8, 4)], [None, 2.0, 0.5], id="growth over growth"),
        pytest.param([(5, 1), (6, 1.4), (7, 2)], [None, None, 2.0], id="too soon: joined to the next"),
        pytest.param([(5, 1), (6, 1.5)], [None, 2.0], id="just long enough"),
        pytest.param([(5, 1), (4, 2), (6, 3)], [None, None, 2.0], id="a total that went back"),
        pytest.param([(5, 1), (6, 0)], [None, None], id="a clock that went back"),
    ],
)
def test_rate(readings: list[tuple[float, float]], expected: list[float | None]) -> None:
    rate = CounterRate(shortest=0.5)
    assert [rate.update(total, against) for total, against in readings] == expected


CHILDREN = f"/proc/{PID}/task/{PID}/children"


def test_cpu_percent_counts_the_kernels_children_of_children(lay_out: LayOut) -> None:
    files = {CHILDREN: "51 52 ", f"/proc/{PID}/task/77/children": "53", "/proc/51/task/51/children": "54"}
    family = [FakeProcess(pid) for pid in (PID, 51, 53, 54)]
    found = counters(lay_out(files), *family)
    read(found, "cpu_percent", 1.0)
    for process in family:
        process.user_s += 0.25
    assert read(found, "cpu_percent", 2.0) == pytest.approx(100.0)


def test_cpu_percent_asks_psutil_where_the_kernel_lists_no_children(lay_out: LayOut) -> None:
    child = FakeProcess(51)
    found = counters(lay_out(), FakeProcess(PID, below=[child]))
    read(found, "cpu_percent", 1.0)
    child.user_s = 0.75
    assert read(found, "cpu_percent", 2.0) == pytest.approx(75.0)


def test_cpu_percent_keeps_the_time_of_a_reaped_child_and_is_unknown_where_time_is_lost(lay_out: LayOut) -> None:
    parent, child = FakeProcess(PID), FakeProcess(51, user_s=4.0)
    machine = lay_out({CHILDREN: "51"})
    found, later = (counters(machine, parent, child) for _ in range(2))
    read(found, "cpu_percent", 1.0)
    read(later, "cpu_percent", 1.0)
    child.gone = True
    assert read(later, "cpu_percent", 2.0) is None
    machine.path(CHILDREN).write_text("")
    parent.reaped_s = 4.0 + 1.0 + 0.5
    assert read(found, "cpu_percent", 2.0) == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("cpu  100 0 50 800 0 0 0 50 0 0\ncpu0 1", "cpu  150 0 60 820 0 0 0 70 0 0\ncpu0 1", 20.0),
        ("cpu  100 0 50 800 0 0 0 50 70 0", "cpu  200 0 50 800 0 0 0 75 170 0", 20.0),
        ("cpu  100 0 50 800 0 0 0 50", "cpu  104 0 50 804 0 0 0 51", None),
        ("cpu  100 0 50 800 0 0 0", "cpu  200 0 50 900 0 0 0", None),
    ],
    ids=["a fifth", "guest time is in user time", "too soon", "a kernel without steal"],
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
        pytest.param("0-1", {0: "2000000", 1: "3000000"}, 2500.0, id="mean"),
        pytest.param("1", {0: "2000000", 1: "3000000"}, 3000.0, id="allowed ones"),
        pytest.param("0-15", {cpu: f"{1_000_000 * (1 + cpu % 2)}" for cpu in range(16)}, 1000.0, id="every second"),
        pytest.param("0-1", {}, None, id="a virtual machine"),
        pytest.param("0-1", {0: "2000000", 1: "<unknown>"}, 2000.0, id="one that does not know"),
    ],
)
def test_clock(lay_out: LayOut, allowed: str, clocks_khz: dict[int, str], expected: float | None) -> None:
    files = {CURRENT.format(cpu): khz for cpu, khz in clocks_khz.items()}
    machine = lay_out({"/proc/self/status": f"Cpus_allowed_list:\t{allowed}\n", **files})
    assert read(counters(machine, FakeProcess(PID)), "cpu_mhz", 1.0) == expected


def test_throttling_counts_from_the_start_and_pressure_from_the_reading_before(lay_out: LayOut) -> None:
    machine = lay_out(
        {
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "/sys/fs/cgroup/cpu.stat": "throttled_usec 1000000\n",
            "/proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=500000\nfull total=9\n",
        }
    )
    found = counters(machine, FakeProcess(PID))
    assert read(found, "cgroup_throttled_s", 1.0) == 0.0
    assert read(found, "cpu_pressure_percent", 1.0) is None
    machine.path("/sys/fs/cgroup/cpu.stat").write_text("throttled_usec 1750000\n")
    machine.path("/proc/pressure/cpu").write_text("some avg10=1.00 total=700000\nfull total=9\n")
    assert read(found, "cgroup_throttled_s", 2.0) == 0.75
    assert read(found, "cpu_pressure_percent", 3.0) == pytest.approx(10.0)


@pytest.mark.world
def test_a_real_child_is_seen() -> None:
    found = HostCounters(HostSystem())
    read(found, "cpu_percent", 1.0)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        busy = psutil.Process(child.pid)
        while busy.cpu_times().user < 0.5:
            time.sleep(0.01)
        percent = read(found, "cpu_percent", 2.0)
        child.kill()
    assert percent is not None
    assert percent >= 50
