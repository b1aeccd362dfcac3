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

STEP = [0.1] * 60
POWER_CAP, THERMAL = 0x4, 0x20


def found(*runs: dict[str, Any], folder: Path | None = None) -> pd.DataFrame:
    return causes(results(*runs, folder=folder))


def names(*runs: dict[str, Any], folder: Path | None = None) -> list[str]:
    return list(found(*runs, folder=folder)["cause"])


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


def test_steps_that_follow_the_clock() -> None:
    (row,) = found(following(clocks())).to_dict("records")

    assert row["cause"] == "GPU clock"
    assert row["share_explained"] == pytest.approx(1.0)
    assert row["share_of"] == "variation of steps"
    assert row["evidence"] == "1514 to 1990 MHz in 60 samples"


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


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(slower_at_the_end(1980.0), id="the clock stays"),
        pytest.param(slower_at_the_end(1960.0), id="the clock falls by less than half of it"),
        pytest.param(slower_at_the_end(2070.0), id="the clock rises"),
        pytest.param(slower_at_the_end(1890.0, samples=5), id="one sample"),
        pytest.param(slower_at_the_end(1890.0, slow_s=0.1), id="the steps stay"),
    ],
)
def test_a_clock_that_does_not(case: dict[str, Any]) -> None:
    assert names(case) == []


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


def test_steps_that_do_not_follow_the_clock() -> None:
    case = following(clocks())
    unrelated = run(steps=noisy(), telemetry=case["telemetry"])

    assert names(unrelated) == []


def test_too_few_samples_explain_nothing() -> None:
    case = following(clocks())
    few = {name: values[:7] for name, values in case["telemetry"].items()}

    assert names(run(steps=case["steps"], telemetry=few)) == []


def test_telemetry_outside_the_measured_region_does_not_count() -> None:
    telemetry = {"t_s": [1.0, 2.0, 6.0, 8.0, 90.0], "clock_event_reasons": [THERMAL, THERMAL, 0, 0, THERMAL]}

    assert names(run(steps=STEP, telemetry=telemetry)) == []


# --- what holds the clock


def held(mask: int, share: float, device: str = "NVIDIA GeForce RTX 4090") -> dict[str, Any]:
    masks = [mask] * round(100 * share) + [0] * round(100 * (1 - share))
    return run(device_name=device, steps=STEP, telemetry={"clock_event_reasons": masks})


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0x4, "power cap"),
        (0x8, "hardware slowdown"),
        (0x20, "thermal limit"),
        (0x40, "thermal limit"),
        (0x80, "power brake"),
    ],
)
def test_reasons_of_nvml(mask: int, expected: str) -> None:
    (row,) = found(held(mask, 0.5)).to_dict("records")

    assert (row["cause"], row["evidence"], row["is_fault"]) == (expected, "in 50 % of 100 samples", True)


@pytest.mark.parametrize(("mask", "share"), [(0x1, 1.0), (0x2, 1.0), (THERMAL, 0.04)])
def test_other_reasons_and_single_samples_are_no_cause(mask: int, share: float) -> None:
    assert names(held(mask, share)) == []


@pytest.mark.parametrize(("device", "watts"), [("Tesla T4", 70), ("NVIDIA L4", 72)])
def test_a_board_that_always_meets_its_limit_is_not_at_fault(device: str, watts: int) -> None:
    (row,) = found(held(POWER_CAP, 1.0, device)).to_dict("records")

    assert row["cause"] == "power cap"
    assert not row["is_fault"]
    assert row["evidence"] == (
        f"in 100 % of 100 samples; this is normal, because this board reaches its {watts} W under any steady load"
    )
    assert row["cure"] == "none needed"


def test_steps_that_follow_a_reason() -> None:
    slow = np.repeat([0, 1, 0, 1, 1, 0], 10)
    steps = 0.1 * (1 + slow) * (1 + 0.001 * np.random.default_rng(3).standard_normal(60))
    ends = 5.0 + np.cumsum(steps)
    telemetry = {"t_s": list(ends - steps / 2), "clock_event_reasons": list(slow * THERMAL)}

    (row,) = found(run(steps=list(steps), telemetry=telemetry)).to_dict("records")

    assert row["cause"] == "thermal limit"
    assert row["share_explained"] == pytest.approx(0.75, abs=0.02)


