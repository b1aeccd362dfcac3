from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workload.conftest import LayOut
from tests.workload.environment.test_nvml import FakeNvml
from tests.workload.fake_cuda import FakeCuda
from workload.contract.record_sections import Energy, EnergySource
from workload.contract.spec import Device
from workload.environment.device import GpuSensors
from workload.measure.energy import Counter, EnergyMeter, Metered, PowerSample, idle_w, of_steps, rapl_counters
from workload.measure.energy import leave_for_rank_0 as leave
from workload.measure.energy import of_all_ranks as of_all

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


@pytest.mark.parametrize(("is_alone", "opened"), [(True, [0, 1]), (False, [1])])
def test_a_process_counts_every_gpu_with_its_tensors_and_a_rank_its_own(
    monkeypatch: pytest.MonkeyPatch, is_alone: bool, opened: list[int]
) -> None:
    FakeCuda(monkeypatch).current = 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: (512, 0, 0)[index])
    asked: list[int] = []
    monkeypatch.setattr(GpuSensors, "open", asked.append)
    meter = EnergyMeter.of(Device.CUDA, is_alone=is_alone)
    assert (asked, meter.is_of_one) == (opened, len(opened) == 1)
    # Without NVML, and for Apple's GPUs.
    assert meter.end() is EnergyMeter.of(Device.MPS).end() is None


def samples(times: Iterable[float], power_w: float = 50.0, *, is_idle: bool = False) -> list[PowerSample]:
    return [PowerSample(t_s=t_s, power_w=power_w, is_idle=is_idle) for t_s in times]


def metered(joules: float, seconds: float, source: EnergySource = COUNTER) -> Metered:
    return Metered(joules=joules, seconds=seconds, source=source)


STEADY = samples(range(31))
# 100 W for 10 s between two lines of 1 s, from and to 50 W: from 5 to 25 s, 200 + 75 + 1000 + 75 + 200 J.
LOAD = samples(range(10)) + samples(range(10, 21), 100.0) + samples(range(21, 31))


@pytest.mark.parametrize(
    ("counted", "powers", "steps_s", "pauses", "joules", "source"),
    [
        pytest.param(metered(500, 10), LOAD, 10, [], 500, COUNTER, id="counter"),
        # A pause of 4 % of the time needs 4 % of the energy.
        pytest.param(metered(500, 10), [], 9.6, [(6, 6.4)], 480, COUNTER, id="short pause"),
        pytest.param(metered(500, 10), [], 9.4, [(6, 6.6)], None, COUNTER, id="long pause, no samples"),
        pytest.param(metered(80, 1.9), [], 1.9, [], None, COUNTER, id="19 updates of NVML's counter"),
        pytest.param(metered(80, 2.0), [], 2.0, [], 80, COUNTER, id="20 updates of NVML's counter"),
        pytest.param(metered(3, 0.019, RAPL), [], 0.019, [], None, RAPL, id="19 updates of RAPL's counter"),
        pytest.param(metered(3, 0.02, RAPL), [], 0.02, [], 3, RAPL, id="20 updates of RAPL's counter"),
        pytest.param(None, LOAD, 20, [], 1550, POWER, id="samples"),
        # From 9.5 to 10 s at 87.5 W, then 4 s at 100 W.
        pytest.param(None, LOAD, 15.5, [(9.5, 14)], 1550 - 443.75, POWER, id="samples without a pause"),
        pytest.param(metered(900, 30), STEADY, 20, [], 1000, POWER, id="counter read too late"),
        pytest.param(None, samples([*range(11), *range(13, 31)]), 20, [], 1000, POWER, id="3 s without a sample"),
        pytest.param(None, samples([*range(11), *range(14, 31)]), 20, [], None, POWER, id="4 s without a sample"),
        pytest.param(None, samples(range(23)), 20, [], 1000, POWER, id="samples end 3 s before the steps"),
        pytest.param(None, samples(range(22)), 20, [], None, POWER, id="samples end 4 s before the steps"),
        pytest.param(None, samples(range(7, 31)), 20, [], 1000, POWER, id="samples begin late"),
        pytest.param(None, samples(range(7, 26, 2)), 20, [], 1000, POWER, id="ten samples"),
        pytest.param(None, samples(range(7, 25, 2)), 20, [], None, POWER, id="nine samples"),
    ],
)
def test_energy_of_steps(
    counted: Metered | None, powers: Any, steps_s: float, pauses: Any, joules: float | None, source: EnergySource
) -> None:
    found = of_steps(counted, powers, steps_s=steps_s, span=(5.0, 25.0), pauses=pauses)
    assert found == (joules and Energy(joules=pytest.approx(joules), source=source, seconds=steps_s))
    assert found is None or found.uncertainty == {COUNTER: 0.1 / steps_s, RAPL: 0.001 / steps_s}.get(source)


def test_idle_power_is_the_lowest_without_load_before_the_steps() -> None:
    known = samples([0.0], 40.0, is_idle=True) + samples([1.0], 22.0, is_idle=True) + samples([2.0], 15.0)
    assert idle_w(known + samples([9.0], 12.0, is_idle=True), 5.0) == 22.0
    assert idle_w(samples([1.0], 80.0), 5.0) is None


def test_energy_of_all_ranks_is_their_sum(tmp_path: Path) -> None:
    for rank, joules in enumerate((400.0, 500.0)):
        (tmp_path / "ranks" / str(rank)).mkdir(parents=True)
        leave(tmp_path / "ranks" / str(rank), metered(joules, 10.0))
    assert of_all(tmp_path, 2, 9.6) == Energy(joules=pytest.approx(864.0), source=COUNTER, seconds=9.6)
    # A pause of 10 %; a third rank that left nothing; a GPU without a counter, and steps too short for one.
    assert of_all(tmp_path, 2, 9.0) is of_all(tmp_path, 3, 9.6) is None
    for unknown in (None, metered(50.0, 1.0)):
        leave(tmp_path / "ranks" / "1", unknown)
        assert of_all(tmp_path, 2, 10.0) is None
