"""Parse the rows below a header into columns: regular tables by pyarrow, irregular ones by the csv module.

Numbers are plain, or have commas between thousands, as in 2,433,449.5. ncu follows the locale of its machine: a file
whose decimal mark is a comma is refused, and `LC_ALL=C` avoids it.
"""

import codecs
import io
import itertools
import operator
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from analysis.readers.ncu import metrics
from analysis.readers.ncu.metrics import ReadingPlan
from analysis.readers.tables import looks_like
from workload.contract import ncu_csv
from workload.contract.errors import UsageError
from workload.contract.ncu_csv import ID, DamagedTableError, Layout, NcuSource, Preamble, TableHead, shortened

# First bytes of an .ncu-rep file.
REPORT_MAGIC = b"NVR\x00"
EXPORT = "LC_ALL=C ncu --import REPORT.ncu-rep --csv --page raw --print-units base > kernels.csv"


class NcuFileError(UsageError):
    """Error: a file has no readable table of kernels from Nsight Compute."""

    def __init__(self, path: Path, reason: str, *, hint: str, what: str = "has no table of Nsight Compute") -> None:
        super().__init__(f"'{path}' {what}: {reason}", hint=hint)
        self.reason = reason


# Known failures: pattern of the text, reason (`{0}`: the pattern's first group), hint.
# Causes come before their consequences: a locked counter also ends in "No kernels were profiled".
# Patterns are texts of Nsight Compute 2022.3 to 2024.1.
_KNOWN = (
    (
        "ERR_NVGPUCTRPERM",
        "ncu was not allowed to read the GPU's counters (ERR_NVGPUCTRPERM)",
        "profile again as root, or with NVreg_RestrictProfilingToAdminUsers=0",
    ),
    (
        "driver resource was unavailable",
        "another tool used the GPU's counters: DCGM, or a second profiler",
        "dcgmi profile --pause (afterwards --resume), or end the other profiler, and profile again",
    ),
    (
        r"No (kernels|ranges) were profiled",
        "ncu profiled no {0}",
        "check ncu's filters (--kernel-name, --nvtx-include, --profile-from-start off), and profile again",
    ),
    (
        r"==ERROR== The application returned an error code \((-?\d+)\)",
        "the profiled program ended with error code {0}",
        "run the program without ncu first, and profile again once it works",
    ),
    (
        r"==ERROR== ?([^\r\n]*)",
        "ncu says: {0}",
        "solve the problem that ncu names, and profile again",
    ),
    (
        r"(?m)^[ \t]*(?:Section: |Metric Name +Metric Unit +Metric Value)",
        "it is ncu's text output, written without --csv",
        EXPORT,
    ),
    (
        r"(?m)^(?=[^\r\n]*Kernel Name)(?=[^\r\n]*(?:Invocations|Minimum|Average|Count|Calls|mean|total))",
        "it is an aggregated table without single launches",
        f"without --print-summary: {EXPORT}",
    ),
    (
        r"==PROF==",
        "it contains only messages of ncu; ncu was interrupted, or its table is in another file",
        f"look for a .ncu-rep file: {EXPORT}",
    ),
)


def explain(path: Path, head: bytes, text: str) -> NcuFileError:
    """The error for a file without a table, judged by its first bytes and the part of its text that was kept."""
    if not head.strip(b"\xef\xbb\xbf \t\r\n"):
        return NcuFileError(path, "it is empty", hint="check whether ncu could write it, and profile again")
    if head.startswith(REPORT_MAGIC):
        reason = "it is a report of Nsight Compute under another name"
        return NcuFileError(path, reason, hint="rename it so that its name ends in .ncu-rep")
    for pattern, reason, hint in _KNOWN:
        if match := re.search(pattern, text):
            groups = [shortened(group or "") for group in match.groups()]
            return NcuFileError(path, reason.format(*groups), hint=hint)
    if likely := looks_like(head, text):
        return NcuFileError(path, f"it is {likely[0]}", hint=likely[1])
    first = next(filter(None, map(str.strip, text.splitlines())), "")
    reason = f"no line has the columns ID and Kernel Name; the first one is '{shortened(first)}'"
    return NcuFileError(path, reason, hint=EXPORT)


# A table with more rejected rows has another form: broken files and verbose programs cause fewer.
_REJECTED_LIMIT = 1000
_KEPT_CHARACTERS = 500
_CHUNK_ROWS = 1 << 16
_ID_DIGITS = 18  # within 64 bits

