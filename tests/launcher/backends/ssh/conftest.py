"""A machine to log in to: a real sshd on loopback, with a folder of its own for each test."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from launcher.backends.ssh.backend import SshMachines, backend
from launcher.backends.ssh.options import Options, Where
from launcher.backends.ssh.plan import SshPlan, Start
from launcher.protocol.backend import Job
from tests import sshd
from tests.launcher.backends.contract import TINY
from tests.waiting import until
from workload.contract.spec import resolve


@pytest.fixture
def machine(sshd_machine: sshd.Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Machine]:
    """Without a trace of the test before, and with none afterwards."""
    sshd.meet(sshd_machine, monkeypatch)
    sshd_machine.clean()
    yield sshd_machine
    sshd_machine.clean()


@pytest.fixture
def where(machine: sshd.Machine) -> Where:
    return Where(host=machine.host, port=machine.port)


@pytest.fixture
def machines(where: Where) -> SshMachines:
    return backend.machines(backend.settings(where))


def plan_of(where: Where, *, token: str = "abcdef", limit_s: int = 300, **given: object) -> SshPlan:
    """A draft for a tiny run by this process's Python."""
    options = Options(python=sys.executable, max_run_time_s=limit_s)
    job = Job(resolved=resolve({**TINY, **given}, {}, None), token=token)
    return backend.plan(job, options, backend.settings(where), now=datetime.now(UTC))


def doing(plan: SshPlan, code: str) -> SshPlan:
    """The plan with a few lines of Python in place of the agent."""
    return replace(plan, start=Start(words=(sys.executable, "-u", "-c", code), environment={}))


def keepers(machine: sshd.Machine) -> list[int]:
    """Keepers of jobs. A keeper leads its session; the agent, before it is executed, is a child with the same words."""
    return [pid for pid, words in machine.jobs() if "keeper.py" in words and leads_session(pid)]


def leads_session(pid: int) -> bool:
    with suppress(ProcessLookupError):
        return os.getsid(pid) == pid
    return False


def end_session(session: int) -> None:
    """Kill all of a session, its leader first: a keeper would start the agent once more."""

    def killed() -> bool:
        left = sorted(processes_in(session), key=session.__ne__)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    until(killed, f"processes of session {session} do not end")


def processes_in(session: int) -> list[int]:
    """Living processes of a session."""
    members = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, its_session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state not in "ZX":
            members.append(int(path.name))
    return members
