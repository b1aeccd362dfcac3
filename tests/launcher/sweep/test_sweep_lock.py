"""One process at a time on a sweep in a folder."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.sweep.drive import lock_held, lock_path
from workload.contract.errors import UsageError

ROOT = Path(__file__).parents[3]
HOLD = """
import sys
from pathlib import Path
from launcher.sweep.drive import lock_held
with lock_held(Path(sys.argv[1]), "night"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_free_again_and_tells_who_had_it(tmp_path: Path) -> None:
    with lock_held(tmp_path / "new", "night") as before:
        assert before is None
    with lock_held(tmp_path / "new", "night") as before:
        assert before is not None
        assert before.pid == os.getpid()


def test_the_second_is_refused_in_words(tmp_path: Path) -> None:
    with lock_held(tmp_path, "night"), pytest.raises(UsageError) as raised, lock_held(tmp_path, "night"):
        pass
    holder = json.loads(lock_path(tmp_path, "night").read_text())
    assert str(raised.value) == (
        f"another process works on sweep 'night' in '{tmp_path}': "
        f"process {os.getpid()} on {holder['host']}, since {holder['started_at']}"
    )
    assert raised.value.hint == "wait for it or end it, or -o ANOTHER_FOLDER"


def test_a_name_cannot_leave_its_folder(tmp_path: Path) -> None:
    assert lock_path(tmp_path, "../../etc/x").parent == tmp_path
    assert lock_path(tmp_path, "a/b").name == ".sweep-a-b.lock"


def test_what_somebody_wrote_into_it_is_no_matter(tmp_path: Path) -> None:
    lock_path(tmp_path, "night").write_text("[1, 2")
    with lock_held(tmp_path, "night") as before:
        assert before is None


@pytest.mark.world
def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match=f"process {holder.pid} on "), lock_held(tmp_path, "night"):
        pass
    holder.kill()
    holder.wait()
    with lock_held(tmp_path, "night") as before:
        assert before is not None
        assert before.pid == holder.pid


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.mkdir, "Is a directory"),
        (os.mkfifo, "it is not a file"),
        (lambda path: path.symlink_to(path), "it is a link"),
        (lambda path: path.symlink_to(path.with_name("notes.txt")), "it is a link"),
    ],
    ids=["a folder", "a pipe", "a link to itself", "a link to a file of the user"],
)
def test_a_lock_that_is_no_file(make: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    path, notes = lock_path(tmp_path, "night"), tmp_path / "notes.txt"
    notes.write_text("kept")
    make(path)
    with pytest.raises(UsageError) as refused, lock_held(tmp_path, "night"):
        pass
    assert str(refused.value).startswith(f"the sweep's lock '{path}' cannot be opened: {reason}")
    assert refused.value.hint == "-o ANOTHER_FOLDER"
    assert notes.read_text() == "kept"


def test_a_lock_of_a_colleague(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UsageError, match=r"cannot be opened: Permission denied$"), lock_held(tmp_path, "night"):
        pass
