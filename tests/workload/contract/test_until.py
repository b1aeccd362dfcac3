"""When to stop: written answers, and coverage in small; benchmarks/blocks.py is the long version."""

import math
import random
from itertools import count, islice
from statistics import fmean, stdev

import pytest
from scipy import stats

from workload.contract.until import decide, looks, precision, student

FIGURES = (100.0, 103.0, 98.0, 101.0, 102.0, 99.0)


@pytest.mark.parametrize("outside", [0.03, 0.05])
@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 59, 60, 61, 500])
def test_quantiles_are_scipys(degrees: int, outside: float) -> None:
    assert student(outside, degrees) == pytest.approx(stats.t.ppf(1 - outside / 2, degrees), rel=1e-6)


def test_one_looks_at_fixed_numbers_of_blocks() -> None:
    assert list(islice(looks(), 12)) == [4, 5, 7, 9, 12, 15, 19, 24, 30, 38, 48, 60]


def test_the_interval_is_students_at_the_level_of_one_look() -> None:
    stand = precision(FIGURES, target=0.01)

    logs = [math.log(figure) for figure in FIGURES]
    reach = stats.t.ppf(0.985, 5) * stdev(logs) / math.sqrt(6)
    assert stand.value == pytest.approx(math.exp(fmean(logs)))
    assert (stand.low, stand.high) == pytest.approx((math.exp(fmean(logs) - reach), math.exp(fmean(logs) + reach)))
    assert stand.half_width == pytest.approx(math.expm1(reach))
    assert (stand.is_narrow, stand.blocks) == (False, 6)
    # With the same spread, 24 blocks are enough, and 19 are not.
    assert stand.expected == 24
    assert math.expm1(stats.t.ppf(0.985, 23) * stdev(logs) / math.sqrt(24)) <= 0.01
    assert math.expm1(stats.t.ppf(0.985, 18) * stdev(logs) / math.sqrt(19)) > 0.01


@pytest.mark.parametrize(
    ("figures", "blocks", "reason"),
    [
        ([], 0, "the first look is at 4 blocks"),
        (FIGURES[:3], 3, "the first look is at 4 blocks"),
        ([*FIGURES[:3], math.nan, 0.0, -1.0], 3, "the first look is at 4 blocks"),
        ([100.0] * 5, 5, "all 5 blocks read exactly the same: no interval (copies of one block?)"),
    ],
)
def test_no_interval_has_a_reason(figures: list[float], blocks: int, reason: str) -> None:
    stand = precision(figures, target=0.01)

    assert (stand.blocks, stand.half_width, stand.is_narrow, stand.expected) == (blocks, None, False, None)
    assert stand.reason == reason


def test_nobody_waits_for_ten_thousand_blocks() -> None:
    assert precision(FIGURES, target=1e-6).expected is None


@pytest.mark.parametrize(
    ("blocks", "target", "most", "done", "add", "sentence"),
    [
        pytest.param(
            0,
            0.01,
            None,
            False,
            4,
            "a is the widest after 0 blocks: the first look is at 4 blocks; next look after 4 more",
            id="nothing yet",
        ),
        pytest.param(
            5,
            0.01,
            None,
            False,
            2,
            "a is the widest after 5 blocks: +-2.9 %; next look after 2 more, about 19 until all are narrow enough",
            id="go on",
        ),
        pytest.param(
            5,
            0.05,
            None,
            True,
            0,
            "every interval is within +-5 % after 5 blocks (the widest: a, +-2.9 %)",
            id="narrow",
        ),
        pytest.param(
            6,
            0.05,
            None,
            False,
            1,
            "a is the widest after 6 blocks: +-2.3 %; next look after 1 more, about 1 until all are narrow enough",
            id="narrow, but between two looks",
        ),
        pytest.param(
            6,
            0.05,
            6,
            True,
            0,
            "every interval is within +-5 % after 6 blocks (the widest: a, +-2.3 %)",
            id="narrow at the most that are allowed",
        ),
        pytest.param(
            6,
            0.01,
            6,
            True,
            0,
            "not within +-1 % after 6 blocks, the most that were allowed: a, +-2.3 %",
            id="never narrow",
        ),
        pytest.param(
            2,
            0.01,
            3,
            False,
            1,
            "a is the widest after 2 blocks: the first look is at 4 blocks; next look after 1 more",
            id="fewer are allowed than a look takes",
        ),
        pytest.param(
            3,
            0.01,
            3,
            True,
            0,
            "not within +-1 % after 3 blocks, the most that were allowed: a, the first look is at 4 blocks",
            id="fewer were allowed",
        ),
    ],
)
def test_decisions(blocks: int, target: float, most: int | None, done: bool, add: int, sentence: str) -> None:
    calm = [100 + 0.01 * figure for figure in FIGURES]
    decision = decide({"a": FIGURES[:blocks], "calm": calm[:blocks]}, target=target, most=most)

    assert (decision.is_done, decision.add) == (done, add)
    assert decision.reason == sentence


def test_every_series_has_to_be_narrow() -> None:
    """One that lacks a block has its own number of blocks."""
    decision = decide({"whole": FIGURES[:5], "lacks one": FIGURES[:4], "too few": FIGURES[:3]}, target=0.1)

    assert not decision.is_done
    assert decision.widest == "too few"
    assert decide({"whole": FIGURES[:5], "lacks one": FIGURES[:4]}, target=0.1).is_done


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
            decision = decide({"a": figures[:blocks]}, target=0.01)
            if decision.is_done or blocks == 118:
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
