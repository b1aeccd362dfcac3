"""Files of ranks on a further machine on their way to the first one, and who may start a process there."""

import hashlib
import hmac
import json
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.further import RanksHere
from workload.contract import further
from workload.contract.errors import RunFailedError
from workload.contract.further import Caller, Further, Messages
from workload.run.machines import _There

pytestmark = pytest.mark.world


class Pair:
    """Ranks on a further machine, in `home`, and what the first machine has received of them in `output`."""

    def __init__(self, folder: Path) -> None:
        self.home, self.output = folder / "home", folder / "first/results"
        here, there = socket.socketpair(socket.AF_UNIX)
        order = {"home": str(folder / "first"), "notes": str(self.output / ".ranks-x")}
        self.ranks = RanksHere(self.home, order, _unix(here), {})
        self.there = _There.__new__(_There)
        self.there._output, self.there.code, self.there._messages = self.output, None, _unix(there)
        for place in (self.home / "results", self.output):
            (place / "run-1").mkdir(parents=True)
            (place / ".ranks-x").mkdir()

    def exchange(self) -> None:
        self.ranks.send()
        self.there.receive()

    def arrived(self) -> dict[str, bytes]:
        return files_of(self.output / "run-1")


def _unix(connection: socket.socket) -> Messages:
    messages = Messages.__new__(Messages)
    messages.connection, messages.is_open, messages._rest = connection, True, b""
    return messages


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    pair.ranks._is_told = True
    yield pair
    pair.there.end()
    pair.ranks.messages.close()


def test_files_arrive_as_they_are_written(pair: Pair) -> None:
    chosen = random.Random(0)
    folder = pair.home / "results/run-1/ranks/1"
    folder.mkdir(parents=True)
    for _ in range(200):
        path = folder / chosen.choice(["steps.csv", "collectives.csv", "log.txt"])
        match chosen.randrange(5):
            case 0 if path.exists():
                path.replace(path.with_name("steps.csv.longest"))
            case 1 if path.exists():
                path.unlink()
            case 2:
                (folder / "new.tmp").write_bytes(os.urandom(chosen.randrange(50)))
                (folder / "new.tmp").replace(path)
            case _:
                with path.open("ab") as file:
                    file.write(os.urandom(chosen.randrange(2000)))
        pair.exchange()
        assert pair.arrived() == files_of(pair.home / "results/run-1")


def test_rank_waits_until_its_files_have_arrived_and_sends_no_more(pair: Pair) -> None:
    steps = pair.home / "results/run-1/ranks/1/steps.csv"
    steps.parent.mkdir(parents=True)
    steps.write_text("1\n")
    mark = pair.home / "results/.ranks-x/delivering-1"
    mark.touch()
    pair.exchange()
    assert mark.exists()
    assert pair.arrived() == {"ranks/1/steps.csv": b"1\n"}
    pair.ranks.hear()
    assert not mark.exists()
    steps.write_text("1\n2\n")
    pair.exchange()
    assert pair.arrived() == {"ranks/1/steps.csv": b"1\n"}, "rank 0 may seal the bundle now"


def test_sealed_bundles_and_other_folders_stay_as_they_are(pair: Pair) -> None:
    (pair.output / "run-1/MANIFEST.json").touch()
    outside = pair.output.parent / "outside"
    for name in ("run-1/ranks/1/steps.csv", "../outside", "run-1/../../outside", str(outside), "run-2/steps.csv"):
        pair.ranks.messages.send(file=name, at=0, content="MQo=")
    pair.there.receive()
    assert files_of(pair.output) == {"run-1/MANIFEST.json": b""}
    assert not outside.exists()


def test_machine_that_starts_no_rank_says_why(pair: Pair) -> None:
    pair.ranks.messages.send(error="second starts no rank: no data", hint="--data")
    with pytest.raises(RunFailedError, match="second starts no rank: no data"):
        pair.there.receive()
    assert pair.there.code == 1


def test_lost_machine_has_ended(pair: Pair) -> None:
    pair.ranks.messages.close()
    pair.there.receive()
    assert pair.there.code == 1


def heard(listening: socket.socket, order: dict[str, str], password: str) -> tuple[object, bool]:
    """What a caller with this password orders, as the process there sees it, and whether its connection stays open."""
    address, port = listening.getsockname()
    client = socket.create_connection((address, port))
    caller = Caller(listening.accept()[0])
    number, text = client.recv(further.NUMBER_BYTES), json.dumps(order)
    signature = hmac.new(password.encode(), number + text.encode(), hashlib.sha256).hexdigest()
    client.sendall(json.dumps({"order": text, "signature": signature}).encode() + b"\n")
    found = caller.order("secret"), caller.is_open
    client.close()
    caller.close()
    return found


def test_only_who_knows_the_password_can_order() -> None:
    with further.listening_at("127.0.0.1") as listening:
        assert heard(listening, {"what": "run"}, "secret") == ({"what": "run"}, True)
        assert heard(listening, {"what": "run"}, "guessed") == (None, False)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b"{}\n",
        b'{"order": "x", "signature": 1}\n',
        b"x" * 9,
        b'{"order": "\\ud800", "signature": "\xc3\xa9"}\n',
        b"[" * 9000 + b"\n",
    ],
)
def test_strangers_order_nothing(sent: bytes) -> None:
    with further.listening_at("127.0.0.1") as listening, socket.create_connection(listening.getsockname()) as client:
        caller = Caller(listening.accept()[0])
        client.sendall(sent)
        assert caller.order("secret") is None
        assert caller.is_open is (b"\n" not in sent), "half a line may go on"
        caller.close()


def test_machine_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with further.listening_at("127.0.0.1") as listening:
        port = listening.getsockname()[1]
    machine = Further(name="second", address="127.0.0.1", port=port, password="x")
    with pytest.raises(RunFailedError, match=f"^first cannot reach second at 127.0.0.1:{port}: "):
        _There(machine, {}, tmp_path, waiting="first")
