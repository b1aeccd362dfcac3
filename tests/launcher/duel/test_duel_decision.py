"""The rule of a duel, by hand and on machines that drift, wander and throttle."""

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice

import pytest

from launcher.duel.decision import (
    LEAST_QUADRUPLES,
    PATTERNS,
    DuelState,
    DuelVerdict,
    Segment,
    judge,
    least_quadruples,
    order,
)
from tests.launcher.told import Golden

# The log of a segment's seconds that the machine adds, by position.
Machine = Callable[[random.Random], Callable[[int], float]]


def segments(
    machine: Callable[[int], float], *, effect: float = 0.0, quadruples: int = 60, seed: int = 0
) -> list[Segment]:
    return [
        Segment(position=place, variant=variant, seconds=0.01 * math.exp(machine(place) + effect * (variant == "B")))
        for place, variant in enumerate(islice(order(seed), 4 * quadruples))
    ]


def quiet(rng: random.Random) -> Callable[[int], float]:
    return lambda _: rng.gauss(0, 0.01)


def interrupted(rng: random.Random) -> Callable[[int], float]:
    """A neighbour comes and goes, for a quarter of the time: with it all takes 15 % longer."""
    is_there = False

    def level(_: int) -> float:
        nonlocal is_there
        is_there ^= rng.random() < (0.2 if is_there else 0.07)
        return rng.gauss(0, 0.005) + 0.15 * is_there

    return level


def still(rng: random.Random) -> Callable[[int], float]:
    return lambda _: rng.gauss(0, 0.001)


def noisy(rng: random.Random) -> Callable[[int], float]:
    return lambda _: rng.gauss(0, 0.1)


def drifting(rng: random.Random) -> Callable[[int], float]:
    return lambda position: rng.gauss(0, 0.01) + 0.005 * position


def heavy(rng: random.Random) -> Callable[[int], float]:
    """Cauchy noise."""
    return lambda _: 0.003 * math.tan(math.pi * (rng.random() - 0.5))


def wandering(rng: random.Random) -> Callable[[int], float]:
    level = 0.0

    def next_level(_: int) -> float:
        nonlocal level
        level = 0.9 * level + rng.gauss(0, 0.01)
        return level

    return next_level


def throttled(rng: random.Random) -> Callable[[int], float]:
    """Half as slow again for some segments, in step with the pattern: every fourth position and its neighbour."""
    return lambda position: rng.gauss(0, 0.01) + 0.4 * (position % 4 in (1, 2))


MACHINES: dict[str, Machine] = {
    machine.__name__: machine for machine in (quiet, drifting, interrupted, heavy, wandering, throttled)
}


def verdicts(machine: Machine, *, effect: float, duels: int, quadruples: int = 60) -> list[DuelVerdict | None]:
    return [
        judge(
            segments(machine(random.Random(seed)), effect=effect, quadruples=quadruples, seed=seed + 1000),
            ended="the time is over",
        ).verdict
        for seed in range(duels)
    ]


@pytest.mark.parametrize("name", MACHINES)
def test_a_program_against_itself_is_not_called_slower_or_faster(name: str) -> None:
    """Also where the machine is in step with the pattern: the lot decides which variant it hits."""
    reached = verdicts(MACHINES[name], effect=0.0, duels=100, quadruples=40)

    wrong = sum(verdict in (DuelVerdict.SLOWER, DuelVerdict.FASTER) for verdict in reached)
    # 2 % of 100, and 3 standard errors above that: of a machine that the pattern hits as badly as can be.
    assert wrong <= (6 if name == "throttled" else 1)
    if name in ("quiet", "drifting", "interrupted"):
        assert reached.count(DuelVerdict.SAME) >= 93


@pytest.mark.parametrize("effect", [0.03, -0.03])
@pytest.mark.parametrize("name", ["quiet", "drifting", "interrupted", "heavy", "wandering"])
def test_three_percent_are_seen(name: str, effect: float) -> None:
    reached = verdicts(MACHINES[name], effect=effect, duels=60)

    right = DuelVerdict.SLOWER if effect > 0 else DuelVerdict.FASTER
    assert reached.count(right) >= (48 if name == "heavy" else 57)
    assert set(reached) <= {right, DuelVerdict.NOT_DECIDABLE}


