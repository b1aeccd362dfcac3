"""Child processes that end by themselves, fail, exceed their time limit or ignore signals."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.waiting import is_running, until
from workload.contract.process import stoppable
from workload.profile import command
from workload.profile.command import End

pytestmark = pytest.mark.world

# Writes its report when it is interrupted.
SAVES = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: (print('saved'), sys.exit(0)))
print('ready', flush=True); time.sleep(600)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run_beyond_its_limit(code: str, log: Path) -> End:
    """Run a child whose time limit ends when it has printed its first line."""
    ready = threading.Event()
    with stoppable():
        return command.run(
            python(code),
            log=log,
            limit_s=100,
            on_line=lambda _: ready.set(),
            monotonic=lambda: 1000.0 * ready.is_set(),
        )


def test_lines_and_ticks_arrive_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TICK_S", 0.05)
    seen: list[str] = []
    go_on = tmp_path / "go on"
    code = (
        "import pathlib, time; print('one', flush=True)\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\n"
        "print('two')"
    )
    with stoppable():
        end = command.run(
            python(code),
            log=tmp_path / "x",
            limit_s=100,
            on_line=seen.append,
            on_tick=lambda: go_on.touch() if seen else None,
        )
    assert end.ok
    assert seen == ["one\n", "two\n"]


def test_late_child_is_asked_first_and_may_write_its_report(tmp_path: Path) -> None:
    end = run_beyond_its_limit(SAVES, tmp_path / "x")
    assert end.timed_out
    assert not end.ok
    assert end.output == "ready\nsaved\n"


def test_streams_environment_and_input_of_a_child(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("before\n")
    code = "import os, sys; print(os.environ['LC_ALL'], repr(sys.stdin.read())); sys.stderr.write('err'); sys.exit(3)"
    with stoppable():
        end = command.run(python(code), log=log, limit_s=100, environment={"LC_ALL": "C"})
    assert sorted(end.output.splitlines()) == ["C ''", "err"]
    assert sorted(log.read_text().splitlines()) == ["C ''", "before", "err"]
    assert (end.returncode, end.ok, end.timed_out, end.interrupted) == (3, False, False, False)


SLEEPER = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"


def test_deaf_child_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "GRACE_S", 0.3)
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"print({SLEEPER}.pid, flush=True); time.sleep(600)"
    )
    end = run_beyond_its_limit(code, tmp_path / "x")
    assert (end.timed_out, end.returncode) == (True, -signal.SIGKILL)
    until(lambda: not is_running(int(end.output)))


def test_child_of_a_child_does_not_outlive_it(tmp_path: Path) -> None:
    with stoppable():
        end = command.run(python(f"import subprocess, sys; print({SLEEPER}.pid)"), log=tmp_path / "x", limit_s=100)
    assert end.ok
    until(lambda: not is_running(int(end.output)))


def test_interruption_ends_the_child_in_order(tmp_path: Path) -> None:
    ready = threading.Event()
    threading.Thread(target=lambda: (ready.wait(), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
    with stoppable():
        end = command.run(
            python(SAVES),
            log=tmp_path / "x",
            limit_s=100,
            on_line=lambda line: ready.set() if "ready" in line else None,
        )
    assert end.interrupted
    assert end.output == "ready\nsaved\n"
