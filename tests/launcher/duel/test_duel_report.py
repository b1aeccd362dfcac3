"""What a duel says, word for word."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_duel_contest import TEN_MINUTES, Machine, make_pair

from launcher.duel import report
from launcher.duel.contest import Work
from launcher.duel.report import Plan, Result
from tests.launcher.told import Golden, printed
from workload.contract.interrupt import interruption
from workload.contract.verdict import FAULTS_CURE, PageFaults


def result(machine: Machine, *, are_equal: bool = False, **limits: Any) -> Result:
    allowed = replace(TEN_MINUTES, **limits)
    outcome = machine.fight(allowed)
    return Result(pair=make_pair(are_equal=are_equal), limits=allowed, outcome=outcome, output=Path("out"))


def interrupted(machine: Machine) -> Machine:
    def interrupt(_: int) -> None:
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
    }


def test_reports(golden: Golden) -> None:
    texts = [
        f"## {name}\nexit code {int(one.exit_code)}\n{one.text()}\n\n{one.markdown()}"
        for name, one in reports().items()
    ]
    golden("reports.txt", "\n".join(texts))


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
