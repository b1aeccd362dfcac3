"""Results do not depend on the unit or on the order of runs, and no function raises."""

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.statistics.autocorrelation import effective_n, period_scan
from analysis.statistics.comparison import compare, compare_within_blocks, holm
from analysis.statistics.components import PlacedRun, machine_split, variance_split
from analysis.statistics.samples import over_runs
from analysis.statistics.steady import drift, outliers, steady_state

TIMES = st.floats(min_value=1e-4, max_value=1e3)
SERIES = st.lists(TIMES, max_size=40)
# Readings of a coarse clock tie often.
TIED = st.lists(st.integers(1, 4).map(float), min_size=1, max_size=40)
RUNS = st.lists(st.one_of(SERIES, TIED), max_size=5)
ANYTHING = st.lists(st.floats(), max_size=40)
# Powers of two change no digit.
SCALES = st.integers(-8, 8).map(lambda exponent: 2.0**exponent)

OF_ONE_SERIES = [
    outliers,
    effective_n,
    steady_state,
    drift,
    period_scan,
    over_runs,
]


@pytest.mark.parametrize("function", OF_ONE_SERIES, ids=lambda function: function.__name__)
@given(values=ANYTHING)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # sums of numbers near 1e308 overflow
def test_nothing_raises(function: Any, values: list[float]) -> None:
    function(values)


@given(first=RUNS, second=RUNS)
def test_runs_of_any_length_are_answered(first: list[list[float]], second: list[list[float]]) -> None:
    split = variance_split(first)
    assert (split.between.interval is None) is (split.runs < 3)
    found = compare(first, second)
    assert (found.interval is None) <= bool(found.reasons)
    if found.interval is not None:
        assert found.ratio is not None
        assert found.interval.low <= found.interval.high


@given(values=TIED, scale=SCALES)
def test_the_unit_does_not_matter(values: list[float], scale: float) -> None:
    series = np.array(values)
    assert outliers(series).tolist() == outliers(scale * series).tolist()
    assert effective_n(series) == effective_n(scale * series)
    first, second = period_scan(series), period_scan(scale * series)
    assert (first.period, first.phase, first.p_value) == (second.period, second.phase, second.p_value)
    first_steady, second_steady = steady_state(series), steady_state(scale * series)
    assert (first_steady.steady, first_steady.warmup_steps) == (second_steady.steady, second_steady.warmup_steps)


@example(figures=[1.0] * 2 + [976.1627189120212] * 4, scale=1.0, order=random.Random(0))
@given(figures=st.lists(TIMES, min_size=1, max_size=12), scale=SCALES, order=st.randoms(use_true_random=False))
def test_over_runs_by_scale_and_order(figures: list[float], scale: float, order: Any) -> None:
    mixed = order.sample(figures, len(figures))
    found, other = over_runs(figures), over_runs(scale * np.array(mixed))
    assert other.value == pytest.approx(scale * (found.value or 0))
    if found.interval is None:
        assert other.interval is None
        return
    assert other.interval is not None
    assert other.interval.low == pytest.approx(scale * found.interval.low, rel=1e-6)
    assert found.interval.low <= (found.value or 0) <= found.interval.high


@given(values=st.lists(st.integers(0, 1000).map(float), min_size=8, max_size=40), shift=st.integers(-50, 50))
def test_a_shift_moves_no_correlation(values: list[float], shift: int) -> None:
    series = np.array(values)
    forth, back = drift(series), drift(series[::-1])
    assert forth == (None if back is None else pytest.approx(-back))
    found_n, other_n = (effective_n(each, robust=False) for each in (series, series + shift))
    assert found_n.lag1 == (None if other_n.lag1 is None else pytest.approx(other_n.lag1, abs=1e-6))


@given(
    p_values=st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_corrections_by_order(p_values: list[float], order: Any) -> None:
    adjusted = holm(p_values)
    places = order.sample(range(len(p_values)), len(p_values))
    mixed = holm([p_values[place] for place in places])
    assert mixed.tolist() == pytest.approx([adjusted[place] for place in places], nan_ok=True)
    assert ((adjusted >= np.array(p_values)) | np.isnan(adjusted)).all()


FIGURES = st.one_of(TIMES, st.sampled_from([1.0, 2.0]), st.floats())
NAMES = st.sampled_from(["a", "b", "c", None])


@given(
    runs=st.lists(
        st.builds(
            PlacedRun,
            figure=FIGURES,
            configuration=NAMES,
            host=NAMES,
            noise=st.one_of(st.none(), st.floats(0, 1)),
            noise_degrees=st.floats(0.5, 100),
        ),
        max_size=12,
    )
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # figures near 1e308 overflow
def test_machines_are_answered_whatever_the_design(runs: list[PlacedRun]) -> None:
    split = machine_split(runs)
    for estimate in (split.between_runs, split.between_hosts):
        assert (estimate.value is None) is (estimate.interval is None)
        assert estimate.value is not None or estimate.reason
        if estimate.interval is not None:
            assert estimate.interval.low <= estimate.interval.high


@example(first={5: [8.988465674312372e307]}, second={5: [0.5]})
@given(
    first=st.dictionaries(st.integers(0, 5), st.lists(FIGURES, max_size=3)),
    second=st.dictionaries(st.integers(0, 5), st.lists(FIGURES, max_size=3)),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ratios beyond 1e308 overflow
def test_blocks_are_answered_whatever_is_missing(first: dict[Any, list[float]], second: dict[Any, list[float]]) -> None:
    forth, back = compare_within_blocks(first, second), compare_within_blocks(second, first)
    assert forth.interval is not None or forth.reasons
    if forth.interval is not None and back.interval is not None:
        assert forth.interval.low <= (forth.ratio or 0) <= forth.interval.high
        if forth.interval.low > 0 and back.interval.high < math.inf:
            assert math.log(forth.interval.low) == pytest.approx(-math.log(back.interval.high), abs=1e-6)
