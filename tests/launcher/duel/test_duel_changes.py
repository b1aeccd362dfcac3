"""A duel with a change on one side: its line, its plans, and its comparison of losses."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from test_duel_contest import Machine, reports, result

from launcher.duel.contest import Pair
from launcher.duel.report import Result
from launcher.duel.sides import Request, prepared
from launcher.script.options import changes_before
from workload.contract.changes import Likeness
from workload.contract.errors import UsageError

WORKERS = "DataLoader(num_workers=2)"


@pytest.mark.parametrize(
    ("words", "own", "script"),
    [
        (["train.py", "--change", "x"], [], ["train.py", "--change", "x"]),
        (["--change", WORKERS, "train.py", "--lr"], ["--change", WORKERS], ["train.py", "--lr"]),
        ([f"--change={WORKERS}", "--change", "x", "-m", "a"], [f"--change={WORKERS}", "--change", "x"], ["-m", "a"]),
        # Options of our trainer, or of nothing, are no changes of a script.
        (["--change", WORKERS], [], ["--change", WORKERS]),
        (["--change", WORKERS, "--lr", "1"], [], ["--change", WORKERS, "--lr", "1"]),
        (["--devices", "2", "--batch-size", "4"], [], ["--devices", "2", "--batch-size", "4"]),
        (["--machines=2", "--devices", "2", "a.py"], ["--machines=2", "--devices", "2"], ["a.py"]),
        ([], [], []),
    ],
)
def test_changes_before_a_script(words: list[str], own: list[str], script: list[str]) -> None:
    assert changes_before(words) == (own, script)


def pair_of(folder: Path, *words: str, shared: Mapping[str, object] | None = None) -> Pair:
    (folder / "train.py").write_text("import torch\n")
    request = Request(
        shared={"device": "cpu", **(shared or {})}, words=words, commits=None, images=None, output=Path("out")
    )
    with prepared(request, {}) as pair:
        return pair


def test_one_side_with_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pair = pair_of(tmp_path, "train.py", "---", "--change", WORKERS, "--change", "MALLOC_MMAP_MAX_=0", "train.py")
    changed = f"{WORKERS}; MALLOC_MMAP_MAX_=0"
    assert (pair.a.label, pair.b.label) == ("train.py", f"train.py, with {changed}")
    assert (pair.a.plan.spec.change, pair.b.plan.spec.change, pair.are_equal) == (None, changed, False)
    # Both sides keep their losses, and only B gets the variable.
    assert [side.plan.context.keeps_losses for side in (pair.a, pair.b)] == [True, True]
    assert "MALLOC_MMAP_MAX_=0" not in pair.a.plan.command_text().split(" -P ")[0]
    assert "MALLOC_MMAP_MAX_=0" in pair.b.plan.command_text().split(" -P ")[0]
    assert pair_of(tmp_path, "train.py", "---", "train.py", "1").a.plan.context.keeps_losses is False


def test_one_machine_against_two_inside_a_job_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    words = ("--machines", "1", "train.py", "---", "--machines", "2", "train.py")
    with pytest.raises(UsageError, match="a run of launch duel has one machine; got --machines 2"):
        pair_of(tmp_path, *words)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    pair = pair_of(tmp_path, *words)
    assert [side.label for side in (pair.a, pair.b)] == [f"train.py, with --machines {n}" for n in (1, 2)]
    assert [side.plan.spec.machines for side in (pair.a, pair.b)] == [1, 2]
    assert "--machines 2" in pair.b.plan.command_text()


def test_changes_of_both_sides_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("train.py", "---", "--change", WORKERS, "train.py")
    pair = pair_of(tmp_path, *words, shared={"change": ["channels_last"]})
    assert (pair.a.plan.spec.change, pair.b.plan.spec.change) == ("channels_last", f"{WORKERS}; channels_last")
    with pytest.raises(UsageError, match="--change sets one thing twice"):
        pair_of(tmp_path, *words, shared={"change": ["DataLoader(num_workers=4)"]})


def with_losses(change: str, a: list[float], b: list[float]) -> Result:
    """Result of a duel whose side B has the change."""
    known = result(Machine())
    losses = {"A": tuple(each.hex() for each in a), "B": tuple(each.hex() for each in b)}
    segments = tuple(replace(each, losses=losses[each.variant]) for each in known.outcome.segments)
    plan = replace(known.pair.b.plan, spec=replace(known.pair.b.plan.spec, change=change))
    pair = replace(known.pair, b=replace(known.pair.b, plan=plan))
    return replace(known, outcome=replace(known.outcome, segments=segments), pair=pair)


def test_losses_in_the_result() -> None:
    same = with_losses(WORKERS, [2.0, 1.0], [2.0, 1.0])
    assert "losses     same to the bit (the first 2 losses)" in same.text().splitlines()
    assert "losses: same to the bit (the first 2 losses)" in same.markdown()
    assert same.to_json()["losses"]["likeness"] == Likeness.SAME
    assert not any("losses" in note for note in same.notes)
    # The table says that workers change no loss, unless the data set draws random numbers.
    other = with_losses(WORKERS, [2.0, 1.0], [2.0, 0.5])
    assert "losses     different, by 50 % in loss 2 of 2 losses" in other.text().splitlines()
    assert any("unless the data set draws random numbers" in note for note in other.notes)
    rounded = with_losses("optimizer(fused=True)", [2.0, 1.0], [2.0, 1.005])
    assert "losses     equal within 0.5 % (the first 2 losses)" in rounded.text().splitlines()
    assert not any("losses" in note for note in rounded.notes)
    assert reports()["same"].losses is None
