"""Writes telemetry.csv: clocks, temperatures and loads during a run, one row per second."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import torch

from workload.contract.bundle import TELEMETRY_COLUMNS
from workload.environment.machine import HostSystem
from workload.environment.nvml import GpuSensors
from workload.measure.counters import HostCounters

# Function from the time of a sample in seconds to some cells of its row.
Source = Callable[[float], Mapping[str, float | None]]

# A query to a GPU that fell off its bus may never return; the run must still end.
STOP_LIMIT_S = 5.0


class Telemetry:
    """Context manager that samples in a thread: a row on entry, one every `interval_s`, one on exit.

    A cell that could not be read is empty; `sample_errors` holds the first unexpected error of each source. A file that
    cannot be written ends the telemetry, never the run: `error` holds the reason, for the caller to report.
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
            # Unbuffered: a row is either in the file or not, and a worker forked meanwhile holds no buffered part of
            # one.
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
        # A thread that hangs in a driver keeps its file: closing it would only move the failure there.
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
        try:
            self._write(f"{row}\n".encode())
        except OSError as error:
            self.error = error
            self._stopping.set()
            # Remove a partial row, which would be read as a row with other values.
            with suppress(OSError):
                self._file.truncate(self._whole_bytes)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :] if self._file else rest[:0]
        self._whole_bytes += len(data)


def sources_of(device: str, machine: HostSystem | None = None) -> dict[str, Source]:
    """Sources of the host's readings, and of NVML's if the device is a GPU known to it."""
    readings = HostCounters(machine or HostSystem()).readings()
    sources: dict[str, Source] = {name: _one_cell(name, read) for name, read in readings.items()}
    gpu = _gpu(torch.device(device))
    return sources if gpu is None else {"nvml": gpu_source(gpu), **sources}


def gpu_source(gpu: GpuSensors) -> Source:
    """Source of NVML's readings. Memory is that of the whole GPU, used by all processes, as the column's name says."""

    def read(_now_s: float) -> dict[str, float | None]:
        sample = gpu.sample()
        return {**sample, "gpu_memory_used_bytes": sample["memory_used_bytes"]}

    return read


def _one_cell(name: str, read: Callable[[float], float | None]) -> Source:
    return lambda now_s: {name: read(now_s)}


def _gpu(device: torch.device) -> GpuSensors | None:
    if device.type != "cuda":
        return None
    return GpuSensors.open(torch.cuda.current_device() if device.index is None else device.index)


def _written(column: str, value: float | None) -> str:
    """Cell as text: integers in full, other numbers to a thousandth, the bit mask in hexadecimal as in nvidia-smi."""
    if value is None:
        return ""
    if column == "clock_event_reasons":
        return f"0x{int(value):x}"
    return f"{value}" if isinstance(value, int) else f"{value:.3f}"
