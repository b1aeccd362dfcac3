"""Starts ranks on several machines. Each rank stays connected to the process that started it, on the first machine.

Ranks are started by Slurm's `srun`; or, without Slurm and a shared folder, by this process and by a process on each
further machine (`launcher/agent/further.py`), which sends the files that its ranks write. A rank tells the starting
process its host and its version of torch, and waits until all ranks have come. Later it sends its error, if it has one.
A rank whose connection breaks has ended, or its machine or the network is lost; a rank that loses the starting process
ends itself. The clocks of the machines are compared over the same connections, as NTP does: of several round trips the
shortest counts.
"""

import base64
import csv
import importlib.metadata
import io
import json
import math
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, Self

from workload.contract import bundle, further
from workload.contract.errors import LostRankError, RunFailedError, ToolError, UsageError
from workload.contract.further import CONNECT_LIMIT_S, STARTER, kept_alive, listening_at
from workload.contract.operating_system import SIGKILL, replace_text
from workload.contract.process import interruption_deferred, signal_group
from workload.contract.ranks import FOLDER, HOST_COLUMNS, HOSTS_FILE
from workload.environment.machine import run_tool

# Longest time from the start until all ranks have connected: Python starts slowly from a busy network file system.
JOIN_LIMIT_S = 120.0
# Ranks may report their errors for GRACE_S after the first failure. A rank that is told to end does so within ten
# seconds (`ranks.END_LIMIT_S`); after END_LIMIT_S the ranks, or srun, are ended.
GRACE_S, END_LIMIT_S, KILL_LIMIT_S = 1.0, 20.0, 10.0
LOOK_EVERY_S, DELIVERED_EVERY_S = 0.2, 0.02
# Folder of the job on this machine: launcher/backends/ssh/keeper.py.
JOB = "ROOFLAUNCH_JOB"
UNCONNECTED, FIREWALL = "unconnected-{}", "a firewall may close the ports between the machines"
ROUND_TRIPS, ANSWER_LIMIT_S = 10, 1.0
MOST_BYTES = 1 << 16
# Python's text of an error in a rank may be long; the first line of a connection may not.
MOST_UNIDENTIFIED = 1 << 12


# --- the process that starts the ranks


@dataclass(frozen=True, kw_only=True)
class Node:
    """Machine of a job; `address`: name or address by which the other machines reach it, unused for the first one."""

    name: str
    address: str


def nodes_of_job(wanted: int) -> list[Node]:
    """Machines of the job in which this process runs. Raises `UsageError` unless there are `wanted` of them."""
    name, others = further.listed()
    if len(others) == wanted - 1:
        return [Node(name=name, address=""), *(Node(name=each.name, address=each.address) for each in others)]
    listed = os.environ.get("SLURM_JOB_NODELIST")
    hint = f"launch slurm --machines {wanted}; or in a job of your own: sbatch --nodes={wanted}"
    if listed is None:
        what = f"several machines need a job of Slurm, or of launch ssh with a --host for each; got --machines {wanted}"
        raise UsageError(what, hint=hint)
    shown = run_tool("scontrol", "--oneliner", "show", "node", listed)
    if not shown:
        raise ToolError(f"scontrol on {socket.gethostname()} does not show the nodes {listed}", hint="scontrol ping")
    facts = [dict(word.partition("=")[::2] for word in line.split()) for line in shown.splitlines() if line.strip()]
    nodes = [Node(name=each["NodeName"], address=each.get("NodeAddr", each["NodeName"])) for each in facts]
    if len(nodes) != wanted:
        raise UsageError(f"--machines must be the job's number of nodes, {len(nodes)}; got {wanted}", hint=hint)
    return nodes