def test_looking_after_every_quadruple_changes_nothing() -> None:
    """A verdict stays: what comes after it is not looked at."""
    whole = segments(quiet(random.Random(3)), effect=0.03)
    states = [judge(whole[:count]) for count in range(0, len(whole), 4)]

    first = next(state for state in states if state.verdict)
    assert first.verdict is DuelVerdict.SLOWER
    assert judge(whole) == first
    assert all(state.verdict is None for state in states[: states.index(first)])
    assert judge([*whole[:40], *whole[:0]]) == judge(list(reversed(whole[:40])))


def test_the_interval_covers_the_truth_at_every_look() -> None:
    lost = 0
    for seed in range(50):
        machine = segments(wandering(random.Random(seed)), effect=0.01, quadruples=30, seed=seed)
        states = [judge(machine[: 4 * count], margin=0.0005) for count in range(5, 31, 5)]
        lost += any(state.low is not None and not state.low <= math.exp(0.01) <= (state.high or 0) for state in states)
    assert lost <= 4


def constant(pattern: str, a: float, b: float, *, first: int = 0) -> list[Segment]:
    return [
        Segment(position=first + place, variant=variant, seconds=a if variant == "A" else b)
        for place, variant in enumerate(pattern)
    ]


def test_six_quadruples_are_the_fewest() -> None:
    """Whatever the difference is: with one fewer, the lot gives equal differences one sign in 6 % of duels."""
    states = [judge(constant("ABBA" * count, 0.010, 0.011)) for count in (LEAST_QUADRUPLES - 1, LEAST_QUADRUPLES)]

    assert [state.verdict for state in states] == [None, DuelVerdict.SLOWER]
    assert [state.low is None for state in states] == [True, False]
    assert states[1].ratio == pytest.approx(1.1)


def test_the_margin_parts_the_verdicts() -> None:
    slower, same, faster = DuelVerdict.SLOWER, DuelVerdict.SAME, DuelVerdict.FASTER
    for effect, verdict, sign in (
        *((-0.05, faster, faster), (-0.015, same, faster), (0.0, same, None), (0.015, same, slower)),
        (0.05, slower, slower),
    ):
        state = judge(segments(still(random.Random(2)), effect=effect))
        assert (state.verdict, state.sign) == (verdict, sign)


def test_the_sign_is_known_where_only_the_margin_is_in_doubt() -> None:
    state = judge(segments(quiet(random.Random(1)), effect=0.02), ended="60 s are over")

    assert (state.verdict, state.sign) == (DuelVerdict.NOT_DECIDABLE, DuelVerdict.SLOWER)
    assert state.low is not None
    assert state.high is not None
    assert 1 < state.low < 1.02 < state.high
    busy = judge(on_busy(segments(quiet(random.Random(1)), effect=0.02), range(60)), ended="60 s are over")
    assert (busy.verdict, busy.sign) == (DuelVerdict.NOT_DECIDABLE, None)


@pytest.mark.parametrize("pattern", ["ABBA", "BAAB"])
def test_segments_that_all_take_the_same_time(pattern: str) -> None:
    """A figure for each field, and no traceback: the spread is that of a clock."""
    same = judge(constant(pattern * LEAST_QUADRUPLES, 0.010, 0.010))
    assert (same.verdict, same.sign, same.ratio) == (DuelVerdict.SAME, None, 1.0)
    assert same.reason.startswith("B takes the same time as A within 2 % (95 %: -")


def test_a_slow_segment_at_the_start_of_each_quadruple_is_no_evidence() -> None:
    """The lot gives six of them one sign in 3 % of duels; even then the segments of A differ as much as A and B do."""
    slow = [replace(one, seconds=0.0105) if one.position % 4 == 0 else one for one in constant("ABBA" * 8, 0.01, 0.01)]

    assert judge(slow[: 4 * LEAST_QUADRUPLES]).verdict is None
    assert judge(slow[: 4 * LEAST_QUADRUPLES]).sign is None


