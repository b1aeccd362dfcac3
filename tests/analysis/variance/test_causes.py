"""Causes with the share that they explain, each on both sides of its threshold."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.signal import lfilter
from scipy.stats import spearmanr

from analysis.causes import causes
from tests.analysis.by_hand import noisy, results, run
from tests.analysis.sentence_runs import Golden

STEP = [0.1] * 60
POWER_CAP, THERMAL = 0x4, 0x20


def found(*runs: dict[str, Any], folder: Path | None = None) -> pd.DataFrame:
    return causes(results(*runs, folder=folder))


def test_a_clean_run_has_no_cause() -> None:
    telemetry = {"sm_clock_mhz": [2040.0] * 20, "clock_event_reasons": [0] * 20, "cpu_steal_percent": [0.1] * 20}
    table = found(run(telemetry=telemetry))
    assert table.empty
    assert list(table.columns)[:3] == ["run_id", "cause", "share_explained"]


# --- what steps follow


def clocks(n: int = 60) -> np.ndarray[Any, Any]:
    """MHz, without a pattern."""
    return 1500 + 500 * np.random.default_rng(1).random(n)


def following(clock: np.ndarray[Any, Any], noise: float = 0.0) -> dict[str, Any]:
    """A run whose steps take as long as the clock makes them, and telemetry in the middle of each step."""
    steps = 150 / clock * (1 + noise * np.random.default_rng(2).standard_normal(clock.size))
    ends = 5.0 + np.cumsum(steps)
    return run(steps=list(steps), telemetry={"t_s": list(ends - steps / 2), "sm_clock_mhz": list(clock)})


def test_the_share_is_the_squared_rank_correlation() -> None:
    clock = clocks()
    case = following(clock, noise=0.1)
    (row,) = found(case).to_dict("records")
    assert row["share_explained"] == pytest.approx(spearmanr(case["steps"], clock).statistic ** 2)
    assert 0 < row["share_low"] < row["share_explained"] < row["share_high"] < 1


def slower_at_the_end(clock: float, samples: int = 10, slow_s: float = 0.105) -> dict[str, Any]:
    """The last fifth of 100 steps takes `slow_s`, and the clock of `samples` samples is `clock` there."""
    steps = noisy(n=80) + noisy(n=20, step_s=slow_s, seed=1)
    values = [1980.0 + number % 2 for number in range(samples)]
    values[-samples // 5 :] = [clock] * (samples // 5)
    return run(steps=steps, telemetry={"sm_clock_mhz": values})


def test_a_clock_that_falls_with_the_speed() -> None:
    """Ten samples, two of them low: a correlation says nothing of them, the change at the same place does."""
    (row,) = found(slower_at_the_end(1890.0)).to_dict("records")
    assert (row["cause"], row["share_of"]) == ("GPU clock", "slowdown within the run")
    assert row["share_explained"] == pytest.approx(np.log(1980.5 / 1890) / np.log(1.05), abs=0.01)
    assert row["evidence"] == "1890 MHz while the steps are slow, 1980 MHz otherwise"


@pytest.mark.slow
def test_a_wandering_covariate_is_no_cause_of_a_wandering_run() -> None:
    """150 runs whose steps and four covariates wander each by itself: four tests at 5 % found a cause in every 15th."""
    rng = np.random.default_rng(5)
    shocks = rng.normal(size=(150, 5, 300)) * 0.6
    waves = lfilter([1.0], [1.0, -0.8], shocks, axis=2)[:, :, 200:]
    columns = ("sm_clock_mhz", "cpu_mhz", "cpu_steal_percent", "cpu_pressure_percent")
    runs = [
        run(
            f"r{number}",
            steps=list(0.1 * (1 + 0.01 * wave[0])),
            telemetry={name: list(1 + 0.02 * values) for name, values in zip(columns, wave[1:], strict=True)},
        )
        for number, wave in enumerate(waves)
    ]
    assert found(*runs)["run_id"].nunique() <= 4


def held(mask: int, share: float, device: str = "NVIDIA GeForce RTX 4090") -> dict[str, Any]:
    masks = [mask] * round(100 * share) + [0] * round(100 * (1 - share))
    return run(device_name=device, steps=STEP, telemetry={"clock_event_reasons": masks})


def following_a_reason() -> dict[str, Any]:
    slow = np.repeat([0, 1, 0, 1, 1, 0], 10)
    steps = 0.1 * (1 + slow) * (1 + 0.001 * np.random.default_rng(3).standard_normal(60))
    ends = 5.0 + np.cumsum(steps)
    telemetry = {"t_s": list(ends - steps / 2), "clock_event_reasons": list(slow * THERMAL)}
    return run(steps=list(steps), telemetry=telemetry)


def throttled(end_s: float) -> dict[str, Any]:
    """Two threads that a quota held back, in 5 s."""
    return run(steps=STEP, threads=2.0, telemetry={"t_s": [5.0, 10.0], "cgroup_throttled_s": [1.0, end_s]})


FOLLOWING = following(clocks())
FEW_SAMPLES = {name: values[:7] for name, values in FOLLOWING["telemetry"].items()}
OUTSIDE = {"t_s": [1.0, 2.0, 6.0, 8.0, 90.0], "clock_event_reasons": [THERMAL, THERMAL, 0, 0, THERMAL]}
ON_CPU = {"device_type": "cpu", "threads": 4.0}
WAITING = {"timing": {"cpus_used": 1.0, "cpus_waited": 0.5}}
FAULTS = {"cpus_used": 2.0, "cpus_in_kernel": 0.4, "page_faults_per_s": 1e5, "measured_s": 6.0, "step_s": {"n": 60}}
CASES: dict[str, list[dict[str, Any]]] = {
    "steps that follow the clock": [FOLLOWING],
    "steps that do not": [run(steps=noisy(), telemetry=FOLLOWING["telemetry"])],
    "too few samples": [run(steps=FOLLOWING["steps"], telemetry=FEW_SAMPLES)],
    "telemetry outside of the measured region": [run(steps=STEP, telemetry=OUTSIDE)],
    # Ten samples, two of them low, while the last fifth of the steps is 5 % slower.
    "a clock that stays": [slower_at_the_end(1980.0)],
    "a clock that falls by less than half of it": [slower_at_the_end(1960.0)],
    "a clock that rises": [slower_at_the_end(2070.0)],
    "a clock of which one sample is low": [slower_at_the_end(1890.0, samples=5)],
    "a clock that falls while the steps stay": [slower_at_the_end(1890.0, slow_s=0.1)],
    "steps that follow a reason": [following_a_reason()],
    # Reasons of NVML.
    "idle": [held(0x1, 1.0)],
    "applications' clocks": [held(0x2, 1.0)],
    "power cap": [held(0x4, 0.5)],
    "hardware slowdown": [held(0x8, 0.5)],
    "software thermal": [held(0x20, 0.5)],
    "single samples of it": [held(0x20, 0.04)],
    "hardware thermal": [held(0x40, 0.5)],
    "power brake": [held(0x80, 0.5)],
    "a T4 at its limit": [held(POWER_CAP, 1.0, "Tesla T4")],
    "an L4 at its limit": [held(POWER_CAP, 1.0, "NVIDIA L4")],
    # Shares of time, on both sides.
    "waits": [run(steps=STEP, data_wait_fraction=0.021)],
    "hardly any waits": [run(steps=STEP, data_wait_fraction=0.019)],
    "time outside of the steps": [run(steps=STEP, explained_fraction=0.58)],
    "nearly all explained": [run(steps=STEP, explained_fraction=0.985)],
    "one of four CPUs": [run(steps=STEP, **ON_CPU, cpus_used=1.0, data_wait_fraction=0.0)],
    "three of four CPUs": [run(steps=STEP, **ON_CPU, cpus_used=3.0)],
    "one busy thread that waits for no CPU": [run(record={"timing": {"cpus_waited": 0.0}}, **ON_CPU, cpus_used=1.0)],
    "one busy thread that waits": [run(record=WAITING, **ON_CPU, cpus_used=1.0)],
    "steal": [run(steps=STEP, telemetry={"cpu_steal_percent": [3.0] * 4})],
    "hardly any steal": [run(steps=STEP, telemetry={"cpu_steal_percent": [2.0] * 4})],
    "3 s of 2 threads in 5 s": [throttled(4.0)],
    "0.2 s of 2 threads in 5 s": [throttled(1.2)],
    # Memory.
    "a batch that spills": [run("small", images_per_s=300.0), run("big", batch_size=64, images_per_s=30.0)],
    "allocator retries": [run(record={"memory": {"allocator_retries": 3}})],
    "no allocator retries": [run(record={"memory": {"allocator_retries": 0}})],
    "page faults": [
        run(
            record={"spec": {"model": "resnet18", "batch_size": 32, "device": "cpu"}, "timing": FAULTS},
            device_type="cpu",
            threads=2.0,
            cpus_used=2.0,
        )
    ],
}


def test_causes_on_both_sides_of_their_thresholds(golden: Golden, tmp_path: Path) -> None:
    lines: list[str] = []
    for number, (name, runs) in enumerate(CASES.items()):
        (folder := tmp_path / str(number)).mkdir()
        lines.append(f"## {name}")
        for row in found(*runs, folder=folder).to_dict("records"):
            fault = "a fault" if row["is_fault"] else "no fault"
            share = f"{row['share_explained']:.3g} of {row['share_of']}" if pd.notna(row["share_explained"]) else "some"
            lines.append(f"{row['run_id']}: {row['cause']}, {share}, {fault}")
            lines += [f"    {row['evidence']}", f"    {row['cure']}"]
    golden("causes.txt", "\n".join([*lines, ""]))
