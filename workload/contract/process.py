"""The life of our processes: entry, output, children, and signals that end them. Standard library only.

Ctrl-C, SIGTERM and a closed terminal let this process and its child save their work.

A signal raises `InterruptedRunError` wherever the main thread is. A library may catch the error, and Python itself
drops errors inside a `__del__` or a weakref callback. Therefore the signal is also remembered:
`raise_if_interrupted` raises the error again between two steps, and `never_dropped` soon repeats an error that Python
dropped.
"""

import atexit
import errno
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Protocol, TextIO, cast

from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
    ToolError,
)
from workload.contract.operating_system import (
    CAUSES,
    LEAST_CRASH,
    PIPE_ENCODING,
    SIGKILL,
    SIGNALS,
    signal_main_thread,
    signals_blocked,
    start_child,
    unblock_signals,
    wait_until_stdin_closes,
)

RUN_HINT = "run again; an unfinished bundle keeps its steps"
# Environment variable of a child whose stdin is a pipe from its parent. The child ends when the pipe is closed.
LIFELINE = "ROOFLAUNCH_LIFELINE"
# Users may press Ctrl-C twice, and a closing window sends two signals. A third signal kills the child.
SIGNALS_UNTIL_KILLED = 3
# A trainer whose launcher is gone is killed after this time, even if its bundle is not sealed yet: somebody who
# kills the launcher needs the machine. On a busy machine the trainer then ends within 15 s.
ORPHAN_LIMIT_S = 11.0
# After this time the callback that dropped the interruption has returned.
AGAIN_S = 0.05


class _Watch:
    """State of one `stoppable` block: the first signal in the block, and the hint of the error.

    `dropped`: Python dropped the error; the next signal raises the error again. `deferrals`: number of
    `interruption_deferred` blocks around the running code; a signal raises the error only if this is 0.
    """

    def __init__(self, hint: str) -> None:
        self.process, self.hint = os.getpid(), hint
        self.signal: int | None = None
        self.dropped = False
        self.deferrals = 0

    def handle(self, number: int, _: object) -> None:
        if os.getpid() != self.process:
            _end_fork(number)
            return
        if self.signal is not None and not self.dropped:
            return
        self.signal, self.dropped = self.signal or number, False
        if not self.deferrals:
            raise interruption(self.signal, self.hint)


def _end_fork(number: int) -> None:
    """End this process, a fork of the run's, on SIGTERM, as `multiprocessing` expects. Ctrl-C is the run's own affair.

    Data workers ignore SIGTERM too, which Slurm sends to all processes: the trainer ends its workers itself.
    """
    worker = sys.modules.get("torch.utils.data._utils.worker")
    if number == signal.SIGTERM and getattr(worker, "_worker_info", None) is None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


_watch: _Watch | None = None
_parent_is_gone = False


def interruption(number: int, hint: str = RUN_HINT) -> InterruptedRunError:
    """Error for the signal `number`; its message names the cause of the signal."""
    is_orphan = number == signal.SIGTERM and _parent_is_gone
    cause = CAUSES.get(number) or f"interrupted by {signal.Signals(number).name}"  # torchrun handles SIGQUIT too
    cause = "interrupted: the process that started this run has ended" if is_orphan else cause
    return InterruptedRunError(cause, hint=hint)


@contextmanager
def stoppable(hint: str = RUN_HINT) -> Iterator[None]:
    """Raise `InterruptedRunError` on the first signal; later signals change nothing, so that the bundle gets sealed.

    `hint`: hint of the error. Signals that `run_child` blocked while this process started are delivered now.
    """
    global _watch  # noqa: PLW0603 - a signal handler is the process's too
    outer, _watch = _watch, _Watch(hint)
    try:
        with handled_by(_watch.handle), never_dropped():
            unblock_signals()
            yield
    finally:
        _watch = outer


def raise_if_interrupted() -> None:
    """Raise `InterruptedRunError` if a signal has come since `stoppable` began."""
    if _watch is not None and _watch.signal is not None and not _watch.deferrals:
        raise interruption(_watch.signal, _watch.hint)


def pending_interruption() -> InterruptedRunError | None:
    """Error for the signal since `stoppable` began, even if it was raised and caught; None without a signal."""
    return None if _watch is None or _watch.signal is None else interruption(_watch.signal, _watch.hint)


