import math

import numpy as np
import pytest
from scipy.signal import lfilter

from analysis.statistics.autocorrelation import acf, effective_n, integrated_time, unbiased_lag1
from analysis.statistics.samples import Floats


def wave(n: int, rho: float) -> Floats:
    """x[t] = rho x[t - 1] + sin(t^2): a series that other programs can be given too."""
    series = [0.0]
    for t in range(1, n):
        series.append(rho * series[-1] + math.sin(t * t))
    return np.array(series)


# Values of statsmodels 0.15.0 (acf) for the same series.
@pytest.mark.parametrize(
    ("n", "rho", "lags"),
    [
        (100, 0.0, [-0.10150065, 0.00769256, 0.04055962]),
        (100, 0.5, [0.41466786, 0.21659051, 0.11584552]),
        (200, 0.9, [0.89638326, 0.81131993, 0.71920376]),
        (300, -0.5, [-0.53514236, 0.31132148, -0.17040962]),
    ],
)
def test_as_other_programs_have_it(n: int, rho: float, lags: list[float]) -> None:
    assert acf(wave(n, rho))[:4].tolist() == pytest.approx([1.0, *lags], abs=1e-8)
    assert effective_n(wave(n, rho), robust=False).lag1 == pytest.approx(lags[0])


def test_hand_computed_correlogram() -> None:
    # Mean 0, sum of squares 8; lag 1: 1 -1 1 -1 ... = -7; lag 2: 6.
    found = acf(np.array([1.0, -1.0] * 4))
    assert found[:3].tolist() == pytest.approx([1.0, -7 / 8, 6 / 8])
    assert found.size == 8


@pytest.mark.parametrize(
    ("correlations", "tau"),
    [
        # 2 x (1.5 + 0.3) - 1; the pair -0.1 ends the sum, 9 does not count.
        ([1.0, 0.5, 0.2, 0.1, -0.2, 0.1, 9.0, 9.0], 2.6),
        # The third pair is larger than the second: taken as 0.3.
        ([1.0, 0.5, 0.2, 0.1, 0.4, 0.4, -1.0, 0.0], 3.2),
        # Alternating: worth more than n, not claimed.
        ([1.0, -0.8, 0.6, -0.5], 1.0),
        ([1.0, 1.0, 1.0, 1.0], 4.0),
    ],
)
def test_geyers_rule(correlations: list[float], tau: float) -> None:
    assert integrated_time(np.array(correlations)) == pytest.approx(tau)


def test_one_slow_step_hides_the_waves_from_the_plain_figure_only() -> None:
    series = 1 + 0.001 * lfilter([1.0], [1.0, -0.95], np.random.default_rng(1).normal(size=200))
    series[50] = 10.0
    assert (effective_n(series, robust=False).effective or 0) > 150
    assert (effective_n(series).effective or 200) < 40


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "0 steps: at least 8 are needed"),
        ([1.0], "1 step: at least 8 are needed"),
        ([1.0, 2.0] * 3, "6 steps: at least 8 are needed"),
        ([1.0] * 9, "all 9 steps have the same time: nothing varies"),
        ([1.0, math.nan] * 9, "9 of 18 steps are not finite numbers: the order of steps is lost"),
    ],
)
def test_written_answers(values: list[float], reason: str) -> None:
    found = effective_n(values)
    assert (found.effective, found.lag1, found.reason) == (None, None, reason)


@pytest.mark.parametrize(
    ("rho", "n", "runs", "expected"),
    [
        (0.16, 100, 1, 0.0),  # 1.645 / sqrt(100)
        (0.17, 100, 1, 18 / 96),
        (0.16, 100, 4, 17 / 96),
        (0.99, 100, 1, 0.98),
        (-0.5, 100, 1, 0.0),
    ],
)
def test_lag1_freed_of_its_bias(rho: float, n: int, runs: int, expected: float) -> None:
    assert unbiased_lag1(rho, n=n, runs=runs) == pytest.approx(expected)
