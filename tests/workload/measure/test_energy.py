from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.workload.conftest import LayOut
from tests.workload.environment.test_nvml import FakeNvml
from tests.workload.fake_cuda import FakeCuda
from workload.contract.record import Record, Settling, Spec, Status
from workload.contract.record_sections import Energy, EnergySource
from workload.contract.spec import Device
from workload.contract.trainer import Context
from workload.environment.device import GpuSensors
from workload.measure.energy import Counter, EnergyMeter, Metered, PowerSample, idle_w, of_steps, rapl_counters
from workload.measure.timing import Timeline
from workload.run.life import Life, Region

COUNTER, RAPL, POWER = EnergySource.NVML_COUNTER, EnergySource.RAPL, EnergySource.NVML_POWER
RAPL_0 = "/sys/class/powercap/intel-rapl"


def zones(**joules: float) -> dict[str, str]:
    """Files of powercap zones by number and name (`r0_1_dram`: intel-rapl:0:1), each with a counter of 262 kJ."""
    files = {}
    for key, value in joules.items():
        number, _, name = key.rpartition("_")
        folder = f"{RAPL_0}{number.replace('_', ':').replace('r', ':')}"
        files[f"{folder}/name"] = name.replace("package", "package-0")
        files[f"{folder}/energy_uj"], files[f"{folder}/max_energy_range_uj"] = f"{value * 1e6:.0f}", "262143000000"
    return files


ONE, TWO, PARTS = ("r0_package",), ("r0_package", "r1_package", "r0_1_dram"), ("r0_package", "r0_0_core", "r1_psys")


@pytest.mark.parametrize(
    ("names", "before_j", "after_j", "passed_s", "expected_j"),
    [
        pytest.param(ONE, (5,), (35.5,), 10, 30.5, id="one package"),
        pytest.param(ONE, (262142,), (2,), 10, 3, id="counter begins again from 0"),
        pytest.param(TWO, (5, 0, 100), (6, 2, 100.5), 10, 3.5, id="two packages and memory"),
        pytest.param(PARTS, (5, 0, 0), (6, 9, 9), 10, 1, id="parts and the whole system are not added"),
        pytest.param(("r0_package", "-mmior0_package"), (5, 5), (6, 6), 10, 1, id="second interface is not added"),
        # At 500 W, 262 kJ take 524 s.
        pytest.param(ONE, (5,), (6,), 525, None, id="may have begun again twice"),
        pytest.param(ONE, (5,), (5,), 10, None, id="counter stands still"),
        pytest.param((), (), (), 10, None, id="no RAPL"),
    ],
)
def test_rapl(
    lay_out: LayOut, names: list[str], before_j: Any, after_j: Any, passed_s: float, expected_j: float | None
) -> None:
    times = iter([50.0, 57.0, 57.0 + passed_s])
    machine = lay_out(zones(**dict(zip(names, before_j, strict=True))))
    meter = EnergyMeter(rapl_counters(machine), RAPL, lambda: next(times))
    meter.begin()
    lay_out(zones(**dict(zip(names, after_j, strict=True))))
    expected = expected_j and Metered(joules=pytest.approx(expected_j), seconds=passed_s, source=RAPL)
    assert meter.end() == expected


@pytest.mark.parametrize("file", ["energy_uj", "max_energy_range_uj"])
def test_one_of_two_packages_that_cannot_be_read_makes_the_energy_unknown(lay_out: LayOut, file: str) -> None:
    machine = lay_out(zones(r0_package=1, r1_package=1))
    # Reading a folder fails, also for root.
    path = machine.path(f"{RAPL_0}:1/{file}")
    path.unlink()
    path.mkdir()
    meter = EnergyMeter(rapl_counters(machine), RAPL)
    lay_out(zones(r0_package=2))
    assert meter.end() is None


TOTAL = "nvmlDeviceGetTotalEnergyConsumption"


