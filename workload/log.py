"""Messages: to stderr as they are, to the bundle's log.txt with the time in front."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOGGER = logging.getLogger("workload")


def to_stderr() -> None:
    """Send messages to stderr, a line each. A log that cannot be written never disturbs a run."""
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    # Tracebacks of failed steps are for log.txt alone.
    handler.setLevel(logging.INFO)
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False


@contextmanager
def to_file(path: Path) -> Iterator[None]:
    """Keep messages and Python warnings in `path` too."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
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
