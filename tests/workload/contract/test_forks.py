"""A start server and its client, with a trainer that imports nothing: it executes the word after `train`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import is_running, until
from workload.contract import trainer
from workload.contract.process import ChildEnd, Follower, run_child
from workload.contract.trainer import Forks

pytestmark = [pytest.mark.world, pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")]

ROOT = Path(__file__).parents[3]
# `before` is executed in the server, `after` in a fork before it begins.
TRAINER = """
import os, signal, sys, time, types
sys.path.insert(0, {root!r})
from workload.contract import process
from workload.run import start_server

def run():
    process.end_with_parent()
    with process.stoppable():
        return eval(sys.argv[2]) or 0

if sys.argv[1:] == ["start-server"]:
    start_server.PRELOADED, start_server.OPTIONAL = (), "absent"
    generator = types.SimpleNamespace(seed=lambda: None)
    sys.modules["torch"] = types.SimpleNamespace(default_generator=generator)
    sys.modules["numpy"] = types.SimpleNamespace(random=generator)
    exec(os.environ.get("BEFORE", ""))
    start_server.serve(run)
else:
    sys.exit(run())
"""
FACTS = """
print(__import__("json").dumps(dict(
    words=sys.argv[1:],
    folder=os.getcwd(),
    variables=sorted(map(str, os.environ.items())),
    files=sorted(os.listdir("/proc/self/fd")),
    kinds=[os.fstat(number).st_mode for number in range(3)],
    handlers=[repr(signal.getsignal(number)).partition(" at ")[0] for number in sorted(signal.valid_signals())],
    masks=[line for line in open("/proc/self/status") if line.startswith(("Sig", "Shd")) and "SigQ" not in line],
    in_group_of_its_own=os.getpgid(0) == os.getpid(),
    session=os.getsid(0),
    threads=len(os.listdir("/proc/self/task")),
    limits=open("/proc/self/limits").read(),
    streams=[(each.encoding, each.errors, each.line_buffering) for each in (sys.stdin, sys.stdout, sys.stderr)],
    start=__import__("workload.contract.trainer").contract.trainer.this_start(),
)))
"""


class Terminal:
    """Follows runs, and keeps what they print, and what the client tells."""

    def __init__(self) -> None:
        self.told, self.lines, self.messages = list[str](), list[str](), list[str]()
        self.children: list[Any] = []
        self.forks = Forks(self.told.append)
        self.on_line: Callable[[str], object] = lambda _: None

    def run(self, expression: str, *, forked: bool = True, apart: bool = False, **options: Any) -> ChildEnd:
        self.lines.clear()
        self.messages.clear()

        def hear(line: str) -> None:
            self.lines.append(line)
            self.on_line(line)

        return run_child(
            [*trainer.TRAINER, "train", expression],
            on_line=hear,
            follower=Follower(on_message=self.messages.append, on_started=self.children.append, apart=apart),
            forking=self.forks.child if forked else None,
            **options,
        )

    @property
    def server(self) -> int:
        assert self.forks._server
        return self.forks._server._process.pid


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that imports nothing."""
    program = tmp_path / "trainer.py"
    program.write_text(TRAINER.format(root=str(ROOT)))
    monkeypatch.setattr(trainer, "TRAINER", (sys.executable, "-P", str(program)))


@pytest.fixture
def terminal(program: None) -> Iterator[Terminal]:  # noqa: ARG001 - the program of its runs
    terminal = Terminal()
    with terminal.forks:
        yield terminal


def launcher(do: str) -> list[str]:
    """Command of a process that executes `do`, in which `run(expression)` forks a run and returns its exit code."""
    program = f"""
import sys, time; sys.path.insert(0, {str(ROOT)!r})
from workload.contract import trainer, process
trainer.TRAINER = {trainer.TRAINER!r}
asked = trainer.Forks(print)
def run(expression):
    command = [*trainer.TRAINER, "train", expression]
    return process.run_child(command, on_line=lambda line: print(line, flush=True), forking=asked.child).code
{do}
"""
    return [sys.executable, "-c", program]