def own_address(other: Node) -> str:
    """Address of this machine on the network that leads to another node; nothing is sent."""
    # The own name may have a loopback address, as on Debian.
    try:
        family, kind, _, _, target = socket.getaddrinfo(other.address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ToolError(f"no way to {other.name} at {other.address}: {error}", hint="getent hosts NODE") from error


@dataclass(frozen=True, kw_only=True)
class Failure:
    """First failure of a rank. `note`: the rank's error, as `ranks.noted` writes it; None if it sent none."""

    rank: int
    host: str
    note: Mapping[str, Any] | None


class Started(Protocol):
    """Interface to the ranks on all machines, a part of `subprocess.Popen`: the process of srun, or `_Everywhere`."""

    @property
    def returncode(self) -> int | None:
        """Exit code of the whole run; None while any rank still runs."""

    def poll(self) -> int | None:
        """Look whether all ranks have ended: the exit code of the whole run, None while any rank still runs."""

    def send_signal(self, sig: int, /) -> None:
        """Send the signal to the ranks on this machine, and make the ranks on other machines end."""


class _Rank:
    """A rank's connection, as the starting process sees it. `clocks`: how far its clock is ahead, and the error."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = kept_alive(connection)
        self.connection.settimeout(ANSWER_LIMIT_S)
        self.number, self.host, self.torch = -1, "", ""
        self.is_open, self.is_over = True, False
        self.clock_s: float | None = None
        self.clocks: list[tuple[float, float]] = []
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """Lines that have come. Nothing comes from a connection that is closed, which is noted."""
        try:
            received = self.connection.recv(MOST_BYTES)
        except OSError:
            received = b""
        self.is_open = bool(received) and (self.number >= 0 or len(self._rest) < MOST_UNIDENTIFIED)
        *lines, self._rest = (self._rest + received).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)

    def send(self, line: str) -> None:
        with suppress(OSError):
            self.connection.sendall(f"{line}\n".encode())

    def end(self) -> None:
        """Tell the rank to end; its own words are still received."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)


class Connections:
    """List of the ranks that have come, and of what became of them. `failures`: in the order in which they were heard.

    The order is that of this machine's clock: times of different machines are not compared.
    """

    def __init__(self, address: str, nodes: Sequence[Node], devices: int) -> None:
        self.failures: list[Failure] = []
        self._nodes, self._devices, self._address = nodes, devices, address
        self._password = secrets.token_hex(16)
        self._listening = listening_at(address)
        self._ranks: dict[int, _Rank] = {}
        self._unidentified: list[_Rank] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self._unidentified, *self._ranks.values()):
            each.connection.close()
        self._listening.close()

    @property
    def starter(self) -> str:
        """Address, port and password with which a rank connects to this process, as the variable `STARTER` has them."""
        return f"{self._address} {self._listening.getsockname()[1]} {self._password}"

    @property
    def size(self) -> int:
        return len(self._nodes) * self._devices

    def gather(self, started: Started, notes: Path) -> None:
        """Wait until every rank has come, then let all go on.

        `notes`: folder in which a rank that cannot connect says so. Raises `UsageError` for different versions
        of torch, and `RunFailedError` if not all ranks come.
        """
        until_s = time.monotonic() + JOIN_LIMIT_S
        while len(self._ranks) < self.size:
            self.listen(LOOK_EVERY_S)
            if self.failures:
                return
            for note in notes.glob(UNCONNECTED.format("*[0-9]")):
                raise RunFailedError(note.read_text(encoding="utf-8"), hint=FIREWALL)
            if started.poll() is not None or time.monotonic() > until_s:
                raise self._missing(started.returncode)
        versions: dict[str, list[str]] = {}
        for _, rank in sorted(self._ranks.items()):
            versions.setdefault(rank.torch, []).append(rank.host)
        if len(versions) > 1:
            listed = "; ".join(f"{torch} on {', '.join(dict.fromkeys(hosts))}" for torch, hosts in versions.items())
            hint = "--python with a Python that has the same torch on all machines"
            raise UsageError(f"the machines have different versions of torch: {listed}", hint=hint)
        for rank in self._ranks.values():
            rank.clocks.append(self._compared(rank))
        for rank in self._ranks.values():
            rank.send("go")

    def _missing(self, code: int | None) -> RunFailedError:
        every = range(len(self._nodes))
        whole = [at for at in every if all(at * self._devices + one in self._ranks for one in range(self._devices))]
        waited, missing = (", ".join(self._nodes[at].name for at in those) for those in (whole, {*every} - {*whole}))
        where = f"{self._nodes[0].name} at {self._address}:{self._listening.getsockname()[1]}"
        how = f"within {JOIN_LIMIT_S:g} s" if code is None else f"before {started_by()} ended with exit code {code}"
        return RunFailedError(
            f"not every rank of {missing} has connected to {where} {how}"
            + (f"; the ranks of {waited} waited" if waited else ""),
            hint=f"see the messages above; {FIREWALL}",
        )

    def watch(self, started: Started) -> None:
        """Wait for the first failure, or for the end of all ranks."""
        while started.poll() is None and not self.failures:
            self.listen(LOOK_EVERY_S)
        self._drain(GRACE_S)

    def end(self) -> None:
        """Tell all ranks to end."""
        for rank in self._ranks.values():
            rank.end()
        for each in self._unidentified:
            each.connection.close()
        self._unidentified = []

    def _drain(self, within_s: float) -> None:
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s and any(rank.is_open for rank in self._ranks.values()):
            self.listen(LOOK_EVERY_S)

    def cause(self) -> Failure | None:
        """The first failure that is not the loss of another rank, if there is one."""
        told = [each for each in self.failures if each.note is None or each.note["kind"] != LostRankError.__name__]
        return next(iter(told or self.failures), None)

    def listen(self, within_s: float) -> None:
        """Hear what ranks have sent, or wait for it at most this long."""
        known = {each.connection: each for each in (*self._unidentified, *self._ranks.values()) if each.is_open}
        for ready in select.select([self._listening, *known], [], [], within_s)[0]:
            if ready is self._listening:
                with suppress(OSError):
                    self._unidentified.append(_Rank(self._listening.accept()[0]))
            else:
                self._receive(known[ready])

    def _receive(self, rank: _Rank) -> None:
        for line in rank.lines():
            self._follow(rank, *line.partition(" ")[::2])
        if rank.is_open:
            return
        if rank.number < 0:
            rank.connection.close()
            self._unidentified.remove(rank)
        elif not rank.is_over:
            self._fail(rank, None)

    def _fail(self, rank: _Rank, note: Mapping[str, Any] | None) -> None:
        rank.is_over = True
        self.failures.append(Failure(rank=rank.number, host=rank.host, note=note))

    def _follow(self, rank: _Rank, word: str, rest: str) -> None:
        if rank.number < 0:
            self._identify(rank, word, rest)
        elif word == "time":
            rank.clock_s = float(rest)
        elif word == "error":
            self._fail(rank, json.loads(rest))
        elif word == "done":
            rank.is_over = True
        elif word == "hosts":
            for each in self._ranks.values():
                each.clocks[1:] = [self._compared(each)]
            rank.send(f"hosts {json.dumps([self._row(each) for _, each in sorted(self._ranks.items())])}")

    def _identify(self, rank: _Rank, password: str, rest: str) -> None:
        """Accept a connection as that of a rank if it sends the password: anybody on the network may connect."""
        if not secrets.compare_digest(password.encode(), self._password.encode()):
            rank.is_open = False
            return
        number, host, torch = json.loads(rest)
        rank.number, rank.host, rank.torch = number, host, torch
        self._unidentified.remove(rank)
        self._ranks[number] = rank

    def _compared(self, rank: _Rank) -> tuple[float, float]:
        """Seconds by which a rank's clock is ahead of this machine's, and the most by which this figure is wrong."""
        offset_s, error_s = math.nan, math.inf
        for _ in range(ROUND_TRIPS):
            if not rank.is_open:
                break
            rank.clock_s, sent_s, began_s = None, time.time(), time.perf_counter()
            rank.send("clock")
            while rank.clock_s is None and rank.is_open and select.select([rank.connection], [], [], ANSWER_LIMIT_S)[0]:
                self._receive(rank)
            passed_s = time.perf_counter() - began_s
            if rank.clock_s is not None and passed_s / 2 < error_s:
                offset_s, error_s = rank.clock_s - sent_s - passed_s / 2, passed_s / 2
        return offset_s, error_s

    def _row(self, rank: _Rank) -> list[str]:
        """Row of the file of hosts; names as in `HOST_COLUMNS`."""
        (start_s, start_error_s), (end_s, end_error_s) = rank.clocks[0], rank.clocks[-1]
        seconds = start_s, end_s, max(start_error_s, end_error_s)
        return [str(rank.number), rank.host, *(f"{each:.7f}" for each in seconds)]


