"""Times and CPU use of a run: its phases, the CPUs it used, its process's resources, and the `timing` section.

psutil is imported inside functions: the command line needs `Timeline` before it knows that the packages are there.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from workload.contract.record import StepSeconds, Timing, Usage
from workload.environment.machine import HostSystem, as_integer

if TYPE_CHECKING:
    from workload.measure.recorder import PhaseTotals

if sys.platform == "win32":
    resource: Any = None
else:
    import resource

NS_PER_S = 1e9
TASKS, OWN_STAT = "/proc/self/task", "/proc/self/stat"
STARTTIME = 19
# No interpreter takes longer to start: the sandbox counts ticks and seconds since boot from different times.
OLDEST_S = 600.0
# getrusage(2) counts the peak in KiB; macOS, by its own manual page, in bytes.
RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


class Timeline:
    """Beginnings of phases: `enter(name)` records the beginning of a phase. The first phase is `start`, at 0 s.

    `interpreter_s`: age of the process at that time, in seconds; None if unknown.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.started_s = now()
        self.started_at = datetime.now(UTC)
        self.interpreter_s = process_age_s()
        self.began_s: dict[str, float] = {"start": 0.0}

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self.started_s

    def enter(self, phase: str) -> None:
        """Record that `phase` begins now. If it began before (a script's steps of another kind), that was `other`."""
        if phase in self.began_s:
            self.began_s.setdefault("other", self.began_s[phase])
        self.began_s[phase] = self.elapsed_s()

    def phases(self) -> dict[str, float]:
        """Beginning of each phase in seconds since the start; `end` is the present time."""
        return {**self.began_s, "end": self.elapsed_s()}

    def setup_s(self) -> float:
        """Seconds until the first step, without the time for ceilings and for cooling down."""
        began_s = self.began_s
        setup_end_s = began_s.get("warmup", began_s.get("measured", self.elapsed_s()))
        ceilings_began_s = began_s.get("ceilings", began_s.get("settle"))
        ceilings_s = 0.0 if ceilings_began_s is None else began_s.get("setup", setup_end_s) - ceilings_began_s
        return setup_end_s - ceilings_s


def process_age_s(machine: HostSystem | None = None, since_boot_s: float | None = None) -> float | None:
    """Seconds since this process was created, exact to a kernel tick (10 ms); None outside Linux, or if implausible.

    Source: field `starttime` of https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
    """
    if sys.platform != "linux":
        return None
    # The program's name, in brackets, may contain blanks and brackets; `starttime` is the 20th field after it.
    fields = ((machine or HostSystem()).text(OWN_STAT) or "").rpartition(")")[2].split()
    ticks = as_integer(fields[STARTTIME]) if len(fields) > STARTTIME else None
    if ticks is None:
        return None
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME) if since_boot_s is None else since_boot_s
    age_s = now_s - ticks / os.sysconf("SC_CLK_TCK")
    return age_s if 0 <= age_s <= OLDEST_S else None


@dataclass(frozen=True, kw_only=True)
class CpuUse:
    """Mean number of CPUs that the run used, and waited for.

    `used_cpus`: CPU time over wall time, of this process and its data workers. `waited_cpus`: time over wall time,
    summed over threads, in which threads of this process could run but were queued for a CPU, plus the time for which a
    hypervisor had taken a CPU away; None if the system does not report it. It is at most the CPU time that others used
    meanwhile, because threads of one process also queue for each other, even beside an idle CPU. `kernel_cpus`: CPU
    time of this process in the kernel, over wall time. `faults_per_s`: its page faults that needed no disk. Both are
    None on Windows.
    """

    used_cpus: float
    waited_cpus: float | None
    kernel_cpus: float | None = None
    faults_per_s: float | None = None


