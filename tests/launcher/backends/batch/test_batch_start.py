"""The log that a task of Cloud Batch writes to the store of its launch."""

import threading
from pathlib import Path

import pytest

from launcher.backends.batch.start import _write_now_and_then
from launcher.protocol.records import log_object
from workload.contract.errors import ToolError
from workload.storage.folder import Folder


class Ends(threading.Event):
    """The agent ends after so many waits; before each, it prints a line."""

    def __init__(self, log: Path, lines: list[str]) -> None:
        super().__init__()
        self._log, self._lines = log, lines

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout == 20.0
        with self._log.open("a") as log:
            log.write(self._lines.pop(0))
        return not self._lines


class Counting(Folder):
    """A folder that lists what is written, and refuses the first so many times."""

    def __init__(self, root: Path, *, refuses: int) -> None:
        super().__init__(root)
        self.written: list[bytes] = []
        self._refuses = refuses

    def write(self, name: str, content: bytes, *, if_absent: bool = False, is_private: bool = False) -> bool:
        if self._refuses:
            self._refuses -= 1
            raise ToolError("the store is away", hint="wait")
        self.written.append(content)
        return super().write(name, content, if_absent=if_absent, is_private=is_private)


@pytest.mark.parametrize(
    ("lines", "refuses", "written"),
    [
        (["a\n", "", "b\n"], 0, [b"a\n", b"a\nb\n"]),
        (["a\n", ""], 0, [b"a\n"]),
        (["a\n", "", ""], 1, [b"a\n"]),
        ([""], 0, [b""]),
    ],
    ids=["not grown for a while", "not grown at the end", "refused once", "nothing"],
)
def test_the_log_is_written_when_it_has_grown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], refuses: int, written: list[bytes]
) -> None:
    store, log = Counting(tmp_path, refuses=refuses), tmp_path / "startup.log"
    _write_now_and_then(store, "a-launch", log, Ends(log, lines))
    assert store.written == written
    assert (tmp_path / log_object("a-launch")).read_bytes() == written[-1]
    assert capsys.readouterr().err == refuses * "error: the store is away\nhint: wait\n"
