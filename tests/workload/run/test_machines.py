"""The connections between the ranks of several machines and the process that starts them; ranks are sockets here."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from workload.contract import ranks
from workload.contract.errors import RooflaunchError
from workload.run import machines
from workload.run.machines import Connections, Node

pytestmark = pytest.mark.world
NODES = [Node(name="n1", address="127.0.0.1"), Node(name="n2", address="127.0.0.1")]


class FakeRank:
    """The far end of a rank's connection; its clock is ahead by `ahead_s`."""

    def __init__(
        self, connections: Connections, number: int, *, torch: str = "2.9.0", ahead_s: float = 0.0, password: str = ""
    ) -> None:
        address, port, given = connections.starter.split()
        self.connection = socket.create_connection((address, int(port)))
        self.ahead_s = ahead_s
        self.heard: list[str] = []
        self.send(f"{password or given} {json.dumps([number, f'n{number + 1}', torch])}")
        self.thread = Thread(target=self._answer, daemon=True)
        self.thread.start()

    def send(self, line: str) -> None:
        self.connection.sendall(f"{line}\n".encode())

    def fail(self, kind: str) -> None:
        self.send(f"error {json.dumps({'kind': kind, 'message': kind, 'hint': ''})}")

    def _answer(self) -> None:
        for line in self.connection.makefile():
            self.heard.append(line.rstrip())
            if line == "clock\n":
                self.send(f"time {time.time() + self.ahead_s}")


def srun(code: int | None = None) -> Any:
    """Process in place of srun's; `code`: its exit code, once it has ended."""
    return SimpleNamespace(returncode=code, poll=lambda: code)


@pytest.fixture
def connections() -> Iterator[Connections]:
    with Connections("127.0.0.1", NODES, 1) as connections:
        yield connections


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(RooflaunchError) as raised:
        call()
    return str(raised.value)


def hosts_of(asking: FakeRank, connections: Connections, folder: Path) -> ranks.Ranks:
    """Let the rank ask for hosts and clocks; read them as a bundle's reader does."""
    asking.send("hosts")
    until_s = time.monotonic() + 5
    while not any(line.startswith("hosts ") for line in asking.heard) and time.monotonic() < until_s:
        connections.listen(0.05)
    rows = json.loads(asking.heard[-1].removeprefix("hosts "))
    for rank in "01":
        (folder / "ranks" / rank).mkdir(parents=True)
    lines = [",".join(row) for row in [ranks.HOST_COLUMNS, *rows]]
    (folder / "ranks" / "hosts.csv").write_text("\n".join(lines) + "\n")
    found = ranks.summary(folder, device="cpu", measured_s=None)
    assert found is not None
    return found


@pytest.mark.parametrize("ahead_s", [0.0, 7200.0, -5.0])
def test_clocks_of_machines_are_compared_at_start_and_end(
    ahead_s: float, connections: Connections, tmp_path: Path
) -> None:
    first, second = FakeRank(connections, 0), FakeRank(connections, 1, ahead_s=ahead_s)
    connections.gather(srun(), tmp_path)
    second.ahead_s += 3
    found = hosts_of(first, connections, tmp_path)
    assert found.hosts == ["n1", "n2"]
    assert found.clock_start_s
    assert found.clock_end_s
    assert found.clock_error_s
    error_s = max(found.clock_error_s)
    assert 0 < error_s < 0.05
    starts = [max(0, -ahead_s), max(0, ahead_s)]
    ends = [max(0, -ahead_s - 3), max(0, ahead_s + 3)]
    for seen, planted in ((found.clock_start_s, starts), (found.clock_end_s, ends)):
        assert min(seen) == 0, "of the clock that is furthest behind"
        assert all(abs(one - other) <= error_s for one, other in zip(seen, planted, strict=True))
    [note] = ranks.clock_notes(found)
    ahead, behind = ("n2", "n1") if ahead_s >= 0 else ("n1", "n2")
    assert note.startswith(f"the clock of {ahead} is {max(ends):,.1f} s ahead of that of {behind}: ")


def test_clock_of_a_rank_that_has_ended_is_unknown(connections: Connections, tmp_path: Path) -> None:
    first, second = FakeRank(connections, 0), FakeRank(connections, 1)
    connections.gather(srun(), tmp_path)
    second.send("done")
    second.connection.shutdown(socket.SHUT_RDWR)
    found = hosts_of(first, connections, tmp_path)
    assert (found.hosts, found.clock_end_s, ranks.clock_notes(found)) == (["n1", "n2"], None, [])
    assert connections.failures == []


def test_all_ranks_go_on_together(connections: Connections, tmp_path: Path) -> None:
    first = FakeRank(connections, 0)
    until_s = time.monotonic() + 0.3
    while time.monotonic() < until_s:
        connections.listen(0.05)
    assert first.heard == []
    second = FakeRank(connections, 1)
    connections.gather(srun(), tmp_path)
    connections.end()
    for rank in (first, second):
        rank.thread.join(5)
        assert rank.heard[-1] == "go", "then the connection is closed"


