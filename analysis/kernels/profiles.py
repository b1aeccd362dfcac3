"""Kernels of profiles as tables: from bundles in folders, and from single files of Nsight Compute."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.kernels.breakdown import (
    ALL,
    COLUMNS,
    LOWER_BOUND,
    breakdown,
    in_steps,
    kernel_points,
    kind_of_l2_bytes,
    own_metrics,
    per_step,
)
from analysis.kernels.operators import SHOWN, attributed, longest, operators
from analysis.loading.configurations import CONFIGURATION, NAMED_COLUMNS, PLACE, SOFTWARE, WORK_NAMED
from analysis.loading.index import Problem
from analysis.loading.tables import frame, load_folders
from analysis.readers import ncu
from workload.contract.errors import NothingToDoError
from workload.contract.spec import Device
from workload.contract.tables import Column, Role, TableFormat, facts
from workload.contract.tables import render as render_table

ALL_KEYS = ("family", "name")
# Further columns of operators in JSON and CSV: the modelled intervals of bytes and intensity.
MODELLED = ("bytes_lower", "bytes_upper", "intensity_low", "intensity_high")
FACTS = ("file", *WORK_NAMED, "profiles", "steps")
KERNEL_COLUMNS = (
    Column(name="file", heading="file", optional=True, role=Role.FACT),
    Column(name="place", heading="place", optional=True, role=Role.FACT),
    Column(name="device_name", heading="device", optional=True, role=Role.FACT),
    Column(name="model", heading="model", optional=True, role=Role.FACT),
    Column(name="batch_size", heading="batch", optional=True, role=Role.FACT),
    Column(name="precision", heading="precision", optional=True, role=Role.FACT),
    Column(name="steps", heading="steps", optional=True, role=Role.FACT),
    *facts(family="family"),
    Column(name="name", heading="kernel", optional=True, role=Role.FACT),
    Column(name="launches", heading="launches"),
    Column(name="duration_s", heading="time", unit="s", prefixed=True),
    Column(name="share_of_time", heading="share", unit="%", digits=3),
    Column(name="flop_per_s", heading="attained", unit="FLOP/s", prefixed=True, optional=True),
    Column(name="intensity_flop_per_byte", heading="intensity", unit="FLOP/B", optional=True),
    Column(name="l2_intensity", heading="of L2", unit="FLOP/B", optional=True),
    Column(name="l1_intensity", heading="of L1", unit="FLOP/B", optional=True),
    Column(name="sm_percent", heading="SM %", optional=True),
    Column(name="memory_percent", heading="memory %", optional=True),
    Column(name="dram_percent", heading="DRAM %", optional=True),
    Column(name="remark", heading="note", optional=True, role=Role.NOTE),
)
OPERATOR_COLUMNS = (
    *NAMED_COLUMNS,
    *facts(steps="steps", name="operator"),
    Column(name="launches", heading="calls"),
    Column(name="duration_s", heading="own time", unit="s", prefixed=True),
    Column(name="share_of_time", heading="share", unit="%", digits=3),
    Column(name="flop_per_s", heading="attained", unit="FLOP/s", prefixed=True, optional=True),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
)
# Columns for imported traces: operators, or families of operators, with their modelled work.
IMPORTED_OPERATOR_COLUMNS = (
    *NAMED_COLUMNS,
    *facts(steps="steps", family="family"),
    Column(name="name", heading="operator", optional=True, role=Role.FACT),
    Column(name="launches", heading="calls"),
    Column(name="duration_s", heading="time", unit="s", prefixed=True),
    Column(name="share_of_time", heading="share", unit="%", digits=3),
    Column(name="flop", heading="FLOP", unit="FLOP", prefixed=True, optional=True),
    Column(name="flop_per_s", heading="attained", unit="FLOP/s", prefixed=True, optional=True),
    Column(name="bytes_lower", heading="moves at least", unit="B", prefixed=True, optional=True),
    Column(name="bytes_upper", heading="at most", unit="B", prefixed=True, optional=True),
    Column(name="intensity_low", heading="intensity from", unit="FLOP/B", optional=True),
    Column(name="intensity_high", heading="to", unit="FLOP/B", optional=True),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
)
# Maximum number of characters of a printed name: the rest is template arguments. JSON and CSV have the whole name.
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True, eq=False)
class Profiles:
    """Profiles as tables. `ncu_tables`: one per profile by ncu, with a row per value of `keys` and one for the whole.

    `torch_operators`: profiles by torch.profiler. `imported_operators`: operators of imported traces with their work,
    by `imported_keys`.
    """

    keys: Sequence[str]
    ncu_tables: Sequence[pd.DataFrame]
    torch_operators: pd.DataFrame
    imported_operators: pd.DataFrame
    imported_keys: Sequence[str]
    problems: Sequence[Problem]


def gather(paths: Sequence[Path], keys: Sequence[str], *, verify: bool, imported_keys: Sequence[str] = ()) -> Profiles:
    """Read the profiles in folders of bundles and in files; `keys`: columns by which kernels are grouped.

    `imported_keys`: columns by which operators of imported traces are grouped; if empty, these operators are
    listed as torch.profiler lists them.

    Raises `NothingToDoError` if there is no profile.
    """
    folders = [path for path in paths if not path.is_file()]
    problems = list[Problem]()
    torch_operators = imported_operators = pd.DataFrame()
    ncu_tables = [_of_file(path, keys, problems) for path in paths if path.is_file()]
    if folders:
        results = load_folders(folders, verify=verify)
        ncu_tables += _of_results(kernel_points(results, keys=keys))
        if imported_keys:
            imported_operators, unread = attributed(results, imported_keys)
            problems += unread
        torch_operators, unread = operators(results, with_attributed=not imported_keys)
        problems += [*results.problems, *results.kernel_problems, *unread]
    if not ncu_tables and torch_operators.empty and imported_operators.empty:
        where = ", ".join(f"'{folder}'" for folder in folders)
        raise NothingToDoError(
            f"no run in {where} was profiled with ncu or torch",
            hint="launch local --profile torch; with --profile ncu on an NVIDIA GPU also FLOP and bytes",
        )
    return Profiles(
        keys=keys,
        ncu_tables=ncu_tables,
        torch_operators=torch_operators,
        imported_operators=imported_operators,
        imported_keys=imported_keys,
        problems=problems,
    )


def render(profiles: Profiles, form: TableFormat, *, top: int | None, wide: bool) -> str:
    """All profiles as text; `top`: show only the `top` longest rows of each profile, and its last row, the total."""
    keys = profiles.keys
    records = [
        {str(name): value for name, value in row.items()}
        for table in profiles.ncu_tables
        for row in (table.drop(table.index[:-1][top:]) if top else table).to_dict("records")
    ]
    own = list(dict.fromkeys(name for table in profiles.ncu_tables for name in own_metrics(table)))
    rows = frame(records, (*FACTS, *keys, *COLUMNS, "remark", *own))
    if form is TableFormat.TABLE:
        return "\n\n".join(_texts(rows, profiles, top or SHOWN, wide=wide))
    by_torch = [profiles.imported_operators, profiles.torch_operators]
    shown = [longest(table, top) if top else table for table in by_torch]
    return render_table(_as_data(rows, shown, _all_columns(keys, own)), _all_columns(keys, own), form)


def _texts(rows: pd.DataFrame, profiles: Profiles, top: int, *, wide: bool) -> Iterator[str]:
    """Printed tables, one per kind of profile, because profilers measure different quantities."""
    if len(rows):
        yield render_table(*_printed(rows, profiles.keys, wide=wide), TableFormat.TABLE, wide=wide)
    if len(imported := longest(profiles.imported_operators, top)):
        columns = [
            column
            for column in IMPORTED_OPERATOR_COLUMNS
            if column.name in profiles.imported_keys or column.name not in ALL_KEYS
        ]
        table = render_table(imported, columns, TableFormat.TABLE, wide=wide)
        yield f"by torch.profiler: operators with their modelled work, per step\n{table}"
    if len(operators_of_runs := longest(profiles.torch_operators, top)):
        table = render_table(operators_of_runs, OPERATOR_COLUMNS, TableFormat.TABLE, wide=wide)
        devices = set(operators_of_runs["device_type"] == Device.CPU)
        what = "the own time of each operator" if devices == {True} else "kernels on a GPU"
        what = "operators' own time on a CPU, kernels on a GPU" if len(devices) > 1 else what
        yield f"by torch.profiler: {what}, per step\n{table}"


def _as_data(rows: pd.DataFrame, by_torch: Sequence[pd.DataFrame], columns: Sequence[Column]) -> pd.DataFrame:
    names = [column.name for column in columns]
    parts = [rows.assign(profiler="ncu")]
    parts += [table.assign(profiler="torch", remark=table.get("note")) for table in by_torch]
    return pd.concat([part.reindex(columns=names).astype(object) for part in parts if len(part)], ignore_index=True)


def _of_file(path: Path, keys: Sequence[str], problems: list[Problem]) -> pd.DataFrame:
    file = ncu.read(path)
    problems += [Problem(path=str(path), reason=warning) for warning in file.warnings]
    kernels, steps = in_steps(file.kernels)
    rows = _with_total(*(per_step(breakdown(kernels, names), steps) for names in (keys, ())))
    label = kind_of_l2_bytes(kernels)
    remarks = ["partial profile" if file.is_partial else None, label and f"L2 bytes are {label}"]
    remark = "; ".join(filter(None, remarks)) or None
    # Labels may be wrong: the name that the GPU itself reported takes precedence.
    device = file.device_name or (file.compute_capability and f"compute capability {file.compute_capability}")
    return _remarked(rows.assign(file=path.name, device_name=device, steps=steps), remark)


def _with_total(rows: pd.DataFrame, total: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([rows.astype(object), total.assign(family=ALL).astype(object)], ignore_index=True)


def _of_results(points: pd.DataFrame) -> list[pd.DataFrame]:
    """A table per group of runs, each with its total."""
    names = [*WORK_NAMED, "profiles", "steps", "note"]
    groups = points.groupby(names, dropna=False, sort=False)
    return [_remarked(_with_total(rows, _sum_of(rows, names)), None) for _, rows in groups]


def _sum_of(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The row for all kernels, the sum of the rows of the parts; a figure that a part lacks is NaN."""
    launches = rows["launches"].astype(float)
    total = breakdown(rows, ())
    facts = {name: rows[name].iloc[0] for name in names}
    return total.assign(launches=launches.sum(), **facts)


