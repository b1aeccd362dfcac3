"""Ceilings on a fake machine whose clock only work advances: sizes, samples, limits, failures; one real probe."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count as counter
from typing import Any

import pytest
import torch

from tests.workload.conftest import LayOut
from workload.contract.spec import Device, Precision
from workload.measure import ceiling_rates, ceilings
from workload.measure.ceiling_rates import Ceilings, MeasuredRate, Samples
from workload.measure.ceilings import Probe
from workload.measure.clock import clock_for

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass(kw_only=True)
class FakeMachine:
    """A device and its host on one clock; a product takes 2 n^3 / `flop_per_s` + `launch_s`."""

    flop_per_s: float
    launch_s: float = 0.0
    largest_edge: int | None = None
    now_s: float = 0.0
    calls: list[float] = field(default_factory=list)

    def mark(self) -> float:
        return self.now_s

    def passed(self, mark: float) -> bool:
        return mark <= self.now_s

    def seconds_between(self, earlier: float, later: float) -> float:
        return later - earlier

    def synchronize(self) -> None:
        pass

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.calls.append(seconds)

    def make(self, edge: int) -> Callable[[], None]:
        if self.largest_edge is not None and edge > self.largest_edge:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return lambda: self.work(2 * edge**3 / self.flop_per_s + self.launch_s)

    def probe(self, **options: Any) -> Probe:
        return Probe(clock=self, now_s=lambda: self.now_s, **options)


def grown_edge(machine: FakeMachine, *, largest_edge: int = 10**6) -> int:
    probe = machine.probe()
    return ceilings.grow(machine.make, probe, probe.deadline(), largest_edge=largest_edge).edge


# --- growth: 128, 256, 512 … until a call takes 5 ms


@pytest.mark.parametrize(
    ("flop_per_s", "edge"),
    [
        (1e12, 2048),  # 1024: 2.1 ms, 2048: 17 ms
        (1e9, 256),  # 128: 4.2 ms, 256: 34 ms
        (1e15, 16384),  # 8192: 1.1 ms, 16384: 8.8 ms
    ],
)
def test_the_edge_doubles_until_a_call_takes_5_ms(flop_per_s: float, edge: int) -> None:
    assert grown_edge(FakeMachine(flop_per_s=flop_per_s)) == edge


@pytest.mark.parametrize(
    ("largest_that_fits", "largest_edge", "edge"),
    [(None, 4096, 4096), (None, 4095, 2048), (1024, 10**6, 1024)],
    ids=["free memory", "a little less", "out of memory: the size before is kept"],
)
def test_memory_ends_the_growth(largest_that_fits: int | None, largest_edge: int, edge: int) -> None:
    machine = FakeMachine(flop_per_s=1e15, largest_edge=largest_that_fits)
    assert grown_edge(machine, largest_edge=largest_edge) == edge


@pytest.mark.parametrize("flop_per_s", [1e7, 1e8, 1.4e9, 1e10, 1e15])
@pytest.mark.parametrize("limit_s", [0.1, 2.0])
def test_a_probe_ends_in_time_whatever_the_device_does(flop_per_s: float, limit_s: float) -> None:
    machine = FakeMachine(flop_per_s=flop_per_s)
    probe = machine.probe(limit_s=limit_s)
    deadline = probe.deadline()
    product = ceilings.grow(machine.make, probe, deadline, largest_edge=10**6)
    assert ceilings.take_samples(product.call, product.call_s, probe, deadline).call_s
    # Three calls of the smallest product cannot be avoided: warm-up, timing and one sample.
    assert machine.now_s <= max(limit_s, 3 * 2 * 128**3 / flop_per_s) * 1.01


@dataclass(kw_only=True)
class StarvedMachine(FakeMachine):
    """A machine whose calls wait for a CPU; `waits`: seconds by the call's number."""

    waits: dict[int, float] = field(default_factory=dict)

    def work(self, seconds: float) -> None:
        super().work(seconds + self.waits.get(len(self.calls), 0.0))


@pytest.mark.parametrize(
    "waits",
    [
        # The timed call of 128 seems to take 60 ms: 40 calls of 256 would not fit into 2 s.
        {1: 60e-3},
        # That of 256 seems to take 15 ms, more than 4 times that of 128.
        {3: 15e-3},
        {1: 60e-3, 2: 60e-3},
    ],
)
def test_a_call_that_waited_does_not_make_the_product_small(waits: dict[int, float]) -> None:
    assert grown_edge(StarvedMachine(flop_per_s=100e9, waits=waits)) >= 1024


