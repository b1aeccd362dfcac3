"""Login node of a cluster: this machine, or one reached over ssh. Both run the same programs of ours."""

import importlib
import io
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from workload.contract.errors import ToolError
from workload.storage.ssh import QUESTION_LIMIT_S, Connection, Login, source_of
from workload.storage.store import UnreachableError

OWN = "launcher/backends/slurm/remote.py"
# Program for any machine reached over ssh: it reports facts and receives our code.
ANY_MACHINE = "launcher/backends/ssh/remote.py"
HERE = "this login node"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Cluster to use; `login`: None if this machine is its login node; `root`: our folder there."""

    login: Login | None
    root: str

    @property
    def place(self) -> str:
        """Name of the login node in messages."""
        return str(self.login) if self.login else HERE


class LoginNode:
    """Answers questions about Slurm and our folder there; `calls` counts them."""

    def __init__(
        self, cluster: Cluster, *, connect: Callable[[Login], Connection], monotonic: Callable[[], float]
    ) -> None:
        self.cluster = cluster
        self._connection = connect(cluster.login) if cluster.login else None
        self._monotonic = monotonic
        self._calls: Counter[str] = Counter()
        self._offset_s: float | None = None

    @property
    def calls(self) -> Mapping[str, int]:
        """Number of questions, by kind."""
        return MappingProxyType(self._calls)

    def ask(
        self,
        do: str,
        *,
        program: str = OWN,
        payload: bytes = b"",
        sink: Any = None,
        within_s: float = QUESTION_LIMIT_S,
        **question: Any,
    ) -> dict[str, Any]:
        """Ask the login node a question. Raises `UnreachableError` if Slurm or the login node does not answer."""
        self._calls[do] += 1
        asked = {"do": do, "root": self.cluster.root, **question}
        if self._connection is None:
            answer = _here(program, asked, payload, sink)
        else:
            answer = self._connection.ask(source_of(program), asked, payload=payload, sink=sink, limit_s=within_s)
        self._offset_s = float(answer["now_s"]) - self._monotonic()
        if "silent" in answer:
            raise UnreachableError(
                f"Slurm does not answer on {self.cluster.place}: {answer['silent']}",
                hint="scontrol ping shows whether its controller answers; then run the same command again",
            )
        return answer

    def now_s(self) -> float:
        """Seconds since 1970 by the login node's clock."""
        if self._connection is None:
            return time.time()
        if self._offset_s is None:
            self.ask("output", name="none", start=0)
        assert self._offset_s is not None
        return self._monotonic() + self._offset_s


def _here(program: str, question: Mapping[str, Any], payload: bytes, sink: Any) -> dict[str, Any]:
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
