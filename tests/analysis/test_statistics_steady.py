import math

import numpy as np
import pytest
from scipy import stats

from analysis.statistics import drift, period_scan, steady_state
from analysis.statistics.samples import Floats


def noisy(n: int, stdev: float = 0.001, seed: int = 0) -> Floats:
    return 1 + stdev * np.random.default_rng(seed).normal(size=n)


def test_drift_is_scipys_theil_sen() -> None:
    series = noisy(60) + 1e-4 * np.arange(60)
    expected = stats.theilslopes(series)
    found = drift(series)
    assert found.slope == pytest.approx(expected.slope)
    assert found.interval is not None
    # scipy supposes independent steps and a normal limit: ours is a little wider.
    assert found.interval.low <= expected.low_slope < 1e-4 < expected.high_slope <= found.interval.high
    assert found.interval.high - found.interval.low < 1.6 * (expected.high_slope - expected.low_slope)
    assert found.change == pytest.approx(found.slope * 59 / np.median(series))
    assert found.certain


def test_correlated_steps_widen_the_interval() -> None:
    independent = noisy(400)
    waves = np.convolve(noisy(419, seed=1), np.ones(20) / math.sqrt(20), mode="valid")
    first, second = drift(independent).interval, drift(waves).interval
    assert first is not None
    assert second is not None
    assert second.high - second.low > 3 * (first.high - first.low)


def test_outliers_move_no_slope() -> None:
    series = noisy(100) + 1e-4 * np.arange(100)
    series[90:] = 5.0
    assert drift(series).slope == pytest.approx(1e-4, rel=0.4)


def test_long_series_are_thinned() -> None:
    series = noisy(5003) + 1e-6 * np.arange(5003)
    found = drift(series)
    assert found.n == 5003
    assert found.slope == pytest.approx(1e-6, rel=0.1)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0], "1 step: at least 8 are needed"),
        ([1.0] * 8, "all 8 steps read the same: nothing varies"),
        ([*range(9), math.nan], "1 of 10 steps are not finite numbers: the order of steps is lost"),
    ],
)
def test_no_drift(values: list[float], reason: str) -> None:
    found = drift(values)
    assert (found.slope, found.interval, found.reason, found.certain) == (None, None, reason, False)


def test_a_slope_without_an_interval() -> None:
    found = drift(np.cumsum(noisy(40, stdev=1.0) - 1))
    assert found.slope is not None
    assert found.interval is None
    assert (found.reason or "").endswith("independent ones: no interval for a slope")


def test_a_perfect_line_has_an_interval() -> None:
    found = drift(np.arange(1.0, 21.0))
    assert found.slope == 1.0
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (1.0, 1.0)


def first_slow() -> Floats:
    series = noisy(100)
    series[0] = 9.0
    return series


def warming_up() -> Floats:
    return noisy(100) + 0.1 * np.exp(-np.arange(100) / 5)


def epoch_boundary() -> Floats:
    series = noisy(200)
    series[100] = 10.0
    return series


def throttled() -> Floats:
    return noisy(100) + np.where(np.arange(100) > 80, 0.2, 0.0)


def settling_late() -> Floats:
    return noisy(100) + np.where(np.arange(100) < 70, 0.2, 0.0)


def heating() -> Floats:
    return noisy(100) + 4e-4 * np.arange(100)


def barely_heating() -> Floats:
    return noisy(100, stdev=1e-4) + 0.8e-4 * np.arange(100)


@pytest.mark.parametrize(
    ("series", "steady", "warmup", "reason"),
    [
        (noisy(100), True, 0, "steady from the first of 100 steps"),
        (first_slow(), True, 1, "steady after 1 of 100 steps, whose median is 9.00 x that of the rest"),
        # 0.1 exp(-t / 5) falls to the 1 % tolerance at t = 11.5.
        (warming_up(), True, 12, "steady after 12 of 100 steps, whose median is 1.03 x that of the rest"),
        (epoch_boundary(), True, 0, "steady from the first of 200 steps"),
        # A late change is no warm-up, and too short for a trend: outliers and the period's figures show it.
        (throttled(), True, 0, "steady from the first of 100 steps"),
        (settling_late(), False, None, "no steady state"),
        (heating(), False, None, "no steady state"),
        (barely_heating(), True, 0, "steady from the first of 100 steps"),
        (noisy(100, stdev=0.2), True, 0, "steady from the first of 100 steps"),
    ],
)
def test_steady_state(series: Floats, steady: bool, warmup: int | None, reason: str) -> None:
    found = steady_state(series)
    assert found.steady is steady
    assert reason in found.reason
    if warmup is not None:
        assert found.warmup_steps == pytest.approx(warmup, abs=1 if warmup > 1 else 0)
    assert (found.level_value is None) is (not steady)


