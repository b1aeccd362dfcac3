import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.autocorrelation import effective_pairs, share_explained
from analysis.statistics.components import variance_split

# Steps that alternate are not positively correlated: each counts.
ALTERNATING = np.tile([0.01, -0.01], 10)
LEVELS = [0.0, 0.1, 0.02, -0.04]


def test_balanced_runs_as_textbooks_have_it() -> None:
    runs = [np.exp(level + ALTERNATING) for level in LEVELS]
    found = variance_split(runs)
    within = 1e-4 * 20 / 19
    means = np.array(LEVELS)
    assert (found.runs, found.steps, found.effective, found.reason) == (4, 80, 80.0, None)
    assert found.within.value == pytest.approx(math.sqrt(within))
    assert found.between.value == pytest.approx(math.sqrt(means.var(ddof=1) - within / 20))
    ratio = stats.f_oneway(*(np.log(run) for run in runs)).statistic
    assert found.within.interval is not None
    assert found.within.interval.low == pytest.approx(math.sqrt(76 * within / stats.chi2.ppf(0.975, 76)))
    assert found.between.interval is not None
    high = 3 * means.var(ddof=1) * (1 - stats.f.ppf(0.025, 3, 76) / ratio) / stats.chi2.ppf(0.025, 3)
    assert found.between.interval.high == pytest.approx(math.sqrt(high))


def test_unequal_runs_weigh_by_the_harmonic_mean() -> None:
    lengths = [8, 10, 20, 40]
    runs = [np.exp(level + np.tile([0.01, -0.01], n // 2)) for level, n in zip(LEVELS, lengths, strict=True)]
    found = variance_split(runs)
    within = 1e-4 * 78 / 74
    assert found.within.value == pytest.approx(math.sqrt(within))
    noise = within * np.mean([1 / n for n in lengths])
    assert found.between.value == pytest.approx(math.sqrt(np.var(LEVELS, ddof=1) - noise))


def test_runs_that_do_not_differ() -> None:
    found = variance_split([np.exp(ALTERNATING)] * 3)
    assert found.between.value == 0.0
    assert found.between.reason == "runs differ no more than the steps within them explain"
    assert found.between.interval is not None
    assert found.between.interval.low == 0.0


@pytest.mark.parametrize(
    ("runs", "used", "reason"),
    [
        ([], 0, "0 runs: no variance between runs"),
        ([np.exp(ALTERNATING)], 1, "1 run: no variance between runs"),
        (
            [np.exp(ALTERNATING), [1.0] * 20],
            1,
            "1 run: no variance between runs; 1 run with fewer than 8 steps or constant step times left out",
        ),
        (
            [np.exp(ALTERNATING), 1.1 * np.exp(ALTERNATING), [1.0, 2.0]],
            2,
            "1 run with fewer than 8 steps or constant step times left out",
        ),
    ],
)
def test_written_answers(runs: Any, used: int, reason: str) -> None:
    found = variance_split(runs)
    assert (found.runs, found.reason) == (used, reason)
    assert (found.within.value is None) is (used == 0)
    # Two runs tell no spread between runs.
    assert (found.between.value, found.between.interval) == (None, None)
    assert found.between.reason == (reason if used < 2 else "two runs: too few for a spread")


def test_share_explained_is_scipys_spearman_squared() -> None:
    rng = np.random.default_rng(0)
    clock = rng.normal(1500, 10, size=100)
    steps = 100 / clock + 0.0003 * rng.normal(size=100)
    found = share_explained(steps, clock)
    rho = stats.spearmanr(steps, clock).statistic
    assert found.value == pytest.approx(rho**2)
    assert found.value == share_explained(steps, 1 / clock).value
    assert found.interval is not None
    assert 0 < found.interval.low < (found.value or 0) < found.interval.high < 1
    pairs = effective_pairs(stats.rankdata(steps), stats.rankdata(clock))
    assert 60 < pairs < 100
    # Fisher's z with Bonett & Wright's standard error.
    middle, reach = math.atanh(abs(rho)), 1.959964 * math.sqrt((1 + rho**2 / 2) / (pairs - 3))
    assert found.interval.low == pytest.approx(math.tanh(middle - reach) ** 2)


def test_two_unrelated_waves() -> None:
    t = np.arange(200)
    found = share_explained(np.sin(t / 30), np.sin(t / 31 + 0.5))
    assert (found.value or 0) > 0.5
    assert found.interval is None
    assert found.reason == f"200 pairs are worth {effective_pairs(*_ranked(t)):.1f} independent ones: no interval"


def _ranked(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return stats.rankdata(np.sin(t / 30)), stats.rankdata(np.sin(t / 31 + 0.5))


@pytest.mark.parametrize(
    ("values", "covariate", "reason"),
    [
        ([], [], "0 pairs: at least 8 are needed"),
        ([1.0] * 7 + [math.nan], [2.0] * 8, "7 pairs: at least 8 are needed"),
        ([1.0] * 9, range(9), "the values do not vary: nothing to explain"),
        (range(9), [1.0] * 9, "the covariate does not vary: it explains nothing"),
    ],
)
def test_nothing_explained(values: Any, covariate: Any, reason: str) -> None:
    found = share_explained(list(values), list(covariate))
    assert (found.value, found.interval, found.reason) == (None, None, reason)


def test_series_of_two_lengths() -> None:
    with pytest.raises(ValueError, match=r"two series of equal length are needed; got shapes \(2,\) and \(3,\)"):
        share_explained([1.0, 2.0], [1.0, 2.0, 3.0])
