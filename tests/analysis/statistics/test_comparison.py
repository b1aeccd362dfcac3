import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.statistics import comparison as comparison_module
from analysis.statistics.comparison import Difference, compare, hedges_g, holm, holm_levels, pooled_stdev

FAST = [1.00, 1.02, 0.99]
SLOW = [1.10, 1.12, 1.08, 1.13]


@pytest.mark.parametrize(("shared_degrees", "equal_var"), [(0.0, False), (1e12, True)])
def test_between_scipys_welch_and_scipys_student(
    monkeypatch: pytest.MonkeyPatch, shared_degrees: float, equal_var: bool
) -> None:
    monkeypatch.setattr(comparison_module, "SHARED_DEGREES", shared_degrees)
    found = compare(FAST, SLOW)
    expected = stats.ttest_ind(np.log(SLOW), np.log(FAST), equal_var=equal_var)
    ends = expected.confidence_interval()
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (
        pytest.approx(math.exp(ends.low)),
        pytest.approx(math.exp(ends.high)),
    )
    assert found.p_value == pytest.approx(expected.pvalue)


def test_variances_partly_shared_by_hand() -> None:
    """Logarithms -1, 1 against 4, 10: variances 2 and 18, pooled 10; each uses half its own, half the pooled one."""
    found = compare(np.exp([-1.0, 1.0]), np.exp([4.0, 10.0])).difference
    assert found is not None
    assert found.value == pytest.approx(7)
    assert found.error == pytest.approx(math.sqrt((6 + 14) / 2))
    # Each side's variance has the weight 1/4 of its own and 1/2 x (1/4 + 1/4) of what is shared.
    assert found.degrees == pytest.approx(10**2 / ((0.5 * 6) ** 2 + (0.5 * 14) ** 2))
    assert found.p_value == pytest.approx(2 * stats.t.sf(7 / math.sqrt(10), found.degrees))


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (3, 10), (2, 7)])
def test_interval_test_and_what_would_be_seen_tell_one_story(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(sizes))
    for _ in range(300):
        shift, level = rng.choice([0.0, 0.01, 0.05, 0.5]), rng.choice([0.9, 0.95, 0.999])
        base, other = (np.exp(0.01 * rng.normal(size=size)) for size in sizes)
        found = compare(base, other * np.exp(shift), level=level)
        assert found.interval is not None
        assert found.ratio is not None
        assert found.interval.holds(found.ratio)
        assert ((found.p_value or 0) < 1 - level) is not found.interval.holds(1.0)
        assert found.difference is not None
        if abs(math.log(found.ratio)) > found.difference.detectable(1 - level):
            assert not found.interval.holds(1.0)


COPIES = "the runs of one side have exactly the same figure: no interval (perhaps they are copies of one run)"
TOO_FEW = "no interval with fewer than 2 on either side"


@pytest.mark.parametrize(
    ("baseline", "other", "ratio", "reason"),
    [
        ([], [], None, f"0 against 0 runs: {TOO_FEW}"),
        ([[1.0]], [], None, f"1 against 0 runs: {TOO_FEW}"),
        ([1.0], [2.0], 2.0, f"1 against 1 run: {TOO_FEW}"),
        ([1.0, 1.0], [2.0, 2.0], 2.0, COPIES),
        # Identical samples are never significant.
        ([1.0] * 3, [1.0] * 3, 1.0, COPIES),
        ([1.0] * 8, [1.0] * 8, 1.0, COPIES),
    ],
)
def test_written_answers(baseline: Any, other: Any, ratio: float | None, reason: str) -> None:
    found = compare(baseline, other)
    assert found.ratio == (None if ratio is None else pytest.approx(ratio))
    assert (found.interval, found.p_value, found.difference, found.hedges_g) == (None, None, None, None)
    assert found.reasons == (reason,)


