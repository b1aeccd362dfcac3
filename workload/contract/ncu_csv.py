"""CSV of Nsight Compute: the table among ncu's other output, its layout, its units and its rows. Standard library only.

Wide (`--page raw`): a row per launch, a column per metric, units in the second row. Long (`--page details`, and ncu's
output while it profiles): a row per launch and metric. A details page also has columns for ncu's rules; a row with a
metric ends before these columns.
"""

import csv
import functools
import io
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

_UNITS = Path(__file__).with_name("ncu_units.toml")

# The order of columns differs between versions; ID and NAME are always present.
ID, PROCESS, NAME = "ID", "Process ID", "Kernel Name"
METRIC, UNIT, VALUE, RULE = "Metric Name", "Metric Unit", "Metric Value", "Rule Name"
# Beginnings of column names; the names continue with a description of the cells. Ranges of `range_start` are
# process-wide; ranges of `range_push` belong to the launching thread.
STARTED, PUSHED = "Id:Domain:Start/Stop_Range", "thread Domain:Push/Pop_Range"

ERROR, WARNING = "==ERROR==", "==WARNING=="
_DELIMITERS = ",;\t|"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Beginning of a header, which may follow a progress message without a line break.
_GLUED = b'"ID","'
_VERSION = re.compile(rb"Nsight Compute.*?Version (\d{4}(?:\.\d+)+)")

# Limit for a line. The longest is a header: ncu's full set has some thousand metrics of up to 100 characters.
_LINE_LIMIT_BYTES = 1 << 20
# Larger than any cell that ncu writes, unlike csv's own limit of 128 KB.
_CELL_LIMIT = 16 << 20
# Enough bytes to recognize a file without a table, and to see whether the last line is complete.
_KEPT_BYTES = 64 << 10
_MESSAGES_LIMIT = 100
_BANNER_BYTES = 200
QUOTED_CHARACTERS = 160


class Layout(StrEnum):
    """Arrangement of launches and metrics in a file."""

    WIDE = "wide"
    LONG = "long"
    DETAILS = "details"
    REPORT = "report"  # not a table: a .ncu-rep file


class Quantity(StrEnum):
    """Kind of quantity that a unit measures; the comments name base units."""

    TIME = "time"  # s
    BYTES = "bytes"
    COUNT = "count"
    PERCENT = "percent"
    BYTES_PER_SECOND = "bytes_per_second"
    FREQUENCY = "frequency"  # Hz
    PER_CYCLE = "per_cycle"


class NoTableError(Exception):
    """The file has no table of launches. `head`: the first bytes; `text`: `head` as text, then ncu's messages."""

    def __init__(self, head: bytes, text: str) -> None:
        super().__init__("there is no table of launches")
        self.head = head
        self.text = text


class DamagedTableError(Exception):
    """The table has a row that cannot be split into cells."""

    def __init__(self, line: int, error: csv.Error) -> None:
        super().__init__(f"line {line} below its header is damaged: {error}")


@dataclass(frozen=True, kw_only=True)
class NcuSource:
    """A file with ncu's CSV.

    `content`: the file's bytes converted to UTF-8, None if no conversion was needed. `remarks`: sentences on
    how the file was read. `losses`: the remarks on missing content.
    """

    path: Path
    content: bytes | None = None
    remarks: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()

    def open(self) -> BinaryIO:
        """Open the file at its first byte. Raises `OSError` if it cannot be read."""
        return self.path.open("rb") if self.content is None else io.BytesIO(self.content)


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


@dataclass(frozen=True, kw_only=True)
class TableHead:
    """Header of a table; `units`: the second row of a wide table if that row contains units, else None."""

    header: tuple[str, ...]
    units: list[str] | None


# --- units


@functools.cache
def _units() -> Mapping[Quantity, Mapping[str, float]]:
    content = tomllib.loads(_UNITS.read_text(encoding="utf-8"))
    return {Quantity(kind): factors for kind, factors in content.items()}


def factor(kind: Quantity, unit: str) -> float | None:
    """Number of base units of `kind` in one `unit`; None for an unknown unit or one of another kind."""
    return _units()[kind].get(unit.strip())


def factor_of_any(unit: str) -> float | None:
    """Number of base units in one `unit` of any kind; None for an unknown unit."""
    return next((known for kind in Quantity if (known := factor(kind, unit)) is not None), None)


# --- the beginning of a table


def layout_of(header: Sequence[str]) -> Layout:
    """Layout of a CSV table by its column names: DETAILS and LONG have a row per metric, WIDE a column per metric."""
    if METRIC in header and VALUE in header:
        return Layout.DETAILS if RULE in header else Layout.LONG
    return Layout.WIDE


