"""Files that are written whole or not at all. Standard library only."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, *, shared: bool = False, durable: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at once when the block ends; when it breaks off, `path` stays as it is.

    Until then it lies beside `path` as `NAME.tmp`; with `shared` under a name of its own, because other processes may
    write the same file now. `durable`: on the disk before it takes the place, so that the end of power leaves the old
    file or the new one.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp" if shared else f"{path.name}.tmp")
    try:
        with temporary.open("xb" if shared else "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str, *, shared: bool = False, durable: bool = True) -> None:
    """Write a text file as `replacing` does."""
    with replacing(path, shared=shared, durable=durable) as file:
        file.write(text.encode("utf-8"))
