"""The course of a tuning: order, levels, combination and end, with duels whose results are given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from launcher.duel.referee import Losses
from launcher.tune.candidates import Candidate
from launcher.tune.evidence import ERROR, Decision, Evidence, Trial
from launcher.tune.tune import ALL, SLACK, Base, Fought, Row, Tuning
from workload.contract.errors import InterruptedRunError, RunFailedError

YES, NO, BAD, OPEN = Decision.ACCEPTED, Decision.BELOW, Decision.FAILED, Decision.OPEN


@dataclass(frozen=True, kw_only=True)
class Known(Candidate):
    """A candidate with a given bound; `sets`: two with the same exclude each other."""

    most: float | None
    sets: str = ""

    @property
    def keys(self) -> frozenset[str]:
        return frozenset({self.sets or self.text})

    def bound(self, run: Any, steps: Any) -> float | None:
        del run, steps
        return self.most


@dataclass
class Fights:
    """Duels that gives results by change, and notes who fought whom; a duel takes 100 s. `runs`: those of each.

    `gains`: growth of throughput, or error, of first runs, which take `first_s`.
    """

    results: Mapping[str, Decision]
    runs: int = 28
    run_s: float = 100 / 28 / SLACK
    gains: Mapping[str, float | Exception] = field(default_factory=dict)
    first_s: float = 10.0
    ran_first: list[str] = field(default_factory=list)
    clock_s: float = 0.0
    fought: list[tuple[str, tuple[str, ...], tuple[str, ...], float]] = field(default_factory=list)
    allowed_s: list[float] = field(default_factory=list)

    def first(self, candidate: Candidate, *, max_time_s: float) -> float:
        assert max_time_s > 0
        if not self.gains:
            return 0.0
        self.clock_s += self.first_s
        self.ran_first.append(candidate.text)
        gain = self.gains[candidate.text]
        if isinstance(gain, Exception):
            raise gain
        return gain

    def fight(self, trial: Trial, a: Sequence[Candidate], b: Sequence[Candidate], *, max_time_s: float) -> Fought:
        self.allowed_s.append(max_time_s)
        self.clock_s += 100.0
        name = ALL if trial.is_final else trial.change
        self.fought.append((name, *(tuple(each.text for each in side) for side in (a, b)), trial.error))
        bundles = {f"{number}": "" for number in range(self.runs)}
        return Fought(trial=replace(trial, decision=self.results[name], bundles=bundles), base=base(*b))


def base(*candidates: Candidate) -> Base:
    return Base(candidates=candidates, run_id="r", run=cast("Any", None), steps=())


def tuning(fights: Fights, *candidates: Known, max_time_s: float = 10_000.0) -> Tuning:
    return Tuning(
        evidence=Evidence(rooflaunch="", command=(), margin=0.02, losses=Losses.ROUNDING),
        base=base(),
        candidates=lambda _: candidates,
        duels=fights,
        max_time_s=max_time_s,
        save=lambda _: None,
        now=lambda: fights.clock_s,
    )


def decided(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return [(row.text, row.trial.decision if row.trial else row.why_not) for row in rows]


A, B, C = Known(text="a", most=0.1), Known(text="b", most=0.5), Known(text="c", most=None)


def test_largest_bound_is_tried_first_then_in_combination_and_in_the_end_all_against_the_original() -> None:
    small, refused = Known(text="small", most=0.019), Known(text="gpu", most=0.3, why_not="no GPU")
    fights = Fights({"a": YES, "b": YES, "c": NO, ALL: YES})

    rows = list(tuning(fights, A, small, C, refused, B).run())

    assert [each[:3] for each in fights.fought] == [
        ("b", (), ("b",)),
        ("a", ("b",), ("b", "a")),
        ("c", ("b", "a"), ("b", "a", "c")),
        (ALL, (), ("b", "a")),
    ]
    assert decided(rows) == [
        ("b", YES), ("a", YES), ("c", NO), ("small", "below 2 % at most"), ("gpu", "no GPU"), (ALL, YES),
    ]  # fmt: skip


def test_order_is_that_of_the_first_runs() -> None:
    results, gains = dict.fromkeys("abcd", NO), {"a": 0.01, "b": -0.2, "d": 0.5, "e": RunFailedError("no", hint="")}
    d, e = Known(text="d", most=0.2), Known(text="e", most=0.3)
    fights = Fights(results, gains=gains)

    rows = list(tuning(fights, A, B, C, d, e, max_time_s=165.0).run())

    assert fights.ran_first == ["b", "e", "d", "a"]
    assert [each[0] for each in fights.fought] == ["d"]
    assert decided(rows)[:2] == [("e", BAD), ("d", NO)]


def test_change_for_whose_first_run_there_was_no_time_comes_before_those_that_were_slower() -> None:
    fights = Fights({"a": NO, "b": NO, "c": NO}, gains={"a": 0.01, "b": -0.2}, first_s=124.0)

    list(tuning(fights, A, B, C, max_time_s=1000.0).run())

    assert fights.ran_first == ["b", "a"]
    assert [each[0] for each in fights.fought] == ["a", "c", "b"]


def test_only_change_has_no_first_run() -> None:
    fights = Fights({"a": NO}, gains={"a": 0.1})

    list(tuning(fights, A, Known(text="gpu", most=0.3, why_not="no GPU")).run())

    assert fights.ran_first == []


def test_interruption_of_a_first_run_ends_the_tuning() -> None:
    fights = Fights({}, gains={"b": InterruptedRunError("Ctrl-C", hint="")})

    rows = list(tuning(fights, A, B).run())

    assert fights.fought == []
    assert decided(rows) == [("a", "the tuning was interrupted"), ("b", "the tuning was interrupted")]


def test_named_change_is_tried_first_even_if_its_bound_is_below_the_margin() -> None:
    fights = Fights({"asked": NO, "b": NO})

    list(tuning(fights, B, Known(text="asked", most=0.001, is_asked=True)).run())

    assert [each[0] for each in fights.fought] == ["asked", "b"]


def test_single_accepted_change_has_already_fought_the_original() -> None:
    fights = Fights({"a": NO, "b": YES})

    list(tuning(fights, A, B).run())

    assert [each[0] for each in fights.fought] == ["b", "a"]


def test_later_value_replaces_the_accepted_one_that_sets_the_same() -> None:
    two, four = Known(text="workers=2", most=0.5, sets="workers"), Known(text="workers=4", most=0.4, sets="workers")
    fights = Fights({"workers=2": YES, "workers=4": YES})

    rows = list(tuning(fights, two, four).run())

    assert fights.fought[1][1:3] == (("workers=2",), ("workers=4",))
    assert decided(rows)[-1] == ("workers=4", YES)


def test_levels_are_larger_if_there_is_no_time_for_all_changes() -> None:
    """Of three parts a duel takes 6 quadruples, 86 s, of four 7, 100 s; there are 300 s."""
    fights = Fights({"a": NO, "b": NO, "c": NO})

    list(tuning(fights, A, B, C, max_time_s=300).run())

    assert fights.fought[0][3] == pytest.approx(0.05 / 3)


def test_change_that_fails_before_the_first_look_at_the_times_gives_its_level_back() -> None:
    """There is time for two duels at half of the level, and after the first for one."""
    for runs, level in ((3, ERROR), (4, ERROR / 2)):
        fights = Fights({"a": NO, "b": BAD}, runs)
        list(tuning(fights, B, A, max_time_s=250).run())
        assert [each[0::3] for each in fights.fought] == [("b", ERROR / 2), ("a", level)]


def test_open_duel_goes_on_once_after_the_others_with_the_time_that_is_left() -> None:
    fights = Fights({"a": NO, "b": OPEN})

    rows = list(tuning(fights, A, B, max_time_s=1000).run())

    assert [each[0] for each in fights.fought] == ["b", "a", "b"]
    assert fights.fought[2][3] == fights.fought[0][3]
    assert fights.allowed_s == [700, 630, 800]
    assert decided(rows) == [("a", NO), ("b", OPEN)]


def test_only_duel_that_there_is_time_for_gets_all_of_the_time() -> None:
    fights = Fights({"a": NO, "b": NO})

    list(tuning(fights, A, B, max_time_s=120).run())

    assert (fights.allowed_s, fights.fought[0][3]) == ([120], 0.05)


def test_open_duel_that_has_the_whole_level_goes_on() -> None:
    fights = Fights({"b": OPEN})

    rows = list(tuning(fights, B, max_time_s=190).run())

    assert [each[3] for each in fights.fought] == [0.025, 0.025]
    assert decided(rows) == [("b", OPEN)]

    fights = Fights({"b": OPEN}, runs=0)
    list(tuning(fights, B, A, max_time_s=160).run())
    assert [each[0::3] for each in fights.fought] == [("b", 0.05)]


@pytest.mark.parametrize(
    ("results", "levels"),
    [
        # 5 % in four parts (three changes and the final trial), of which each change that is not accepted takes one.
        pytest.param((NO, NO, NO), (0.05 / 4, 0.05 / 4, 0.05 / 4), id="nothing is accepted"),
        # An accepted change gives its part back: 5 % / 4, then 5 % / 3, then what is left / 2; all of it at the end.
        pytest.param((YES, YES, NO), (0.05 / 4, 0.05 / 3, 0.05 / 2, 0.05 / 2), id="two are accepted"),
        pytest.param((BAD, YES, YES), (0.05 / 4, 0.05 * 3 / 4 / 3, 0.05 * 3 / 4 / 2, 0.05 * 3 / 4), id="one fails"),
    ],
)
def test_levels_of_changes_that_are_not_accepted_add_up_to_five_percent(
    results: Sequence[Decision], levels: Sequence[float]
) -> None:
    fights = Fights({**dict(zip("bac", results, strict=True)), ALL: YES})

    course = tuning(fights, A, B, C)
    list(course.run())

    assert [each[3] for each in fights.fought] == pytest.approx(levels)
    spent = sum(trial.error for trial in course.evidence.trials if trial.decision is not YES)
    assert spent <= ERROR
    assert course.evidence.wealth == pytest.approx(ERROR - spent)


def test_time_is_kept_for_the_final_trial() -> None:
    fights = Fights({"a": YES, "b": YES, "c": YES, ALL: YES})

    course = tuning(fights, A, B, C, max_time_s=360.0)
    rows = list(course.run())

    assert decided(rows) == [
        ("b", YES),
        ("a", YES),
        ("c", "a duel takes 86 s or more, that of all changes together 86 s, and 2 min of 6 min are left"),
        (ALL, YES),
    ]
    assert rows[2].is_open
