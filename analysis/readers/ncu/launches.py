"""Convert the cells of a table to one row per launch: its identity, and its metrics in base units by role.

Detect damage among a file's launches: duplicates, missing launches, and launches of several GPUs or processes.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.readers.ncu import metrics
from analysis.readers.ncu.metrics import WHOLE_UNITS, MetricRole
from analysis.readers.ncu.table import Floats, NcuTable, convert, finite, require_whole
from workload.contract.ncu_csv import ID, METRIC, NAME, PROCESS, PUSHED, STARTED, UNIT, VALUE, Layout, Quantity, factor
from workload.contract.text import plain

Codes = npt.NDArray[np.integer]
# Number of fields after the name: PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg.
_FIELDS_AFTER_NAME = 6
_QUOTED = re.compile(r'"([^"]*)"')
_RANGE_NUMBER = re.compile(r"\s*\d+[:\s]\s*")


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Launches of a table. `identity`: columns by our names; `by_role`: metrics in base units, NaN if absent.

    `attributes`: attributes of the first GPU. `ids`: ncu's number of each launch. `gpus`: the GPU of each launch, in
    the file's words. `metrics`: names of all metrics in the table.
    """

    ids: npt.NDArray[np.int64]
    gpus: pd.Categorical
    identity: Mapping[str, pd.Categorical]
    by_role: Mapping[str, Floats]
    metrics: frozenset[str]
    attributes: Mapping[str, str]
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.identity["name"])


def from_table(section: NcuTable) -> Launches:
    """Read the launches of a table. Raises `DecimalCommaError` if its numbers have decimal commas."""
    return _from_wide(section) if section.plan.layout is Layout.WIDE else _from_long(section)


# --- wide


def _from_wide(section: NcuTable) -> Launches:
    values: dict[str, Floats] = {}
    warnings = list(section.plan.warnings)
    for reading in section.plan.readings:
        measured, foreign = _numbers(section.columns.column(reading.metric))
        if reading.unit in WHOLE_UNITS and reading.metric.endswith(".sum"):
            require_whole(measured)
        values[reading.role.name] = measured if reading.factor == 1 else measured * reading.factor
        warnings += _foreign(reading.metric, foreign)
    return Launches(
        ids=section.columns.column(ID).to_numpy(),
        gpus=_gpus(section.columns),
        identity=_identity(section.columns),
        by_role=values,
        metrics=frozenset(name for name in section.plan.header if not metrics.is_label(name)),
        attributes=section.attributes,
        warnings=tuple(warnings),
    )


def _numbers(column: pa.ChunkedArray) -> tuple[Floats, str | None]:
    if pa.types.is_floating(column.type):
        return finite(column.to_numpy()), None
    return convert(column)


def _foreign(metric: str, text: str | None) -> list[str]:
    return [] if text is None else [f"{metric} is missing where its value is not a number: '{text[:80]}'"]


# --- long