ABSENT = ("", "n/a", "N/A", "nan", "-nan", "inf", "-inf")
_NUMBER = r"^\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*$"
# Commas that separate no thousands, and dots that do: 65,77; 0,344; 1234,344; 1.234.567; 1.234,5.
_DECIMAL_COMMA = r"^\s*[-+]?(?:\d*,(?:\d{1,2}|\d{4,})|0,\d+|\d{4,},\d+|\d{1,3}(?:\.\d{3})+[.,]\d+)\s*$"
_TEXT = pa.dictionary(pa.int32(), pa.string())


Text: TypeAlias = pa.ChunkedArray
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NcuTable:
    """A table: `columns` holds the plan's columns and the launches' IDs; numbers are floats or still text.

    `rejected`: lines between the rows that are not rows. `attributes`: in a wide table,
    the attributes of the first launch's GPU.
    """

    plan: ReadingPlan
    columns: pa.Table
    rejected: tuple[str, ...]
    attributes: Mapping[str, str]


def sections(source: NcuSource, head: Preamble, own: Collection[str] = ()) -> list[NcuTable]:
    """Every table of the file: usually one, several if several runs were written one after the other.

    `own`: further metrics to read, if the file has one table. Raises `NcuFileError`.
    """
    units, start = ncu_csv.units_of(source, head)
    plan = metrics.plan(head.header, units, own)
    # Numbers that pyarrow cannot parse are kept as text for our own parser.
    for as_text in (False, True):
        if section := _regular(source, head, plan, start, as_text=as_text):
            return [section]
    return list(_irregular(source, head))


# --- regular tables


class _Range(io.RawIOBase):
    """The bytes of a file from `start` to `stop`, with question marks for bytes that are not UTF-8.

    pyarrow passes rejected rows to Python as text, and fails if such a row is not UTF-8.
    """

    def __init__(self, file: BinaryIO, start: int, stop: int) -> None:
        super().__init__()
        self._file = file
        self._left = max(0, stop - start)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape")
        file.seek(start)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while True:
            # An incomplete character that was held back adds up to three bytes.
            chunk = self._file.read(min(self._left, max(size - 3, 1)) if size >= 0 else self._left)
            self._left -= len(chunk)
            if chunk.isascii() and not self._decoder.getstate()[0]:
                return chunk
            valid = self._decoder.decode(chunk, final=not chunk).encode(errors="replace")
            if valid or not chunk:
                return valid


def _regular(source: NcuSource, head: Preamble, plan: ReadingPlan, start: int, *, as_text: bool) -> NcuTable | None:
    """Parse a table with a cell in every column of every row; None if the table is irregular.

    `start`: byte at which the rows begin; `as_text`: keep numbers as text.
    """
    rejected: list[str] = []

    def reject(row: pyarrow.csv.InvalidRow) -> str:
        rejected.append(row.text[:_KEPT_CHARACTERS])
        return "skip" if _is_no_row(row, plan, head.delimiter) and len(rejected) < _REJECTED_LIMIT else "error"

    names = [str(position) for position in range(len(plan.header))]
    types = {ID: pa.int64()} | dict.fromkeys(plan.texts, _TEXT)
    types |= dict.fromkeys(plan.numbers, pa.string() if as_text else pa.float64())
    positions = {name: str(plan.position(name)) for name in types}
    try:
        with source.open() as file:
            columns = pyarrow.csv.read_csv(
                pa.PythonFile(_Range(file, start, head.stop), mode="r"),
                pyarrow.csv.ReadOptions(column_names=names),
                pyarrow.csv.ParseOptions(delimiter=head.delimiter, invalid_row_handler=reject),
                pyarrow.csv.ConvertOptions(
                    include_columns=[*positions.values()],
                    column_types={positions[name]: kind for name, kind in types.items()},
                    null_values=list(ABSENT),
                    strings_can_be_null=True,
                ),
            )
    except pa.ArrowException:
        return None
    return NcuTable(
        plan=plan,
        columns=_with_id(columns.rename_columns(list(types))),
        rejected=tuple(rejected),
        attributes=_attributes(plan, _first_row(source, head, start)),
    )


def _is_no_row(row: "pyarrow.csv.InvalidRow", plan: ReadingPlan, delimiter: str) -> bool:
    """Whether a line may be left out: a message, or an incomplete row of a wide table."""
    if row.actual_columns == 1:
        return True
    return plan.layout is Layout.WIDE and not ncu_csv.is_header(ncu_csv.cells(row.text, delimiter))


def _with_id(columns: pa.Table) -> pa.Table:
    launches = columns.column(ID)
    return columns.filter(launches.is_valid()) if launches.null_count else columns


