"""Signals: in this process if nothing has to wait for them, else in real child processes."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import is_running, until
from workload.contract import process
from workload.contract.errors import InterruptedRunError
from workload.contract.process import Follower, interruption_deferred, raise_if_interrupted, run_child, stoppable

ROOT = Path(__file__).parents[3]
READY = "import time; print('ready', flush=True);"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGINT, "interrupted by Ctrl-C"),
        (signal.SIGTERM, "interrupted by SIGTERM"),
        (signal.SIGHUP, "interrupted: the terminal was closed"),
    ],
)
def test_a_signal_ends_the_work(number: signal.Signals, message: str) -> None:
    before = [signal.getsignal(each) for each in process.SIGNALS]
    with pytest.raises(InterruptedRunError) as caught, stoppable():
        signal.raise_signal(number)
    assert caught.value.report() == f"error: {message}\nhint: run again; an unfinished bundle keeps its steps"
    assert [signal.getsignal(each) for each in process.SIGNALS] == before


def test_a_signal_that_only_torchrun_handles_has_a_name() -> None:
    assert str(process.interruption(signal.SIGQUIT)) == "interrupted by SIGQUIT"


def test_work_that_leaves_no_bundle_has_a_hint_of_its_own() -> None:
    with pytest.raises(InterruptedRunError) as caught, stoppable("nothing was submitted"):
        signal.raise_signal(signal.SIGINT)
    assert caught.value.hint == "nothing was submitted"
    with stoppable("nothing was submitted"):
        with suppress(Exception):
            signal.raise_signal(signal.SIGINT)
        pending = process.pending_interruption()
        assert pending.hint == "nothing was submitted"
        with pytest.raises(InterruptedRunError) as caught:
            raise_if_interrupted()
        assert caught.value.hint == "nothing was submitted"


def test_a_library_that_catches_everything_does_not_swallow_it() -> None:
    with stoppable():
        with suppress(Exception):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # a second one changes nothing
        with pytest.raises(InterruptedRunError, match="by Ctrl-C"):
            raise_if_interrupted()
        assert str(process.pending_interruption()) == "interrupted by Ctrl-C"


def test_what_is_written_down_is_not_disturbed() -> None:
    with stoppable():
        with interruption_deferred():
            signal.raise_signal(signal.SIGINT)
            raise_if_interrupted()
        with pytest.raises(InterruptedRunError):
            raise_if_interrupted()


def test_nothing_is_left_of_an_earlier_interruption() -> None:
    with pytest.raises(InterruptedRunError), stoppable():
        signal.raise_signal(signal.SIGINT)
    with stoppable():
        raise_if_interrupted()
        assert process.pending_interruption() is None


class Careless:
    """An object whose deletion raises a signal."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def delete_carelessly() -> None:
    thing = Careless()
    del thing
    time.sleep(10)
    pytest.fail("the interruption was lost")


@pytest.mark.world
def test_an_interruption_inside_del_is_raised_again() -> None:
    with pytest.raises(InterruptedRunError, match="by Ctrl-C"), stoppable():
        delete_carelessly()


@pytest.mark.world
def test_ctrl_c_inside_del_in_a_program_is_raised_again() -> None:
    with pytest.raises(KeyboardInterrupt), process.never_dropped():
        delete_carelessly()


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            signal.raise_signal(signal.SIGHUP)
            raise_if_interrupted()
    finally:
        signal.signal(signal.SIGHUP, before)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]


@pytest.mark.world
def test_a_child_that_is_still_starting_gets_the_signal_when_it_can_end_in_order() -> None:
    code = (
        f"{READY} time.sleep(0.5)\n"  # as Python imports
        "from workload.contract.process import stoppable\n"
        "from workload.contract.errors import InterruptedRunError\n"
        "try:\n"
        "    with stoppable(): time.sleep(20)\n"
        "except InterruptedRunError as error: print(error); raise SystemExit(130)"
    )
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        if line == "ready":
            os.kill(os.getpid(), signal.SIGINT)

    ended = run_child(python(code), on_line=hear)
    assert lines == ["ready", "interrupted by Ctrl-C"]
    assert (ended.code, ended.signal, ended.error()) == (130, signal.SIGINT, None)


