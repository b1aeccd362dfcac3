"""docs/clusters.md as its reader has it: every line that this cluster can run, in order, on the real Slurm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import sshd
from tests.docs import pages
from tests.launcher.script import tiny
from tests.slurm import SlurmCluster
from workload.contract import bundle
from workload.contract.record import Status

pytestmark = [
    pytest.mark.world,
    pytest.mark.timeout(1500),
]
PAGE = "docs/clusters.md"
ROOT = Path(__file__).parents[4]


def run(line: str, folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environ, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def reader(cluster: SlurmCluster) -> Path:
    """A folder with the environment and the file that the page shows."""
    folder = cluster.home / "reader"
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    [sweep] = [block.text for block in pages.blocks(PAGE) if block.language == "toml"]
    (folder / "sweep.toml").write_text(sweep)
    return folder


@pytest.mark.night(part="places")
@pytest.mark.parametrize("cluster", ["accounting"], indirect=True)
def test_from_a_login_node_to_a_report(cluster: SlurmCluster, reader: Path) -> None:
    environ = {**cluster.environ, "PYTHONPATH": str(ROOT)}
    lines = [command.text for command in pages.commands(PAGE) if "me@login" not in command.text]
    outputs = {line: run(line, reader, environ) for line in lines}
    runs = [bundle.read(path.parent).record for path in (reader / "results").glob(f"*/{bundle.MANIFEST}")]
    assert [run.status for run in runs] == [Status.COMPLETED] * 7
    assert {run.environment.slurm.partition for run in runs if run.environment.slurm} == {"gpu"}
    assert sorted((run.job.block, run.job.position) for run in runs if run.job and run.job.name) == [
        (block, position) for block in (1, 2, 3) for position in (1, 2)
    ]
    [status] = [text for line, text in outputs.items() if "launch status" in line]
    assert len([line for line in status.splitlines() if " done " in line]) == 4
    assert (reader / "report.html").exists()


@pytest.mark.parametrize("cluster", ["plain"], indirect=True)
def test_from_elsewhere(cluster: SlurmCluster, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sshd.running() as machine:
        sshd.meet(machine, monkeypatch)
        login = machine.folder / "bin"
        for program in ("sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo", "srun", "sacctmgr"):
            machine.program(program, f'#!/bin/sh\nSLURM_CONF={cluster.settings} exec /usr/bin/{program} "$@"\n')
        assert login.is_dir()
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        where = f"--host {machine.host} --port {machine.port}"
        tiny = "--cpu --model squeezenet1_1 --batch-size 1 --warmup 1 --iterations 2 --image-size 64 --no-ceilings"
        launched = run(f".venv/bin/launch slurm {where} {tiny} --python {sys.executable}", reader, environ)
        assert "finished" in launched
        [home] = (reader / "results").iterdir()
        assert bundle.read(home).record.status == Status.COMPLETED
        shown = run(f".venv/bin/launch status --backend slurm {where}", reader, environ)
        assert " done " in shown
        address = f"ssh://{machine.host}:{machine.port}/~/.rooflaunch"
        run(f".venv/bin/analyze fetch {address} -o again", reader, environ)
        assert bundle.read(reader / "again" / home.name).record.status == Status.COMPLETED


@pytest.mark.parametrize("cluster", ["plain"], indirect=True)
def test_a_script_of_ones_own(cluster: SlurmCluster) -> None:
    folder = tiny.project(cluster.home / "project")
    (folder / ".venv").symlink_to(sys.prefix)
    environ = {**cluster.environ, "PYTHONPATH": str(ROOT)}
    line = f".venv/bin/launch slurm {' '.join(tiny.FEW)} --python {sys.executable} -- train.py --lr 0.1"
    assert "samples/s" in run(line, folder, environ)
    [home] = (folder / "results").iterdir()
    record = bundle.read(home).record
    assert (record.status, record.environment.backend) == (Status.COMPLETED, "slurm")
    assert record.spec.script is not None
    assert record.spec.script.command == "train.py --lr 0.1"