def run(
    words: Sequence[str], nodes: Sequence[Node], devices: int, address: str, variables: Mapping[str, str], notes: Path
) -> Failure | int:
    """Run `devices` ranks on each node to their end; return the first failure, or an exit code (minus a signal).

    `words`: Python's arguments for a rank; `variables`: its environment, in addition to this process's. Raises
    `RooflaunchError` if the ranks cannot begin, or if this process is interrupted.
    """
    with Connections(address, nodes, devices) as connections:
        variables = {**variables, STARTER: connections.starter}
        started: Started
        if further.listed()[1]:
            started = _Everywhere(words, nodes, devices, variables, notes)
        else:
            started = _by_srun(words, nodes, devices, variables)
        try:
            connections.gather(started, notes)
            connections.watch(started)
            # Slurm kills the ranks of an srun that was killed.
            if (code := started.poll()) is not None and code < 0:
                return code
        finally:
            with interruption_deferred():
                connections.end()
                _await(started, connections)
        return connections.cause() or started.returncode or 0


def started_by() -> str:
    """Name of the process whose exit code is that of all ranks, for messages."""
    return "a rank" if further.VARIABLE in os.environ else "srun"


def _by_srun(
    words: Sequence[str], nodes: Sequence[Node], devices: int, variables: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    command = [
        *("srun", f"--nodes={len(nodes)}", f"--ntasks={len(nodes) * devices}", f"--ntasks-per-node={devices}"),
        # The agent's own step has the job's resources. Ranks end by our word, so that they can write their steps.
        *("--overlap", "--kill-on-bad-exit=0", "--wait=0", "--distribution=block", "--export=ALL"),
        # All CPUs and GPUs of a node are there for its ranks, as with torchrun.
        *("--cpu-bind=none", "--gpu-bind=none", "--mpi=none", "--input=none"),
        *(sys.executable, "-P", *words),
    ]
    # Apart from the terminal, whose Ctrl-C is this process's to handle.
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)


