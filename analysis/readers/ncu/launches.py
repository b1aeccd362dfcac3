"""Convert the cells of a table to one row per launch: its identity, and its metrics in base units by role.

Detect damage among a file's launches: duplicates, missing launches, and launches of several GPUs or processes.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.readers.ncu import metrics, numbers
from analysis.readers.ncu.metrics import WHOLE_UNITS, MetricRole
from analysis.readers.ncu.numbers import Floats, NumberFormat
from analysis.readers.ncu.table import NcuTable
from workload.contract.ncu_csv import ID, METRIC, NAME, PROCESS, PUSHED, STARTED, UNIT, VALUE, Layout, Quantity, factor
from workload.contract.text import plain

Codes = npt.NDArray[np.integer]
# If there are at most this many more codes than rows, counting is cheaper than sorting.
_FEW = 1 << 16
# Number of fields after the name: PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg.
_FIELDS_AFTER_NAME = 6
_QUOTED = re.compile(r'"([^"]*)"')
_RANGE_NUMBER = re.compile(r"\s*\d+[:\s]\s*")


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Launches of a table. `identity`: columns by our names; `by_role`: metrics in base units, NaN if absent.

    `units`: the file's spelling of the units of metrics that were read. `attributes`: attributes of the first GPU.
    `ids`: ncu's number of each launch. `gpus`: the GPU of each launch, in the file's words.
    """

    ids: npt.NDArray[np.int64]
    gpus: pd.Categorical
    identity: Mapping[str, pd.Categorical]
    by_role: Mapping[str, Floats]
    metrics: frozenset[str]
    units: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, str]
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.identity["name"])


def is_misread(section: NcuTable) -> bool:
    """Whether numbers read as floats may be integers with a thousands mark, as in 117.344 instructions."""
    if not section.is_numeric:
        return False
    columns = ((column.to_numpy(), is_whole) for column, is_whole in _columns(section))
    return any(is_whole and bool(np.any(np.floor(values) < values)) for values, is_whole in columns)


def number_columns(section: NcuTable) -> list[tuple[numbers.Text, bool]]:
    """Unparsed columns of numbers, each with a flag: True if its values are integers by nature, such as bytes.

    Empty if the numbers were parsed already.
    """
    return [] if section.is_numeric else list(_columns(section))


def _columns(section: NcuTable) -> Iterable[tuple[pa.ChunkedArray, bool]]:
    if section.plan.layout is Layout.WIDE:
        for metric in section.plan.numbers:
            yield section.columns.column(metric), section.plan.units.get(metric) in WHOLE_UNITS
        return
    values = section.columns.column(VALUE)
    names = section.columns.column(METRIC)
    present = [name for name in names.unique().to_pylist() if name is not None]
    wanted = {metric for role in metrics.known(present) for metric in role.metrics}
    is_read = pc.is_in(names, value_set=pa.array(sorted(wanted), pa.string()))
    if UNIT in section.columns.column_names:
        is_whole = pc.is_in(section.columns.column(UNIT), value_set=pa.array(sorted(WHOLE_UNITS), pa.string()))
        yield values.filter(pc.and_(is_read, is_whole)), True
        yield values.filter(pc.and_(is_read, pc.invert(is_whole))), False
    else:
        yield values.filter(is_read), False


def from_table(section: NcuTable, form: NumberFormat) -> Launches:
    """Launches of a table whose numbers have the format `form`."""
    return _from_wide(section, form) if section.plan.layout is Layout.WIDE else _from_long(section, form)


# --- wide


def _from_wide(section: NcuTable, form: NumberFormat) -> Launches:
    values: dict[str, Floats] = {}
    warnings = list(section.plan.warnings)
    for reading in section.plan.readings:
        measured, foreign = _numbers(section.columns.column(reading.metric), form)
        values[reading.role.name] = measured if reading.factor == 1 else measured * reading.factor
        warnings += _foreign(reading.metric, foreign)
    return Launches(
        ids=section.columns.column(ID).to_numpy(),
        gpus=_gpus(section.columns),
        identity=_identity(section.columns),
        by_role=values,
        metrics=frozenset(name for name in section.plan.header if not metrics.is_label(name)),
        units={reading.metric: (reading.unit,) for reading in section.plan.readings},
        attributes=section.attributes,
        warnings=tuple(warnings),
    )


def _numbers(column: pa.ChunkedArray, form: NumberFormat) -> tuple[Floats, str | None]:
    if pa.types.is_floating(column.type):
        return numbers.finite(column.to_numpy()), None
    return numbers.convert(column, form)


