"""Writes telemetry.csv: clocks, temperatures and loads during a run, one row per second."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import psutil
import torch

from workload.contract.bundle import TELEMETRY_COLUMNS
from workload.contract.process import raise_if_interrupted
from workload.contract.record import Settling
from workload.contract.spec import Device
from workload.environment import host
from workload.environment.device import GpuSensors
from workload.environment.host import CPUS, allowed_cpus, memory_available_bytes
from workload.environment.machine import HostSystem, as_integer
from workload.measure.ceilings import Report, sensors_of
from workload.measure.energy import PowerSample

# Function from the time of a sample in seconds to some cells of its row.
Source = Callable[[float], Mapping[str, float | None]]

# Function from the time of a sample in seconds to a cell; None if it is unknown.
Reading = Callable[[float], float | None]

# Kernel ticks are 10 ms. A rate over a shorter time is mostly rounding error, and is left out.
SHORTEST_RATE_S = 0.1
SHORTEST_RATE_TICKS = 10
# Largest number of CPUs whose frequency is read, because reading a CPU's frequency can interrupt that CPU.
MOST_CPUS_ASKED = 8
PERCENT = 100
US_PER_S = 1e6
KHZ_PER_MHZ = 1e3
# The first line of /proc/stat (proc_stat(5)): "cpu", then the columns from user to steal. Guest time is part of user
# time.
CPU_TICKS = slice(1, 9)
STEAL = 7
# A query to a GPU that fell off its bus may never return; the run must still end.
STOP_LIMIT_S = 5.0


class Telemetry:
    """Context manager that samples in a thread: a row on entry, one every `interval_s`, one on exit.

    A cell that could not be read is empty; `sample_errors` holds the first unexpected error of each source. A file that
    cannot be written ends the telemetry, never the run: `error` holds the reason, for the caller to report. `powers`:
    the samples of a GPU's power so far.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str,
        origin_s: float,
        clock: Callable[[], float] = time.perf_counter,
        interval_s: float = 1.0,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        """Prepare sampling; column `t_s` counts from `origin_s` on `clock`."""
        self.error: OSError | None = None
        self.sample_errors: dict[str, Exception] = {}
        self.powers: list[PowerSample] = []
        self._path = path
        self._origin_s = origin_s
        self._clock = clock
        self._interval_s = interval_s
        self._sources = sources_of(device) if sources is None else sources
        self._file: BinaryIO | None = None
        self._whole_bytes = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="telemetry", daemon=True)

    def __enter__(self) -> Self:
        try:
            # Unbuffered: a row is either in the file or not, and a forked worker inherits no part of a row in a buffer.
            self._file = self._path.open("wb", buffering=0)
        except OSError as error:
            self.error = error
            return self
        self._append(",".join(TELEMETRY_COLUMNS))
        self.record()
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        self._stopping.set()
        self._thread.join(STOP_LIMIT_S)
        # If the thread hangs in a driver, leave the file open: the thread would fail when it writes to a closed file.
        if not self._thread.is_alive():
            self.record()
            self._file.close()

    def record(self) -> None:
        """Append a row for this moment."""
        now_s = self._clock()
        cells: dict[str, float | None] = {"t_s": now_s - self._origin_s}
        for name, source in self._sources.items():
            try:
                cells.update(source(now_s))
            except Exception as error:  # noqa: BLE001 - no fault in a sample is worth the run that it describes
                self.sample_errors.setdefault(name, error)
        if (power_w := cells.get("power_w")) is not None:
            is_idle = cells.get("gpu_utilization_percent") == 0
            self.powers.append(PowerSample(t_s=now_s - self._origin_s, power_w=power_w, is_idle=is_idle))
        self._append(",".join(_written(column, cells.get(column)) for column in TELEMETRY_COLUMNS))

    def _sample_until_stopped(self) -> None:
        started_s = self._clock()
        while not self._stopping.wait(self._to_next_s(started_s)):
            self.record()

    def _to_next_s(self, started_s: float) -> float:
        """Seconds to the next whole interval: rows stay periodic, and a late row is not followed by several at once."""
        return self._interval_s - (self._clock() - started_s) % self._interval_s

    def _append(self, row: str) -> None:
        if self.error is not None or self._file is None:
            return
        rest = memoryview(f"{row}\n".encode())
        whole_bytes = self._whole_bytes + len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            self._whole_bytes = whole_bytes
        except OSError as error:
            self.error = error
            self._stopping.set()
            # Remove a partial row, which would be read as a row with other values.
            with suppress(OSError):
                self._file.truncate(self._whole_bytes)