def _remarked(rows: pd.DataFrame, remark: str | None) -> pd.DataFrame:
    notes = rows["note"] if "note" in rows else pd.Series(None, index=rows.index, dtype=object)
    remarks = [
        "; ".join(filter(None, [remark, LOWER_BOUND if low else None, None if pd.isna(note) else note])) or None
        for low, note in zip(rows["flop_is_lower_bound"], notes, strict=True)
    ]
    return rows.assign(remark=pd.Series(remarks, index=rows.index, dtype=object))


def _all_columns(keys: Sequence[str], own: Sequence[str]) -> tuple[Column, ...]:
    names = dict.fromkeys(
        ("profiler", *FACTS, *keys, "name", *COLUMNS, *MODELLED, "remark", *CONFIGURATION, *PLACE, *SOFTWARE, *own)
    )
    return tuple(Column(name=name, heading=name) for name in names)


def _printed(rows: pd.DataFrame, keys: Sequence[str], *, wide: bool) -> tuple[pd.DataFrame, list[Column]]:
    own = [Column(name=name, heading=name, optional=True) for name in own_metrics(rows) if wide]
    columns = [*KERNEL_COLUMNS[:-1], *own, KERNEL_COLUMNS[-1]]
    if "name" not in keys:
        return rows, [column for column in columns if column.name != "name"]
    if wide:
        return rows, columns
    short = rows["name"].map(lambda name: name if pd.isna(name) else str(name)[:SHOWN_CHARACTERS])
    return rows.assign(name=short), list(KERNEL_COLUMNS)
