"""Parse a table of text cells with any delimiter. Standard library only."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from workload.contract.errors import UsageError

DELIMITERS = (",", ";", "\t", "|")
# With more lines of output before the table, a file is a log that contains a table.
MOST_LINES_BEFORE = 200
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
# Range of Unix time from 2001 to 2286, in seconds and in milliseconds.
UNIX_S, UNIX_MS = (1e9, 1e10), (1e12, 1e13)
# Pandas' names for the column of row numbers; the name is empty in a file that pandas wrote.
PANDAS_INDEX = frozenset({"", "unnamed: 0"})


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Figures that a file gives for a whole run without steps."""

    images_per_s: float | None
    step_s: float | None = None
    images: float | None = None
    wall_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ForeignTable:
    """Cells under a header, each row with its line number in the file.

    `cut`: rows left out because the file breaks off in them. `iterations`: number of iterations that each row of a log
    represents. `wall_s`: seconds of all rows after the first together, if the log has running means. `figures`: figures
    of a log that has no rows.
    """

    kind: str
    header: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]
    cut: int = 0
    iterations: Sequence[int] | None = None
    wall_s: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    figures: RunFigures | None = None


def split_line(text: str, delimiter: str = ",") -> list[str]:
    """Cells of one line; empty if the line cannot be split."""
    try:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
    except csv.Error:
        return []


def find_header(text: str, is_header: Callable[[Sequence[str]], bool]) -> tuple[int, str] | None:
    """Line number, from 0, of the first line that `is_header` accepts, and its delimiter; None if there is none."""
    for number, line in enumerate(io.StringIO(text, newline=None)):
        if number > MOST_LINES_BEFORE:
            return None
        for delimiter in DELIMITERS:
            if is_header([cell.strip() for cell in split_line(line.strip("\r\n"), delimiter)]):
                return number, delimiter
    return None


def read(text: str, *, file: str, is_header: Callable[[Sequence[str]], bool]) -> ForeignTable:
    """Parse a CSV file; if `is_header` accepts no line, the first line is the header.

    Raises `UsageError`, which names the first line that does not fit.
    """
    if "\0" in text:
        raise UsageError(f"'{file}' is not text: it contains a zero byte", hint="import a CSV file")
    before, delimiter = find_header(text, is_header) or (0, ",")
    lines = io.StringIO(text, newline="")
    for _ in range(before):
        lines.readline()
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        header = [name.strip() for name in next(reader, [])]
        rows = [(reader.line_num + before, row) for row in reader if any(cell.strip() for cell in row) or len(row) > 1]
    except csv.Error as error:
        raise UsageError(
            f"'{file}' is no CSV: line {reader.line_num + before}: {error}",
            hint="import a file with a row per iteration",
        ) from error
    cut = bool(rows) and len(rows[-1][1]) < len(header) and not text.endswith("\n")
    if cut:
        rows.pop()
    for line, row in rows:
        if len(row) != len(header):
            raise UsageError(
                f"'{file}' line {line} has {len(row)} cells under {len(header)} columns",
                hint="import a file with a row per iteration",
            )
    remarks = [f"{before} lines before the table were left out"] if before > 1 else []
    remarks += ["the line before the table was left out"] if before == 1 else []
    return ForeignTable(kind="csv", header=header, rows=rows, cut=int(cut), remarks=tuple(remarks))


def unix_time(text: str) -> tuple[float, bool]:
    """Unix time in seconds of a cell, and whether it gives its time zone; a time without a zone is read as UTC.

    Raises `ValueError`, whose text says why the cell is no time.
    """
    if NUMBER.fullmatch(text.replace(",", ".")):
        value = float(text.replace(",", "."))
        if UNIX_S[0] <= value < UNIX_S[1]:
            return value, True
        if UNIX_MS[0] <= value < UNIX_MS[1]:
            return value / 1e3, True
        raise ValueError("is no Unix time in seconds or milliseconds")
    try:
        # Python's `logging` writes a comma before milliseconds; some logs have slashes between year, month and day.
        parsed = datetime.fromisoformat(re.sub(r"^(\d{4})/(\d\d)/(\d\d)", r"\1-\2-\3", text).replace(",", "."))
    except ValueError as error:
        raise ValueError("is neither Unix time nor ISO 8601") from error
    has_zone = parsed.tzinfo is not None
    value = (parsed if has_zone else parsed.replace(tzinfo=UTC)).timestamp()
    if not UNIX_S[0] <= value < UNIX_S[1]:
        raise ValueError("is an impossible date")
    return value, has_zone


def without_second_half(text: str) -> tuple[str, bool]:
    """The text without its second half if both halves have equal lines; and whether the halves are equal."""
    lines = text.splitlines(keepends=True)
    half, odd = divmod(len(lines), 2)
    if odd or half < 2 or [line.rstrip() for line in lines[:half]] != [line.rstrip() for line in lines[half:]]:  # noqa: PLR2004
        return text, False
    return "".join(lines[:half]), True
