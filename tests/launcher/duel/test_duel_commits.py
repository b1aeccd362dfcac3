"""What A and B are: options, scripts, images, and commits from a repository of git's own."""

import os
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.duel import sides
from launcher.duel.contest import Pair
from launcher.duel.sides import Request
from launcher.machine.runtime import Workplace
from tests.launcher.told import Golden, told
from workload.contract.errors import ToolError

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


def code_of(export: sides.Export) -> str:
    return (export.folder / "workload/__main__.py").read_text()


def test_two_commits(checkout: Path) -> None:
    with sides.exported(("first", "HEAD"), checkout / "workload") as exports:
        a, b = exports.a, exports.b
        assert (code_of(a), code_of(b)) == ("'first'\n", "'second'\n")
        assert a.commit == git(checkout, "rev-parse", "first")
        assert b.label == f"HEAD ({b.commit[:10]} The second | one)"
        assert len(str(a.folder)) == len(str(b.folder))
        assert sorted(path.name for path in a.folder.iterdir()) == ["workload"]
        assert (exports.links, exports.warnings) == ((), ())
    assert not a.folder.exists()
    assert git(checkout, "status", "--porcelain") == ""


def test_the_working_tree_is_laid_out_with_what_is_new_and_without_what_is_ignored(checkout: Path) -> None:
    (checkout / "workload/__main__.py").write_text("'changed'\n")
    (checkout / "workload/new.py").touch()
    (checkout / "workload/old.pyc").touch()
    before = git(checkout, "status", "--porcelain")

    with sides.exported(("HEAD", "."), checkout) as exports:
        a, b = exports.a, exports.b
        (checkout / "workload/__main__.py").write_text("'changed meanwhile'\n")
        assert (code_of(a), code_of(b)) == ("'second'\n", "'changed'\n")
        laid_out = {path.name for path in (b.folder / "workload").iterdir()}
        assert laid_out == {"__init__.py", "__main__.py", "new.py"}
        assert (b.commit, b.label) == (f"{a.commit}-dirty", f"the working tree ({a.commit[:10]} and changes)")
        assert (exports.links, exports.warnings) == ((), ())
    assert git(checkout, "status", "--porcelain") == before


def test_what_is_no_commit(golden: Golden, checkout: Path, tmp_path: Path) -> None:
    def export(a: str, b: str, folder: Path = checkout) -> None:
        with sides.exported((a, b), folder):
            pass

    text = told(
        {
            "a typing error": partial(export, "mian", "HEAD"),
            "an option": partial(export, "--all", "HEAD"),
            "no repository": partial(export, "main", "HEAD", tmp_path),
        }
    )
    git(checkout, "rm", "-q", "workload/__main__.py")
    git(checkout, "commit", "-qm", "Away")
    text += "\n" + told({"a repository of something else": partial(export, "HEAD", "first")})
    golden("no_commits.txt", text.replace(str(tmp_path), "FOLDER"))


def test_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ToolError, match="git cannot be run"), sides.exported(("HEAD", "first"), checkout):
        pass