@pytest.mark.parametrize("apart", [False, True])
def test_a_fork_differs_from_a_fresh_process_in_nothing_that_a_run_can_see(terminal: Terminal, apart: bool) -> None:
    def facts(*, forked: bool) -> dict[str, Any]:
        assert terminal.run(f"exec({FACTS!r})", forked=forked, apart=apart).code == 0, terminal.messages
        return dict(json.loads(terminal.lines[0]))

    fresh, forked, again = facts(forked=False), facts(forked=True), facts(forked=True)
    assert (fresh.pop("start"), forked.pop("start"), again.pop("start")) == ("fresh", "forked", "forked")
    assert set(forked.pop("variables")) ^ set(fresh.pop("variables")) == set()
    assert {name: value for name, value in forked.items() if value != fresh[name]} == {}
    assert again.items() >= forked.items()
    assert fresh["in_group_of_its_own"] == apart
    assert not terminal.told


@pytest.mark.slow
@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler])
def test_ignored_signals_stay_ignored_in_a_fork(terminal: Terminal, handler: Any) -> None:
    """As under nohup, or in the background of a shell."""
    expression = "print(repr(signal.getsignal(signal.SIGHUP)), repr(signal.getsignal(signal.SIGINT)))"
    before = [signal.signal(number, handler) for number in (signal.SIGHUP, signal.SIGINT)]
    try:
        terminal.run(expression, forked=False)
        fresh = terminal.lines[0].split(" at ")[0]
        terminal.run(expression)
    finally:
        for number, previous in zip((signal.SIGHUP, signal.SIGINT), before, strict=True):
            signal.signal(number, previous)
    assert terminal.lines[0].split(" at ")[0] == fresh


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("0", 0),
        ("6", 6),
        ("1 / 0", 1),
        ("os._exit(9)", 9),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_exit_codes_and_output_are_those_of_a_process(terminal: Terminal, expression: str, code: int) -> None:
    def seen(*, forked: bool) -> tuple[int, list[str], str]:
        printing = "print('a', end='') or print('b', file=sys.stderr)"
        ended = terminal.run(f"{printing} or {expression}", forked=forked)
        return ended.code, list(terminal.lines), terminal.messages[-1]

    fresh, forked = seen(forked=False), seen(forked=True)
    assert forked == fresh
    assert fresh[0] == code
    assert terminal.run("5").code == 5
    assert not terminal.told


@pytest.mark.slow
def test_exit_hooks_of_a_run_are_called_and_no_other_run_s(terminal: Terminal) -> None:
    hook = "__import__('atexit').register(print, 'hook of', os.getpid())"
    thread = "__import__('threading').Thread(target=lambda: time.sleep(0.1) or print('thread')).start()"
    for _ in range(2):
        terminal.run(f"print(os.getpid()) or {hook} and {thread}")
        assert terminal.lines == [terminal.lines[0], "thread", f"hook of {terminal.lines[0]}"]


def test_runs_of_one_server_have_one_parent_and_random_numbers_of_their_own(terminal: Terminal) -> None:
    drawn = set()
    for _ in range(2):
        terminal.run("print(os.getppid(), __import__('random').random())")
        drawn.add(terminal.lines[0].split()[1])
        assert int(terminal.lines[0].split()[0]) == terminal.server
    assert len(drawn) == 2
    before = terminal.server
    terminal.forks.end()
    assert not is_running(before)
    terminal.run("print(os.getppid())")
    assert terminal.lines != [str(before)]


@pytest.mark.parametrize(
    "command",
    [
        ("-c", "print(1)"),
        ("-P", "-m", "rooflaunch", "train"),
        ("-P", "-m", "workload", "profile", "x"),
        ("-m", "workload", "train"),
        ("-P", "-m", "workload"),
    ],
)
def test_other_commands_are_fresh(command: tuple[str, ...]) -> None:
    with Forks(pytest.fail) as asked:
        assert asked.child((sys.executable, *command), reads_stderr=True, apart=True) is None
        assert asked.child(("env", "A=1", *trainer.TRAINER, "train"), reads_stderr=True, apart=True) is None
        assert asked._server is None


