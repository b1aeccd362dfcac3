"""A machine behind a proxy that allows one connection at a time, with the ssh settings of docs/notebooks.md."""

import fcntl
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import one_connection, sshd
from tests.docs import pages
from tests.launcher.backends.ssh.test_ssh_end_to_end import TINY, ran, started
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.storage import ssh
from workload.storage.ssh import PAUSES_S, Connection, TakenError, parse_login

pytestmark = pytest.mark.world

ECHO = "def main(question, payload):\n    return {}, ()\n"


@pytest.fixture
def proxied(machine: sshd.Machine) -> Iterator[Path]:
    """The proxy's folder; `ssh colab` then leads through the proxy to the machine."""
    machine.cut_off()
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    [settings] = [block.text for block in pages.blocks("docs/notebooks.md") if "--proxy-mode" in block.text]
    path = machine.folder / "ssh_config"
    before = path.read_text()
    user = machine.host.partition("@")[0]
    path.write_text(before.replace("UserKnownHostsFile", "#") + settings.replace("User root", f"User {user}"))
    program = machine.here / "colab"
    words = f"{sys.executable} {one_connection.__file__} {folder} {machine.port}"
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = "ssh --proxy-mode" ] && exec {words}\nexit 2\n')
    program.chmod(0o700)
    yield folder
    machine.cut_off()
    path.write_text(before)
    program.unlink()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_all_commands_share_the_only_connection(machine: sshd.Machine, proxied: Path, tmp_path: Path) -> None:
    where = ("--host", "colab")
    words = (*TINY, "--iterations", "2", "--python", sys.executable)
    _, err = ran(machine, tmp_path, "launch", "ssh", *where, *words, place=False)
    assert "machine    colab: " in err
    [folder] = (tmp_path / "results").iterdir()
    assert bundle.read(folder).record.status == "completed"
    both = [
        started(machine, tmp_path, "launch", *words, *where, place=False) for words in (["doctor", "ssh"], ["status"])
    ]
    for process in both:
        out, err = process.communicate()
        assert process.returncode in (ExitCode.DONE, ExitCode.TOOL), out + err
        assert "colab answers" in out or "done" in out, out + err
    ran(machine, tmp_path, "analyze", "fetch", "ssh://colab/~/.rooflaunch", "-o", "again")
    assert bundle.read(tmp_path / "again" / folder.name).record.status == "completed"
    assert (proxied / "connections").read_text().count("\n") >= 1
    assert not (proxied / "refused").exists()


@pytest.mark.usefixtures("machine")
def test_another_program_is_connected(proxied: Path) -> None:
    pauses: list[float] = []
    with (proxied / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TakenError) as refused:
            Connection(parse_login("colab"), sleep=pauses.append).ask(ECHO, {})
    assert str(refused.value) == f"colab allows one connection, and another program uses it: {one_connection.REFUSAL}"
    assert refused.value.hint.startswith(
        "end the other connection (a terminal, an editor), or let it end, and try again"
    )
    assert refused.value.hint.endswith("by hand: ssh colab")
    assert refused.value.exit_code == ExitCode.TOOL
    assert pauses == list(PAUSES_S)
    tries = 1 + len(PAUSES_S)
    assert (proxied / "refused").read_text().count("\n") == 2 * tries, "each with a second one that shows the reason"


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("attempt", ["during the pause", "before the reason is asked for"])
def test_a_connection_that_becomes_free_is_used(proxied: Path, monkeypatch: pytest.MonkeyPatch, attempt: str) -> None:
    with (proxied / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def free(*_: object) -> None:
            fcntl.flock(lock, fcntl.LOCK_UN)

        connection = Connection(parse_login("colab"), sleep=free if attempt == "during the pause" else lambda _: None)
        if attempt != "during the pause":
            asked = connection._proxy_stderr
            monkeypatch.setattr(connection, "_proxy_stderr", lambda: (free(), asked())[1])
        assert connection.ask(ECHO, {}) == {}


def test_a_proxy_that_fails_is_quoted(machine: sshd.Machine, proxied: Path) -> None:
    """ssh's own last line, "Connection closed by UNKNOWN port 65535", tells nothing."""
    del proxied
    (machine.here / "colab").write_text("#!/bin/sh\necho '[colab] session t4 not found.' >&2\nexit 2\n")
    with pytest.raises(ssh.LostError, match=r"^colab cannot be reached: \[colab\] session t4 not found\.$"):
        Connection(parse_login("colab")).ask(ECHO, {})


def test_a_silent_ssh_is_asked_again_for_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh prints nothing if its proxy ended before ssh wrote its first line: about one time in ten."""
    ssh_program = tmp_path / "ssh"
    ssh_program.write_text(
        "#!/bin/sh\ncase \"$*\" in *ControlMaster=no*) echo '[colab] session t4 not found.' >&2;; esac\nexit 255\n"
    )
    ssh_program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ssh.LostError, match=r"^colab cannot be reached: \[colab\] session t4 not found\.$"):
        Connection(parse_login("colab")).ask(ECHO, {})


# Where the connection is shared


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    monkeypatch.setattr(ssh, "SHORT_FOLDER", str(folder / "x"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("usual", ["/long" + "/x" * 30, "/dev/null/read-only"])
def test_sharing_does_not_depend_on_the_usual_folder(short: Path, monkeypatch: pytest.MonkeyPatch, usual: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", usual)
    assert re.fullmatch(rf"{short}/x\d+/%C", ssh._shared()["ControlPath"])


def test_a_folder_that_others_can_read_is_not_used(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/dev/null/read-only")
    folder = Path(ssh._shared()["ControlPath"]).parent
    folder.chmod(0o755)
    assert ssh._shared() == {"ControlMaster": "no", "ControlPath": "none"}
    folder.rmdir()
    folder.symlink_to(short)
    assert ssh._shared() == {"ControlMaster": "no", "ControlPath": "none"}
