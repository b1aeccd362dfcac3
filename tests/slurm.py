"""Slurm clusters that `.ci/slurm` starts on this machine: one with accounting, one without."""

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.waiting import is_running, until

FOLDER = Path("/var/lib/rooflaunch-test-slurm")
WHY_SKIPPED = "no Slurm of the tests answers here: .ci/packages installs it, .ci/slurm {name} starts it"
NODES = ("n1", "n2", "g1")


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """A cluster; `home`: the user's folder, which all nodes see because they are this machine."""

    name: str
    home: Path

    @property
    def settings(self) -> Path:
        return FOLDER / self.name / "slurm.conf"

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.settings), "HOME": str(self.home)}

    @property
    def ours(self) -> Path:
        return self.home / ".rooflaunch"

    def run(self, *words: str) -> str:
        """Output of one of Slurm's programs; an error of the program fails the test."""
        environ = {**self.environ, "SLURM_TIME_FORMAT": "%s"}
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def queue(self, *states: str) -> list[str]:
        """Names, `JOB_INDEX`, of our array elements in the queue, or of those in the given states."""
        chosen = ["-t", ",".join(states)] if states else []
        return self.run("squeue", "-h", "-r", "-o", "%F_%K", *chosen).split()

    def daemon(self, program: str) -> int:
        """Process id of `slurmctld`, or of `slurmd` on a node (`slurmd-n1`)."""
        words = program.replace("slurmd-", "slurmd -D -N ").split()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (path / "cmdline").read_bytes().decode().split("\0")[:-1]
                is_ours = f"SLURM_CONF={self.settings}".encode() in (path / "environ").read_bytes().split(b"\0")
                if is_ours and line[: len(words)] == words:
                    return int(path.name)
        raise AssertionError(f"{program} is not running")

    def end(self, program: str) -> None:
        """End a daemon by SIGTERM and wait for it; a zombie, whose parent has not read its status, has ended too."""
        process = self.daemon(program)
        os.kill(process, signal.SIGTERM)
        until(lambda: not is_running(process), f"{program} does not end")

    def start(self, program: str) -> None:
        """Start a daemon as `.ci/slurm` does."""
        words = ["slurmctld", "-D"] if program == "slurmctld" else ["slurmd", "-D", "-N", program.partition("-")[2]]
        with (FOLDER / self.name / f"{program}.log").open("ab") as log:
            subprocess.Popen(words, stdout=log, stderr=log, env=self.environ, start_new_session=True)

    def resume(self, *nodes: str) -> None:
        """Bring these nodes up; Slurm refuses this for a node that is up already."""
        for node in nodes:
            with suppress(AssertionError):
                self.run("scontrol", "update", f"nodename={node}", "state=resume")

    def clear(self) -> None:
        """Cancel all jobs, bring all nodes up, and wait until the queue is empty."""
        with suppress(AssertionError):
            self.run("scancel", "--user=root")
        self.resume(*NODES)
        until(lambda: not self.queue(), lambda: f"the queue is not empty: {self.queue()}")


@cache
def answers(name: str) -> bool:
    """Whether a cluster runs on this machine."""
    settings = FOLDER / name / "slurm.conf"
    if shutil.which("sinfo") is None or not settings.exists():
        return False
    environ = {**os.environ, "SLURM_CONF": str(settings)}
    with suppress(subprocess.SubprocessError):
        done = subprocess.run(["sinfo", "-h"], capture_output=True, timeout=10, check=False, env=environ)
        return done.returncode == 0
    return False


@contextmanager
def cluster(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """Lend a cluster to one test: nothing runs there before and after."""
    if not answers(name):
        pytest.skip(WHY_SKIPPED.format(name=name))
    lent = SlurmCluster(name=name, home=home)
    for variable in ("SLURM_CONF", "HOME"):
        monkeypatch.setenv(variable, lent.environ[variable])
    for variable in [word for word in os.environ if word.startswith(("SBATCH_", "SLURM_JOB", "SLURM_ARRAY"))]:
        monkeypatch.delenv(variable)
    # Tests of several processes take turns: what one submits is in the way of another, and `clear` ends it.
    with (FOLDER / name / "tests.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        lent.clear()
        try:
            yield lent
        finally:
            lent.clear()