@pytest.mark.slow
def test_another_folder_or_variable_makes_a_fresh_process(terminal: Terminal, tmp_path: Path) -> None:
    for options in ({"folder": tmp_path}, {"variables": {"A": "1"}}):
        terminal.run("print(os.getppid())", **options)
        assert terminal.lines == [str(os.getpid())]


def test_a_variable_that_was_changed_makes_a_new_server(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.run("print(os.environ.get('OMP_NUM_THREADS'))")
    before = terminal.server
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    terminal.run("print(os.environ['OMP_NUM_THREADS'])")
    assert terminal.lines == ["7"]
    assert terminal.server != before
    assert not is_running(before)


def test_a_signal_reaches_the_run_once_and_the_server_not(terminal: Terminal) -> None:
    terminal.on_line = lambda line: line == "ready" and terminal.children[-1].send_signal(signal.SIGTERM)
    ended = terminal.run("print('ready', flush=True) or time.sleep(60)")
    assert (ended.code, terminal.messages[-1].split(": ", 1)[1]) == (1, "interrupted by SIGTERM")
    assert terminal.run("4").code == 4
    terminal.children[-1].send_signal(signal.SIGTERM)  # after its end
    assert not terminal.told


@pytest.mark.usefixtures("program")
def test_ctrl_c_of_a_terminal_reaches_the_run_once_and_the_server_not() -> None:
    """A terminal signals the whole group: this launcher, its server and the run."""
    command = launcher(
        """print(run("print('ready', flush=True) or time.sleep(60)"), flush=True); print(run("7"), flush=True)"""
    )
    with subprocess.Popen(command, text=True, stdout=-1, stderr=-1, start_new_session=True) as started:
        assert started.stdout.readline() == "ready\n"
        os.killpg(started.pid, signal.SIGINT)
        out, err = started.communicate()
    assert out.splitlines() == ["1", "7"]
    assert err.count("InterruptedRunError") == 1


def test_a_signal_before_the_run_has_begun_ends_it_at_its_beginning(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent = tmp_path / "sent"
    monkeypatch.setenv("BEFORE", f"while not os.path.exists({str(sent)!r}): time.sleep(0.01)")

    def interrupt(child: Any) -> None:
        child.send_signal(signal.SIGINT)
        sent.touch()

    follower = Follower(on_message=terminal.messages.append, on_started=interrupt)
    ended = run_child(
        # The signal is sent when the client hears of the beginning: a shorter run could be over before.
        [*trainer.TRAINER, "train", "time.sleep(60) or print('measured')"],
        on_line=pytest.fail,
        follower=follower,
        forking=terminal.forks.child,
    )
    assert (ended.code, "interrupted by Ctrl-C" in terminal.messages[-1]) == (1, True)


def test_a_run_that_is_killed_before_it_has_begun_does_not_start_again(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEFORE", "time.sleep(60)")
    follower = Follower(on_message=pytest.fail, on_started=lambda child: child.send_signal(signal.SIGKILL))
    command = [*trainer.TRAINER, "train", "print('measured')"]
    ended = run_child(command, on_line=pytest.fail, follower=follower, forking=terminal.forks.child)
    assert ended.code == -signal.SIGKILL


def test_a_server_that_is_killed_takes_its_run_with_it_and_the_next_run_is_fresh(terminal: Terminal) -> None:
    runs: list[int] = []

    def kill(line: str) -> None:
        runs.append(int(line))
        os.kill(terminal.server, signal.SIGKILL)

    terminal.on_line = kill
    ended = terminal.run("print(os.getpid(), flush=True) or time.sleep(60)")
    assert ended.code == -signal.SIGKILL
    until(lambda: not is_running(runs[0]))
    assert terminal.told == [f"the start server failed: it has ended; {trainer.FRESH_NOTE}"]
    terminal.on_line = lambda _: None
    terminal.run("print(os.getppid())")
    assert terminal.lines == [str(os.getpid())]
    assert len(terminal.told) == 1


def test_a_server_that_is_killed_between_runs_costs_nothing_but_a_line(terminal: Terminal) -> None:
    terminal.run("0")
    os.kill(terminal.server, signal.SIGKILL)
    assert terminal.run("print(os.getppid()) or 3").code == 3
    assert terminal.lines == [str(os.getpid())]
    assert len(terminal.told) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("raise ImportError('no torch')", "it has ended"),
        ("time.sleep(60)", "it did not answer for 0.6 s"),
        ("def fork(): raise OSError(11, 'no process is left')\nos.fork = fork", "[Errno 11] no process is left"),
        (
            "start_server.BEGIN_LIMIT_MS = 200; os.register_at_fork(after_in_child=lambda: time.sleep(60))",
            "a fork did not begin",
        ),
    ],
)
def test_where_a_server_cannot_fork_the_run_is_fresh(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, before: str, why: str
) -> None:
    monkeypatch.setenv("BEFORE", before)
    if "0.6" in why:
        monkeypatch.setattr(trainer, "START_LIMIT_S", 0.3)
        monkeypatch.setattr(trainer, "ANSWER_LIMIT_S", 0.3)
    ended = terminal.run("print(os.getppid()) or 3")
    assert (ended.code, terminal.lines) == (3, [str(os.getpid())])
    assert terminal.told == [f"the start server failed: {why}; {trainer.FRESH_NOTE}"]
    assert len(terminal.children) == 2
    assert terminal.run("3").code == 3
    assert len(terminal.children) == 3


def test_a_stopped_server_goes_on_when_it_is_needed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: str = "") -> None:
        # The limit of the next answer alone: once the server goes on, it has the usual time.
        terminal.forks._server.limit_s = 0.3
        os.kill(terminal.server, signal.SIGSTOP)

    terminal.run("0")
    stop()
    assert terminal.run("5").code == 5
    terminal.on_line = stop
    assert terminal.run("print(os.getppid(), flush=True) or 6").code == 6
    assert terminal.lines == [str(terminal.server)]
    server = terminal.server
    stop()
    monkeypatch.setattr(trainer, "ANSWER_LIMIT_S", 0.3)
    terminal.forks.end()
    assert not is_running(server)
    assert not terminal.told


