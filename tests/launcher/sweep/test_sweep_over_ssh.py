"""A sweep on a machine that one can log in to: the real command, sshd, agent and trainer; and a killed launcher."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import sshd
from workload.contract import bundle
from workload.storage.inventory import sealed_in

pytestmark = [
    pytest.mark.world,
    pytest.mark.timeout(900),
    pytest.mark.night(part="places"),
]

ROOT = Path(__file__).parents[3]
MATRIX = """
repeats = 2
[defaults]
image_size = 32
warmup = 1
iterations = 2
ceilings = false
[matrix]
model = ["squeezenet1_1"]
batch_size = [1, 2]
[[on]]
name = "box"
backend = "ssh"
host = "{host}"
port = {port}
python = "{python}"
device = "cpu"
"""


def sweep(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", "sweep", "box.toml", "--format", "json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_killed_launcher_finds_its_job_again_and_nothing_is_measured_twice(
    machine: sshd.Machine, tmp_path: Path
) -> None:
    host, port = machine.host, machine.port
    (tmp_path / "box.toml").write_text(MATRIX.format(host=host, port=port, python=sys.executable))
    first = sweep(tmp_path)
    far_runs = machine.home / ".rooflaunch/runs"
    while not list(far_runs.glob("*/MANIFEST.json")):
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = sweep(tmp_path)
    out, err = second.communicate(timeout=600)
    assert second.returncode == 0, err
    [place] = json.loads(out)["places"]
    assert (place["done"], place["runs"]) == (4, 4)
    assert "of an earlier start is still running: following it" in err
    # One job did all of it, in the store and at home once each.
    assert len(list((machine.home / ".rooflaunch/launches").iterdir())) == 1
    measured = Counter(one.run_key for one in sealed_in(tmp_path / "results"))
    assert (len(measured), set(measured.values())) == (4, {1})
    assert len(list(far_runs.iterdir())) == 4
    for sealed in sealed_in(tmp_path / "results"):
        record = bundle.read(tmp_path / "results" / sealed.run_id).record
        assert record.job is not None
        assert (record.job.name, record.environment.backend) == ("box", "ssh")
