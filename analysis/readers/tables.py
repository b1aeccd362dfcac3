"""Parse a table of text cells with any delimiter and decimal mark, and detect repetitions. Standard library only."""

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from workload.contract.errors import UsageError

DELIMITERS = (",", ";", "\t", "|")
# With more lines of output before the table, a file is a log that contains a table.
MOST_LINES_BEFORE = 200
# Pandas' names for the column of row numbers; the name is empty in a file that pandas wrote.
PANDAS_INDEX = frozenset({"", "unnamed: 0"})
_COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Figures that a file gives for a whole run without steps; `started_at_s` is Unix time in seconds."""

    images_per_s: float | None
    step_s: float | None = None
    images: float | None = None
    wall_s: float | None = None
    started_at_s: float | None = None


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


def plain_numbers(cells: Iterable[str], *, file: str) -> Callable[[str], str]:
    """A function that rewrites the text of a number with a decimal point and without thousands marks.

    `cells`: all cells of the file, which show whether its commas are decimal marks or thousands marks. Raises
    `UsageError` if they can be both.
    """
    with_comma = {cell.strip() for cell in cells if "," in cell}
    if not with_comma:
        return str.strip
    numbers = sorted(cell for cell in with_comma if _COMMA_NUMBER.fullmatch(cell) or _THOUSANDS.fullmatch(cell))
    decimal = [cell for cell in numbers if not _THOUSANDS.fullmatch(cell)]
    grouped = [cell for cell in numbers if not _COMMA_NUMBER.fullmatch(cell)]
    if decimal and grouped:
        raise UsageError(
            f"'{file}': the comma is a decimal mark in '{decimal[0]}' and separates thousands in '{grouped[0]}'",
            hint="write all numbers in the same format",
        )
    if decimal:
        return lambda cell: cell.strip().replace(",", ".") if _COMMA_NUMBER.fullmatch(cell.strip()) else cell.strip()
    if grouped:
        return lambda cell: cell.strip().replace(",", "") if _THOUSANDS.fullmatch(cell.strip()) else cell.strip()
    if numbers:
        raise UsageError(
            f"'{file}': the comma in '{numbers[0]}' may be a decimal mark or separate thousands",
            hint="write numbers with a decimal point, for example 1234.5",
        )
    return str.strip


# --- repetitions: a text that was appended to itself, and rows that are repeated further down

# Number of measured digits whose agreement is no coincidence, for example 10 step times of 3 digits each.
_SURE_DIGITS = 30
# Number of distances between equal rows that are tried, the most frequent distance first.
_MOST_LAGS = 5
# Rows that occur more often than this are ignored in the search for the distance at which rows repeat.
_RARE = 4


def without_second_half(text: str) -> tuple[str, bool]:
    """The text without its second half if both halves have equal lines; and whether the halves are equal."""
    lines = text.splitlines(keepends=True)
    half, odd = divmod(len(lines), 2)
    if odd or half < 2 or [line.rstrip() for line in lines[:half]] != [line.rstrip() for line in lines[half:]]:  # noqa: PLR2004
        return text, False
    return "".join(lines[:half]), True


def repeated_rows(rows: Sequence[Hashable], measured: Sequence[str]) -> list[int]:
    """Indices of rows that repeat a sequence of earlier rows, if too many digits agree for a coincidence.

    `measured`: text of each row's figures that differ between runs. Rows with equal figures are counted once.
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        places[row].append(index)
    lags = Counter(
        after - before
        for positions in places.values()
        if 1 < len(positions) <= _RARE
        for position, before in enumerate(positions)
        for after in positions[position + 1 :]
    )
    dropped = set[int]()
    for lag, _ in lags.most_common(_MOST_LAGS):
        repetition: list[int] = []
        for index in range(lag, len(rows) + 1):
            if index < len(rows) and rows[index] == rows[index - lag]:
                repetition.append(index)
                continue
            digits = sum(sum(map(str.isdigit, figures)) for figures in {measured[row] for row in repetition})
            if digits >= _SURE_DIGITS:
                dropped.update(repetition)
            repetition = []
    return sorted(dropped)