def test_how_it_is_not_steady() -> None:
    assert steady_state(settling_late()).reason == "still changing after 70 of 100 steps: no steady state"
    # Its first steps lie more than 4 robust standard deviations of the second half (0.37 % each) below its median.
    found = steady_state(noisy(100, stdev=1e-4) + 2e-4 * np.arange(100))
    assert found.reason == "drifts by +1.9% over 95 steps: no steady state"


@pytest.mark.parametrize(
    ("values", "steady", "reason"),
    [
        ([1.0, 1.1] * 9 + [1.0], None, "19 steps: at least 20 are needed"),
        ([], None, "0 steps: at least 20 are needed"),
        ([1.0] * 20, True, "all steps read the same"),
        ([1.0] * 20 + [math.nan], None, "1 of 21 steps are not finite numbers: the order of steps is lost"),
    ],
)
def test_steady_state_not_judged(values: list[float], steady: bool | None, reason: str) -> None:
    found = steady_state(values)
    assert (found.steady, found.reason) == (steady, reason)


@pytest.mark.parametrize("n", [60, 100, 1000])
@pytest.mark.parametrize(
    ("period", "phase", "ratio"), [(10, 1, 0.42), (10, 0, 1.5), (2, 1, 1.1), (7, 6, 0.9), (13, 5, 2)]
)
def test_every_kth_step(n: int, period: int, phase: int, ratio: float) -> None:
    series = noisy(n, stdev=0.01)
    series[phase::period] *= ratio
    found = period_scan(series)
    assert found.found
    assert (found.period, found.phase) == (period, phase)
    assert found.members == len(range(phase, n, period))
    assert found.ratio == pytest.approx(ratio, rel=0.02)
    assert found.consistency == 1.0
    assert (found.p_value or 1) < 0.001
    assert (
        found.reason == f"every {period}th step from step {phase} on takes {found.ratio:.2f} x the time of the others"
    )


def test_certainty_by_hand() -> None:
    series = noisy(40, stdev=0.01)
    series[2::10] += 1
    found = period_scan(series)
    # The 4 largest of 40 in one class, either way: 2 / C(40, 4); the periods 2 to 10 have 54 phases.
    assert found.p_value == pytest.approx(54 * 2 / math.comb(40, 4))
    assert found.autocorrelation == pytest.approx(0.75, abs=0.02)


def test_a_few_exceptions_do_not_hide_a_period() -> None:
    series = noisy(100)
    series[3::10] *= 1.5
    series[43] /= 1.5
    series[60] *= 3
    assert (period_scan(series).period, period_scan(series).found) == (10, True)
    series[[53, 63]] /= 1.5
    found = period_scan(series)
    assert (found.period, found.found, found.reason) == (10, False, "no period found")
    assert (found.consistency or 0) < 0.9


def test_waves_and_warm_ups_are_no_period() -> None:
    waves = 1 + 0.01 * np.sin(np.arange(200) / 40)
    for series in (waves, first_slow(), epoch_boundary(), heating(), warming_up()):
        assert not period_scan(series).found


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, 2.0] * 9 + [1.0], "19 steps: at least 20 are needed"),
        ([1.0] * 30, "all 30 steps read the same: nothing varies"),
        ([1.0, 2.0, math.nan] * 10, "10 of 30 steps are not finite numbers: the order of steps is lost"),
    ],
)
def test_no_period_scan(values: list[float], reason: str) -> None:
    found = period_scan(values)
    assert (found.found, found.period, found.reason) == (False, None, reason)


def test_a_period_without_a_ratio() -> None:
    series = np.zeros(60)
    series[4::6] = 1.0
    found = period_scan(series)
    assert (found.period, found.phase, found.ratio, found.reason) == (
        6,
        4,
        None,
        "every 6th step from step 4 on differs",
    )
