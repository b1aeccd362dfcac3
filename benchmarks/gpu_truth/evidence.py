"""Read the evidence from the collector's folder or archive: limited in size, and refused if damaged."""

import gzip
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from workload.contract.errors import BundleError, UsageError

FORMAT, SCHEMA = "rooflaunch gpu-truth", 1
DONE, SKIPPED = "done", "skipped"
PARTS = "parts"
# Limits at twice the most that the collector writes; UNPACKED_LIMIT_BYTES is the limit of a whole unpacked archive.
PART_LIMIT_BYTES, MEMBERS_LIMIT, UNPACKED_LIMIT_BYTES = 4 << 20, 100, 64 << 20
MEMBER = re.compile(rf"(?:\./)?{PARTS}/([a-z0-9_-]{{1,40}})\.json")
HINT = "python -m workload gpu-truth -o DIR leaves such a folder and its archive"


@dataclass(frozen=True, kw_only=True)
class GpuEvidence:
    """The collector's documents by part."""

    parts: Mapping[str, Mapping[str, Any]]

    def of(self, part: str) -> Any:
        """Content of a part; None if the part was not collected."""
        document = self.parts.get(part) or {}
        return document.get("evidence") if document.get("status") == DONE else None

    def why_not(self, part: str) -> str:
        """The reason why a part has no content."""
        document = self.parts.get(part)
        if document is None:
            return f"part {part} was not collected"
        if document.get("status") == SKIPPED:
            return str(document.get("reason"))
        return f"part {part} failed: {document.get('reason')}"


def read(path: Path) -> GpuEvidence:
    """The evidence in a folder or archive; `UsageError` if absent, `BundleError` if damaged, foreign or too large."""
    if not path.exists():
        raise UsageError(f"'{path}' does not exist", hint=HINT)
    try:
        texts = dict(_in_folder(path) if path.is_dir() else _in_archive(path))
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise BundleError(f"'{path}' cannot be read: {error}", hint=HINT) from error
    if not texts:
        raise BundleError(f"'{path}' holds no evidence: there is no {PARTS}/NAME.json in it", hint=HINT)
    return GpuEvidence(parts={name: _document(path, name, text) for name, text in texts.items()})


def _in_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted((folder / PARTS).glob("*.json"))[: MEMBERS_LIMIT + 1]:
        if MEMBER.fullmatch(f"{PARTS}/{file.name}") and file.is_file():
            with file.open("rb") as content:
                yield file.stem, _bounded(folder, file.stem, content)


def _in_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of regular files named parts/NAME.json; nothing is unpacked to the disk."""
    with gzip.open(path) as plain, tarfile.open(fileobj=_Limited(path, plain), mode="r|") as packed:  # type: ignore[call-overload]
        for number, member in enumerate(packed):
            if number >= MEMBERS_LIMIT:
                raise BundleError(f"'{path}' holds more than {MEMBERS_LIMIT} files", hint=HINT)
            name = MEMBER.fullmatch(member.name)
            content = packed.extractfile(member) if name and member.isreg() else None
            if name and content:
                yield name[1], _bounded(path, name[1], content)


class _Limited:
    """A stream that raises `BundleError` after more bytes than an archive of ours may hold."""

    def __init__(self, path: Path, source: gzip.GzipFile) -> None:
        self._path, self._source, self._left = path, source, UNPACKED_LIMIT_BYTES

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes, like a file."""
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            limit = UNPACKED_LIMIT_BYTES >> 20
            raise BundleError(f"'{self._path}' unpacks to more than {limit} MiB: it is no evidence of ours", hint=HINT)
        return data


def _bounded(path: Path, name: str, content: IO[bytes]) -> bytes:
    data = content.read(PART_LIMIT_BYTES + 1)
    if len(data) > PART_LIMIT_BYTES:
        raise BundleError(f"part {name} of '{path}' is larger than {PART_LIMIT_BYTES >> 20} MiB", hint=HINT)
    return data


def _document(path: Path, name: str, text: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"part {name} of '{path}' is damaged: it is no JSON", hint=_again(name)) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("part") != name:
        raise BundleError(f"part {name} of '{path}' was not written by the collector", hint=HINT)
    if document.get("schema") != SCHEMA:
        raise BundleError(
            f"part {name} of '{path}' has schema {document.get('schema')}; this version reads {SCHEMA}",
            hint="a newer rooflaunch reads it",
        )
    return document


def _again(name: str) -> str:
    return f"python -m workload gpu-truth -o DIR --part {name} --again"
