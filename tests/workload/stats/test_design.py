"""Two-way analysis: against numpy's least squares, noisy configurations, and coverage of few designs.

benchmarks/blocks.py --parts order design is the long version.
"""

import math
import random
from dataclasses import replace
from statistics import fmean, variance

import numpy as np
import pytest
from scipy import stats

from benchmarks import blocks
from workload.stats.design import Design, Run


def runs_of(
    many: int, count: int, *, seed: int, effect: float = 0.0, scatter: dict[int, float] | None = None, lost: float = 0.0
) -> list[Run]:
    """Runs of configurations that are 10 % apart, in blocks of random order; `effect`: added at each later position."""
    rng = random.Random(seed)
    runs = []
    for block in range(count):
        names = list(range(many))
        rng.shuffle(names)
        for position, name in enumerate(names, start=1):
            noise = rng.gauss(0, 0.01 * (scatter or {}).get(name, 1.0))
            if rng.random() >= lost:
                figure = math.exp(0.1 * name + 0.05 * block + effect * position + noise)
                runs.append(Run(figure=figure, configuration=name, block=block, position=position))
    return runs


def alike(many: int, count: int, *, effect: float = 0.0, lost: float = 0.0) -> list[Run]:
    """Runs in which by chance no configuration scatters more than the others."""
    drawn = (runs_of(many, count, seed=seed, effect=effect, lost=lost) for seed in range(100))
    return next(runs for runs in drawn if not Design(runs).noisy)


def of_numpy(runs: list[Run], weights: dict[int, float], *, terms: int) -> tuple[float, float, int]:
    """Value, standard error and degrees of freedom by numpy's pseudo-inverse."""
    names, numbers = sorted({run.configuration for run in runs}), sorted({run.block for run in runs})  # type: ignore[type-var]
    after = [(run.position or 1) - 1 for run in runs]
    positions = [[min(one, 1.0), max(one - 1.0, 0.0)][:terms] for one in after]
    matrix = np.array(
        [
            [float(run.configuration == name) for name in names]
            + [float(run.block == number) for number in numbers]
            + position
            for run, position in zip(runs, positions, strict=True)
        ]
    )
    logs = np.log([run.figure for run in runs])
    inverse = np.linalg.pinv(matrix.T @ matrix)
    fitted = inverse @ matrix.T @ logs
    degrees = len(runs) - int(np.linalg.matrix_rank(matrix))
    squares = float(((logs - matrix @ fitted) ** 2).sum())
    weighted = np.zeros(matrix.shape[1])
    for name, weight in weights.items():
        weighted[names.index(name)] = weight
    return float(weighted @ fitted), math.sqrt(squares / degrees * float(weighted @ inverse @ weighted)), degrees


@pytest.mark.parametrize(
    ("many", "count", "lost", "terms"),
    [(6, 3, 0.0, 2), (3, 10, 0.0, 2), (4, 9, 0.2, 2), (12, 4, 0.1, 2), (2, 6, 0.0, 1), (3, 3, 0.0, 0)],
)
def test_least_squares_are_numpys(many: int, count: int, lost: float, terms: int) -> None:
    runs = alike(many, count, effect=0.002, lost=lost)
    contrast = Design(runs).contrast({0: -1.0, 1: 1.0})

    assert contrast.shared == many
    assert (contrast.value, contrast.error, contrast.degrees) == pytest.approx(
        of_numpy(runs, {0: -1.0, 1: 1.0}, terms=terms), rel=1e-9
    )


def test_an_average_over_combinations_is_one_contrast() -> None:
    runs = alike(6, 4)
    weights = {0: -0.5, 2: -0.5, 1: 0.5, 3: 0.5}
    contrast = Design(runs).contrast(weights)

    assert (contrast.value, contrast.error, contrast.degrees) == pytest.approx(
        of_numpy(runs, weights, terms=2), rel=1e-9
    )
    assert contrast.blocks == 4


@pytest.mark.parametrize("known", [True, False])
def test_two_configurations_are_the_paired_t_test(known: bool) -> None:
    """With five blocks, terms for positions would cost a quarter of the degrees of freedom: there are none."""
    runs = [replace(run, position=run.position if known else None) for run in runs_of(2, 5, seed=4)]
    contrast = Design(runs).contrast({0: -1.0, 1: 1.0})

    expected = stats.ttest_rel(
        *([math.log(run.figure) for run in runs if run.configuration == name] for name in (1, 0))
    )
    sides = [{run.block: math.log(run.figure) for run in runs if run.configuration == name} for name in (0, 1)]
    differences = [sides[1][block] - sides[0][block] for block in range(5)]
    assert contrast.value == pytest.approx(fmean(differences))
    assert contrast.error == pytest.approx(math.sqrt(variance(differences) / 5))
    assert contrast.degrees == expected.df == 4


def test_one_position_that_is_not_known_leaves_all_of_them_out() -> None:
    runs = alike(6, 4, effect=0.05)
    first, *others = runs
    without = replace(first, position=None)

    assert Design(runs).has_positions
    assert not Design([without, *others]).has_positions


def test_positions_that_cannot_be_told_from_configurations_leave_each_pair_to_its_own_blocks() -> None:
    """In a, b, c and c, b, a the configuration b is always second: its effect is that of the position."""
    rng = random.Random(1)
    runs = [
        Run(
            figure=math.exp(rng.gauss(0, 0.001) - 0.03 * (position == 2)),
            configuration=name,
            block=block,
            position=position,
        )
        for block in range(6)
        for position, name in enumerate("abc" if block % 2 else "cba", start=1)
    ]
    design = Design(runs)

    assert not design.has_positions
    assert design.noisy == {"a", "b", "c"}
    assert design.contrast({"a": -1.0, "b": 1.0}).shared == 0


