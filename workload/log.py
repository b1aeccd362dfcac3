"""Messages and progress of a run, written to stderr and, with the time in front, to the bundle's log.txt."""

import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from workload.contract.text import LINE_EVERY_S, printable_lines

LOGGER = logging.getLogger("workload")
BAR_WIDTH = 30


class _Printable(logging.Formatter):
    """Formatter that escapes control characters: text quoted from files and servers must not move the cursor."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


class _BesideBars(logging.StreamHandler[Any]):
    """Log handler that clears the bars of tqdm before it writes a line, and draws them again below it."""

    def emit(self, record: logging.LogRecord) -> None:
        with beside_bars():
            super().emit(record)


def beside_bars() -> AbstractContextManager[None]:
    """Context manager: clear a script's tqdm bars while a line is written, then draw them again.

    Does nothing without bars.
    """
    bars = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if bars is None or not getattr(bars, "_instances", None):
        return nullcontext()
    block: AbstractContextManager[None] = bars.external_write_mode(file=sys.stderr)
    return block


def to_stderr() -> None:
    """Send messages to stderr, one line each. A log that cannot be written never disturbs a run."""
    logging.raiseExceptions = False
    handler = _BesideBars(sys.stderr)
    handler.setFormatter(_Printable("%(message)s"))
    # Tracebacks of failed steps go only to log.txt.
    handler.setLevel(logging.INFO)
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False


@contextmanager
def to_file(path: Path) -> Iterator[None]:
    """Context manager: write messages and Python warnings to the file `path` too."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Printable("%(asctime)s %(levelname)s %(message)s"))
    warnings = logging.getLogger("py.warnings")
    LOGGER.addHandler(handler)
    warnings.addHandler(handler)
    logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        warnings.removeHandler(handler)
        LOGGER.removeHandler(handler)
        handler.close()


def leave_files() -> None:
    """Write messages and warnings to no file from here on: other files of a run are about to be sealed."""
    for logger in (LOGGER, logging.getLogger("py.warnings")):
        for handler in [each for each in logger.handlers if isinstance(each, logging.FileHandler)]:
            logger.removeHandler(handler)


class Progress:
    """Progress of steps towards a total: a bar on a terminal, plain lines elsewhere.

    `update` may be called any number of times.
    """

    def __init__(self, label: str, total: int, *, images_per_step: int) -> None:
        self._label, self._total, self._images_per_step = label, total, images_per_step
        self._stream = sys.stderr
        self._started_s = self._last_line_s = time.perf_counter()

    def expect(self, total: int) -> None:
        """Change the total number of steps."""
        self._total = total

    def update(self, done: int) -> None:
        """Show `done` steps: at once on a terminal, elsewhere in a line every 30 seconds."""
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{self._bar(done)[:width]:<{width}}")
            self._stream.flush()
        elif time.perf_counter() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = time.perf_counter()
            LOGGER.info(self._text(done))

    def finish(self, done: int) -> None:
        """Replace the bar by a last line, which is also logged."""
        if self._stream.isatty():
            self._stream.write("\r\033[K")
            self._stream.flush()
        LOGGER.info(self._text(done))

    def _bar(self, done: int) -> str:
        filled = BAR_WIDTH * done // max(self._total, 1)
        return f"{self._label:<10} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {self._counts(done)}"

    def _text(self, done: int) -> str:
        return f"{self._label:<10} {self._counts(done)}"

    def _counts(self, done: int) -> str:
        elapsed_s = time.perf_counter() - self._started_s
        rate = done * self._images_per_step / elapsed_s if elapsed_s > 0 else 0.0
        remaining_s = elapsed_s * (self._total - done) / done if done else None
        remaining = f", {remaining_s:.0f} s left" if remaining_s else ""
        return f"{done}/{self._total} steps, {rate:.1f} images/s{remaining}"
