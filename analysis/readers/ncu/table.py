"""Parse the rows below a header into columns: regular tables by pyarrow, irregular ones by the csv module."""

import codecs
import io
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from analysis.readers.ncu import metrics, numbers
from analysis.readers.ncu.errors import NcuFileError
from analysis.readers.ncu.metrics import ReadingPlan
from workload.contract import ncu_csv
from workload.contract.ncu_csv import ID, DamagedTableError, Layout, NcuSource, Preamble, TableHead

_SAMPLED_LINES = 200
# A table with more rejected rows has another form: broken files and verbose programs cause fewer.
_REJECTED_LIMIT = 1000
_KEPT_CHARACTERS = 500
_CHUNK_ROWS = 1 << 16
_ID_DIGITS = 18  # within 64 bits

# A delimiter that never occurs, so that a line is one cell.
_NOWHERE = "\x1f"
_TEXT = pa.dictionary(pa.int32(), pa.string())


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

    @property
    def is_numeric(self) -> bool:
        """Whether the numbers were read as floats."""
        return all(pa.types.is_floating(self.columns.schema.field(name).type) for name in self.plan.numbers)


def sections(source: NcuSource, head: Preamble, *, as_text: bool = False, own: Collection[str] = ()) -> list[NcuTable]:
    """Every table of the file: usually one, several if several runs were written one after the other.

    `as_text`: keep numbers as text. `own`: further metrics to read, if the file has one table. Raises `NcuFileError`.
    """
    units, start = ncu_csv.units_of(source, head)
    plan = metrics.plan(head.header, units, own)
    even = _rows_of_metrics(source, head, plan, start) or _EvenRows(source=source, head=head, plan=plan, start=start)
    is_plain = not as_text and _has_plain_numbers(even)
    # Numbers that are not plain, or that pyarrow cannot parse, are kept as text for our own parser.
    attempts_as_text = (False, True) if is_plain else (True,)
    for keep_text in attempts_as_text:
        if section := _regular(even, as_text=keep_text):
            return [section]
    return list(_irregular(source, head))


@dataclass(frozen=True, kw_only=True)
class _EvenRows:
    """A source whose rows all have the same number of cells. `rejected`: the messages between the rows."""

    source: NcuSource
    head: Preamble
    plan: ReadingPlan
    start: int
    rejected: tuple[str, ...] = ()


def _rows_of_metrics(source: NcuSource, head: Preamble, plan: ReadingPlan, start: int) -> _EvenRows | None:
    """Rows of metrics of ncu's page `details`; None for another page, or if the page has rows of a third kind.

    This page mixes rows of metrics with longer rows, the advice of ncu's rules, which are left out. Arrow filters all
    rows at once: a loop in Python takes ten times as long for a page of 125 MB.
    """
    if plan.layout is not Layout.DETAILS:
        return None
    try:
        with source.open() as file:
            lines = pyarrow.csv.read_csv(
                pa.PythonFile(_Range(file, start, head.stop), mode="r"),
                pyarrow.csv.ReadOptions(column_names=["line"]),
                pyarrow.csv.ParseOptions(delimiter=_NOWHERE, quote_char=False),
                pyarrow.csv.ConvertOptions(column_types={"line": pa.string()}),
            ).column("line")
    except pa.ArrowException:
        return None
    is_row = pc.starts_with(lines, '"')
    rows, others = lines.filter(is_row), lines.filter(pc.invert(is_row)).to_pylist()
    if not len(rows) or pc.any(pc.starts_with(rows, f'"{ID}"')).as_py() or not all(map(_is_message, others)):
        return None
    cells = pc.count_substring(rows, f'"{head.delimiter}"')
    is_of_metric = pc.equal(cells, pc.min(cells))
    is_of_rule = pc.equal(cells, len(head.header) - 1)
    if not pc.all(pc.or_(is_of_metric, is_of_rule)).as_py():
        return None
    kept = rows.filter(is_of_metric)
    width = len(ncu_csv.cells(kept[0].as_py(), head.delimiter))
    if width <= max(plan.position(name) for name in (ID, *plan.texts, *plan.numbers)):
        return None
    content = ("\n".join(kept.to_pylist()) + "\n").encode()
    header = head.header[:width]
    return _EvenRows(
        source=replace(source, content=content),
        head=replace(head, header=header, start=0, stop=len(content)),
        plan=replace(plan, header=header),
        start=0,
        rejected=tuple(others[:_REJECTED_LIMIT]),
    )


