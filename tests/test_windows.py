"""Our programs on Windows; elsewhere, without the names that Windows lacks: see like_windows/sitecustomize.py."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).parents[1]
LIKE_WINDOWS = {} if sys.platform == "win32" else {"PYTHONPATH": str(ROOT / "tests" / "like_windows")}
TINY = ("--cpu", "--image-size", "32", "--batch-size", "2", "--warmup", "1", "--iterations", "2", "--no-ceilings")

pytestmark = pytest.mark.world


def run(*words: str, folder: Path, variables: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", *words],
        cwd=folder,
        env={**os.environ, **LIKE_WINDOWS, **(variables or {})},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def python(code: str, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `code` as a module of `launcher`, which the names are missing for."""
    return run("-c", f"__package__ = 'launcher'\n{code}", *words, folder=folder)


@pytest.mark.skipif(sys.platform == "win32", reason="there they are")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import fcntl", "ModuleNotFoundError: No module named 'fcntl' on Windows"),
        ("import signal; signal.SIGHUP", "AttributeError: module 'signal' has no attribute 'SIGHUP' on Windows"),
        ("from os import fork", "ImportError: cannot import name 'fork' from 'os' (unknown location)"),
        ("import sys; print(sys.platform); raise SystemExit", ""),
    ],
)
def test_names_are_missing(code: str, error: str, tmp_path: Path) -> None:
    done = python(code, tmp_path)
    assert done.stderr.strip().rpartition("\n")[2] == error
    assert done.stdout == ("" if error else "win32\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["launcher", "local", "--cpu", "--dry-run", "--runtime", "process", "-o", r"C:\results"], "C:\\results/"),
        (["launcher", "gcp", "--gpu", "t4", "--project", "my-project", "--dry-run"], "n1-standard-4 with 1 x T4"),
        (["launcher", "ssh", "--host", "me@lab", "--dry-run"], "me@lab, which was not contacted yet"),
        (["launcher", "slurm", "--host", "me@lab", "--dry-run"], "resnet18"),
        (["launcher", "gpus"], "n1-standard-4"),
        (["analysis", "--help"], "report"),
        (["workload", "--help"], "python -m workload train"),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, list) else "",
)
@pytest.mark.slow
def test_commands_that_start_nothing(words: list[str], said: str, tmp_path: Path) -> None:
    done = run("-m", *words, folder=tmp_path)
    assert (done.returncode, said in done.stdout) == (0, True), done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["launcher", "local", *TINY, "--runtime", "process", "-o", "CON"], "'CON' is the name of a device"),
        (["workload", "train", *TINY, "-o", "runs/a:b"], "a name cannot have the character ':'"),
        (["analysis", "example", "-o", "page."], "'page.' ends in a dot or a space, which Windows drops"),
    ],
    ids=["launch", "train", "analyze"],
)
@pytest.mark.slow
def test_a_path_that_windows_cannot_have(words: list[str], refused: str, tmp_path: Path) -> None:
    done = run("-m", *words, folder=tmp_path)
    assert f"is no path for Windows: {refused}\nhint: give another name" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_measured_runs_and_their_report(tmp_path: Path) -> None:
    def succeed(*words: str, **variables: str) -> str:
        done = run("-m", *words, folder=tmp_path, variables=variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    succeed("workload", "train", *TINY, "--workers", "0", "-o", "results")
    words = ("local", *TINY, "--runtime", "process", "--profile", "torch", "-o", "results", "--format", "json")
    (record,) = json.loads(succeed("launcher", *words))["runs"]
    assert record["profile"]["status"] == "completed"
    succeed("analysis", "report", "results", "-o", "µ.html")
    assert "resnet18" in (tmp_path / "µ.html").read_text(encoding="utf-8")
    succeed("analysis", "summary", "results", PYTHONIOENCODING="cp1252")
    statuses = [json.loads(path.read_text(encoding="utf-8"))["status"] for path in tmp_path.glob("results/*/run.json")]
    assert statuses == ["completed"] * 2


HELD = """
import sys
from pathlib import Path
from launcher.sweep.drive import lock_held
from workload.contract.errors import UsageError
try:
    with lock_held(Path("results"), "night") as earlier:
        print(earlier, flush=True)
        sys.stdin.readline()
except UsageError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_sweep_is_locked(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-c", HELD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, cwd=tmp_path, env={**os.environ, **LIKE_WINDOWS}, text=True, **pipes) as first:
        assert first.stdout
        assert first.stdout.readline() == "\n"
        second = run("-c", HELD, folder=tmp_path)
        assert f"another process works on sweep 'night' in 'results': process {first.pid} on " in second.stdout
    assert run("-c", HELD, folder=tmp_path).stdout.startswith(f"process {first.pid} on ")


INTERRUPTED = """
import signal, sys, threading
from pathlib import Path
from workload.contract import process

children = []
def on_started(child):
    children.append(child)
def on_message(line):
    if "measured" in line:
        children[0].send_signal(signal.SIGINT)
words = [sys.executable, "-P", "-m", "workload", "train", "--cpu", "--image-size", "32", "--batch-size", "2",
         "--warmup", "1", "--iterations", "100000", "--no-ceilings", "-o", "results"]
follower = process.Follower(on_message=on_message, on_started=on_started, apart=True)
ended = process.run_child(words, on_line=print, follower=follower)
print(ended.code)
"""


@pytest.mark.slow
def test_a_run_in_a_group_of_its_own_is_interrupted(tmp_path: Path) -> None:
    done = run("-c", INTERRUPTED, folder=tmp_path)
    folder, code = done.stdout.split()
    assert code == "130", done.stderr
    record = json.loads((tmp_path / folder / "run.json").read_text(encoding="utf-8"))
    assert (record["status"], record["error"]) == ("interrupted", "interrupted by Ctrl-C or Ctrl-Break")
    assert (tmp_path / folder / "MANIFEST.json").is_file()


@pytest.mark.slow
def test_a_run_whose_launcher_was_killed_ends(tmp_path: Path) -> None:
    killed = INTERRUPTED.replace("children[0].send_signal(signal.SIGINT)", "import os; os._exit(9)")
    assert run("-c", killed, folder=tmp_path).returncode == 9
    (folder,) = (tmp_path / "results").glob("[!.]*")
    until((folder / "MANIFEST.json").is_file, "a sealed bundle")
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert record["error"] == "interrupted: the process that started this run has ended"
