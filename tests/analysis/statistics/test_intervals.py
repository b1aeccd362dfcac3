import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import mstats

from analysis.statistics.intervals import over_runs
from analysis.statistics.samples import Method, ranks
from workload.contract.runs_interval import order_statistics_from


def test_three_runs_by_scipys_t() -> None:
    found = over_runs([1.00, 1.02, 0.99])
    expected = stats.ttest_1samp(np.log([1.00, 1.02, 0.99]), 0).confidence_interval()
    assert found.value == 1.0
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (
        pytest.approx(math.exp(expected.low)),
        pytest.approx(math.exp(expected.high)),
    )
    assert (found.interval.method, found.interval.level, found.n) == (Method.STUDENT_T, 0.95, 3)
    assert found.reason == "3 runs: the interval assumes that runs are normally distributed"


def test_figures_that_can_be_zero_are_not_put_on_logarithms() -> None:
    found = over_runs([0.0, 0.1, 0.2])
    expected = stats.ttest_1samp([0.0, 0.1, 0.2], 0).confidence_interval()
    assert found.interval is not None
    assert found.interval.low == pytest.approx(expected.low)


def test_the_interval_of_times_is_that_of_rates() -> None:
    times = np.array([0.2, 0.21, 0.19, 0.205])
    first, second = over_runs(times).interval, over_runs(64 / times).interval
    assert first is not None
    assert second is not None
    assert second.high == pytest.approx(64 / first.low)


def test_the_interval_holds_the_median_it_stands_beside() -> None:
    found = over_runs([1.0, 1.0, 1.0, 1.0, 100.0], level=0.5)
    assert found.interval is not None
    assert found.interval.low == found.value == 1.0


def test_six_runs_by_order_statistics() -> None:
    # The range covers 1 - 2 / 64 = 0.96875, the inner pair 0.78125; Hettmansperger & Sheather's weight by hand:
    share = (0.96875 - 0.95) / (0.96875 - 0.78125)
    weight = 5 * share / (1 + 4 * share)
    found = over_runs([10.0, 11.0, 13.0, 14.0, 16.0, 20.0])
    assert found.value == 13.5
    assert found.interval is not None
    assert found.interval.low == pytest.approx(10 + weight)
    assert found.interval.high == pytest.approx(20 - 4 * weight)
    assert (found.interval.method, found.reason) == (Method.ORDER_STATISTICS, None)


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


def test_three_runs_get_a_wide_interval() -> None:
    found = over_runs([1.00, 1.01, 1.01**2]).interval
    assert found is not None
    # t(2) = 4.30265; standard error = ln(1.01) / sqrt(3).
    assert math.log(found.high / found.low) == pytest.approx(2 * 4.30265 * math.log(1.01) / math.sqrt(3), rel=1e-4)


@pytest.mark.parametrize(
    ("runs", "level"), [(6, 0.95), (7, 0.95), (8, 0.99), (8, 0.5), (9, 0.95), (25, 0.9), (101, 0.95), (1500, 0.95)]
)
def test_order_statistics_by_scipy(runs: int, level: float) -> None:
    times = np.random.default_rng(runs).normal(1.0, 0.02, runs)
    found = over_runs(times, level=level).interval
    low, high = mstats.median_cihs(times, alpha=1 - level)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(low, rel=1e-12), pytest.approx(high, rel=1e-12))
    assert found.method == Method.ORDER_STATISTICS


@pytest.mark.parametrize("values", [[], [2.0], [3.0, 1.0, 2.0], [1.0, 1.0, 1.0], [2.0, 1.0, 2.0, 3.0, 2.0, 1.0]])
def test_ranks_by_scipy(values: list[float]) -> None:
    assert ranks(np.array(values)).tolist() == stats.rankdata(values).tolist()
