"""Ending a script that has been measured: in order where it lets us, and without a hang where it does not.

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


class EndOfScript(SystemExit):
    """Raised inside the script's optimizer step, as if the script had called `sys.exit(0)` there."""

    def __init__(self) -> None:
        super().__init__(0)


def end_by_force_after(name: str, code: int, limit_s: float = ENDING_S) -> None:
    """End this process if the script has not within `limit_s`: it catches SystemExit, say, or waits for a thread."""

    def watch() -> None:
        time.sleep(limit_s)
        log.LOGGER.warning(
            "note       %s did not end within %g s of its last measured step (it catches SystemExit, or waits for a"
            " thread or a process): it was ended by force, with everything measured",
            name,
            limit_s,
        )
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)

    threading.Thread(target=watch, name="end of the script", daemon=True).start()
