"""Commits and the working tree, from a repository of git's own."""

import os
import subprocess
from pathlib import Path

import pytest

from launcher.duel import commits, sides
from launcher.duel.sides import Request
from workload.contract.errors import ToolError, UsageError

pytestmark = pytest.mark.world


def git(folder: Path, *words: str) -> str:
    who = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b"}
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **who}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits on `main`, of which the second says so; the first has the tag `first`."""
    folder = tmp_path / "checkout"
    code = folder / "workload" / "__main__.py"
    code.parent.mkdir(parents=True)
    (code.parent / "__init__.py").touch()
    (folder / ".gitignore").write_text("*.pyc\n")
    git(folder, "init", "-q", "-b", "main")
    for text in ("first", "second"):
        code.write_text(f"'{text}'\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"The {text} | one")
        if text == "first":
            git(folder, "tag", "first")
    monkeypatch.chdir(folder)
    return folder


def code_of(export: commits.Export) -> str:
    return (export.folder / "workload/__main__.py").read_text()


def test_two_commits(checkout: Path) -> None:
    with commits.exported(("first", "HEAD"), checkout / "workload") as ((a, b), warnings):
        assert (code_of(a), code_of(b)) == ("'first'\n", "'second'\n")
        assert a.commit == git(checkout, "rev-parse", "first")
        assert b.label == f"HEAD ({b.commit[:10]} The second | one)"
        assert len(str(a.folder)) == len(str(b.folder))
        assert sorted(path.name for path in a.folder.iterdir()) == ["workload"]
        assert warnings == ()
    assert not a.folder.exists()
    assert git(checkout, "status", "--porcelain") == ""


def test_the_working_tree_is_laid_out_with_what_is_new_and_without_what_is_ignored(checkout: Path) -> None:
    (checkout / "workload/__main__.py").write_text("'changed'\n")
    (checkout / "workload/new.py").touch()
    (checkout / "workload/old.pyc").touch()
    before = git(checkout, "status", "--porcelain")

    with commits.exported(("HEAD", "."), checkout) as ((a, b), warnings):
        (checkout / "workload/__main__.py").write_text("'changed meanwhile'\n")
        assert (code_of(a), code_of(b)) == ("'second'\n", "'changed'\n")
        assert sorted(path.name for path in (b.folder / "workload").iterdir()) == [
            "__init__.py",
            "__main__.py",
            "new.py",
        ]
        assert (b.commit, b.label) == (f"{a.commit}-dirty", f"the working tree ({a.commit[:10]} and changes)")
        assert warnings == ()
    assert git(checkout, "status", "--porcelain") == before


def test_a_working_tree_without_changes_is_its_commit(checkout: Path) -> None:
    with commits.exported(("HEAD", "."), checkout) as ((a, b), _):
        assert a.commit == b.commit
        assert b.label == f"the working tree ({a.commit[:10]})"


def test_changes_that_are_in_neither_side_are_told(checkout: Path) -> None:
    (checkout / "workload/new.py").touch()
    with commits.exported(("first", "HEAD"), checkout) as (_, warnings):
        assert warnings == (
            "1 file of workload/ changed since the last commit: in neither side (--commit HEAD . has them)",
        )


def test_what_is_no_commit(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught, commits.exported(("mian", "HEAD"), checkout):
        pass
    assert str(caught.value) == f"{checkout} has no commit 'mian'"
    assert caught.value.hint == "did you mean main? git fetch brings others"
    with pytest.raises(UsageError) as caught, commits.exported(("--all", "HEAD"), checkout):
        pass
    assert str(caught.value) == f"{checkout} has no commit '--all'"
    with pytest.raises(UsageError) as caught, commits.exported(("main", "HEAD"), tmp_path):
        pass
    assert str(caught.value) == f"{tmp_path} is in no git repository"


def test_a_repository_of_something_else(checkout: Path) -> None:
    git(checkout, "rm", "-q", "workload/__main__.py")
    git(checkout, "commit", "-qm", "Away")
    with pytest.raises(UsageError) as caught, commits.exported(("HEAD", "first"), checkout):
        pass
    assert str(caught.value) == f"'HEAD' of {checkout} has no workload/__main__.py: it is no commit of rooflaunch"


def test_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ToolError, match="git cannot be run"), commits.exported(("HEAD", "first"), checkout):
        pass


def test_a_side_runs_the_code_of_its_commit_from_any_folder(checkout: Path) -> None:
    request = Request(
        shared={"device": "cpu"}, words=(), commits=("first", "HEAD"), images=None, output=checkout / "results"
    )
    with sides.prepared(request, {"PYTHONPATH": "/elsewhere"}) as pair:
        a = pair.a.plan.command
        assert a[:2] == ("env", "PYTHONSAFEPATH=1")
        folder, elsewhere = a[2].removeprefix("PYTHONPATH=").split(":")
        assert (elsewhere, Path(folder).name) == ("/elsewhere", "A")
        assert a[3] == f"ROOFLAUNCH_COMMIT={git(checkout, 'rev-parse', 'first')}"
        # The folder with the newer code is Python's first guess, and not taken.
        show = [*a[:5], "-c", "import workload; print(workload.__path__)"]
        printed = subprocess.run(show, cwd=checkout, check=True, capture_output=True, text=True).stdout
        assert f"{folder}/workload" in printed
        assert not pair.are_equal
    same = Request(shared={}, words=(), commits=("main", "HEAD"), images=None, output=checkout)
    with sides.prepared(same, {}) as pair:
        assert pair.are_equal
