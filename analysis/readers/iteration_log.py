"""Parse logs of other programs into one value per row and field, in this project's units. Standard library only.

import_columns.toml gives the meaning and unit of each column. The header says what a row is: an iteration (or a printed
one out of several), or a whole run. A file whose step column, times and time stamps contradict each other is refused.
"""

import itertools
import math
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from analysis.readers import tables, training_logs
from analysis.readers.tables import (
    NUMBER,
    PANDAS_INDEX,
    READABLE,
    ForeignTable,
    RunFigures,
    looks_like,
    without_second_half,
)
from workload.contract.errors import UsageError
from workload.contract.text import plain

TABLE = Path(__file__).with_name("import_columns.toml")
ABSENT = frozenset({"", "nan", "n/a", "na", "none", "null", "-"})
SERIES = ("step_s", "data_s", "images_per_s", "timestamp", "loss", "step", "images", "elapsed_s")
LABELS = ("model", "batch_size", "precision", "device_name", "device_type", "place", "torch", "image_size")
# Number of a line, and its cells.
_Row: TypeAlias = tuple[int, Sequence[str]]
# Fields that time a row.
TIMERS = ("step_s", "images_per_s", "elapsed_s")
POSITIVE = ("step_s", "images_per_s", "images")
# Upper limit of plausible seconds, images per second and losses; its inverse is the lower limit of positive fields.
LIMIT = 1e12
# One day: no iteration takes longer, so a larger figure is in another unit than its column says.
LONGEST_ITERATION_S = 86_400.0
# Largest number of column names that a message lists.
SHOWN = 12
# Largest number of digits of a batch size: a longer number is no batch size.
MOST_DIGITS = 11
# Fields of iterations. A table of rates without any of them has a row per run.
OF_ITERATIONS = ("step", "epoch", "data_s", "timestamp", "loss")
# A column of words may separate runs if each word has this many rows on average.
FEW_ROWS = 5
# If time stamps are this many iteration times apart, they do not belong to iterations. A timer that does not wait for
# its GPU reads a tenth of the step at worst; a slow data loader makes iterations about ten times as long as the step.
RUNS_APART = 50.0
# If the time between rows, per iteration, is below this share of the iteration time, the iterations cannot have run one
# after the other.
DOES_NOT_FIT = 0.5
# Figures of a run that differ by at most this share count as the same: they are rounded, and rates may include waits.
ALIKE = 0.2


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """Meaning of the column `name`, from import_columns.toml.

    `field`: field of our tables. `factor`: converts the column's unit to ours. `includes_data`: the time includes the
    wait for data. `source`: where the meaning is documented.
    """

    name: str
    field: str
    factor: float
    includes_data: bool
    source: str


