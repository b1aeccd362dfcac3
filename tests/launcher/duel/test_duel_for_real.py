"""Duels with the real trainer, in small, and what a user sees when a side fails.

Duels to their verdict take minutes: `make test-night PARTS=duels` runs them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_duel_commits import git

from workload.contract import bundle
from workload.contract.errors import ExitCode

pytestmark = [pytest.mark.world, pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[3]
# A step of a few ms on one thread. The machine may be busy with other tests: what is asked is large, 5 ms more, or that
# no half is.
SMALL = ("--cpu", "--model", "squeezenet1_1", "--batch-size", "1", "--image-size", "32", "--warmup", "1")
SHORT = (*SMALL, "--iterations", "15", "--min-seconds", "0", "--max-time", "25m")


def duel(folder: Path, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "launcher", "duel", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, **options)


def step_of(workload: Path) -> Path:
    """The module of the training step."""
    return next(path for path in workload.rglob("*.py") if "class TrainingStep" in path.read_text())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of this trainer, with a second commit on `slow`: 5 ms of sleep in each step."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "workload", folder / "workload", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "As it is")
    git(folder, "checkout", "-q", "-b", "slow")
    step = step_of(folder / "workload")
    text = step.read_text()
    slow = re.sub(r"(\n +)(self\._scaler\.step\()", r"\1__import__('time').sleep(0.005)\1\2", text, count=1)
    assert slow != text
    step.write_text(slow)
    git(folder, "commit", "-qam", "5 ms of sleep")
    return folder


@pytest.mark.night(part="duels")
@pytest.mark.parametrize(
    ("a", "b", "margin", "code", "verdict"),
    [("main", "slow", "10%", 11, "slower"), ("slow", "main", "10%", 12, "faster"), ("main", "main", "50%", 0, "same")],
)
def test_a_commit_against_a_slower_one_and_against_itself(
    a: str, b: str, margin: str, code: int, verdict: str, checkout: Path
) -> None:
    done = duel(
        checkout, "--commit", a, b, *SHORT, "--same-within", margin, "--format", "json", "--summary", "summary.md"
    )

    assert done.returncode in (code, ExitCode.NOT_DECIDABLE), done.stdout + done.stderr
    result = json.loads(done.stdout)
    if done.returncode == ExitCode.NOT_DECIDABLE:
        pytest.skip(f"this machine cannot tell now: {result['reason']}")
    assert result["verdict"] == verdict
    assert result["are_equal"] is (a == b)
    assert (checkout / "summary.md").read_text().startswith("### launch duel: ")
    jobs = [bundle.read(checkout / one["bundle"]).record for one in result["segments"]]
    placed = [(run.job.name, run.job.variant, run.job.block, run.job.position) for run in jobs if run.job]
    assert placed == [
        (result["name"], one["variant"], one["position"] // 4 + 1, one["position"] % 4 + 1)
        for one in result["segments"]
    ]
    commits = {job.variant: run.environment.software.commit for run in jobs if (job := run.job)}
    assert commits == {"A": git(checkout, "rev-parse", a), "B": git(checkout, "rev-parse", b)}


# --- a script of one's own

# A step of 6 ms, most of it asleep: what other work on the machine changes least.
OWN = """\
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
if "--fail" in sys.argv:
    raise ValueError("no data")
batch = 8 if "--large" in sys.argv else 4
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10000):
    for images, labels in DataLoader(TensorDataset(torch.randn(320, 8), torch.randint(4, (320,))), batch_size=batch):
        time.sleep(0.006)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
"""
QUICK = ("--cpu", "--warmup", "1", "--iterations", "20", "--min-seconds", "0")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of a user's with two commits, of which the second has a step 30 % longer."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for seconds in ("0.006", "0.0079"):
        (folder / "train.py").write_text(OWN.replace("0.006", seconds))
        git(folder, "add", "train.py")
        git(folder, "commit", "-qm", f"A step of {seconds} s")
    return folder


@pytest.mark.night(part="duels")
def test_a_commit_of_a_script_that_is_slower_and_one_against_itself(project: Path) -> None:
    """About 40 runs of a script: four minutes on two cores."""
    done = duel(project, "--commit", "HEAD~1", "HEAD", *QUICK, "--format", "json", "--", "train.py")

    result = json.loads(done.stdout)
    if done.returncode == ExitCode.NOT_DECIDABLE:
        pytest.skip(f"this machine cannot tell now: {result['reason']}")
    assert (done.returncode, result["verdict"], result["compared"]) == (11, "slower", "time of a step"), done.stderr
    assert 1.1 < result["ratio"] < 1.5
    assert result["notes"] == []

    same = duel(project, "--commit", "HEAD", "HEAD", *QUICK, "--max-time", "45s", "--", "train.py")

    assert same.returncode == ExitCode.NOT_DECIDABLE
    told = "note       both sides are the same program: this duel shows how small a difference this machine can detect"
    assert same.stdout.splitlines()[0] == told
    assert same.stderr.splitlines()[0] == told

    words = [sys.executable, "-m", "analysis", "report", "results", "-o", "page.html"]
    subprocess.run(words, cwd=project, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    shas = {bundle.read(path.parent).record.spec.script.sha256 for path in project.glob("results/*/MANIFEST.json")}
    page = (project / "page.html").read_text()
    assert len(shas) == 2
    assert all(sha in page for sha in shas)


def test_a_script_that_fails_says_which_and_why(project: Path) -> None:
    done = duel(project, *QUICK, "--", "train.py", "---", "train.py", "--fail")

    assert done.returncode == 6
    error, hint = done.stderr.splitlines()[-2:]
    assert re.fullmatch(
        r"error: run [12], of B \(train\.py --fail\): train\.py failed before it imported torch; nothing was"
        r" measured: ValueError: no data|error: run [12], of B \(train\.py --fail\): train\.py failed with"
        r" ValueError before its training step was known: ValueError: no data",
        error,
    )
    assert hint == "hint: python train.py --fail alone shows the whole error"
    assert "Traceback" not in done.stderr