def test_the_size_of_a_product_on_a_cpu_follows_from_its_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call waits 20 ms for a CPU. 1024 is the first edge with 5 ms on two CPUs: 2.1 GFLOP at 100 GFLOP/s."""
    machine = FakeMachine(flop_per_s=100e9)
    monkeypatch.setattr(ceilings.time, "thread_time", lambda: machine.now_s)
    waiting = StarvedMachine(flop_per_s=100e9, waits=dict.fromkeys(range(100), 20e-3))

    def make(edge: int) -> Callable[[], None]:
        waiting_call, call = waiting.make(edge), machine.make(edge)
        return lambda: (waiting_call(), call())[0]

    waiting_probe = waiting.probe(cpus_wanted=2.0)
    deadline = waiting_probe.deadline()
    assert ceilings.grow(make, waiting_probe, deadline, largest_edge=10**6).edge == 1024


# --- samples


@pytest.mark.parametrize(("call_s", "calls_per_sample"), [(1e-3, 10), (3e-3, 4), (10e-3, 1), (50e-3, 1)])
def test_thirty_samples_of_at_least_10_ms(call_s: float, calls_per_sample: int) -> None:
    machine = FakeMachine(flop_per_s=1)
    probe = machine.probe()
    taken = ceilings.take_samples(lambda: machine.work(call_s), call_s, probe, probe.deadline())
    assert taken.call_s == pytest.approx([call_s] * 30)
    assert len(machine.calls) == 30 * calls_per_sample
    assert (taken.conditions, taken.cpus, taken.cpus_wanted) == (None, None, None)


def test_samples_end_with_the_time_but_there_is_always_one() -> None:
    machine = FakeMachine(flop_per_s=1)
    probe = machine.probe(limit_s=2.0)
    taken = ceilings.take_samples(lambda: machine.work(0.3), 0.3, probe, probe.deadline())
    assert len(taken.call_s) == 6  # a seventh would end at 2.1 s
    taken = ceilings.take_samples(lambda: machine.work(9.0), 9.0, probe, probe.deadline())
    assert taken.call_s == pytest.approx([9.0])


@dataclass(kw_only=True)
class Throttling(FakeMachine):
    """A GPU that slows down from 1590 to 900 MHz after `burst_s` seconds of work, as a T4 does at its power limit."""

    burst_s: float = 1.0

    @property
    def clock_mhz(self) -> int:
        return 1590 if self.now_s < self.burst_s else 900

    def work(self, seconds: float) -> None:
        super().work(seconds * 1590 / self.clock_mhz)

    def sensors(self) -> dict[str, object]:
        return {"sm_clock_mhz": self.clock_mhz}


def loaded(machine: Throttling, *, load_s: float, limit_s: float = 2.0, call_s: float = 10e-3) -> MeasuredRate:
    probe = machine.probe(load_s=load_s, limit_s=limit_s, sensors=machine.sensors)
    taken = ceilings.take_samples(lambda: machine.work(call_s), call_s, probe, probe.deadline())
    return MeasuredRate.of(call_s * 1590e9, taken, size=1)


def test_the_ceiling_of_a_device_that_throttles_is_what_it_sustains() -> None:
    rate = loaded(Throttling(flop_per_s=1), load_s=1.5)
    assert (rate.median, rate.roof_per_s, rate.samples) == (pytest.approx(900e9), pytest.approx(900e9), 30)
    assert (rate.burst, rate.sustained) == (pytest.approx(1590e9), pytest.approx(900e9))
    assert (rate.first_third, rate.last_third) == (rate.burst, rate.sustained)
    assert rate.load_s == pytest.approx(1.5, abs=0.03)
    clocks = [rate.conditions_at_start, rate.conditions, rate.conditions_at_end]
    assert clocks == [{"sm_clock_mhz": 1590}, {"sm_clock_mhz": 900}, {"sm_clock_mhz": 900}]
    assert rate.slowdown == "43 % slower under load, SM clock 1590 to 900 MHz"


def test_without_a_load_a_slower_end_is_recorded_and_no_verdict() -> None:
    """A CPU is not loaded first. Its samples take less than a second, in which a neighbour's work looks the same."""
    rate = loaded(Throttling(flop_per_s=1, burst_s=0.1), load_s=0.0)
    assert (rate.first_third, rate.last_third) == (pytest.approx(1590e9), pytest.approx(900e9))
    assert (rate.burst, rate.sustained, rate.slowdown, rate.load_s) == (None, None, None, 0.0)
    assert rate.roof_per_s == rate.median