@pytest.mark.usefixtures("program")
def test_a_server_ends_with_its_launcher_and_the_run_in_order(tmp_path: Path) -> None:
    """The launcher is killed: the run is told so, and can save its work, before the server ends."""
    said = tmp_path / "said"
    run = (
        "exec('''try:\\n print(os.getpid(), os.getppid(), flush=True); time.sleep(60)\\n"
        f"finally: open({str(said)!r}, \"w\").write(str(process.interruption(15)))''')"
    )
    with subprocess.Popen(launcher(f"run({run!r})"), text=True, stdout=-1, stderr=-1) as started:
        processes = [int(word) for word in started.stdout.readline().split()]
        started.kill()
        until(lambda: not any(map(is_running, processes)))
    assert said.read_text() == "interrupted: the process that started this run has ended"


@pytest.mark.slow
def test_nothing_stays_open(terminal: Terminal) -> None:
    terminal.run("0")
    terminal.forks.end()
    terminal.children.clear()
    before = open_files()
    for _ in range(3):
        terminal.run("0")
        terminal.children.clear()
    terminal.forks.end()
    # Files that earlier tests left open may be closed meanwhile.
    assert open_files() <= before


def open_files() -> set[str]:
    """Names of this process's open files; each socket and pipe has its own."""
    return {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


@pytest.mark.usefixtures("program")
def test_without_pidfds_every_run_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with Forks(pytest.fail) as asked:
        assert asked.child([*trainer.TRAINER, "train"], reads_stderr=True, apart=True) is None


@pytest.mark.parametrize("tool", ["LD_PRELOAD", "CUDA_INJECTION64_PATH"])
def test_a_tool_that_forbids_forks_is_named_once(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tool, "/lib/tool.so")
    told: list[str] = []
    with Forks(told.append) as tried:
        for _ in range(2):
            assert tried.child([*trainer.TRAINER, "train"], reads_stderr=False, apart=False) is None
    assert told == [
        f"{tool} is set, so runs are not forked: each start takes seconds longer; unset it if it is no profiler's"
    ]