def _is_message(line: str) -> bool:
    return not line.strip() or line.startswith("==")


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


def _regular(even: _EvenRows, *, as_text: bool) -> NcuTable | None:
    """Parse a table with a cell in every column of every row; None if the table is irregular."""
    source, head, plan = even.source, even.head, even.plan
    rejected: list[str] = []

    def reject(row: pyarrow.csv.InvalidRow) -> str:
        rejected.append(row.text[:_KEPT_CHARACTERS])
        return "skip" if _is_no_row(row, plan, head.delimiter) and len(rejected) < _REJECTED_LIMIT else "error"

    names = [str(position) for position in range(len(plan.header))]
    types = {ID: pa.int64()} | dict.fromkeys(plan.texts, _TEXT)
    types |= dict.fromkeys(plan.numbers, pa.string() if as_text else pa.float64())
    positions = {name: str(plan.position(name)) for name in types}
    twins = {str(twin): name for name in types for twin in plan.twins(name)}
    try:
        with source.open() as file:
            columns = pyarrow.csv.read_csv(
                pa.PythonFile(_Range(file, even.start, head.stop), mode="r"),
                pyarrow.csv.ReadOptions(column_names=names),
                pyarrow.csv.ParseOptions(delimiter=head.delimiter, invalid_row_handler=reject),
                pyarrow.csv.ConvertOptions(
                    include_columns=[*positions.values(), *twins],
                    column_types={positions[name]: kind for name, kind in types.items()}
                    | {twin: types[name] for twin, name in twins.items()},
                    null_values=list(numbers.ABSENT),
                    strings_can_be_null=True,
                ),
            )
    except pa.ArrowException:
        return None
    for twin, name in twins.items():
        if columns.column(positions[name]).to_pylist() != columns.column(twin).to_pylist():
            raise _differing(source, head, name, plan.position(name), int(twin))
    columns = columns.select(list(positions.values()))
    return NcuTable(
        plan=plan,
        columns=_with_id(columns.rename_columns(list(types))),
        rejected=(*rejected, *even.rejected),
        attributes=_attributes(plan, _first_row(even)),
    )


def _differing(source: NcuSource, head: Preamble, name: str, first: int, twin: int) -> NcuFileError:
    """The error for a table with two columns of one name, which names the first line in which they differ."""
    line, row = next(
        (line, row)
        for _, line, row in ncu_csv.rows(source, head)
        if len(row) > max(first, twin) and row[first] != row[twin]
    )
    line += ncu_csv.lines_before(source, head)
    reason = f"it has two columns {name}, and they differ in line {line}: '{row[first]}', '{row[twin]}'"
    hint = "export it again, or leave one of them out"
    return NcuFileError(source.path, reason, hint=hint, what="contradicts itself")


def _is_no_row(row: "pyarrow.csv.InvalidRow", plan: ReadingPlan, delimiter: str) -> bool:
    """Whether a line may be left out: a message, or an incomplete row of a wide table."""
    if row.actual_columns == 1:
        return True
    return plan.layout is Layout.WIDE and not ncu_csv.is_header(ncu_csv.cells(row.text, delimiter))


def _with_id(columns: pa.Table) -> pa.Table:
    launches = columns.column(ID)
    return columns.filter(launches.is_valid()) if launches.null_count else columns


def _first_row(even: _EvenRows) -> list[str]:
    return next((row for row in _cells(even) if len(row) == len(even.head.header)), [])


def _cells(even: _EvenRows) -> Iterator[list[str]]:
    """The cells of each line; a row whose cells contain line breaks comes in parts."""
    with even.source.open() as file:
        file.seek(even.start)
        for line in ncu_csv.byte_lines(file):
            yield ncu_csv.cells(line.decode(errors="replace"), even.head.delimiter)