def test_ranks_that_do_not_come_are_named(
    connections: Connections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "JOIN_LIMIT_S", 0.3)
    FakeRank(connections, 0)
    place = ":".join(connections.starter.split()[:2])
    message = f"not every rank of n2 has connected to n1 at {place} within 0.3 s; the ranks of n1 waited"
    assert refused(lambda: connections.gather(srun(), tmp_path)) == message
    assert "before srun ended with exit code 1" in refused(lambda: connections.gather(srun(1), tmp_path))
    (tmp_path / "unconnected-1").write_text("rank 1 on n2 cannot reach n1")
    assert refused(lambda: connections.gather(srun(), tmp_path)) == "rank 1 on n2 cannot reach n1"


def test_different_versions_of_torch_are_refused(connections: Connections, tmp_path: Path) -> None:
    FakeRank(connections, 0), FakeRank(connections, 1, torch="2.10.0")
    message = "the machines have different versions of torch: 2.9.0 on n1; 2.10.0 on n2"
    assert refused(lambda: connections.gather(srun(), tmp_path)) == message


def test_unknown_without_the_password_is_no_rank(connections: Connections, tmp_path: Path) -> None:
    unknown = FakeRank(connections, 1, password="guessed")
    address, port, _ = connections.starter.split()
    flood = socket.create_connection((address, int(port)))
    flood.sendall(b"x" * 100_000)
    assert refused(lambda: connections.gather(srun(0), tmp_path)).startswith("not every rank of n1, n2 has connected")
    until_s = time.monotonic() + 5
    while unknown.thread.is_alive() and time.monotonic() < until_s:
        connections.listen(0.05)
    assert not unknown.thread.is_alive(), "its connection is closed"


# What ranks 0 and 1 do, in this order: end without a word, lose another rank, or fail themselves.
FAILURES = [
    ([(1, "")], (1, None)),
    ([(0, "LostRankError"), (1, "")], (1, None)),
    ([(1, "UsageError"), (0, "")], (1, "UsageError")),
    ([(0, "LostRankError"), (1, "ValueError")], (1, "ValueError")),
    ([(0, "LostRankError"), (1, "done")], (0, "LostRankError")),
    ([(0, "done"), (1, "done")], None),
]


@pytest.mark.parametrize(("ends", "cause"), FAILURES)
def test_the_first_failure_is_the_cause(
    ends: list[tuple[int, str]], cause: tuple[int, str | None] | None, connections: Connections, tmp_path: Path
) -> None:
    ranks_there = [FakeRank(connections, 0), FakeRank(connections, 1)]
    connections.gather(srun(), tmp_path)
    for number, end in ends:
        rank = ranks_there[number]
        if end == "done":
            rank.send("done")
        elif end:
            rank.fail(end)
        rank.connection.shutdown(socket.SHUT_RDWR)
        for _ in range(3):
            connections.listen(0.05)
    found = connections.cause()
    assert (found and (found.rank, found.note and found.note["kind"])) == cause
    assert found is None or found.host == f"n{found.rank + 1}"


SHOWN = (
    "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=n1 Version=22.05.8\n"
    "NodeName=n2 NodeAddr=10.0.0.2 OS=Linux 6.1 #1 SMP Reason=a b=c [root@2026]\n\n"
)


def test_nodes_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert refused(lambda: machines.nodes_of_job(2)) == (
        "several machines need a job of Slurm, or of launch ssh with a --host for each; got --machines 2"
    )
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(machines, "run_tool", lambda *words: asked.append(words) or SHOWN)
    assert machines.nodes_of_job(2) == [Node(name="n1", address="10.0.0.1"), Node(name="n2", address="10.0.0.2")]
    assert asked == [("scontrol", "--oneliner", "show", "node", "n[1-2]")]
    assert refused(lambda: machines.nodes_of_job(3)) == "--machines must be the job's number of nodes, 2; got 3"
    monkeypatch.setattr(machines, "run_tool", lambda *_: None)
    assert "does not show the nodes n[1-2]" in refused(lambda: machines.nodes_of_job(2))


def test_own_address_is_that_on_the_way_to_another_node() -> None:
    assert machines.own_address(NODES[1]) == "127.0.0.1"
    assert machines._interface_of("127.0.0.1") in ("lo", "lo0")
    message = refused(lambda: machines.own_address(Node(name="n9", address="n9.invalid")))
    assert message.startswith("no way to n9 at n9.invalid: ")


def test_srun_that_does_not_end_is_killed(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "END_LIMIT_S", 0.1)
    monkeypatch.setattr(machines, "KILL_LIMIT_S", 0.3)
    deaf = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"])
    time.sleep(0.1)
    machines._await(deaf, connections)
    assert deaf.poll() == -9
