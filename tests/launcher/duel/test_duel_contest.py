"""The course of a duel, with segments whose times are known."""

import math
import random
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from launcher.duel import contest
from launcher.duel.contest import Limits, Measured, OutOfTimeError, Work, comparison_of, fight, make_limits
from launcher.duel.decision import DuelVerdict
from launcher.duel.sides import Pair, Side
from launcher.machine import local
from launcher.machine.containers import ContainerLimits
from launcher.machine.local import LocalOutcome
from launcher.machine.runtime import Choice
from launcher.machine.watcher import Printed
from launcher.values import Runtime
from workload.contract.errors import (
    InterruptedRunError,
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
    UsageError,
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


NOISY = "; runs of the same side differ by "


@pytest.mark.parametrize(
    ("limits", "noise", "segment_s", "segments", "why"),
    [
        pytest.param(TEN_MINUTES, 0.03, 10.0, 60, "the time of 10 min was used up after 15 quadruples", id="time"),
        pytest.param(
            Limits(max_time_s=600, max_segments=43), 0.03, 1.0, 40, "the limit of 43 runs was reached", id="segments"
        ),
        pytest.param(
            TEN_MINUTES,
            0.2,
            30.0,
            8,
            "6 quadruples, the minimum for a verdict, take about 12 min, and 10 min were allowed",
            id="hopeless",
        ),
        pytest.param(
            Limits(max_time_s=1800), 0.1, 10.0, 32, "given up, because 30 min would not suffice, after 8", id="forecast"
        ),
        pytest.param(
            Limits(max_time_s=1800, max_segments=43),
            0.1,
            1.0,
            28,
            "given up, because 43 runs would not suffice, after 7 quadruples",
            id="forecast of runs",
        ),
    ],
)
def test_what_cannot_be_decided_says_why(
    limits: Limits, noise: float, segment_s: float, segments: int, why: str
) -> None:
    machine = Machine(noise=noise, effect=0.05, segment_s=segment_s)

    outcome = machine.fight(limits)

    assert outcome.state.verdict is DuelVerdict.NOT_DECIDABLE
    assert len(outcome.segments) == segments
    assert why in outcome.state.reason
    assert NOISY in outcome.state.reason


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


def test_a_run_that_is_under_way_ends_with_the_time() -> None:
    """The first quadruple is begun whatever it takes."""
    machine = Machine(segment_s=250.0)

    outcome = machine.fight(TEN_MINUTES)

    assert (len(outcome.segments), outcome.elapsed_s) == (2, 600.0)
    assert outcome.state.verdict is DuelVerdict.NOT_DECIDABLE
    assert outcome.state.reason == "the time of 10 min was used up before a quadruple was complete"


@pytest.mark.parametrize(
    ("a", "b", "text", "by_sample"),
    [
        pytest.param(WORK, WORK, "", False, id="the same"),
        pytest.param(WORK, Work(samples=16, flop=2.01e9), "", False, id="FLOP within 1 %"),
        pytest.param(WORK, Work(samples=16, flop=None), "", False, id="FLOP unknown"),
        pytest.param(
            WORK,
            Work(samples=16, flop=2.1e9),
            "a step is different work, A 16 images and 2 GFLOP and B 16 images and 2.1 GFLOP: throughput is "
            "compared, in images/s",
            True,
            id="more FLOP",
        ),
        pytest.param(
            WORK,
            Work(samples=32, flop=4e9),
            "a step is different work, A 16 images and 2 GFLOP and B 32 images and 4 GFLOP: throughput is "
            "compared, in images/s",
            True,
            id="more samples",
        ),
        pytest.param(
            Work(samples=16),
            Work(unit="steps", samples=1),
            "a step is different work, A 16 images and B not known: the times of steps are compared nevertheless",
            False,
            id="samples that nobody knows",
        ),
    ],
)
def test_what_is_compared(a: Work, b: Work, text: str, by_sample: bool) -> None:
    def segment(variant: str, work: Work) -> Measured:
        return Measured(
            position=0, variant=variant, step_s=2.0, sample_s=0.1, wall_step_s=3.0, wall_sample_s=0.2, work=work,
            folder=Path(),
        )  # fmt: skip

    comparison = comparison_of([segment("B", b), segment("A", a), segment("A", Work(samples=99))])

    assert (comparison.text, comparison.by_sample) == (text, by_sample)
    seconds = [comparison.seconds(segment("A", a), wall=wall) for wall in (False, True)]
    assert seconds == ([0.1, 0.2] if by_sample else [2.0, 3.0])


def test_the_wall_time_is_judged_too() -> None:
    outcome = Machine(wall=0.1).fight(TEN_MINUTES)

    assert (outcome.state.verdict, outcome.wall.verdict) == (DuelVerdict.SAME, DuelVerdict.SLOWER)


SHARE = "--same-within must be a share such as 2%, from 0.1 % to 50 %; got "


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ({"same_within": "two"}, f"{SHARE}'two'", "--same-within 2%"),
        ({"same_within": "0%"}, f"{SHARE}'0%'", "--same-within 2%"),
        ({"same_within": "51%"}, f"{SHARE}'51%'", "--same-within 2%"),
        ({"same_within": "nan%"}, f"{SHARE}'nan%'", "--same-within 2%"),
        ({"max_segments": 23}, "a verdict takes 24 runs or more; got --max-runs 23", "--max-runs 24"),
        (
            {"max_time": "soon"},
            "--max-time must be a duration such as 60m or 1h30m, from 30 s to 120 d; got 'soon'",
            "--max-time 60m",
        ),
    ],
    ids=lambda value: "=".join(f"{item}" for pair in value.items() for item in pair) if isinstance(value, dict) else "",
)
def test_limits_that_are_none(typed: dict[str, object], message: str, hint: str) -> None:
    plain: dict[str, object] = {"same_within": "2%", "max_time": "30m", "max_segments": None}
    with pytest.raises(UsageError) as caught:
        make_limits(**plain | typed)  # type: ignore[arg-type]
    assert (str(caught.value), caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("max_time_s", "run_s", "warning"),
    [
        (72, 3.0, None),
        (
            71,
            3.0,
            (
                "no verdict is possible within 1.2 min: at least 24 runs are needed, which measure for 1.2 "
                "min and each need some seconds to start; --max-time 4m or a shorter --min-seconds would do"
            ),
        ),
        (
            30,
            60.0,
            (
                "no verdict is possible within 30 s: at least 24 runs are needed, which measure for 24 min "
                "and each need some seconds to start; --max-time 26m or a shorter --min-seconds would do"
            ),
        ),
        (30, 0.0, None),
    ],
)
def test_a_time_that_is_too_short_is_said_before_the_first_run(
    max_time_s: float, run_s: float, warning: str | None
) -> None:
    assert Limits(max_time_s=max_time_s).warning(run_s) == warning