def _attributes(plan: ReadingPlan, row: Sequence[str]) -> dict[str, str]:
    pairs = zip(plan.header, row, strict=False)
    return {name: value for name, value in pairs if name.startswith(metrics.ATTRIBUTE) and value not in numbers.ABSENT}


def _has_plain_numbers(even: _EvenRows) -> bool:
    """Whether the first rows have numbers without thousands marks and decimal commas, or no numbers."""
    positions = [even.plan.position(name) for name in even.plan.numbers]
    rows = itertools.islice(_cells(even), _SAMPLED_LINES)
    return all(_is_plain(row[position]) for row in rows for position in positions if position < len(row))


def _is_plain(text: str) -> bool:
    if text in numbers.ABSENT:
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- irregular tables


class _Collector:
    """Collects rows one by one, and keeps the required cells as columns."""

    def __init__(self, plan: ReadingPlan, source: NcuSource, head: Preamble) -> None:
        self._plan = plan
        self._file = (source, head)
        self._names = (ID, *plan.texts, *plan.numbers)
        self._twins = [(name, twin) for name in self._names for twin in plan.twins(name)]
        self._positions = [plan.position(name) for name in self._names]
        self._rows: list[list[str]] = []
        self._chunks: list[pa.Table] = []
        self._rejected: list[str] = []
        self._attributes: dict[str, str] | None = None

    def take(self, row: list[str]) -> None:
        """Keep a row of a launch; reject any other line."""
        if self._fits(row):
            if self._attributes is None:
                self._attributes = _attributes(self._plan, row)
            for name, twin in self._twins:
                if twin < len(row) and row[twin] != row[self._plan.position(name)]:
                    raise _differing(*self._file, name, self._plan.position(name), twin)
            self._rows.append([row[position] for position in self._positions])
            if len(self._rows) == _CHUNK_ROWS:
                self._flush()
        elif any(row) and len(self._rejected) < _REJECTED_LIMIT:
            self._rejected.append(",".join(row)[:_KEPT_CHARACTERS])

    def _fits(self, row: list[str]) -> bool:
        # In a details page, rows of metrics end before the columns of rules.
        shortest = len(self._plan.header) if self._plan.layout is Layout.WIDE else max(self._positions) + 1
        return shortest <= len(row) <= len(self._plan.header) and _is_id(row[self._positions[0]])

    def _flush(self) -> None:
        columns = dict(zip(self._names, zip(*self._rows, strict=True), strict=True)) if self._rows else {}
        self._rows.clear()
        arrays = {name: _known(columns.get(name, ())) for name in self._names}
        arrays[ID] = arrays[ID].cast(pa.int64())
        for name in self._plan.texts:
            arrays[name] = arrays[name].dictionary_encode()
        self._chunks.append(pa.table(arrays))

    def section(self) -> NcuTable:
        """The table with all rows so far."""
        self._flush()
        return NcuTable(
            plan=self._plan,
            columns=pa.concat_tables(self._chunks),
            rejected=tuple(self._rejected),
            attributes=self._attributes or {},
        )


def _known(cells: Sequence[str]) -> pa.Array:
    return pa.array([None if cell in numbers.ABSENT else cell for cell in cells], pa.string())


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS


def _irregular(source: NcuSource, head: Preamble) -> Iterator[NcuTable]:
    """Parse row by row: rows of several lengths, lines of the program between them, further headers."""
    table: TableHead | None = None
    collector: _Collector | None = None
    try:
        for its_table, _, row in ncu_csv.rows(source, head):
            if collector is None or its_table is not table:
                if collector:
                    yield collector.section()
                table, collector = its_table, _Collector(metrics.plan(its_table.header, its_table.units), source, head)
            collector.take(row)
    except DamagedTableError as error:
        hint = "export or download it again"
        raise NcuFileError(source.path, str(error), hint=hint) from error
    if collector:
        yield collector.section()
