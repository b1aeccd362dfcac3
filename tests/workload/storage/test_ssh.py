"""Another machine over the system's ssh, a real sshd: what it is asked, what it refuses, connections that break."""

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests import sshd
from tests.workload.storage.bundles import content_of, make_bundle
from tests.workload.told import told
from workload.contract.errors import RooflaunchError, UsageError
from workload.storage.address import parse_source
from workload.storage.fetch import FetchState, fetch
from workload.storage.ssh import Connection, Login, LostError, SshFolder, connect, parse_login
from workload.storage.store import Sink, StoredObject

ECHO = "def main(question, payload):\n    return {'heard': question['say'], 'again': question['again']}, ()\n"


@pytest.fixture
def machine(sshd_machine: sshd.Machine, monkeypatch: pytest.MonkeyPatch) -> sshd.Machine:
    sshd.meet(sshd_machine, monkeypatch)
    return sshd_machine


@pytest.fixture
def connection(machine: sshd.Machine) -> Connection:
    return Connection(parse_login(machine.host, machine.port), sleep=lambda _: None)


def say(connection: Connection, text: str = "hello") -> dict[str, object]:
    return connection.ask(ECHO, {"say": text})


# Names


LOGINS: list[tuple[str, int | None]] = [
    *(("me@box", port) for port in (None, 2222, 0, -1, 65536)),
    *((text, None) for text in ("box", "me@[fe80::1]", "::1", "first.last+x@10.0.0.7")),
    *((text, None) for text in ("", "@box", "me@", "-oProxyCommand=evil", "me@-oProxyCommand=evil", "-l@box")),
    *((text, None) for text in ("me@box;reboot", "a b@box", "me@box reboot", "me@$(id)", "me@box\n", "me@bo/x")),
    *((text, None) for text in ("me@ho`st`", "me@box'", "ssh://me@box", "me@box:22", "m\0e@box")),
]
ADDRESSES = ["ssh://me@box/~/x", "ssh://box:2222/data/x/", "ssh://me@[::1]/~/x y"]
NO_ADDRESSES = ["ssh://", "ssh://box", "ssh://-x/~/a", "ssh://a b/~/x", "ssh://box:0/~/x"]


def test_logins_and_addresses(golden: Callable[[str, str], None]) -> None:
    texts = []
    for text, port in LOGINS:
        try:
            login = parse_login(text, port)
            texts.append(f"## {text!r}, {port}\n{login}: {login.words()}\n\n")
        except UsageError:
            texts.append(told(f"{text!r}, {port}", lambda: parse_login(text, port)))  # noqa: B023 - called at once
    for address in ADDRESSES:
        store = connect(address)
        texts.append(f"## {address}\n{store}\n{store.locate('runs/a')}\n{store.removal('runs/a')}\n\n")
    texts += [told(address, lambda: connect(address)) for address in NO_ADDRESSES]  # noqa: B023
    golden("ssh_addresses.txt", "".join(texts))


# Asking again


