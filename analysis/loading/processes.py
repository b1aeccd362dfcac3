"""Work shared among processes: this one, and others that import only what the work needs.

They are neither forks, because this process has threads (numpy, pyarrow), nor of `multiprocessing`, whose processes
run the user's script again if it lacks `if __name__ == "__main__"`.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Thread
from typing import IO, Any, TypeVar

from workload.contract import peaks

Part = TypeVar("Part")
Done = TypeVar("Done")

# Each process needs some 100 MB of memory.
MOST_PROCESSES = 8
# The other processes have the path of this one, so that they import the same modules.
CODE = "import sys; sys.path[:] = sys.argv[1:]; from analysis.loading.processes import serve; serve()"


def share(work: Callable[[Part], Done], parts: Sequence[Part]) -> list[Done]:
    """Results of `work` for all parts, in order; as many processes work as there are CPUs.

    `work` must be a function of a module. This process does what another process could not do, so that only this
    process raises errors.
    """
    waiting, done = deque(range(len(parts))), dict[int, Done]()
    others = list(_started(min(_cpus(), MOST_PROCESSES, len(parts)) - 1))
    threads = [Thread(target=_done_by, args=(other, work, parts, waiting, done), daemon=True) for other in others]
    try:
        for thread in threads:
            thread.start()
        while (number := _next(waiting)) is not None:
            done[number] = work(parts[number])
        for thread in threads:
            thread.join()
    finally:
        for other, thread in zip(others, threads, strict=True):
            other.kill()
            if thread.ident is not None:
                thread.join()
            with suppress(BrokenPipeError):
                other.__exit__(None, None, None)
    return [done[number] if number in done else work(part) for number, part in enumerate(parts)]


def serve() -> None:
    """Do the parts that `share` writes to stdin after the peaks in use, and write the results to stdout."""
    # Ctrl-C reaches all processes of a terminal. The one that shares its work ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    results, sys.stdout = sys.stdout.buffer, sys.stderr
    with suppress(EOFError, BrokenPipeError):
        peaks.use(pickle.load(sys.stdin.buffer))  # noqa: S301 - from the process that started this one
        while True:
            work, part = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
            _write(results, work(part))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _started(number: int) -> "Iterator[subprocess.Popen[bytes]]":
    """Processes that run `serve`; fewer than `number` if the machine cannot have more."""
    command = [sys.executable, "-P", "-c", CODE, *sys.path]
    pipe = subprocess.PIPE
    with suppress(OSError):
        for _ in range(number if sys.executable else 0):
            yield subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)


def _next(waiting: deque[int]) -> int | None:
    with suppress(IndexError):
        return waiting.popleft()
    return None


def _done_by(
    other: "subprocess.Popen[bytes]",
    work: Callable[[Part], Done],
    parts: Sequence[Part],
    waiting: deque[int],
    done: dict[int, Done],
) -> None:
    """Let another process do parts, as long as it lives."""
    assert other.stdin
    assert other.stdout
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        _write(other.stdin, peaks.in_use())
        while (number := _next(waiting)) is not None:
            _write(other.stdin, (work, parts[number]))
            done[number] = pickle.load(other.stdout)  # noqa: S301 - from a process that this one started


def _write(file: IO[bytes], value: Any) -> None:
    pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
    file.flush()
