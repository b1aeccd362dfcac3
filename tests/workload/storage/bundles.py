"""Complete bundles and random files for tests, what lies in a folder, and errors as their reader sees them."""

import os
from collections.abc import Mapping
from pathlib import Path

from workload.contract import bundle
from workload.contract.operating_system import crc32c_of

STEPS = b"step,phase\n" + b"0,measured\n" * 100


def make_bundle(parent: Path, run_id: str, files: Mapping[str, bytes], *, status: str = "completed") -> Path:
    """A sealed bundle with these files beside its record and its manifest."""
    folder = bundle.create(parent, run_id)
    bundle.write_document(folder, {"run_id": run_id, "status": status})
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    bundle.seal(folder)
    return folder


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def file_of(folder: Path, size: int) -> tuple[Path, str]:
    """A file of random bytes, and its checksum."""
    path = folder / "file"
    path.write_bytes(os.urandom(size))
    with path.open("rb") as content:
        return path, crc32c_of(content)
