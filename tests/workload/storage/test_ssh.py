"""Another machine over the system's ssh, a real sshd: what it is asked, what it refuses, connections that break."""

import io
import shlex
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests import sshd
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode, RooflaunchError, ToolError, UsageError
from workload.storage.address import parse_source
from workload.storage.fetch import FetchState, fetch
from workload.storage.ssh import Connection, Login, LostError, SshFolder, connect, parse_login
from workload.storage.store import ObjectChangedError, Sink, StoredObject

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


@pytest.mark.parametrize(
    ("text", "port", "words", "shown"),
    [
        ("me@box", None, ["-l", "me", "--", "box"], "me@box"),
        ("box", None, ["--", "box"], "box"),
        ("me@gpu-1.lab.example", 2222, ["-l", "me", "-p", "2222", "--", "gpu-1.lab.example"], "me@gpu-1.lab.example"),
        ("me@[fe80::1]", None, ["-l", "me", "--", "fe80::1"], "me@fe80::1"),
        ("::1", 22, ["-p", "22", "--", "::1"], "::1"),
        ("first.last+x@10.0.0.7", None, ["-l", "first.last+x", "--", "10.0.0.7"], "first.last+x@10.0.0.7"),
    ],
)
def test_a_login(text: str, port: int | None, words: list[str], shown: str) -> None:
    login = parse_login(text, port)
    assert login.words() == words
    assert str(login) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("", "@box", "me@", "-oProxyCommand=evil", "me@-oProxyCommand=evil", "-l@box", "me@box;reboot", "a b@box"),
        *("me@box reboot", "me@$(id)", "me@box\n", "me@bo/x", "me@ho`st`", "me@box'", "ssh://me@box", "me@box:22"),
        "m\0e@box",
    ],
)
def test_hostile_logins(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_login(text)
    assert str(refused.value) == f"a machine to log in to is written USER@HOST; got '{text}'"
    assert refused.value.hint == "--host me@box"
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_ports(port: int) -> None:
    with pytest.raises(UsageError, match=rf"^a port is a number from 1 to 65535; got {port}$"):
        parse_login("me@box", port)


@pytest.mark.parametrize(
    ("address", "located", "removal"),
    [
        ("ssh://me@box/~/x", "ssh://me@box/~/x/runs/a", "ssh me@box 'rm ~/x/runs/a'"),
        ("ssh://box:2222/data/x/", "ssh://box:2222/data/x/runs/a", "ssh -p 2222 box 'rm /data/x/runs/a'"),
        ("ssh://me@[::1]/~/x y", "ssh://me@[::1]/~/x y/runs/a", """ssh me@::1 'rm ~/'"'"'x y/runs/a'"'"''"""),
    ],
)
def test_addresses(address: str, located: str, removal: str) -> None:
    store = connect(address)
    assert store.locate("runs/a") == located
    assert store.removal("runs/a") == removal
    assert shlex.split(removal)[0] == "ssh"
    assert str(store) == f"folder '{address.rstrip('/')}'"


@pytest.mark.parametrize("address", ["ssh://", "ssh://box", "ssh://-x/~/a", "ssh://a b/~/x", "ssh://box:0/~/x"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(UsageError):
        connect(address)


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
def test_login_scripts_may_print(machine: sshd.Machine, connection: Connection) -> None:
    noise = machine.home / ".bashrc"
    noise.write_text('echo welcome; echo \'{"heard": "evil"}\'; echo oops >&2\n')
    try:
        assert say(connection)["heard"] == "hello"
    finally:
        noise.unlink()


@pytest.mark.world
def test_nothing_of_the_users_folder_is_imported(machine: sshd.Machine, connection: Connection) -> None:
    (machine.home / "json.py").write_text("raise SystemExit('evil')\n")
    try:
        assert say(connection)["heard"] == "hello"
    finally:
        (machine.home / "json.py").unlink()


REFUSALS = {
    "no python": ("#!/bin/sh\nexit 127\n", "{host} has no python3", "install Python 3.8 or newer on that machine"),
    "old python": (
        "#!/bin/sh\necho 'rooflaunch needs Python 3.8 on that machine; python3 is 3.6' >&2; exit 1\n",
        "{host} did not run our program: rooflaunch needs Python 3.8 on that machine; python3 is 3.6",
        "try it by hand: ssh -p {port} {host}",
    ),
    "something else": (
        "#!/bin/sh\necho 'This account is for git only.'\n",
        "{host} did not run our program: This account is for git only.",
        "try it by hand: ssh -p {port} {host}",
    ),
}


@pytest.mark.world
@pytest.mark.parametrize("case", REFUSALS)
def test_machines_that_cannot(machine: sshd.Machine, connection: Connection, case: str) -> None:
    program, message, hint = REFUSALS[case]
    machine.program("python3", program)
    try:
        with pytest.raises(ToolError) as refused:
            say(connection)
    finally:
        (machine.bin / "python3").unlink()
    assert str(refused.value) == message.format(host=machine.host, port=machine.port)
    assert refused.value.hint == hint.format(host=machine.host, port=machine.port)
    assert refused.value.exit_code == ExitCode.TOOL


@pytest.mark.world
def test_the_frame_refuses_an_old_python() -> None:
    from workload.storage.ssh import FRAME

    old = "import sys\nsys.version_info = (3, 6, 9)\n"
    done = subprocess.run(["python3", "-I", "-c", old + FRAME], capture_output=True, text=True, input="", check=False)
    assert done.stderr == "rooflaunch needs Python 3.8 on that machine; python3 is 3.6\n"


def refusal(machine: sshd.Machine, connection: Connection, name: str, text: str) -> ToolError:
    """The error of a login while a file of sshd, or of its client, has this text."""
    machine.cut_off()  # a connection that is kept would be used
    path = machine.folder / name
    before = path.read_text()
    path.write_text(text)
    try:
        with pytest.raises(ToolError) as refused:
            say(connection)
    finally:
        path.write_text(before)
    return refused.value


@pytest.mark.world
def test_an_unknown_host_key(machine: sshd.Machine, connection: Connection) -> None:
    error = refusal(machine, connection, "known_hosts", "")
    assert str(error) == f"the host key of {machine.host} is not known here yet"
    assert error.hint == f"log in once by hand and compare it: ssh -p {machine.port} {machine.host}"
    assert not isinstance(error, LostError), "asking again is of no use"


@pytest.mark.world
def test_another_host_key(machine: sshd.Machine, connection: Connection) -> None:
    other = f"[127.0.0.1]:{machine.port} {(machine.folder / 'user.pub').read_text()}"
    error = refusal(machine, connection, "known_hosts", other)
    assert str(error).startswith(f"{machine.host} has another host key than before: ")
    assert f"ssh-keygen -R '[127.0.0.1]:{machine.port}'" in error.hint


@pytest.mark.world
def test_a_key_that_is_refused(machine: sshd.Machine, connection: Connection) -> None:
    error = refusal(machine, connection, "authorized_keys", "")
    assert str(error).startswith(f"{machine.host} refused the login: ")
    assert str(error).endswith("Permission denied (publickey).")
    expected = f"passwords are not supported: ssh-add a key, or ssh-copy-id -p {machine.port} {machine.host}"
    assert error.hint == expected


@pytest.mark.world
@pytest.mark.usefixtures("machine")
def test_a_machine_that_is_away() -> None:
    pauses: list[float] = []
    away = Connection(Login(host="127.0.0.1", port=1), sleep=pauses.append)
    with pytest.raises(LostError, match=r"^127\.0\.0\.1 cannot be reached: .*Connection refused$") as refused:
        say(away)
    assert refused.value.hint == "try it by hand: ssh -p 1 127.0.0.1"
    assert pauses == [], "who never answered is most likely misspelt"


@pytest.mark.world
def test_without_ssh(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolError, match=r"^the program ssh is not installed$"):
        say(connection)


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
def test_links_are_not_followed(machine: sshd.Machine, connection: Connection, tmp_path: Path) -> None:
    store = SshFolder(connection, "~/links")
    store.write("a/x", b"1")
    (tmp_path / "secret").write_text("secret")
    (machine.home / "links/a/link").symlink_to(tmp_path / "secret")
    (machine.home / "links/b").symlink_to(tmp_path)
    assert [(found.name, found.problem) for found in store.objects("")] == [
        ("a/link", "a symbolic link"),
        ("a/x", ""),
        ("b", "a symbolic link"),
    ]
    for name in ("a/link", "b/secret", "../links/a/x"):
        with pytest.raises(BundleError):
            store.read(name)
    with pytest.raises(BundleError, match="is a symbolic link"):
        store.write("b/evil", b"1")
    [_, listed, _] = store.objects("")
    (machine.home / "links/a/x").write_bytes(b"other")
    with pytest.raises(ObjectChangedError):
        store.download(listed, io.BytesIO())


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
    folder = bundle.create(machine.home / "away/runs", "20261121T142530Z-ssh-box-resnet18-b16-fp32-0000aa")
    bundle.write_document(folder, {"run_id": folder.name, "status": "completed"})
    (folder / "big.csv").write_bytes(bytes(range(256)) * 20_000)
    bundle.seal(folder)
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
    home = tmp_path / "home" / folder.name
    assert {path.name: path.read_bytes() for path in home.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
