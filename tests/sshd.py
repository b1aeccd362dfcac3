"""A real sshd on loopback that plays another machine, with its own home folder and keys. Debian's openssh-server."""

import getpass
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import await_server, held_port
from tests.waiting import until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
WHY_SKIPPED = "no sshd here: .ci/packages installs it (openssh-server)"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine. `home`: the user's folder there; `bin`: first on its PATH. `here`: first on ours, with its `ssh`."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def host(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def here(self) -> Path:
        return self.folder / "here"

    def program(self, name: str, text: str) -> None:
        """Install a program on the machine."""
        _executable(self.bin / name, text)

    def jobs(self) -> list[tuple[int, str]]:
        """(pid, command) of every living process of a job."""
        listed = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,stat=,args="], capture_output=True, text=True, check=True
        )
        rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
        alive = [(int(pid), words) for pid, state, words in rows if state[0] not in "ZX"]
        return [(pid, words) for pid, words in alive if str(self.folder) in words]

    def clean(self) -> None:
        """End every job, and remove what it and a test left in the user's folder."""
        for pid, words in self.jobs():
            if f"{self.home}/.rooflaunch/jobs/" in words:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for path in (*self.home.iterdir(), *self.bin.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def connections(self) -> list[int]:
        """Process ids of sshd's children, one for each connection."""
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        rows = [tuple(map(int, line.split())) for line in listed.splitlines()]
        return [pid for pid, parent in rows if parent == self.process.pid]

    def cut_off(self) -> None:
        """Break all present connections."""
        for pid in self.connections():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def running(address: str = "127.0.0.1", within: tuple[str, ...] = ()) -> Iterator[Machine]:
    """Start the machine, in a folder with a short name: a socket's path has at most 104 bytes.

    `within`: words that start a program in another network namespace, whose `address` is meant.
    """
    if not Path(SSHD).exists():
        pytest.skip(WHY_SKIPPED)
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    for name in ("home", "bin", "here", "run"):
        (folder / name).mkdir()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    with held_port() as port:
        try:
            with _serving(folder, port, address, within) as machine:
                yield machine
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _serving(folder: Path, port: int, address: str, within: tuple[str, ...]) -> Iterator[Machine]:
    (folder / "known_hosts").write_text(f"[{address}]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress {address}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin yes\nMaxStartups 200\nSetEnv HOME={folder}/home PATH={folder}/bin:{os.environ['PATH']}\n"
    )
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known_hosts\n"
        "GlobalKnownHostsFile /dev/null\n"
    )
    _executable(folder / "here/ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*within, SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    machine = Machine(port=port, folder=folder, process=process)
    try:
        if within:
            until(lambda: "listening" in (folder / "log").read_text(), "sshd does not listen")
        else:
            await_server(process, port, folder / "log")
        yield machine
    finally:
        machine.cut_off()
        process.kill()
        process.wait()


def meet(machine: Machine, patch: pytest.MonkeyPatch) -> None:
    """Make this process and its children use the machine's `ssh`."""
    patch.setenv("PATH", f"{machine.here}:{os.environ['PATH']}")
    patch.setenv("XDG_RUNTIME_DIR", str(machine.folder / "run"))


def _executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