@pytest.mark.parametrize(("slower", "differs"), [(1.05, False), (1.06, True), (1 / 1.2, False)])
def test_burst_and_sustained_are_said_where_they_differ(slower: float, differs: bool) -> None:
    taken = Samples(load_call_s=[1.0] * 30, call_s=[slower] * 30)
    rate = MeasuredRate.of(100, taken, size=1)
    assert ((rate.burst, rate.sustained) != (None, None)) is differs
    assert rate.roof_per_s == pytest.approx(100 / slower)


def test_the_load_takes_its_time_and_none_of_the_samples() -> None:
    machine = FakeMachine(flop_per_s=1)
    probe = machine.probe(limit_s=0.5, load_s=1.5)
    taken = ceilings.take_samples(lambda: machine.work(0.05), 0.05, probe, probe.deadline())
    assert (len(taken.load_call_s), len(taken.call_s)) == (30, 10)
    assert machine.now_s == pytest.approx(2.0)


def test_the_last_reading_is_of_the_last_sample_also_where_time_ends_it() -> None:
    machine = FakeMachine(flop_per_s=1)
    probe = machine.probe(limit_s=0.5, sensors=lambda: {"after_calls": len(machine.calls)})
    taken = ceilings.take_samples(lambda: machine.work(0.1), 0.1, probe, probe.deadline())
    assert len(taken.call_s) in (4, 5)
    assert taken.conditions_at_start == {"after_calls": 1}
    assert taken.conditions == taken.conditions_at_start
    assert taken.conditions_at_end == {"after_calls": len(taken.call_s)}


def test_a_rate_by_hand() -> None:
    """100 FLOP in 1, 2, 4, 5 and 10 s: 100, 50, 25, 20 and 10 FLOP/s."""
    rate = MeasuredRate.of(100, Samples(call_s=[1.0, 2.0, 4.0, 5.0, 10.0], cpus=1.9, cpus_wanted=2.0), size=7)
    assert (rate.median, rate.best, rate.min, rate.samples, rate.size) == (25, 100, 10, 5, 7)
    assert (rate.cpus, rate.cpus_wanted) == (1.9, 2.0)
    # Linear interpolation at 0.2 and 3.8 of the sorted rates.
    assert (rate.p5, rate.p95) == (pytest.approx(12), pytest.approx(90))


@pytest.mark.parametrize(("device", "load_s"), [("cuda", 1.5), ("mps", 1.5), ("cpu", 0.0)])
def test_a_gpu_is_loaded_before_each_rate_and_a_slowdown_is_said(
    monkeypatch: pytest.MonkeyPatch, device: str, load_s: float
) -> None:
    probes, messages = list[Probe](), list[str]()

    def product_rate(_: Device, __: Precision, probe: Probe) -> MeasuredRate:
        probes.append(probe)
        return replace(rate(60e12), burst=100e12, sustained=60e12)

    monkeypatch.setattr(ceilings, "product_rate", product_rate)
    monkeypatch.setattr(ceilings, "clock_for", lambda _: FakeMachine(flop_per_s=1))
    monkeypatch.setattr(
        ceilings, "identity", lambda _: {"device": "d", "machine_id": "m", "software": "torch 1", "threads": 2}
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    measured = ceilings.measure(Device(device), precisions=["fp32"], bandwidth=False, progress=messages.append)
    assert [probe.load_s for probe in probes] == [load_s]
    assert ("each rate after 1.5 s of the same work" in measured.method) is (load_s > 0)
    assert messages[1:] == ["fp32: 40 % slower under load: the sustained rate is the ceiling"]


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"samples": 3}, None),
        ({"samples": 1}, "there was only time for 1 sample"),
        # By CPU time, a sample is enough.
        ({"samples": 1, "cpus": 0.5, "cpus_wanted": 2.0}, None),
        ({"p5": 1e9, "p95": 2e9}, None),
        ({"p5": 1e9, "p95": 3.5e9}, "the samples differ too much, 3.5 x from p5 to p95"),
    ],
)
def test_doubt_about_a_rate(changes: dict[str, Any], doubt: str | None) -> None:
    assert replace(rate(), **changes).doubt == doubt


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"cpus": 1.8, "cpus_wanted": 2.0}, None),
        ({"cpus": 1.79, "cpus_wanted": 2.0}, "the machine was busy: the samples got 1.8 of 2 CPUs"),
        ({"cpus": 0.31, "cpus_wanted": 1.5}, "the machine was busy: the samples got 0.3 of 1.5 CPUs"),
        ({"cpus": 0.04, "cpus_wanted": 1.0}, "the machine was busy: the samples got 4 % of one CPU"),
    ],
)
def test_rate_is_by_cpu_time_below_nine_tenths_of_the_wanted_cpus(changes: dict[str, Any], words: str | None) -> None:
    changed = replace(rate(), **changes)
    assert (changed.starved, changed.is_by_cpu_time) == (words, words is not None)


