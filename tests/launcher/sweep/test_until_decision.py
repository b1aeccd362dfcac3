"""When `--until` stops: written answers, and coverage in small; benchmarks/blocks.py is the long version."""

import math
import random
from itertools import count
from statistics import fmean, median, stdev

import pytest

from launcher.sweep.places import decision_of
from workload.stats.intervals import looks, single_contrast, student_reach

# Blocks that are less alike than independent ones, without a trend.
FIGURES = (100.0, 103.0, 98.0, 102.0, 99.0, 101.5, 98.5, 101.0, 99.5, 102.5, 97.5, 100.5, 100.0)


@pytest.mark.parametrize(
    ("blocks", "target", "most", "done", "add", "sentence"),
    [
        pytest.param(
            0,
            0.01,
            None,
            False,
            8,
            "a is the widest after 0 blocks: the first check is at 8 blocks; next check after 8 more",
            id="nothing yet",
        ),
        pytest.param(
            10,
            0.01,
            None,
            False,
            3,
            "a is the widest after 10 blocks: +-1.4 %; next check after 3 more, about 12 in all until every "
            "interval is narrow enough",
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
            "a is the widest after 9 blocks: +-1.5 %; next check after 1 more, about 1 in all until every "
            "interval is narrow enough",
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
        pytest.param(9, 0.01, 9, True, 0, "not within +-1 % after 9 blocks, the limit: a, +-1.5 %", id="never narrow"),
        pytest.param(
            2,
            0.01,
            3,
            False,
            1,
            "a is the widest after 2 blocks: the first check is at 8 blocks; next check after 1 more",
            id="fewer are allowed than a look takes",
        ),
        pytest.param(
            3,
            0.01,
            3,
            True,
            0,
            "not within +-1 % after 3 blocks, the limit: a, the first check is at 8 blocks",
            id="fewer were allowed",
        ),
    ],
)
def test_decisions(blocks: int, target: float, most: int | None, done: bool, add: int, sentence: str) -> None:
    calm = [100 + 0.01 * figure for figure in FIGURES]
    decision = decision_of(
        {"a": single_contrast(FIGURES[:blocks]), "calm": single_contrast(calm[:blocks])}, target=target, most=most
    )

    assert (decision.is_done, decision.add) == (done, add)
    assert decision.reason == sentence


def test_every_series_has_to_be_narrow() -> None:
    """One that lacks a block has its own number of blocks."""
    whole, lacking, few = (single_contrast(FIGURES[:blocks]) for blocks in (10, 9, 7))
    decision = decision_of({"whole": whole, "lacks one": lacking, "too few": few}, target=0.1)

    assert not decision.is_done
    assert decision.widest == "too few"
    assert decision_of({"whole": whole, "lacks one": lacking}, target=0.1).is_done


def naive(figures: list[float], *, target: float) -> tuple[float, float]:
    """What peeking after every block from the second on does: the first narrow interval of 95 %."""
    for blocks in count(2):
        logs = [math.log(figure) for figure in figures[:blocks]]
        reach = student_reach(stdev(logs) / math.sqrt(blocks), blocks - 1, 0.95)
        if math.expm1(reach) <= target or blocks == len(figures):
            return fmean(logs) - reach, fmean(logs) + reach
    raise AssertionError


@pytest.mark.parametrize("one_in", [10, 30])
def test_coverage_with_slow_blocks(one_in: int) -> None:
    """Blocks of which one in ten or thirty takes 20 % longer: the figure of an ordinary block is covered, and soon."""
    rng = random.Random(7)
    held, taken = 0, []
    for _ in range(60):
        figures = [math.exp(rng.gauss(0, 0.005)) / (1.2 if rng.random() < 1 / one_in else 1.0) for _ in range(55)]
        decision = next(
            made
            for blocks in looks()
            if (made := decision_of({"a": single_contrast(figures[:blocks])}, target=0.01, most=55)).is_done
        )
        stand = decision.precisions["a"]
        assert stand.is_narrow
        held += (stand.low or 0) <= 1 <= (stand.high or 0)
        taken.append(decision.blocks)
    assert held >= 56
    assert median(taken) <= 17


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
            decision = decision_of({"a": single_contrast(figures[:blocks])}, target=0.01)
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
