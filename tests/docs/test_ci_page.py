"""The commands of docs/ci.md and the steps of action.yml run: in a checkout, as GitHub Actions runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs import pages
from tests.launcher.script import tiny

pytestmark = [pytest.mark.world, pytest.mark.timeout(1800)]
PAGE = "docs/ci.md"
LAYER = "torch.nn.Linear(8, 4)"
ACTION = yaml.safe_load((pages.ROOT / "action.yml").read_text(encoding="utf-8"))
EXPRESSION = re.compile(r"\$\{\{ ([\w.-]+) \}\}")
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


# gh for comments of pull requests, which it keeps in $COMMENTS; $READ_ONLY refuses to write, as a fork's token does.
GH = """#!/usr/bin/env python
import json, os, pathlib, subprocess, sys
store = pathlib.Path(os.environ["COMMENTS"])
comments = json.loads(store.read_text())
words = iter(sys.argv[1:])
assert next(words) == "api" and os.environ["GH_TOKEN"] == "secret"
method, path, body, query = "GET", None, None, "."
for word in words:
    if word == "--method": method = next(words)
    elif word == "--jq": query = next(words)
    elif word == "--field": body = pathlib.Path(next(words).removeprefix("body=@")).read_text()
    elif word not in ("--silent", "--paginate"): path = word
if body is None:
    assert path == "repos/o/r/issues/7/comments?per_page=100"
    sys.exit(subprocess.run(["jq", query], input=json.dumps(comments), text=True).returncode)
if "READ_ONLY" in os.environ:
    sys.exit("gh: Resource not accessible by integration (HTTP 403)")
if method == "PATCH":
    [comment] = [each for each in comments if path == f"repos/o/r/issues/comments/{each['id']}"]
    comment["body"] = body
else:
    assert path == "repos/o/r/issues/7/comments"
    comments.append({"id": len(comments) + 1, "body": body})