@pytest.mark.parametrize(("losses", "is_answered"), [(0, True), (1, True), (3, True), (4, False)])
def test_a_question_is_asked_again_after_a_lost_connection(
    losses: int, is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After pauses, and with `again` in the question, once the machine has answered something at all."""
    pauses: list[float] = []
    again: list[bool] = []
    connection = Connection(parse_login("me@box"), sleep=pauses.append)

    def ask_once(_: str, question: dict[str, Any], *__: Any) -> dict[str, Any]:
        again.append(question["again"])
        if 1 < len(again) <= 1 + losses:
            raise LostError("me@box is away", hint="wait")
        return {"heard": "hello"}

    monkeypatch.setattr(connection, "_ask_once", ask_once)
    connection.ask("", {})
    with nullcontext() if is_answered else pytest.raises(LostError):
        connection.ask("", {})
    assert again[2:] == [True] * (len(again) - 2)
    assert pauses == [1.0, 3.0, 6.0][:losses]


# What another machine answers


@pytest.mark.world
def test_asks_and_hears(connection: Connection) -> None:
    assert say(connection, "a 'b' $HOME \n ü \\") == {"heard": "a 'b' $HOME \n ü \\", "again": False}
    assert say(connection)["heard"] == "hello"


@pytest.mark.world
@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".bashrc", 'echo welcome; echo \'{"heard": "evil"}\'; echo oops >&2\n'),
        ("json.py", "raise SystemExit('evil')\n"),
    ],
    ids=["login scripts may print", "nothing of the user's folder is imported"],
)
def test_files_of_the_users_folder_change_no_answer(
    name: str, text: str, machine: sshd.Machine, connection: Connection
) -> None:
    with written(machine.home / name, text):
        assert say(connection)["heard"] == "hello"


@contextmanager
def written(path: Path, text: str) -> Iterator[None]:
    """Within the block the file has this text."""
    before = path.read_text() if path.exists() else None
    path.write_text(text)
    try:
        yield
    finally:
        path.unlink() if before is None else path.write_text(before)


PROGRAMS = {
    "no python": "#!/bin/sh\nexit 127\n",
    "an old python": "#!/bin/sh\necho 'rooflaunch needs Python 3.8 on that machine; python3 is 3.6' >&2; exit 1\n",
    "something else": "#!/bin/sh\necho 'This account is for git only.'\n",
}


@pytest.mark.world
def test_refused_logins_in_words(
    machine: sshd.Machine, connection: Connection, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    texts = []
    for title, program in PROGRAMS.items():
        machine.program("python3", program)
        texts.append(told(title, lambda: say(connection)))
        (machine.bin / "python3").unlink()
    files = {
        "an unknown host key": ("known_hosts", ""),
        "another host key": (
            "known_hosts",
            f"[127.0.0.1]:{machine.port} {(machine.folder / 'user.pub').read_text()}",
        ),
        "a key that is refused": ("authorized_keys", ""),
    }
    for title, (name, text) in files.items():
        machine.cut_off()  # a connection that is kept would be used
        with written(machine.folder / name, text):
            texts.append(told(title, lambda: say(connection)))
    pauses: list[float] = []
    away = Connection(Login(host="127.0.0.1", port=1), sleep=pauses.append)
    texts.append(told("a machine that is away", lambda: say(away)))
    assert pauses == [], "who never answered is most likely misspelt"
    machine.cut_off()
    monkeypatch.setenv("PATH", "/nowhere")
    texts.append(told("ssh is not installed", lambda: say(connection)))
    page = "".join(texts).replace(str(machine.folder), "FOLDER").replace(str(machine.port), "PORT")
    # What ssh itself says depends on its version.
    vague = r"(key than before|refused the login|be reached): .*?(Permission denied|Connection refused|$)"
    page = re.sub(vague, r"\1: …\2", page, flags=re.MULTILINE)
    golden("ssh_refusals.txt", page.replace(machine.host, "HOST"))


@pytest.mark.world
def test_the_frame_refuses_an_old_python() -> None:
    from workload.storage.ssh import FRAME

    old = "import sys\nsys.version_info = (3, 6, 9)\n"
    done = subprocess.run(["python3", "-I", "-c", old + FRAME], capture_output=True, text=True, input="", check=False)
    assert done.stderr == "rooflaunch needs Python 3.8 on that machine; python3 is 3.6\n"


# Connections that break


@pytest.mark.world
def test_asks_again_after_a_broken_connection(machine: sshd.Machine, connection: Connection) -> None:
    say(connection)
    machine.cut_off()
    assert say(connection) == {"heard": "hello", "again": True}


@pytest.mark.world
def test_a_connection_that_nobody_has_any_more_ends(machine: sshd.Machine) -> None:
    connection = Connection(parse_login(machine.host, machine.port))
    say(connection)
    [[session]] = connection._idle.values()
    process = session._process
    del connection, session
    assert process.wait() == 0


@pytest.mark.world
def test_what_does_not_answer_in_time(connection: Connection) -> None:
    hanging = "import time\ndef main(question, payload):\n    time.sleep(600)\n"
    with pytest.raises(LostError, match=rf"^{connection.login} did not answer within 0\.5 s$"):
        connection.ask(hanging, {}, limit_s=0.5)
    assert say(connection)["heard"] == "hello"


@pytest.mark.world
def test_a_write_whose_answer_was_lost_counts_as_ours(machine: sshd.Machine, connection: Connection) -> None:
    """Only when it is the same: another's object of that name stays."""
    store = SshFolder(connection, "~/lost")
    say(connection)
    program = store._program
    # The first time the object is made and the connection breaks; the second is the question that is repeated.
    store._program = program + (
        "\n_main = main\ndef main(question, payload):\n    answer = _main(question, payload)\n"
        "    if question['do'] == 'write' and not question['again']:\n        os._exit(255)\n    return answer\n"
    )
    assert store.write("a/x", b"mine", if_absent=True) is True
    (machine.home / "lost/a/y").write_bytes(b"another's")
    assert store.write("a/y", b"mine", if_absent=True) is False
    assert store.read("a/y") == b"another's"
    assert sorted(path.name for path in (machine.home / "lost/a").iterdir()) == ["x", "y"]


@pytest.mark.world
def test_a_full_disk(machine: sshd.Machine, connection: Connection) -> None:
    machine.program("python3", '#!/bin/bash\nulimit -f 64\nexec /usr/bin/env -u _ /usr/bin/python3 "$@"\n')
    try:
        with pytest.raises(RooflaunchError) as refused:
            SshFolder(connection, "~/full").write("x", b"." * 200_000)
    finally:
        (machine.bin / "python3").unlink()
        connection.close()
    assert str(refused.value) == f"{machine.host} refused: File too large"
    assert "show whether the disk is full" in refused.value.hint
    assert SshFolder(connection, "~/full").read("x") is None, "not half of it"


@pytest.mark.world
def test_bundles_come_home_over_connections_that_break(
    machine: sshd.Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file's first download is cut off in its middle; what is here in the end is what was sealed there."""
    monkeypatch.setattr("workload.storage.ssh.PAUSES_S", (0.1, 0.1))
    run_id = "20261121T142530Z-ssh-box-resnet18-b16-fp32-0000aa"
    folder = make_bundle(machine.home / "away/runs", run_id, {"big.csv": bytes(range(256)) * 20_000})
    address = f"ssh://{machine.host}:{machine.port}/~/away"
    store = connect(address)
    download, cut = store.download, set[str]()

    def breaking(listed: StoredObject, sink: Sink) -> None:
        class Cutting:
            def write(self, data: bytes) -> int:
                if listed.name not in cut:
                    cut.add(listed.name)
                    machine.cut_off()
                return sink.write(data)

        download(listed, Cutting())

    monkeypatch.setattr(store, "download", breaking)
    report = fetch(store, parse_source(address), tmp_path / "home", jobs=1)
    assert report.error is None
    assert [outcome.state for outcome in report.outcomes] == [FetchState.FETCHED]
    assert f"runs/{folder.name}/big.csv" in cut
    assert content_of(tmp_path / "home" / folder.name) == content_of(folder)
