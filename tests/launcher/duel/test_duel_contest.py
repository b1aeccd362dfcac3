"""The course of a duel, with segments whose times are known."""

import math
import random
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.duel import contest
from launcher.duel.contest import Limits, Measured, OutOfTimeError, Work, comparison_of, fight, make_limits
from launcher.duel.decision import DuelVerdict
from launcher.duel.sides import Pair, Side
from launcher.machine import local
from launcher.machine.containers import ContainerLimits
from launcher.machine.local import LocalOutcome
from launcher.machine.runtime import Choice
from tests.launcher.told import Golden, told
from workload.contract.errors import (
    InterruptedRunError,
    OutOfDeviceMemoryError,
    RooflaunchError,
)
from workload.contract.process import interruption
from workload.contract.spec import resolve
from workload.contract.trainer import Forks
from workload.contract.verdict import PageFaults


def make_pair(*, are_equal: bool = False) -> Pair:
    choice = Choice(runtime=Runtime.PROCESS, why="a duel of options")
    plan = local.make_plan(resolve({}, {}, None), choice, output=Path("out"), limits=ContainerLimits())
    a = Side(variant="A", label="--precision fp32", plan=plan)
    return Pair(a=a, b=Side(variant="B", label="--precision bf16", plan=plan), are_equal=are_equal)


WORK = Work(samples=16, flop=2e9)


class Machine:
    """Runs segments: 10 ms an image, B longer by `effect`; each takes `segment_s` on its clock.

    The segments before `busy_to` are on a busy machine. `b`: what a step of B does, where it is not what A's does.
    `faults`: page faults of segments, by position.
    """

    def __init__(
        self,
        *,
        effect: float = 0.0,
        noise: float = 0.001,
        segment_s: float = 5.0,
        wall: float = 0.0,
        busy_to: int = 0,
        b: Work | None = None,
        faults: Mapping[int, PageFaults] | None = None,
    ) -> None:
        self._effect, self._noise, self._segment_s, self._wall = effect, noise, segment_s, wall
        self._busy_to, self._works, self._faults = busy_to, {"A": WORK, "B": b or WORK}, faults or {}
        self._rng, self.clock_s, self.order = random.Random(0), 100.0, ""
        self.before: Callable[[int], None] = lambda _: None

    def measure(self, side: Side, *, name: str, position: int, left_s: float, tell: contest.Tell) -> Measured:
        del tell
        self.before(position)
        if self._segment_s > left_s:
            self.clock_s += left_s
            raise OutOfTimeError
        self.clock_s += self._segment_s
        self.order += side.variant
        is_b = side.variant == "B"
        image_s = 0.01 * math.exp(self._rng.gauss(0, self._noise) + self._effect * is_b)
        wall_s = image_s * math.exp(self._wall * is_b)
        folder, work = Path(f"{name}-{position}"), self._works[side.variant]
        busy = "other processes used the CPU: this run got 4 % of one" if position < self._busy_to else None
        return Measured(
            position=position,
            variant=side.variant,
            step_s=work.samples * image_s,
            sample_s=image_s,
            wall_step_s=work.samples * wall_s,
            wall_sample_s=wall_s,
            work=work,
            folder=folder,
            busy=busy,
            faults=self._faults.get(position),
        )

    def fight(self, limits: Limits) -> contest.Outcome:
        self.heard: list[str] = []
        return fight(
            make_pair(),
            limits,
            tell=self.heard.append,
            measure=self.measure,
            name="duel-00002a",
            now=lambda: self.clock_s,
        )


