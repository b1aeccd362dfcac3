"""Ranks in two network namespaces, joined by a link that can be cut; a small program stands for srun."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import until
from tests.workload.run.test_ranks import TINY, rows
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.record import Status

pytestmark = [
    pytest.mark.world,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="root makes network namespaces by ip"),
]
SMALL = [*TINY, "--model", "squeezenet1_1", "--devices", "1", "--machines", "2"]
# Starts one rank in each namespace, and ends as srun does.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for at in 0 1; do
  SLURM_PROCID=$at SLURM_LOCALID=0 SLURM_NODEID=$at SLURMD_NODENAME=n$((at + 1)) \\
    ip netns exec {space}-$at "$@" &
done
wait -n || code=$?
wait -n || code=$?
exit ${{code:-0}}
"""
SCONTROL = "#!/bin/sh\necho NodeName=n1 NodeAddr=10.77.0.1\necho NodeName=n2 NodeAddr=10.77.0.2\n"


class Network:
    """Two namespaces, `NAME-0` and `NAME-1`, and the link between them."""

    def __init__(self, folder: Path) -> None:
        self.name, self.folder = f"rooflaunch-{os.getpid()}", folder
        for program, text in {"srun": SRUN.format(space=self.name), "scontrol": SCONTROL}.items():
            (folder / program).write_text(text)
            (folder / program).chmod(0o755)

    def ip(self, words: str, at: int | None = None) -> None:
        where = [] if at is None else ["-n", f"{self.name}-{at}"]
        subprocess.run(["ip", *where, *words.format(self.name).split()], check=True, capture_output=True)

    def make(self) -> None:
        for at in (0, 1):
            self.ip(f"netns add {{}}-{at}")
        self.ip("link add link0 netns {0}-0 type veth peer name link1 netns {0}-1")
        for at in (0, 1):
            self.ip(f"addr add 10.77.0.{at + 1}/24 dev link{at}", at)
            self.ip(f"link set link{at} up", at)
            self.ip("link set lo up", at)

    def started(self, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-P", "-m", "workload", "train", *SMALL, *words]
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["ip", "netns", "exec", f"{self.name}-0", *command, "-o", str(self.folder / "out")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PATH": path, "SLURM_JOB_NODELIST": "n[1-2]"},
        )


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    network = Network(tmp_path)
    try:
        try:
            network.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made: {error.stderr!r}")
        yield network
    finally:
        for at in (0, 1):
            subprocess.run(["ip", "netns", "del", f"{network.name}-{at}"], check=False, capture_output=True)


def family(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


def test_ranks_talk_over_the_link_and_listen_on_its_addresses_only(network: Network) -> None:
    process = network.started("--iterations", "40")
    until(lambda: rows(network.folder / "out") >= 8)
    listing = subprocess.run(
        ["ip", "netns", "exec", f"{network.name}-0", "ss", "-Hltn"], capture_output=True, text=True, check=True
    ).stdout
    out, err = process.communicate()
    assert process.returncode == ExitCode.DONE, err
    assert set(re.findall(r"(\S+):\d+ ", listing)) == {"10.77.0.1"}
    found = bundle.read(Path(out.strip())).record.ranks
    assert found is not None
    assert (list(found.hosts or ()), list(found.steps or ())) == (["n1", "n2"], [40, 40])


def test_link_that_is_cut_ends_the_run_and_its_steps_are_kept(network: Network) -> None:
    process = network.started("--iterations", "100000")
    until(lambda: rows(network.folder / "out") >= 8)
    there, cut_s = family(process), time.monotonic()
    network.ip("link set link1 down", 1)
    out, err = process.communicate()
    assert time.monotonic() - cut_s < 60
    assert process.returncode == ExitCode.RUN_FAILED, err
    record = bundle.read(Path(out.strip())).record
    assert record.status is Status.FAILED
    assert "rank 1 on n2 was killed, or its machine or the network was lost" in str(record.error)
    assert record.ranks is not None
    assert min(record.ranks.steps or ()) >= 6
    until(lambda: not any(each.is_running() for each in there), "processes are left", within_s=30)


def test_machine_that_cannot_be_reached_is_named(network: Network) -> None:
    network.ip("link set link1 down", 1)
    process = network.started("--iterations", "6")
    _, err = process.communicate(timeout=100)
    assert process.returncode == ExitCode.RUN_FAILED
    assert "error: rank 1 on n2 cannot reach the first machine at 10.77.0.1:" in err
