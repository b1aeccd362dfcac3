"""`--until`: its options, its figures, and when it stops; benchmarks/blocks.py has its coverage at length."""

import math
import random
from statistics import median

import pytest

from launcher.sweep.places import Until, decide, decision_of, until_of
from tests.launcher.sweep.sweeps import configurations_of
from tests.launcher.told import Golden
from workload.contract.errors import UsageError
from workload.contract.spec import Precision, RunSpec
from workload.stats.design import Run
from workload.stats.intervals import looks, single_contrast

CONFIGURATIONS = configurations_of(
    RunSpec(), model=["resnet18", "resnet50"], precision=[Precision.FP32, Precision.BF16]
)


def figures_of(**by_model: float) -> list[Run]:
    """Each precision varies with the host of its block; bf16 is always twice as fast."""
    hosts = (1.0, 1.1, 0.9, 1.05, 0.95, 1.1, 0.9, 1.0)
    wobble = (1.0, 1.001, 0.999, 1.0005, 1.0, 1.001, 0.9995, 1.0)
    factor = {Precision.FP32: 1.0, Precision.BF16: 2.0}
    return [
        Run(
            figure=by_model[one.spec.model]
            * factor[one.spec.precision]
            * host
            * wobble[block] ** factor[one.spec.precision],
            configuration=one.spec,
            block=block,
        )
        for block, host in enumerate(hosts)
        for one in CONFIGURATIONS
        if one.spec.model in by_model
    ]


def test_when_to_stop() -> None:
    assert until_of(None, None) is None
    assert until_of("1%", None) == Until(share=0.01)
    assert until_of("0.05", 8) == Until(share=0.05, most=8)
    with pytest.raises(UsageError) as refused:
        until_of(None, 5)
    assert str(refused.value) == "--max-repeats limits the blocks that --until adds; got 5 without it"
    assert refused.value.hint == "repeats = 5 in the matrix, or --until 1%"


def test_every_throughput_has_to_be_narrow() -> None:
    throughput = decide(Until(share=0.02), CONFIGURATIONS, figures_of(resnet18=100.0, resnet50=30.0))
    assert not throughput.is_narrow
    assert len(throughput.precisions) == 4


def test_what_was_never_measured_is_left_out() -> None:
    assert set(decide(Until(share=0.5), CONFIGURATIONS, figures_of(resnet18=100.0)).precisions) == {
        "resnet18, precision fp32",
        "resnet18, precision bf16",
    }
    nothing = decide(Until(share=0.5), CONFIGURATIONS, [])
    assert nothing.is_done
    assert not nothing.is_narrow


def test_one_block_is_no_basis() -> None:
    figures = [Run(figure=100.0, configuration=one.spec, block=1) for one in CONFIGURATIONS]
    decision = decide(Until(share=0.5), CONFIGURATIONS, figures)
    assert (decision.is_done, decision.add) == (False, 7)


# Blocks that are less alike than independent ones, without a trend.
FIGURES = (100.0, 103.0, 98.0, 102.0, 99.0, 101.5, 98.5, 101.0, 99.5, 102.5, 97.5, 100.5, 100.0)


# Blocks, target, and the most blocks that are allowed.
DECISIONS: dict[str, tuple[int, float, int | None]] = {
    "nothing yet": (0, 0.01, None),
    "go on": (10, 0.01, None),
    "narrow": (10, 0.05, None),
    "narrow, but between two looks": (9, 0.05, None),
    "narrow at the most that are allowed": (9, 0.05, 9),
    "never narrow": (9, 0.01, 9),
    "fewer are allowed than a look takes": (2, 0.01, 3),
    "fewer were allowed": (3, 0.01, 3),
}


def test_when_blocks_are_enough(golden: Golden) -> None:
    calm = [100 + 0.01 * figure for figure in FIGURES]
    text = ""
    for name, (blocks, target, most) in DECISIONS.items():
        series = {"a": single_contrast(FIGURES[:blocks]), "calm": single_contrast(calm[:blocks])}
        decision = decision_of(series, target=target, most=most)
        text += f"{name}: {'done' if decision.is_done else f'add {decision.add}'}: {decision.reason}\n"
    golden("until.txt", text)


def test_every_series_has_to_be_narrow() -> None:
    """One that lacks a block has its own number of blocks."""
    whole, lacking, few = (single_contrast(FIGURES[:blocks]) for blocks in (10, 9, 7))
    decision = decision_of({"whole": whole, "lacks one": lacking, "too few": few}, target=0.1)

    assert not decision.is_done
    assert decision.widest == "too few"
    assert decision_of({"whole": whole, "lacks one": lacking}, target=0.1).is_done


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
