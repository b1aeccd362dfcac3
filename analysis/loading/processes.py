"""Work shared among processes: this one, and others that import only what the work needs.

They are neither forks, because this process has threads (numpy, pyarrow), nor of `multiprocessing`, whose processes
run the user's script again if it lacks `if __name__ == "__main__"`.
"""

import atexit
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import IO, Any, Generic, TypeVar

from workload.contract import peaks

Part = TypeVar("Part")
Done = TypeVar("Done")

# Each process needs some 100 MB of memory.
MOST_PROCESSES = 8
# The other processes have the path of this one, so that they import the same modules.
CODE = "import sys; sys.path[:] = sys.argv[1:]; from analysis.loading.processes import serve; serve()"

# Processes that wait for further work; None if processes end after their work.
_spare: "list[subprocess.Popen[bytes]] | None" = None


def share(work: Callable[[Part], Done], parts: Sequence[Part]) -> list[Done]:
    """Results of `work` for all parts, in order; as many processes work as there are CPUs. See `Sharing`."""
    return Sharing(work, parts).results()


class Sharing(Generic[Part, Done]):
    """Work that other processes do from now on, and this one too as soon as it asks for the results.

    `work` must be a function of a module. This process does what another process could not do, so that only this
    process raises errors. The other processes end when nothing is left to do, or together with this process.
    """

    def __init__(self, work: Callable[[Part], Done], parts: Sequence[Part], *, others: int | None = None) -> None:
        """`others`: number of new processes; by default this process is one of as many as there are CPUs."""
        self._work, self._parts, self._is_reused = work, parts, others is None
        self._waiting, self._done = deque(range(len(parts))), dict[int, Done]()
        self._busy, self._threads = list["subprocess.Popen[bytes]"](), list[Thread]()
        waiting: list[subprocess.Popen[bytes]] = []
        if others is None:
            others = min(_cpus(), MOST_PROCESSES, len(parts)) - 1
            waiting = [_spare.pop() for _ in range(min(others, len(_spare)))] if _spare else []
        for other in (*waiting, *_started(others - len(waiting))):
            thread = Thread(target=self._done_by, args=(other,), daemon=True)
            try:
                self._busy.append(other)
                thread.start()
                self._threads.append(thread)
            except RuntimeError:  # the machine cannot have more threads
                self._release(other, is_usable=False)

    def results(self) -> list[Done]:
        """Results of all parts, in order. To be called once."""
        try:
            while (number := self._next()) is not None:
                self._done[number] = self._work(self._parts[number])
        except BaseException:
            self._waiting.clear()
            for other in tuple(self._busy):
                other.kill()
            raise
        finally:
            for thread in self._threads:
                thread.join()
        done = self._done
        return [done[number] if number in done else self._work(part) for number, part in enumerate(self._parts)]

    def _next(self) -> int | None:
        with suppress(IndexError):
            return self._waiting.popleft()
        return None

    def _done_by(self, other: "subprocess.Popen[bytes]") -> None:
        is_usable = False
        try:
            with suppress(OSError, EOFError, pickle.UnpicklingError):
                _answer(other, peaks.use, peaks.in_use())
                while (number := self._next()) is not None:
                    self._done[number] = _answer(other, self._work, self._parts[number])
                is_usable = True
        finally:
            self._release(other, is_usable=is_usable)

    def _release(self, other: "subprocess.Popen[bytes]", *, is_usable: bool) -> None:
        self._busy.remove(other)
        # Read once: `reused` may end meanwhile.
        spare = _spare
        if is_usable and self._is_reused and spare is not None:
            spare.append(other)
        else:
            _end(other)


@contextmanager
def reused() -> Iterator[None]:
    """Keep the other processes for further work until the block ends."""
    global _spare  # noqa: PLW0603 - processes of this process
    _spare = []
    try:
        yield
    finally:
        spare, _spare = _spare, None
        for other in spare:
            _end(other)


def serve() -> None:
    """Do the work that `Sharing` writes to stdin, and write the results to stdout."""
    # Ctrl-C reaches all processes of a terminal. The one that shares its work ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    results, sys.stdout = sys.stdout.buffer, sys.stderr
    with suppress(EOFError, BrokenPipeError):
        while True:
            work, part = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
            _write(results, work(part))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end(other: "subprocess.Popen[bytes]") -> None:
    other.kill()
    with suppress(BrokenPipeError):
        other.__exit__(None, None, None)


def _started(number: int) -> "Iterator[subprocess.Popen[bytes]]":
    """Processes that run `serve`; fewer than `number` if the machine cannot have more."""
    command = [sys.executable, "-P", "-c", CODE, *sys.path]
    pipe = subprocess.PIPE
    with suppress(OSError):
        for _ in range(number if sys.executable else 0):
            other = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            # After Ctrl-C, it would first complete its part, which may take seconds.
            atexit.register(other.kill)
            yield other


def _answer(other: "subprocess.Popen[bytes]", work: Callable[[Any], Any], part: Any) -> Any:
    """Result of `work` by another process. Raises `OSError`, `EOFError` or `UnpicklingError` if the process dies."""
    assert other.stdin
    assert other.stdout
    _write(other.stdin, (work, part))
    return pickle.load(other.stdout)  # noqa: S301 - from a process that this one started


def _write(file: IO[bytes], value: Any) -> None:
    pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
    file.flush()