def test_sentences(golden: Golden) -> None:
    early = segments(quiet(random.Random(1)), quadruples=4)
    noise = segments(noisy(random.Random(1)), quadruples=12)
    cases: dict[str, tuple[Sequence[Segment], str | None]] = {
        "same": (segments(quiet(random.Random(1))), None),
        "slower": (segments(quiet(random.Random(1)), effect=0.03), None),
        "faster": (segments(quiet(random.Random(1)), effect=-0.1), None),
        "slower by less": (segments(still(random.Random(1)), effect=0.01), None),
        "noise": (noise, "60 s are over"),
        "early": (early, None),
        "undecided": (noise, None),
        "none complete": (early[:3], "60 s are over"),
    }
    golden(
        "sentences.txt", "".join(f"{name}: {judge(made, ended=end).reason}\n" for name, (made, end) in cases.items())
    )


def on_busy(made: Sequence[Segment], quadruples: Collection[int]) -> list[Segment]:
    """The same segments, the first one of each of these quadruples on a busy machine."""
    first = {4 * number for number in quadruples}
    return [replace(one, is_busy=one.position in first) for one in made]


def test_no_winner_where_only_the_busy_runs_tell() -> None:
    made = segments(quiet(random.Random(1)), effect=0.1, quadruples=20)
    assert judge(made).reason == judge(on_busy(made, ())).reason
    # Quiet quadruples name a winner later, and alone.
    late = judge(on_busy(made, range(3)))
    assert (late.verdict, late.busy, late.withheld) == (DuelVerdict.SLOWER, 3, None)
    assert late.quadruples == judge(made).quadruples + 3
    assert late.reason.endswith("after 36 runs; 3 of 36 runs on a busy machine")
    # Without any there is no winner, and the duel ends undecided.
    never = judge(on_busy(made, range(20)), ended="60 s are over")
    assert (never.verdict, never.withheld, never.busy) == (DuelVerdict.NOT_DECIDABLE, DuelVerdict.SLOWER, 20)
    assert never.reason.endswith(
        "20 of 80 runs on a busy machine, and without these runs it is unknown whether B is slower"
    )
    assert judge(on_busy(made, range(20))).expected is None


def test_a_quadruple_with_a_segment_without_time_is_left_out() -> None:
    made = segments(quiet(random.Random(1)), effect=0.05, quadruples=20)
    broken = [
        Segment(position=one.position, variant=one.variant, seconds=math.nan) if one.position == 5 else one
        for one in made
    ]

    state: DuelState = judge(broken)

    assert (state.left_out, state.verdict) == (1, DuelVerdict.SLOWER)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_segments_without_a_time_alone_leave_nothing(seconds: float) -> None:
    state = judge(constant("ABBA" * 6, 0.01, seconds), ended="60 s are over")

    assert (state.left_out, state.quadruples, state.ratio, state.low) == (6, 0, None, None)
    assert state.reason == "60 s are over before 4 runs were complete"


def test_extreme_times_have_a_verdict() -> None:
    """Far slower, far faster, and as long as a clock's tick."""
    verdicts = (DuelVerdict.SLOWER, DuelVerdict.FASTER, DuelVerdict.SAME)
    for (a, b), verdict in zip(((1e-6, 1e3), (1e3, 1e-6), (1e-9, 1e-9)), verdicts, strict=True):
        state = judge(constant("BAAB" * 6, a, b))
        assert (state.verdict, "nan" in state.reason) == (verdict, False)


def test_the_order_is_drawn_by_lot_and_repeatable() -> None:
    drawn = ["".join(islice(order(seed), 400)) for seed in (1, 1, 2)]

    quadruples = [drawn[0][start : start + 4] for start in range(0, 400, 4)]
    assert set(quadruples) == set(PATTERNS)
    assert 30 < quadruples.count("ABBA") < 70
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("error", "least"),
    # 2 / 2^6 is 3.1 %, 2 / 2^7 is 1.6 %, 2 / 2^8 is 0.8 %.
    [(0.1, 6), (0.05, 6), (0.025, 7), (0.01, 8)],
)
def test_random_order_alone_keeps_the_level(error: float, least: int) -> None:
    assert least_quadruples(error) == least
    # Each quadruple's ends are slow, and by chance its inner segments are always B.
    runs = [
        Segment(position=place, variant="ABBA"[place % 4], seconds=1.0 if place % 4 in (0, 3) else 0.5)
        for place in range(4 * least)
    ]
    assert judge(runs[:-4], error=error).verdict is None
    assert judge(runs[:-4], error=error).low is None