def _from_long(section: NcuTable) -> Launches:
    columns = section.columns
    launch, first = _launch_of_row(columns)
    metric_codes, metric_names = _coded(columns.column(METRIC))
    has_units = UNIT in columns.column_names
    unit_codes, unit_names = _coded(columns.column(UNIT)) if has_units else (np.zeros(len(columns), np.int64), [""])
    known = metrics.known(metric_names)
    read = {metric for role in known for metric in role.metrics}
    wanted = np.array([name in read for name in metric_names], dtype=bool)[metric_codes]
    cells, foreign = _numbers(columns.column(VALUE).filter(pa.array(wanted)))
    rows = _MetricRows(
        launch=launch[wanted],
        metric=metric_codes[wanted],
        unit=unit_codes[wanted],
        value=cells,
        metric_names=metric_names,
        unit_names=unit_names,
    )
    require_whole(cells[np.isin(rows.unit, [unit_names.index(unit) for unit in WHOLE_UNITS & {*unit_names}])])
    values, warnings = {}, _foreign("a metric", foreign)
    for role in known:
        role_values = rows.by_launch(role, len(first))
        if role_values is None:
            warnings += rows.unknown_units(role)
        else:
            values[role.name] = role_values
    firsts = columns.take(pa.array(first))
    of_first = columns.filter(pa.array(launch == 0))
    cells_of_first = zip(of_first.column(METRIC).to_pylist(), of_first.column(VALUE).to_pylist(), strict=True)
    warnings += _repeated_blocks(columns, len(first))
    return Launches(
        ids=firsts.column(ID).to_numpy(),
        gpus=_gpus(firsts),
        identity=_identity(firsts),
        by_role=values,
        metrics=frozenset(metric_names) - {""},
        attributes={name: str(cell) for name, cell in cells_of_first if name and name.startswith(metrics.ATTRIBUTE)},
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


def _coded(column: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """Codes of a column's texts and the texts by code; an absent text becomes empty."""
    whole = column.unify_dictionaries().combine_chunks()
    names = [name or "" for name in whole.dictionary.to_pylist()]
    if whole.null_count == 0:
        return whole.indices.to_numpy(), names
    return pc.fill_null(whole.indices, len(names)).to_numpy(), [*names, ""]


# --- identity of a launch


def _identity(columns: pa.Table) -> dict[str, pd.Categorical]:
    """Our columns that identify each launch, in the order of the rows."""
    present = frozenset(columns.column_names)

    def text(name: str) -> pd.Categorical:
        return _combined(columns, (name, None), lambda known, _: known)

    marks = tuple(
        next((name for name in sorted(present) if name.startswith(beginning)), None) for beginning in (STARTED, PUSHED)
    )
    has_capability = metrics.CAPABILITY in present
    return {
        "process_id": text(PROCESS),
        "range": _combined(columns, marks, range_names),
        "name": text(NAME),
        "compute_capability": text(metrics.CAPABILITY)
        if has_capability
        else _combined(columns, (metrics.MAJOR, metrics.MINOR), capability),
        "device": text(metrics.DEVICE_NAME),
        "block": text(metrics.BLOCK),
        "grid": text(metrics.GRID),
    }


def _gpus(columns: pa.Table) -> pd.Categorical:
    """The GPU of each launch: its name or compute capability, and its number."""
    has_name = metrics.DEVICE_NAME in columns.column_names
    kind = metrics.DEVICE_NAME if has_name else metrics.CAPABILITY

    def label(name: str | None, number: str | None) -> str | None:
        known = name if has_name or not name else f"compute capability {name}"
        return f"{known or 'GPU'} (device {number})" if number else known

    return _combined(columns, (kind, metrics.DEVICE), label)


def capability(major: str | None, minor: str | None) -> str | None:
    """Compute capability such as `8.9`; None if a part is unknown."""
    return f"{major}.{minor}" if major and minor else None


def _combined(
    columns: pa.Table, names: tuple[str | None, ...], combine: Callable[[str | None, str | None], str | None]
) -> pd.Categorical:
    """Combine two columns, either of them possibly absent, into a text per row; computed once per pair of texts."""
    (left, left_names), (right, right_names) = (
        _coded(columns.column(name)) if name in columns.column_names else (np.zeros(len(columns), np.int64), [""])
        for name in names
    )
    width = len(right_names)
    pairs, codes = np.unique(left.astype(np.int64) * width + right, return_inverse=True)
    texts = [combine(left_names[pair // width] or None, right_names[pair % width] or None) for pair in pairs]
    new_codes, categories = pd.factorize(np.array([*texts, None], dtype=object))
    return pd.Categorical.from_codes(new_codes[codes], categories=pd.Index(categories, dtype=object))


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


def unique_launches(tables: Sequence[Launches]) -> tuple[list[Launches], list[str], bool]:
    """Tables with each launch once; a sentence for each kind of damage; and whether launches are missing.

    A process and an ID identify a launch.
    """
    tables = list(tables)
    identities = pd.DataFrame(
        {
            "process": np.concatenate([np.asarray(table.identity["process_id"].astype(object)) for table in tables]),
            "id": np.concatenate([table.ids for table in tables]),
        }
    )
    is_repeated = identities.duplicated().to_numpy()
    damage = []
    if is_repeated.any():
        again = _number_of(int(is_repeated.sum()))
        damage.append(f"{again} twice in the file (same process and ID): only the first is counted")
        ends = np.cumsum([len(table) for table in tables])
        parts = np.split(~is_repeated, ends[:-1])
        tables = [
            replace(
                table,
                identity={name: values[kept] for name, values in table.identity.items()},
                by_role={name: values[kept] for name, values in table.by_role.items()},
                ids=table.ids[kept],
                gpus=table.gpus[kept],
            )
            for table, kept in zip(tables, parts, strict=True)
            if kept.any()
        ]
        identities = identities[~is_repeated]
    missing = _missing_launches(identities)
    if missing:
        damage.append(missing)
    damage += [sentence for table in tables for sentence in _absences(table)]
    processes = identities["process"].dropna().nunique()
    if processes > 1:
        damage.append(f"launches of {processes} processes are added up")
    return tables, damage, missing is not None


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


def _missing_launches(identities: pd.DataFrame) -> str | None:
    """A sentence on missing IDs between the first and the last; None if there are none.

    Processes count separately if their IDs overlap.
    """
    groups = [group["id"].to_numpy() for _, group in identities.groupby("process", dropna=False, sort=False)]
    if sum(len(np.unique(ids)) for ids in groups) == identities["id"].nunique():
        groups = [identities["id"].to_numpy()]
    pairs = (pair for ids in groups for pair in itertools.pairwise(np.unique(ids).tolist()))
    gaps = [(before + 1, after - 1) for before, after in pairs if after > before + 1]
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
