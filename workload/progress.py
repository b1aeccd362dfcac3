"""Progress of long work on stderr: a bar on a terminal, plain lines elsewhere."""

import logging
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

LINE_EVERY_S = 30.0
BAR_WIDTH = 30


class Progress:
    """Progress of steps towards a total; `update` may be called any number of times."""

    def __init__(
        self,
        label: str,
        total: int,
        *,
        images_per_step: int,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._label = label
        self._total = total
        self._images_per_step = images_per_step
        self._stream = stream or sys.stderr
        self._now = now
        self._started_s = now()
        self._last_line_s = self._started_s
        self._log = logging.getLogger("workload")

    def expect(self, total: int) -> None:
        """Change the total."""
        self._total = total

    def update(self, done: int) -> None:
        """Show `done` steps: at once on a terminal, elsewhere in a line every 30 seconds."""
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{self._bar(done)[:width]:<{width}}")
            self._stream.flush()
        elif self._now() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = self._now()
            self._log.info(self._text(done))

    def finish(self, done: int) -> None:
        """Replace the bar by a last line, which is also logged."""
        if self._stream.isatty():
            self._stream.write("\r\033[K")
            self._stream.flush()
        self._log.info(self._text(done))

    def _bar(self, done: int) -> str:
        filled = BAR_WIDTH * done // max(self._total, 1)
        return f"{self._label:<10} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {self._counts(done)}"

    def _text(self, done: int) -> str:
        return f"{self._label:<10} {self._counts(done)}"

    def _counts(self, done: int) -> str:
        elapsed_s = self._now() - self._started_s
        rate = done * self._images_per_step / elapsed_s if elapsed_s > 0 else 0.0
        left_s = elapsed_s * (self._total - done) / done if done else None
        left = f", {left_s:.0f} s left" if left_s else ""
        return f"{done}/{self._total} steps, {rate:.1f} images/s{left}"
