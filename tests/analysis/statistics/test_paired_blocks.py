"""Differences within blocks, by hand or by scipy. benchmarks/blocks.py is the long version of the simulation."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.comparison import compare, compare_within_blocks
from analysis.statistics.samples import Method

HOSTS = np.array([1.0, 1.2, 0.9, 1.05])
OWN = np.array([0.001, -0.002, 0.0015, 0.0005])


def blocks(figures: Any) -> dict[Any, Any]:
    return dict(enumerate(figures))


def test_the_interval_is_that_of_the_paired_t_test() -> None:
    baseline, other = 0.1 * HOSTS, 0.103 * HOSTS * np.exp(OWN)
    comparison = compare_within_blocks(blocks(baseline), blocks(other))
    expected = stats.ttest_rel(np.log(other), np.log(baseline))
    ends = expected.confidence_interval()
    assert comparison.interval is not None
    assert (comparison.interval.low, comparison.interval.high) == pytest.approx(
        (math.exp(ends.low), math.exp(ends.high))
    )
    assert comparison.interval.method is Method.PAIRED_T
    assert comparison.p_value == pytest.approx(expected.pvalue)
    assert comparison.ratio == pytest.approx(1.03 * math.exp(OWN.mean()))
    assert comparison.reasons == ("4 blocks: the interval assumes that differences are normally distributed",)
    unpaired = compare(baseline, other).interval
    assert unpaired is not None
    assert unpaired.high / unpaired.low > (comparison.interval.high / comparison.interval.low) ** 50


def test_a_block_that_lacks_one_side_is_left_out_and_said() -> None:
    baseline, other = blocks(0.1 * HOSTS), blocks(0.103 * HOSTS * np.exp(OWN))
    whole = compare_within_blocks(baseline, other)
    comparison = compare_within_blocks(
        {**baseline, "slow host": 9.0, 9: math.nan}, {**other, "cold": [7.0, 8.0], 9: 1.0}
    )
    assert comparison.interval == whole.interval
    assert comparison.within_blocks is not None
    assert (comparison.within_blocks.blocks, comparison.within_blocks.left_out) == (4, 5)
    assert comparison.reasons[1] == "5 runs without a partner in the same block left out"


def test_several_runs_of_a_block_are_one_replicate() -> None:
    baseline = blocks([[0.1, 0.11], [0.2, 0.21, 0.22]])
    other = blocks([[0.12], [0.25]])
    comparison = compare_within_blocks(baseline, other)
    differences = [math.log(0.12) - np.log([0.1, 0.11]).mean(), math.log(0.25) - np.log([0.2, 0.21, 0.22]).mean()]
    assert comparison.difference is not None
    assert comparison.difference.value == pytest.approx(np.mean(differences))
    assert comparison.difference.degrees == 1
    assert (comparison.runs_baseline, comparison.runs_other) == (5, 2)


@pytest.mark.parametrize(
    ("baseline", "other", "ratio", "reason"),
    [
        pytest.param({}, {}, None, "0 blocks with both: no interval from fewer than 2", id="nothing"),
        pytest.param(
            {1: 1.0}, {2: 1.0}, None, "0 blocks with both: no interval from fewer than 2", id="no block shared"
        ),
        pytest.param({1: 1.0}, {1: 2.0}, 2.0, "1 block with both: no interval from fewer than 2", id="one block"),
        pytest.param(
            {1: 1.0, 2: 1.0},
            {1: 2.0, 2: 2.0},
            2.0,
            "the difference is exactly the same in 2 blocks: no interval (perhaps they are copies of one block)",
            id="copies",
        ),
    ],
)
def test_no_interval_has_a_reason(baseline: Any, other: Any, ratio: float | None, reason: str) -> None:
    comparison = compare_within_blocks(baseline, other)
    assert (comparison.ratio, comparison.interval, comparison.p_value) == (ratio, None, None)
    assert comparison.reasons[0] == reason