def _foreign(metric: str, text: str | None) -> list[str]:
    return [] if text is None else [f"{metric} is missing where its value is not a number: '{text[:80]}'"]


# --- long


def _from_long(section: NcuTable, form: NumberFormat) -> Launches:
    columns = section.columns
    launch, first = _launch_of_row(columns)
    metric_codes, metric_names = _coded(columns.column(METRIC))
    unit_codes, unit_names = _units_of_rows(columns)
    known = metrics.known(metric_names)
    read = {metric for role in known for metric in role.metrics}
    wanted = np.array([name in read for name in metric_names], dtype=bool)[metric_codes]
    cells, foreign = _numbers(columns.column(VALUE).filter(pa.array(wanted)), form)
    rows = _MetricRows(
        launch=launch[wanted],
        metric=metric_codes[wanted],
        unit=unit_codes[wanted],
        value=cells,
        metric_names=metric_names,
        unit_names=unit_names,
    )
    values, warnings = {}, _foreign("a metric", foreign)
    for role in known:
        role_values = rows.by_launch(role, len(first))
        if role_values is None:
            warnings += rows.unknown_units(role)
        else:
            values[role.name] = role_values
    firsts = columns.take(pa.array(first))
    warnings += _repeated_blocks(columns, len(first))
    return Launches(
        ids=firsts.column(ID).to_numpy(),
        gpus=_gpus(firsts),
        identity=_identity(firsts),
        by_role=values,
        metrics=frozenset(metric_names) - {""},
        units=rows.units(),
        attributes=_attributes(columns, launch == 0),
        warnings=tuple(warnings),
    )


def _repeated_blocks(columns: pa.Table, launches: int) -> list[str]:
    """A warning if rows of a launch begin again further down: the same export twice in one file, or two profiles."""
    ids = columns.column(ID).to_numpy()
    changes = np.diff(ids, prepend=ids[0] - 1 if len(ids) else 0) != 0
    if PROCESS in columns.column_names:
        processes, _ = _coded(columns.column(PROCESS))
        changes |= np.diff(processes, prepend=processes[:1]) != 0
    repeated = int(changes.sum()) - launches
    if repeated <= 0:
        return []
    return [f"{repeated} of the file's launches are in the file twice (same process and ID): each is counted once"]


@dataclass(frozen=True, kw_only=True)
class _MetricRows:
    """Rows of a long table whose metric has a role.

    `launch`: index of each row's launch. `metric`, `unit`: indices in `metric_names` and `unit_names`.
    """

    launch: Codes
    metric: Codes
    unit: Codes
    value: Floats
    metric_names: Sequence[str]
    unit_names: Sequence[str]

    def by_launch(self, role: MetricRole, launches: int) -> Floats | None:
        """A value per launch, from the role's first metric with a value in a fitting unit; None if there is none."""
        # An unknown unit becomes NaN.
        factors = np.array([factor(role.kind, unit) for unit in self.unit_names], dtype=np.float64)
        for metric in role.metrics:
            rows = self.metric == self.metric_names.index(metric)
            scaled = self.value[rows] * factors[self.unit[rows]]
            is_known = ~np.isnan(scaled)
            if is_known.any():
                by_launch = np.full(launches, np.nan)
                # In reverse, so that the first value counts: a details page repeats some metrics.
                by_launch[self.launch[rows][is_known][::-1]] = scaled[is_known][::-1]
                return by_launch
        return None

    def unknown_units(self, role: MetricRole) -> list[str]:
        """A warning if a metric of this role has numbers in an unknown unit; else an empty list.

        Labels of the details page are skipped, because a label may stand for a metric of another role.
        """
        for metric in role.metrics:
            rows = (self.metric == self.metric_names.index(metric)) & ~np.isnan(self.value)
            if rows.any() and not metrics.is_label(metric):
                return [metrics.unknown_unit(metric, self.unit_names[self.unit[rows].item(0)], role)]
        return []

    def units(self) -> dict[str, tuple[str, ...]]:
        """The file's spellings of the units of each metric."""
        width = len(self.unit_names)
        number = np.bincount(self.metric * width + self.unit, minlength=width * len(self.metric_names))
        units_of: dict[str, list[str]] = defaultdict(list)
        for pair in np.flatnonzero(number).tolist():
            units_of[self.metric_names[pair // width]].append(self.unit_names[pair % width])
        return {metric: tuple(units) for metric, units in units_of.items()}


def _launch_of_row(columns: pa.Table) -> tuple[Codes, Codes]:
    """Index of each row's launch in order of appearance, and the first row of each launch.

    A process and an ID identify a launch: many launches share name, block and grid.
    """
    ids = columns.column(ID).to_numpy()
    processes, names = _coded(columns.column(PROCESS)) if PROCESS in columns.column_names else (np.zeros_like(ids), [])
    if len(names) > 1:
        ids = pd.factorize(ids)[0] * len(names) + processes
    begins = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1 if len(ids) else 0))
    if len(np.unique(ids[begins])) == len(begins):
        launch = np.zeros(len(ids), np.int64)
        launch[begins] = 1
        return np.cumsum(launch) - 1, begins
    launch, unique = pd.factorize(ids)
    first = np.full(len(unique), len(ids))
    np.minimum.at(first, launch, np.arange(len(ids)))
    return launch.astype(np.int64), first