def find(source: NcuSource) -> Preamble:
    """Find the header of the first table of launches. Raises `NoTableError` if the file has no such header."""
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
            raise NoTableError(head, "\n".join([head.decode(errors="replace"), *messages]))
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
    if NAME.encode() not in line:
        return None
    # The whole line first: in a table with its columns in another order, ID is not the first of them.
    starts = [0] if _GLUED not in line else [0, line.index(_GLUED)]
    for start in starts:
        bare = line[start:].removeprefix(BYTE_ORDER_MARK).decode(errors="replace").strip("\r\n")
        for delimiter in _DELIMITERS:
            row = [cell.strip() for cell in cells(bare, delimiter)]
            if is_header(row):
                return tuple(row), delimiter
    return None


def _complete(file: BinaryIO, start: int) -> tuple[int, bool]:
    """Byte position at which the table's complete lines end, and whether the file ends within a cell."""
    size = file.seek(0, io.SEEK_END)
    begin = max(start, size - _KEPT_BYTES)
    file.seek(begin)
    last = file.read().rpartition(b"\n")[2]
    is_cut = last.count(b'"') % 2 == 1
    return max(start, size - len(last)) if is_cut else size, is_cut


def messages_in(line: str) -> list[str]:
    """The line in a list if it is an error or a warning of ncu, else an empty list."""
    return [shortened(line)] if line.startswith((ERROR, WARNING)) else []


def shortened(text: str) -> str:
    """`text` as one printable line, cut to a length that a message can quote."""
    line = "".join(character if character.isprintable() else " " for character in text).strip()
    return line if len(line) <= QUOTED_CHARACTERS else f"{line[:QUOTED_CHARACTERS]}…"


# --- rows


def is_header(row: Sequence[str]) -> bool:
    """Whether the cells are column names of a table of launches."""
    return ID in row and NAME in row


def units_of(source: NcuSource, head: Preamble) -> tuple[list[str] | None, int]:
    """Units from the second row of a wide table, None without units; and the byte at which the launches' rows start."""
    start = head.start
    if layout_of(head.header) is Layout.WIDE:
        with source.open() as file:
            file.seek(start)
            for line in byte_lines(file):
                start += len(line)
                row = cells(line.decode(errors="replace"), head.delimiter)
                if units := _units_in(row, head.header):
                    return units, start
                if any(row):
                    break
    return None, head.start


def _units_in(row: Sequence[str], header: Sequence[str]) -> list[str] | None:
    is_units = len(row) == len(header) and not row[header.index(ID)].strip()
    return [cell.strip() for cell in row] if is_units else None


def rows(source: NcuSource, head: Preamble) -> Iterator[tuple[TableHead, int, list[str]]]:
    """Rows below the header, of any length, each with its table's head and its line number below the first header.

    A file may hold several tables, one below the other; rows of one table share one `TableHead`. Headers, units and
    empty lines are left out. Raises `DamagedTableError`.
    """
    header: tuple[str, ...] = head.header
    table: TableHead | None = None
    reader = csv.reader(text_lines(source, head), delimiter=head.delimiter)
    with _large_cells():
        try:
            for row in reader:
                if is_header(row):
                    header, table = tuple(cell.strip() for cell in row), None
                elif any(row):
                    if table is None:
                        units = _units_in(row, header) if layout_of(header) is Layout.WIDE else None
                        table = TableHead(header=header, units=units)
                        if units is not None:
                            continue
                    yield table, reader.line_num, row
        except csv.Error as error:
            raise DamagedTableError(reader.line_num, error) from error


@contextmanager
def _large_cells() -> Iterator[None]:
    before = csv.field_size_limit(_CELL_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def lines_before(source: NcuSource, head: Preamble) -> int:
    """Number of the file's lines up to and including the first header."""
    with source.open() as file:
        return file.read(head.start).count(b"\n")


def cells(line: str, delimiter: str) -> list[str]:
    """Cells of one line of CSV; the whole line as one cell if it cannot be split."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return [line]


def byte_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines from the file's current position; lines above 1 MiB are split."""
    return iter(lambda: file.readline(_LINE_LIMIT_BYTES), b"")


def text_lines(source: NcuSource, head: Preamble) -> Iterator[str]:
    """Yield the lines of the table that starts at `head.start`, as text; bytes that are not UTF-8 are replaced."""
    with source.open() as file:
        file.seek(head.start)
        if not head.is_cut:
            yield from io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="\n")
            return
        remaining_bytes = head.stop - head.start
        while remaining_bytes > 0 and (line := file.readline(remaining_bytes)):
            remaining_bytes -= len(line)
            yield line.decode(errors="replace")
