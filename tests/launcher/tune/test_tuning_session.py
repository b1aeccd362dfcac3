"""Tunings on a machine that needs no processes: rows, patch, evidence, its check, and how a tuning goes on."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main as main_of_analyze
from launcher.duel import contest
from launcher.duel.contest import OutOfTimeError
from launcher.duel.referee import Losses
from launcher.duel.sides import Request, plan_of_script
from launcher.machine.local import LocalPlan
from launcher.machine.runtime import Workplace
from launcher.tune import candidates, evidence, report, session
from launcher.tune.evidence import Decision
from launcher.tune.report import Tuned, row_json
from launcher.tune.tune import ALL, Row
from tests.launcher.told import Golden
from tests.launcher.tune.script_runs import ADAM, LOADER, SOURCE, Machine, changed, texts
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode, RunFailedError, UsageError
from workload.contract.operating_system import lock
from workload.contract.process import interruption
from workload.contract.record import Record, Verdict

WORKERS, FOREACH, FUSED = "DataLoader(num_workers=2)", "optimizer(foreach=True)", "optimizer(fused=True)"
# Factors of the times of a run with a change.
FASTER = {"num_workers=2": 0.7, "foreach=True": 0.95}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(candidates.platform, "libc_ver", lambda: ("", ""))
    usual = candidates.candidates_of

    def few(*arguments: Any) -> list[candidates.Candidate]:
        return [each for each in usual(*arguments) if each.text in (WORKERS, FOREACH, FUSED)]

    monkeypatch.setattr(candidates, "candidates_of", few)
    Path("train.py").write_text(SOURCE)
    here = Machine(output=Path("tune"), files=lambda: {"train.py": sha256("train.py")})
    monkeypatch.setattr(contest, "run_segment", here.run_segment)
    return here


def sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def tune(
    *words: str,
    told: list[str] | None = None,
    show: Callable[[Row], None] = lambda _: None,
    losses: Losses = Losses.ROUNDING,
    script: str = "train.py",
    **more: Any,
) -> Tuned:
    request = Request(shared={"device": "cpu"}, words=(), commits=None, images=None, output=Path("tune"))

    def plan_of(words: Sequence[str], change: str | None, ceilings: bool) -> LocalPlan:
        side, workplace = replace(request, words=tuple(words)), Workplace(folder=Path.cwd())
        return plan_of_script(side, workplace, {}, change=change, ceilings=ceilings)

    asked = session.Asked(
        words=(script, *words),
        folder=Path.cwd(),
        output=request.output,
        plan_of=plan_of,
        **{"margin": 0.02, "max_time_s": 1e6, "losses": losses, "tries": (), **more},
    )
    return session.tune(asked, tell=(told if told is not None else []).append, show=show)


def decisions(tuned: Tuned) -> dict[str, str]:
    return {row.text: row.trial.decision if row.trial else row.why_not for row in tuned.rows}


def findings(folder: str = "tune") -> list[str]:
    return list(evidence.check(evidence.read(Path(folder, "evidence.json")), Path(folder)))


@pytest.mark.world
def test_tuning_from_the_first_run_to_a_patch_that_applies(machine: Machine) -> None:
    machine.speed = FASTER
    told = list[str]()
    tuned = tune(told=told)

    assert decisions(tuned) == {WORKERS: "accepted", FOREACH: "accepted", FUSED: "below the margin", ALL: "accepted"}
    assert tuned.exit_code == ExitCode.FASTER
    [final] = [row.trial for row in tuned.rows if row.text == ALL and row.trial]
    assert final.gain == pytest.approx(1 / (0.7 * 0.95) - 1, rel=0.02)
    assert final.low is not None
    assert final.high is not None
    assert final.low < 1 / (0.7 * 0.95) - 1 < final.high
    assert Path("train.py").read_text() == SOURCE
    assert tuned.patch_file is not None
    subprocess.run(["git", "apply", str(tuned.patch_file)], check=True)
    changed_source = "import torch\nd = DataLoader(data, num_workers=2)\no = Adam(p, foreach=True)\n"
    assert Path("train.py").read_text() == changed_source
    assert findings() == []


def test_screen_shows_bounds_gains_losses_and_files(machine: Machine, golden: Golden) -> None:
    machine.speed, machine.noise = FASTER, 0.0

    golden("tuning.txt", report.text(tune(), 140))


@pytest.mark.slow
@pytest.mark.world
def test_page_of_the_printed_command_shows_the_changes_and_the_limits_before_and_now(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_waits(run: Record) -> Record:
        bound = Verdict(bound="compute", why="70 % of the ceiling are reached")
        return replace(run, bound=bound, spec=replace(run.spec, workers=2))

    def waits(run: Record) -> Record:
        work = replace(run.complexity, bytes_per_step_lower=1e8, bytes_per_step_upper=2e8)
        run = replace(run, complexity=work, bound=Verdict(bound="input", why="waits for data take 40 %"))
        return replace(run, timing=replace(run.timing, started_at="2026-11-28T12:00:00+00:00"))

    machine.speed = {"num_workers=2": 0.7}
    machine.alter = {"train.py": waits, "num_workers=2": without_waits}
    [command] = [line.split() for line in report.text(tune()).splitlines() if line.startswith("page ")]

    monkeypatch.setattr("sys.argv", [*command[1:], "--markdown", "page.md"])
    assert main_of_analyze() == ExitCode.DONE
    tuning = Path("page.md").read_text().partition("## Tuning\n")[2].partition("\n## ")[0]
    assert "train.py: limited by input before, by compute now." in tuning
    assert "Now: 70 % of the ceiling are reached." in tuning
    [row] = [line for line in tuning.splitlines() if line.startswith("| DataLoader")]
    # 1 / 0.7 is 1.43.
    assert re.match(
        r".* \| train.py:2 \| \+67 % \| \+4[23] % \(\+4. % to \+4. %\) \| same .* \| accepted \| 28 \|", row
    )
    assert "| below the margin |" in tuning
    assert "launch tune --check tune/evidence.json" in tuning
    # 2 GFLOP in 60 ms, and in 42 ms.
    assert re.search(r"now: fp32, change DataLoader\(num_workers=2\), batch 32, unknown place: 47\.. GFLOP/s", tuning)
    assert re.search(r"before: fp32, no change, batch 32, unknown place: 33\.. GFLOP/s", tuning)


def test_page_finds_the_limit_now_by_the_ceilings_of_the_first_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_ceilings(run: Record) -> Record:
        run = replace(run, bound=Verdict(why="no ceilings were measured"), ceilings=None)
        return replace(run, timing=replace(run.timing, data_wait_fraction=0.0))

    machine.speed, machine.alter = {"num_workers=2": 0.7}, {"num_workers=2": without_ceilings}
    tune()
    monkeypatch.setattr("sys.argv", ["analyze", "report", "tune", "--markdown", "page.md"])
    assert main_of_analyze() == ExitCode.DONE
    tuning = Path("page.md").read_text().partition("## Tuning\n")[2].partition("\n## ")[0]
    [now] = [line for line in tuning.splitlines() if line.startswith("- Now: ")]
    assert "of the measured compute ceiling" in now


def test_rows_for_programs_have_figures_as_shares(machine: Machine) -> None:
    machine.speed = {"num_workers=2": 0.7}
    rows = list[Row]()
    tuned = tune(show=rows.append)

    first, last = json.loads(json.dumps(row_json(rows[0]))), report.end_json(tuned)
    assert (first["change"], first["line"], first["decision"], first["runs"]) == (WORKERS, "train.py:2", "accepted", 28)
    assert first["at_most"] == pytest.approx(0.4 / 0.6)
    assert first["low"] < 1 / 0.7 - 1 < first["high"]
    # Three changes and the final trial share 5 %; an interval has the level of both its ends.
    assert first["level"] == pytest.approx(1 - 2 * 0.05 / 4)
    assert last["accepted"] == [WORKERS]
    assert last["exit_code"] == ExitCode.FASTER


def test_nothing_faster_is_exit_code_0_without_a_patch(machine: Machine) -> None:
    del machine
    tuned = tune()

    assert set(decisions(tuned).values()) == {"below the margin"}
    assert (tuned.exit_code, tuned.patch_file, list(Path("tune").glob("*.patch"))) == (ExitCode.DONE, None, [])


def test_change_that_crashes_is_a_result_and_the_others_are_tried(machine: Machine) -> None:
    machine.speed, machine.fails = FASTER, {"num_workers": "out of memory"}
    tuned = tune()

    assert decisions(tuned) == {WORKERS: "failed", FOREACH: "accepted", FUSED: "below the margin"}
    [failed] = [row.trial for row in tuned.rows if row.text == WORKERS and row.trial]
    assert failed.why.endswith("of B: out of memory")
    assert tuned.exit_code == ExitCode.FASTER
    assert findings() == []


def test_loader_made_in_a_library_is_no_part_of_the_patch(machine: Machine) -> None:
    machine.speed = FASTER
    machine.alter = {"train.py": changed(constructors=(replace(LOADER, line=None), ADAM))}
    tuned = tune()

    assert [row.line for row in tuned.rows] == [None, "train.py:3", "train.py:3", None]
    assert tuned.patch.notes == ("DataLoader(..., num_workers=2) is not in the patch: a library makes it",)
    assert "foreach=True" in tuned.patch.diff


def test_run_longer_than_the_limit_is_a_mistake_with_a_hint(machine: Machine) -> None:
    def too_late(_: int) -> None:
        raise OutOfTimeError

    machine.before = too_late
    with pytest.raises(UsageError, match="takes longer than --max-time, 1 min"):
        tune(max_time_s=60)


def test_script_that_fails_by_itself_ends_the_tuning(machine: Machine) -> None:
    machine.fails = {"train.py": "measured no step"}

    with pytest.raises(RunFailedError, match="of A: measured no step"):
        tune()


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        pytest.param(
            changed(losses=texts((2.5, 2.0, 1.5))), "losses are not the same: different, by 25 % in loss 3", id="losses"
        ),
        pytest.param(changed(replaced=("time.time",)), "the script replaced time.time", id="clock"),
    ],
)
def test_change_that_does_other_work_is_refused_after_its_first_run(
    machine: Machine, alter: Callable[[Any], Any], why: str
) -> None:
    machine.speed, machine.alter = FASTER, {"num_workers": alter}
    tuned = tune()

    [refused] = [row.trial for row in tuned.rows if row.text == WORKERS and row.trial]
    assert refused.decision is Decision.REFUSED
    assert refused.why.startswith(why)
    assert len(refused.bundles) <= 3
    assert WORKERS not in decisions(tuned) or decisions(tuned)[FOREACH] == "accepted"
    assert findings() == []


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        pytest.param(iter([(2.5,), (2.0,)]), "two runs of the same side differ by 20 %", id="no seed"),
        pytest.param(iter([(float("nan"),)] * 2), "cannot be judged: losses are not finite", id="NaN"),
    ],
)
def test_losses_that_prove_nothing_need_a_rule(machine: Machine, losses: Any, why: str) -> None:

    def alter(run: Record) -> Record:
        return changed(losses=texts(next(losses)))(run)

    machine.alter = {"train.py": alter}

    with pytest.raises(UsageError, match=why) as caught:
        tune()

    assert "--losses any" in caught.value.hint


def test_any_losses_are_accepted_if_the_user_says_so(machine: Machine) -> None:
    machine.speed = {"num_workers": 0.7}

    def alter(run: Record) -> Record:
        return changed(losses=texts((machine.rng.random(),)))(run)

    machine.alter = {"train.py": alter}
    tuned = tune(losses=Losses.ANY)

    assert decisions(tuned)[WORKERS] == "accepted"


@pytest.mark.parametrize(
    ("seeds", "changed_to", "decision", "text"),
    [
        # Seeds move losses by 20 % and 50 %: a fifth of the median is more than 1 %.
        ((0.8, 0.5), 2.008, "accepted", "90 % within 0.4 %, seeds differ by 35 % (the first 3 losses)"),
        ((0.5, 0.8), 2.03, "refused", "by 1.5 % in loss 3 of 3 losses; 90 % within 1.5 %, seeds differ by 35 %"),
        # A fifth of 1 % is less than 0.4 %.
        ((0.99, 0.99), 2.008, "refused", "by 0.4 % in loss 3 of 3 losses; 90 % within 0.4 %, seeds differ by 1 %"),
        ((1.0, 1.0), 2.008, "accepted", "equal within 0.4 % (the first 3 losses)"),
        ((1.0, 1.0), 2.03, "refused", "by 1.5 % in loss 3 of 3 losses"),
        ((), 2.008, "accepted", "equal within 0.4 % (the first 3 losses)"),
    ],
)
def test_rounding_stays_within_a_part_of_what_other_seeds_do(
    machine: Machine, seeds: tuple[float, ...], changed_to: float, decision: str, text: str
) -> None:
    machine.speed = {"foreach=True": 0.7}
    original = (2.5, 2.25, 2.0)
    shifted = [texts([factor * loss for loss in original]) for factor in seeds]
    machine.alter = {f"shift={n}": changed(losses=losses) for n, losses in enumerate(shifted, 1)}
    machine.alter = {**machine.alter, "foreach=True": changed(losses=texts((2.5, 2.25, changed_to)))}
    machine.fails = {} if seeds else {"shift": "the script sets no seed"}
    told = list[str]()
    tuned = tune(told=told)

    [trial] = [row.trial for row in tuned.rows if row.text == FOREACH and row.trial]
    assert (trial.decision, trial.losses[-len(text) :]) == (decision, text)
    assert any("other seeds are not known: " in line for line in told) is not bool(seeds)
    assert findings() == []


def test_argument_of_the_script_is_judged_by_throughput(machine: Machine) -> None:
    # A step of two times as many samples takes 1.5 times as long.
    def larger(run: Any) -> Any:
        flop = replace(run.complexity, train_flop_per_step=4e9)
        timing = replace(run.timing, images=2 * run.timing.images, images_per_s=2 * run.timing.images_per_s)
        return replace(run, timing=timing, complexity=flop)

    machine.speed, machine.alter = (
        {"--batch 64": 1.5, "--batch 128": 2.1},
        {"--batch 64": larger, "--batch 128": larger},
    )
    tuned = tune("--batch", "32", tries=("batch=64,128",))

    assert decisions(tuned)["args.batch=64"] == "accepted"
    assert decisions(tuned)["args.batch=128"] == "below the margin"
    assert "--batch 64 is an argument of the script" in tuned.patch.notes


# --- a tuning that goes on


def test_interrupted_tuning_goes_on_with_the_same_duel(machine: Machine) -> None:
    machine.speed = FASTER

    def interrupt(number: int) -> None:
        if number == 36:
            raise interruption(2)

    machine.before = interrupt
    first = tune()
    assert first.interrupted is not None
    assert decisions(first) == {WORKERS: "accepted", FOREACH: "not decidable", FUSED: "the tuning was interrupted"}
    before = evidence.read(Path("tune/evidence.json"))

    machine.before = lambda _: None
    told = list[str]()
    second = tune(told=told)

    assert decisions(second) == {WORKERS: "accepted", FOREACH: "accepted", FUSED: "below the margin", ALL: "accepted"}
    after = evidence.read(Path("tune/evidence.json"))
    assert told[0] == "goes on with the tuning in tune/, in which 1 change is decided"
    assert [trial.name for trial in after.trials[:2]] == [trial.name for trial in before.trials]
    assert list(after.trials[1].bundles)[: len(before.trials[1].bundles)] == list(before.trials[1].bundles)
    assert len(after.trials[1].bundles) == 24
    assert findings() == []


def test_interrupt_between_two_runs_leaves_the_patch_of_what_is_proved(machine: Machine) -> None:
    machine.speed = FASTER

    def interrupt(_: Row) -> None:
        raise KeyboardInterrupt

    tuned = tune(show=interrupt)
    assert tuned.interrupted is not None
    assert decisions(tuned) == {WORKERS: "accepted"}
    assert tuned.patch_file is not None
    assert "num_workers=2" in tuned.patch_file.read_text()
    assert findings() == []


def test_finished_tuning_of_a_script_in_a_folder_shows_its_result_again(machine: Machine) -> None:
    machine.speed = {"num_workers=2": 0.7}
    (folder := Path("below")).mkdir()
    Path("train.py").rename(folder / "train.py")
    machine.files = lambda: {"train.py": sha256("below/train.py")}

    first, number = tune(script="below/train.py"), len(machine.runs)
    second = tune(script="below/train.py")

    assert len(machine.runs) == number
    assert (decisions(second), second.exit_code) == (decisions(first), ExitCode.FASTER)
    assert "+++ b/below/train.py" in first.patch.diff


@pytest.mark.parametrize(
    ("words", "home"),
    [
        (("-m", "pkg.train"), ("pkg", "pkg/train.py")),
        (("-m", "pkg"), ("pkg", "pkg/__main__.py")),
        (("-m", "absent"), ("", None)),
        (("pkg/train.py",), ("pkg", "pkg/train.py")),
    ],
)
def test_home_of_a_script_or_module(words: tuple[str, ...], home: tuple[str, str | None], tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("__init__", "__main__", "train"):
        (tmp_path / "pkg" / f"{name}.py").touch()

    folder, path = home
    assert session.home_of(words, tmp_path) == (tmp_path / folder, path and tmp_path / path)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param({"margin": 0.05}, "it was for another command", id="another margin"),
        pytest.param({}, "the script's files, or the machine, have changed since", id="another script"),
    ],
)
def test_another_tuning_sets_the_earlier_one_aside(machine: Machine, more: dict[str, Any], why: str) -> None:
    tune()
    number, told = len(machine.runs), list[str]()
    if not more:
        Path("train.py").write_text(SOURCE + "\n")

    tune(told=told, **more)

    assert told[0] == f"the earlier tuning in tune/ is set aside, because {why}"
    assert len(machine.runs) == 2 * number
    assert Path("tune/evidence-1.json").is_file()


def test_script_that_changes_during_the_tuning_is_tuned_anew(machine: Machine) -> None:
    def edit(number: int) -> None:
        if number == 10:
            Path("train.py").write_text(SOURCE + "\n")

    machine.before = edit
    told = list[str]()
    tuned = tune(told=told)

    assert "train.py has changed during the tuning: it begins anew" in told
    assert set(decisions(tuned).values()) == {"below the margin"}
    assert evidence.read(Path("tune/evidence.json")).files == {"train.py": sha256("train.py")}
    assert findings() == []


def test_second_tuning_in_a_folder_is_refused(machine: Machine) -> None:
    del machine
    Path("tune").mkdir()
    with Path("tune/.lock").open("a") as file:
        assert lock(file)
        with pytest.raises(UsageError, match="another launch tune works in 'tune'"):
            tune()


# --- the check


Edit = Callable[[Path, str], None]


def edit_run(folder: Path, run_id: str) -> None:
    path = folder / run_id / "steps.csv"
    path.write_text(path.read_text().replace("measured,1.0,0.0", "measured,1.0,0.1"))


def forge_run(folder: Path, run_id: str) -> None:
    edit_run(folder, run_id)
    bundle.seal(folder / run_id)


def edit_evidence(change: Callable[[Any], None]) -> Edit:
    def edit(folder: Path, _: str) -> None:
        path = folder / "evidence.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return edit


EDITS: dict[str, tuple[Edit, str]] = {
    "a run": (edit_run, "steps.csv was changed after the run"),
    "a run with its manifest": (forge_run, "was changed after the tuning"),
    "the patch": (lambda folder, _: (folder / "train.py.patch").unlink(), "train.py.patch' is missing, or was changed"),
    "a gain": (edit_evidence(lambda d: d["trials"][0].update(gain=0.9)), "gain is stated as 0.9, and"),
    "a decision": (
        edit_evidence(lambda d: d["trials"][2].update(decision="accepted")),
        "decision is stated as 'accepted', and its bundles give 'below the margin'",
    ),
    "a level": (
        edit_evidence(lambda d: d["trials"][0].update(error=0.2)),
        "its error 0.2 is more than the 0.05 that is left of 0.05",
    ),
    "the seeds": (edit_evidence(lambda d: d.update(seeds={"median": 0.5, "largest": 0.5})), "of other seeds are"),
    "a bound": (edit_evidence(lambda d: d["trials"][0].update(at_most=2.0)), "and its bundles give 0.6667"),
    "a run of another duel": (
        edit_evidence(lambda d: d["trials"][0].update(bundles=d["trials"][1]["bundles"])), "is no run of",
    ),
}  # fmt: skip


def test_check_finds_what_was_edited(machine: Machine) -> None:
    machine.speed = FASTER
    tune()
    first = next(iter(evidence.read(Path("tune/evidence.json")).trials[0].bundles))

    for name, (edit, finding) in EDITS.items():
        copy = shutil.copytree("tune", name)
        assert findings(copy) == []
        edit(Path(copy), first)
        assert finding in "; ".join(findings(copy)), name


@pytest.mark.parametrize(
    "text", ["{}", "[]", "x", '{"format": 2}', '{"format": 1, "trials": [{"name": "a", "more": 1}]}']
)
def test_file_that_is_no_evidence_is_refused(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "evidence.json").write_text(text)

    with pytest.raises(BundleError):
        evidence.read(path)
