import math

import numpy as np
import pytest
from scipy import stats

from analysis.statistics import Method, hierarchical_bootstrap, over_runs, within_run
from analysis.statistics.bootstrap import hierarchical_medians
from analysis.statistics.intervals import order_statistics_from


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
    assert found.reason == "3 runs: the interval supposes that runs differ as a normal sample does"


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


@pytest.mark.parametrize(
    ("figures", "value", "n", "dropped", "reason"),
    [
        ([], None, 0, 0, "no run: no figure"),
        ([math.nan], None, 0, 1, "no run: no figure"),
        ([3.0], 3.0, 1, 0, "one run: no interval"),
        ([3.0, math.nan], 3.0, 1, 1, "one run: no interval"),
        ([3.0, 3.1], 3.05, 2, 0, "two runs: too few for an interval"),
        ([3.0] * 3, 3.0, 3, 0, "all 3 runs read exactly the same: no interval (copies of one run?)"),
        ([3.0] * 10, 3.0, 10, 0, "all 10 runs read exactly the same: no interval (copies of one run?)"),
    ],
)
def test_no_interval_over_runs(figures: list[float], value: float | None, n: int, dropped: int, reason: str) -> None:
    found = over_runs(figures)
    assert (found.value, found.interval, found.n, found.dropped, found.reason) == (value, None, n, dropped, reason)
    if n == 2:
        return
    resampled = hierarchical_bootstrap([[figure] * 3 for figure in figures])
    assert (resampled.value, resampled.interval, resampled.reason) == (value, None, reason)


def test_three_runs_get_a_wide_interval() -> None:
    found = over_runs([1.00, 1.01, 1.01**2]).interval
    assert found is not None
    # t(2) = 4.30265; standard error = ln(1.01) / sqrt(3).
    assert math.log(found.high / found.low) == pytest.approx(2 * 4.30265 * math.log(1.01) / math.sqrt(3), rel=1e-4)


def runs_of(levels: list[float], noise: float, seed: int = 0, steps: int = 100) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [level * np.exp(noise * rng.normal(size=steps - index)) for index, level in enumerate(levels)]


def test_hierarchical_bootstrap() -> None:
    levels = [1.0, 1.01, 0.99, 1.02, 0.98, 1.005, 1.0, 0.995]
    found, again = (hierarchical_bootstrap(runs_of(levels, 0.001)) for _ in range(2))
    assert found == again
    assert found.interval is not None
    assert found.interval.method is Method.HIERARCHICAL_BOOTSTRAP
    assert 0.98 < found.interval.low < (found.value or 0) < found.interval.high < 1.02
    other = hierarchical_bootstrap(runs_of(levels, 0.001), seed=1)
    assert other != found
    assert other.interval is not None
    assert other.interval.low == pytest.approx(found.interval.low, abs=0.004)


def test_below_six_runs_the_bootstrap_gives_way() -> None:
    runs = runs_of([1.0, 1.01, 0.99, 1.02, 0.98], 0.001)
    found = hierarchical_bootstrap(runs)
    assert found.interval == over_runs([float(np.median(run)) for run in runs]).interval
    assert found.reason == "5 runs: the interval supposes that runs differ as a normal sample does"


def test_empty_runs_and_odd_steps_are_dropped() -> None:
    found = hierarchical_bootstrap([[1.0, math.nan], [math.nan], [], [2.0, 2.0, math.inf]])
    assert (found.n, found.dropped, found.value) == (2, 3, 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.001, 0.1])
def test_noise_within_runs_is_not_counted_twice(noise: float) -> None:
    """The resampled spread is that of the run medians over sqrt(n), whether it came from runs or from steps."""
    rng, ratios = np.random.default_rng(2), []
    for seed in range(20):
        runs = runs_of(list(np.exp(0.01 * rng.normal(size=20))), noise, seed=seed)
        medians = np.array([np.median(run) for run in runs])
        expected = medians.std(ddof=1) * math.sqrt(math.pi / 2 / 20)
        ratios.append(
            [
                hierarchical_medians(runs, rng=rng, resamples=400, shrink=shrink).std() / expected
                for shrink in (True, False)
            ]
        )
    shrunk, naive = np.mean(ratios, axis=0)
    assert shrunk == pytest.approx(1.05, abs=0.12)
    assert bool(naive > 1.18 * shrunk) is (noise == 0.1)


def test_within_run() -> None:
    steps = 1 + 0.01 * np.random.default_rng(4).normal(size=400)
    found = within_run(steps)
    assert found.interval is not None
    # 2 x 1.97 x 0.01 x sqrt(pi / 2 / 400)
    assert found.interval.high - found.interval.low == pytest.approx(0.00247, rel=0.3)
    assert found.interval.method is Method.EFFECTIVE_STEPS
    assert (found.reason or "").startswith("within this run alone: 400 steps are worth ")


@pytest.mark.parametrize(
    ("steps", "value", "reason"),
    [
        ([], None, "0 steps: at least 8 are needed: no interval"),
        ([1.0], 1.0, "1 step: at least 8 are needed: no interval"),
        ([1.0] * 20, 1.0, "all 20 steps read the same: nothing varies: no interval"),
        (
            [1.0, 2.0] * 9 + [math.nan],
            1.5,
            "1 of 19 steps are not finite numbers: the order of steps is lost: no interval",
        ),
        ([1.0, 2.0, 1.5] * 33, 1.5, "99 steps: at least 100 tell how they correlate: no interval"),
        (list(range(100)), 49.5, "100 steps are worth 1.0 independent ones: no interval"),
    ],
)
def test_no_interval_within_a_run(steps: list[float], value: float | None, reason: str) -> None:
    found = within_run(steps)
    assert (found.value, found.interval, found.reason) == (value, None, reason)
