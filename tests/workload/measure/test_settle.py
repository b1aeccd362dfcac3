from types import SimpleNamespace

import pytest

from workload.contract.record import Settling
from workload.contract.spec import Device
from workload.measure import telemetry as module
from workload.measure.telemetry import settle, thermometer_of

NO_TEMPERATURE = "the device reports no temperature"
# What is read, one second after the other; what it should cool down to; what is recorded.
CASES: dict[str, tuple[list[float | None], float | None, Settling]] = {
    "cool": ([45.0], 40.0, Settling(target_c=40, before_c=45, after_c=45, waited_s=0, is_reached=True)),
    "colder": ([20.0], 40.0, Settling(target_c=40, before_c=20, after_c=20, waited_s=0, is_reached=True)),
    "cools": ([46.0, 46.0, 45.0], 40.0, Settling(target_c=40, before_c=46, after_c=45, waited_s=2, is_reached=True)),
    "stays hot": (
        [80.0] * 100,
        40.0,
        Settling(
            target_c=40, before_c=80, after_c=80, waited_s=60, is_reached=False, why="still 40 degrees above after 60 s"
        ),
    ),
    "no sensor": ([None], 40.0, Settling(target_c=40, waited_s=0, why=NO_TEMPERATURE)),
    "none at the first run": ([50.0], None, Settling(before_c=50, waited_s=0, why=NO_TEMPERATURE)),
    "lost while waiting": (
        [80.0, None],
        40.0,
        Settling(
            target_c=40, before_c=80, waited_s=1, is_reached=False, why="the device stopped reporting its temperature"
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_waits_for_the_temperature_of_the_first_run(case: str) -> None:
    readings, target_c, expected = CASES[case]
    remaining, slept, messages = iter(readings), list[float](), list[str]()
    recorded = settle(
        lambda: next(remaining), target_c, report=messages.append, now_s=lambda: sum(slept), sleep=slept.append
    )
    assert recorded == expected
    assert len(messages) == bool(expected.waited_s)


@pytest.mark.parametrize(
    ("sensors", "expected"),
    [
        ({"coretemp": [41.0, 44.0], "nvme": [70.0]}, 44.0),
        ({"k10temp": [38.5]}, 38.5),
        ({"nvme": [70.0]}, None),
    ],
    ids=["hottest core", "amd", "only a disk"],
)
def test_the_temperature_of_a_cpu(
    sensors: dict[str, list[float]], expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = {name: [SimpleNamespace(current=value) for value in values] for name, values in sensors.items()}
    monkeypatch.setattr(module.psutil, "sensors_temperatures", lambda: readings, raising=False)
    assert thermometer_of(Device.CPU)() == expected


@pytest.mark.parametrize("sample", [{"temperature_c": 51}, {"temperature_c": None}, None])
def test_the_temperature_of_a_gpu(sample: dict[str, float | None] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "sensors_of", lambda _: sample and (lambda: sample))
    assert thermometer_of(Device.CUDA)() == (sample and sample["temperature_c"])