def sources_of(device: str, machine: HostSystem | None = None) -> dict[str, Source]:
    """Sources of the host's readings, and of NVML's readings if NVML knows the device."""
    readings = HostCounters(machine or HostSystem()).readings()
    sources: dict[str, Source] = {
        name: lambda now_s, name=name, read=read: {name: read(now_s)}  # type: ignore[misc]
        for name, read in readings.items()
    }
    place = torch.device(device)
    if place.type != "cuda":
        return sources
    gpu = GpuSensors.open(torch.cuda.current_device() if place.index is None else place.index)
    return sources if gpu is None else {"nvml": gpu_source(gpu), **sources}


def gpu_source(gpu: GpuSensors) -> Source:
    """Source of NVML's readings. Memory is the GPU memory that all processes together use."""

    def read(_now_s: float) -> dict[str, float | None]:
        sample = gpu.sample()
        return {**sample, "gpu_memory_used_bytes": sample["memory_used_bytes"]}

    return read


def _written(column: str, value: float | None) -> str:
    """Cell as text: integers in full, other numbers to a thousandth, the bit mask in hexadecimal as in nvidia-smi."""
    if value is None:
        return ""
    if column == "clock_event_reasons":
        return f"0x{int(value):x}"
    return f"{value}" if isinstance(value, int) else f"{value:.3f}"


# --- readings of the host that change during a run


@dataclass(kw_only=True)
class CounterRate:
    """Growth of one total divided by the growth of another, such as time, between two readings.

    `shortest`: least growth of the other total for which a rate is given.
    """

    shortest: float
    last: tuple[float, float] | None = field(default=None, init=False)

    def update(self, total: float, against: float) -> float | None:
        """Growth of `total` divided by the growth of `against` since the last reading.

        None for the first reading, if `against` has grown too little, or if `total` has decreased.
        """
        if self.last is None:
            self.last = (total, against)
            return None
        grown, passed = total - self.last[0], against - self.last[1]
        if passed < self.shortest:
            return None
        self.last = (total, against)
        return grown / passed if grown >= 0 else None