def _units_of_rows(columns: pa.Table) -> tuple[Codes, list[str]]:
    if UNIT not in columns.column_names:
        return np.zeros(len(columns), np.int64), [""]
    return _coded(columns.column(UNIT))


def _coded(column: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """Codes of a column's texts and the texts by code; an absent text becomes empty."""
    whole = column.unify_dictionaries().combine_chunks()
    names = [name or "" for name in whole.dictionary.to_pylist()]
    if whole.null_count == 0:
        return whole.indices.to_numpy(), names
    return pc.fill_null(whole.indices, len(names)).to_numpy(), [*names, ""]


def _attributes(columns: pa.Table, rows: npt.NDArray[np.bool_]) -> dict[str, str]:
    first = columns.filter(pa.array(rows))
    pairs = zip(first.column(METRIC).to_pylist(), first.column(VALUE).to_pylist(), strict=True)
    return {name: str(value) for name, value in pairs if name and name.startswith(metrics.ATTRIBUTE)}


# --- identity of a launch


def _identity(columns: pa.Table) -> dict[str, pd.Categorical]:
    """Our columns that identify each launch, in the order of the rows."""
    present = frozenset(columns.column_names)

    def text(name: str) -> pd.Categorical:
        return _categorical(columns.column(name)) if name in present else _empty_categorical(len(columns))

    return {
        "process_id": text(PROCESS),
        "range": _combined(
            columns, [_first_with_prefix(present, STARTED), _first_with_prefix(present, PUSHED)], range_names
        ),
        "name": text(NAME),
        "compute_capability": (
            text(metrics.CAPABILITY)
            if metrics.CAPABILITY in present
            else _combined(
                columns, [_if_present(present, metrics.MAJOR), _if_present(present, metrics.MINOR)], capability
            )
        ),
        "device": text(metrics.DEVICE_NAME),
        "block": text(metrics.BLOCK),
        "grid": text(metrics.GRID),
    }


def _gpus(columns: pa.Table) -> pd.Categorical:
    """The GPU of each launch: its name or compute capability, and its number."""
    present = frozenset(columns.column_names)
    kind = _if_present(present, metrics.DEVICE_NAME) or _if_present(present, metrics.CAPABILITY)

    def label(name: str | None, number: str | None) -> str | None:
        known = name if kind == metrics.DEVICE_NAME or not name else f"compute capability {name}"
        return f"{known or 'GPU'} (device {number})" if number else known

    return _combined(columns, [kind, _if_present(present, metrics.DEVICE)], label)


def capability(major: str | None, minor: str | None) -> str | None:
    """Compute capability such as `8.9`; None if a part is unknown."""
    return f"{major}.{minor}" if major and minor else None


def _first_with_prefix(names: Iterable[str], beginning: str) -> str | None:
    return next((name for name in sorted(names) if name.startswith(beginning)), None)


def _if_present(names: frozenset[str], name: str) -> str | None:
    return name if name in names else None


def _empty_categorical(length: int) -> pd.Categorical:
    return pd.Categorical.from_codes(np.full(length, -1), categories=pd.Index([], dtype=object))


def _categorical(column: pa.ChunkedArray) -> pd.Categorical:
    codes, names = _coded(column)
    return _recoded(codes, [name or None for name in names])


def _recoded(codes: Codes, names: Sequence[str | None]) -> pd.Categorical:
    """A categorical with one category per distinct name; None has no category."""
    new_codes, categories = pd.factorize(np.array([*names, None], dtype=object))
    return pd.Categorical.from_codes(new_codes[codes], categories=pd.Index(categories, dtype=object))


def _combined(
    columns: pa.Table, names: Sequence[str | None], combine: Callable[[str | None, str | None], str | None]
) -> pd.Categorical:
    """Combine two columns, either of them possibly absent, into a text per row; computed once per pair of texts."""
    (left, left_names), (right, right_names) = (
        (np.zeros(len(columns), np.int64), [""]) if name is None else _coded(columns.column(name)) for name in names
    )
    width = len(right_names)
    pairs, codes = _compact(left.astype(np.int64) * width + right, len(left_names) * width)
    texts = [combine(left_names[pair // width] or None, right_names[pair % width] or None) for pair in pairs]
    return _recoded(codes, texts)


def _compact(codes: Codes, number: int) -> tuple[Codes, Codes]:
    """The codes that occur, out of `number` possible ones, and the position of each row's code among them."""
    if number > len(codes) + _FEW:
        return np.unique(codes, return_inverse=True)
    occurs = np.bincount(codes, minlength=number) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[codes]


# --- NVTX ranges, as written by ncu; `workload.contract.vocabulary` defines those of our own profiles


def range_names(started: str | None, pushed: str | None) -> str | None:
    """Names of the ranges around a launch, from outside to inside, joined by slashes; None if there are none.

    `started`: ranges of `range_start`, process-wide; `pushed`: ranges of `range_push`, in the launching thread.
    """
    return "/".join([*_names_in(started or ""), *_names_in(pushed or "")]) or None


def _names_in(cell: str) -> list[str]:
    """Names of the ranges in a cell.

    `1  "<default domain>:step 0 forward:none:none:none:none:none:none" ` holds one range.
    """
    number = _RANGE_NUMBER.match(cell)
    quoted = _QUOTED.findall(cell) or [cell[number.end() :] if number else cell]
    return [name for described in quoted if (name := _name_of(described))]


def _name_of(described: str) -> str:
    rest = described.partition(":")[2]
    parts = rest.rsplit(":", _FIELDS_AFTER_NAME)
    return parts[0].strip() if len(parts) > _FIELDS_AFTER_NAME else rest.strip()


# --- damage

ADDITIVE = frozenset({Quantity.TIME, Quantity.BYTES, Quantity.COUNT})
_SHOWN = 3
# ncu rounds printed times to two decimals; a wrong unit is a factor of 1000.
_ROUNDED = 0.1
# One launch may find all of its data in the caches, so many cannot.
_SEVERAL = 10


@dataclass(frozen=True, kw_only=True)
class UniqueLaunches:
    """Tables with each launch once; `damage`: a sentence for each kind of dropped, duplicate or missing data.

    `is_incomplete`: launches are missing, so that every sum is too low.
    """

    tables: Sequence[Launches]
    damage: tuple[str, ...]
    is_incomplete: bool


def unique_launches(tables: Sequence[Launches]) -> UniqueLaunches:
    """Drop duplicate launches, and describe the damage. A process and an ID identify a launch."""
    identities = pd.DataFrame(
        {
            "process": np.concatenate([np.asarray(table.identity["process_id"].astype(object)) for table in tables]),
            "id": np.concatenate([table.ids for table in tables]),
        }
    )
    is_repeated = identities.duplicated().to_numpy()
    damage = [] if not is_repeated.any() else [_repetition(tables, identities, is_repeated)]
    if is_repeated.any():
        ends = np.cumsum([len(table) for table in tables])
        parts = np.split(~is_repeated, ends[:-1])
        tables = [_selected(table, kept) for table, kept in zip(tables, parts, strict=True)]
        tables = [table for table in tables if len(table)]
        identities = identities[~is_repeated]
    missing = _missing_launches(identities)
    if missing:
        damage.append(missing)
    damage += [sentence for table in tables for sentence in _absences(table)]
    processes = identities["process"].dropna().nunique()
    if processes > 1:
        damage.append(f"launches of {processes} processes are added up")
    return UniqueLaunches(tables=tables, damage=tuple(damage), is_incomplete=missing is not None)


def gpus_of(tables: Sequence[Launches]) -> dict[str, int]:
    """Number of launches on each GPU that the file names."""
    labels = pd.Series(np.concatenate([np.asarray(table.gpus.astype(object)) for table in tables])).dropna()
    return {str(label): int(number) for label, number in labels.value_counts(sort=False).items()}


def _absences(table: Launches) -> list[str]:
    """Warnings on metrics that some launches lack, so that their sums are unavailable."""
    sentences = []
    for role in metrics.known(table.metrics):
        values = table.by_role.get(role.name)
        absent = 0 if values is None or role.kind not in ADDITIVE else int(np.isnan(values).sum())
        if absent:
            why = "n/a, or in an unknown unit"
            sentences.append(
                f"{role.metrics[0]} has no value for {absent} of {len(table)} launches ({why}): sums of it "
                "are unavailable"
            )
    return sentences


def without_doubtful(table: Launches) -> tuple[Launches, tuple[str, ...]]:
    """The table with NaN for values that contradict others of the table, and a sentence for each such kind."""
    values, sentences = dict(table.by_role), []
    time = values.get("duration")
    if time is not None and (nothing := int((time == 0).sum())):
        values["duration"] = time = np.where(time == 0, np.nan, time)
        sentences.append(
            f"{nothing} of {len(table)} launches took 0 s by the file, which no launch does: times withheld"
        )
    for other in ("duration_max", "duration_avg"):
        again = values.pop(other, None)
        if time is None or again is None:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = again / time
        wrong = np.abs(ratios - 1) > _ROUNDED
        if wrong.any():
            ratio = plain(float(ratios[wrong][0]), 3)
            name = f"gpu__time_duration.{other.removeprefix('duration_')}"
            values["duration"] = np.full(len(table), np.nan)
            sentences.append(f"times withheld: by {name} a launch takes {ratio} x its time, perhaps a unit is wrong")
            break
    read, dram = values.get("dram_read"), values.get("dram")
    if read is not None and len(table) >= _SEVERAL and not np.nansum(read) and not np.isnan(read).all():
        values["dram_read"] = np.full(len(table), np.nan)
        if dram is not None:
            values["dram"] = np.full(len(table), np.nan)
        sentences.append(f"bytes of DRAM withheld: {len(table)} launches read 0 bytes by the file, which no step does")
    return replace(table, by_role=values), tuple(sentences)


def _selected(table: Launches, kept: npt.NDArray[np.bool_]) -> Launches:
    return replace(
        table,
        identity={name: values[kept] for name, values in table.identity.items()},
        by_role={name: values[kept] for name, values in table.by_role.items()},
        ids=table.ids[kept],
        gpus=table.gpus[kept],
    )


def _repetition(tables: Sequence[Launches], identities: pd.DataFrame, is_repeated: npt.NDArray[np.bool_]) -> str:
    """A sentence on the number of duplicate launches, and on whether their figures are equal."""
    figures = pd.concat(
        [pd.DataFrame(dict(table.by_role), index=range(len(table))) for table in tables], ignore_index=True
    )
    figures["name"] = np.concatenate([np.asarray(table.identity["name"].astype(object)) for table in tables])
    alike = pd.concat([identities, figures], axis=1).duplicated().to_numpy()
    number = int(is_repeated.sum())
    if alike[is_repeated].all():
        return f"{_number_of(number)} twice in the file (same process and ID): each is counted once"
    return (
        f"{_number_of(number)} twice in the file (same process and ID) with different figures: only the "
        "first is counted; perhaps two profiles were written into one file"
    )


def _missing_launches(identities: pd.DataFrame) -> str | None:
    """A sentence on missing IDs between the first and the last; None if there are none.

    Processes count separately if their IDs overlap.
    """
    groups = [group["id"].to_numpy() for _, group in identities.groupby("process", dropna=False, sort=False)]
    if sum(len(np.unique(ids)) for ids in groups) == identities["id"].nunique():
        groups = [identities["id"].to_numpy()]
    gaps = [gap for ids in groups for gap in _gaps(np.unique(ids))]
    if not gaps:
        return None
    number = sum(last - first + 1 for first, last in gaps)
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in gaps[:_SHOWN])
    more = f" and {len(gaps) - _SHOWN} more gaps" if len(gaps) > _SHOWN else ""
    return (
        f"{_number_of(number)} missing, of {number + len(identities)} (IDs {shown}{more}): sums cover only the others"
    )


def _number_of(number: int) -> str:
    return "1 launch is" if number == 1 else f"{number} launches are"


def _gaps(ids: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """First and last of each range of missing IDs; `ids` must be sorted."""
    places = np.flatnonzero(np.diff(ids) > 1)
    return [(int(ids[place]) + 1, int(ids[place + 1]) - 1) for place in places]