@dataclass(frozen=True, kw_only=True)
class Log:
    """A run of a log in this project's units.

    `series`: a value per row for each field, None for an empty cell. `labels`: words of the file, unchanged. `columns`:
    the source column of each field. `ignored`: names of the other columns. `cut`: number of rows left out because the
    file breaks off in them. `lines`: line numbers of the rows in the file. `iterations`: per row, the number of
    iterations since the previous row. `wall_s`: seconds from the first row to the last, if the file gives them other
    than by time stamps. `has_zone`: False if the time stamps lack a time zone, so that only their differences are
    known. `figures`: figures of a run without rows. `images_per_row`: from a column that counts images. `remarks`: a
    sentence for each omission or decision. `losses`: a sentence for each part that the file holds twice.
    `contradictions`: a sentence for each disagreement between columns.
    """

    kind: str
    series: Mapping[str, Sequence[float | None]]
    labels: Mapping[str, str]
    columns: Mapping[str, Meaning]
    ignored: Sequence[str]
    rows: int
    cut: int
    lines: Sequence[int] = ()
    iterations: Sequence[int] = ()
    wall_s: float | None = None
    has_zone: bool = True
    figures: RunFigures | None = None
    remarks: tuple[str, ...] = ()
    images_per_row: float | None = None
    losses: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The known columns of a table by field."""

    file: str
    table: ForeignTable
    by_field: Mapping[str, tuple[Meaning, int]]

    def label(self, name: str, row: Sequence[str]) -> str:
        """The text of a label in this row, or empty; all columns that name the place (or the run) make one label."""
        if name not in self.by_field:
            return ""
        where = _all_of(name, self.table.header) if name in {"place", "run"} else [self.by_field[name][1]]
        words = (row[index].strip() for index in where)
        return " ".join(dict.fromkeys(word for word in words if word.lower() not in ABSENT))

    @property
    def are_runs(self) -> bool:
        """Whether each row is a run: it has a rate, and no column that only iterations have."""
        of_iterations = self.table.iterations is not None or not self.by_field.keys().isdisjoint(OF_ITERATIONS)
        return "images_per_s" in self.by_field and not of_iterations


@cache
def meanings() -> Mapping[str, Meaning]:
    """Rows of import_columns.toml by column name, in file order."""
    rows: Mapping[str, Mapping[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: Meaning(
            name=name,
            field=row["field"],
            factor=row.get("factor", 1.0),
            includes_data=row.get("includes_data", False),
            source=row["source"],
        )
        for name, row in rows.items()
    }


def is_log(header: Sequence[str]) -> bool:
    """Whether a table with these columns has a column that times its rows."""
    return any(meaning.field in TIMERS for meaning, _ in _known_columns(header).values())


def read(text: str, *, file: str, batch_size: int | None = None) -> Sequence[Log]:
    """Parse a log into its runs; `file` is the name used in messages.

    `batch_size`: the user's batch size, with which rates are converted to step times. Raises `UsageError`, which names
    the row and the column that cannot be read.
    """
    text, is_doubled = without_second_half(text)
    logs = _logs(text, file, batch_size)
    twice = "the file contains everything twice: its second half is left out"
    return [replace(log, losses=(twice, *log.losses)) for log in logs] if is_doubled else logs


def _logs(text: str, file: str, batch_size: int | None) -> Sequence[Log]:
    known = training_logs.read(text)
    if known and known.figures:
        return [replace(_empty_log(known, {}), figures=known.figures, labels=known.labels, remarks=known.remarks)]
    if known is None:
        _refuse_other_files(text, file)
    table = known or tables.read(text, file=file, is_header=is_log)
    by_field = _known_columns(table.header)
    if not any(name in by_field for name in TIMERS):
        raise _no_timer(table, file)
    if not table.rows:
        raise UsageError(
            f"'{file}' has a header and no rows", hint="import the log of a run that reached its first step"
        )
    columns = _Columns(file=file, table=table, by_field=by_field)
    runs = _runs(columns, batch_size)
    if not any(_is_timed(run) for run in runs):
        empty = _shown([meaning.name for name, (meaning, _) in by_field.items() if name in TIMERS])
        raise UsageError(
            f"'{file}' must time at least one row; no cell under {empty} has a value",
            hint="import a log with times of iterations",
        )
    return runs


def _runs(columns: _Columns, batch_size: int | None) -> list[Log]:
    """Split the table into runs: one per row of a table of rates, else one per set of labels."""
    if columns.are_runs:
        return [_log_of_row(columns, line, row) for line, row in columns.table.rows]
    groups = _groups(columns)
    parts = [part for rows in groups for part in _without_restart(columns, rows)]
    logs = [_log_of_rows(columns, rows, keep_means=len(parts) == 1) for rows in parts]
    for log in logs:
        _refuse_contradictions(log, columns.file, batch_size)
    if len(parts) > len(groups):
        step = columns.by_field["step"][0].name
        remark = f"{step} starts again: what follows is another run; if it is an epoch, add a column epoch"
        logs = [replace(log, remarks=(*log.remarks, remark)) for log in logs]
    return [_with_unread_words(log, columns.table, rows) for log, rows in zip(logs, parts, strict=True)]


def _groups(columns: _Columns) -> list[list[_Row]]:
    """Rows grouped into runs by their labels, in the order in which the runs begin."""
    names = [name for name in (*LABELS, "run") if name in columns.by_field]
    groups: dict[tuple[str, ...], list[_Row]] = {}
    for line, row in columns.table.rows:
        groups.setdefault(tuple(columns.label(name, row) for name in names), []).append((line, row))
    return list(groups.values())


def _without_restart(columns: _Columns, rows: Sequence[_Row]) -> list[Sequence[_Row]]:
    """The rows before and after each place at which the step column starts again, unless a new epoch begins there."""
    (_, step), (_, epoch) = (columns.by_field.get(name, (None, -1)) for name in ("step", "epoch"))
    if step < 0:
        return [rows]
    numbers = [float(cell) if NUMBER.fullmatch(cell := row[step].strip()) else math.nan for _, row in rows]
    cuts = [
        index
        for index in range(1, len(rows))
        if numbers[index - 1] > numbers[index] == numbers[0]
        and (epoch < 0 or rows[index - 1][1][epoch] == rows[index][1][epoch])
    ]
    return [rows[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(rows)])]


def _with_unread_words(log: Log, table: ForeignTable, rows: Sequence[_Row]) -> Log:
    """The log with a sentence for each unread column of words that separates runs, or that differs between its rows."""
    losses, remarks = [], []
    for index, name in enumerate(table.header):
        if name not in log.ignored:
            continue
        words, all_words = (dict.fromkeys(row[index].strip() for _, row in some) for some in (rows, table.rows))
        is_few = 1 < len(all_words) <= len(table.rows) / FEW_ROWS
        if not is_few or all(NUMBER.fullmatch(word) or word.lower() in ABSENT for word in all_words):
            continue
        if len(words) > 1:
            losses.append(f"column '{name[:80]}' is not read; it may separate the rows of this run: {_shown([*words])}")
        else:
            remarks.append(f"column '{name[:80]}' is not read; in this run it is {_shown([*words])}")
    return replace(log, losses=(*log.losses, *losses), remarks=(*log.remarks, *remarks))


def _is_timed(log: Log) -> bool:
    """Whether the file gives a duration, a rate or a time stamp for this run."""
    if log.figures:
        return bool(log.figures.step_s or log.figures.images_per_s)
    times = (log.series.get(name, ()) for name in (*TIMERS, "timestamp"))
    return bool(log.wall_s) or any(value is not None for values in times for value in values)


def _refuse_other_files(text: str, file: str) -> None:
    """Raise `UsageError` for a text without a table that could be a log; the message names the likely file format."""
    if not text.strip():
        raise UsageError(f"'{file}' is empty", hint="check whether the program could write its log")
    if tables.find_header(text, is_log) is not None:
        return
    if likely := looks_like(b"", text):
        raise UsageError(f"'{file}' looks like {likely[0]}; {READABLE}", hint=likely[1])
    first_line = text.lstrip().split("\n", 1)[0]
    if not any(mark in first_line for mark in tables.DELIMITERS):
        raise UsageError(
            f"'{file}' is not a known kind of log; it begins with '{first_line[:80].strip()}'; {READABLE}",
            hint="import a table with a row per iteration, and a column such as iter_time_ms",
        )


def _no_timer(table: ForeignTable, file: str) -> UsageError:
    known = ", ".join(name for name, meaning in meanings().items() if meaning.field in TIMERS)
    if any(name.lower().startswith("infer") for name in table.header):
        return UsageError(
            f"'{file}' has rates of inference, and a run trains; it has {_shown(table.header)}",
            hint="import results of training, which benchmark.py of timm can measure too",
        )
    return UsageError(
        f"'{file}' has no column that is known to hold a step time; it has {_shown(table.header)}",
        hint=f"rename the column to one of {known}, with the right unit",
    )


def _known_columns(header: Sequence[str]) -> dict[str, tuple[Meaning, int]]:
    """Meaning and column index of each known field.

    If several columns have one field, the column whose name comes first in import_columns.toml is read. Of columns with
    equal names, the first column is read.
    """
    where = {name.strip().lower(): index for index, name in reversed(list(enumerate(header)))}
    columns: dict[str, tuple[Meaning, int]] = {}
    for name, meaning in meanings().items():
        if name in where:
            columns.setdefault(meaning.field, (meaning, where[name]))
    return columns


def _all_of(field_name: str, header: Sequence[str]) -> list[int]:
    """Indices of all columns with this field."""
    known = (meanings().get(name.strip().lower()) for name in header)
    return [index for index, meaning in enumerate(known) if meaning and meaning.field == field_name]


# --- logs of runs


def _log_of_row(columns: _Columns, line: int, row: Sequence[str]) -> Log:
    """Make the log of a run that has a single row in the table."""
    values = {
        name: _value(columns, line, meaning, row[index])
        for name, (meaning, index) in columns.by_field.items()
        if name in SERIES
    }
    rate, images, wall_s = (values.get(name) for name in ("images_per_s", "images", "elapsed_s"))
    figures = RunFigures(images_per_s=rate, step_s=values.get("step_s"), images=images, wall_s=wall_s)
    remark = "a table with a row per run: nothing in the table confirms its figures"
    wrong = []
    if rate and images and wall_s and abs(rate * wall_s / images - 1) > ALIKE:
        wrong.append(
            f"the file says {plain(rate, 4)} images/s, and {plain(images, 4)} images in {plain(wall_s, 4)} s are"
            f" {plain(images / wall_s, 4)}"
        )
    return replace(
        _empty_log(columns.table, columns.by_field),
        figures=figures,
        labels=_labels(columns, [(line, row)]),
        lines=[line],
        remarks=() if images and wall_s else (remark,),
        contradictions=tuple(wrong),
    )


def _empty_log(table: ForeignTable, by_field: Mapping[str, tuple[Meaning, int]]) -> Log:
    """A log without rows, with the facts that all runs of a table share."""
    used = {index for _, index in by_field.values()}
    used |= {index for name in ("place", "run") for index in _all_of(name, table.header)}
    return Log(
        kind=table.kind,
        series={},
        labels={},
        columns={name: meaning for name, (meaning, _) in by_field.items()},
        ignored=[
            name for index, name in enumerate(table.header) if index not in used and name.lower() not in PANDAS_INDEX
        ],
        rows=0,
        cut=table.cut,
    )


def _log_of_rows(columns: _Columns, rows: Sequence[tuple[int, Sequence[str]]], *, keep_means: bool) -> Log:
    """Make the log of a run that has a row per iteration, or per printed iteration."""
    table = columns.table
    series: dict[str, Sequence[float | None]] = {
        name: [_value(columns, line, meaning, row[index]) for line, row in rows]
        for name, (meaning, index) in columns.by_field.items()
        if name in SERIES and name != "timestamp"
    }
    has_zone = True
    if "timestamp" in columns.by_field:
        meaning, index = columns.by_field["timestamp"]
        stamps = [_timestamp(columns.file, line, meaning, row[index]) for line, row in rows]
        zones = {zoned for stamp_s, zoned in stamps if stamp_s is not None}
        if len(zones) > 1:
            raise UsageError(
                f"'{columns.file}': some time stamps say their time zone and others do not", hint="correct the file"
            )
        has_zone = zones != {False}
        series["timestamp"] = [stamp_s for stamp_s, _ in stamps]
    iterations, remarks = _iterations(series.get("step"), len(rows))
    if "timestamp" not in series and _is_increasing(series.get("elapsed_s")):
        # Seconds since the run began serve as time stamps.
        series["timestamp"], has_zone = series["elapsed_s"], False
    elif not has_zone:
        remarks.append("time stamps without a time zone: durations are known, but not when the run started")
    if keep_means and table.iterations is not None:
        iterations = list(table.iterations)
    stride = statistics.mode(iterations[1:]) if len(iterations) > 1 else 1
    if stride > 1:
        remarks.append(
            f"a row every {stride} iterations: the other iterations count in the wall time, but not as steps"
        )
    labels = dict(table.labels) | _labels(columns, rows)
    per_row = _images_per_row(series.get("images"))
    if per_row:
        labels.setdefault("batch_size", str(round(per_row / stride)))
    return replace(
        _empty_log(columns.table, columns.by_field),
        series=series,
        labels=labels,
        rows=len(rows),
        lines=[line for line, _ in rows],
        iterations=iterations,
        wall_s=table.wall_s if keep_means else None,
        has_zone=has_zone,
        remarks=(*table.remarks, *remarks),
        images_per_row=per_row,
    )


def _is_increasing(values: Sequence[float | None] | None) -> bool:
    """Whether all values are known and strictly increasing, like readings of a clock or a counter."""
    known = [value for value in values or () if value is not None]
    return len(known) > 1 and len(known) == len(values or ()) and all(a < b for a, b in itertools.pairwise(known))


def _images_per_row(images: Sequence[float | None] | None) -> float | None:
    """Most frequent number of images per row; None if unknown.

    `images`: the cells of a column that counts the images of each row, or all images since the run began.
    """
    known = [value for value in images or () if value is not None]
    if not known or len(known) != len(images or ()):
        return None
    advances = [after - before for before, after in itertools.pairwise(known)] if _is_increasing(known) else known
    return statistics.mode(advances) if min(advances) > 0 else None


def _labels(columns: _Columns, rows: Iterable[tuple[int, Sequence[str]]]) -> dict[str, str]:
    every = list(rows)
    words = {name: [columns.label(name, row) for _, row in every] for name in LABELS if name in columns.by_field}
    return {name: next(filter(None, cells)) for name, cells in words.items() if any(cells)}


def _iterations(steps: Sequence[float | None] | None, rows: int) -> tuple[list[int], list[str]]:
    """Number of iterations since the previous row, for each row, and remarks.

    A row at which the step column restarts gets the most common number of the other rows.
    """
    if steps is None or None in steps or len(set(steps)) == 1:
        return [1] * rows, []
    numbers = [step for step in steps if step is not None]
    if any(number != math.floor(number) for number in numbers):
        return [1] * rows, ["the step column holds no whole numbers, and is not read"]
    advances = [int(after - before) for before, after in itertools.pairwise(numbers)]
    usual = statistics.mode([advance for advance in advances if advance > 0] or [1])
    return [1, *(advance if advance > 0 else usual for advance in advances)], []


# --- contradictions within a log


def _refuse_contradictions(log: Log, file: str, batch_size: int | None) -> None:
    """Raise `UsageError` if step column, times and time stamps contradict each other."""
    times = [value for value in log.series.get("step_s", ()) if value is not None]
    if not times:
        label = log.labels.get("batch_size", "")
        images = batch_size or (int(label) if label.isascii() and label.isdigit() and len(label) <= MOST_DIGITS else 0)
        times = [images / rate for rate in log.series.get("images_per_s", ()) if rate and images]
    stamps = log.series.get("timestamp", ())
    intervals_s = [
        (after - before) / count
        for before, after, count in zip(stamps, stamps[1:], log.iterations[1:], strict=False)
        if before is not None and after is not None and after > before
    ]
    if not times or not intervals_s:
        return
    iteration_s, interval_s = statistics.median(times), statistics.median(intervals_s)
    stride = statistics.mode(log.iterations[1:])
    if stride > 1 and interval_s < DOES_NOT_FIT * iteration_s:
        raise UsageError(
            f"'{file}' contradicts itself: its column {log.columns['step'].name} advances by {stride} a row, and"
            f" {stride} iterations of {iteration_s:.3g} s do not fit into the {interval_s * stride:.3g} s between its"
            " time stamps",
            hint=f"if each row is an iteration, remove the column {log.columns['step'].name}; if each time is that of"
            f" {stride} iterations together, divide the times by {stride}",
        )
    if interval_s >= RUNS_APART * iteration_s:
        raise UsageError(
            f"'{file}' contradicts itself: its time stamps are {plain(interval_s / iteration_s, 3)} times as far "
            f"apart as an iteration of {iteration_s:.3g} s takes",
            hint="if each row is a run, write a table of rates: gpu,model,precision,batch,img_per_s",
        )


# --- cells


def _value(columns: _Columns, line: int, meaning: Meaning, cell: str) -> float | None:
    text, file = cell.strip(), columns.file
    if text.lower() in ABSENT:
        return None
    value = float(text) * meaning.factor if NUMBER.fullmatch(text) else math.nan
    if math.isnan(value):
        raise _refusal(file, line, meaning, text, "is no number")
    if meaning.field in POSITIVE and value <= 0:
        raise _refusal(file, line, meaning, text, "must be positive")
    if abs(value) > LIMIT or (meaning.field in POSITIVE and value < 1 / LIMIT):
        raise _refusal(file, line, meaning, text, "is not a measured value")
    if meaning.field in {"step_s", "data_s"} and value > LONGEST_ITERATION_S:
        raise _refusal(file, line, meaning, text, f"would be {plain(value, 3)} s, longer than a day: another unit?")
    if meaning.field in {"data_s", "elapsed_s"} and value < 0:
        raise _refusal(file, line, meaning, text, "must not be negative")
    return value


def _timestamp(file: str, line: int, meaning: Meaning, cell: str) -> tuple[float | None, bool]:
    """Unix time in seconds, and whether the cell gives its time zone."""
    text = cell.strip()
    try:
        return (None, True) if text.lower() in ABSENT else tables.unix_time(text)
    except ValueError as error:
        raise _refusal(file, line, meaning, text, str(error)) from error


def _refusal(file: str, line: int, meaning: Meaning, text: str, why: str) -> UsageError:
    return UsageError(
        f"'{file}' line {line}: {meaning.name} {why}; got '{text[:80]}'", hint="correct the file, or leave the row out"
    )


def _shown(words: Sequence[str]) -> str:
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(f"'{word[:80]}'" for word in words[:SHOWN]) + more