class HostCounters:
    """Readings of this process and its host, by column; None if unreadable.

    `cpu_percent`: CPU time of this process and its descendants, in per cent of one CPU: 250 is two and a half CPUs.
    `cpu_steal_percent`: share of all CPUs' time that the hypervisor gave to others. `cpu_mhz`: mean current clock of up
    to 8 allowed CPUs; a virtual machine has no true clock to report. `rss_bytes`: memory of this process alone; forked
    workers share most of their memory with this process. `cgroup_throttled_s`: CPU time withheld by the group's quota,
    summed over CPUs, since the first reading. `cpu_pressure_percent`: share of the time in which some task on the host
    waited for a CPU.
    """

    def __init__(
        self, machine: HostSystem, *, pid: int | None = None, find: Callable[[int], psutil.Process] = psutil.Process
    ) -> None:
        self._machine = machine
        self._find = find
        self._process = find(pid or os.getpid())
        self._cpu, self._pressure = CounterRate(shortest=SHORTEST_RATE_S), CounterRate(shortest=SHORTEST_RATE_S)
        self._steal = CounterRate(shortest=SHORTEST_RATE_TICKS)
        # Files with the clock frequency of up to 8 CPUs, spread evenly over the CPUs that the process may use.
        cpus = allowed_cpus(machine) or []
        stride = max(1, len(cpus) // MOST_CPUS_ASKED)
        files = [f"{CPUS}/cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in cpus[::stride][:MOST_CPUS_ASKED]]
        self._frequencies = [path for path in files if machine.integer(path) is not None]
        self._throttled_folder = host.cgroup_limits(machine).cpu_folder
        self._throttled_before_s = self._throttled_total_s()

    def readings(self) -> dict[str, Reading]:
        """Function that reads a cell, by column; the function's argument is the time in seconds on the caller's clock.

        If one function raises, the others still work.
        """
        return {
            "cpu_percent": self._cpu_percent,
            "cpu_steal_percent": lambda _now_s: self._steal_percent(),
            "cpu_mhz": lambda _now_s: self._cpu_mhz(),
            "rss_bytes": lambda _now_s: self._process.memory_info().rss,
            "cgroup_throttled_s": lambda _now_s: self._throttled_s(),
            "cpu_pressure_percent": self._pressure_percent,
            "memory_available_bytes": lambda _now_s: memory_available_bytes(self._machine),
        }

    def _cpu_percent(self, now_s: float) -> float | None:
        """CPU time of this process and its descendants, including children that have ended and were waited for."""
        total_s = 0.0
        for process in (self._process, *self._descendants()):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = process.cpu_times()
                total_s += times.user + times.system + times.children_user + times.children_system
        return _percent(self._cpu.update(total_s, now_s))

    def _descendants(self) -> Iterator[psutil.Process]:
        """Descendants of this process, from the kernel's lists of children if possible: psutil reads every process."""
        if not self._machine.exists(f"/proc/{self._process.pid}/task/{self._process.pid}/children"):
            yield from self._process.children(recursive=True)
            return
        for pid in _pids_below(self._machine, self._process.pid):
            with suppress(psutil.NoSuchProcess):
                yield self._find(pid)

    def _steal_percent(self) -> float | None:
        line, _, _ = (self._machine.text("/proc/stat") or "").partition("\n")
        ticks = [as_integer(text) or 0 for text in line.split()[CPU_TICKS]]
        return _percent(self._steal.update(ticks[STEAL], sum(ticks))) if len(ticks) > STEAL else None

    def _cpu_mhz(self) -> float | None:
        clocks_khz = [khz for path in self._frequencies if (khz := self._machine.integer(path))]
        return sum(clocks_khz) / len(clocks_khz) / KHZ_PER_MHZ if clocks_khz else None

    def _throttled_s(self) -> float | None:
        total_s = self._throttled_total_s()
        return None if total_s is None or self._throttled_before_s is None else total_s - self._throttled_before_s

    def _throttled_total_s(self) -> float | None:
        return None if self._throttled_folder is None else host.throttled_s(self._machine, self._throttled_folder)

    def _pressure_percent(self, now_s: float) -> float | None:
        line, _, _ = (self._machine.text("/proc/pressure/cpu") or "").partition("\n")
        waited_us = as_integer(line.rpartition("total=")[2])
        return None if waited_us is None else _percent(self._pressure.update(waited_us / US_PER_S, now_s))


def _percent(share: float | None) -> float | None:
    return None if share is None else share * PERCENT


def _pids_below(machine: HostSystem, pid: int) -> Iterator[int]:
    """Process ids of all descendants; the kernel lists children by the thread that started them."""
    try:
        threads = list(machine.path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for thread in threads:
        for child in (machine.text(f"/proc/{pid}/task/{thread.name}/children") or "").split():
            yield int(child)
            yield from _pids_below(machine, int(child))


# --- cooling down before a run

# Sensors report whole degrees; on an idle device the reading varies by one or two degrees.
TOLERANCE_C = 5.0
# Longest wait, an assumption: the colder the device, the more slowly it cools, and a rented machine costs money during
# the wait. A missed target is recorded.
LIMIT_S = 60.0
LOOK_EVERY_S = 1.0
# Sensors of the CPU's package, by the kernel's driver: Intel, AMD, AMD with zenpower, ARM.
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")

Thermometer = Callable[[], float | None]


def thermometer_of(device: Device) -> Thermometer:
    """Function that reads the device's temperature in degrees Celsius: NVML's for a GPU, the kernel's for a CPU."""
    if device is Device.CPU:
        return _cpu_temperature_c
    sample = sensors_of(device)

    def read() -> float | None:
        value = sample().get("temperature_c") if sample else None
        return float(value) if isinstance(value, int | float) else None

    return read


def _cpu_temperature_c() -> float | None:
    """Temperature of the CPU's hottest sensor; None without a sensor (virtual machines), or if not on Linux."""
    read = getattr(psutil, "sensors_temperatures", dict)
    readings = [sensor.current for name, sensors in read().items() if name in CPU_SENSORS for sensor in sensors]
    return max(readings, default=None)


def settle(
    thermometer: Thermometer,
    target_c: float | None,
    *,
    report: Report = lambda _: None,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Settling:
    """Wait up to a minute for a temperature of at most `target_c` + 5 degrees; `report` receives a message."""
    before_c = after_c = thermometer()
    if before_c is None or target_c is None:
        return Settling(target_c=target_c, before_c=before_c, waited_s=0.0, why="the device reports no temperature")
    began_s, looks = now_s(), 0
    while after_c is not None and after_c > target_c + TOLERANCE_C and now_s() - began_s < LIMIT_S:
        raise_if_interrupted()
        sleep(LOOK_EVERY_S)
        after_c, looks = thermometer(), looks + 1
    waited_s = round(now_s() - began_s, 3) if looks else 0.0
    is_reached = after_c is not None and after_c <= target_c + TOLERANCE_C
    why = None
    if after_c is None:
        why = "the device stopped reporting its temperature"
    elif not is_reached:
        why = f"still {after_c - target_c:.0f} degrees above after {waited_s:.0f} s"
    if waited_s:
        outcome = why or f"{before_c:.0f} to {after_c:.0f} °C in {waited_s:.0f} s"
        report(f"settle     towards {target_c:.0f} °C, as before the first run of the task: {outcome}")
    return Settling(
        target_c=target_c, before_c=before_c, after_c=after_c, waited_s=waited_s, is_reached=is_reached, why=why
    )
