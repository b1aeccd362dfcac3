"""Data that the rules check: runs with their series, groups of runs that may be pooled, and profiled kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.loading import cases as all_cases
from analysis.loading import units
from analysis.loading.cases import Case
from analysis.loading.configurations import group, measured
from analysis.loading.tables import Tables
from workload.contract.vocabulary import calibration_of

# Statuses of a profile that has kernels.
WITH_KERNELS = ("completed", "partial")


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditEvidence:
    """Data that the rules check; tables that are slow to read are read on first use."""

    results: Tables

    @cached_property
    def cases(self) -> Sequence[Case]:
        """Runs with their series, one `Case` per run."""
        return all_cases.cases(self.results)

    @cached_property
    def unit(self) -> str:
        """Unit of throughput of all runs."""
        return units.common(self.results.runs["unit"])

    @cached_property
    def groups(self) -> Sequence[Sequence[Case]]:
        """Groups of measured runs that may be pooled."""
        by_id = {case.run_id: case for case in self.cases}
        return [[by_id[run_id] for run_id in pool.runs["run_id"]] for pool in group(measured(self.results.runs))]

    @cached_property
    def kernels(self) -> Mapping[str, pd.DataFrame]:
        """Profiled launches by run id, without those of our calibration; empty if no run has a profile by ncu."""
        if not self.results.runs["profile_status"].isin(WITH_KERNELS).any():
            return {}
        table = self.results.kernels
        if table.empty:
            # Profiles by torch.profiler, whose operators have no counters; or by ncu with a missing file.
            return {}
        marks = [mark for mark in table["range"].unique() if isinstance(mark, str) and calibration_of(mark)]
        work = table[~table["range"].isin(marks)]
        return {str(run_id): rows for run_id, rows in work.groupby("run_id", observed=True)}
