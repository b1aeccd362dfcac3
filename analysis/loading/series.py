"""Parse steps.csv and telemetry.csv into typed Arrow tables, and find impossible rows of steps.csv.

An empty cell means that the value is absent.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
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
# at once, because there may be ten thousand. Imported logs were written by other programs: they may lack cells, and
# their clock may have been set back. Our own files must be complete.

PHASES = ("warmup", "measured")
# CUDA gives the time between two events in milliseconds as a 32-bit float: 12 microseconds precision at 100 s.
CLOCK_DIGITS = 2.4e-7
# steps.csv has seven decimals; this allows for sums of several rounded figures.
ROUNDING_S = 1e-6
# Times of parts and time stamps come from the same clock; 1 % allows for different rounding.
ROOM = 1.01
MAX_IMAGES = 2.0**53

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRows:
    """Rows of several steps.csv, concatenated; `run`: index of each row's file, `imported`: mask of imported rows."""

    table: pa.Table
    run: npt.NDArray[np.intp]
    imported: Mask

    @cached_property
    def numbers(self) -> dict[str, Floats]:
        """Numeric columns by name; NaN for an empty cell or text."""
        names = [name for name in self.table.column_names if name != "phase"]
        return {name: self.table[name].to_numpy().astype(np.float64, copy=False) for name in names}

    @cached_property
    def phase(self) -> npt.NDArray[np.intp]:
        """Index in `PHASES` per row; -1 for any other word and for an empty cell."""
        places = pc.index_in(self.table["phase"], value_set=pa.array(PHASES)).fill_null(-1)
        return np.asarray(places.to_numpy(), dtype=np.intp)

    @cached_property
    def follows(self) -> Mask:
        """Mask of rows whose previous row is of the same file."""
        return np.append(False, self.run[1:] == self.run[:-1]) if self.run.size else np.empty(0, dtype=bool)

    def since(self, column: str) -> Floats:
        """Increase of a column since the previous row; NaN in the first row of a file."""
        return np.where(self.follows, np.diff(self.numbers[column], prepend=np.nan), np.nan)

    def outside(self, column: str, low: float, high: float) -> Mask:
        """Mask of rows in which a number is outside `low` to `high`, or is absent in a run of ours."""
        values = self.numbers[column]
        return ~((values >= low) & (values <= high)) & ~(np.isnan(values) & self.imported)


@dataclass(frozen=True, kw_only=True)
class RowRule:
    """A rule for rows of steps.csv; `breaks` returns a mask of rows that break it, `shown` is the column to quote."""

    shown: str
    rule: str
    breaks: Callable[[StepRows], Mask]


def _in_range(column: str, low: float, high: float, rule: str) -> RowRule:
    return RowRule(shown=column, rule=rule, breaks=lambda rows: rows.outside(column, low, high))


def _whole_steps(rows: StepRows) -> Mask:
    step = rows.numbers["step"]
    broken: Mask = rows.outside("step", 0, MAX_IMAGES) | (step != np.floor(step))
    return broken


def _no_time_stamp(rows: StepRows) -> Mask:
    """Mask of rows with a time stamp out of range; imported logs may go below 0, as their clock may be set back."""
    of_a_log, of_ours = rows.outside("ended_at_s", -LONGEST_S, LONGEST_S), rows.outside("ended_at_s", 0, LONGEST_S)
    return np.where(rows.imported, of_a_log, of_ours)


def _clock_stands(rows: StepRows) -> Mask:
    """Mask of rows of our own runs whose time stamp is reversed, or repeated after a step that the clock resolves."""
    took, ended = rows.numbers["step_s"], rows.numbers["ended_at_s"]
    advanced = rows.since("ended_at_s")
    repeated = (advanced == 0) & (took > CLOCK_DIGITS * ended + ROUNDING_S)
    broken: Mask = ((advanced < 0) | repeated) & ~rows.imported
    return broken


def _longer_than_there_was(rows: StepRows) -> Mask:
    """Mask of rows whose step and wait for data take longer than the time since the previous step ended."""
    took = rows.numbers["step_s"] + rows.numbers["data_s"]
    room = ROOM * rows.since("ended_at_s") + CLOCK_DIGITS * rows.numbers["ended_at_s"] + ROUNDING_S
    return (took > room) & ~rows.imported


def _warmup_after_measured(rows: StepRows) -> Mask:
    return rows.follows & (rows.phase < np.append(0, rows.phase[:-1]))


RULES = (
    RowRule(shown="phase", rule="must be warmup or measured", breaks=lambda rows: rows.phase < 0),
    RowRule(shown="step", rule="must be a whole number from 0 on", breaks=_whole_steps),
    RowRule(shown="step", rule="must grow from row to row", breaks=lambda rows: rows.since("step") <= 0),
    RowRule(shown="phase", rule="must not follow measured", breaks=_warmup_after_measured),
    RowRule(shown="ended_at_s", rule=f"must be seconds from 0 to {LONGEST_S:g}", breaks=_no_time_stamp),
    *(
        _in_range(name, 0, LONGEST_S, f"must be seconds from 0 to {LONGEST_S:g}")
        for name in ("data_s", "forward_s", "backward_s", "optimizer_s")
    ),
    _in_range("step_s", SHORTEST_S, LONGEST_S, f"must be seconds from {SHORTEST_S:g} to {LONGEST_S:g}"),
    _in_range("images", 1, MAX_IMAGES, "must be a positive number"),
    RowRule(shown="ended_at_s", rule="must be later than in the row before", breaks=_clock_stands),
    RowRule(
        shown="data_s",
        rule="and step_s must fit between ended_at_s of the row before and its own",
        breaks=_longer_than_there_was,
    ),
)


def refusals(lists: pa.ListArray, *, imported: Sequence[bool], measured_s: Sequence[float | None]) -> list[str | None]:
    """The first rule that the rows of each run break, with row number and cell; None if no rule is broken.

    `measured_s`: wall time of each run's measured steps in seconds; the waits for data must fit into it.
    """
    lengths = np.diff(lists.offsets.to_numpy())
    run = np.repeat(np.arange(len(lengths)), lengths)
    rows = StepRows(
        table=pa.Table.from_struct_array(lists.flatten()), run=run, imported=np.asarray(imported, dtype=bool)[run]
    )
    starts = np.append(0, np.cumsum(lengths))
    refusal_of: list[str | None] = [None] * len(lengths)
    with np.errstate(invalid="ignore"):
        for rule in RULES:
            hits = np.flatnonzero(rule.breaks(rows))
            _, firsts = np.unique(run[hits], return_index=True)
            for row in hits[firsts]:
                number = int(row - starts[run[row]]) + 1
                cell = rows.table[rule.shown][int(row)].as_py()
                refusal_of[run[row]] = (
                    refusal_of[run[row]] or f"steps.csv row {number}: {rule.shown} {rule.rule}; got {_cell(cell)}"
                )
    waits = np.bincount(run, weights=np.nan_to_num(rows.numbers["data_s"]) * (rows.phase == 1), minlength=len(lengths))
    for number, (wait_s, wall_s) in enumerate(zip(waits, measured_s, strict=True)):
        if wall_s is not None and wait_s > ROOM * wall_s + ROUNDING_S:
            refusal_of[number] = refusal_of[number] or (
                f"steps.csv: waits for data add up to {wait_s:.4g} s; they must fit into the {wall_s:.4g} s measured"
            )
    return refusal_of


def _cell(value: float | str | None) -> str:
    if value is None:
        return "an empty cell"
    return f"'{value[:60]}'" if isinstance(value, str) else f"{value:.10g}"
