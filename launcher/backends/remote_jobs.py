"""Jobs on machines that run programs of ours on request: what `launch ssh` and `launch slurm` share."""

import importlib
import io
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.protocol.backend import Leftover, Machine, Output, Removed
from launcher.protocol.records import NAME
from workload.contract.errors import ToolError
from workload.contract.text import printable
from workload.storage.ssh import QUESTION_LIMIT_S, Connection, source_of

# Program for any machine reached over ssh: reports facts, and receives our code.
SSH_PROGRAM = "launcher/backends/ssh/remote.py"


class RemoteJobs(ABC):
    """Jobs on a machine or cluster, started and ended by a program of ours that runs there: locally, or over ssh.

    `program`: path of the program that answers requests; `prefix`: start of the names in `calls`.
    """

    noun = "job"
    program: str
    prefix: str

    def __init__(self, connection: Connection | None, root: str, *, where: str, monotonic: Callable[[], float]) -> None:
        """Prepare requests. `root`: our folder there; `where`: word for the machine if it does not answer."""
        self._connection, self._root, self._where, self._monotonic = connection, root, where, monotonic
        self._program = source_of(self.program)
        self._counts: Counter[str] = Counter()
        # Offset from our monotonic clock to the machine's own clock.
        self._offset_s: float | None = None

    @property
    def calls(self) -> Mapping[str, int]:
        return {f"{self.prefix}.{name}": count for name, count in self._counts.items()}

    def ask(
        self,
        do: str,
        *,
        program: str = "",
        payload: bytes = b"",
        sink: Any = None,
        within_s: float = QUESTION_LIMIT_S,
        **question: Any,
    ) -> dict[str, Any]:
        """Send the request `do` to `program` on the machine; return the answer. Raises errors of `Connection.ask`."""
        self._counts[do] += 1
        asked = {"do": do, "root": self._root, **question}
        if self._connection is None:
            answer = _ask_this_machine(program or self.program, asked, payload, sink)
        else:
            text = source_of(program) if program else self._program
            answer = self._connection.ask(text, asked, payload=payload, sink=sink, limit_s=within_s)
        self._offset_s = float(answer["now_s"]) - self._monotonic()
        return answer

    def now_s(self) -> float:
        """Seconds since 1970 by the machine's clock."""
        if self._connection is None:
            return time.time()
        if self._offset_s is None:
            # The answer itself is not used: every answer carries the machine's clock.
            self.ask("output", name="none", start=0)
        assert self._offset_s is not None
        return self._monotonic() + self._offset_s

    @abstractmethod
    def _end(self, names: Sequence[str]) -> Mapping[str, str]:
        """End these jobs. Returns, by name, why a job's end is not confirmed; empty if it is."""

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        names = [machine.name for machine in machines if NAME.fullmatch(machine.name)]
        try:
            answer = self._end(names) if machines else {}
        except ToolError:
            return [Removed.unanswered(self.noun, machine.name, [self._where]) for machine in machines]
        reasons = [answer.get(machine.name, "no job has this name") for machine in machines]
        return [
            Removed(kind=self.noun, name=machine.name, zone=machine.zone, gone=not reason, reason=printable(reason))
            for machine, reason in zip(machines, reasons, strict=True)
        ]

    def output(self, machine: Machine, start: int) -> Output:
        printed = io.BytesIO()
        self.ask("output", sink=printed, name=machine.name, start=start)
        content = printed.getvalue()
        return Output(text=content.decode(errors="replace"), next_start=start + len(content))

    def phases(self, machine: Machine) -> Mapping[str, str]:
        """Always empty: the heartbeat, which reports the phases, begins within a second of the job's start."""
        del machine
        return {}


def _ask_this_machine(program: str, question: Mapping[str, Any], payload: bytes, sink: Any) -> dict[str, Any]:
    module = importlib.import_module(program.removesuffix(".py").replace("/", "."))
    try:
        answer, blocks = module.main(dict(question), io.BytesIO(payload))
    except OSError as error:
        raise ToolError(
            f"'{error.filename or question['root']}' cannot be used: {error.strerror}",
            hint="name one of your folders that the nodes share: --folder FOLDER",
        ) from error
    for block in blocks:
        if sink is not None:
            sink.write(block)
    return dict(answer)