@pytest.mark.world
def test_a_third_signal_kills_a_child_that_does_not_end() -> None:
    def press(_: str) -> None:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)

    ended = run_child(python(f"{READY} time.sleep(30)"), on_line=press)
    assert (ended.code, ended.signal) == (-signal.SIGKILL, signal.SIGINT)
    assert str(ended.error()) == "interrupted by Ctrl-C"


@pytest.mark.world
def test_a_program_that_repeats_sigterm_does_not_kill_a_child_that_is_ending() -> None:
    code = (
        "import time; from workload.contract.process import stoppable\n"
        "with stoppable():\n"
        "    try: print('ready', flush=True); time.sleep(30)\n"
        "    finally: print('ending', flush=True); time.sleep(0.3); print('ended', flush=True)"
    )
    lines: list[str] = []

    def press(line: str) -> None:
        lines.append(line)
        for _ in range({"ready": 1, "ending": 3}.get(line, 0)):
            os.kill(os.getpid(), signal.SIGTERM)

    ended = run_child(python(code), on_line=press)
    assert lines == ["ready", "ending", "ended"]
    assert (ended.code, ended.signal) == (1, signal.SIGTERM)


@pytest.mark.world
def test_a_follower_hears_a_child_and_can_end_it() -> None:
    code = (
        "import sys, time; from workload.contract.process import stoppable\n"
        "try:\n"
        "    with stoppable(): print('ready', flush=True); time.sleep(30)\n"
        "except BaseException as error: print(f'error: {error}', file=sys.stderr); raise SystemExit(130)"
    )
    before = signal.getsignal(signal.SIGTERM)
    messages, lines, children = list[str](), list[str](), list["subprocess.Popen[str]"]()

    def hear(line: str) -> None:
        lines.append(line)
        assert signal.getsignal(signal.SIGTERM) is before, "signals to this process are the follower's"
        children[0].send_signal(signal.SIGTERM)

    follower = Follower(on_message=messages.append, on_started=children.append)
    ended = run_child(python(code), on_line=hear, follower=follower)
    assert (lines, messages) == (["ready"], ["error: interrupted by SIGTERM"])
    assert (ended.code, ended.signal, ended.error()) == (130, None, None)


@pytest.mark.world
def test_a_child_that_does_not_end_is_killed_with_its_own() -> None:
    """The child ignores signals, and its own child, in another session, gets none."""
    grandchild = python("import time; print('ready', flush=True); time.sleep(60)")
    child = (
        "import subprocess, time; from workload.contract import process\n"
        "process.ORPHAN_LIMIT_S = 0.2; process.end_with_parent()\n"
        "with process.handled_by(lambda *_: None):\n"
        f"    other = subprocess.Popen({grandchild!r}, stdout=subprocess.PIPE, start_new_session=True)\n"
        "    other.stdout.readline(); print(other.pid, flush=True)\n"
        "    while True: time.sleep(1)"
    )
    show = "lambda line: print(line, flush=True)"
    follower = "Follower(on_message=print, on_started=lambda child: print(child.pid, flush=True))"
    parent = (
        "from workload.contract.process import Follower, run_child; "
        f"run_child({python(child)!r}, on_line={show}, follower={follower})"
    )
    with subprocess.Popen(python(parent), stdout=subprocess.PIPE, text=True) as started:
        pids = [int(started.stdout.readline()) for _ in range(2)]
        started.kill()
    until(lambda: not any(map(is_running, pids)))


@pytest.mark.world
def test_a_child_ends_in_order_when_its_parent_is_killed(tmp_path: Path) -> None:
    child = (
        "import time; from workload.contract import process\n"
        "process.end_with_parent()\n"
        "try:\n"
        "    with process.stoppable(): print('ready', flush=True); time.sleep(30)\n"
        f"finally: open({str(tmp_path / 'said')!r}, 'w').write(str(process.interruption(15)))"
    )
    show = "lambda line: print(line, flush=True)"
    parent = f"from workload.contract.process import run_child; run_child({python(child)!r}, on_line={show})"
    with subprocess.Popen(python(parent), stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout.readline() == "ready\n"
        started.kill()
    said = until(lambda: (tmp_path / "said").exists() and (tmp_path / "said").read_text())
    assert said == "interrupted: the process that started this run has ended"
