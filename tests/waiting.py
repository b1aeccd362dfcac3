"""Waits for other processes and threads."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(holds: Callable[[], T], what: object = "", *, within_s: float = 300.0, every_s: float = 0.02) -> T:
    """Wait until `holds()` is true and return its result; fail after `within_s` seconds.

    `what`: text of the failure, or a function that returns it. `every_s`: seconds between two looks.
    """
    end_s = time.monotonic() + within_s
    while not (result := holds()):
        assert time.monotonic() < end_s, what() if callable(what) else what
        time.sleep(every_s)
    return result


def is_running(process: int) -> bool:
    """Whether a process runs; a zombie, whose parent has not read its exit status, does not."""
    try:
        return not Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return False
