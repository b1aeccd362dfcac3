import resource
import subprocess
import sys
from array import array
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tests.workload.conftest import LayOut
from workload.contract.record import StepSeconds, Timing, Usage
from workload.measure import timing
from workload.measure.recorder import PhaseTotals
from workload.measure.timing import CpuMeter, CpuUse, Timeline, process_age_s, process_usage, summarize

STARTED_AT = "2026-11-21T10:00:00+00:00"


def test_throughput_is_images_over_wall_time_not_a_mean_of_rates() -> None:
    totals = PhaseTotals(step_s=array("d", [1.0, 3.0]), data_s=array("d", [0.5, 0.5]), images=16)
    summary = summarize(Timing(started_at=STARTED_AT), totals, wall_s=5.0, cpus=CpuUse(used_cpus=1.5, waited_cpus=0.25))
    assert summary.started_at == STARTED_AT
    assert summary.images_per_s == 3.2, "a mean of rates would be (8 / 1 + 8 / 3) / 2 = 5.33"
    assert (summary.data_wait_fraction, summary.explained_fraction) == (0.2, 1.0)
    assert summary.step_s is not None
    assert summary.step_s.median == 2.0
    assert (summary.cpus_used, summary.cpus_waited) == (1.5, 0.25)
    nothing = summarize(Timing(), PhaseTotals(), wall_s=1.5, cpus=CpuUse(used_cpus=0.5, waited_cpus=None))
    assert nothing == Timing(measured_s=1.5, cpus_used=0.5, cpus_waited=None, images=0)


def test_spread_of_known_numbers() -> None:
    described = StepSeconds.from_seconds(array("d", [float(n) for n in range(1, 22)]))
    assert vars(described) == {
        "n": 21,
        "median": 11.0,
        "mean": 11.0,
        "stdev": pytest.approx(6.2048, abs=1e-4),
        "min": 1.0,
        "max": 21.0,
        "p5": 2.0,
        "p95": 20.0,
    }


# --- phases


def test_steps_of_another_kind_that_came_before_are_other_time() -> None:
    clock = iter([0.0, 1.0, 2.0, 3.0, 8.0, 9.0, 12.0])
    timeline = Timeline(now=lambda: next(clock))
    for phase in ("environment", "warmup", "measured", "warmup", "measured"):
        timeline.enter(phase)
    phases = {"start": 0.0, "environment": 1.0, "warmup": 8.0, "measured": 9.0, "other": 2.0, "end": 12.0}
    assert timeline.phases() == phases


# A real line; the name of the program has a blank and a bracket, and the process began at tick 5,000 after the boot.
STAT = "7 (python (3) x) R 6 7 7 0 -1 4194304 88 0 0 0 2 1 0 0 20 0 1 0 5000 3268608 421 1844674407370955 1 1 0"


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
@pytest.mark.parametrize(
    ("line", "since_boot_s", "age_s"),
    [
        (STAT, 50.25, 0.25),
        (STAT, 49.5, None),
        (STAT, 649.0, 599.0),
        (STAT, 651.0, None),
        ("7 (python) R 6", 50.25, None),
        ("", 50.25, None),
    ],
)
def test_age_of_a_process(
    line: str, since_boot_s: float, age_s: float | None, lay_out: LayOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    assert process_age_s(lay_out({"/proc/self/stat": line}), since_boot_s) == age_s


# --- CPUs used and waited for

TASKS = "/proc/self/task"


class Times(NamedTuple):
    """Seconds of all CPUs, as psutil counts them."""

    user: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0
    guest: float = 0.0


@pytest.mark.parametrize(
    ("after", "waited_cpus"),
    [(Times(), 1.0), (Times(user=3.0), 1.0), (Times(user=1.0, idle=2.0, iowait=3.0, guest=0.5), 0.5)],
    ids=["unknown", "others used more", "others used 1 s"],
)
def test_waits_of_all_threads_count(
    after: Times, waited_cpus: float, lay_out: LayOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 2 s one thread waited 1 s and another one 0.5 s; a third is new. No more than others used is waited for them.

    Guests' time is part of `user` too.
    """
    totals = iter([Times(), Times(), after, after])
    monkeypatch.setattr("psutil.cpu_times", lambda: next(totals))
    monkeypatch.setattr("time.process_time", lambda: 1.0)
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
    assert meter.use().waited_cpus == pytest.approx(waited_cpus)


@pytest.mark.parametrize("files", [{}, {f"{TASKS}/1/schedstat": "0"}, {f"{TASKS}/1/schedstat": "gone away"}])
def test_a_system_that_does_not_tell(lay_out: LayOut, files: dict[str, str]) -> None:
    assert CpuMeter(lay_out(files)).use().waited_cpus is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not report them")
def test_page_faults_of_this_process_are_seen() -> None:
    meter = CpuMeter()
    # Linux may use pages of 2 MiB.
    kept = bytearray(64 << 20)
    use = meter.use()
    assert kept[-1] == 0
    assert use.faults_per_s is not None
    assert use.faults_per_s > 0
    assert use.kernel_cpus is not None


# --- resources of the process


def counts(factor: int, peak: int) -> SimpleNamespace:
    names = ("utime", "stime", "majflt", "minflt", "nvcsw", "nivcsw", "inblock", "oublock", "nswap")
    values = {f"ru_{name}": factor * (position + 1) for position, name in enumerate(names)}
    return SimpleNamespace(**values, ru_maxrss=peak)


@pytest.mark.parametrize(("own_peak", "child_peak"), [(100, 300), (300, 100)])
@pytest.mark.parametrize("unit_bytes", [1024, 1], ids=["Linux", "macOS"])
def test_sums_and_the_larger_peak(
    monkeypatch: pytest.MonkeyPatch, own_peak: int, child_peak: int, unit_bytes: int
) -> None:
    rows = {resource.RUSAGE_SELF: counts(1, own_peak), resource.RUSAGE_CHILDREN: counts(10, child_peak)}
    monkeypatch.setattr(resource, "getrusage", rows.__getitem__)
    monkeypatch.setattr(timing, "RSS_UNIT_BYTES", unit_bytes)
    assert process_usage(100.0, 122.0) == Usage(
        user_s=11,
        system_s=22,
        elapsed_s=22.0,
        max_rss_bytes=300 * unit_bytes,
        major_faults=33,
        minor_faults=44,
        voluntary_context_switches=55,
        involuntary_context_switches=66,
        fs_inputs=77,
    )


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert process_usage(0.0, 1.0) is None


@pytest.mark.world
def test_a_child_is_counted_once_it_is_reaped() -> None:
    before = process_usage(0.0, 1.0)
    code = "import time; x = bytearray(200_000_000)\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    after = process_usage(0.0, 1.0)
    assert before is not None
    assert after is not None
    assert after.user_s + after.system_s - before.user_s - before.system_s >= 0.29
    assert 200_000_000 < after.max_rss_bytes < 200_000_000_000
    assert after.minor_faults > before.minor_faults
