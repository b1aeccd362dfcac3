"""Two processes that write one file again and again, while this process reads it."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from analysis.loading.processes import Sharing

Content = TypeVar("Content")
Found = TypeVar("Found")
TIMES = 30
# A process that cannot start must fail the test, not let it wait for ever.
MOST_S = 60.0


def read_meanwhile(
    write: Callable[[Content], object], contents: Sequence[Content], read: Callable[[], Found], place: Path
) -> list[Found]:
    """Results of `read` while another process for each of `contents` writes it; `place`: an empty folder.

    `write` must be a function of a module.
    """
    parts = [(write, content, place / str(number)) for number, content in enumerate(contents)]
    writers = Sharing(_write, parts, others=len(parts))
    found = [read()]
    with ThreadPoolExecutor(max_workers=1) as pool:
        ended = pool.submit(writers.results)
        while not ended.done():
            found.append(read())
    ended.result()
    return [*found, read()]


def _write(part: tuple[Callable[[Content], object], Content, Path]) -> None:
    write, content, begun = part
    begun.touch()
    # None begins before the other one can write.
    until = time.monotonic() + MOST_S
    while len(list(begun.parent.iterdir())) < 2:
        if time.monotonic() > until:
            raise TimeoutError("the other writer has not begun")
    for _ in range(TIMES):
        write(content)
