import math
import tracemalloc
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.autocorrelation import MOST_EXACT_MEMBERS, _chance, period_scan
from analysis.statistics.samples import Floats, ranks
from analysis.statistics.steady import Change, drift, line, stalls, steady_state, two_speeds


def noisy(n: int, stdev: float = 0.001, seed: int = 0) -> Floats:
    return 1 + stdev * np.random.default_rng(seed).normal(size=n)


def test_drift_is_scipys_theil_sen() -> None:
    series = noisy(100) + 1e-4 * np.arange(100)
    assert drift(series) == pytest.approx(stats.theilslopes(series).slope * 99 / np.median(series))
    # A tenth of outliers, and a long series, which is thinned.
    assert drift(np.where(np.arange(100) >= 90, 5.0, series)) == pytest.approx(1e-4 * 99, rel=0.4)
    assert drift(noisy(5003) + 1e-6 * np.arange(5003)) == pytest.approx(1e-6 * 5002, rel=0.1)
    assert drift(np.arange(1.0, 101.0)) == pytest.approx(99 / 50.5)
    assert all(drift(values) is None for values in ([], [1.0], [1.0] * 8, [*range(9), math.nan]))


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


def slower_half() -> Floats:
    return noisy(100) + np.where(np.arange(100) >= 60, 0.05, 0.0)


def slow_for_a_while() -> Floats:
    return noisy(100) + np.where((np.arange(100) >= 40) & (np.arange(100) < 60), 0.05, 0.0)


def heating() -> Floats:
    return noisy(100) + 4e-4 * np.arange(100)


def barely_heating() -> Floats:
    return noisy(100, stdev=1e-4) + 0.8e-4 * np.arange(100)