TEN_MINUTES = Limits(max_time_s=600)


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [
        pytest.param(0.0, DuelVerdict.SAME, id="same"),
        pytest.param(0.05, DuelVerdict.SLOWER, id="slower"),
        pytest.param(-0.05, DuelVerdict.FASTER, id="faster"),
    ],
)
def test_a_duel_ends_as_soon_as_it_is_decided(effect: float, verdict: DuelVerdict) -> None:
    machine = Machine(effect=effect)

    outcome = machine.fight(TEN_MINUTES)

    assert outcome.state.verdict is verdict
    assert (outcome.state.quadruples, len(outcome.segments), outcome.elapsed_s) == (6, 24, 120.0)
    assert {machine.order[start : start + 4] for start in range(0, 24, 4)} == {"ABBA", "BAAB"}
    assert len(machine.heard) == 6
    assert machine.heard[0].startswith("undecided after 1 quadruple")


def test_each_quadruple_has_a_start_server(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Noted(Forks):
        def end(self) -> None:
            seen.append("end")

    def run(*_: object, forks: Forks, **__: object) -> LocalOutcome:
        seen.append("run")
        assert isinstance(forks, Noted)
        return LocalOutcome(exit_code=0, bundles=())

    machine = Machine()
    monkeypatch.setattr(contest, "Forks", Noted)
    monkeypatch.setattr(contest.local, "run", run)
    monkeypatch.setattr(contest, "_failed", lambda *_: OutOfTimeError())
    with Noted(pytest.fail) as forks:
        for position in range(8):
            with pytest.raises(OutOfTimeError):
                contest.run_segment(
                    make_pair().a, name="duel-1", position=position, left_s=600, tell=pytest.fail, forks=forks
                )
    assert seen == [*["end", *["run"] * 4] * 2, "end"]
    seen.clear()
    assert machine.fight(TEN_MINUTES).state.verdict
    assert seen == ["end"]
    fight(make_pair(), TEN_MINUTES, tell=machine.heard.append, name="duel-00002a", now=lambda: 0.0)
    assert seen == ["end", "end", "run", "end"]


HALF_AN_HOUR = Limits(max_time_s=1800)
# Limits, noise of a run, and its seconds.
UNDECIDED: dict[str, tuple[Limits, float, float]] = {
    "time": (TEN_MINUTES, 0.03, 10.0),
    "runs": (Limits(max_time_s=600, max_segments=43), 0.03, 1.0),
    "hopeless": (TEN_MINUTES, 0.2, 30.0),
    "forecast": (HALF_AN_HOUR, 0.1, 10.0),
    "forecast of runs": (Limits(max_time_s=1800, max_segments=43), 0.1, 1.0),
    # The first quadruple is begun whatever it takes, and the run that is under way ends with the time.
    "under way": (TEN_MINUTES, 0.001, 250.0),
}


def test_what_cannot_be_decided_says_why(golden: Golden) -> None:
    text = ""
    for name, (limits, noise, segment_s) in UNDECIDED.items():
        outcome = Machine(noise=noise, effect=0.05, segment_s=segment_s).fight(limits)
        ended = f"{len(outcome.segments)} runs in {outcome.elapsed_s:.0f} s"
        text += f"{name}: {outcome.state.verdict} after {ended}: {outcome.state.reason}\n"
    golden("undecided.txt", text)


def test_an_interrupted_duel_keeps_its_segments() -> None:
    machine = Machine()

    def interrupt(position: int) -> None:
        if position == 6:
            raise interruption(2)

    machine.before = interrupt
    outcome = machine.fight(TEN_MINUTES)

    assert isinstance(outcome.interrupted, InterruptedRunError)
    assert len(outcome.segments) == 6
    assert outcome.state.reason.startswith("interrupted by Ctrl-C after 1 quadruple")


def test_what_is_compared(golden: Golden) -> None:
    def segment(variant: str, work: Work) -> Measured:
        return Measured(
            position=0, variant=variant, step_s=2.0, sample_s=0.1, wall_step_s=3.0, wall_sample_s=0.2, work=work,
            folder=Path(),
        )  # fmt: skip

    text = ""
    for name, (a, b) in {
        "the same": (WORK, WORK),
        "FLOP within 1 %": (WORK, Work(samples=16, flop=2.01e9)),
        "FLOP unknown": (WORK, Work(samples=16, flop=None)),
        "more FLOP": (WORK, Work(samples=16, flop=2.1e9)),
        "more samples": (WORK, Work(samples=32, flop=4e9)),
        "samples that nobody knows": (Work(samples=16), Work(unit="steps", samples=1)),
    }.items():
        comparison = comparison_of([segment("B", b), segment("A", a), segment("A", Work(samples=99))])
        seconds = [comparison.seconds(segment("A", a), wall=wall) for wall in (False, True)]
        assert seconds == ([0.1, 0.2] if comparison.by_sample else [2.0, 3.0])
        text += f"{name}: times of {'samples' if comparison.by_sample else 'steps'}. {comparison.text}\n"
    golden("compared.txt", text)


def test_the_wall_time_is_judged_too() -> None:
    outcome = Machine(wall=0.1).fight(TEN_MINUTES)

    assert (outcome.state.verdict, outcome.wall.verdict) == (DuelVerdict.SAME, DuelVerdict.SLOWER)


def limits_of(**typed: Any) -> Limits:
    return make_limits(**{"same_within": "2%", "max_time": "30m", "max_segments": None, **typed})


def test_limits_that_are_none(golden: Golden) -> None:
    cases = {f"same within {share}": partial(limits_of, same_within=share) for share in ("two", "0%", "51%", "nan%")}
    cases |= {"few runs": partial(limits_of, max_segments=23), "no time": partial(limits_of, max_time="soon")}
    for seconds, run_s in ((72, 3.0), (71, 3.0), (30, 60.0), (30, 0.0)):
        cases[f"{seconds} s for runs of {run_s:.0f} s"] = partial(Limits(max_time_s=seconds).warning, run_s)
    golden("limits.txt", told(cases))


MEMORY = OutOfDeviceMemoryError("the trainer was killed because memory ran out", hint="a smaller --batch-size")
# Exit code and last lines of a run.
FAILED: dict[str, tuple[int, list[str]]] = {
    "out of memory": (7, ["measured", "error: resnet18 at batch size 9000 does not fit", "hint: --batch-size 4500"]),
    "failed": (6, ["error: the training step failed: x: y", "hint: log.txt"]),
    "a bug": (1, ["Traceback (most recent call last):", "KeyError: 'x'"]),
    "an older commit that lacks an option": (2, ["error: unknown option --new", "hint: --help"]),
    "without a word": (3, []),
}


def test_a_side_that_fails_ends_the_duel_with_its_error(golden: Golden) -> None:
    def failed(code: int, lines: list[str], error: RooflaunchError | None = None) -> None:
        outcome = LocalOutcome(exit_code=code, bundles=(), error=error)
        raise contest._failed(make_pair().b, 5, outcome, deque(lines))

    cases = {name: partial(failed, *case) for name, case in FAILED.items()}
    golden("failed.txt", told(cases | {"killed because memory ran out": partial(failed, 7, [], MEMORY)}))


class Stubborn:
    """A trainer that notes the signals that it gets; `killed` is set by SIGKILL."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.killed = threading.Event()

    def send_signal(self, number: int) -> None:
        self.heard.append(signal.Signals(number).name)
        if number == signal.SIGKILL:
            self.killed.set()


@pytest.mark.parametrize(
    ("left_s", "heard"),
    [
        pytest.param(-5.0, ["SIGTERM", "SIGKILL"], id="over before it has started"),
        pytest.param(0.02, ["SIGTERM", "SIGKILL"], id="over while it runs"),
        pytest.param(600.0, [], id="in time"),
    ],
)
def test_a_trainer_that_does_not_end_in_time_is_killed(
    left_s: float, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "UNTIL_KILLED_S", 0.0)
    trainer = Stubborn()
    with contest._relay(left_s) as relay:
        relay.watcher.on_started(trainer)
        assert trainer.killed.wait(60 if heard else 0) is bool(heard)
    # A trainer that starts while a signal is sent may get the signal twice.
    assert list(dict.fromkeys(trainer.heard)) == heard
    assert relay.is_out_of_time is bool(heard)