@contextmanager
def interruption_deferred() -> Iterator[None]:
    """Delay interruptions until the block ends, so that measurements get written completely."""
    if _watch is None:
        with handled_by(lambda *_: None):
            yield
        return
    watch = _watch
    watch.deferrals += 1
    try:
        yield
    finally:
        watch.deferrals -= 1


def ignore_signals() -> None:
    """Ignore signals until the process ends: a signal during Python's own exit would show a traceback."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            # Not SIG_IGN: Python would report an error for a signal that arrived before and was not handled yet.
            signal.signal(number, lambda *_: None)


@contextmanager
def never_dropped() -> Iterator[None]:
    """Raise an interruption again if Python dropped it, in a `__del__` or a weakref callback."""
    before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def interrupt_again() -> None:
        if _watch is not None:
            _watch.dropped = True
        signal_main_thread((_watch and _watch.signal) or signal.SIGINT)

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, InterruptedRunError | KeyboardInterrupt):
            before(dropped)
            return
        timers.append(threading.Timer(AGAIN_S, interrupt_again))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()


@dataclass(frozen=True, kw_only=True)
class ChildEnd:
    """End of a child process.

    `code`: exit status, or -N if signal N killed the child. `signal`: first signal that this process received, if any.
    `out_of_memory`: the kernel killed a process for lack of memory while the child ran.
    """

    code: int
    signal: int | None
    out_of_memory: bool

    def error(self) -> RooflaunchError | None:
        """Error of a child that was interrupted or killed.

        None for a trainer that ended by itself: it has reported its own errors.
        """
        if self.signal is not None and self.code != ExitCode.INTERRUPTED:
            return interruption(self.signal)
        if self.code == -SIGKILL and self.out_of_memory:
            return OutOfDeviceMemoryError(
                "the trainer was killed because memory ran out",
                hint="a smaller --batch-size, fewer --workers, or a machine with more memory",
            )
        if self.code >= LEAST_CRASH:
            return RunFailedError(
                f"the trainer crashed (Windows status {self.code:#010x}); its bundle keeps the steps so far",
                hint="try a smaller --batch-size; 0xc0000135 and 0xc000007b: install the Visual C++ Redistributable",
            )
        return killed_error(-self.code) if self.code < 0 else None


@dataclass(frozen=True, kw_only=True)
class Follower:
    """Receiver of a child's messages, in place of the terminal; it must also handle the signals.

    `on_message` is called with each line of stderr, in a thread. `on_started` is called with the child when it runs.
    `apart`: start the child in its own process group, which Ctrl-C in our terminal does not reach.
    """

    on_message: Callable[[str], None]
    on_started: Callable[["Child"], None]
    apart: bool = False


class Child(Protocol):
    """A process that `run_child` follows; `subprocess.Popen` is one. `wait` returns None if it has never begun."""

    @property
    def stdin(self) -> IO[Any] | None: ...

    @property
    def stdout(self) -> Iterable[str] | None: ...

    @property
    def stderr(self) -> Iterable[str] | None: ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def send_signal(self, sig: int, /) -> None: ...

    def wait(self) -> int | None: ...


class Forking(Protocol):
    """Starts a command as a fork; None if it must be a fresh process. See `workload.contract.trainer.Forks.child`."""

    def __call__(self, command: Sequence[str], *, reads_stderr: bool, apart: bool) -> Child | None: ...


def run_child(
    command: Sequence[str],
    *,
    on_line: Callable[[str], None],
    follower: Follower | None = None,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    forking: Forking | None = None,
) -> ChildEnd:
    """Run `python -m workload …`, pass signals on to it, and wait for its end; `on_line` gets its stdout by line.

    `folder`: the child's working folder, by default that of this process; `variables`: environment variables to add.
    `forking`: starts the child as a fork if it can.

    The child starts with signals blocked, until it can save its work. It ends if this process ends, even by SIGKILL.
    """
    signals: list[int] = []
    kills_before = _out_of_memory_kills()
    child: Child | None = None
    reads_stderr, apart = follower is not None, bool(follower and follower.apart)

    def pass_on(number: int, _: object) -> None:
        signals.append(number)
        if child is None:
            return
        if number == signal.SIGTERM and _parent_is_gone and child.stdin is not None:
            # The child ends when its stdin closes, and can report why.
            child.stdin.close()
        else:
            # Repeated SIGTERM does not kill: programs may repeat SIGTERM, and can send SIGKILL themselves.
            impatient = len(signals) >= SIGNALS_UNTIL_KILLED and number != signal.SIGTERM
            child.send_signal(SIGKILL if impatient else number)

    def fork() -> Child | None:
        can_fork = forking is not None and folder is None and not variables
        return forking(command, reads_stderr=reads_stderr, apart=apart) if forking and can_fork else None

    def fresh() -> Child:
        return start_child(
            command,
            apart=apart,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if reads_stderr else None,
            text=True,
            encoding=PIPE_ENCODING,
            errors="replace",
            cwd=folder,
            env={**os.environ, **(variables or {}), LIFELINE: "stdin"},
        )

    code: int | None = None
    with nullcontext() if follower else handled_by(pass_on):
        for start in (fork, fresh):
            with signals_blocked():
                child = start()
            if child is None:
                continue
            with child, _messages_passed_on(child, follower):
                for line in child.stdout or ():
                    on_line(line.rstrip("\n"))
                code = child.wait()
            if code is not None:
                break
    assert code is not None
    out_of_memory = _out_of_memory_kills() > kills_before
    return ChildEnd(code=code, signal=signals[0] if signals else None, out_of_memory=out_of_memory)


@contextmanager
def _messages_passed_on(child: Child, follower: Follower | None) -> Iterator[None]:
    """Pass the child to its follower, and then every line of the child's stderr until stderr is closed."""
    if follower is None:
        yield
        return

    def pass_on() -> None:
        for line in child.stderr or ():
            follower.on_message(line.rstrip("\n"))

    reader = threading.Thread(target=pass_on)
    reader.start()
    follower.on_started(child)
    try:
        yield
    finally:
        reader.join()