@pytest.mark.parametrize(
    ("series", "steady", "warmup", "reason"),
    [
        (noisy(100), True, 0, "steady from the first of 100 steps"),
        (first_slow(), True, 1, "steady after 1 of 100 steps, whose median is 9.00 x that of the rest"),
        # 0.1 exp(-t / 5) falls to the 1 % tolerance at t = 11.5, and is certainly above the rest for longer.
        (warming_up(), True, 20, "steady after 20 of 100 steps, whose median is 1.01 x that of the rest"),
        (epoch_boundary(), True, 0, "steady from the first of 200 steps"),
        (throttled(), False, 0, "from step 82 of 100 on, steps take 1.2 x those before: no steady state"),
        (throttled()[::-1], True, 19, "steady after 19 of 100 steps, whose median is 1.20 x that of the rest"),
        (slower_half(), False, 0, "from step 61 of 100 on, steps take 1.05 x those before: no steady state"),
        (slow_for_a_while(), False, 0, "steps 41 to 60 of 100 take 1.05 x the others: no steady state"),
        (2 - slow_for_a_while(), False, 0, "steps 41 to 60 of 100 take 0.95 x the others: no steady state"),
        (settling_late(), False, 0, "from step 71 of 100 on, steps take 0.833 x those before: no steady state"),
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


def test_how_it_is_not_steady() -> None:
    found = steady_state(noisy(100, stdev=1e-4) + 2e-4 * np.arange(100))
    assert found.reason == "drifts by +2.0 % over 100 steps: no steady state"
    assert (found.change, found.drifts) == (None, True)
    late = steady_state(throttled())
    assert late.change == Change(n=100, start=81, stop=100, ratio=pytest.approx(1.2, rel=0.01))
    assert late.change.is_shift
    assert not late.drifts


@pytest.mark.parametrize(
    ("series", "slow"),
    [
        (throttled(), range(81, 100)),
        (throttled()[::-1], range(19)),
        (settling_late(), range(70)),
        (slow_for_a_while(), range(40, 60)),
        (2 - slow_for_a_while(), [*range(40), *range(60, 100)]),
        (heating(), range(50, 100)),
        (heating()[::-1], range(50)),
    ],
)
def test_which_steps_are_the_slow_ones(series: Floats, slow: Sequence[int]) -> None:
    found = steady_state(series).slow_steps
    assert found is not None
    assert np.flatnonzero(found).tolist() == list(slow)


@pytest.mark.parametrize(
    ("n", "stdev", "unseen"),
    [
        (100, 0.01, None),
        (100, 0.05, "100 steps are too few to notice if a fifth of them took 1.09 x the others"),
        (20, 0.03, "20 steps are too few to notice if a fifth of them took 1.19 x the others"),
        (20, 0.002, None),
    ],
)
def test_what_cannot_be_seen(n: int, stdev: float, unseen: str | None) -> None:
    assert steady_state(noisy(n, stdev=stdev)).unseen == unseen


def test_stalls() -> None:
    series = noisy(100)
    series[[20, 50, 80]] = 5.0
    found = steady_state(series)
    assert found.steady
    assert found.stalls is not None
    assert (found.stalls.count, found.stalls.ratio) == (3, pytest.approx(5, rel=0.01))
    # 3 x 4 of 112.
    assert found.stalls.lost == pytest.approx(12 / 112, rel=0.01)
    assert np.flatnonzero(found.stalls.mask).tolist() == [20, 50, 80]


@pytest.mark.parametrize(
    "series", [noisy(100), np.tile([1.0, 1.1, 1.6, 1.0, 1.1], 20), noisy(100, stdev=0.2), np.zeros(30), np.array([])]
)
def test_no_stalls(series: Floats) -> None:
    found = stalls(series)
    assert (found.count, found.lost, found.ratio, found.mask.any()) == (0, 0.0, None, False)


@pytest.mark.parametrize(
    ("series", "ratio"),
    [
        (np.where(np.arange(100) % 3 == 0, 1.1, 1.0) * noisy(100, stdev=0.01), 1.1),
        (np.tile([1.0, 1.1], 30), None),
        (np.tile([1.0, 1.1], 30) * noisy(60), 1.1),
        (noisy(100, stdev=0.1), None),
        (noisy(2), None),
        (np.ones(60), None),
        (np.zeros(60), None),
        (np.array([]), None),
    ],
    ids=["a third", "a coarse clock", "half", "one noisy speed", "two steps", "all equal", "zeros", "none"],
)
def test_two_speeds(series: Floats, ratio: float | None) -> None:
    found = two_speeds(series)
    assert (found and round(found.ratio, 1)) == ratio


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        (np.zeros(60), "60 of 60 steps have a time of 0 s: no level"),
        (np.repeat([0.0, 1.0], 30), "30 of 60 steps have a time of 0 s: no level"),
        (np.repeat([1.0, 2.0], 30), "from step 31 of 60 on, steps take 2 x those before: no steady state"),
        (np.repeat([1.0, 2.0, 1.0], 20), "steps 21 to 40 of 60 take 2 x the others: no steady state"),
        (np.ones(60), "all steps have the same time"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_steps_without_noise_have_a_written_answer(series: Floats, reason: str) -> None:
    assert steady_state(series).reason == reason


@pytest.mark.parametrize(
    ("series", "t", "lag1"),
    [
        (np.array([0.0, 1.0, 2.0]), math.inf, 0.0),
        (np.array([2.0, 1.0, 0.0]), -math.inf, 0.0),
        (np.array([1.0, 2.0, 2.0, 3.0]), stats.linregress(range(4), [1.0, 2.0, 2.0, 3.0]), None),
    ],
)
def test_the_t_of_a_line_is_scipys(series: Floats, t: object, lag1: float | None) -> None:
    found, rest = line(series)
    if lag1 is None:
        assert found == pytest.approx(t.slope / t.stderr)  # type: ignore[attr-defined]
    else:
        assert (found, rest) == (t, lag1)


def test_300_000_steps_take_little_memory() -> None:
    """The windows of 5 % of a series took 4 GB for 100,000 steps."""
    series = noisy(300_000)
    series[250_000:] *= 1.05
    tracemalloc.start()
    found = steady_state(series)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.reason == "from step 249001 of 300000 on, steps take 1.05 x those before: no steady state"
    assert peak_bytes < 100e6


@pytest.mark.parametrize(
    ("values", "steady", "reason"),
    [
        ([1.0, 1.1] * 9 + [1.0], None, "19 steps: at least 20 are needed"),
        ([], None, "0 steps: at least 20 are needed"),
        ([1.0] * 20, True, "all steps have the same time"),
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


def test_waves_and_warm_ups_are_no_period() -> None:
    waves = 1 + 0.01 * np.sin(np.arange(200) / 40)
    for series in (waves, first_slow(), epoch_boundary(), heating(), warming_up()):
        assert not period_scan(series).found


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, 2.0] * 9 + [1.0], "19 steps: at least 20 are needed"),
        ([1.0] * 30, "all 30 steps have the same time: nothing varies"),
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


@pytest.mark.parametrize("members", [4, 9, 16, 17, 30])
@pytest.mark.parametrize("digits", [12, 1])
def test_chance_of_a_period_is_that_of_scipy(members: int, digits: int) -> None:
    draw = np.random.default_rng(members)
    for size in (60, 61, 100):
        values = np.round(draw.normal(size=size), digits)
        values[:members] += draw.choice([0.0, 1.0, -3.0])
        order = ranks(values)
        above = float(order[:members].sum() - members * (members + 1) / 2)
        method: Literal["exact", "asymptotic"] = "exact" if members <= MOST_EXACT_MEMBERS else "asymptotic"
        expected = stats.mannwhitneyu(values[:members], values[members:], method=method).pvalue
        assert _chance(order, members, above) == pytest.approx(expected, rel=1e-9)
