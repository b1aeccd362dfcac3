"""Find the table in ncu's output: skip other lines before it and byte order marks, detect a file that breaks off."""

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

# The order of columns differs between versions; these two are always present.
_ID, _NAME = "ID", "Kernel Name"
_DELIMITERS = ",;\t"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Beginning of a header; the line end of a progress message may be missing before it.
_GLUED = b'"ID","'
_VERSION = re.compile(rb"Nsight Compute.*?Version (\d{4}(?:\.\d+)+)")

# ncu's full set has some thousand metrics of up to 100 characters.
_LINE_LIMIT_BYTES = 1 << 20
# Enough bytes to recognize a file without a table, and to see whether the last line is complete.
_KEPT_BYTES = 64 << 10
_MESSAGES_LIMIT = 100
_BANNER_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class NcuSource:
    """A file; `content`: its bytes as UTF-8 if the file has another encoding."""

    path: Path
    content: bytes | None = None
    remarks: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()

    def open(self) -> BinaryIO:
        """Open the file at its first byte. Raises `NcuFileError` if it cannot be read."""
        if self.content is not None:
            return io.BytesIO(self.content)
        try:
            return self.path.open("rb")
        except OSError as error:
            reason = f"it cannot be read: {error.strerror or error}"
            raise NcuFileError(self.path, Failure.ABSENT, reason, hint="check the path") from error


@dataclass(frozen=True, kw_only=True)
class Preamble:
    """The table's header, the byte range of its rows, and ncu's errors and warnings before it.

    `is_cut`: the file ends within a cell; the incomplete line is left out.
    """

    header: tuple[str, ...]
    delimiter: str
    start: int
    stop: int
    messages: tuple[str, ...]
    version: str | None
    is_cut: bool


def source_of(path: Path) -> NcuSource:
    """The file at `path`; its content is kept in memory if it is compressed, not UTF-8, or read from a pipe."""
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
            raise NcuFileError(path, Failure.ABSENT, reason, hint="check the path") from error
    decoded = decode(whole)
    if decoded.remarks and not decoded.content:
        raise NcuFileError(
            path, Failure.DAMAGED, decoded.remarks[0], hint="copy it again from the machine that made it"
        )
    return NcuSource(path=path, content=decoded.content, remarks=decoded.remarks, losses=decoded.losses)


def find(source: NcuSource) -> Preamble:
    """Find the header. Raises `NcuFileError`, which says what the file is instead."""
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
    """Column names and delimiter; None if the line is no header."""
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
    """The line in a list if it is an error or a warning of ncu, else an empty list."""
    return [errors.shortened(line)] if line.startswith((ERROR, WARNING)) else []


def cells(line: str, delimiter: str) -> list[str]:
    """Cells of one line of CSV; the whole line as one cell if it cannot be split."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return [line]


def byte_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines from the file's current position; a file without line ends comes in pieces."""
    return iter(lambda: file.readline(_LINE_LIMIT_BYTES), b"")


def _complete(file: BinaryIO, start: int) -> tuple[int, bool]:
    """Position after the last complete line, and whether an incomplete one follows."""
    size = file.seek(0, io.SEEK_END)
    begin = max(start, size - _KEPT_BYTES)
    file.seek(begin)
    last = file.read().rpartition(b"\n")[2]
    is_cut = last.count(b'"') % 2 == 1
    return max(start, size - len(last)) if is_cut else size, is_cut


def text_lines(source: NcuSource, preamble: Preamble) -> Iterator[str]:
    """Lines of the table as text."""
    with source.open() as file:
        file.seek(preamble.start)
        left = preamble.stop - preamble.start
        while left > 0 and (line := file.readline(left)):
            left -= len(line)
            yield line.decode(errors="replace")
