import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from scipy.stats import mstats

from analysis.statistics.samples import Floats, Method, over_runs
from workload.stats.intervals import order_statistics_from


@pytest.mark.parametrize(
    ("figures", "scale", "back"),
    [([1.00, 1.02, 0.99], np.log, np.exp), ([0.0, 0.1, 0.2], np.asarray, float)],
    ids=["positive: on logarithms", "with zero"],
)
def test_three_runs_by_scipys_t(
    figures: list[float], scale: Callable[[object], Floats], back: Callable[[float], float]
) -> None:
    found = over_runs(figures)
    expected = stats.ttest_1samp(scale(figures), 0).confidence_interval()
    assert found.value == np.median(figures)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((back(expected.low), back(expected.high)))
    assert (found.interval.method, found.interval.level, found.n) == (Method.STUDENT_T, 0.95, 3)
    assert found.reason == "3 runs: the interval assumes that runs are normally distributed"


def test_the_interval_of_times_is_that_of_rates() -> None:
    times = np.array([0.2, 0.21, 0.19, 0.205])
    first, second = over_runs(times).interval, over_runs(64 / times).interval
    assert first is not None
    assert second is not None
    assert second.high == pytest.approx(64 / first.low)


@pytest.mark.parametrize(("level", "runs"), [(0.5, 2), (0.9, 5), (0.95, 6), (0.99, 8)])
def test_fewest_runs_for_order_statistics(level: float, runs: int) -> None:
    assert order_statistics_from(level) == runs
    assert 1 - 2 * 0.5**runs >= level > 1 - 2 * 0.5 ** (runs - 1) or runs == 2


COPIES = "runs have exactly the same figure: no interval (perhaps they are copies of one run)"


@pytest.mark.parametrize(
    ("figures", "value", "n", "reason"),
    [
        ([], None, 0, "no run: no figure"),
        ([math.nan], None, 0, "no run: no figure"),
        ([3.0], 3.0, 1, "one run: no interval"),
        ([3.0, math.nan], 3.0, 1, "one run: no interval"),
        ([3.0, 3.1], 3.05, 2, "two runs: too few for an interval"),
        ([3.0] * 3, 3.0, 3, f"all 3 {COPIES}"),
        ([3.0] * 10, 3.0, 10, f"all 10 {COPIES}"),
    ],
)
def test_no_interval_over_runs(figures: list[float], value: float | None, n: int, reason: str) -> None:
    found = over_runs(figures)
    assert (found.value, found.interval, found.n, found.reason) == (value, None, n, reason)


@pytest.mark.parametrize(
    ("runs", "level"), [(6, 0.95), (7, 0.95), (8, 0.99), (8, 0.5), (9, 0.95), (25, 0.9), (101, 0.95), (1500, 0.95)]
)
def test_order_statistics_by_scipy(runs: int, level: float) -> None:
    times = np.random.default_rng(runs).normal(1.0, 0.02, runs)
    found = over_runs(times, level=level)
    assert found.interval is not None
    ends = (found.interval.low, found.interval.high)
    assert ends == pytest.approx(mstats.median_cihs(times, alpha=1 - level), rel=1e-12)
    assert (found.value, found.reason) == (np.median(times), None)
    assert found.interval.method == Method.ORDER_STATISTICS