@pytest.mark.parametrize(
    ("used", "waited", "median", "p5"),
    [
        # By the clock: 100 FLOP in 1 and 4 s.
        (1.8, 0.2, 62.5, 28.75),
        # 2.5 s on average, of which threads that want a CPU get it in 0.5 / 2 of the time: 0.625 s.
        (0.5, 1.5, 160.0, 160.0),
        (1.0, 0.25, 50.0, 50.0),
        # Without waits, on Windows: threads that do not run wait.
        (0.5, None, 160.0, 160.0),
    ],
)
def test_rate_on_a_busy_machine_counts_the_time_with_a_cpu(
    used: float, waited: float | None, median: float, p5: float
) -> None:
    taken = Samples(call_s=[1.0, 4.0], cpus=used, cpus_waited=waited, cpus_wanted=2.0)
    measured = MeasuredRate.of(100, taken, size=7)
    assert (measured.median, measured.p5, measured.cpus_waited) == (pytest.approx(median), pytest.approx(p5), waited)


BUSY = {"cpus": 0.5, "cpus_wanted": 2.0}
GOT = "the machine was busy: the samples got 0.5 of 2 CPUs"
MEASURED_AGAIN = f"fp32: {GOT}; measuring again"


@pytest.mark.parametrize(
    ("busy_attempts", "messages"),
    [(0, []), (1, [MEASURED_AGAIN]), (2, [MEASURED_AGAIN, f"fp32: {GOT}: the ceiling is by CPU time"])],
)
def test_a_product_on_a_busy_machine_is_measured_again_and_then_by_cpu_time(
    monkeypatch: pytest.MonkeyPatch, busy_attempts: int, messages: list[str]
) -> None:
    rates = iter([*[replace(rate(28e9), **BUSY)] * busy_attempts, rate(180e9), rate(180e9)])
    monkeypatch.setattr(ceilings, "product_rate", lambda *_: next(rates))
    reported: list[str] = []
    measured = ceilings.measure(Device.CPU, precisions=["fp32"], bandwidth=False, progress=reported.append)
    assert reported[1:] == messages
    expected = rate(180e9) if busy_attempts < 2 else replace(rate(28e9), **BUSY)
    assert (measured.flop_per_s, measured.unavailable) == ({"fp32": expected}, {})


@pytest.mark.usefixtures("small_arrays")
def test_a_copy_that_spreads_is_unavailable_and_triad_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def byte_rate(name: str, *_: Any) -> MeasuredRate:
        return replace(rate(), p5=1e9, p95=3.5e9) if name == "copy" else rate()

    monkeypatch.setattr(ceilings, "_byte_rate", byte_rate)
    measured = ceilings.measure(Device.CPU, precisions=[])
    assert (set(measured.bytes_per_s), set(measured.unavailable)) == ({"triad"}, {"copy"})


def test_after_a_product_on_a_busy_machine_further_products_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def product_rate(_: Device, precision: str, __: Any) -> MeasuredRate:
        calls.append(precision)
        return replace(rate(28e9), **BUSY)

    monkeypatch.setattr(ceilings, "product_rate", product_rate)
    monkeypatch.setattr(ceilings, "_why_not", lambda *_: None)
    measured = ceilings.measure(Device.CPU, precisions=["fp32", "bf16"], bandwidth=False)
    assert calls == ["fp32", "fp32", "bf16"]
    assert (set(measured.flop_per_s), measured.unavailable) == ({"fp32", "bf16"}, {})


