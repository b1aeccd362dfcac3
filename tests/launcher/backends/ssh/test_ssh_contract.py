"""The contract of every backend on a machine behind a real sshd."""

import fcntl
import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import pytest

from launcher.backends.ssh import backend as machines_module
from launcher.backends.ssh.backend import SshMachines, backend
from launcher.backends.ssh.options import Where
from launcher.protocol.backend import Machine, Plan
from tests import sshd
from tests.launcher.backends.contract import CHECKS, Check, Place, launcher_of, name_of
from tests.launcher.backends.ssh.conftest import doing, end_session, plan_of
from tests.waiting import until

pytestmark = pytest.mark.world

SLEEP = "import time; time.sleep(600)"


class OneMachine(Place):
    """A machine to log in to, which has one job at a time."""

    is_for_one = True

    def __init__(self, machine: sshd.Machine, where: Where, folder: Path) -> None:
        self._machine, self._where, self._folder = machine, where, folder
        self._plans = 0
        self.undo = ExitStack()

    @property
    def _ours(self) -> Path:
        return self._machine.home / ".rooflaunch"

    def machines(self) -> SshMachines:
        return backend.machines(backend.settings(self._where))

    def plan(self) -> Plan:
        self._plans += 1
        return doing(plan_of(self._where, token=f"{self._plans:06x}"), SLEEP)

    def count(self) -> int:
        return sum(map(_is_held, self._ours.glob("jobs/*/lock")))

    def launcher(self, plan: Plan) -> Sequence[str]:
        return launcher_of("launcher.backends.ssh.backend", plan, backend.settings(self._where), self._folder)

    def print(self, machine: Machine, text: str) -> None:
        with (self._ours / "launches" / machine.name / "startup.log").open("a") as log:
            log.write(text)

    def lose(self, machine: Machine) -> None:
        keeper = json.loads((self._ours / "jobs" / machine.name / "kept.json").read_text())["pid"]
        end_session(keeper)
        until(lambda: not _is_held(self._ours / "jobs" / machine.name / "lock"), "the lock is held")

    def fill(self) -> None:
        self._ours.mkdir()
        self._hold(self._ours / f"busy-{platform.node()}").write("rooflaunch-box-20260101-000000-abcdef")

    def refuse_ends(self) -> None:
        self._machine.program(
            "python3", '#!/bin/sh\nexec /usr/bin/env python3.11 -I -c "import os; os.kill = lambda *_: None; $3"\n'
        )

    def hide(self, machine: Machine) -> None:
        del machine
        shim = self._machine.here / "ssh"
        before = shim.read_text()
        self.undo.callback(lambda: shim.write_text(before))
        shim.write_text("#!/bin/sh\necho 'ssh: connect to host box port 22: Connection timed out' >&2\nexit 255\n")
        self._machine.cut_off()

    def pass_limit(self, machine: Machine) -> None:
        path = self._ours / "jobs" / machine.name / "kept.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "deadline_s": 1e9}))

    def add_stranger(self) -> str:
        folder = self._ours / "jobs/somebodys"
        folder.mkdir()
        (folder / "kept.json").write_text(json.dumps({"pid": 1, "host": "x", "created_s": 1, "deadline_s": 1}))
        self._hold(folder / "lock")
        return folder.name

    def _hold(self, path: Path) -> IO[str]:
        file = self.undo.enter_context(path.open("a+", buffering=1))
        fcntl.flock(file, fcntl.LOCK_EX)
        return file


def _is_held(path: Path) -> bool:
    with path.open() as file, suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    return True


@pytest.fixture
def place(machine: sshd.Machine, where: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneMachine]:
    monkeypatch.setattr(machines_module, "GRACE_S", 1.0)
    one = OneMachine(machine, where, tmp_path)
    with one.undo:
        yield one


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract(check: Check, place: Place) -> None:
    check(place)
