"""Rules on the machine, each on both sides of its threshold."""

from pathlib import Path
from typing import Any

import pytest

from analysis.audit.provenance import variables
from tests.analysis.audit.rules import Cases, printed
from tests.analysis.by_hand import run
from tests.analysis.sentence_runs import Golden

POWER_CAP, SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
IDLE = 0x1


def masked(mask: int, *, of: int = 100, share: float, device: str = "NVIDIA L4") -> dict[str, Any]:
    held = round(of * share)
    telemetry = {
        "clock_event_reasons": [mask] * held + [0] * (of - held),
        "temperature_c": [85.0] * of,
        "power_w": [140.0] * of,
    }
    return run(device_name=device, telemetry=telemetry)


def test_every_debug_variable_has_an_effect_and_a_source() -> None:
    assert all(row["effect"] and row["source"] and "" in row["harmless"] for row in variables().values())


# Importing torch starts processes of its own.
@pytest.mark.world
def test_the_trainer_records_every_debug_variable() -> None:
    from workload.environment.collect import speed_variables

    assert set(speed_variables(dict.fromkeys(variables(), "1"))) == set(variables())


CASES: Cases = {
    "throttling": {
        "4 % of the samples": masked(SOFTWARE_THERMAL, share=0.04),
        "5 %": masked(SOFTWARE_THERMAL, share=0.05),
        "hardware": masked(HARDWARE_THERMAL, share=1),
        "two at once": masked(SLOWDOWN | POWER_BRAKE, share=0.5),
        "power cap is no throttling": masked(POWER_CAP | IDLE, share=1),
        "no telemetry": run(),
        "an L4 always meets its 72 W": masked(POWER_CAP, share=1.0, device="NVIDIA L4"),
        "a T4 its 70 W": masked(POWER_CAP, share=1.0, device="Tesla T4"),
        "power limit of another board": masked(POWER_CAP, share=0.5, device="NVIDIA GeForce RTX 4090"),
        "power limit in less than half of the samples": masked(POWER_CAP, share=0.49, device="NVIDIA GeForce RTX 4090"),
    },
    "spill cliff": {
        "below half": [run("small", images_per_s=300.0), run("big", batch_size=64, images_per_s=149.0)],
        "above half": [run("small", images_per_s=300.0), run("big", batch_size=64, images_per_s=151.0)],
        "another precision": [
            run("small", images_per_s=300.0),
            run("big", batch_size=64, images_per_s=149.0, precision="amp"),
        ],
        "another place": [
            run("small", images_per_s=300.0),
            run("big", batch_size=64, images_per_s=149.0, place="elsewhere"),
        ],
        "not completed": [
            run("small", images_per_s=300.0),
            run("big", batch_size=64, images_per_s=149.0, status="interrupted"),
        ],
        "a small batch may be slow": [run("small", batch_size=1, images_per_s=10.0), run("big", images_per_s=300.0)],
    },
    "CPU competition": {
        "3 of 4 CPUs": run(device_type="cpu", threads=4.0, cpus_used=3.0, data_wait_fraction=0.001),
        "2.9 of 4 CPUs": run(device_type="cpu", threads=4.0, cpus_used=2.9, data_wait_fraction=0.001),
        "busy whenever it does not wait for its input": run(
            device_type="cpu", threads=4.0, cpus_used=2.0, data_wait_fraction=0.4
        ),
        "waits, and shares the rest": run(device_type="cpu", threads=4.0, cpus_used=1.0, data_wait_fraction=0.4),
        "hardly ever not waiting": run(device_type="cpu", threads=4.0, cpus_used=0.2, data_wait_fraction=0.95),
        "a GPU run needs few": run(device_type="cuda", threads=4.0, cpus_used=0.9, data_wait_fraction=0.001),
        "unknown": run(device_type="cpu", threads=4.0, cpus_used=None, data_wait_fraction=0.001),
        "steal within 2 %": run(steps=[0.1] * 60, threads=2.0, telemetry={"cpu_steal_percent": [1.9] * 10}),
        "steal": run(steps=[0.1] * 60, threads=2.0, telemetry={"cpu_steal_percent": [1.0, 4.0] * 5}),
        "1 % of 2 threads": run(
            steps=[0.1] * 60, threads=2.0, telemetry={"t_s": [5.0, 10.0], "cgroup_throttled_s": [7.0, 7.1]}
        ),
        "1 s of 2 threads in 5 s": run(
            steps=[0.1] * 60, threads=2.0, telemetry={"t_s": [5.0, 10.0], "cgroup_throttled_s": [7.0, 8.0]}
        ),
    },
    "debug variables": {
        "another variable": run(record={"environment": {"software": {"variables": {"OMP_NUM_THREADS": "1"}}}}),
        "a harmless value": run(record={"environment": {"software": {"variables": {"CUDA_LAUNCH_BLOCKING": "0"}}}}),
        "a harmful value": run(record={"environment": {"software": {"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}}}),
    },
}


def test_findings_on_both_sides_of_each_threshold(tmp_path: Path, golden: Golden) -> None:
    golden("machine.txt", printed(CASES, tmp_path))
