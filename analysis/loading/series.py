"""Parse steps.csv and telemetry.csv into typed Arrow tables, and find impossible rows of steps.csv.

An empty cell means that the value is absent.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from workload.contract.bundle import STEP_COLUMNS, STEPS, TELEMETRY, TELEMETRY_COLUMNS
from workload.contract.fields import LONGEST_S, SHORTEST_S
from workload.contract.text import counted

# A bit mask, written in hexadecimal.
MASK = "clock_event_reasons"


@dataclass(frozen=True, kw_only=True)
class SeriesFile:
    """A file of a bundle, and the types in which its columns are parsed; the tables have the types of `kept_type`."""

    file: str
    types: Mapping[str, pa.DataType]
    # False for telemetry, which has only columns for the machine's sensors.
    needs_every_column: bool = False

    @property
    def header(self) -> bytes:
        """The file's header line, as this version writes it."""
        return ",".join(self.types).encode() + b"\n"

    @property
    def struct(self) -> pa.DataType:
        """Type of a row in the index."""
        return pa.struct([(name, kept_type(kind)) for name, kind in self.types.items()])


def kept_type(read_as: pa.DataType) -> pa.DataType:
    """The type of a parsed column in the tables: float for a bit mask, with NaN for an absent value; else unchanged."""
    return pa.float64() if read_as == pa.uint64() else read_as


LAYOUTS = {
    "steps": SeriesFile(
        file=STEPS,
        types={name: pa.float64() for name in STEP_COLUMNS} | {"phase": pa.string()},
        needs_every_column=True,
    ),
    "telemetry": SeriesFile(
        file=TELEMETRY, types={name: pa.float64() for name in TELEMETRY_COLUMNS} | {MASK: pa.uint64()}
    ),
}


@dataclass(frozen=True, kw_only=True)
class ParsedFiles:
    """Contents of several files. `lists`: a list of rows per file; `remarks`: remarks on unreadable parts, per file."""

    lists: pa.ListArray
    remarks: Sequence[Sequence[str]]


def parse(layout: SeriesFile, contents: Sequence[bytes | None]) -> ParsedFiles:
    """Parse one file per bundle; None for a bundle without the file."""
    joined = _parse_joined(layout, contents)
    return joined if joined is not None else _parse_each(layout, contents)


def _parse_joined(layout: SeriesFile, contents: Sequence[bytes | None]) -> ParsedFiles | None:
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
    return ParsedFiles(lists=_lists(layout, table, counts), remarks=[[] for _ in contents])


def _parse_each(layout: SeriesFile, contents: Sequence[bytes | None]) -> ParsedFiles:
    tables, remarks = [], []
    for content in contents:
        table, remark = _parse_one(layout, content)
        tables.append(table)
        remarks.append(remark)
    lists = _lists(layout, pa.concat_tables(tables), [table.num_rows for table in tables])
    return ParsedFiles(lists=lists, remarks=remarks)


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
        return nothing, [f"{layout.file} cannot be read: {str(error).splitlines()[0][:200]}; left out"]
    names = set(whole.split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(","))
    if table.num_rows and not set(layout.types) & names:
        return nothing, [f"{layout.file} has none of the columns {', '.join(layout.types)}; left out"]
    if layout.needs_every_column and (lacking := [name for name in layout.types if name not in names]):
        return nothing, [f"{layout.file} has no column {', '.join(lacking)}; left out"]
    remarks = (
        [f"{layout.file}: {counted(len(ragged), 'row')} with too many or too few cells; left out"] if ragged else []
    )
    return table, remarks


def _whole_lines(content: bytes | None) -> bytes | None:
    """Content without an incomplete last line, as left by a killed run; None if there is no complete line."""
    return None if content is None else content[: content.rfind(b"\n") + 1] or None


def _read(layout: SeriesFile, data: bytes, *, on_ragged: Callable[[int], None] | None = None) -> pa.Table:
    """Parse CSV. A ragged row has more or fewer cells than the header.

    Ragged rows are skipped, and `on_ragged` gets the number of each; without `on_ragged`, a ragged row raises
    `ArrowException`. A cell of another type always raises `ArrowException`.
    """

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
    offsets = list(itertools.accumulate(counts, initial=0))
    rows = table.combine_chunks().to_struct_array()
    flat = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat.cast(layout.struct))


# --- impossible rows of steps.csv
#
# A bundle with an impossible row is refused, because all of its figures are in doubt. All runs of an index are checked
# at once, because there may be ten thousand. Imported logs were written by other programs: they may lack cells. Our own
# files must be complete.

PHASES = ("warmup", "measured")
MAX_IMAGES = 2.0**53
DURATION = f"must be seconds from 0 to {LONGEST_S:g}"
# Least and largest number of each column, and the rule in words. A clock that was set back may go below 0.
LIMITS: Mapping[str, tuple[float, float, str]] = {
    "step": (0, MAX_IMAGES, "must be a number from 0 on"),
    "ended_at_s": (-LONGEST_S, LONGEST_S, f"must be seconds up to {LONGEST_S:g}"),
    **dict.fromkeys(("data_s", "forward_s", "backward_s", "optimizer_s"), (0, LONGEST_S, DURATION)),
    "step_s": (SHORTEST_S, LONGEST_S, f"must be seconds from {SHORTEST_S:g} to {LONGEST_S:g}"),
    "images": (1, MAX_IMAGES, "must be a positive number"),
}


def refusals(lists: pa.ListArray, *, imported: Sequence[bool]) -> list[str | None]:
    """The first rule that the rows of each run break, with row number and cell; None if no rule is broken."""
    lengths = np.diff(lists.offsets.to_numpy())
    run, starts = np.repeat(np.arange(len(lengths)), lengths), np.append(0, np.cumsum(lengths))
    table = pa.Table.from_struct_array(lists.flatten())
    numbers = {name: table[name].to_numpy().astype(np.float64, copy=False) for name in LIMITS}
    may_lack = np.asarray(imported, dtype=bool)[run]
    known = pc.is_in(table["phase"], value_set=pa.array(PHASES)).to_numpy().astype(bool)
    broken = [("phase", "must be warmup or measured", ~known)]
    broken += [
        (name, rule, ~((numbers[name] >= low) & (numbers[name] <= high)) & ~(np.isnan(numbers[name]) & may_lack))
        for name, (low, high, rule) in LIMITS.items()
    ]
    is_later = np.diff(numbers["step"], prepend=np.nan) > 0
    begins = np.isin(np.arange(run.size), starts)
    broken.append(("step", "must grow from row to row", ~is_later & ~begins))
    refusal_of: list[str | None] = [None] * len(lengths)
    for column, rule, mask in broken:
        hits = np.flatnonzero(mask)
        for row in hits[np.unique(run[hits], return_index=True)[1]]:
            cell = table[column][int(row)].as_py()
            got = "an empty cell" if cell is None else f"'{cell[:60]}'" if isinstance(cell, str) else f"{cell:.10g}"
            text = f"steps.csv row {int(row - starts[run[row]]) + 1}: {column} {rule}; got {got}"
            refusal_of[run[row]] = refusal_of[run[row]] or text
    return refusal_of