store.write_text(json.dumps(comments))
"""
LAUNCH = """#!/bin/sh
printf '%s\\n' "$@" >>"$ARGUMENTS"
while [ "$1" != --summary ]; do shift; done
[ "$EXIT" = 6 ] || printf '### launch duel: code %s\\n' "$EXIT" >>"$2"
exit "$EXIT"
"""


class Action:
    """Runs the steps of action.yml as a runner does. `output`: of all steps; `shown`: the job's summary."""

    def __init__(self, checkout: Path, **programs: str) -> None:
        self.checkout, self.temp, self.output = checkout, checkout.parent / "temp", ""
        (self.temp / "bin").mkdir(parents=True)
        (self.temp / "bin/python").symlink_to(sys.executable)
        for name, text in {"gh": GH, **programs}.items():
            (self.temp / "bin" / name).write_text(text)
            (self.temp / "bin" / name).chmod(0o755)
        (self.temp / "comments.json").write_text(json.dumps([{"id": 1, "body": "A person says <!-- rooflaunch duel."}]))

    @property
    def shown(self) -> str:
        return (self.temp / "summary.md").read_text()

    @property
    def comments(self) -> list[str]:
        return [comment["body"] for comment in json.loads((self.temp / "comments.json").read_text())][1:]

    def run(self, given: dict[str, str], **environment: str) -> "subprocess.CompletedProcess[str]":
        """The last step that ran: the first that failed, or the last of all."""
        known = {f"inputs.{name}": str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
        known |= {f"inputs.{name}": value for name, value in given.items()} | {
            "inputs.token": "secret",
            "github.action_path": "/action",
            "github.workflow": "train",
            "github.job": "step",
            "github.event.pull_request.number": "7",
        }
        (self.temp / "output").write_text("")
        for step in ACTION["runs"]["steps"][1:]:
            own = {name: EXPRESSION.sub(lambda found: known[found[1]], value) for name, value in step["env"].items()}
            runner = {
                "PATH": f"{self.temp / 'bin'}:{self.checkout / '.venv/bin'}:{os.environ['PATH']}",
                "GITHUB_BASE_REF": "main",
                "GITHUB_REPOSITORY": "o/r",
                "GITHUB_STEP_SUMMARY": str(self.temp / "summary.md"),
                "GITHUB_OUTPUT": str(self.temp / "output"),
                "RUNNER_TEMP": str(self.temp),
                "COMMENTS": str(self.temp / "comments.json"),
                "ARGUMENTS": str(self.temp / "arguments"),
            }
            done = run(step["run"], self.checkout, **runner, **own, **environment)
            self.output += done.stdout
            if done.returncode:
                break
            for line in (self.temp / "output").read_text().splitlines():
                known[f"steps.duel.outputs.{line.partition('=')[0]}"] = line.partition("=")[2]
        return done


@pytest.fixture
def action(checkout: Path) -> Action:
    """The action with stand-ins for `launch` and `pip`, which write down their words."""
    return Action(checkout, launch=LAUNCH, pip='#!/bin/sh\nprintf "%s\\n" pip "$@" >>"$ARGUMENTS"\n')


@pytest.mark.slow
def test_the_lines_of_the_page_run_in_a_checkout(checkout: Path) -> None:
    lines = [command.text for command in pages.commands(PAGE) if "--commit" in command.text]
    assert len(lines) == 2
    for line in lines:
        done = run(line, checkout)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("note       both sides are the same program: ")
        assert "\nA          HEAD (" in done.stdout


# --- action.yml


def test_no_step_puts_foreign_text_into_its_shell() -> None:
    """A title of a pull request or an input could be a command there."""
    for step in ACTION["runs"]["steps"][1:]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"


def test_shell_of_the_action(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: apt-get install shellcheck (.ci/packages)")
    for step in ACTION["runs"]["steps"][1:]:
        (tmp_path / "step.sh").write_text(step["run"])
        done = subprocess.run(
            ["shellcheck", "--shell=bash", tmp_path / "step.sh"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def test_words_that_reach_the_duel(action: Action) -> None:
    """Quotes join words, and nothing in a word is a command."""
    script = "train.py --name 'a b' '$(touch owned)' '`touch owned`' ; touch owned"
    done = action.run({"script": script, "requirements": "needs it.txt", "options": "--cuda --seed 3"}, EXIT="0")
    assert done.returncode == 0, done.stderr
    install = ["pip", "install", "/action[trainer]", "--requirement", "needs it.txt"]
    duel = ["duel", "--commit", "origin/main", "HEAD", "--cuda", "--seed", "3", "--max-time", "20m"]
    duel += ["--same-within", "2%", "--summary", str(action.temp / "duel.md"), "--"]
    words = ["train.py", "--name", "a b", "$(touch owned)", "`touch owned`", ";", "touch", "owned"]
    assert (action.temp / "arguments").read_text().splitlines() == [*install, *duel, *words]
    assert not (action.checkout / "owned").exists()


def test_unbalanced_quotes_end_the_duel(action: Action) -> None:
    done = action.run({"script": "train.py 'a"}, EXIT="0")
    assert done.returncode
    assert "No closing quotation" in done.stderr
    assert "duel" not in (action.temp / "arguments").read_text().splitlines()


@pytest.mark.parametrize("fails_undecided", ["false", "true"])
def test_which_verdicts_end_the_build(fails_undecided: str, action: Action) -> None:
    codes = (0, 2, 6, 7, 11, 12, 13)
    inputs = {"script": "train.py", "fail-undecided": fails_undecided}
    failed = [code for code in codes if action.run(inputs, EXIT=str(code)).returncode]
    assert failed == [2, 6, 7, 11, *([13] if fails_undecided == "true" else [])]
    assert "### launch duel: code 13\n" in action.shown
    assert "### launch duel: failed with exit code 6\n\nThe log of the job says why.\n" in action.shown


def test_one_comment_for_each_duel_of_a_pull_request(action: Action) -> None:
    """A second push replaces it, another script has its own, and a person's comment stays."""
    for script, code in (("train.py", "13"), ("other.py", "12"), ("train.py", "0")):
        assert action.run({"script": script}, EXIT=code).returncode == 0
    assert [comment.splitlines()[1:] for comment in action.comments] == [
        ["### launch duel: code 0"],
        ["### launch duel: code 12"],
    ]


def test_a_token_that_may_not_comment(action: Action) -> None:
    """The verdict is that of the duel, which the summary has."""
    done = action.run({"script": "train.py"}, EXIT="11", READ_ONLY="1")
    assert done.returncode == 11
    assert action.comments == []
    assert action.shown == "### launch duel: code 11\n"


def test_a_checkout_of_one_commit_gets_the_base(action: Action, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, ("clone", "-q", "--depth", "1", action.checkout.as_uri(), str(shallow)))
    git(shallow, ("update-ref", "-d", "refs/remotes/origin/main"))
    action.checkout = shallow
    assert action.run({"script": "train.py"}, EXIT="0").returncode == 0
    git(shallow, ("rev-parse", "--verify", "origin/main"))


@pytest.mark.night(part="duels")
def test_the_action_runs_with_the_real_program(checkout: Path) -> None:
    """With few steps, and a difference that even a busy machine can measure."""
    action = Action(checkout, pip="#!/bin/sh\n")
    inputs = {"script": "train.py", "options": "--cpu --iterations 15 --min-seconds 0", "same-within": "50%"}
    done = action.run(inputs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert action.shown.startswith("### launch duel: ")
    assert "| what | origin/main (" in action.shown
    [comment] = action.comments
    assert comment.partition("\n")[2] == action.shown


@pytest.mark.parametrize("workflow", [PAGE, "examples/training-step.yml"])
def test_inputs_of_the_workflows(workflow: str, checkout: Path) -> None:
    """They exist, and `launch` plans a duel of the script."""
    path = pages.ROOT / workflow
    page = "\n".join(block.text for block in pages.blocks(PAGE) if block.language == "yaml")
    used = yaml.safe_load(page if workflow == PAGE else path.read_text())
    [given] = [step["with"] for step in used["jobs"]["training-step"]["steps"] if "/rooflaunch@" in step["uses"]]
    required = {name for name, each in ACTION["inputs"].items() if each.get("required")}
    assert required <= given.keys() <= ACTION["inputs"].keys()
    assert used["permissions"]["pull-requests"] == "write"
    shutil.copy(pages.ROOT / "examples/shapes.py", checkout)
    git(checkout, ("add", "-A"), ("commit", "-qm", "Example"), ("update-ref", "refs/remotes/origin/main", "HEAD"))
    action = Action(checkout, pip="#!/bin/sh\n", gh="#!/bin/sh\n")
    done = action.run({"script": given["script"], "options": "--cpu --dry-run"})
    assert done.returncode == 0, done.stderr
    assert "\nA          origin/main (" in action.output
