"""Parse steps.csv and telemetry.csv into typed Arrow tables; an empty cell is absent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import csv

from workload.contract.bundle import STEP_COLUMNS, STEPS, TELEMETRY, TELEMETRY_COLUMNS
from workload.contract.text import counted

# A bit mask, written in hexadecimal.
MASK = "clock_event_reasons"


@dataclass(frozen=True, kw_only=True)
class SeriesFile:
    """A file of a bundle, and the types in which its columns are parsed; masks become floats in the tables."""

    file: str
    types: Mapping[str, pa.DataType]
    # False for telemetry, which has only columns for the machine's sensors.
    needs_every_column: bool = False

    @property
    def header(self) -> bytes:
        """The first line as written by this version."""
        return ",".join(self.types).encode() + b"\n"

    @property
    def struct(self) -> pa.DataType:
        """Type of a row in the index."""
        return pa.struct([(name, kept_type(kind)) for name, kind in self.types.items()])


def kept_type(read_as: pa.DataType) -> pa.DataType:
    """The type in which a column is kept: a mask becomes a float, which is wide enough, with NaN for absent."""
    return pa.float64() if read_as == pa.uint64() else read_as


LAYOUTS = {
    "steps": SeriesFile(
        file=STEPS,
        types={name: pa.float64() for name in STEP_COLUMNS} | {"phase": pa.string()},
        needs_every_column=True,
    ),
    "telemetry": SeriesFile(
        file=TELEMETRY,
        types={name: pa.float64() for name in TELEMETRY_COLUMNS} | {MASK: pa.uint64()},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """The rows of several files in one list array, a list per file, and remarks on unreadable parts per file."""

    lists: pa.ListArray
    remarks: Sequence[Sequence[str]]


def parse(layout: SeriesFile, contents: Sequence[bytes | None]) -> Series:
    """Parse one file per bundle; None for a bundle without the file."""
    joined = _parse_joined(layout, contents)
    return joined if joined is not None else _parse_each(layout, contents)


def _parse_joined(layout: SeriesFile, contents: Sequence[bytes | None]) -> Series | None:
    """Parse all files as one, which is much faster; None if a file differs from the format of this version."""
    bodies = []
    for content in contents:
        whole = _whole_lines(content)
        if whole is None or not whole.startswith(layout.header):
            return None
        bodies.append(whole[len(layout.header) :])
    counts = [body.count(b"\n") for body in bodies]
    try:
        table = _read(layout, layout.header + b"".join(bodies))
    except pa.ArrowException:
        return None
    if table.num_rows != sum(counts):
        return None
    return Series(lists=_lists(layout, table, counts), remarks=[[] for _ in contents])


def _parse_each(layout: SeriesFile, contents: Sequence[bytes | None]) -> Series:
    tables, remarks = [], []
    for content in contents:
        table, remark = _parse_one(layout, content)
        tables.append(table)
        remarks.append(remark)
    lists = _lists(layout, pa.concat_tables(tables), [table.num_rows for table in tables])
    return Series(lists=lists, remarks=remarks)


def _parse_one(layout: SeriesFile, content: bytes | None) -> tuple[pa.Table, list[str]]:
    whole = _whole_lines(content)
    nothing = _read(layout, layout.header)
    if not whole:
        return nothing, []
    ragged: list[int] = []
    try:
        whole.decode()
    except UnicodeDecodeError as error:
        return nothing, [f"{layout.file} is no UTF-8 text: byte {error.start}; left out"]
    try:
        table = _read(layout, whole, on_ragged=ragged.append)
    except pa.ArrowException as error:
        return nothing, [f"{layout.file} cannot be read: {_first_line(error)}; left out"]
    names = set(whole.split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(","))
    if table.num_rows and not set(layout.types) & names:
        return nothing, [f"{layout.file} has none of the columns {', '.join(layout.types)}; left out"]
    if layout.needs_every_column and (lacking := [name for name in layout.types if name not in names]):
        return nothing, [f"{layout.file} has no column {', '.join(lacking)}; left out"]
    remarks = (
        [f"{layout.file}: {counted(len(ragged), 'row')} with too many or too few cells; left out"] if ragged else []
    )
    return table, remarks


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200]


def _whole_lines(content: bytes | None) -> bytes | None:
    """Content without an incomplete last line, as left by a killed run; None if there is no complete line."""
    return None if content is None else content[: content.rfind(b"\n") + 1] or None


def _read(layout: SeriesFile, data: bytes, *, on_ragged: Callable[[int], None] | None = None) -> pa.Table:
    """Parse CSV. `ArrowException` for a cell of another type and, without `on_ragged`, for a row of another length."""

    def skip(row: csv.InvalidRow) -> str:
        if on_ragged:
            on_ragged(row.number or 0)
        return "skip"

    table = csv.read_csv(
        pa.BufferReader(data),
        # Threads do not pay at this size, and pyarrow numbers rows only without threads.
        read_options=csv.ReadOptions(use_threads=False, block_size=max(1 << 20, len(data))),
        parse_options=csv.ParseOptions(quote_char=False, invalid_row_handler=skip if on_ragged else None),
        convert_options=csv.ConvertOptions(
            column_types=dict(layout.types),
            include_columns=list(layout.types),
            include_missing_columns=True,
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    return table.cast(pa.schema([(name, kept_type(kind)) for name, kind in layout.types.items()]), safe=False)


def _lists(layout: SeriesFile, table: pa.Table, counts: Sequence[int]) -> pa.ListArray:
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + count)
    rows = table.combine_chunks().to_struct_array()
    flat = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat.cast(layout.struct))
