"""The commands of docs/ci.md run: in a checkout, as a step of GitHub Actions runs them."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.docs import pages

pytestmark = [pytest.mark.world, pytest.mark.timeout(1800)]
PAGE = "docs/ci.md"
# As `run` of GitHub Actions on Linux: docs.github.com/actions/reference/workflows-and-actions/workflow-syntax, `shell`.
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Of this code, with `origin/main` and a commit after it; its .venv is ours."""
    folder = tmp_path / "checkout"
    shutil.copytree(pages.ROOT / "workload", folder / "workload", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text(".venv\nresults\n")
    (folder / ".venv").symlink_to(sys.prefix)
    for words in (
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        ("commit", "-qm", "As it is"),
        ("update-ref", "refs/remotes/origin/main", "HEAD"),
        ("commit", "-q", "--allow-empty", "-m", "A change"),
    ):
        who = ("-c", "user.name=A", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=folder, check=True)
    return folder


def run(line: str, checkout: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SHELL, line],
        cwd=checkout,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def steps() -> list[str]:
    """The commands of each `run: |` of the page."""
    text = "\n".join(block.text for block in pages.blocks(PAGE) if block.language == "yaml")
    scripts = re.findall(r"^( *)run: \|\n((?:\1  .*\n?)+)", text, re.MULTILINE)
    return [textwrap.dedent(script) for _, script in scripts]


@pytest.mark.slow
def test_the_lines_of_the_page_run_in_a_checkout(checkout: Path) -> None:
    lines = [command.text for command in pages.commands(PAGE) if "--commit" in command.text]
    assert len(lines) == 2
    for line in lines:
        done = run(line, checkout)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("A          HEAD (")


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (6, 6), (7, 7), (11, 11), (12, 0), (13, 0)], ids=str)
def test_which_verdicts_end_the_build(code: int, ends: int, checkout: Path) -> None:
    """With a program in the place of ours that says its words and ends as it is told."""
    program = checkout / "launch"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {code}\n')
    program.chmod(0o755)
    (script,) = steps()

    done = run(script.replace(".venv/bin/launch", "./launch"), checkout)

    assert done.returncode == ends
    assert done.stdout.splitlines()[0].startswith("duel --commit origin/main HEAD --cpu")


@pytest.mark.night(part="duels")
def test_the_step_runs_with_the_real_program(checkout: Path) -> None:
    """In small, and with a share that a busy machine can tell."""
    (script,) = steps()
    small = "--same-within 50% --model squeezenet1_1 --batch-size 1 --image-size 32 --iterations 15 --min-seconds 0"
    shortened = script.replace("--model mobilenet_v2", small)
    assert shortened != script

    done = run(shortened, checkout, GITHUB_STEP_SUMMARY=str(checkout / "summary.md"))

    assert done.returncode == 0, done.stdout + done.stderr
    summary = (checkout / "summary.md").read_text()
    assert summary.startswith("### launch duel: ")
    assert "| what | origin/main (" in summary