MEMORY = OutOfDeviceMemoryError("the trainer was killed because memory ran out", hint="a smaller --batch-size")
WHERE = "run 6, of B (--precision bf16): "


@pytest.mark.parametrize(
    ("code", "error", "lines", "kind", "message", "hint"),
    [
        pytest.param(
            7,
            None,
            ["measured", "error: resnet18 at batch size 9000 does not fit", "hint: --batch-size 4500"],
            OutOfDeviceMemoryError,
            "resnet18 at batch size 9000 does not fit",
            "--batch-size 4500",
            id="out of memory",
        ),
        pytest.param(
            7, MEMORY, [], OutOfDeviceMemoryError, str(MEMORY), MEMORY.hint, id="killed because memory ran out"
        ),
        pytest.param(
            6,
            None,
            ["error: the training step failed: x: y", "hint: log.txt"],
            RunFailedError,
            "the training step failed: x: y",
            "log.txt",
            id="failed",
        ),
        pytest.param(
            1,
            None,
            ["Traceback (most recent call last):", "KeyError: 'x'"],
            RunFailedError,
            "KeyError: 'x'",
            "run python -m workload train with its options to see the whole error",
            id="a bug",
        ),
        pytest.param(
            2,
            None,
            ["error: unknown option --new", "hint: --help"],
            UsageError,
            "unknown option --new",
            "--help",
            id="an older commit that lacks an option",
        ),
        pytest.param(
            3,
            None,
            [],
            RunFailedError,
            "exit code 3",
            "run python -m workload train with its options to see the whole error",
            id="without a word",
        ),
    ],
)
def test_a_side_that_fails_ends_the_duel_with_its_error(
    code: int, error: RooflaunchError | None, lines: list[str], kind: type[RooflaunchError], message: str, hint: str
) -> None:
    outcome = LocalOutcome(exit_code=code, bundles=(), error=error)

    printed = Printed()
    printed.extend(lines)
    failed = contest._failed(make_pair().b, 5, outcome, printed)

    assert type(failed) is kind
    assert (str(failed), failed.hint) == (WHERE + message, hint)


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
