"""Finding the table in what ncu printed: other lines before it, byte order marks, a file that breaks off."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from analysis.foreign.text import LOOKED_AT_BYTES, decode, needs_decoding
from analysis.ncu import errors
from analysis.ncu.errors import Failure, NcuFileError

ERROR, WARNING = "==ERROR==", "==WARNING=="

# Which columns stand where differs from version to version; these two are always there.
_ID, _NAME = "ID", "Kernel Name"
_DELIMITERS = ",;\t"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The end of a progress line may be missing before it.
_GLUED = b'"ID","'
_VERSION = re.compile(rb"Nsight Compute.*?Version (\d{4}(?:\.\d+)+)")

# ncu's full set has some thousand metrics of up to 100 characters.
_LINE_LIMIT_BYTES = 1 << 20
# Enough of a file without a table to say what it is, and of the last line to see whether it is whole.
_KEPT_BYTES = 64 << 10
_MESSAGES_LIMIT = 100
_BANNER_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class NcuSource:
    """A file, or its content as UTF-8 where the file is written in another encoding."""

    path: Path
    content: bytes | None = None
    remarks: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()

    def open(self) -> BinaryIO:
        """The bytes from the first one on. Raises `NcuFileError` where they cannot be had."""
        if self.content is not None:
            return io.BytesIO(self.content)
        try:
            return self.path.open("rb")
        except OSError as error:
            reason = f"it cannot be read: {error.strerror or error}"
            raise NcuFileError(self.path, Failure.ABSENT, reason, hint="look at the path") from error


@dataclass(frozen=True, kw_only=True)
class Preamble:
    """The table's header, and the range of bytes that its rows take; ncu's errors and warnings before it.

    `is_cut`: the file ended within a cell; the line with it is left out.
    """

    header: tuple[str, ...]
    delimiter: str
    start: int
    stop: int
    messages: tuple[str, ...]
    version: str | None
    is_cut: bool


def source_of(path: Path) -> NcuSource:
    """The file at `path`; as UTF-8 in memory where it is packed or written otherwise. What a pipe holds is kept."""
    plain = NcuSource(path=path)
    with plain.open() as file:
        try:
            content = None if file.seekable() else file.read()
            head = file.read(LOOKED_AT_BYTES) if content is None else content[:LOOKED_AT_BYTES]
            if head.startswith(_BYTE_ORDER_MARK) or not needs_decoding(head):
                return NcuSource(path=path, content=content)
            whole = head + file.read() if content is None else content
        except OSError as error:
            reason = f"it cannot be read: {error.strerror or error}"
            raise NcuFileError(path, Failure.ABSENT, reason, hint="look at the path") from error
    decoded = decode(whole)
    if decoded.remarks and not decoded.content:
        raise NcuFileError(path, Failure.DAMAGED, decoded.remarks[0], hint="copy it again from where it was made")
    return NcuSource(path=path, content=decoded.content, remarks=decoded.remarks, losses=decoded.losses)


def find(source: NcuSource) -> Preamble:
    """Find the header. Raises `NcuFileError` with what the file is instead."""
    with source.open() as file:
        head = file.read(_KEPT_BYTES)
        file.seek(0)
        messages: dict[str, None] = {}
        version = None
        start = 0
        for line in byte_lines(file):
            start += len(line)
            if header_cells := _header_in(line):
                break
            if line.startswith(b"==") and len(messages) < _MESSAGES_LIMIT:
                messages |= dict.fromkeys(messages_in(line.decode(errors="replace")))
            version = version or _VERSION.search(line[:_BANNER_BYTES])
        else:
            kept = "\n".join([head.decode(errors="replace"), *messages])
            raise errors.explain(source.path, head, kept)
        stop, is_cut = _complete(file, start)
    header, delimiter = header_cells
    return Preamble(
        header=header,
        delimiter=delimiter,
        start=start,
        stop=stop,
        messages=tuple(messages),
        version=version[1].decode() if version else None,
        is_cut=is_cut,
    )


def _header_in(line: bytes) -> tuple[tuple[str, ...], str] | None:
    """The names of the columns, and what separates them; None for a line that is no header."""
    if _NAME.encode() not in line:
        return None
    text = (line if _GLUED not in line else line[line.index(_GLUED) :]).removeprefix(_BYTE_ORDER_MARK)
    bare = text.decode(errors="replace").strip("\r\n")
    for delimiter in _DELIMITERS:
        row = [cell.strip() for cell in cells(bare, delimiter)]
        if _ID in row and _NAME in row:
            return tuple(row), delimiter
    return None


def messages_in(line: str) -> list[str]:
    """The line, where it is an error or a warning of ncu."""
    return [errors.shortened(line)] if line.startswith((ERROR, WARNING)) else []


def cells(line: str, delimiter: str) -> list[str]:
    """One line of CSV; as a single cell what cannot be split."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return [line]


def byte_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines from where the file stands; a file without line ends comes in pieces."""
    return iter(lambda: file.readline(_LINE_LIMIT_BYTES), b"")


def _complete(file: BinaryIO, start: int) -> tuple[int, bool]:
    """Where the last line ends that no cell of is open, and whether one after it is."""
    size = file.seek(0, io.SEEK_END)
    begin = max(start, size - _KEPT_BYTES)
    file.seek(begin)
    last = file.read().rpartition(b"\n")[2]
    is_cut = last.count(b'"') % 2 == 1
    return max(start, size - len(last)) if is_cut else size, is_cut


def text_lines(source: NcuSource, preamble: Preamble) -> Iterator[str]:
    """The text lines of the table's range."""
    with source.open() as file:
        file.seek(preamble.start)
        left = preamble.stop - preamble.start
        while left > 0 and (line := file.readline(left)):
            left -= len(line)
            yield line.decode(errors="replace")