def _out_of_memory_kills() -> int:
    """Number of processes that Linux has killed since boot because a container or the machine ran out of memory."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def end_with_parent() -> None:
    """Interrupt this process when its parent ends; do nothing without the environment variable `LIFELINE`.

    The end of the parent closes this process's stdin. `ORPHAN_LIMIT_S` seconds after the interruption, this process and
    its descendants are killed.
    """
    if os.environ.pop(LIFELINE, None) is None:
        return

    def watch() -> None:
        global _parent_is_gone  # noqa: PLW0603 - see `_watch`
        wait_until_stdin_closes()
        _parent_is_gone = True
        signal_main_thread(signal.SIGTERM)
        time.sleep(ORPHAN_LIMIT_S)
        kill_descendants()
        os.kill(os.getpid(), SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def signal_group(leader: "subprocess.Popen[Any]", number: int) -> None:
    """Send a signal to a child's process group, which it leads; on Windows to the child alone."""
    if sys.platform == "win32":
        leader.send_signal(number)
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)


def kill_descendants() -> None:
    """Kill the descendants of this process."""
    for process in _descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(process, SIGKILL)


def _descendants(process: int) -> list[int]:
    """Process ids of a process's descendants; empty on a system without /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    family = [process]
    for member in family:
        family += children.get(member, [])
    return family[1:]


def killed_error(number: int) -> RunFailedError:
    """Error for a trainer that a signal killed before it could seal its bundle."""
    name = signal.Signals(number).name
    cure = "if `dmesg` shows that memory ran out, try a smaller --batch-size" if number == SIGKILL else "run again"
    return RunFailedError(f"the trainer was killed by {name}; its bundle keeps the steps so far", hint=cure)


@contextmanager
def handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Call `handler(number, frame)` for signals during the block; SIGHUP stays ignored under `nohup`."""
    closed = SIGNALS[2]
    ignored = signal.getsignal(closed) is signal.SIG_IGN
    handled = [number for number in SIGNALS if not (ignored and number is closed)]
    before = [signal.signal(number, handler) for number in handled]
    try:
        yield
    finally:
        for number, previous in zip(handled, before, strict=True):
            signal.signal(number, previous)


# --- entry of all four programs
# A command's work continues if its output cannot be written. A pipe whose reader has ended (`launch local | head`) is
# no error, and does not change the exit code. If the output is lost for another reason (a full disk), a command that
# did its work exits with 4. Messages on stderr that cannot be written are dropped.


