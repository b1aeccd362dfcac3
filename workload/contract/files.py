"""Atomic writes: a file is written completely or not at all. Standard library only."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from workload.contract.operating_system import replace_file, require_possible


@contextmanager
def replacing(path: Path, *, shared: bool = False, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` atomically after the `with` block; after an error `path` is unchanged.

    The temporary file is `NAME.tmp` beside `path`. `shared`: use a unique name, because other processes may write the
    same file at the same time. `durable`: sync to disk before replacing, so that a power failure leaves the old file or
    the new one.
    """
    require_possible(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp" if shared else f"{path.name}.tmp")
    try:
        with temporary.open("xb" if shared else "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        replace_file(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str, *, shared: bool = False, durable: bool = True) -> None:
    """Write a UTF-8 text file atomically, see `replacing`."""
    with replacing(path, shared=shared, durable=durable) as file:
        file.write(text.encode("utf-8"))
