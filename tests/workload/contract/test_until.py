"""When to stop: written answers, and coverage in small; benchmarks/blocks.py is the long version."""

import math
import random
from itertools import count, islice
from statistics import fmean, stdev

import pytest
from scipy import stats

from workload.contract.until import alone, decide, looks, precision, student

# Blocks that are less alike than independent ones, without a trend.
FIGURES = (100.0, 103.0, 98.0, 102.0, 99.0, 101.5, 98.5, 101.0, 99.5, 102.5, 97.5, 100.5, 100.0)


@pytest.mark.parametrize("outside", [0.03, 0.05])
@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 59, 60, 61, 500])
def test_quantiles_are_scipys(degrees: int, outside: float) -> None:
    assert student(outside, degrees) == pytest.approx(stats.t.ppf(1 - outside / 2, degrees), rel=1e-6)


def test_one_looks_at_fixed_numbers_of_blocks() -> None:
    assert list(islice(looks(), 12)) == [8, 10, 13, 17, 22, 28, 35, 44, 55, 69, 87, 109]


def test_the_interval_is_students_at_the_level_of_one_look() -> None:
    stand = precision(alone(FIGURES[:10]), target=0.01)

    logs = [math.log(figure) for figure in FIGURES[:10]]
    reach = stats.t.ppf(0.985, 9) * stdev(logs) / math.sqrt(10)
    assert stand.value == pytest.approx(math.exp(fmean(logs)))
    assert (stand.low, stand.high) == pytest.approx((math.exp(fmean(logs) - reach), math.exp(fmean(logs) + reach)))
    assert stand.half_width == pytest.approx(math.expm1(reach))
    assert (stand.is_narrow, stand.blocks, stand.correlation, stand.trend) == (False, 10, 0.0, None)
    # With the same spread, 22 blocks are enough, and 17 are not.
    assert stand.expected == 22
    assert math.expm1(stats.t.ppf(0.985, 21) * stdev(logs) / math.sqrt(22)) <= 0.01
    assert math.expm1(stats.t.ppf(0.985, 16) * stdev(logs) / math.sqrt(17)) > 0.01


