"""Requests to another machine over the system's `ssh`, and a store in a folder of it. Standard library only.

A request is a small Python program of ours, sent over the connection together with its arguments (the "question").
Text that a user typed therefore never becomes part of a remote command line. Keys, aliases and known hosts are those of
the user's own `ssh`. Connections are shared and kept for a minute, so one connection at a time is enough: some proxies
(`colab ssh --proxy-mode`) refuse a second. A request may be repeated after a lost connection.
"""

import json
import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from workload.contract.errors import ToolError, UsageError
from workload.storage.folder import FileStore
from workload.storage.store import CountedSink, Patience, Sink, UnreachableError

USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
# A host name, an alias of ~/.ssh/config, or an address: never an option, never a second word.
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
ADDRESS = re.compile(r"ssh://(?P<login>([^@/]*@)?(\[[^]/]*\]|[^:/]*))(:(?P<port>\d{1,9}))?(?P<path>/[^\x00-\x1f]*)")
EXAMPLE = "ssh://USER@HOST/~/.rooflaunch"
MAX_PORT = 65535
DEFAULT_PORT = 22
# A machine is unreachable if ssh gets no reply to its probes for 30 s; our own requests may take longer to answer.
SSH_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "15",
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "3",
    "LogLevel": "ERROR",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
}
KEPT_S = 60
# A Unix socket's path has at most 104 bytes on macOS. ssh's socket name has 40, and 17 more at its creation.
MAX_CONTROL_FOLDER = 46
# Folder for ssh's socket, followed by the user id, if the usual folder has too long a path or is read-only.
SHORT_FOLDER = "/tmp/rooflaunch-ssh-"  # noqa: S108 - `_shared` checks its owner
# Pauses before a request is repeated, if the machine has answered before.
PAUSES_S = (1.0, 3.0, 6.0)
QUESTION_LIMIT_S = 60.0
# Time limit of a request that transfers files: half an hour for 2 GB at 10 Mbit/s.
TRANSFER_LIMIT_S = 1800.0
BLOCK_BYTES = 1 << 18
# Limit of what a login script may print before our answer.
MAX_PREAMBLE_BYTES = 1 << 20
# Time that ssh has to exit after its input is closed.
ENDS_WITHIN_S = 2.0
SSH_FAILED = 255
NOT_FOUND = 127
# ssh's own last line after its ProxyCommand has ended. The reason is the line before, printed by the ProxyCommand.
CLOSED = re.compile(
    r"^((kex|ssh)_exchange_identification: |Connection (closed|reset) by |banner exchange: )", re.MULTILINE
)
# The HTTP status by which a proxy refuses a second connection: "too many requests".
TAKEN = re.compile(r"\bHTTP 429\b")
# The only remote command line. It reads all else from its standard input. -I: import nothing from the user's folder.
COMMAND = ("python3", "-I", "-c", "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline())))")
FRAME = """
import json, sys
if sys.version_info < (3, 8):
    sys.exit("rooflaunch needs Python 3.8 on that machine; python3 is %d.%d" % sys.version_info[:2])
stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
scope = {"__name__": "rooflaunch"}
exec(compile(stdin.read(int(stdin.readline())), "rooflaunch", "exec"), scope)

class Payload:
    def __init__(self, size):
        self.remaining = size
    def read(self, size):
        block = stdin.read(min(size, self.remaining))
        self.remaining -= len(block)
        return block

for line in iter(stdin.readline, b""):
    question = json.loads(line)
    payload = Payload(question["payload"])
    try:
        answer, blocks = scope["main"](question, payload)
    except OSError as error:
        answer, blocks = {"error": error.strerror or str(error), "path": str(error.filename or "")}, ()
    while payload.read(1 << 18):
        pass
    stdout.write(("\\n%s\\n%s\\n" % (question["mark"], json.dumps(answer))).encode())
    remaining = answer.get("bytes", 0)
    for block in blocks:
        remaining -= len(block)
        stdout.write(block)
    stdout.flush()
    if remaining:
        sys.exit("a file changed while it was read")
"""


class LostError(UnreachableError):
    """The connection broke, or the machine does not answer; the request may be repeated."""


class TakenError(LostError):
    """The machine's proxy allows one connection, and another program uses it."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """Machine to log in to. Without user or port: those of ~/.ssh/config, or ssh's own defaults."""

    host: str
    user: str = ""
    port: int | None = None

    def __str__(self) -> str:
        """Text form: `user@box`."""
        return f"{self.user}@{self.host}" if self.user else self.host

    def command(self) -> str:
        """Command to log in by hand."""
        return f"ssh {'' if self.port is None else f'-p {self.port} '}{self}"

    def known_as(self) -> str:
        """Name of the machine in known_hosts."""
        return self.host if self.port in (None, DEFAULT_PORT) else f"'[{self.host}]:{self.port}'"

    def words(self) -> list[str]:
        """Last words of ssh's command line; none of them can be mistaken for an option."""
        user = ["-l", self.user] if self.user else []
        port = [] if self.port is None else ["-p", str(self.port)]
        return [*user, *port, "--", self.host]


