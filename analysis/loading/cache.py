"""Tables that are kept beside a folder's bundles, in `.analysis/`, to be made only once.

What is in such a table follows from the files of the bundles, which are part of its keys, and from its version: the
sources of this program, the versions of the libraries, and the peaks in use. A file of another version is ignored, as
is a damaged one, so that nobody can forget to make it again. A file is replaced as a whole, by renaming: other
processes never see a part of it, and of two that write at once the last one wins. A folder that is not writable works
without.
"""

import functools
import hashlib
import os
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from workload.contract import bundle, peaks
from workload.contract.operating_system import replacing

FOLDER = ".analysis"
VERSION_KEY = b"rooflaunch.version"
# Folders with the code and the tables (TOML, CSV) that results depend on.
CODE_FOLDERS = (Path(__file__).parents[1], Path(bundle.__file__).parent)
ENDINGS = (".py", ".toml", ".csv")
LIBRARIES = ("altair", "numpy", "pandas", "pyarrow", "scipy")
# Least number of bundles for a cache. Fewer are read in a tenth of a second, so that no file needs to be written.
FEWEST = 50


def load(path: Path, schema: pa.Schema) -> pa.Table | None:
    """The table in this file; None if it is absent, damaged or of another version, or has other columns."""
    try:
        # Opened once: by its path, pyarrow opens the file twice, and another process may replace it in between.
        with path.open("rb") as file:
            table = pq.read_table(file)
    except (OSError, pa.ArrowException, ValueError):
        return None
    kept = (table.schema.metadata or {}).get(VERSION_KEY)
    return table if kept is not None and kept == version() and table.schema.equals(schema) else None


def store(path: Path, table: pa.Table) -> None:
    """Replace the file, unless the version is unknown or the folder cannot be written."""
    current = version()
    if current is None:
        return
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with replacing(path, shared=True, durable=False) as file:
            known = table.replace_schema_metadata({VERSION_KEY: current})
            pq.write_table(known, file, compression="zstd", compression_level=1)


def version() -> bytes | None:
    """Hash of the code and of the peaks in use; None if the code is unknown."""
    code = code_version()
    return None if code is None else hashlib.sha256(code + peaks.digest().encode()).hexdigest().encode()


@functools.cache
def code_version() -> bytes | None:
    """Hash of the sources and of the libraries' versions; None if either is unknown, as in a zip archive."""
    try:
        versions = [sys.version, *map(metadata.version, LIBRARIES)]
    except metadata.PackageNotFoundError:
        return None
    digest, has_sources = hashlib.sha256(repr(versions).encode()), False
    for folder in CODE_FOLDERS:
        for path in sorted(folder.rglob("*")):
            if path.suffix in ENDINGS:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode())
                digest.update(content)
                has_sources = True
    return digest.hexdigest().encode() if has_sources else None


def state(path: str) -> str:
    """Size, modification time and inode of a file, as text; `-` if there is none.

    A change that preserves all three is not seen: `--verify` reads every file again.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - 10,000 bundles: a Path costs more than the call
    except (OSError, ValueError):
        return "-"
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
