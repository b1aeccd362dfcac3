"""Measures the CPUs that this process used, and the CPUs that it waited for."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import psutil

from workload.environment.machine import HostSystem, as_integer

NS_PER_S = 1e9
TASKS = "/proc/self/task"


@dataclass(frozen=True, kw_only=True)
class CpuShare:
    """CPUs on average: `got` is CPU time over wall time, of this process and its data workers.

    `waited`: time over wall time, summed over threads, in which threads of this process could run but were queued for a
    CPU, plus the time for which a hypervisor had taken a CPU away; None if the system does not report it.
    """

    got: float
    waited: float | None


@dataclass(frozen=True, kw_only=True)
class _Totals:
    now_s: float
    used_s: float
    waited_s: float | None

    @classmethod
    def read(cls, machine: HostSystem, now_s: Callable[[], float]) -> Self:
        return cls(now_s=now_s(), used_s=_used_s(), waited_s=_waited_s(machine))


class CpuMeter:
    """Measures CPU use from its creation on."""

    def __init__(self, machine: HostSystem | None = None, *, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._machine, self._now_s = machine or HostSystem(), now_s
        self._began = _Totals.read(self._machine, now_s)

    def share(self) -> CpuShare:
        """CPU use since the meter was created."""
        began, ended = self._began, _Totals.read(self._machine, self._now_s)
        wall_s = max(ended.now_s - began.now_s, 1 / NS_PER_S)
        waited = None
        if began.waited_s is not None and ended.waited_s is not None:
            # The waits of a thread that has ended are lost.
            waited = max(0.0, ended.waited_s - began.waited_s) / wall_s
        return CpuShare(got=(ended.used_s - began.used_s) / wall_s, waited=waited)


def _used_s() -> float:
    used_s = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        used_s += times.user + times.system
    return used_s


def _waited_s(machine: HostSystem) -> float | None:
    """Seconds that all threads waited on a run queue (schedstat's second figure, in ns), plus stolen time.

    Source: https://docs.kernel.org/scheduler/sched-stats.html#proc-pid-schedstat.
    """
    try:
        threads = list(machine.path(TASKS).iterdir())
    except OSError:
        return None
    waits = [_queued_ns(machine.text(f"{TASKS}/{thread.name}/schedstat")) for thread in threads]
    known = [wait for wait in waits if wait is not None]
    return sum(known) / NS_PER_S + float(getattr(psutil.cpu_times(), "steal", 0.0)) if known else None


def _queued_ns(line: str | None) -> int | None:
    fields = (line or "").split()
    return as_integer(fields[1]) if len(fields) > 1 else None
