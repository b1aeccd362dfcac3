"""Intervals over blocks, with hand-computed answers; benchmarks/blocks.py simulates their coverage."""

import math
from itertools import islice
from statistics import fmean, median, stdev

import pytest
from scipy import stats

from workload.stats.intervals import interval_at_look, looks, single_contrast

# Blocks that are less alike than independent ones, without a trend.
FIGURES = (100.0, 103.0, 98.0, 102.0, 99.0, 101.5, 98.5, 101.0, 99.5, 102.5, 97.5, 100.5, 100.0)


def test_one_looks_at_fixed_numbers_of_blocks() -> None:
    assert list(islice(looks(), 12)) == [8, 10, 13, 17, 22, 28, 35, 44, 55, 69, 87, 109]


def test_the_interval_is_students_at_the_level_of_one_look() -> None:
    interval = interval_at_look(single_contrast(FIGURES[:10]), target=0.01)

    logs = [math.log(figure) for figure in FIGURES[:10]]
    reach = stats.t.ppf(0.985, 9) * stdev(logs) / math.sqrt(10)
    assert interval.value == pytest.approx(math.exp(fmean(logs)))
    assert (interval.low, interval.high) == pytest.approx(
        (math.exp(fmean(logs) - reach), math.exp(fmean(logs) + reach))
    )
    assert interval.half_width == pytest.approx(math.expm1(reach))
    assert (interval.is_narrow, interval.blocks, interval.correlation, interval.trend) == (False, 10, 0.0, None)
    # With the same spread, 22 blocks are enough, and 17 are not.
    assert interval.expected == 22
    assert math.expm1(stats.t.ppf(0.985, 21) * stdev(logs) / math.sqrt(22)) <= 0.01
    assert math.expm1(stats.t.ppf(0.985, 16) * stdev(logs) / math.sqrt(17)) > 0.01


def test_blocks_that_are_alike_have_a_wider_interval() -> None:
    """One series has three similar figures in a row; the other has the same figures, but in turns."""
    alike = [100.0 + 2 * (number // 3 % 2) + 0.1 * (number % 3) for number in range(12)]
    turns = [alike[number] for number in (0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11)]
    in_rows, in_turns = (interval_at_look(single_contrast(figures), target=0.01) for figures in (alike, turns))

    assert in_rows.value == pytest.approx(in_turns.value)
    assert (in_rows.correlation, in_turns.correlation) == (pytest.approx(0.8, abs=0.15), 0.0)
    assert (in_rows.half_width or 0) > 2 * (in_turns.half_width or 1)
    assert (
        in_rows.width == f"+-{100 * (in_rows.half_width or 0):.2g} %, widened for a correlation of 0.9 between blocks"
    )


@pytest.mark.parametrize(
    ("slow", "blocks", "unlike"),
    [
        ({}, 13, None),
        ({4: 0.99}, 13, None),
        ({4: 0.8}, 13, "1 of 13 blocks differs by 20 %"),
        ({4: 0.8, 9: 0.75}, 13, "2 of 13 blocks differ by up to 25 %"),
        ({4: 0.8}, 7, None),
    ],
)
def test_with_blocks_unlike_the_others_the_figure_is_the_median(
    slow: dict[int, float], blocks: int, unlike: str | None
) -> None:
    figures = [100 + (figure - 100) / 10 for figure in FIGURES[:blocks]]
    figures = [figure * slow.get(at, 1.0) for at, figure in enumerate(figures)]
    interval = interval_at_look(single_contrast(figures), target=0.01)

    assert interval.unlike == unlike
    if unlike is None:
        assert interval.value == pytest.approx(math.exp(fmean(map(math.log, figures))))
        return
    assert interval.value == pytest.approx(median(figures))
    # The third smallest to the third largest figure are the median's interval of 97.8 %, the fourth that of 90.8 %.
    assert (interval.half_width or 0) <= sorted(figures)[-3] / interval.value - 1 + 0.003
    assert (interval.is_narrow, interval.correlation, interval.trend) == (True, 0.0, None)
    assert interval.width.endswith(f" % of the median ({unlike})")


@pytest.mark.parametrize(
    ("per_block", "target", "is_narrow", "width"),
    [
        (0.0, 0.05, True, ""),
        (0.005, 0.2, True, ", with a trend of +0.49 % per block"),
        (0.005, 0.04, False, ", with a trend of +0.49 % per block"),
        (-0.005, 0.04, False, ", with a trend of -0.51 % per block"),
    ],
)
def test_a_trend_is_said_and_does_not_end_a_sweep(per_block: float, target: float, is_narrow: bool, width: str) -> None:
    figures = [100 + (figure - 100) / 10 + 100 * per_block * at for at, figure in enumerate(FIGURES[:10])]
    interval = interval_at_look(single_contrast(figures), target=target)

    assert interval.is_narrow is is_narrow
    assert interval.trend_text == width
    assert (interval.expected is None) is (target == 0.04)


@pytest.mark.parametrize(
    ("figures", "blocks", "reason"),
    [
        ([], 0, "the first check is at 8 blocks"),
        ([100.0], 1, "the first check is at 8 blocks"),
        (FIGURES[:7], 7, "the first check is at 8 blocks"),
        ([*FIGURES[:7], math.nan, 0.0, -1.0], 7, "the first check is at 8 blocks"),
        (
            [100.0] * 8,
            8,
            "the figure is exactly the same in 8 blocks: no interval (perhaps they are copies of one block)",
        ),
    ],
)
def test_no_interval_has_a_reason(figures: list[float], blocks: int, reason: str) -> None:
    interval = interval_at_look(single_contrast(figures), target=0.01)

    assert (interval.blocks, interval.half_width, interval.is_narrow, interval.expected) == (blocks, None, False, None)
    assert interval.reason == interval.width == reason


def test_nobody_waits_for_ten_thousand_blocks() -> None:
    assert interval_at_look(single_contrast(FIGURES), target=1e-6).expected is None