# Variables by which profilers and other tools load their own code into a process. They may write their data when the
# process exits normally.
TOOLS = ("CUDA_INJECTION64_PATH", "LD_PRELOAD")
# Errors of a pipe whose reader has ended. Windows reports EINVAL: https://github.com/python/cpython/issues/79935.
NO_READER = (errno.EPIPE, errno.EINVAL) if sys.platform == "win32" else (errno.EPIPE,)


class TolerantStream:
    """Text stream that drops output it cannot write and keeps the first error. All other calls go to `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write `text`, or drop it if the stream fails."""
        with self._errors_dropped():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream; if that fails, drop what was written and keep the error."""
        with self._errors_dropped():
            self._stream.flush()

    @contextmanager
    def _errors_dropped(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error
            # Send the rest of the buffer to /dev/null, now and when Python flushes it at exit.
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def enter(run: Callable[[], int]) -> int:
    """Run a command and return its exit code, or the exit code for lost output or for Ctrl-C."""
    code: int
    open_standard_streams()
    # In files and pipes, Windows uses an encoding that lacks many characters.
    for stream in (sys.stdout, sys.stderr) if sys.platform == "win32" else ():
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")
    out, err = TolerantStream(sys.stdout), TolerantStream(sys.stderr)
    with redirect_stdout(cast("TextIO", out)), redirect_stderr(cast("TextIO", err)):
        try:
            with never_dropped():
                code = run()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = ExitCode.INTERRUPTED
        except OSError as error:
            explained = _explained(error)
            if explained is None:
                raise
            print(explained.report(), file=sys.stderr)
            code = int(explained.exit_code)
        except SystemExit as done:  # argparse raises SystemExit after --help
            code = done.code if isinstance(done.code, int) else ExitCode.DONE
        # Ctrl-C reaches a child twice, from the terminal and from its launcher. Python's own exit must not be
        # interrupted.
        ignore_signals()
        out.flush()
        if out.error is not None and out.error.errno not in NO_READER:
            lost = ToolError(
                f"standard output cannot be written: {out.error.strerror}",
                hint="the work itself is done; print its result again, to another file",
            )
            print(lost.report(), file=sys.stderr)
            code = code or int(lost.exit_code)
        err.flush()
    return code


_may_end_quickly = False


def allow_quick_end() -> None:
    """Allow `end` to skip the cleaning up of Python's own exit, which takes a second or more once torch is loaded."""
    global _may_end_quickly  # noqa: PLW0603 - a fact of the process
    _may_end_quickly = True


def end(code: int, *, is_alone: bool) -> NoReturn:
    """Exit with `code`. Uses `end_quickly` if `allow_quick_end` was called before, else Python's own exit.

    `is_alone`: False if a tool such as cProfile runs the trainer in its own process. The tool has work to do after the
    trainer, so the exit is Python's own.
    """
    if is_alone and _may_end_quickly:
        end_quickly(code)
    sys.exit(code)


def end_quickly(code: int) -> NoReturn:
    """End this process with `code`; its memory is freed by the system, not object by object.

    With torch imported, Python's own exit takes a second of CPU time. This end too waits for other threads, calls the
    functions of `atexit`, and writes what open files still buffer. A process into which a tool has been loaded exits
    normally.
    """
    if any(os.environ.get(name) for name in TOOLS):
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing ends its processes
    atexit._run_exitfuncs()  # noqa: SLF001 - the same
    # `isinstance` would raise an error for a weak reference whose object is gone.
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    files = [each for each in gc.get_objects() if issubclass(type(each), kinds)]
    # A text file passes its text on to a file of bytes, so text files come first. The streams may be the script's own.
    files.sort(key=lambda each: type(each) in kinds[1:])
    for stream in (sys.stdout, sys.stderr, *files):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _explained(error: OSError) -> RooflaunchError | None:
    """User error for a full disk; None for other errors of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while writing '{error.filename}'" if error.filename else " while a file was written"
        return ToolError(f"{error.strerror}{where}", hint="free some space (df -h; quota -s), then run again")
    return None


def open_standard_streams() -> None:
    """Connect a closed stdin, stdout or stderr to /dev/null.

    Otherwise the next opened file would get the closed stream's file descriptor, and with it the stream's output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # os.open takes the lowest free file descriptor, which is `number`.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - stays open
