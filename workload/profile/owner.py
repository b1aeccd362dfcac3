"""Ends a profiled process when the process that requested the profile is gone. Standard library only."""

import os
import threading
import time

from workload.contract.errors import ExitCode

OWNER_CHECK_S = 1.0
# The original function: `os._exit` itself is wrapped while a script is measured.
LEAVE = os._exit


def end_with(owner: int) -> None:
    """End this process when the process `owner` is gone, even by SIGKILL, because this one holds a GPU."""

    def watch() -> None:
        while is_alive(owner):
            time.sleep(OWNER_CHECK_S)
        LEAVE(ExitCode.INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()


def is_alive(process_id: int) -> bool:
    """Whether a process with this number exists."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
