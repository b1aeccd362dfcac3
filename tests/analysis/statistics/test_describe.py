import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.describe import summarize
from analysis.statistics.stalls import outliers

HAND = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]


def test_hand_computed_summary() -> None:
    found = summarize(HAND)
    assert (found.n, found.median) == (8, 4.5)
    # Mean 5, squared deviations 9 1 1 1 0 0 4 16.
    assert found.cov == pytest.approx(math.sqrt(32 / 7) / 5)
    # Deviations from 4.5: 2.5 .5 .5 .5 .5 .5 2.5 4.5, whose median is 0.5.
    assert found.robust_cov == pytest.approx(1.4826022 * 0.5 / 4.5)
    # Type 7: position 0.05 x 7 = 0.35 between 2 and 4, 0.95 x 7 = 6.65 between 7 and 9.
    assert (found.p5, found.p95) == (pytest.approx(2.7), pytest.approx(8.3))
    assert found.reason is None


def test_robust_cov_is_scipys() -> None:
    values = np.random.default_rng(3).lognormal(size=101)
    expected = stats.median_abs_deviation(values, scale="normal") / np.median(values)
    assert summarize(values).robust_cov == pytest.approx(expected)


def test_one_epoch_boundary_moves_the_plain_cov_only() -> None:
    steps = 1 + 0.001 * np.sin(np.arange(200))
    slow = steps.copy()
    slow[100] = 5
    before, after = summarize(steps), summarize(slow)
    assert after.robust_cov == pytest.approx(before.robust_cov, rel=0.05)
    assert after.cov is not None
    assert before.cov is not None
    assert after.cov > 100 * before.cov


NOT_POSITIVE = "median or mean is not positive: no spread relative to it"


@pytest.mark.parametrize(
    ("values", "n", "median", "cov", "robust_cov", "reason"),
    [
        ([], 0, None, None, None, "no value that is a finite number"),
        ([math.nan, math.inf], 0, None, None, None, "no value that is a finite number"),
        ([3.0], 1, 3.0, None, None, "1 value: no spread"),
        ([3.0, math.nan], 1, 3.0, None, None, "1 value: no spread"),
        ([3.0, 3.0, None], 2, 3.0, 0.0, 0.0, None),
        ([0.0, 0.0, 1.0], 3, 0.0, pytest.approx(math.sqrt(3)), None, NOT_POSITIVE),
        ([-3.0, 1.0, 2.0], 3, 1.0, None, pytest.approx(1.4826022), NOT_POSITIVE),
    ],
)
def test_written_answers(
    values: list[float], n: int, median: float | None, cov: Any, robust_cov: Any, reason: str | None
) -> None:
    found = summarize(values)
    assert (found.n, found.median, found.reason) == (n, median, reason)
    assert (found.cov, found.robust_cov) == (cov, robust_cov)


def test_a_table_is_no_series() -> None:
    with pytest.raises(ValueError, match="one series of numbers is needed; got an array of 2 dimensions"):
        summarize([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("values", "positions"),
    [
        # Median 10, deviations 0 1 1 2 2: the scale is 1.4826, so 5 of them reach to 17.413.
        ([8.0, 9.0, 10.0, 11.0, 12.0, 17.0], []),
        ([8.0, 9.0, 10.0, 11.0, 12.0], []),
        ([8.0, 9.0, 10.0, 11.0, 12.0, 10.0, 17.5], [6]),
        ([8.0, 9.0, 10.0, 11.0, 12.0, 10.0, 2.5], [6]),
        # More than half equal: the mean deviation gives the scale.
        ([1.0] * 99 + [10.0], [99]),
        ([1.0] * 5, []),
        ([math.nan, *[1.0] * 99, 10.0], [100]),
        # Too few for a spread.
        ([], []),
        ([1.0, math.nan], []),
    ],
)
def test_outliers(values: list[float], positions: list[int]) -> None:
    mask = outliers(values)
    assert mask.shape == (len(values),)
    assert np.flatnonzero(mask).tolist() == positions
