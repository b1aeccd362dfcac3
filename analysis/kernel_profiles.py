"""Kernels of profiles as tables: from bundles in folders, and from single files of Nsight Compute."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from analysis.kernels import (
    ALL,
    COLUMNS,
    LOWER_BOUND,
    SHOWN,
    attributed,
    breakdown,
    in_steps,
    kernel_points,
    kind_of_l2_bytes,
    longest,
    operators,
    own_metrics,
    per_step,
)
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


def text_of(
    paths: Sequence[Path],
    keys: Sequence[str],
    form: TableFormat,
    *,
    top: int | None,
    wide: bool,
    verify: bool,
    imported_keys: Sequence[str] = (),
) -> tuple[str, list[Problem]]:
    """The profiles in folders of bundles and in files, as text, and problems with them.

    `keys`: columns by which kernels are grouped; `imported_keys`: columns by which operators of imported traces are
    grouped; if empty, these operators are listed as torch.profiler lists them. `top`: show only the `top` longest rows
    of each profile, and its last row, the total. Raises `NothingToDoError` if there is no profile.
    """
    folders = [path for path in paths if not path.is_file()]
    problems = list[Problem]()
    by_torch = imported = pd.DataFrame()
    # One table per profile by ncu, with a row per value of `keys` and one for the whole.
    tables = [_of_file(path, keys, problems) for path in paths if path.is_file()]
    if folders:
        results = load_folders(folders, verify=verify)
        tables += _of_results(kernel_points(results, keys=keys))
        if imported_keys:
            imported, unread = attributed(results, imported_keys)
            problems += unread
        by_torch, unread = operators(results, with_attributed=not imported_keys)
        problems += [*results.problems, *results.kernel_problems, *unread]
    if not tables and by_torch.empty and imported.empty:
        where = ", ".join(f"'{folder}'" for folder in folders)
        raise NothingToDoError(
            f"no run in {where} was profiled with ncu or torch",
            hint="launch local --profile torch; with --profile ncu on an NVIDIA GPU also FLOP and bytes",
        )
    records = [
        {str(name): value for name, value in row.items()}
        for table in tables
        for row in (table.drop(table.index[:-1][top:]) if top else table).to_dict("records")
    ]
    own = list(dict.fromkeys(name for table in tables for name in own_metrics(table)))
    rows = frame(records, (*FACTS, *keys, *COLUMNS, "remark", *own))
    if form is TableFormat.TABLE:
        imported, by_torch = longest(imported, top or SHOWN), longest(by_torch, top or SHOWN)
        return "\n\n".join(_texts(rows, keys, imported, imported_keys, by_torch, wide=wide)), problems
    every = ("profiler", *FACTS, *keys, "name", *COLUMNS, *MODELLED, "remark", *CONFIGURATION, *PLACE, *SOFTWARE, *own)
    columns = tuple(Column(name=name, heading=name) for name in dict.fromkeys(every))
    names = [column.name for column in columns]
    parts = [rows.assign(profiler="ncu")]
    for table in (imported, by_torch):
        shown = longest(table, top) if top else table
        parts.append(shown.assign(profiler="torch", remark=shown.get("note")))
    data = pd.concat([part.reindex(columns=names).astype(object) for part in parts if len(part)], ignore_index=True)
    return render_table(data, columns, form), problems


def _texts(
    rows: pd.DataFrame,
    keys: Sequence[str],
    imported: pd.DataFrame,
    imported_keys: Sequence[str],
    by_torch: pd.DataFrame,
    *,
    wide: bool,
) -> Iterator[str]:
    """Printed tables, one per kind of profile, because profilers measure different quantities."""
    if len(rows):
        yield render_table(*_printed(rows, keys, wide=wide), TableFormat.TABLE, wide=wide)
    if len(imported):
        columns = [
            column
            for column in IMPORTED_OPERATOR_COLUMNS
            if column.name in imported_keys or column.name not in ALL_KEYS
        ]
        table = render_table(imported, columns, TableFormat.TABLE, wide=wide)
        yield f"by torch.profiler: operators with their modelled work, per step\n{table}"
    if len(by_torch):
        table = render_table(by_torch, OPERATOR_COLUMNS, TableFormat.TABLE, wide=wide)
        devices = set(by_torch["device_type"] == Device.CPU)
        what = "the own time of each operator" if devices == {True} else "kernels on a GPU"
        what = "operators' own time on a CPU, kernels on a GPU" if len(devices) > 1 else what
        yield f"by torch.profiler: {what}, per step\n{table}"


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
    names = [*WORK_NAMED, "profiles", "steps", "note"]
    tables = []
    for _, rows in points.groupby(names, dropna=False, sort=False):
        # The row for all kernels is the sum of the rows of the parts; a figure that a part lacks is NaN.
        facts = {name: rows[name].iloc[0] for name in names}
        total = breakdown(rows, ()).assign(launches=rows["launches"].astype(float).sum(), **facts)
        tables.append(_remarked(_with_total(rows, total), None))
    return tables


def _remarked(rows: pd.DataFrame, remark: str | None) -> pd.DataFrame:
    notes = rows["note"] if "note" in rows else pd.Series(None, index=rows.index, dtype=object)
    remarks = [
        "; ".join(filter(None, [remark, LOWER_BOUND if low else None, None if pd.isna(note) else note])) or None
        for low, note in zip(rows["flop_is_lower_bound"], notes, strict=True)
    ]
    return rows.assign(remark=pd.Series(remarks, index=rows.index, dtype=object))


def _printed(rows: pd.DataFrame, keys: Sequence[str], *, wide: bool) -> tuple[pd.DataFrame, list[Column]]:
    own = [Column(name=name, heading=name, optional=True) for name in own_metrics(rows) if wide]
    columns = [*KERNEL_COLUMNS[:-1], *own, KERNEL_COLUMNS[-1]]
    if "name" not in keys:
        return rows, [column for column in columns if column.name != "name"]
    if wide:
        return rows, columns
    short = rows["name"].map(lambda name: name if pd.isna(name) else str(name)[:SHOWN_CHARACTERS])
    return rows.assign(name=short), list(KERNEL_COLUMNS)
