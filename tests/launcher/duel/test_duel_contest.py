"""The course of a duel, with segments whose times are known, and what it says word for word."""

import json
import math
import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_bundles import make
from launcher.duel import contest, report
from launcher.duel.contest import (
    Limits,
    Measured,
    OutOfTimeError,
    Pair,
    Side,
    Work,
    comparison_of,
    fight,
    make_limits,
    measured_of,
)
from launcher.duel.decision import DuelVerdict
from launcher.duel.referee import Ruling
from launcher.duel.report import Plan, Result
from launcher.machine import local
from launcher.machine.containers import ContainerLimits
from launcher.machine.local import LocalOutcome
from launcher.machine.runtime import Choice
from launcher.machine.watcher import Printed, Trainers
from launcher.values import Runtime
from tests.launcher.told import Golden, printed, told
from workload.contract import bundle
from workload.contract.errors import (
    ExitCode,
    OutOfDeviceMemoryError,
    RooflaunchError,
)
from workload.contract.process import interruption
from workload.contract.spec import resolve
from workload.contract.trainer import Forks
from workload.contract.verdict import FAULTS_CURE, PageFaults


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
    assert machine.heard[0].startswith("undecided after 4 runs")


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
        printed = Printed()
        printed.extend(lines)
        raise contest._failed(make_pair().b, 5, outcome, printed)

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
def test_a_trainer_that_does_not_end_in_time_is_killed(left_s: float, heard: list[str]) -> None:
    trainer, trainers = Stubborn(), Trainers()
    with trainers.ended_after(left_s, until_killed_s=0.0) as is_late:
        trainers.started(trainer)
        assert trainer.killed.wait(60 if heard else 0) is bool(heard)
    # A trainer that starts while a signal is sent may get the signal twice.
    assert list(dict.fromkeys(trainer.heard)) == heard
    assert is_late.is_set() is bool(heard)


def result(machine: Machine, *, are_equal: bool = False, **limits: Any) -> Result:
    allowed = replace(TEN_MINUTES, **limits)
    outcome = machine.fight(allowed)
    return Result(pair=make_pair(are_equal=are_equal), limits=allowed, outcome=outcome, output=Path("out"))


def interrupted(machine: Machine, at: int = 0) -> Machine:
    def interrupt(position: int) -> None:
        if position == at:
            raise interruption(15)

    machine.before = interrupt
    return machine


@cache
def reports() -> dict[str, Result]:
    return {
        "slower": result(Machine(effect=0.05)),
        "slower, on a machine that was busy at first": result(Machine(effect=0.05, busy_to=8)),
        "same": result(Machine()),
        "faster": result(Machine(effect=-0.05)),
        "slower by less": result(Machine(effect=0.01)),
        "faster by less": result(Machine(effect=-0.01)),
        "only the margin is in doubt": result(Machine(effect=0.02, noise=0.01, segment_s=4.0)),
        "not decidable": result(Machine(noise=0.2, segment_s=10.0)),
        "not decidable on a busy machine": result(Machine(effect=0.05, busy_to=10_000)),
        "hardly decidable": result(Machine(noise=0.02, effect=0.02, segment_s=10.0)),
        "decidable in a longer time": result(Machine(noise=0.03, effect=0.05, segment_s=10.0)),
        "decidable with more runs": result(Machine(noise=0.2, effect=0.3, segment_s=1.0), max_segments=28),
        "against itself": result(Machine(), are_equal=True),
        "steps of different work": result(Machine(b=Work(samples=32, flop=4e9))),
        "interrupted before the first run": result(interrupted(Machine())),
        "interrupted": result(interrupted(Machine(), at=6)),
    }


def test_reports(golden: Golden) -> None:
    texts = [
        f"## {name}\nexit code {int(one.exit_code)}\n{one.text()}\n\n{one.markdown()}"
        for name, one in reports().items()
    ]
    golden("reports.txt", "\n".join(texts))


def test_refused_side_has_an_exit_code_and_reasons() -> None:
    ruling = Ruling(refusals=("a step trains on 8 samples", "losses are not close"), losses="different")
    refused = replace(result(Machine(effect=-0.05)), ruling=ruling)

    assert refused.exit_code == ExitCode.FINDINGS
    assert "the referee refuses B: a step trains on 8 samples; losses are not close" in refused.text()
    assert "### launch duel: the referee refuses B: " in refused.markdown()
    assert refused.to_json()["referee"]["refusals"] == ruling.refusals