def test_figures_that_are_no_times_are_dropped() -> None:
    found = compare([[1.0, math.nan, 1.0], [1.1, 0.0], [-1.0]], [[2.0], [2.1, math.inf]])
    assert (found.runs_baseline, found.runs_other) == (2, 2)


def test_effect_sizes_by_hand() -> None:
    first, second = np.array([1.0, 2.0, 3.0]), np.array([3.0, 4.0, 5.0])
    # Pooled standard deviation 1, difference 2; J(4) = gamma(2) / (sqrt(2) gamma(1.5)) = 0.797885.
    assert hedges_g(first, second) == pytest.approx(2 * 0.7978846)
    many = np.arange(200.0)
    assert hedges_g(many, many + 10) == pytest.approx((1 - 3 / (4 * 398 - 1)) * 10 / many.std(ddof=1), rel=1e-5)
    assert hedges_g(np.array([1.0]), np.array([2.0])) is None
    assert hedges_g(first, np.array([])) is None


def test_pooled_stdev_by_hand() -> None:
    # (2 + 2) / (2 + 1): sums of squares 2 of 3 values, 2 of 2, 0 of 1.
    assert pooled_stdev(np.array([1.0, 2.0, 3.0]), np.array([3.0, 5.0]), np.array([9.0])) == pytest.approx(
        math.sqrt(4 / 3)
    )
    assert pooled_stdev(np.array([1.0]), np.array([])) is None


def of_runs(runs: tuple[int, int], stdev: float = 1.0) -> Difference:
    """A difference between two sides whose runs scatter by `stdev`."""
    return Difference(value=0.0, error=stdev * math.sqrt(1 / runs[0] + 1 / runs[1]), degrees=sum(runs) - 2)


# statsmodels 0.15.0, TTestIndPower.
@pytest.mark.parametrize(
    ("runs", "difference"), [((3, 3), 3.0708922696), ((5, 10), 1.6603065246), ((30, 30), 0.7356198334)]
)
def test_smallest_detectable(runs: tuple[int, int], difference: float) -> None:
    for stdev in (1.0, 0.006):
        assert of_runs(runs, stdev).detectable(0.05) == pytest.approx(stdev * difference, rel=1e-5)


# statsmodels 0.15.0, multipletests.
P_VALUES = [0.01, 0.04, 0.03, 0.005, 0.5]


def test_corrections() -> None:
    assert holm(P_VALUES).tolist() == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.5])
    assert holm([0.4, 0.9]).tolist() == pytest.approx([0.8, 0.9])
    assert holm([0.9, 0.9]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("p_values", "tested_at"),
    [
        # Held against 0.05 / 5, / 4, / 3 in the order of size; 0.03 is not below 0.05 / 3, and ends it.
        (P_VALUES, [0.0125, 0.05 / 3, 0.05 / 3, 0.01, 0.05 / 3]),
        ([0.9, 0.8], [0.025, 0.025]),
        ([0.001, 0.002], [0.025, 0.05]),
        ([0.04], [0.05]),
        ([math.nan, 0.04], [math.nan, 0.05]),
        ([], []),
    ],
)
def test_the_level_at_which_holm_tested(p_values: list[float], tested_at: list[float]) -> None:
    levels = holm_levels(p_values, alpha=0.05)
    assert (1 - levels).tolist() == pytest.approx(tested_at, nan_ok=True)
    below = np.array(p_values) < 1 - levels
    assert below.tolist() == (holm(p_values) < 0.05).tolist()


def test_what_was_not_tested_is_not_counted() -> None:
    found = holm([0.01, math.nan, 0.04])
    assert found[[0, 2]].tolist() == holm([0.01, 0.04]).tolist()
    assert math.isnan(found[1])
    assert holm([]).tolist() == []
    assert np.isnan(holm([math.nan])).all()
    given = np.array([0.01, 0.04])
    holm(given)
    assert given.tolist() == [0.01, 0.04]
    with pytest.raises(ValueError, match="a p-value lies between 0 and 1"):
        holm([0.5, 1.1])
