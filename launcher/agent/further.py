"""Process on a further machine of a run: `python -m launcher.agent.further HOME`, in the job's folder there.

It starts ranks on the order of the first machine, and sends it the files that they write and what they print. It ends
as soon as the agent on the first machine has ended or is lost; the keeper then ends whatever is left. It is not started
again, because nobody would connect to it.
"""

import base64
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.agent.agent import ROOT, data_of
from launcher.agent.home import REQUEST, Home
from launcher.machine.runtime import script_variables
from launcher.protocol.records import Request
from launcher.script import files as script_files
from workload.contract import further
from workload.contract.errors import ExitCode, RooflaunchError
from workload.contract.further import Caller, Messages
from workload.contract.operating_system import SIGKILL, replace_text
from workload.contract.process import signal_group
from workload.contract.spec import RunSpec
from workload.storage.address import open_store

# Longest wait for the agent on the first machine, which is started after this process.
AGENT_LIMIT_S = 120.0
# How often what was written is sent: so much is lost if this machine is lost.
SENT_EVERY_S = 0.5
# Ranks that lose the first machine end within ten seconds.
END_LIMIT_S = 15.0


class RanksHere:
    """Ranks of one run on this machine. `home`: folder of the job here; `variables`: those of the user's script."""

    def __init__(self, home: Path, order: Mapping[str, Any], messages: Messages, variables: Mapping[str, str]) -> None:
        self.messages = messages
        self._home, self._order, self._own = home, order, variables
        self._output = Home(path=home).output
        self._notes = Path(self._here(order["notes"]))
        self._processes: list[subprocess.Popen[bytes]] = []
        # Inode and size of each file as sent; ranks whose files are complete.
        self._sent: dict[str, tuple[int, int]] = {}
        self._complete = set[str]()
        self._is_told = False

    def _here(self, text: str) -> str:
        """The text, with this machine's folder of the job in place of the first machine's."""
        return text.replace(self._order["home"], str(self._home))

    def start(self) -> None:
        """Start the ranks. Raises `OSError`."""
        order = self._order
        self._notes.mkdir(parents=True, exist_ok=True)
        starter = f"{order['variables'][further.STARTER]} {order['host']} {order['home']}"
        variables = {**order["variables"], further.STARTER: starter}
        words = [sys.executable, "-P", *map(self._here, order["words"])]
        for place in order["ranks"]:
            with (self._notes / f"{further.OUTPUT}{place['RANK']}").open("wb") as printed:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._own, **variables, **place},
                    cwd=self._home / order["folder"],
                    start_new_session=True,
                )
            self._processes.append(process)

    def hear(self) -> None:
        """Receive from the first machine which ranks' files are complete there, and let these ranks go on."""
        for message in self.messages.receive():
            for name in message.get("written", ()):
                self._complete.add(name.removeprefix(further.DELIVERING))
                (self._notes / name).unlink(missing_ok=True)

    def send(self) -> None:
        """Send what the ranks have written, and that they have ended."""
        codes = [process.poll() for process in self._processes]
        complete = [path.name for path in self._notes.glob(f"{further.DELIVERING}*")]
        there = {path.relative_to(self._output): path for path in self._output.rglob("*") if path.is_file()}
        for name, path in there.items():
            is_complete = name.parent.name in self._complete and name.parent.parent.name == "ranks"
            if not is_complete and path.suffix != ".tmp" and not name.name.startswith(further.DELIVERING):
                with suppress(OSError):  # it was replaced, or removed, meanwhile
                    self._send(name.as_posix(), path)
        for gone in self._sent.keys() - {name.as_posix() for name in there}:
            del self._sent[gone]
            self.messages.send(gone=gone)
        if complete:
            self.messages.send(delivered=complete)
        if None not in codes and not self._is_told:
            self._is_told = True
            self.messages.send(ended=max((abs(code or 0) for code in codes), default=0))

    def _send(self, name: str, path: Path) -> None:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            inode, at = self._sent.get(name, (0, 0))
            at = at if (inode, True) == (facts.st_ino, at <= facts.st_size) else 0
            file.seek(at)
            is_new = name not in self._sent or inode != facts.st_ino
            while (content := file.read(further.MOST_BYTES)) or is_new:
                self.messages.send(file=name, at=at, content=base64.b64encode(content).decode())
                at, is_new = at + len(content), False
            self._sent[name] = facts.st_ino, at

    def end(self) -> None:
        """Wait until the ranks have ended by themselves, kill them after `END_LIMIT_S`, and remove their files."""
        self.messages.close()
        until_s = time.monotonic() + END_LIMIT_S
        while any(process.poll() is None for process in self._processes):
            if time.monotonic() > until_s:
                for process in self._processes:
                    signal_group(process, SIGKILL)
            time.sleep(0.1)
        shutil.rmtree(self._output, ignore_errors=True)


