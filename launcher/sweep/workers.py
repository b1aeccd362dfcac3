"""Threads for work that waits for a network. A sweep that ends does not wait for them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """Daemon threads. The threads of a `ThreadPoolExecutor` would keep the interpreter from exiting."""

    def __init__(self, count: int) -> None:
        self._most = count
        self._threads: list[threading.Thread] = []
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Queue `work(*args, **options)` and return its future."""
        future: Future[T] = Future()
        if len(self._threads) < self._most:
            self._threads.append(threading.Thread(target=self._serve, daemon=True))
            self._threads[-1].start()
        self._waiting.put((future, partial(work, *args, **options)))
        return future

    def run_all(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run the tasks, wait for all of them, and return their results in order."""
        return [future.result() for future in [self.submit(task) for task in tasks]]

    def close(self) -> None:
        """End the threads once the queue is empty."""
        for _ in self._threads:
            self._waiting.put(None)

    def _serve(self) -> None:
        while (item := self._waiting.get()) is not None:
            future, work = item
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - `Future.result` raises it again
                future.set_exception(error)