# --- commits of a script's repository


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of a user's: a script in a folder of it, two commits, data and caches that git ignores."""
    folder = tmp_path / "project"
    for name, text in {
        "src/train.py": "one",
        "src/package/main.py": "",
        ".gitignore": "data/\n*.pt\n__pycache__/\n.venv/\n",
        ".gitattributes": "*.md export-ignore\n",
        "read.md": "me",
        "data/photo.jpg": "x" * 9,
        # A folder that ignores itself, as caches of tools do.
        "tool/.gitignore": "*\n",
        "tool/result": "",
        "src/weights.pt": "w",
        "src/__pycache__/train.pyc": "",
        ".venv/pyvenv.cfg": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    (folder / "src/train.py").write_text("two")
    git(folder, "commit", "-qam", "two")
    monkeypatch.chdir(folder / "src")
    return folder


def duel_of(*words: str, commits: tuple[str, str] = ("HEAD~1", "HEAD"), data: str | None = None) -> Request:
    return Request(shared={}, words=words, commits=commits, images=None, output=Path("out"), data=data)


def test_a_script_of_two_commits_runs_in_a_copy_of_each_with_what_git_ignores_in_place(project: Path) -> None:
    with sides.prepared(duel_of("train.py", "--root", "{data}", data="../data"), {}) as pair:
        a, b = (side.plan.workplace for side in (pair.a, pair.b))
        assert a is not None
        assert b is not None
        assert [(one.folder / "train.py").read_text() for one in (a, b)] == ["one", "two"]
        assert (a.folder.parts[-2:], b.folder.parts[-2:]) == (("A", "src"), ("B", "src"))
        assert a.data == str(project / "data")
        assert [one.commit for one in (a, b)] == [git(project, "rev-parse", name) for name in ("HEAD~1", "HEAD")]
        # As a checkout has them, whatever the attributes say of archives; links to what is ignored, but for caches.
        assert (a.folder.parent / "read.md").read_text() == "me"
        assert (a.folder.parent / "data").readlink() == project / "data"
        assert (a.folder / "weights.pt").readlink() == project / "src/weights.pt"
        assert not (a.folder / "__pycache__").exists()
        assert not (a.folder.parent / ".venv").exists()
        copied = "train.py --root '{data}', in a copy of each commit: files written there are deleted at the end"
        assert pair.facts == (
            ("script", copied),
            ("data", f"{{data}} is {project}/data, used in place by both sides"),
            ("links", f"data/, src/weights.pt, tool/: ignored by git, used in place in {project} by both sides"),
        )
        # Bundles stay where the user is.
        assert pair.a.plan.output == project / "src/out"
        assert (pair.a.label[:8], pair.are_equal, pair.compares_code) == ("HEAD~1 (", False, True)
    assert not a.folder.exists()
    assert (project / "data/photo.jpg").is_file()
    assert git(project, "status", "--porcelain") == ""


def test_the_same_commit_or_the_same_content_is_the_same_program(project: Path) -> None:
    with sides.prepared(duel_of("train.py", commits=("HEAD", "main")), {}) as pair:
        assert pair.are_equal
    git(project, "commit", "-q", "--allow-empty", "-m", "nothing")
    with sides.prepared(duel_of("train.py"), {}) as pair:
        assert pair.are_equal
    with sides.prepared(duel_of("train.py", commits=("HEAD", ".")), {}) as pair:
        assert pair.are_equal
        assert pair.warnings == ()
    (project / "src/train.py").write_text("three")
    with sides.prepared(duel_of("train.py", commits=("HEAD", ".")), {}) as pair:
        assert not pair.are_equal
        assert pair.b.plan.workplace is not None
        assert (pair.b.plan.workplace.folder / "train.py").read_text() == "three"
    with sides.prepared(duel_of(str(project / "src/train.py")), {}) as pair:
        assert pair.a.plan.spec.script == ("train.py",)
        assert pair.warnings == (
            ("1 file changed since the last commit, in neither side (to compare them: --commit HEAD .)"),
        )


def test_an_import_path_into_the_repository_leads_to_the_copy(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["bin", str(project / "lib"), str(project / "src"), "/elsewhere"])
    with sides.prepared(duel_of("-m", "package.main"), {"PYTHONPATH": f"{project}/src:/more"}) as pair:
        assert pair.a.plan.workplace is not None
        copy = pair.a.plan.workplace.folder
        assert pair.a.plan.workplace.variables == {"PYTHONPATH": f"{copy}:/more:{copy.parent}/lib"}


def test_what_commits_of_a_script_cannot_be(
    golden: Golden, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*words: str, commits: tuple[str, str] = ("HEAD~1", "HEAD"), folder: Path = project / "src") -> None:
        monkeypatch.chdir(folder)
        with sides.prepared(duel_of(*words, commits=commits), {}):
            pass

    text = told(
        {
            "a commit without the script": partial(prepare, "tain.py"),
            "a commit without the module": partial(prepare, "-m", "package.mian"),
            "a script outside of the repository": partial(prepare, "../../train.py"),
            "no commit": partial(prepare, "train.py", commits=("mian", "HEAD")),
            # It would lead out of the copy, to the script as it is now.
            "a folder that no commit has": partial(prepare, "../src/train.py", folder=project / "data"),
            "no repository": partial(prepare, "train.py", folder=tmp_path),
        }
    )
    monkeypatch.setattr(sides, "MOST_NEW_BYTES", 8)
    (project / "new.bin").write_bytes(b"x" * 9)
    text += "\n" + told({"data that git would copy": partial(prepare, "train.py", commits=("HEAD", "."))})
    golden("no_commits_of_scripts.txt", text.replace(str(tmp_path), "FOLDER"))


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


def prepare(*words: str, environment: Mapping[str, str] | None = None, **changes: Any) -> Pair:
    plain: dict[str, Any] = {"shared": {}, "words": words, "commits": None, "images": None, "output": Path("out")}
    with sides.prepared(Request(**plain | changes), environment or {}) as pair:
        return pair


def test_options_against_options() -> None:
    shared = {"model": "mobilenet_v2", "device": "cpu", "precision": "fp32"}
    pair = prepare("--batch-size=8", "---", "--precision", "bf16", "--cuda", "--no-channels-last", shared=shared)

    a, b = pair.a.plan.spec, pair.b.plan.spec
    assert (a.model, a.device, a.precision, a.batch_size) == ("mobilenet_v2", "cpu", "fp32", 8)
    assert (b.model, b.device, b.precision, b.batch_size) == ("mobilenet_v2", "cuda", "bf16", None)
    assert (pair.a.label, pair.b.label) == ("--batch-size=8", "--precision bf16 --cuda --no-channels-last")
    assert not pair.are_equal
    assert prepare("--devices", "2", "---", "--devices", "2", shared={"device": "cpu"}).are_equal
    # The single device gets as many CPUs as each of two.
    pair = prepare("---", "--devices", "2", shared={"device": "cpu"})
    assert [side.plan.context.cpu_shares for side in (pair.a, pair.b)] == [2, 2]


def test_a_segment_measures_3_seconds_and_no_ceilings_unless_told_otherwise() -> None:
    environment = {"ROOFLAUNCH_REPEATS": "5", "ROOFLAUNCH_PROFILE": "torch"}
    pair = prepare("---", "--ceilings", "--min-seconds", "1", environment=environment)

    a, b = pair.a.plan.spec, pair.b.plan.spec
    assert (a.ceilings, a.min_seconds, b.ceilings, b.min_seconds) == (False, 3.0, True, 1.0)
    assert (a.repeats, a.profile, b.repeats, b.profile) == (1, "none", 1, "none")


MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("", {}),
    "two kinds": ("---", {"commits": ("a", "b")}),
    "one side": ("--precision fp32", {}),
    "unknown option": ("--- --precison bf16", {}),
    "an option against a script": ("--lr --- -m package.train", {}),
    "data that nobody named": ("-m json.tool --- -m json.tool {data}", {}),
    "no data": ("-m x --- -m x", {"data": "nowhere"}),
    "data without a script": ("---", {"data": "."}),
    "repeats": ("--- --repeats 3", {}),
}


