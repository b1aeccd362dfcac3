import dataclasses
import resource
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from workload.measure import usage
from workload.measure.usage import Usage, measure


def counts(factor: int, peak: int) -> SimpleNamespace:
    names = ("utime", "stime", "majflt", "minflt", "nvcsw", "nivcsw", "inblock", "oublock", "nswap")
    values = {f"ru_{name}": factor * (position + 1) for position, name in enumerate(names)}
    return SimpleNamespace(**values, ru_maxrss=peak)


@pytest.mark.parametrize(("own_peak", "child_peak", "expected"), [(100, 300, 300), (300, 100, 300)])
@pytest.mark.parametrize(("unit_bytes"), [1024, 1], ids=["Linux", "macOS"])
def test_sums_and_the_larger_peak(
    monkeypatch: pytest.MonkeyPatch, own_peak: int, child_peak: int, expected: int, unit_bytes: int
) -> None:
    rows = {resource.RUSAGE_SELF: counts(1, own_peak), resource.RUSAGE_CHILDREN: counts(10, child_peak)}
    monkeypatch.setattr(resource, "getrusage", rows.__getitem__)
    monkeypatch.setattr(usage, "RSS_UNIT_BYTES", unit_bytes)
    assert measure(100.0, 122.0) == Usage(
        user_s=11,
        system_s=22,
        elapsed_s=22.0,
        cpu_percent=150.0,
        max_rss_bytes=expected * unit_bytes,
        major_faults=33,
        minor_faults=44,
        voluntary_context_switches=55,
        involuntary_context_switches=66,
        fs_inputs=77,
        fs_outputs=88,
        swaps=99,
    )


@pytest.mark.parametrize("now_s", [100.0, 99.0], ids=["no time", "a clock that went back"])
def test_no_share_of_no_time(now_s: float) -> None:
    found = measure(100.0, now_s)
    assert found is not None
    assert found.cpu_percent is None


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert measure(0.0, 1.0) is None


def test_the_unit_is_this_systems() -> None:
    assert {"linux": 1024, "darwin": 1}[sys.platform] == usage.RSS_UNIT_BYTES


@pytest.mark.world
def test_a_child_is_counted_once_it_is_reaped() -> None:
    before = measure(0.0, 1.0)
    code = "import time; x = bytearray(200_000_000)\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    after = measure(0.0, 1.0)
    assert before is not None
    assert after is not None
    assert after.user_s + after.system_s - before.user_s - before.system_s >= 0.29
    assert 200_000_000 < after.max_rss_bytes < 200_000_000_000
    assert after.minor_faults > before.minor_faults


@pytest.mark.world
def test_own_time_agrees_with_pythons_clock() -> None:
    used_s = time.process_time()
    found = measure(0.0, 1.0)
    assert found is not None
    assert found.user_s + found.system_s >= used_s - 0.01
    assert dataclasses.asdict(found)["max_rss_bytes"] > 5_000_000