class CpuMeter:
    """Measures CPU use from its creation on."""

    def __init__(self, machine: HostSystem | None = None, *, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._machine, self._now_s = machine or HostSystem(), now_s
        self._began = self._totals()

    def _totals(self) -> tuple[float, float, float, float | None, float | None, float | None]:
        """Totals so far: time; CPU seconds of this run, of all processes, waited for, in the kernel; page faults."""
        own = resource and resource.getrusage(resource.RUSAGE_SELF)
        kernel_s, faults = (own.ru_stime, float(own.ru_minflt)) if own else (None, None)
        import psutil  # noqa: PLC0415 - see the module

        used_s = time.process_time()
        for child in psutil.Process().children(recursive=True):
            try:
                times = child.cpu_times()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            used_s += times.user + times.system
        return self._now_s(), used_s, _all_used_s(), _waited_s(self._machine), kernel_s, faults

    def use(self) -> CpuUse:
        """CPU use since the meter was created."""
        began, ended = self._began, self._totals()
        wall_s = max(ended[0] - began[0], 1 / NS_PER_S)

        def rate(before: float | None, after: float | None) -> float | None:
            # A thread that has ended takes its waits along: their sum may fall.
            return None if before is None or after is None else max(0.0, after - before) / wall_s

        used, all_used = (ended[1] - began[1]) / wall_s, (ended[2] - began[2]) / wall_s
        waited, kernel, faults = map(rate, began[3:], ended[3:])
        # Some sandboxes count no CPU time of the machine.
        if waited is not None and all_used:
            waited = min(waited, max(0.0, all_used - used))
        return CpuUse(used_cpus=used, waited_cpus=waited, kernel_cpus=kernel, faults_per_s=faults)


def _all_used_s() -> float:
    """Seconds for which the machine's CPUs were used by any process or taken away by a hypervisor."""
    import psutil  # noqa: PLC0415 - see the module

    times = psutil.cpu_times()
    # Linux counts the time of guests as user time too.
    return sum(times) - times.idle - sum(getattr(times, name, 0.0) for name in ("iowait", "guest", "guest_nice"))


def _waited_s(machine: HostSystem) -> float | None:
    """Seconds for which this process's threads waited on a run queue (second figure of schedstat), plus stolen time.

    Source: https://docs.kernel.org/scheduler/sched-stats.html#proc-pid-schedstat.
    """
    import psutil  # noqa: PLC0415 - see the module

    try:
        threads = list(machine.path(TASKS).iterdir())
    except OSError:
        return None
    waits_ns = []
    for thread in threads:
        fields = (machine.text(f"{TASKS}/{thread.name}/schedstat") or "").split()
        if len(fields) > 1 and (queued_ns := as_integer(fields[1])) is not None:
            waits_ns.append(queued_ns)
    return sum(waits_ns) / NS_PER_S + float(getattr(psutil.cpu_times(), "steal", 0.0)) if waits_ns else None


def summarize(before: Timing, measured: "PhaseTotals", *, wall_s: float, cpus: CpuUse) -> Timing:
    """Copy `before` and add the figures of the measured region, which took `wall_s` seconds of the host's clock.

    `cpus`: CPUs used and waited for. `images_per_s` is images over wall time, never a mean of rates.
    `explained_fraction` is the share of the wall time that steps and data waits account for. Without a single step the
    figures are None.
    """
    known = replace(
        before,
        measured_s=wall_s,
        cpus_used=cpus.used_cpus,
        cpus_waited=cpus.waited_cpus,
        cpus_in_kernel=cpus.kernel_cpus,
        page_faults_per_s=cpus.faults_per_s,
        images=measured.images,
    )
    if not measured.step_s:
        return known
    step_sum_s, data_sum_s = sum(measured.step_s), sum(measured.data_s)
    return replace(
        known,
        images_per_s=measured.images / wall_s,
        step_s=StepSeconds.from_seconds(measured.step_s),
        data_wait_fraction=data_sum_s / wall_s,
        explained_fraction=(step_sum_s + data_sum_s) / wall_s,
    )


def process_usage(start_s: float, now_s: float) -> Usage | None:
    """Resources of this process and its reaped children, as `/usr/bin/time -v` reports them; None on Windows.

    `start_s` and `now_s`: start and present, on the same clock.
    """
    if sys.platform == "win32":
        return None
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return Usage(
        user_s=own.ru_utime + children.ru_utime,
        system_s=own.ru_stime + children.ru_stime,
        elapsed_s=now_s - start_s,
        max_rss_bytes=max(own.ru_maxrss, children.ru_maxrss) * RSS_UNIT_BYTES,
        major_faults=own.ru_majflt + children.ru_majflt,
        minor_faults=own.ru_minflt + children.ru_minflt,
        voluntary_context_switches=own.ru_nvcsw + children.ru_nvcsw,
        involuntary_context_switches=own.ru_nivcsw + children.ru_nivcsw,
        fs_inputs=own.ru_inblock + children.ru_inblock,
    )
