"""Real sweeps and duels of our trainer, whose runs are forks; and the same with a start server that is killed."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.waiting import is_running, until
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.trainer import FRESH_NOTE
from workload.storage.inventory import sealed_in

pytestmark = [
    pytest.mark.world,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux"),
]
ROOT = Path(__file__).parents[3]
SMALL = ("--cpu", "--model", "squeezenet1_1", "--batch-size", "1", "--image-size", "32", "--warmup", "1")
MATRIX = """
repeats = 2
[defaults]
model = "squeezenet1_1"
image_size = 32
warmup = 1
iterations = 2
ceilings = false
[matrix]
batch_size = [1, 2]
[[on]]
backend = "local"
device = "cpu"
runtime = "process"
"""


def launch(folder: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=-1,
        stderr=-1,
        text=True,
    )


def starts(folder: Path) -> "Counter[tuple[str, str]]":
    """How many runs of each status were started in which way."""
    made = [bundle.read(folder / "results" / one.run_id).record for one in sealed_in(folder / "results")]
    return Counter((record.status.value, str(record.environment.start)) for record in made)


def servers(of: int) -> list[int]:
    """Start servers of a launcher, and their runs, which have its words."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"start-server" in words and parent == of:
            found.append(int(path.name))
    return found


def test_the_runs_of_a_sweep_are_forks(tmp_path: Path) -> None:
    (tmp_path / "night.toml").write_text(MATRIX)
    out, err = launch(tmp_path, "sweep", "night.toml", "--format", "json").communicate()
    assert json.loads(out)["places"][0]["done"] == 4, err
    assert starts(tmp_path) == {("completed", "forked"): 4}
    assert "start server" not in err


def test_a_sweep_whose_start_server_is_killed_goes_on_with_fresh_processes(tmp_path: Path) -> None:
    """The run that was measuring counts as killed; the same command does it again."""
    (tmp_path / "night.toml").write_text(MATRIX.replace("iterations = 2", "iterations = 400"))
    sweep = launch(tmp_path, "sweep", "night.toml")
    until(lambda: list((tmp_path / "results").glob("*/steps.csv")))
    [server] = servers(sweep.pid)
    [run] = servers(server)
    os.kill(server, signal.SIGKILL)
    _, err = sweep.communicate()
    assert not is_running(run)
    assert sweep.returncode == ExitCode.RUN_FAILED, err
    assert f"the start server failed: it has ended; {FRESH_NOTE}" in err
    assert "the trainer was killed by SIGKILL" in err
    assert starts(tmp_path) == {("failed", "forked"): 1, ("completed", "fresh"): 3}
    again = launch(tmp_path, "sweep", "night.toml")
    _, err = again.communicate()
    assert again.returncode == 0, err
    assert starts(tmp_path)["completed", "forked"] == 1


def test_a_killed_launcher_leaves_neither_server_nor_run(tmp_path: Path) -> None:
    (tmp_path / "night.toml").write_text(MATRIX.replace("iterations = 2", "iterations = 100000"))
    sweep = launch(tmp_path, "sweep", "night.toml")
    until(lambda: list((tmp_path / "results").glob("*/steps.csv")))
    [server] = servers(sweep.pid)
    [run] = servers(server)
    sweep.kill()
    sweep.communicate()
    until(lambda: not is_running(server) and not is_running(run))
    assert starts(tmp_path) == {("interrupted", "forked"): 1}


def test_ctrl_c_ends_a_forked_run_in_order(tmp_path: Path) -> None:
    words = ("--iterations", "100000", "--min-seconds", "0", "--", "--seed", "1", "---", "--seed", "2")
    duel = launch(tmp_path, "duel", *SMALL, *words)
    until(lambda: list((tmp_path / "results").glob("*/steps.csv")))
    [server] = servers(duel.pid)
    duel.send_signal(signal.SIGINT)
    _, err = duel.communicate()
    assert duel.returncode == ExitCode.INTERRUPTED, err
    assert starts(tmp_path) == {("interrupted", "forked"): 1}
    assert not is_running(server)
    assert "Traceback" not in err


def test_a_duel_that_hangs_in_a_fork_ends_at_its_limit(tmp_path: Path) -> None:
    words = ("--iterations", "100000000", "--min-seconds", "0", "--max-time", "30s")
    duel = launch(tmp_path, "duel", *SMALL, *words, "--", "--seed", "1", "---", "--seed", "2")
    _, err = duel.communicate()
    assert duel.returncode == ExitCode.NOT_DECIDABLE, err
    assert {start for _, start in starts(tmp_path)} <= {"forked"}