# --- shares of time


@pytest.mark.parametrize(
    ("facts", "cause", "share"),
    [
        pytest.param({"data_wait_fraction": 0.021}, "data waits", 0.021, id="waits"),
        pytest.param({"data_wait_fraction": 0.019}, None, None, id="hardly any waits"),
        pytest.param({"explained_fraction": 0.58}, "time outside the steps", 0.42, id="outside"),
        pytest.param({"explained_fraction": 0.985}, None, None, id="nearly all explained"),
        pytest.param(
            {"device_type": "cpu", "threads": 4.0, "cpus_used": 1.0, "data_wait_fraction": 0.0},
            "CPU competition",
            0.75,
            id="competition",
        ),
        pytest.param({"device_type": "cpu", "threads": 4.0, "cpus_used": 3.0}, None, None, id="CPUs for itself"),
        pytest.param({"telemetry": {"cpu_steal_percent": [3.0] * 4}}, "steal", 0.03, id="steal"),
        pytest.param({"telemetry": {"cpu_steal_percent": [2.0] * 4}}, None, None, id="hardly any steal"),
        pytest.param(
            {"threads": 2.0, "telemetry": {"t_s": [5.0, 10.0], "cgroup_throttled_s": [1.0, 4.0]}},
            "CPU quota",
            0.3,
            id="3 s of 2 threads in 5 s",
        ),
        pytest.param(
            {"threads": 2.0, "telemetry": {"t_s": [5.0, 10.0], "cgroup_throttled_s": [1.0, 1.2]}},
            None,
            None,
            id="0.2 s of 2 threads in 5 s",
        ),
    ],
)
def test_shares_of_time(facts: dict[str, Any], cause: str | None, share: float | None) -> None:
    table = found(run(steps=STEP, **facts))

    assert list(table["cause"]) == ([cause] if cause else [])
    assert list(table["share_explained"]) == ([pytest.approx(share)] if cause else [])


# --- memory


def test_a_spill_is_told_with_the_batch_that_fits() -> None:
    runs = [run("small", images_per_s=300.0), run("big", batch_size=64, images_per_s=30.0)]

    (row,) = found(*runs).to_dict("records")

    assert (row["run_id"], row["cause"]) == ("big", "memory spill")
    assert row["share_explained"] == pytest.approx(0.9)
    assert row["evidence"] == "30 images/s at batch size 64, 300 at 32"
    assert row["cure"] == "--batch-size 32; --grad-accumulation for the same step"


@pytest.mark.parametrize(("retries", "expected"), [(0, []), (None, []), (3, ["allocator retries"])])
def test_allocator_retries(tmp_path: Path, retries: int | None, expected: list[str]) -> None:
    case = run(record={"memory": {"allocator_retries": retries}})

    assert names(case, folder=tmp_path) == expected


def test_page_faults_are_a_cause(tmp_path: Path) -> None:
    timing = {"cpus_used": 2.0, "cpus_in_kernel": 0.4, "page_faults_per_s": 1e5, "measured_s": 6.0, "step_s": {"n": 60}}
    spec = {"model": "resnet18", "batch_size": 32, "device": "cpu"}
    case = run(record={"spec": spec, "timing": timing}, device_type="cpu", threads=2.0, cpus_used=2.0)

    (row,) = found(case, folder=tmp_path).to_dict("records")
    assert (row["cause"], row["share_explained"], row["is_fault"]) == ("page faults", 0.19, False)
    assert row["evidence"].startswith("10,000 page faults in a step, because")


@pytest.mark.parametrize(("waited", "expected"), [(0.0, []), (0.5, ["CPU competition"]), (None, ["CPU competition"])])
def test_one_busy_thread_that_waits_for_no_cpu_has_no_competition(
    tmp_path: Path, waited: float | None, expected: list[str]
) -> None:
    facts = {"device_type": "cpu", "threads": 4.0, "cpus_used": 1.0}
    case = run(record={"timing": {"cpus_waited": waited}}, **facts)

    assert names(case, folder=tmp_path) == expected
