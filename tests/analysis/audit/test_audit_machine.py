"""Rules on the machine, each on both sides of its threshold."""

from pathlib import Path
from typing import Any

import pytest

from analysis.audit import audit
from analysis.audit.machine import variables
from tests.analysis.by_hand import results, run

POWER_CAP, SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
IDLE = 0x1
DOUBT = "perhaps it is another device than its name says"


def figures(*runs: dict[str, Any], rule: str, folder: Path | None = None) -> list[str]:
    return [finding.figure for finding in audit(results(*runs, folder=folder)) if finding.rule == rule]


def masked(mask: int, *, of: int = 100, share: float, device: str = "NVIDIA L4") -> dict[str, Any]:
    held = round(of * share)
    telemetry = {
        "clock_event_reasons": [mask] * held + [0] * (of - held),
        "temperature_c": [85.0] * of,
        "power_w": [140.0] * of,
    }
    return run(device_name=device, telemetry=telemetry)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(masked(SOFTWARE_THERMAL, share=0.04), [], id="4 % of the samples"),
        pytest.param(
            masked(SOFTWARE_THERMAL, share=0.05), ["thermal limit in 5 % of the samples; up to 85 °C"], id="5 %"
        ),
        pytest.param(
            masked(HARDWARE_THERMAL, share=1), ["thermal limit in 100 % of the samples; up to 85 °C"], id="hardware"
        ),
        pytest.param(
            masked(SLOWDOWN | POWER_BRAKE, share=0.5),
            ["hardware slowdown in 50 % of the samples, power brake in 50 % of the samples; up to 85 °C"],
            id="two at once",
        ),
        pytest.param(masked(POWER_CAP | IDLE, share=1), [], id="power cap is no throttling"),
        pytest.param(run(), [], id="no telemetry"),
    ],
)
def test_throttling(case: dict[str, Any], expected: list[str]) -> None:
    assert figures(case, rule="throttling") == expected


@pytest.mark.parametrize(
    ("device", "share", "expected"),
    [
        pytest.param("NVIDIA L4", 1.0, [], id="an L4 always meets its 72 W"),
        pytest.param("Tesla T4", 1.0, [], id="a T4 its 70 W"),
        pytest.param(
            "NVIDIA GeForce RTX 4090",
            0.5,
            ["the power limit lowered the clock in 50 % of the samples at 140 W"],
            id="another board",
        ),
        pytest.param("NVIDIA GeForce RTX 4090", 0.49, [], id="less than half of the time"),
    ],
)
def test_at_the_power_limit(device: str, share: float, expected: list[str]) -> None:
    assert figures(masked(POWER_CAP, share=share, device=device), rule="at the power limit") == expected


@pytest.mark.parametrize(
    ("rate", "facts", "expected"),
    [
        pytest.param(149.0, {}, ["149 images/s at batch size 64, 300 at 32: 0.50 x"], id="below half"),
        pytest.param(151.0, {}, [], id="above half"),
        pytest.param(149.0, {"precision": "amp"}, [], id="another precision"),
        pytest.param(149.0, {"place": "elsewhere"}, [], id="another place"),
        pytest.param(149.0, {"status": "interrupted"}, [], id="not completed"),
    ],
)
def test_spill_cliff(rate: float, facts: dict[str, Any], expected: list[str]) -> None:
    runs = [run("small", images_per_s=300.0), run("big", batch_size=64, images_per_s=rate, **facts)]

    assert figures(*runs, rule="spill cliff") == expected


def test_a_small_batch_may_be_slow() -> None:
    runs = [run("small", batch_size=1, images_per_s=10.0), run("big", images_per_s=300.0)]

    assert figures(*runs, rule="spill cliff") == []


@pytest.mark.parametrize(
    ("used", "waits", "device", "expected"),
    [
        (3.0, 0.001, "cpu", []),
        (2.9, 0.001, "cpu", ["the run got 2.9 of 4 CPUs"]),
        pytest.param(2.0, 0.4, "cpu", [], id="busy whenever it does not wait for its input"),
        pytest.param(
            1.0,
            0.4,
            "cpu",
            ["the run got 1.7 of 4 CPUs in the 60 % of the time in which it did not wait for data"],
            id="waits, and shares the rest",
        ),
        pytest.param(0.2, 0.95, "cpu", [], id="hardly ever not waiting"),
        (0.9, 0.001, "cuda", []),
        (None, 0.001, "cpu", []),
    ],
)
def test_cpu_competition(used: float | None, waits: float, device: str, expected: list[str]) -> None:
    case = run(device_type=device, threads=4.0, cpus_used=used, data_wait_fraction=waits)

    assert figures(case, rule="CPU competition") == expected


@pytest.mark.parametrize(
    ("telemetry", "expected"),
    [
        pytest.param({"cpu_steal_percent": [1.9] * 10}, [], id="steal within 2 %"),
        pytest.param(
            {"cpu_steal_percent": [1.0, 4.0] * 5},
            ["2.5 % of the CPU time went to other virtual machines (steal)"],
            id="steal",
        ),
        pytest.param({"t_s": [5.0, 10.0], "cgroup_throttled_s": [7.0, 7.1]}, [], id="1 % of 2 threads"),
        pytest.param(
            {"t_s": [5.0, 10.0], "cgroup_throttled_s": [7.0, 8.0]},
            ["10 % of the CPU time went to a CPU quota"],
            id="1 s of 2 threads in 5 s",
        ),
    ],
)
def test_cpu_held_back(telemetry: dict[str, list[float]], expected: list[str]) -> None:
    case = run(steps=[0.1] * 60, threads=2.0, telemetry=telemetry)

    assert figures(case, rule="CPU held back") == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"OMP_NUM_THREADS": "1"}, []),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, []),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, ["CUDA_LAUNCH_BLOCKING=1: every kernel launch waits for the kernel"]),
    ],
)
def test_debug_variables(tmp_path: Path, found: dict[str, str], expected: list[str]) -> None:
    case = run(record={"environment": {"software": {"variables": found}}})

    assert figures(case, rule="debug variables", folder=tmp_path) == expected


def test_every_debug_variable_has_an_effect_and_a_source() -> None:
    assert all(variable.effect and variable.source and "" in variable.harmless for variable in variables().values())


# Importing torch starts processes of its own.
@pytest.mark.world
def test_the_trainer_records_every_debug_variable() -> None:
    from workload.environment.software import speed_variables

    assert set(speed_variables(dict.fromkeys(variables(), "1"))) == set(variables())


@pytest.mark.parametrize(
    ("clock_mhz", "expected"),
    [
        pytest.param(6251, [], id="an L4's"),
        pytest.param(
            9501,
            ["the device's memory clock and bus give 456 GB/s, the table has 300 (+52 %): " + DOUBT],
            id="another card's",
        ),
        pytest.param(None, [], id="unknown"),
    ],
)
def test_memory_is_another_devices(tmp_path: Path, clock_mhz: int | None, expected: list[str]) -> None:
    device = {"memory_clock_max_mhz": clock_mhz, "memory_bus_width_bits": 192}
    case = run(record={"environment": {"device": device}})

    assert figures(case, rule="memory is another device's", folder=tmp_path) == expected
