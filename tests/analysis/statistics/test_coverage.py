"""Small and seeded; benchmarks/coverage.py is the long version."""

import math
from collections.abc import Iterable

import numpy as np
import pytest
from scipy.signal import lfilter

from analysis.statistics.comparison import compare
from analysis.statistics.components import variance_split
from analysis.statistics.samples import Floats, Interval, over_runs


def waves(series: int, steps: int, rho: float, seed: int) -> Floats:
    shocks = np.random.default_rng(seed).normal(size=(series, steps + 100)) * math.sqrt(1 - rho**2)
    return np.asarray(lfilter([1.0], [1.0, -rho], shocks, axis=1)[:, 100:], dtype=np.float64)


def check(intervals: Iterable[Interval | None], truth: float) -> None:
    """93 to 97 %, within 3 binomial standard errors."""
    holds = [interval.holds(truth) for interval in intervals if interval is not None]
    error = 3 * math.sqrt(0.05 * 0.95 / len(holds))
    assert 0.93 - error <= np.mean(holds) <= 0.97 + error


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("runs", [3, 5, 10])
def test_median_over_runs(runs: int, rho: float) -> None:
    levels = 0.006 * np.random.default_rng(runs).normal(size=(1000 * runs, 1))
    medians = np.median(np.exp(levels + 0.01 * waves(1000 * runs, 60, rho, seed=runs)), axis=1)
    check((over_runs(group).interval for group in medians.reshape(1000, runs)), 1.0)


@pytest.mark.parametrize(("first", "second"), [(2, 2), (3, 3), (3, 10), (10, 10)])
def test_ratio(first: int, second: int) -> None:
    rng = np.random.default_rng(9)
    base, other = (np.exp(0.006 * rng.normal(size=(800, runs))) for runs in (first, second))
    check((compare(a, 1.05 * b).interval for a, b in zip(base, other, strict=True)), 1.05)


def test_taking_steps_for_runs_would_fail() -> None:
    """The check can fail: correlated steps of one run are no independent runs."""
    with pytest.raises(AssertionError):
        check((over_runs(x).interval for x in 1 + 0.01 * waves(200, 20, 0.9, seed=2)), 1.0)


def test_variance_split() -> None:
    levels = 0.006 * np.random.default_rng(5).normal(size=(200 * 5, 1))
    sets = np.exp(levels + 0.002 * waves(200 * 5, 60, 0.9, seed=5)).reshape(200, 5, 60)
    check((variance_split(list(runs)).between.interval for runs in sets), 0.006)
