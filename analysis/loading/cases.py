"""A run with its facts, its series and the mask of measured steps. Pure, except for files that are read on access."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.loading import units
from analysis.loading.tables import Tables, rows
from analysis.statistics.samples import Floats, Mask
from analysis.statistics.steady import SteadyState, steady_state
from workload.contract import bundle
from workload.contract.bundle import STEP_COLUMNS, TELEMETRY_COLUMNS
from workload.contract.errors import BundleError
from workload.contract.record import Record, Spec, Status
from workload.contract.spec import Device

MEASURED = "measured"
STEP_NUMBERS = tuple(name for name in STEP_COLUMNS if name != "phase")
EMPTY = np.empty(0)
NO_ROWS = np.empty(0, dtype=np.intp)

# Columns of a run's rows by name; NaN for an absent value.
Columns = Mapping[str, Floats]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A run: its row of `runs` as `facts` (None for an absent value), its steps in order, and its telemetry.

    `steps` holds all steps, warm-up included; `is_measured` is a mask of the same length.
    """

    facts: Mapping[str, Any]
    steps: Columns
    is_measured: Mask
    telemetry: Columns

    def __getitem__(self, fact: str) -> Any:
        return self.facts[fact]

    def __getstate__(self) -> dict[str, Any]:
        """State to pickle: the fields, without cached properties, which another thread may be adding."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def run_id(self) -> str:
        return str(self.facts["run_id"])

    @property
    def unit(self) -> str:
        """Unit of the throughput: `images`, or the unit that was detected for a user's own script."""
        return units.unit_of(self.facts)

    @property
    def on_cpu(self) -> bool:
        return bool(self.facts["device_type"] == Device.CPU)

    @property
    def host(self) -> str | None:
        """The machine of the run: the physical host if the cloud reveals it, else the host name; None if unknown."""
        name = self.facts["physical_host"] or self.facts["hostname"]
        return None if name is None else str(name)

    @property
    def block(self) -> tuple[str, float, str] | None:
        """Job, number and host of the run's block; None if unknown. A block on several hosts counts once per host."""
        job, block, host = self.facts["job_name"], self.facts["block"], self.host
        return None if job is None or block is None or host is None else (str(job), float(block), host)

    def measured(self, column: str) -> Floats:
        """A column, limited to the measured steps."""
        return self.steps[column][self.is_measured]

    @cached_property
    def step_s(self) -> Floats:
        """Seconds of each measured step, without the wait for data."""
        return self.measured("step_s")

    @cached_property
    def iteration_s(self) -> Floats:
        """Seconds of each measured step, with the wait for data if it is known."""
        return self.step_s + np.nan_to_num(self.measured("data_s"))

    @cached_property
    def interval_s(self) -> Floats:
        """Time stamp of each measured step minus that of the step before, in seconds; NaN if unknown."""
        intervals = np.diff(self.steps["ended_at_s"], prepend=np.nan)
        return np.asarray(intervals[self.is_measured], dtype=np.float64)

    @cached_property
    def region_s(self) -> tuple[float, float] | None:
        """Begin and end of the measured steps in seconds, on the clock of `t_s` and `ended_at_s`; None if unknown."""
        ended = self.measured("ended_at_s")
        if not ended.size or not np.isfinite(ended).all():
            return None
        return float(ended[0] - self.iteration_s[0]), float(ended[-1])

    @cached_property
    def steadiness(self) -> SteadyState:
        """Steady state of the measured steps, for audit, variation table and causes alike."""
        return steady_state(self.step_s)

    def samples(self, column: str) -> tuple[Floats, Floats]:
        """Times (s) and finite values of a telemetry column in the measured region; empty if the region is unknown."""
        if self.region_s is None:
            return EMPTY, EMPTY
        at, values = self.telemetry["t_s"], self.telemetry[column]
        start, end = self.region_s
        inside = (at >= start) & (at <= end) & np.isfinite(values)
        return at[inside], values[inside]

    @cached_property
    def stored_record(self) -> Record | None:
        """Content of run.json; None if the bundle was removed after loading."""
        with suppress(BundleError):
            if self.facts["path"]:
                return bundle.read_record(Path(self.facts["path"]))
        return None

    @property
    def record(self) -> Record:
        """Content of run.json; only id, status, model and batch size if the bundle was removed after loading."""
        if self.stored_record is not None:
            return self.stored_record
        spec = Spec(model=self.facts["model"], batch_size=self.facts["batch_size"])
        return Record(run_id=self.run_id, status=Status(self.facts["status"]), spec=spec)


def cases(results: Tables) -> list[Case]:
    """The runs as cases, in the order of `results.runs`."""
    steps, telemetry = _Table(results.steps, STEP_NUMBERS), _Table(results.telemetry, TELEMETRY_COLUMNS)
    is_measured = (results.steps["phase"] == MEASURED).to_numpy(dtype=bool)
    return [
        Case(
            facts=facts,
            steps=steps.columns_of(facts["run_id"]),
            is_measured=is_measured[steps.positions(facts["run_id"])],
            telemetry=telemetry.columns_of(facts["run_id"]),
        )
        for facts in rows(results.runs)
    ]


def shared(runs: Sequence[Case], fact: str) -> Any:
    """The value of a fact on which all runs agree; None if they differ."""
    first = runs[0][fact]
    return first if all(case[fact] == first for case in runs) else None


class _Table:
    """The numeric columns of a table, split by run on request."""

    def __init__(self, table: pd.DataFrame, names: Sequence[str]) -> None:
        self._columns = {name: np.asarray(pd.to_numeric(table[name]), dtype=np.float64) for name in names}
        self._positions = {} if table.empty else table.groupby("run_id", observed=True, sort=False).indices

    def positions(self, run_id: str) -> npt.NDArray[np.intp] | slice:
        """Row positions of a run, in order; a slice if they are neighbours, so that columns need not be copied."""
        positions = np.asarray(self._positions.get(run_id, NO_ROWS), dtype=np.intp)
        if positions.size and positions[-1] - positions[0] + 1 == positions.size:
            return slice(int(positions[0]), int(positions[-1]) + 1)
        return positions

    def columns_of(self, run_id: str) -> Columns:
        """Columns of a run's rows."""
        rows_of_run = self.positions(run_id)
        return {name: values[rows_of_run] for name, values in self._columns.items()}
