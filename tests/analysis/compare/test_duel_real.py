"""Duels of real steps: a small seeded part of them here, and what the committed ones say."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import duel, duel_real
from benchmarks.duel_real import Machine
from benchmarks.resumable import Results
from launcher.duel.decision import PATTERNS, DuelVerdict
from tests.waiting import until


def test_what_was_measured_holds_what_is_promised() -> None:
    """At least 400 duels of a program against itself; a false verdict in at most 5 % of them, by the upper bound.

    They were judged by the bet on signs alone, which is half of the rule of today.
    """
    results = Results(duel.REAL)
    chunks = [
        chunk
        for condition in duel_real.CONDITIONS
        for chunk in duel_real.chunks_of(results, condition, duels=duel.REAL_DUELS)
    ]
    verdicts = [verdict for chunk in chunks for verdict in chunk["A/A"]["signs alone"]]
    false = sum(verdict in (DuelVerdict.SLOWER, DuelVerdict.FASTER) for verdict in verdicts)
    assert len(verdicts) >= 400
    assert duel.upper_bound(false, len(verdicts)) <= 0.05
    slower = [verdict for chunk in chunks for verdict in chunk["B 3 % slower"]["signs alone"]]
    decided = [verdict for verdict in slower if verdict != DuelVerdict.NOT_DECIDABLE]
    assert decided.count(DuelVerdict.SLOWER) >= 0.9 * len(decided)


def test_the_page_says_what_was_measured() -> None:
    page = " ".join((Path(duel.__file__).parents[1] / "docs/blocks.md").read_text().split())
    same, slower = (
        " ".join(duel.real_table(Results(duel.REAL), effect, duels=duel.REAL_DUELS)) for effect in duel_real.EFFECTS
    )
    false = re.search(r"signs alone: (\d+) wrong of (\d+); at most (\S+)%", same)
    right = re.search(r"right in (\d+) of (\d+)", slower)
    assert false
    assert right
    assert f"{false[1]} of {false[2]} (at most {false[3]} %, upper 95 % bound)" in page
    assert f"{right[1]} of {right[2]} as *slower*" in page


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(stack)


@pytest.mark.slow
@pytest.mark.world
@pytest.mark.parametrize("condition", duel_real.CONDITIONS)
def test_a_duel_of_real_steps(condition: str, machine: Machine) -> None:
    segments = machine.duel(condition, slower=0.03, seed=1, quadruples=3)
    assert [segment.position for segment in segments] == list(range(len(segments)))
    assert len(segments) % 4 == 0
    variants = "".join(segment.variant for segment in segments)
    assert {variants[start : start + 4] for start in range(0, len(variants), 4)} <= set(PATTERNS)
    assert all(segment.seconds > 0 for segment in segments)
    assert duel.verdicts(segments)["duel"] == DuelVerdict.NOT_DECIDABLE
    # All is left as it was.
    assert_stopped(machine.neighbours, is_stopped=True)
    assert_stopped(machine.trainers, is_stopped=False)


def assert_stopped(pids: list[int], *, is_stopped: bool) -> None:
    """Wait for it: a signal waits until its process has a turn, and the machine may be busy."""

    def states() -> list[str]:
        return [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] for pid in pids]

    # T: stopped.
    until(lambda: all((state == "T") == is_stopped for state in states()), states)
