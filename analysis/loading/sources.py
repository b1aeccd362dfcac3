"""The version of the code that makes results, so that results of other code are not used again."""

import functools
import hashlib
import sys
from importlib import metadata
from pathlib import Path

from workload.contract import bundle

# Folders with the code and the tables (TOML, CSV) that results depend on.
FOLDERS = (Path(__file__).parents[1], Path(bundle.__file__).parent)
ENDINGS = (".py", ".toml", ".csv")
LIBRARIES = ("altair", "numpy", "pandas", "pyarrow", "scipy")


@functools.cache
def version() -> bytes | None:
    """Hash of the sources and of the libraries' versions; None if either is unknown, as in a zip archive."""
    try:
        versions = [sys.version, *map(metadata.version, LIBRARIES)]
    except metadata.PackageNotFoundError:
        return None
    digest, has_sources = hashlib.sha256(repr(versions).encode()), False
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*")):
            if path.suffix in ENDINGS:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode())
                digest.update(content)
                has_sources = True
    return digest.hexdigest().encode() if has_sources else None