def test_positions_are_taken_out_of_the_difference() -> None:
    plain, tired = (Design(runs_of(6, 3, seed=2, effect=effect)).contrast({0: -1.0, 1: 1.0}) for effect in (0, -0.05))

    assert (tired.value, tired.error) == pytest.approx((plain.value, plain.error), rel=1e-9)


def test_a_configuration_that_scatters_more_rests_on_its_own_blocks() -> None:
    drawn = (Design(runs_of(6, 5, seed=seed, scatter={2: 8.0})) for seed in range(100))
    design = next(candidate for candidate in drawn if candidate.noisy == {2})
    noisy, calm = design.contrast({0: -1.0, 2: 1.0}), design.contrast({0: -1.0, 1: 1.0})

    assert (noisy.noisy, noisy.shared, noisy.degrees) == ((2,), 0, 4)
    assert calm.shared == 5
    assert calm.degrees == (calm.shared - 1) * 4 - 2
    assert noisy.error > 3 * calm.error


def test_several_runs_of_a_block_are_one() -> None:
    first, *others = runs_of(3, 4, seed=1)
    halves = [replace(first, figure=first.figure * factor) for factor in (0.5, 2.0)]
    twice, once = (Design(runs).contrast({0: -1.0, 1: 1.0}) for runs in ([*halves, *others], [first, *others]))

    assert (twice.value, twice.error, twice.degrees) == pytest.approx((once.value, once.error, once.degrees))


def in_blocks(first: list[float], second: list[float]) -> list[Run]:
    return [
        Run(figure=figure, configuration=name, block=block, position=position)
        for name, position, figures in (("a", 1, first), ("b", 2, second))
        for block, figure in enumerate(figures)
    ]


COPIES = "the difference is exactly the same in 3 blocks: no interval (perhaps they are copies of one block)"


@pytest.mark.parametrize(
    ("runs", "value", "blocks", "reason"),
    [
        pytest.param([], None, 0, "0 blocks with both: no interval from fewer than 2", id="nothing"),
        pytest.param(
            in_blocks([1.0], []), None, 0, "0 blocks with both: no interval from fewer than 2", id="one value"
        ),
        pytest.param(
            in_blocks([1.0], [2.0]), math.log(2), 1, "1 block with both: no interval from fewer than 2", id="two values"
        ),
        pytest.param(in_blocks([3.0] * 3, [6.0] * 3), math.log(2), 3, COPIES, id="all equal"),
        pytest.param(in_blocks([3.0, 1.0, 2.0], [6.0, 2.0, 4.0]), math.log(2), 3, COPIES, id="the same difference"),
        pytest.param(
            in_blocks([0.0, -1.0, math.nan], [1.0, 2.0, math.inf]),
            None,
            0,
            "0 blocks with both: no interval from fewer than 2",
            id="zeros",
        ),
    ],
)
def test_no_interval_has_a_reason(runs: list[Run], value: float | None, blocks: int, reason: str) -> None:
    contrast = Design(runs).contrast({"a": -1.0, "b": 1.0})

    assert contrast.value == (None if value is None else pytest.approx(value))
    assert (contrast.error, contrast.blocks, contrast.reason) == (None, blocks, reason)


@pytest.mark.parametrize("lost", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("count", [2, 3, 12])
@pytest.mark.parametrize("many", [1, 2, 3, 12])
def test_every_design_has_an_answer(many: int, count: int, lost: float) -> None:
    """Blocks without a configuration, configurations without a block in common, and one run alone."""
    for seed in range(3):
        design = Design(runs_of(many, count, seed=seed, lost=lost))
        for name in range(1, many):
            contrast = design.contrast({0: -1.0, name: 1.0})
            if contrast.reason is None:
                assert contrast.degrees >= 1
                assert math.isfinite(contrast.value)
                assert 0 < contrast.error < 1
            else:
                assert contrast.error is None


@pytest.mark.slow
@pytest.mark.parametrize(("case", "alike", "noisy"), [("equal", 0.93, None), ("one noisy", 0.92, 0.9)])
def test_coverage(case: str, alike: float, noisy: float | None) -> None:
    """Six configurations in three blocks, by kind of pair; with three standard errors of 300 designs."""
    rng = np.random.default_rng(0)
    held: dict[bool, list[bool]] = {True: [], False: []}
    widths: list[tuple[float, float]] = []
    for seed in range(300):
        runs = blocks.designed(rng, case, many=6, count=3, seed=seed)
        own = blocks.intervals(runs, is_design=False)
        for pair, ends in blocks.intervals(runs, is_design=True).items():
            before = own[pair]
            held[noisy is not None and pair[0] == 0].append(ends[0] <= 0 <= ends[1])
            widths.append((ends[1] - ends[0], before[1] - before[0]))
    error = 3 * math.sqrt(0.05 * 0.95 / 300)
    assert alike - error < np.mean(held[False]) < 0.97 + error
    if noisy is None:
        assert np.median(widths, axis=0)[0] < 0.8 * np.median(widths, axis=0)[1]
    else:
        assert np.mean(held[True]) > noisy - error