def parse_login(text: str, port: int | None = None) -> Login:
    """Parse `[USER@]HOST`. Raises `UsageError` for text that ssh could mistake for an option, and for a bad port."""
    user, at, host = text.rpartition("@")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (at and not USER.fullmatch(user)) or not HOST.fullmatch(host):
        raise UsageError(f"a machine to log in to is written USER@HOST; got '{text}'", hint="--host me@box")
    if port is not None and not 1 <= port <= MAX_PORT:
        raise UsageError(f"a port is a number from 1 to {MAX_PORT}; got {port}", hint="--port 22")
    return Login(user=user, host=host, port=port)


class Connection:
    """Sends requests to one machine. Threads may share it."""

    def __init__(self, login: Login, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.login = login
        self._sleep = sleep
        self._has_answered = False
        # Remote programs that wait for the next request, by their text.
        self._idle: dict[str, list[_Session]] = {}

    def ask(
        self,
        program: str,
        question: Mapping[str, Any],
        *,
        payload: bytes | Path = b"",
        sink: Sink | None = None,
        limit_s: float = QUESTION_LIMIT_S,
    ) -> dict[str, Any]:
        """Run `main(question, payload)` of `program` on the machine; return its answer.

        Bytes after the answer go to `sink`. After a lost connection the request is repeated with `again` true, because
        the machine may have done it already.

        Raises `LostError` if the machine cannot be reached, `ToolError` if the login or the request is refused.
        """
        pauses, is_again = iter(PAUSES_S), False
        while True:
            counted, request = CountedSink(sink), {**question, "again": is_again}
            try:
                answer = self._ask_once(program, request, payload, counted, limit_s)
            except LostError as error:
                pause_s = next(pauses, None)
                # A machine that never answered is most likely misspelt, unless its proxy answered: then another
                # rooflaunch may be connecting, whose connection can be shared in a moment. For a file received in
                # part, the caller requests the rest.
                is_there = self._has_answered or isinstance(error, TakenError)
                if not is_there or pause_s is None or counted.bytes:
                    raise
                self._sleep(pause_s)
                is_again = True
            else:
                self._has_answered = True
                if "error" in answer:
                    where = f" '{answer['path']}'" if answer.get("path") else ""
                    raise ToolError(
                        f"{self.login} refused{where}: {answer['error']}",
                        hint=f"log in and check: {self.login.command()}; df -h and quota show whether the disk is full",
                    )
                return answer

    def _ask_once(
        self, program: str, question: Mapping[str, Any], payload: bytes | Path, sink: CountedSink, limit_s: float
    ) -> dict[str, Any]:
        waiting = self._idle.setdefault(program, [])
        try:
            session = waiting.pop()
        except IndexError:
            session = _Session([*self._ssh(), *self.login.words(), shlex.join(COMMAND)], program)
        try:
            answer = session.ask(question, payload, sink, limit_s)
        except BaseException:
            session.close()
            raise
        if answer is not None:
            waiting.append(session)
            return answer
        ended = session.close()
        if ended.is_late:
            by_hand = f"try it by hand: {self.login.command()}"
            raise LostError(f"{self.login} did not answer within {limit_s:g} s", hint=by_hand)
        stderr = ended.stderr
        # ssh says nothing at all if its ProxyCommand ends before ssh has written its first line (OpenSSH 9.2).
        if ended.code == SSH_FAILED and (not stderr.strip() or CLOSED.search(stderr)):
            stderr = self._proxy_stderr() or stderr
        raise self._explained(ended.code, stderr, ended.preamble)

    def _proxy_stderr(self) -> str:
        """Error output of one more attempt to connect, with a connection of its own; empty if it succeeds.

        The reason why a ProxyCommand ended is in its error output, which ssh discards if the connection is to be kept
        (OpenSSH 9.2, sshconnect.c).
        """
        command = [*self._ssh({"ControlMaster": "no", "ControlPath": "none"}), *self.login.words(), "true"]
        with suppress(OSError, subprocess.TimeoutExpired):
            tried = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=QUESTION_LIMIT_S, check=False
            )
            self._has_answered = self._has_answered or tried.returncode == 0
            return "" if tried.returncode == 0 else tried.stderr[-MAX_PREAMBLE_BYTES:].decode(errors="replace")
        return ""

    def close(self) -> None:
        """End the waiting remote programs; the next request starts them again."""
        for session in [session for sessions in self._idle.values() for session in sessions]:
            session.close()
        self._idle.clear()

    def _ssh(self, sharing: Mapping[str, str] | None = None) -> list[str]:
        program = shutil.which("ssh")
        if program is None:
            raise ToolError("the program ssh is not installed", hint="install OpenSSH's client (openssh-client)")
        options = {**SSH_OPTIONS, **(_shared() if sharing is None else sharing)}
        return [program, "-T", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]

    def _explained(self, code: int, stderr: str, preamble: str) -> ToolError:
        """Error for a remote program that ended without an answer, from ssh's exit code and output."""
        lines = [line.strip() for line in (stderr or preamble).splitlines() if line.strip()]
        while len(lines) > 1 and CLOSED.match(lines[-1]):
            lines.pop()
        last = lines[-1] if lines else ""
        login, by_hand = self.login, self.login.command()
        message, hint = f"{login} did not run our program: {last or f'exit code {code}'}", f"try it by hand: {by_hand}"
        if "REMOTE HOST IDENTIFICATION HAS CHANGED" in stderr:
            message = f"{login} has another host key than before: it was reinstalled, or another machine answers"
            hint = f"ask the machine's owner; then ssh-keygen -R {login.known_as()}, and log in once: {by_hand}"
        elif "Host key verification failed" in stderr or "host key is known for" in stderr:
            message = f"the host key of {login} is not known here yet"
            hint = f"log in once by hand and compare it: {by_hand}"
        elif "Permission denied" in last or "Too many authentication failures" in last:
            message = f"{login} refused the login: {last}"
            hint = f"passwords are not supported: ssh-add a key, or {by_hand.replace('ssh', 'ssh-copy-id', 1)}"
        elif code == SSH_FAILED and TAKEN.search(last):
            hint = f"end the other connection (a terminal, an editor), or let it end, and try again; by hand: {by_hand}"
            return TakenError(f"{login} allows one connection, and another program uses it: {last}", hint=hint)
        elif code == SSH_FAILED or code < 0:
            why = last or ("ssh was killed" if code < 0 else "the connection broke")
            return LostError(f"{login} cannot be reached: {why}", hint=hint)
        elif code == NOT_FOUND:
            message, hint = f"{login} has no python3", "install Python 3.8 or newer on that machine"
        return ToolError(message, hint=hint)


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """End of an ssh process: its exit code, its error output, its output before an answer, and whether it timed out."""

    code: int
    stderr: str
    preamble: str
    is_late: bool


