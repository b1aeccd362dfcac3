import math
import tracemalloc
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.autocorrelation import MOST_EXACT_MEMBERS, _chance, period_scan
from analysis.statistics.samples import Floats, ranks
from analysis.statistics.steady import drift, line, steady_state, two_speeds
from tests.analysis.sentence_runs import Golden


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


def every_sixth() -> Floats:
    series = np.zeros(60)
    series[4::6] = 1.0
    return series


# A change of 0.1 exp(-t / 5) falls to the 1 % tolerance at t = 11.5, and is certainly above the rest for longer.
CASES: dict[str, Sequence[float] | Floats] = {
    "steady": noisy(100),
    "a slow first step": first_slow(),
    "warming up": warming_up(),
    "a slow step within": epoch_boundary(),
    "the last fifth 20 % slower": throttled(),
    "the first fifth 20 % slower": throttled()[::-1],
    "the second part 5 % slower": slower_half(),
    "5 % slower for a while": slow_for_a_while(),
    "5 % faster for a while": 2 - slow_for_a_while(),
    "settling late": settling_late(),
    "4 % slower over the run": heating(),
    "4 % faster over the run": heating()[::-1],
    "0.8 % slower over the run": barely_heating(),
    "2 % slower over a quiet run": noisy(100, stdev=1e-4) + 2e-4 * np.arange(100),
    "noise of 20 %": noisy(100, stdev=0.2),
    "noise of 1 % in 100 steps": noisy(100, stdev=0.01),
    "noise of 5 % in 100 steps": noisy(100, stdev=0.05),
    "noise of 3 % in 20 steps": noisy(20, stdev=0.03),
    "noise of 0.2 % in 20 steps": noisy(20, stdev=0.002),
    "a third 10 % slower": np.where(np.arange(100) % 3 == 0, 1.1, 1.0) * noisy(100, stdev=0.01),
    "a coarse clock": np.tile([1.0, 1.1], 30),
    "half 10 % slower": np.tile([1.0, 1.1], 30) * noisy(60),
    "three speeds": np.tile([1.0, 1.1, 1.6, 1.0, 1.1], 20),
    "slow waves": 1 + 0.01 * np.sin(np.arange(200) / 40),
    "every sixth of 0 s and 1 s": every_sixth(),
    "zeros": np.zeros(60),
    "zeros and ones": np.repeat([0.0, 1.0], 30),
    "ones and twos": np.repeat([1.0, 2.0], 30),
    "ones, twos and ones": np.repeat([1.0, 2.0, 1.0], 20),
    "ones": np.ones(60),
    "19 steps": [1.0, 1.1] * 9 + [1.0],
    "20 equal steps": [1.0] * 20,
    "one step that is no number": [1.0] * 20 + [math.nan],
    "two steps": noisy(2),
    "no step": [],
}


def ranges(mask: Floats) -> str:
    """Places where the mask is true, counted from 1."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(mask, dtype=int), [0]])))
    return ", ".join(f"{start + 1} to {stop}" for start, stop in edges.reshape(-1, 2))


def told(series: Sequence[float] | Floats) -> list[str]:
    series = np.asarray(series, dtype=np.float64)
    found, speeds, period = steady_state(series), two_speeds(series), period_scan(series)
    lines = [f"steady {found.steady}, warm-up {found.warmup_steps}, drifts {found.drifts}: {found.reason}"]
    if found.change is not None:
        change = found.change
        lines.append(f"change from {change.start} to {change.stop}, {change.ratio:.3g} x, shift {change.is_shift}")
    lines += [f"slow steps {ranges(found.slow_steps)}"] if found.slow_steps is not None else []
    lines += [found.unseen] if found.unseen else []
    if found.stalls is not None and found.stalls.count:
        lines.append(f"stalls {ranges(found.stalls.mask)}: {found.stalls.ratio:.3g} x, {found.stalls.lost:.3g} lost")
    lines += [f"two speeds: {speeds.ratio:.3g} x"] if speeds else []
    return [*lines, f"period: {period.reason}"]


@pytest.mark.filterwarnings("error")
def test_steadiness_stalls_speeds_and_periods(golden: Golden) -> None:
    lines = [line for name, series in CASES.items() for line in (f"## {name}", *told(series))]
    golden("steady.txt", "\n".join([*lines, ""]))


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
