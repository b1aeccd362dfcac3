import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workload.contract import process
from workload.contract.errors import ExitCode

ROOT = Path(__file__).parents[3]
LOST = (
    "error: standard output cannot be written: No space left on device\nhint: the work itself is done; "
    "print its result again, to another file\n"
)


class Refusing(io.StringIO):
    """A stream that cannot be written any more."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, _: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "own_code", "code", "said"),
    [
        (errno.EPIPE, 0, 0, ""),
        (errno.EPIPE, 6, 6, ""),
        (errno.ENOSPC, 0, ExitCode.TOOL, LOST),
        (errno.ENOSPC, 6, 6, LOST),
    ],
)
def test_work_goes_on_without_a_reader(
    number: int,
    own_code: int,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done: list[str] = []

    def work() -> int:
        for repeat in ("first", "second"):
            print(repeat, flush=True)
            done.append(repeat)
        return own_code

    refusing = Refusing(number)
    monkeypatch.setattr(sys, "stdout", refusing)
    assert process.enter(work) == code
    assert done == ["first", "second"]
    assert capsys.readouterr().err == said
    assert sys.stdout is refusing


def test_messages_that_cannot_be_written_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Refusing(errno.EIO))

    def work() -> int:
        print("error: a message", file=sys.stderr)
        return ExitCode.NOTHING_TO_DO

    assert process.enter(work) == ExitCode.NOTHING_TO_DO


def test_other_errors_of_the_system_keep_their_traceback() -> None:
    with pytest.raises(FileNotFoundError):
        process.enter(lambda: Path("/nowhere/at/all").stat().st_size)


def test_ctrl_c_is_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise KeyboardInterrupt

    assert process.enter(work) == ExitCode.INTERRUPTED
    assert capsys.readouterr() == ("", "interrupted\n")


@pytest.mark.world
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize(
    "words", [["launcher", "--help"], ["analysis", "--help"], ["workload", "--help"], ["workload.bundle", "BUNDLE"]]
)
def test_every_program_reports_a_lost_result(words: list[str], tmp_path: Path) -> None:
    from workload.contract import bundle

    bundle.write_document(
        tmp_path, {"run_id": "run-1", "status": "completed", "spec": {"model": "resnet18", "batch_size": 4}}
    )
    bundle.seal(tmp_path)
    command = [sys.executable, "-m", *(str(tmp_path) if word == "BUNDLE" else word for word in words)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (ExitCode.TOOL, LOST)


@pytest.mark.world
def test_closed_streams_are_not_given_to_the_next_file(tmp_path: Path) -> None:
    code = (
        "from workload.contract import process\n"
        "def work():\n"
        "    with open('file', 'w') as text: text.write(str(text.fileno()))\n"
        "    print('dropped'); return 3\n"
        "raise SystemExit(process.enter(work))"
    )
    command = ["bash", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 3
    assert int((tmp_path / "file").read_text()) > 2


@pytest.mark.world
def test_ctrl_c_while_python_ends_changes_nothing() -> None:
    """A child gets Ctrl-C twice, from the terminal and from its launcher: the second may come at its end."""
    code = """
import atexit, os, signal, sys
from workload.contract import process
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), print("ended", flush=True)))
sys.exit(process.enter(lambda: 6))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (6, "ended\n", "")


@pytest.mark.world
@pytest.mark.parametrize(("tool", "freed"), [("", ""), ("/nowhere/libprofiler.so", "freed\n")])
def test_a_quick_end_frees_nothing_and_loses_nothing(tool: str, freed: str) -> None:
    code = """
import atexit, sys, threading
from workload.contract import process
class Freed:
    def __del__(self): print("freed", flush=True)
kept, may_end = Freed(), threading.Event()
threading.Thread(target=lambda: (may_end.wait(), print("thread"))).start()
atexit.register(print, "atexit")
sys.stderr.write("no newline")
may_end.set()
process.end_quickly(7)
"""
    environment = {**os.environ, "CUDA_INJECTION64_PATH": tool}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, f"thread\natexit\n{freed}", "no newline")