class _Everywhere:
    """Ranks that this process starts here, and that the processes on the further machines start there."""

    def __init__(
        self, words: Sequence[str], nodes: Sequence[Node], devices: int, variables: Mapping[str, str], notes: Path
    ) -> None:
        self.returncode: int | None = None
        places = [
            {"RANK": str(rank), "ROLE_RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(node)}
            for node in range(len(nodes))
            for local, rank in enumerate(range(node * devices, (node + 1) * devices))
        ]
        order = {
            "what": "run",
            "home": os.environ[JOB],
            "folder": os.path.relpath(Path.cwd(), Path(os.environ[JOB]).resolve()),
            "words": [*words],
            "notes": str(notes),
        }
        threads = {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
        self._there = []
        self._here: list[subprocess.Popen[bytes]] = []
        try:
            for at, machine in enumerate(further.listed()[1], 1):
                own = {
                    "variables": {**variables, **threads},
                    "ranks": places[at * devices : (at + 1) * devices],
                    "host": machine.name,
                }
                self._there.append(_There(machine, {**order, **own}, notes.parent, waiting=nodes[0].name))
            for place in places[:devices]:
                environment = {**os.environ, **variables, **place}
                environment[STARTER] += f" {nodes[0].name}"
                command = [sys.executable, "-P", *words]
                # Apart from the terminal, whose Ctrl-C is this process's to handle.
                self._here.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
                )
        except BaseException:
            self.send_signal(SIGKILL)
            raise

    def poll(self) -> int | None:
        """Receive what has come from the further machines. Raises the error of a machine that cannot start ranks."""
        for each in self._there:
            each.receive()
        codes = [*(process.poll() for process in self._here), *(each.code for each in self._there)]
        if self.returncode is None and None not in codes:
            self.returncode = max(abs(code or 0) for code in codes)
            for each in self._there:
                each.end()
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        for process in self._here:
            signal_group(process, sig)
        for each in self._there:
            each.end()


class _There:
    """Ranks on a further machine. `code`: their largest exit code, once they have ended or the machine is lost.

    Their files are written to the folder `output` of the bundles. Raises `RunFailedError` if nobody answers there.
    """

    def __init__(self, machine: further.Further, order: Mapping[str, Any], output: Path, *, waiting: str) -> None:
        self._output = output
        self.code: int | None = None
        try:
            self._messages = machine.connected(order)
        except OSError as error:
            where = f"{machine.name} at {machine.address}:{machine.port}"
            raise RunFailedError(f"{waiting} cannot reach {where}: {error}", hint=FIREWALL) from error

    def receive(self) -> None:
        """Follow the messages that have come."""
        while self.code is None and select.select([self._messages], [], [], 0)[0]:
            for message in self._messages.receive():
                self._follow(message)
            if not self._messages.is_open and self.code is None:
                self.code = 1

    def end(self) -> None:
        """Have the ranks ended: the process there ends them when it loses this connection."""
        self.code = 1 if self.code is None else self.code
        self._messages.close()

    def _follow(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"file": str(name), "at": int(at), "content": str(content)}:
                self._write(PurePosixPath(name), at, base64.b64decode(content))
            case {"gone": str(name)} if path := self._place(PurePosixPath(name)):
                path.unlink(missing_ok=True)
            case {"delivered": names}:
                self._messages.send(written=names)
            case {"error": str(error), "hint": str(hint)}:
                self.code = 1
                raise RunFailedError(error, hint=hint)
            case {"ended": int(code)}:
                self.code = code

    def _place(self, name: PurePosixPath) -> Path | None:
        """Path here for a file that a rank sent; None for an unsafe name, or a run that is unknown or sealed."""
        run = self._output / name.parts[0]
        is_open = run.is_dir() and not (run / bundle.MANIFEST).exists()
        return self._output / name if is_open and ".." not in name.parts and not name.is_absolute() else None

    def _write(self, name: PurePosixPath, at: int, content: bytes) -> None:
        # A full disk is reported by rank 0.
        with suppress(OSError):
            if name.name.startswith(further.OUTPUT):
                os.write(2, content)
            elif path := self._place(name):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("r+b" if at else "wb") as file:
                    file.seek(at)
                    file.write(content)


def _await(started: Started, connections: Connections) -> None:
    """Wait until the ranks have ended, while they report their ends; end them by signals if it takes too long."""
    for number, limit_s in ((None, END_LIMIT_S), (signal.SIGTERM, KILL_LIMIT_S), (SIGKILL, KILL_LIMIT_S)):
        if number is not None:
            started.send_signal(number)
        until_s = time.monotonic() + limit_s
        while started.poll() is None and time.monotonic() < until_s:
            connections.listen(LOOK_EVERY_S)
        if started.poll() is not None:
            return


# --- one rank


class _Starter:
    """A rank's connection to the process that started it."""

    def __init__(self, given: str, rank: int, host: str, notes: Path) -> None:
        # `first_home`: folder of the job on the first machine, for a rank on another one that does not share it.
        address, port, password, *more = given.split(maxsplit=4)
        self.first_home, self.notes = (more[1] if len(more) > 1 else ""), notes
        self._connection = kept_alive(socket.create_connection((address, int(port)), timeout=CONNECT_LIMIT_S))
        self._connection.settimeout(None)
        if sys.platform != "win32":  # where several machines are refused
            # A worker process of the script would keep the connection open after this rank was killed.
            os.register_at_fork(after_in_child=self._connection.close)
        self.own_address = str(self._connection.getsockname()[0])
        self._turn = threading.Lock()
        self._went, self._answered = threading.Event(), threading.Event()
        self._is_gone = self.is_over = False
        self._rows: list[list[str]] = []
        self.send(f"{password} {json.dumps([rank, host, importlib.metadata.version('torch')])}")
        threading.Thread(target=self._follow, name="starter", daemon=True).start()

    def send(self, line: str) -> None:
        with self._turn, suppress(OSError):
            self._connection.sendall(f"{line}\n".encode())

    def await_others(self) -> None:
        """Wait until all ranks have come. Raises `LostRankError` if the starting process has given up."""
        self._went.wait()
        if self._is_gone:
            raise LostRankError("the process that started the ranks has ended", hint="run again")

    def rows(self) -> list[list[str]]:
        """Rows of the file of hosts, with the clocks as they are now; [] without an answer."""
        self._answered.clear()
        self.send("hosts")
        return self._rows if not self._is_gone and self._answered.wait(JOIN_LIMIT_S) else []

    def _follow(self) -> None:
        """In a thread: answer the starting process until it closes the connection; then end this rank."""
        rest = b""
        while True:
            try:
                received = self._connection.recv(MOST_BYTES)
            except OSError:
                received = b""
            if not received:
                break
            *lines, rest = (rest + received).split(b"\n")
            for word, _, text in (line.decode().partition(" ") for line in lines):
                if word == "clock":
                    self.send(f"time {time.time()!r}")
                elif word == "go":
                    self._went.set()
                elif word == "hosts":
                    self._rows = json.loads(text)
                    self._answered.set()
        self._is_gone = True
        self._went.set()
        self._answered.set()
        if not self.is_over:
            os.kill(os.getpid(), signal.SIGTERM)


_starter: _Starter | None = None


def join(notes: Path) -> None:
    """In a rank on one of several machines: take its place, by srun from its variables, and wait for all ranks.

    Does nothing in other processes. Raises `RunFailedError` if the starting process cannot be reached.
    """
    global _starter  # noqa: PLW0603 - the connection is the process's, like the variables
    given = os.environ.get(STARTER)
    if given is None:
        return
    host = "".join(given.split(maxsplit=4)[3:4])
    if not host:
        place = {"RANK": "PROCID", "ROLE_RANK": "PROCID", "LOCAL_RANK": "LOCALID", "GROUP_RANK": "NODEID"}
        os.environ.update({name: os.environ[f"SLURM_{theirs}"] for name, theirs in place.items()})
        host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    rank = int(os.environ["RANK"])
    try:
        _starter = _Starter(given, rank, host, notes)
    except OSError as error:
        where = ":".join(given.split()[:2])
        what = f"rank {rank} on {host} cannot reach the first machine at {where}: {error}"
        replace_text(notes / UNCONNECTED.format(rank), what, durable=False)
        raise RunFailedError(what, hint=FIREWALL) from error
    if interface := _interface_of(_starter.own_address):
        # Without it gloo takes the address of the host's name, which may be a loopback. NCCL chooses well itself.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    _starter.await_others()


def _interface_of(address: str) -> str | None:
    import psutil  # noqa: PLC0415 - not every command needs it

    found = psutil.net_if_addrs().items()
    return next((name for name, each in found if any(one.address.split("%")[0] == address for one in each)), None)


def tell_error(note: Mapping[str, Any]) -> None:
    """Send this rank's error to the process that started it; do nothing on a single machine."""
    if _starter:
        _starter.is_over = True
        _starter.send(f"error {json.dumps(note)}")


def tell_end() -> None:
    """Tell the process that started this rank that it has done its work; do nothing on a single machine."""
    if _starter and not _starter.is_over:
        _starter.is_over = True
        _starter.send("done")


def write_hosts(bundle: Path) -> None:
    """In rank 0: write the ranks' hosts, and their clocks as compared now, into the bundle; not on a single machine."""
    rows = _starter.rows() if _starter else []
    if rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([HOST_COLUMNS, *rows])
        (bundle / FOLDER).mkdir(exist_ok=True)
        replace_text(bundle / FOLDER / HOSTS_FILE, text.getvalue(), durable=False)


def folder_here(folder: Path) -> Path:
    """Folder for this rank's part of the bundle `folder`: another one if this machine does not share the bundle's."""
    if _starter is None or not _starter.first_home:
        return folder
    return Path(os.environ[JOB]) / folder.relative_to(_starter.first_home)


def deliver() -> None:
    """In a rank whose files are complete: wait until they have reached rank 0's machine, if it does not share them."""
    if _starter and _starter.first_home:
        mark = _starter.notes / f"{further.DELIVERING}{os.environ['RANK']}"
        mark.touch()
        until_s = time.monotonic() + JOIN_LIMIT_S
        while mark.exists() and time.monotonic() < until_s:
            time.sleep(DELIVERED_EVERY_S)