@pytest.mark.parametrize(("attempt_s", "attempts"), [(29.0, 2), (31.0, 1)])
def test_no_attempt_begins_that_would_end_after_a_minute(attempt_s: float, attempts: int) -> None:
    clock = [0.0]

    def slow_rate() -> MeasuredRate:
        clock[0] += attempt_s
        return replace(rate(), p5=1e9, p95=3.5e9)

    taken = ceilings.Attempts(began_s=0.0, now_s=lambda: clock[0])
    assert taken.first_clean("copy", slow_rate) is None
    assert clock == [attempts * attempt_s]
    assert taken.unavailable["copy"].endswith(f"in {attempts} attempt{'s' if attempts > 1 else ''}")
    assert taken.gave_up == taken.unavailable["copy"]


# --- precision settings


@pytest.fixture
def restored_settings() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


def settings() -> tuple[object, ...]:
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.mkldnn.matmul.fp32_precision,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )


@pytest.mark.usefixtures("restored_settings")
def test_todays_tf32_setting_of_a_script_is_put_back() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with ceilings.matmul_precision(Precision.FP32):
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


@pytest.mark.usefixtures("restored_settings")
@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
@pytest.mark.parametrize(("precision", "inside"), [("fp32", "ieee"), ("tf32", "tf32"), ("amp", "ieee")])
def test_the_tf32_switches_are_set_and_put_back(setting: str, precision: str, inside: str) -> None:
    torch.set_float32_matmul_precision(setting)
    before = settings()

    def interrupted() -> None:
        assert torch.backends.cuda.matmul.fp32_precision == torch.backends.mkldnn.matmul.fp32_precision == inside
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ceilings.matmul_precision(Precision(precision)):
        interrupted()
    assert settings() == before


# --- arrays

MB = 10**6


@pytest.mark.parametrize(
    ("device", "cache_mb", "free_mb", "array_mb"),
    [
        ("cpu", 30, 100_000, 40),  # 4 x 30 / 3
        ("cpu", 1100, 100_000, 2000 / 3),  # 4.4 GB would take too long to touch
        ("cpu", 273, 2_000, 500 / 3),  # a quarter of the free memory
        ("cpu", None, 100_000, 1000 / 3),
        ("cuda", 50, 100_000, 1000 / 3),
        ("cuda", 300, 100_000, 400),
    ],
)
def test_three_arrays_are_four_times_the_cache(
    device: str, cache_mb: int | None, free_mb: int, array_mb: float
) -> None:
    cache_bytes = None if cache_mb is None else cache_mb * MB
    chosen = ceilings.choose_array_bytes(Device(device), cache_bytes=cache_bytes, free_bytes=free_mb * MB)
    assert chosen == int(array_mb * MB)


def test_the_method_says_when_the_arrays_are_too_small() -> None:
    said = {(364, 273): "together at least 4x", (91, 273): "together only 1x, for lack of memory or time,"}
    for (array_mb, cache_mb), words in said.items():
        text = f"3 arrays of {array_mb} MB, {words} the last-level cache of {cache_mb} MB"
        assert ceilings._footprint(array_mb * MB, cache_bytes=cache_mb * MB) == text
    assert ceilings._footprint(333 * MB, cache_bytes=None) == "3 arrays of 333 MB, last-level cache unknown"


def test_arrays_that_do_not_fit_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    full, refused = torch.full, []

    def scarce(size: tuple[int], value: float, **options: Any) -> torch.Tensor:
        if size[0] * 4 > 2**21:
            refused.append(size[0] * 4)
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")
        return full(size, value, **options)

    monkeypatch.setattr(torch, "full", scarce)
    arrays = ceilings._allocate(Device.CPU, 2**23)
    assert [array.nbytes for array in arrays] == [2**21] * 3
    assert refused == [2**23, 2**22]


CPU = "/sys/devices/system/cpu/cpu0/cache"
L2_L3 = {
    f"{CPU}/index0/level": "2",
    f"{CPU}/index0/size": "2048K",
    f"{CPU}/index0/shared_cpu_list": "0",
    f"{CPU}/index1/level": "3",
    f"{CPU}/index1/size": "32768K",
    f"{CPU}/index1/shared_cpu_list": "0-7",
}


