"""Folders of bundles as pandas tables; tables from rows, rows from tables, and the text of a note."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.loading.configurations import with_usual_batch
from analysis.loading.index import CEILINGS, FINGERPRINT, REMARKS, RUN_SCHEMA, Problem, load_bundles
from workload.contract import bundle
from workload.contract.changes import FIRST_RUNS
from workload.contract.errors import NothingToDoError, RooflaunchError, UsageError
from workload.contract.record import Record


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tables:
    """Tables of runs. An absent value is NaN, None or NaT; column names contain the unit.

    `runs`: one row per run, columns as in `RUN_COLUMNS` of `run_row.py`. `steps` and `telemetry`: `run_id` and the
    columns of the bundle's files. `ceilings`: one row per measured rate, columns as in `CEILING_COLUMNS`. `kernels`:
    one row per profiled launch, read on first access. `problems`: data missing from the tables, and the reason.
    """

    runs: pd.DataFrame
    steps: pd.DataFrame
    telemetry: pd.DataFrame
    ceilings: pd.DataFrame
    problems: tuple[Problem, ...]

    @property
    def kernels(self) -> pd.DataFrame:
        """`run_id` and the columns of `analysis.readers.ncu.read`; empty if no run was profiled with ncu.

        Metrics that the user asked for are columns with ncu's names and units.
        """
        return self._kernels[0]

    @property
    def kernel_problems(self) -> tuple[Problem, ...]:
        """Profiles that are missing from `kernels`, and the reason."""
        return self._kernels[1]

    def kernel_files(self) -> dict[str, Path]:
        """The file with the kernels of each run, by `run_id`; listed in the bundle's manifest and verified."""
        listed = self.runs[self.runs["kernels_file"].notna()]
        return {
            str(run_id): Path(folder) / name
            for run_id, folder, name in zip(listed["run_id"], listed["path"], listed["kernels_file"], strict=True)
        }

    def record(self, run_id: str) -> Record:
        """Content of run.json; `UsageError` for an unknown run, `BundleError` if the bundle no longer exists."""
        paths = self.runs.loc[self.runs["run_id"] == run_id, "path"]
        if paths.empty:
            raise UsageError(f"no run is called '{run_id}'", hint="results.runs.run_id lists the names")
        return bundle.read_record(Path(paths.iloc[0]))

    @cached_property
    def _kernels(self) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
        from analysis.readers import ncu  # noqa: PLC0415 - only if kernels are asked for

        tables, problems = [], []
        for run_id, path in self.kernel_files().items():
            try:
                table = ncu.read(path, own=self.record(run_id).profile.own_metrics or ()).kernels.copy()
            except (RooflaunchError, OSError) as error:
                problems.append(Problem(path=str(path), reason=str(error)))
            else:
                table.insert(0, "run_id", run_id)
                tables.append(table)
        if not tables:
            return pd.DataFrame({"run_id": pd.Series(dtype="str")}), tuple(problems)
        return pd.concat(tables, ignore_index=True), tuple(problems)


def load_folders(folders: Sequence[Path], *, verify: bool = False) -> Tables:
    """Load the bundles in `folders`; see `analysis.load`."""
    if not folders:
        raise UsageError("no results folder was named", hint='analysis.load("results")')
    looked_at = [load_bundles(_require_folder(folder), verify=verify) for folder in folders]
    table, repeated = _without_repeats(pa.concat_tables([rows for rows, _ in looked_at]))
    problems = [*(problem for _, more in looked_at for problem in more), *repeated]
    # Other seeds only show a tuning how far losses differ, and single runs only with which change it begins. Neither
    # is a setting to compare speeds of.
    are_seeds = pc.fill_null(pc.match_substring(table["change"], "seeds("), fill_value=False)
    are_left_out = pc.or_(are_seeds, pc.fill_null(pc.equal(table["job_name"], FIRST_RUNS), fill_value=False))
    if pc.any(are_left_out).as_py() and not pc.all(are_left_out).as_py():
        table = table.filter(pc.invert(are_left_out))
    if not table.num_rows:
        raise _nothing(folders, problems)
    problems += [
        Problem(path=path, reason=remark)
        for path, remarks in zip(table["path"].to_pylist(), table[REMARKS].to_pylist(), strict=True)
        for remark in remarks
    ]
    run_ids = table["run_id"].to_pylist()
    runs: pd.DataFrame = table.select(RUN_SCHEMA.names).drop_columns(["notes"]).to_pandas()
    runs["notes"] = pd.Series(table["notes"].to_pylist(), index=runs.index, dtype=object)
    return Tables(
        runs=with_usual_batch(runs),
        steps=_flat(table["_steps"], run_ids),
        telemetry=_flat(table["_telemetry"], run_ids),
        ceilings=_flat(table[CEILINGS], run_ids),
        problems=tuple(dict.fromkeys(problems)),
    )