class _Session:
    """An `ssh` process whose remote program answers one request after another."""

    def __init__(self, command: list[str], program: str) -> None:
        # ssh's error output goes to a file, because a kept connection would hold a pipe open.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the session
        # A process group of its own: Ctrl-C must not end the shared connection.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True
        )
        frame, code = FRAME.encode(), program.encode()
        self._head = b"%d\n%s%d\n%s" % (len(frame), frame, len(code), code)
        self._preamble = ""
        self._is_late = False

    def ask(
        self, question: Mapping[str, Any], payload: bytes | Path, sink: CountedSink, limit_s: float
    ) -> dict[str, Any] | None:
        """Send a request and return the answer; None if program or connection ended before the answer was complete."""
        mark = secrets.token_hex(16)
        size = len(payload) if isinstance(payload, bytes) else payload.stat().st_size
        line = json.dumps({**question, "mark": mark, "payload": size}).encode() + b"\n"
        head, self._head = self._head + line, b""
        timer = threading.Timer(limit_s, self._end_late)
        timer.daemon = True
        timer.start()
        feeder = threading.Thread(target=self._feed, args=(head, payload, size), daemon=True)
        feeder.start()
        try:
            assert self._process.stdout is not None
            answer, self._preamble = _read_answer(self._process.stdout, mark, sink)
        except BaseException:
            self._process.kill()
            raise
        finally:
            timer.cancel()
        if answer is not None:
            feeder.join()
        return answer

    def close(self) -> _Ended:
        """End ssh, and return its exit code and output."""
        with suppress(subprocess.TimeoutExpired):
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()
            self._process.wait(ENDS_WITHIN_S)
        self._process.kill()
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        with self._stderr:
            self._stderr.seek(0)
            text = self._stderr.read(MAX_PREAMBLE_BYTES).decode(errors="replace")
        return _Ended(code=code, stderr=text, preamble=self._preamble, is_late=self._is_late)

    def __del__(self) -> None:
        """Close the pipe when the session is garbage-collected; `Popen` would keep it open, and ssh running."""
        with suppress(AttributeError, OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()

    def _feed(self, head: bytes, payload: bytes | Path, size: int) -> None:
        """Send the request; ignore a broken pipe, because `close` returns the output of a program that ended early."""
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(OSError, ValueError):
            stdin.write(head)
            if isinstance(payload, bytes):
                stdin.write(payload)
            else:
                with payload.open("rb") as source:
                    shutil.copyfileobj(source, stdin, BLOCK_BYTES)
                    if source.tell() != size:  # the file changed meanwhile: the remote program would wait forever
                        self._process.kill()
            stdin.flush()


def _read_answer(stdout: IO[bytes], mark: str, sink: CountedSink) -> tuple[dict[str, Any] | None, str]:
    """Read the answer after the mark; return it and the output before it. None if the stream ends too early."""
    wanted, preamble = mark.encode() + b"\n", b""
    while (line := stdout.readline(MAX_PREAMBLE_BYTES)) != wanted:
        preamble += line
        if not line or len(preamble) > MAX_PREAMBLE_BYTES:
            return None, preamble.decode(errors="replace")
    header = stdout.readline()
    if not header.endswith(b"\n"):
        return None, ""
    answer: dict[str, Any] = json.loads(header)
    remaining = int(answer.get("bytes", 0))
    while remaining:
        block = stdout.read(min(remaining, BLOCK_BYTES))
        if not block:
            return None, ""
        sink.write(block)
        remaining -= len(block)
    return answer, ""


def _shared() -> dict[str, str]:
    """Options of ssh that share one connection between requests, if a private folder with a short path is possible."""
    not_shared = {"ControlMaster": "no", "ControlPath": "none"}
    if sys.platform == "win32":
        return not_shared
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    for folder in (Path(base).expanduser() / "rooflaunch-ssh", Path(f"{SHORT_FOLDER}{os.getuid()}")):
        if len(str(folder)) > MAX_CONTROL_FOLDER or set(str(folder)) & set(' "%'):
            continue
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            facts = folder.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077:
                return {"ControlMaster": "auto", "ControlPersist": str(KEPT_S), "ControlPath": f"{folder}/%C"}
    return not_shared


def source_of(module: str) -> str:
    """Source text of a module of this installation, for example `workload/storage/ssh_remote.py`."""
    return (Path(__file__).resolve().parents[2] / module).read_text(encoding="utf-8")


def connect(address: str) -> "SshFolder":
    """Open the store at `ssh://[USER@]HOST[:PORT]/PATH`; a path that begins with `/~/` is in the remote home folder.

    Raises `UsageError` for anything else. No connection is made yet.
    """
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise UsageError(f"a folder over ssh is written {EXAMPLE}; got '{address}'", hint=EXAMPLE)
    login = parse_login(parts["login"], int(parts["port"]) if parts["port"] else None)
    path = parts["path"].rstrip("/") or "/"
    return SshFolder(Connection(login), path.removeprefix("/") if path.startswith("/~/") else path)


class SshFolder(FileStore):
    """A `Store` whose objects are the files below a folder of another machine; writing creates the folder.

    If a request to write is repeated after a lost connection, an existing object with the same content counts as ours.
    """

    def __init__(self, connection: Connection, root: str) -> None:
        """`root`: an absolute path on the other machine, or one that begins with `~/`."""
        self._connection, self._root = connection, root
        self._program = source_of("workload/storage/ssh_remote.py")

    def __str__(self) -> str:
        return f"folder '{self.locate('').rstrip('/')}'"

    def locate(self, name: str) -> str:
        """Address of an object, for example `ssh://me@box:2222/~/.rooflaunch/runs/x`."""
        login = self._connection.login
        host = f"[{login.host}]" if ":" in login.host else login.host
        port = "" if login.port is None else f":{login.port}"
        user = f"{login.user}@" if login.user else ""
        return f"ssh://{user}{host}{port}/{self._root.lstrip('/')}/{name}"

    def removal(self, name: str) -> str:
        tilde, path = ("~/", self._root[2:]) if self._root.startswith("~/") else ("", self._root)
        remote = f"rm {'-r ' if name.endswith('/') else ''}{tilde}{shlex.quote(f'{path}/{name}')}"
        return f"{self._connection.login.command()} {shlex.quote(remote)}"

    def with_patience(self, _: Patience) -> "SshFolder":
        """Return this store: time limits belong to the connection."""
        return self

    def _answer(self, question: Mapping[str, Any], sink: Sink | None, payload: bytes | Path) -> dict[str, Any]:
        carries_files = bool(payload) or question.get("most_bytes", 0) is None
        limit_s = TRANSFER_LIMIT_S if carries_files else QUESTION_LIMIT_S
        request = {**question, "root": self._root}
        return self._connection.ask(self._program, request, sink=sink, payload=payload, limit_s=limit_s)