@pytest.mark.parametrize(
    ("refused", "gpus", "expected_j"),
    [
        pytest.param({}, [{}], 100.5, id="counter"),
        pytest.param({}, [{}, {}], 201.0, id="two GPUs"),
        pytest.param({"unsupported": {TOTAL}}, [{}], None, id="not supported"),
        pytest.param({"old": {TOTAL}}, [{}], None, id="old nvidia-ml-py"),
        pytest.param({"unsupported": {"nvmlDeviceGetMigMode"}}, [{}], 100.5, id="GPU without MIG"),
        # The parts of a GPU share its counter.
        pytest.param({}, [{}, {"nvmlDeviceGetMigMode": [1, 1]}], None, id="one of two GPUs is split"),
    ],
)
def test_nvml(refused: dict[str, Any], gpus: list[dict[str, Any]], expected_j: float | None) -> None:
    library, times = FakeNvml(*gpus, **refused), iter([50.0, 53.0, 56.0])
    library.nvmlInit()
    counters = [Counter(read_j=GpuSensors(library=library, handle=handle).energy_j) for handle in range(len(gpus))]
    meter = EnergyMeter(counters, COUNTER, lambda: next(times))
    for answers in gpus:
        answers[TOTAL] = 7_100_750
    assert meter.end() == (expected_j and Metered(joules=expected_j, seconds=3.0, source=COUNTER))
    # As after the driver was loaded again.
    for answers in gpus:
        answers[TOTAL] = 750
    assert meter.end() is None


@pytest.mark.parametrize(("ranks", "opened"), [(1, [0, 1]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2])])
def test_a_process_counts_every_gpu_with_its_tensors_and_ranks_count_one_each(
    monkeypatch: pytest.MonkeyPatch, ranks: int, opened: list[int]
) -> None:
    FakeCuda(monkeypatch).current = 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: (512, 0, 0)[index])
    asked: list[int] = []
    monkeypatch.setattr(GpuSensors, "open", asked.append)
    meter = EnergyMeter.of(Device.CUDA, ranks=ranks)
    assert (asked, len(meter.counters)) == (opened, max(2, ranks))
    # Without NVML, and for Apple's GPUs.
    assert meter.end() is EnergyMeter.of(Device.MPS).end() is None