def _require_folder(folder: Path) -> Path:
    if not folder.exists():
        raise UsageError(
            f"results folder '{folder}' does not exist",
            hint="name a folder that contains bundles, for example: results",
        )
    if not folder.is_dir():
        raise UsageError(
            f"'{folder}' is a file, not a folder of bundles", hint=f"if it is the log of a run: analyze import {folder}"
        )
    return folder


def _nothing(folders: Sequence[Path], problems: Sequence[Problem]) -> NothingToDoError:
    where = ", ".join(f"'{folder}'" for folder in folders)
    if not problems:
        return NothingToDoError(f"no bundle in {where}", hint=f"launch local -o {folders[0]}")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return NothingToDoError(
        f"no complete bundle in {where}; {problems[0]}{more}", hint=f"run again: launch local -o {folders[0]}"
    )


def _without_repeats(table: pa.Table) -> tuple[pa.Table, list[Problem]]:
    """Keep each run once, and report copies as problems: a copy of a bundle is no further measurement.

    A folder that is named twice is no problem.
    """
    first: dict[str, int] = {}
    rows, problems = [], []
    run_ids, paths, prints = (table[name].to_pylist() for name in ("run_id", "path", FINGERPRINT))
    for row, run_id in enumerate(run_ids):
        kept = first.setdefault(run_id, row)
        if kept == row:
            rows.append(row)
        elif prints[kept] != prints[row]:
            problems.append(Problem(path=paths[row], reason=f"contains the same run as {paths[kept]}; counted once"))
    return (table if len(rows) == table.num_rows else table.take(rows)), problems


def _flat(column: pa.ChunkedArray, run_ids: Sequence[str]) -> pd.DataFrame:
    """Concatenate the lists of rows of all runs into one table with a column `run_id`."""
    lengths = pc.list_value_length(column).fill_null(0).to_numpy()
    structs = pc.list_flatten(column)
    frame: pd.DataFrame = pa.Table.from_struct_array(structs).to_pandas()
    codes = np.repeat(np.arange(len(run_ids)), lengths)
    frame.insert(0, "run_id", pd.Series(pd.Categorical.from_codes(codes, categories=pd.Index(list(run_ids)))))
    if "phase" in frame:
        frame["phase"] = frame["phase"].astype("category")
    return frame


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as dictionaries by column; None for an absent value."""
    names = [str(name) for name in table.columns]
    return [dict(zip(names, row, strict=True)) for row in cells(table)]


def cells(table: pd.DataFrame) -> list[list[Any]]:
    """Rows of a table as lists in column order; None for an absent value."""
    # One array of objects: in pandas, replacing absent values column by column takes eight times as long.
    values = table.to_numpy(dtype=object, copy=True)
    values[pd.isna(values)] = None
    found: list[list[Any]] = values.tolist()
    return found


def frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """A table in which an absent number is NaN; a column without any text becomes numeric."""
    table = pd.DataFrame(list(rows), columns=list(columns))
    for name in columns:
        is_empty = table[name].isna().all()
        if table[name].dtype == object and (
            is_empty or not any(isinstance(value, str | bool) for value in table[name].dropna())
        ):
            table[name] = pd.to_numeric(table[name])
    return table


def joined(parts: Iterable[str | None]) -> str | None:
    """Text from the parts of a note, separated by semicolons; None if there are no parts."""
    return "; ".join(part for part in parts if part) or None