def _first_row(source: NcuSource, head: Preamble, start: int) -> list[str]:
    with source.open() as file:
        file.seek(start)
        rows = (ncu_csv.cells(line.decode(errors="replace"), head.delimiter) for line in ncu_csv.byte_lines(file))
        return next((row for row in rows if len(row) == len(head.header)), [])


def _attributes(plan: ReadingPlan, row: Sequence[str]) -> dict[str, str]:
    pairs = zip(plan.header, row, strict=False)
    return {name: value for name, value in pairs if name.startswith(metrics.ATTRIBUTE) and value not in ABSENT}


# --- irregular tables


def _irregular(source: NcuSource, head: Preamble) -> Iterator[NcuTable]:
    """Parse row by row: rows of several lengths, lines of the program between them, further headers."""
    try:
        rows = ncu_csv.rows(source, head)
        for table, group in itertools.groupby(rows, key=operator.itemgetter(0)):
            yield _table(table, (row for _, _, row in group))
    except DamagedTableError as error:
        raise NcuFileError(source.path, str(error), hint="export or download it again") from error


def _table(table: TableHead, rows: Iterable[list[str]]) -> NcuTable:
    """Read the rows of launches; keep only the plan's columns, and reject any other line."""
    plan = metrics.plan(table.header, table.units)
    names = (ID, *plan.texts, *plan.numbers)
    positions = [plan.position(name) for name in names]
    # In a details page, rows of metrics end before the columns of rules.
    shortest = len(plan.header) if plan.layout is Layout.WIDE else max(positions) + 1
    chunks, kept, rejected, attributes = list[pa.Table](), list[list[str]](), list[str](), None
    for row in rows:
        if shortest <= len(row) <= len(plan.header) and _is_id(row[positions[0]]):
            attributes = _attributes(plan, row) if attributes is None else attributes
            kept.append([row[position] for position in positions])
            if len(kept) == _CHUNK_ROWS:
                chunks.append(_columns(plan, names, kept))
                kept.clear()
        elif any(row) and len(rejected) < _REJECTED_LIMIT:
            rejected.append(",".join(row)[:_KEPT_CHARACTERS])
    columns = pa.concat_tables([*chunks, _columns(plan, names, kept)])
    return NcuTable(plan=plan, columns=columns, rejected=tuple(rejected), attributes=attributes or {})


def _columns(plan: ReadingPlan, names: Sequence[str], rows: Sequence[Sequence[str]]) -> pa.Table:
    cells = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    arrays = {
        name: pa.array([None if cell in ABSENT else cell for cell in cells.get(name, ())], pa.string())
        for name in names
    }
    arrays[ID] = arrays[ID].cast(pa.int64())
    return pa.table(arrays | {name: arrays[name].dictionary_encode() for name in plan.texts})


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS


# --- numbers


class DecimalCommaError(ValueError):
    """A number in the format of a locale with decimal commas."""

    def __init__(self, text: str) -> None:
        super().__init__(f"'{text[:80]}' is a number of another locale than English")


def convert(column: Text) -> tuple[Floats, str | None]:
    """Values as floats, NaN if not a number, and the first text that is neither a number nor a mark of absence.

    Raises `DecimalCommaError`.
    """
    position = pc.index(pc.match_substring_regex(column, _DECIMAL_COMMA), value=True).as_py()
    if position >= 0:
        raise DecimalCommaError(column[position].as_py())
    column = pc.replace_substring(column, ",", "")
    foreign = None
    try:
        numbers = pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        is_number = pc.match_substring_regex(column, _NUMBER)
        texts = column.filter(pc.invert(pc.fill_null(is_number, fill_value=True))).unique().to_pylist()
        foreign = next((text for text in texts if text.strip() not in ABSENT), None)
        kept = pc.if_else(is_number, pc.utf8_trim_whitespace(column), pa.scalar(None, pa.string()))
        numbers = pc.cast(kept, pa.float64())
    return finite(numbers.to_numpy()), foreign


def finite(values: Floats) -> Floats:
    """Values with NaN for infinities, which ncu prints after a division by 0."""
    infinite = np.isinf(values)
    return np.where(infinite, np.nan, values) if infinite.any() else values


def require_whole(values: Floats) -> None:
    """Raise `DecimalCommaError` for a fraction of a count: the dot in 117.344 instructions separates thousands."""
    with np.errstate(invalid="ignore"):
        fractions = values[np.floor(values) < values]
    if len(fractions):
        raise DecimalCommaError(f"{fractions[0]:.15g}")
