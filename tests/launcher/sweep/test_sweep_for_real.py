"""Sweeps as they are typed, on this machine's CPU: interrupted, killed, and run again to their end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from workload.contract import bundle
from workload.storage.inventory import sealed_in

pytestmark = [pytest.mark.world, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[3]
DEFAULTS = """
[defaults]
image_size = 32
warmup = 1
iterations = 2
ceilings = false
"""
MATRIX = f"""
repeats = 3
{DEFAULTS}
[matrix]
model = ["squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5"]
batch_size = [2, 4]
[[on]]
backend = "local"
device = "cpu"
runtime = "process"
"""


def command(door: str, *words: str) -> list[str]:
    return [sys.executable, "-m", door, *words]


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """`launch sweep` in the background."""
    log = (folder / "log").open("a")
    return subprocess.Popen(
        command("launcher", "sweep", "night.toml", *words),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def finish(folder: Path, door: str, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command(door, *words), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def completed(folder: Path) -> list[str]:
    return [one.run_key for one in sealed_in(folder / "results") if one.status == "completed"]


def until_there_are(count: int, folder: Path, process: "subprocess.Popen[str]") -> None:
    """So many runs completed, and the next one on its way."""
    while len(completed(folder)) < count:
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.2)
    time.sleep(3)


@pytest.mark.night(part="kills")
def test_interrupted_twice_killed_once_and_run_again_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "night.toml").write_text(MATRIX)
    for count, number in ((2, signal.SIGINT), (5, signal.SIGKILL), (8, signal.SIGINT)):
        process = start(tmp_path)
        until_there_are(count, tmp_path, process)
        process.send_signal(number)
        assert process.wait() == (-signal.SIGKILL if number is signal.SIGKILL else 130), (tmp_path / "log").read_text()
    before = Counter(completed(tmp_path))
    done = finish(tmp_path, "launcher", "sweep", "night.toml", "--format", "json")
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    [place] = outcome["places"]
    assert (place["done"], place["runs"], place["new"]) == (18, 18, 18 - len(before))
    measured = Counter(completed(tmp_path))
    assert (len(measured), set(measured.values())) == (18, {1})
    for sealed in sealed_in(tmp_path / "results"):
        record = bundle.read(tmp_path / "results" / sealed.run_id).record
        assert record.job is not None
        assert record.job.name == "night"
    # Once more there is nothing to do, and nothing is done.
    again = finish(tmp_path, "launcher", "sweep", "night.toml", "--format", "json")
    assert set(Counter(completed(tmp_path)).values()) == {1}
    assert again.returncode == 0
    compared = finish(tmp_path, "analysis", "compare", "results", "--format", "json")
    assert compared.returncode == 0, compared.stderr
    # The one batch against the other: first the average over the models, then each model.
    assert [row["blocks"] for row in json.loads(compared.stdout)] == [3, 3, 3, 3]
    reported = finish(tmp_path, "analysis", "report", "results")
    assert reported.returncode == 0, reported.stderr
    assert (tmp_path / "report.html").is_file()
