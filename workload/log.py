"""Writes messages to stderr as they are, and to the bundle's log.txt with the time in front."""

import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from workload.contract.text import printable_lines

LOGGER = logging.getLogger("workload")


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
    """Write messages and Python warnings to `path` too."""
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