def test_blocks_that_are_alike_have_a_wider_interval() -> None:
    """The same figures, first each third of them together, then by turns."""
    alike = [100.0 + 2 * (number // 3 % 2) + 0.1 * (number % 3) for number in range(12)]
    turns = [alike[number] for number in (0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11)]
    one, other = (precision(alone(figures), target=0.01) for figures in (alike, turns))

    assert one.value == pytest.approx(other.value)
    assert (one.correlation, other.correlation) == (pytest.approx(0.8, abs=0.15), 0.0)
    assert (one.half_width or 0) > 2 * (other.half_width or 1)
    assert one.width == f"+-{100 * (one.half_width or 0):.2g} %, widened for a correlation of 0.9 between blocks"


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
    stand = precision(alone(figures), target=target)

    assert stand.is_narrow is is_narrow
    assert stand.trend_text == width
    assert (stand.expected is None) is (target == 0.04)


@pytest.mark.parametrize(
    ("figures", "blocks", "reason"),
    [
        ([], 0, "the first look is at 8 blocks"),
        ([100.0], 1, "the first look is at 8 blocks"),
        (FIGURES[:7], 7, "the first look is at 8 blocks"),
        ([*FIGURES[:7], math.nan, 0.0, -1.0], 7, "the first look is at 8 blocks"),
        ([100.0] * 8, 8, "all read exactly the same in 8 blocks: no interval (copies of one block?)"),
    ],
)
def test_no_interval_has_a_reason(figures: list[float], blocks: int, reason: str) -> None:
    stand = precision(alone(figures), target=0.01)

    assert (stand.blocks, stand.half_width, stand.is_narrow, stand.expected) == (blocks, None, False, None)
    assert stand.reason == stand.width == reason


def test_nobody_waits_for_ten_thousand_blocks() -> None:
    assert precision(alone(FIGURES), target=1e-6).expected is None


@pytest.mark.parametrize(
    ("blocks", "target", "most", "done", "add", "sentence"),
    [
        pytest.param(
            0,
            0.01,
            None,
            False,
            8,
            "a is the widest after 0 blocks: the first look is at 8 blocks; next look after 8 more",
            id="nothing yet",
        ),
        pytest.param(
            10,
            0.01,
            None,
            False,
            3,
            "a is the widest after 10 blocks: +-1.4 %; next look after 3 more, about 12 until all are narrow enough",
            id="go on",
        ),
        pytest.param(
            10,
            0.05,
            None,
            True,
            0,
            "every interval is within +-5 % after 10 blocks (the widest: a, +-1.4 %)",
            id="narrow",
        ),
        pytest.param(
            9,
            0.05,
            None,
            False,
            1,
            "a is the widest after 9 blocks: +-1.5 %; next look after 1 more, about 1 until all are narrow enough",
            id="narrow, but between two looks",
        ),
        pytest.param(
            9,
            0.05,
            9,
            True,
            0,
            "every interval is within +-5 % after 9 blocks (the widest: a, +-1.5 %)",
            id="narrow at the most that are allowed",
        ),
        pytest.param(
            9,
            0.01,
            9,
            True,
            0,
            "not within +-1 % after 9 blocks, the most that were allowed: a, +-1.5 %",
            id="never narrow",
        ),
        pytest.param(
            2,
            0.01,
            3,
            False,
            1,
            "a is the widest after 2 blocks: the first look is at 8 blocks; next look after 1 more",
            id="fewer are allowed than a look takes",
        ),
        pytest.param(
            3,
            0.01,
            3,
            True,
            0,
            "not within +-1 % after 3 blocks, the most that were allowed: a, the first look is at 8 blocks",
            id="fewer were allowed",
        ),
    ],
)
def test_decisions(blocks: int, target: float, most: int | None, done: bool, add: int, sentence: str) -> None:
    calm = [100 + 0.01 * figure for figure in FIGURES]
    decision = decide({"a": alone(FIGURES[:blocks]), "calm": alone(calm[:blocks])}, target=target, most=most)

    assert (decision.is_done, decision.add) == (done, add)
    assert decision.reason == sentence


def test_every_series_has_to_be_narrow() -> None:
    """One that lacks a block has its own number of blocks."""
    whole, lacking, few = (alone(FIGURES[:blocks]) for blocks in (10, 9, 7))
    decision = decide({"whole": whole, "lacks one": lacking, "too few": few}, target=0.1)

    assert not decision.is_done
    assert decision.widest == "too few"
    assert decide({"whole": whole, "lacks one": lacking}, target=0.1).is_done


def test_no_interval_was_asked_for() -> None:
    decision = decide({}, target=0.01)

    assert (decision.is_done, decision.is_narrow, decision.add) == (True, False, 0)
    assert decision.reason == "nothing to be sure of: no interval was asked for"


def naive(figures: list[float], *, target: float) -> tuple[float, float]:
    """What peeking after every block from the second on does: the first narrow interval of 95 %."""
    for blocks in count(2):
        logs = [math.log(figure) for figure in figures[:blocks]]
        reach = student(0.05, blocks - 1) * stdev(logs) / math.sqrt(blocks)
        if math.expm1(reach) <= target or blocks == len(figures):
            return fmean(logs) - reach, fmean(logs) + reach
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.002, 0.01, 0.018, 0.03])
def test_coverage_with_stopping(spread: float) -> None:
    """93 to 97 %, within 3 binomial standard errors, of intervals to 1 %; naive peeking covers less."""
    rng = random.Random(7)
    sweeps = 700
    held = held_naively = 0
    for _ in range(sweeps):
        figures = [math.exp(rng.gauss(0, spread)) for _ in range(120)]
        for blocks in looks():
            decision = decide({"a": alone(figures[:blocks])}, target=0.01)
            if decision.is_done or blocks == 109:
                break
        stand = decision.precisions["a"]
        assert stand.low is not None
        assert stand.high is not None
        held += stand.low <= 1 <= stand.high
        low, high = naive(figures, target=0.01)
        held_naively += low <= 0 <= high
    error = 3 * math.sqrt(0.05 * 0.95 / sweeps)
    assert 0.93 - error <= held / sweeps <= 0.97 + error
    if spread == 0.018:
        assert held_naively / sweeps < 0.93 - error