@pytest.mark.parametrize(
    ("files", "cpus", "expected"),
    [
        (L2_L3, "0-7", 32 * 2**20),
        (L2_L3, "0-3", 32 * 2**20),
        (L2_L3, "0-31", 4 * 32 * 2**20),  # one L3 for every 8 CPUs
        ({}, "0-7", None),
    ],
)
def test_the_last_level_cache_counts_all_its_instances(
    lay_out: LayOut, files: dict[str, str], cpus: str, expected: int | None
) -> None:
    machine = lay_out(files | {"/proc/self/status": f"Cpus_allowed_list:\t{cpus}"})
    assert ceilings.last_level_cache_bytes(Device.CPU, machine) == expected


def test_the_container_limits_the_free_memory(lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = lay_out({"/proc/meminfo": "MemAvailable: 1000000 kB"})
    assert ceilings.free_memory_bytes(Device.CPU, machine) == 1_024_000_000
    limits = ceilings.host.CgroupLimits(cpus=None, memory_bytes=1_000, cpu_folder=None)
    monkeypatch.setattr(ceilings.host, "cgroup_limits", lambda _: limits)
    assert ceilings.free_memory_bytes(Device.CPU, machine) == 0  # this process uses more than 1000 bytes


# --- what a device cannot do


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("not implemented for 'Half'\nat line 3"), "not implemented for 'Half'"),
        (torch.OutOfMemoryError("CUDA out of memory."), "CUDA out of memory."),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_refused_product_is_a_reason_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def refuse(*_: Any) -> MeasuredRate:
        raise error

    monkeypatch.setattr(ceilings, "product_rate", refuse)
    measured = ceilings.measure(Device.CPU, precisions=["fp32", "tf32"], bandwidth=False)
    assert measured.flop_per_s == {}
    assert measured.unavailable == {"fp32": reason, "tf32": "TF32 needs an NVIDIA GPU"}


@pytest.mark.parametrize(
    ("precision", "faults", "available"), [("bf16", True, False), ("bf16", False, True), ("fp32", True, True)]
)
def test_a_precision_that_would_kill_the_process_is_left_out(
    monkeypatch: pytest.MonkeyPatch, precision: str, faults: bool, available: bool
) -> None:
    monkeypatch.setattr(ceilings, "faults", lambda _: faults)
    monkeypatch.setattr(ceilings, "product_rate", lambda *_: rate())
    measured = ceilings.measure(Device.CPU, precisions=[precision], bandwidth=False)
    why = "torch's kernels for torch.bfloat16 crash on this CPU; ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 avoids AMX"
    assert measured.flop_per_s == ({precision: rate()} if available else {})
    assert measured.unavailable == ({} if available else {precision: why})


# --- real probes


@pytest.fixture
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "LARGEST_FOOTPRINT_BYTES", 48 * MB)


@pytest.mark.usefixtures("small_arrays", "without_doubt")
def test_a_real_measurement_on_this_cpu() -> None:
    # A setting that nobody has made is put back as its equal, with another name.
    torch.set_float32_matmul_precision("highest")
    random_state, before, messages = torch.random.get_rng_state(), settings(), []
    measured = ceilings.measure(Device.CPU, precisions=["fp32"], progress=messages.append, limit_share=0.1)
    assert set(measured.flop_per_s) == {"fp32"}
    assert set(measured.bytes_per_s) == {"copy", "triad"}
    assert measured.unavailable == {}
    for rate in (*measured.flop_per_s.values(), *measured.bytes_per_s.values()):
        assert 0 < rate.min <= rate.p5 <= rate.median <= rate.p95 <= rate.best
        assert 1 <= rate.samples <= 30
    assert measured.flop_per_s["fp32"].size >= 128
    assert measured.bytes_per_s["copy"].size == 16 * MB
    assert measured.elapsed_s > 0
    assert datetime.fromisoformat(measured.measured_at).utcoffset() == timedelta(0)
    assert (measured.threads, torch.__version__ in measured.software) == (torch.get_num_threads(), True)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert settings() == before
    # Further messages say that other work had the CPUs.
    assert [message for message in messages if "the machine was busy" not in message] == [
        "measuring this machine's ceiling: fp32 matrix product",
        "measuring this machine's ceiling: memory bandwidth",
    ]
    assert Ceilings.from_json(json.loads(json.dumps(measured.to_json()))) == measured