def test_json() -> None:
    slower = json.loads(json.dumps(reports()["slower"].to_json()))
    assert (slower["verdict"], slower["exit_code"], slower["interrupted"]) == ("slower", 11, False)
    assert slower["low"] < slower["ratio"] < slower["high"]
    assert slower["A"]["spec"]["model"] == "resnet18"
    assert [one["variant"] for one in slower["segments"]][:4] in (["A", "B", "B", "A"], ["B", "A", "A", "B"])
    busy = reports()["slower, on a machine that was busy at first"].to_json()
    why = "other processes used the CPU: this run got 4 % of one"
    assert (busy["busy"], busy["segments"][0]["busy"], busy["segments"][8]["busy"]) == (8, why, None)
    unlike = reports()["steps of different work"].to_json()
    assert (unlike["compared"], unlike["unit"]) == ("throughput", "images")
    assert unlike["B"]["work"] == {"unit": "images", "samples": 32, "flop": 4e9}
    assert reports()["against itself"].to_json()["are_equal"] is True
    assert json.loads(json.dumps(reports()["interrupted before the first run"].to_json()))["interrupted"] is True


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.16, f"page faults take up to 16 % of the time in 2 of 24 runs; {FAULTS_CURE}"),
        (0.04, f"page faults take up to 4 % of the time in 2 of 24 runs; {FAULTS_CURE}"),
        # Less than the margin, with which faults could decide nothing.
        (0.035, None),
    ],
)
def test_uneven_page_faults_are_named_where_nothing_is_decided(share: float, said: str | None) -> None:
    faults = {3: PageFaults(per_step=900, share=0.03), 7: PageFaults(per_step=4800, share=share)}
    undecided = result(Machine(noise=0.2, effect=0.02, segment_s=10.0, faults=faults), same_within=0.04)

    assert (undecided.notes[-1] if "page faults" in undecided.notes[-1] else None) == said
    assert undecided.to_json()["segments"][7]["page_faults_per_step"] == 4800
    assert len(result(Machine(faults=faults)).notes) == 0


@pytest.mark.parametrize(("files", "is_said"), [(("a", "a"), True), (("a", "b"), False), ((None, None), False)])
def test_commits_whose_script_runs_the_same_files(files: tuple[str | None, str | None], is_said: bool) -> None:
    plain = result(Machine())
    segments = tuple(replace(one, files=files[0] if one.variant == "A" else files[1]) for one in plain.outcome.segments)
    outcome = replace(plain.outcome, segments=segments)
    commits = replace(plain, outcome=outcome, pair=replace(plain.pair, compares_code=True))

    assert [note for note in commits.notes if note.startswith("the commits differ, ")] == commits.notes[: int(is_said)]
    assert len(commits.notes) == is_said


def test_files_that_changed_meanwhile_are_told() -> None:
    plain = result(Machine())
    segments = tuple(replace(one, files="a" if one.position < 22 else "b") for one in plain.outcome.segments)

    told = replace(plain, outcome=replace(plain.outcome, segments=segments)).notes

    assert told == ["the script's files changed during the duel: a duel of commits (--commit) compares copies"]


def test_the_plan(golden: Golden) -> None:
    text = Plan(pair=make_pair(are_equal=True), limits=TEN_MINUTES, output=Path("out")).text()
    golden("plan.txt", text.replace(sys.executable, "PYTHON") + "\n")


def test_a_subject_cannot_break_the_table() -> None:
    assert report._cell("a | b <img> `c`\n") == "a \\| b &lt;img> \\`c\\`\\\\n"


def test_a_summary_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    report.require_writable(path)
    report.append(path, "### after\n")
    assert path.read_text() == "before\n### after\n"


def test_lines_that_are_refused(
    golden: Golden, launch: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    summary = f"duel --cpu --summary {tmp_path}/missing/summary.md -- ---"
    lines = ("duel", "duel --precision fp32 --- --precision bf16", "duel --commit main", summary)
    golden("refused.txt", printed(launch, capsys, lines).replace(str(tmp_path), "FOLDER"))


def test_several_devices_are_compared_with_one_by_the_samples_of_all(tmp_path: Path) -> None:
    """A step of 0.1 s has 32 images on each of 2 devices."""
    alone, both = (
        measured_of(bundle.read(make(tmp_path, number, **changes)), variant, number)
        for number, (variant, changes) in enumerate(
            (("A", {}), ("B", {"spec__devices": 2, "ranks": {"number": 2, "images_per_s": 600.0}}))
        )
    )
    assert (alone.work.samples, both.work.samples) == (32, 64)
    assert (both.step_s, both.sample_s, both.wall_sample_s) == (
        pytest.approx(0.1, rel=0.02),
        pytest.approx(0.1 / 64, rel=0.02),
        1 / 600,
    )
    assert both.work.flop == 2 * (alone.work.flop or math.nan)
    assert both.wall_step_s == pytest.approx(64 / 600)
    assert comparison_of([alone, both]).by_sample