class Further:
    """Listens for the agent of the first machine and for the starting process of each run."""

    def __init__(self, home: Path, listening: socket.socket, password: str) -> None:
        self._home, self._listening, self._password = home, listening, password
        self._request = Request.from_bytes((home / REQUEST).read_bytes())
        spec = RunSpec.from_json(self._request.spec)
        self._variables = script_variables(spec) if spec.script else {}
        if (secrets := home / further.SECRETS).exists():
            self._variables |= json.loads(secrets.read_text(encoding="utf-8"))
            secrets.unlink()
        self._callers: list[Caller] = []
        self._agent: Messages | None = None
        self._run: RanksHere | None = None

    def serve(self) -> None:
        """Work until the agent on the first machine has ended, or has not come in time."""
        until_s = time.monotonic() + AGENT_LIMIT_S
        while self._agent.is_open if self._agent else (self._run or time.monotonic() < until_s):
            self._listen()
            if self._run and self._run.messages.is_open:
                self._run.send()
            if self._run and not self._run.messages.is_open:
                self._run.end()
                self._run = None
        if self._agent is None:
            print(f"no process of the first machine has connected within {AGENT_LIMIT_S:g} s", flush=True)
        if self._run:
            self._run.end()

    def _listen(self) -> None:
        """Wait until a message or a connection comes, `SENT_EVERY_S` at most, and handle all that have come."""
        known = [*self._callers, *([self._agent] if self._agent else ()), *([self._run.messages] if self._run else ())]
        for ready in select.select([self._listening, *known], [], [], SENT_EVERY_S)[0]:
            if ready is self._listening:
                with suppress(OSError):
                    self._callers.append(Caller(self._listening.accept()[0]))
            elif ready in self._callers:
                self._receive(ready)
            elif self._run and ready is self._run.messages:
                self._run.hear()
            elif self._agent:
                self._agent.receive()

    def _receive(self, caller: Caller) -> None:
        order = caller.order(self._password)
        if order or not caller.is_open:
            self._callers.remove(caller)
        if order and order["what"] == "job":
            self._agent = caller
        elif order:
            if self._run:  # the first machine does one run at a time
                self._run.end()
            self._run = RanksHere(self._home, order, caller, self._variables)
            try:
                self._prepare()
                self._run.start()
            except (RooflaunchError, OSError) as error:
                hint = error.hint if isinstance(error, RooflaunchError) else "see df -h and the folders there"
                caller.send(error=f"{order['host']} starts no rank: {error}", hint=hint)

    def _prepare(self) -> None:
        if self._request.script:
            script_files.unpack(self._request, open_store(self._request.store, probe="scripts/"), self._home)
            data_of(self._request, Home(path=self._home), ROOT, lambda: False)


def main(words: Sequence[str]) -> int:
    """Serve the first machine, and return the exit code."""
    home = Path(words[0])
    if (home / further.PORT).exists():  # the process was killed
        shutil.rmtree(Home(path=home).output, ignore_errors=True)
        return ExitCode.DONE
    settings = json.loads((home / further.FILE).read_text(encoding="utf-8"))
    try:
        listening = further.listening_at(settings["address"])
    except OSError as error:
        print(f"error: nobody can listen at {settings['address']}, this machine's address for ssh: {error}", flush=True)
        return ExitCode.TOOL
    with listening:
        replace_text(home / further.PORT, str(listening.getsockname()[1]), durable=False)
        Further(home, listening, settings["password"]).serve()
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
