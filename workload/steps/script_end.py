"""Ends a script that has been measured: in order if the script allows it, else by force.

Standard library only.
"""

import os
import sys
import threading
import time
from contextlib import suppress

from workload import log

# A last checkpoint, the end of worker processes and a logger's upload take seconds.
ENDING_S = 60.0
# The original function: `os._exit` itself is wrapped while a script is measured.
LEAVE = os._exit


class EndOfScript(SystemExit):
    """Raised inside the script's optimizer step, as if the script had called `sys.exit(0)` there."""

    def __init__(self) -> None:
        super().__init__(0)


def end_by_force_after(name: str, code: int, limit_s: float | None = None, *, last_words: str = "") -> None:
    """End this process with `code` if the script has not ended within `limit_s` seconds.

    A script may catch SystemExit, or wait for a thread. `last_words`: an error to log before the forced end.
    """
    limit_s = ENDING_S if limit_s is None else limit_s

    def watch() -> None:
        time.sleep(limit_s)
        if last_words:
            log.LOGGER.error("%s", last_words)
        log.LOGGER.warning(
            "note       %s did not end within %g s after the request to exit (it catches SystemExit, or "
            "waits for a thread or a process): it was killed; the measurements are written",
            name,
            limit_s,
        )
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        LEAVE(code)

    threading.Thread(target=watch, name="end of the script", daemon=True).start()