@pytest.mark.parametrize("device", [Device.CPU, Device.CUDA])
def test_energy_of_other_machines_is_unknown(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert EnergyMeter.of(device, ranks=4).counters == []


@pytest.mark.parametrize(("source", "least_s"), [(COUNTER, 2.0), (RAPL, 0.02)])
@pytest.mark.parametrize("share", [0.99, 1.01])
def test_twenty_updates_of_a_counter_are_enough(source: EnergySource, least_s: float, share: float) -> None:
    times, readings = iter([0.0, least_s * share]), iter([100.0, 180.0])
    found = EnergyMeter([Counter(read_j=lambda: next(readings))], source, lambda: next(times)).end()
    assert (found and found.joules) == (None if share < 1 else 80.0)


def samples(times: Iterable[float], power_w: float = 50.0, *, is_idle: bool = False) -> list[PowerSample]:
    return [PowerSample(t_s=t_s, power_w=power_w, is_idle=is_idle) for t_s in times]


def metered(joules: float, seconds: float, source: EnergySource = COUNTER) -> Metered:
    return Metered(joules=joules, seconds=seconds, source=source)


STEADY = samples(range(31))
# From 5 to 25 s, 4.5 s at 50 W, 11 s at 100 W and again 4.5 s at 50 W.
LOAD = samples(range(10)) + samples(range(10, 21), 100.0) + samples(range(21, 31))


@pytest.mark.parametrize(
    ("counted", "powers", "steps_s", "pauses", "joules", "source"),
    [
        pytest.param(metered(500, 10), LOAD, 10, [], 500, COUNTER, id="counter"),
        # A pause of 4 % of the time needs 4 % of the energy.
        pytest.param(metered(500, 10), [], 9.6, [(6, 6.4)], 480, COUNTER, id="short pause"),
        pytest.param(metered(500, 10), [], 9.4, [(6, 6.6)], None, COUNTER, id="long pause, no samples"),
        pytest.param(None, LOAD, 20, [], 1550, POWER, id="samples"),
        # 4.5 s at 100 W.
        pytest.param(None, LOAD, 15.5, [(9.5, 14)], 1550 - 450, POWER, id="samples without a pause"),
        # 5 s later, at 50 W; a pause with 1 s at 50 W and 3 s at 100 W.
        pytest.param(metered(1150, 25), STEADY, 20, [], 900, COUNTER, id="counter read later"),
        pytest.param(metered(900, 10), LOAD, 6, [(8.5, 12.5)], 900 - 350, COUNTER, id="counter without a pause"),
        pytest.param(metered(1400, 41), STEADY, 20, [], 1000, POWER, id="counter read too late"),
        pytest.param(None, samples([*range(11), *range(13, 31)]), 20, [], 1000, POWER, id="3 s without a sample"),
        pytest.param(None, samples([*range(11), *range(14, 31)]), 20, [], None, POWER, id="4 s without a sample"),
        pytest.param(None, samples(range(25)), 20, [], 1000, POWER, id="samples end 1 s before the steps"),
        pytest.param(None, samples(range(24)), 20, [], None, POWER, id="samples end 2 s before the steps"),
        pytest.param(None, samples(range(6, 31)), 20, [], 1000, POWER, id="samples begin 1 s late"),
        pytest.param(None, samples(range(6, 26, 2)), 20, [], 1000, POWER, id="ten samples"),
        pytest.param(None, samples(6.5 + 2.25 * i for i in range(9)), 20, [], None, POWER, id="nine samples"),
    ],
)
def test_energy_of_steps(
    counted: Metered | None, powers: Any, steps_s: float, pauses: Any, joules: float | None, source: EnergySource
) -> None:
    found = of_steps(counted, powers, steps_s=steps_s, span=(5.0, 25.0), pauses=pauses)
    assert found == (joules and Energy(joules=pytest.approx(joules), source=source, seconds=steps_s))


@pytest.mark.parametrize(("late_s", "goes_on", "joules"), [(1.5, True, 580), (1.5, False, None), (1.6, True, None)])
def test_counter_of_a_script_that_goes_on_may_be_read_late(late_s: float, goes_on: bool, joules: float | None) -> None:
    counted = metered((6 + late_s) * 100, 6 + late_s)
    found = of_steps(counted, [], steps_s=5.8, span=(5.0, 11.0), pauses=[(6.0, 6.2)], goes_on=goes_on)
    assert found == (joules and Energy(joules=pytest.approx(joules), source=COUNTER, seconds=5.8))


def test_idle_power_is_the_lowest_without_load_before_the_steps() -> None:
    known = samples([0.0], 40.0, is_idle=True) + samples([1.0], 22.0, is_idle=True) + samples([2.0], 15.0)
    assert idle_w(known + samples([9.0], 12.0, is_idle=True), 5.0) == 22.0
    assert idle_w(samples([1.0], 80.0), 5.0) is None


@pytest.mark.parametrize(("steps_s", "joules", "share"), [(4.0, 200.0, ""), (3.0, None, "25 %")])
def test_record_has_energy_and_the_power_while_the_device_cooled_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps_s: float, joules: float | None, share: str
) -> None:
    readings, times = iter([100.0, 160.0]), iter([5.0, 7.0])
    waiting = EnergyMeter([Counter(read_j=lambda: next(readings))], RAPL, lambda: next(times))
    monkeypatch.setattr(EnergyMeter, "of", lambda _: waiting)
    monkeypatch.setattr("workload.run.life.settle", lambda *_, **__: Settling(waited_s=2.0))
    spec = Spec(model="t.py", batch_size=4, device="cpu", iterations=9, ceilings=False)
    timeline = Timeline()
    timeline.enter("measured")
    totals = SimpleNamespace(pauses=[(2.0, 6.0 - steps_s)], step_s=[1.0])
    region = SimpleNamespace(span=(1.0, 5.0), metered=metered(200, 4), totals=totals, energy=waiting)
    region.timing = lambda known: replace(known, measured_s=steps_s)
    record = Record(run_id="run-1", status=Status.RUNNING, spec=spec)
    with closing(Life(tmp_path, record, timeline, Context(settles=True))) as life:
        life.prepare()
        life.take(cast("Region", region))
    assert life.record.energy == (joules and Energy(joules=joules, source=COUNTER, seconds=steps_s, idle_w=30.0))
    assert life.notes == [
        f"energy is unknown: {share} of the time between two readings of its counter were pauses"
    ] * bool(share)