def test_copy_and_triad_count_the_bytes_they_move() -> None:
    """Arrays of 4000 bytes, 1 s a call: 8000 and 12000 bytes/s."""
    arrays = tuple(torch.full((1000,), float(n)) for n in (1, 2, 3))
    moved = {}
    for name in ("copy", "triad"):
        machine = FakeMachine(flop_per_s=1)
        # Only the clock's marks move time: one second from a sample's first to its last.
        probe = replace(machine.probe(), clock=Ticking(), now_s=machine.mark)
        moved[name] = ceilings._byte_rate(name, arrays, probe).median
    assert moved == {"copy": 8_000, "triad": 12_000}
    # Copies b to a, a to c, c to b, all 2 at last; then a = b + 3 c.
    assert [array[0].item() for array in arrays] == [8, 2, 2]


class Ticking:
    """A clock whose marks are one second apart."""

    def __init__(self) -> None:
        self._ticks = counter()

    def mark(self) -> int:
        return next(self._ticks)

    def passed(self, _: int) -> bool:
        return True

    def seconds_between(self, earlier: int, later: int) -> float:
        return float(later - earlier)

    def synchronize(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.world
def test_a_cpu_without_units_for_a_type_is_measured_in_time() -> None:
    """Without AVX-512 a bf16 product runs at 1 to 2 GFLOP/s: a fixed n of 2048 would take minutes."""
    code = (
        "import json; from workload.measure import ceilings; from workload.contract.spec import Device\n"
        "measured = ceilings.measure(Device.CPU, precisions=['amp', 'bf16'], bandwidth=False)\n"
        "print(json.dumps(measured.to_json()))"
    )
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "SSE41", "DNNL_MAX_CPU_ISA": "SSE41"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    measured = Ceilings.from_json(json.loads(done.stdout))
    # On a busy machine they are unavailable, and the reason is that they were measured and disturbed.
    assert set(measured.flop_per_s) | set(measured.unavailable) == {"amp", "bf16"}
    assert all("attempts" in why for why in measured.unavailable.values())
    assert "ONEDNN_MAX_CPU_ISA=SSE41" in measured.software


# --- what people read


def rate(median: float = 1e9) -> MeasuredRate:
    return MeasuredRate(median=median, best=median, min=median, p5=median, p95=median, samples=30, size=128)


def test_the_table_has_a_line_a_rate(golden: Callable[[str, str], None]) -> None:
    conditions = {"conditions_at_start": {"sm_clock_mhz": 1590}, "conditions_at_end": {"sm_clock_mhz": 1110}}
    measured = Ceilings(
        flop_per_s={"fp32": rate(193.25e9), "amp": rate(2.5e12)},
        bytes_per_s={"copy": rate(0.5e9), "triad": replace(rate(0.5e9), burst=0.6e9, sustained=0.45e9, **conditions)},
        unavailable={"tf32": "TF32 needs an NVIDIA GPU"},
        method="",
        measured_at=NOON.isoformat(),
        elapsed_s=1.0,
        device="CPU",
        machine_id="m",
        software="torch 1",
        threads=2,
    )
    golden("ceilings.txt", f"{ceiling_rates.table(measured)}\n")


def test_the_identity_knows_the_machine_and_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    plain = ceilings.identity(Device.CPU)
    assert plain["device"]
    assert plain["machine_id"]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    limited = ceilings.identity(Device.CPU)
    assert limited["software"].endswith("ONEDNN_MAX_CPU_ISA=AVX2")
    assert limited["software"] != plain["software"]


@pytest.mark.parametrize(("l2_bytes", "is_known"), [(200_000, False), (4_000, True)])
def test_bandwidth_is_unavailable_if_the_l2_of_a_gpu_holds_the_arrays(
    l2_bytes: int, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "last_level_cache_bytes", lambda _: l2_bytes)
    monkeypatch.setattr(ceilings, "free_memory_bytes", lambda _: 10**6)
    monkeypatch.setattr(ceilings, "_allocate", lambda *_: tuple(torch.ones(50_000) for _ in range(3)))
    monkeypatch.setattr(ceilings, "_byte_rate", lambda *_: rate())
    attempts = ceilings.Attempts(began_s=time.perf_counter())
    rates, _ = ceilings._byte_rates(Device.CUDA, Probe(clock=clock_for(Device.CPU)), attempts)
    assert set(rates) | set(attempts.unavailable) == {"copy", "triad"}
    assert (set(rates) == {"copy", "triad"}) is is_known
    why = "other work has the GPU's memory: 3 arrays of 0 MB, together only 3x"
    assert all(text.startswith(why) for text in attempts.unavailable.values())
