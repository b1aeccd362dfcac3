"""What a duel says, word for word."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_duel_contest import TEN_MINUTES, Machine, make_pair

from launcher.duel import report
from launcher.duel.contest import Work
from launcher.duel.report import EQUAL, Plan, Result
from workload.contract.errors import ExitCode, UsageError
from workload.contract.process import interruption
from workload.contract.verdict import FAULTS_CURE, PageFaults


def result(machine: Machine, *, are_equal: bool = False, **limits: Any) -> Result:
    allowed = replace(TEN_MINUTES, **limits)
    outcome = machine.fight(allowed)
    return Result(pair=make_pair(are_equal=are_equal), limits=allowed, outcome=outcome, output=Path("out"))


TAKES = "B takes 5.1 % longer than A (95 %: +4.8 % to +5.5 %), after 6 quadruples"


def test_slower() -> None:
    slower = result(Machine(effect=0.05))

    assert slower.exit_code == ExitCode.SLOWER == 11
    assert slower.text().splitlines() == [
        f"verdict    B is slower by 2 % or more: {TAKES}",
        "A          159.9 ms a step with its wait for data, 100 images/s  (--precision fp32)",
        "B          168.2 ms a step with its wait for data, 95.15 images/s  (--precision bf16)",
        "runs       24 in 2 min; runs of the same side differ by less than 0.1 %",
        "bundles    out/ (duel-00002a)",
    ]
    assert slower.markdown() == (
        "### launch duel: B is slower by 2 % or more\n\n"
        f"{TAKES}.\n\n"
        "| | A | B |\n"
        "|---|---|---|\n"
        "| what | --precision fp32 | --precision bf16 |\n"
        "| median step | 159.9 ms a step with its wait for data, 100 images/s | "
        "168.2 ms a step with its wait for data, 95.15 images/s |\n"
        "| runs | 12 | 12 |\n\n"
        "B's time against A's, 95 %: +4.8 % to +5.5 %; 6 quadruples in 2 min; exit code 11.\n\n"
    )
    document = json.loads(json.dumps(slower.to_json()))
    assert (document["verdict"], document["exit_code"], document["interrupted"]) == ("slower", 11, False)
    assert document["low"] < document["ratio"] < document["high"]
    assert document["A"]["spec"]["model"] == "resnet18"
    assert [one["variant"] for one in document["segments"]][:4] in (["A", "B", "B", "A"], ["B", "A", "A", "B"])


def test_a_winner_on_a_machine_that_was_busy_at_first() -> None:
    slower = result(Machine(effect=0.05, busy_to=8))

    assert slower.exit_code == ExitCode.SLOWER
    assert slower.text().splitlines()[0].endswith("after 8 quadruples; 8 of 32 runs on a busy machine")
    assert "8 of 32 runs on a busy machine.\n" in slower.markdown()
    document = slower.to_json()
    assert (document["busy"], document["segments"][0]["busy"], document["segments"][8]["busy"]) == (
        8,
        "other processes used the CPU: this run got 4 % of one",
        None,
    )


@pytest.mark.parametrize(
    ("machine", "code", "headline"),
    [
        pytest.param(Machine(), 0, "the same within 2 %", id="same"),
        pytest.param(Machine(effect=-0.05), 12, "B is faster by 2 % or more", id="faster"),
        pytest.param(Machine(effect=0.01), 0, "B is slower, by less than 2 %", id="slower by less"),
        pytest.param(Machine(effect=-0.01), 0, "B is faster, by less than 2 %", id="faster by less"),
        pytest.param(
            Machine(effect=0.02, noise=0.01, segment_s=4.0),
            13,
            "B is slower, and whether by 2 % or more is not decidable on this machine within the limits",
            id="only the margin is in doubt",
        ),
        pytest.param(
            Machine(noise=0.2, segment_s=10.0),
            13,
            "not decidable on this machine within the limits",
            id="not decidable",
        ),
        pytest.param(
            Machine(effect=0.05, busy_to=10_000),
            13,
            "not decidable on this machine within the limits",
            id="on a busy machine",
        ),
    ],
)
def test_other_verdicts(machine: Machine, code: int, headline: str) -> None:
    other = result(machine)

    assert other.exit_code == code
    assert other.text().startswith(f"verdict    {headline}: ")
    assert other.markdown().startswith(f"### launch duel: {headline}\n")


@pytest.mark.parametrize(
    ("machine", "max_segments", "helps"),
    [
        (Machine(noise=0.02, effect=0.02, segment_s=10.0), None, "more than 4000 runs, --same-within 4%, or"),
        (Machine(noise=0.03, effect=0.05, segment_s=10.0), None, "--max-time 34m, --same-within 4%, or"),
        (Machine(noise=0.2, effect=0.3, segment_s=1.0), 28, "--max-time 10m --max-runs 88, or"),
        (Machine(effect=0.05, busy_to=10_000), None, "a longer --max-time, --same-within 4%, or"),
    ],
)
def test_what_helps_where_nothing_is_decided(machine: Machine, max_segments: int | None, helps: str) -> None:
    lines = result(machine, max_segments=max_segments).text().splitlines()

    assert lines[-1] == f"note       to decide it: {helps} a machine with less other work"


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


def test_a_duel_against_itself_says_so_first() -> None:
    same = result(Machine(), are_equal=True)

    assert same.text().splitlines()[0] == f"note       {EQUAL}"
    assert same.markdown().startswith(f"### launch duel: the same within 2 %\n\n{EQUAL}.\n\n")
    assert same.to_json()["are_equal"] is True


def test_steps_of_different_work_are_told_first() -> None:
    unlike = result(Machine(b=Work(samples=32, flop=4e9)))

    told = (
        "a step is different work, A 16 images and 2 GFLOP and B 32 images and 4 GFLOP: throughput is "
        "compared, in images/s"
    )
    assert unlike.text().splitlines()[0] == f"compared   {told}"
    assert unlike.text().splitlines()[2] == "A          9.996 ms per image, 100 images/s  (--precision fp32)"
    assert f"\n\n{told}.\n\nB takes the same time" in unlike.markdown()
    document = json.loads(json.dumps(unlike.to_json()))
    assert (document["compared"], document["unit"]) == ("throughput", "images")
    assert document["B"]["work"] == {"unit": "images", "samples": 32, "flop": 4e9}


@pytest.mark.parametrize(("files", "is_said"), [(("a", "a"), True), (("a", "b"), False), ((None, None), False)])
def test_commits_whose_script_runs_the_same_files(files: tuple[str | None, str | None], is_said: bool) -> None:
    plain = result(Machine())
    segments = tuple(replace(one, files=files[0] if one.variant == "A" else files[1]) for one in plain.outcome.segments)
    outcome = replace(plain.outcome, segments=segments)
    commits = replace(plain, outcome=outcome, pair=replace(plain.pair, compares_code=True))

    assert [note for note in commits.notes if note.startswith("the commits differ, ")] == commits.notes[: int(is_said)]
    assert len(commits.notes) == is_said


def test_interrupted_before_the_first_segment() -> None:
    machine = Machine()

    def interrupt(_: int) -> None:
        raise interruption(15)

    machine.before = interrupt
    broken = result(machine)

    assert broken.text().splitlines() == [
        "verdict    not decidable: interrupted by SIGTERM before a quadruple was complete",
        "A          -  (--precision fp32)",
        "B          -  (--precision bf16)",
        "runs       0 in 0 s",
        "bundles    out/ (duel-00002a)",
    ]
    assert json.loads(json.dumps(broken.to_json()))["interrupted"] is True
    assert "| runs | 0 | 0 |" in broken.markdown()


def test_files_that_changed_meanwhile_are_told() -> None:
    plain = result(Machine())
    segments = tuple(replace(one, files="a" if one.position < 22 else "b") for one in plain.outcome.segments)

    told = replace(plain, outcome=replace(plain.outcome, segments=segments)).notes

    assert told == ["the script's files changed during the duel: a duel of commits (--commit) compares copies"]


def test_the_plan() -> None:
    lines = Plan(pair=make_pair(are_equal=True), limits=TEN_MINUTES, output=Path("out")).text().splitlines()

    assert lines[:6] == [
        f"note       {EQUAL}",
        "A          --precision fp32",
        "B          --precision bf16",
        "decides    whether B is slower or faster than A by 2 % or more",
        "takes      24 runs or more, in quadruples (ABBA or BAAB, chosen at random); at most 10 min",
        "bundles    out/",
    ]
    assert "--context" not in lines[6]


def test_a_subject_cannot_break_the_table() -> None:
    assert report._cell("a | b <img> `c`\n") == "a \\| b &lt;img> \\`c\\`\\\\n"


def test_a_summary_is_appended_and_one_that_cannot_be_written_is_refused_before(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    report.require_writable(path)
    report.append(path, "### after\n")

    assert path.read_text() == "before\n### after\n"
    with pytest.raises(UsageError) as caught:
        report.require_writable(tmp_path / "missing" / "summary.md")
    assert str(caught.value).endswith("summary.md' cannot be written: No such file or directory")
