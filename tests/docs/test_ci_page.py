"""The commands of docs/ci.md run: in a checkout, as a step of GitHub Actions runs them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages
from tests.launcher.script import tiny

pytestmark = [pytest.mark.world, pytest.mark.timeout(1800)]
PAGE = "docs/ci.md"
LAYER = "torch.nn.Linear(8, 4)"
# As `run` of GitHub Actions on Linux: docs.github.com/actions/reference/workflows-and-actions/workflow-syntax, `shell`.
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")


def git(folder: Path, *commands: tuple[str, ...]) -> None:
    for words in commands:
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b", *words], cwd=folder, check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Checkout of this code and a script, with `origin/main` and a commit after it; its .venv is ours."""
    folder = tmp_path / "checkout"
    shutil.copytree(pages.ROOT / "workload", folder / "workload", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "train.py").write_text(tiny.SCRIPT.replace("from package.model import make", "").replace("make()", LAYER))
    (folder / ".gitignore").write_text(".venv\nresults\n")
    (folder / ".venv").symlink_to(sys.prefix)
    git(
        folder,
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        ("commit", "-qm", "As it is"),
        ("update-ref", "refs/remotes/origin/main", "HEAD"),
        ("commit", "-q", "--allow-empty", "-m", "A change"),
    )
    return folder


def run(line: str, checkout: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SHELL, line],
        cwd=checkout,
        env={**os.environ, "PATH": f"{checkout / '.venv/bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def steps(workflow: str | None = None) -> list[str]:
    """The command of each `run:` of a workflow; without one, of the page's."""
    page = "\n".join(block.text for block in pages.blocks(PAGE) if block.language == "yaml")
    return re.findall(r"^ *- run: (.+)$", workflow or page, re.MULTILINE)


@pytest.mark.slow
def test_the_lines_of_the_page_run_in_a_checkout(checkout: Path) -> None:
    lines = [command.text for command in pages.commands(PAGE) if "--commit" in command.text]
    assert len(lines) == 2
    for line in lines:
        done = run(line, checkout)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("note       both sides are the same program: ")
        assert "\nA          HEAD (" in done.stdout


@pytest.mark.parametrize("fails_undecided", [False, True])
def test_which_verdicts_end_the_build(fails_undecided: bool, checkout: Path) -> None:
    """A stand-in for `launch` prints its arguments and ends with the given exit code."""
    install, line = steps()
    assert install == "pip install './.rooflaunch[trainer]' -r requirements.txt"
    failed = [2, 6, 7, 11]
    if fails_undecided:
        strict = "|| [ $? -eq 12 ]"
        assert strict in (pages.ROOT / PAGE).read_text()
        line, failed = line.replace("|| [ $? -gt 11 ]", strict), [*failed, 13]
    program = checkout / "bin" / "launch"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\nexit $CODE\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    codes = (0, 2, 6, 7, 11, 12, 13)
    done = {code: run(line, checkout, PATH=path, GITHUB_BASE_REF="main", CODE=str(code)) for code in codes}
    assert [code for code in codes if done[code].returncode] == failed
    said = "duel --commit origin/main HEAD --cpu --max-time 20m -- train.py --epochs 1\n"
    assert {each.stdout for each in done.values()} == {said}


@pytest.mark.night(part="duels")
def test_the_step_runs_with_the_real_program(checkout: Path) -> None:
    """With few steps, and a difference that even a busy machine can measure."""
    script = steps()[1]
    shortened = script.replace("--max-time 20m", "--max-time 20m --same-within 50% --iterations 15 --min-seconds 0")
    assert shortened != script
    done = run(shortened, checkout, GITHUB_BASE_REF="main", GITHUB_STEP_SUMMARY=str(checkout / "summary.md"))
    assert done.returncode == 0, done.stdout + done.stderr
    summary = (checkout / "summary.md").read_text()
    assert summary.startswith("### launch duel: ")
    assert "| what | origin/main (" in summary


def test_the_workflow_of_the_example_plans_a_duel_of_its_script(checkout: Path) -> None:
    """It is the page's, for a script that needs no further packages."""
    examples = pages.ROOT / "examples"
    install, compare = steps((examples / "training-step.yml").read_text())
    assert [f"{install} -r requirements.txt", compare.replace("shapes.py", "train.py")] == steps()
    shutil.copy(examples / "shapes.py", checkout)
    git(checkout, ("add", "-A"), ("commit", "-qm", "Example"), ("update-ref", "refs/remotes/origin/main", "HEAD"))
    planned = run(compare.replace("--cpu", "--cpu --dry-run"), checkout, GITHUB_BASE_REF="main")
    assert planned.returncode == 0, planned.stderr
    assert "\nA          origin/main (" in planned.stdout