def test_mistakes(golden: Golden) -> None:
    cases = {name: partial(prepare, *words.split(), **changes) for name, (words, changes) in MISTAKES.items()}
    golden("mistakes.txt", told(cases))


def test_a_script_against_itself_with_other_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    words = ("train.py", "--lr", "1", "---", "train.py", "--root", "{data}", "--token", "hunter2")
    pair = prepare(*words, shared={"device": "cpu", "iterations": "5"}, data=".")

    assert (pair.a.label, pair.b.label) == ("train.py --lr 1", "train.py --root '{data}' --token '[redacted]'")
    a, b = pair.a.plan, pair.b.plan
    assert (a.spec.script, b.spec.script) == (words[:3], words[4:])
    assert (a.spec.iterations, a.spec.min_seconds, a.spec.ceilings) == (5, 3.0, False)
    assert a.workplace == b.workplace == Workplace(folder=tmp_path, data=str(tmp_path))
    assert not pair.are_equal
    assert prepare("train.py", "---", "train.py").are_equal


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Any) -> None:
    from launcher import docker_engine

    docker.hold("sha256:" + "a" * 64, "rooflaunch:one")
    docker.hold("sha256:" + "b" * 64, "rooflaunch:two")
    monkeypatch.setattr(docker_engine, "connect", docker.engine)
    monkeypatch.setattr(sides, "outside_facts", dict)

    pair = prepare(images=("rooflaunch:one", "rooflaunch:two"), shared={"device": "cpu"})

    assert (pair.a.label, pair.b.label) == (
        "rooflaunch:one (sha256:aaaaaaaaaaaa)",
        "rooflaunch:two (sha256:bbbbbbbbbbbb)",
    )
    assert [side.plan.container.image for side in (pair.a, pair.b) if side.plan.container] == [
        "sha256:" + "a" * 64,
        "sha256:" + "b" * 64,
    ]
    assert not pair.are_equal
    assert prepare(images=("rooflaunch:one", "rooflaunch:one"), shared={"device": "cpu"}).are_equal
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    pair = prepare("train.py", images=("rooflaunch:one", "rooflaunch:two"), shared={"device": "cpu"})
    assert [side.plan.spec.script for side in (pair.a, pair.b)] == [("train.py",)] * 2
    assert pair.a.plan.container is not None
    assert pair.a.plan.container.command[-1] == "train.py"
    with pytest.raises(ToolError) as caught:
        prepare(images=("rooflaunch:one", "rooflaunch:three"), shared={"device": "cpu"})
    assert str(caught.value) == "the engine has no image 'rooflaunch:three'"
