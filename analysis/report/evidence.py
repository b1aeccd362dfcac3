"""All tables and figures of a report, each made once; tables that cannot be made carry the reason."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from analysis import audit, summary
from analysis.audit.rule import Finding, breaches
from analysis.compare import ratios, scaling
from analysis.compare.pairing import Pair, Side, pair_up
from analysis.figures import Figure, material, registry
from analysis.figures.material import Material
from analysis.kernels import operators
from analysis.kernels.breakdown import kernel_points
from analysis.loading.arguments import arguments_in, with_arguments
from analysis.loading.cases import Case, cases
from analysis.loading.configurations import ARGUMENT, CONFIGURATION, measured
from analysis.loading.index import Problem
from analysis.loading.of_runs import OfRuns
from analysis.loading.tables import Tables
from analysis.loading.tables import rows as rows_of
from analysis.report.reproduce import command_of
from analysis.roofline.points import points, shifts
from analysis.roofline.roofs import roofs
from analysis.statistics.comparison import ALPHA
from analysis.variance import causes
from analysis.variance.tables import between
from workload.contract.errors import RooflaunchError
from workload.contract.record import Record

# Facts that a contrast may be about. Settings and places are compared among all runs; another model or unit is another
# task, and numbers of devices have a section of their own. Zone, hypervisor, backend and runtime are compared among the
# runs of one device.
SETTINGS = tuple(fact for fact in CONFIGURATION if fact not in ("model", "unit", "devices"))
PLACEMENT = ("zone", "hypervisor", "backend", "runtime")


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A pair of sides that differ in `fact` alone, and its `row` of `analysis.compare.ratios`."""

    fact: str
    pair: Pair
    row: Mapping[str, Any]

    @property
    def is_certain(self) -> bool:
        """Whether the interval, corrected for all pairs of this fact, excludes 1 by enough to name a winner."""
        ends = (self.row["ratio_low"], self.row["ratio_high"])
        p = self.row["p_holm"]
        return p is not None and p < ALPHA and any(end and abs(end - 1) >= ratios.SAME_WITHIN for end in ends)

    @property
    def is_average(self) -> bool:
        """Whether the row is an average over combinations of other options."""
        return bool(self.row["combinations"])

    @property
    def effect(self) -> float:
        """The throughput of the faster side over that of the slower one; 1 if the ratio is unknown."""
        ratio = self.row["ratio"]
        return max(ratio, 1 / ratio) if ratio else 1.0

    @property
    def grows(self) -> bool:
        """Whether the right side, which has the larger value, is the faster one."""
        return (self.row["ratio"] or 1.0) >= 1

    @property
    def by_speed(self) -> tuple[Side, Side]:
        """The faster and the slower side."""
        left, right = self.pair.sides
        return (right, left) if self.grows else (left, right)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportEvidence:
    """Results, and the tables and figures made from them.

    `of_runs`: all runs, and results that depend on a single run. `points`: of `analysis.roofline.points`.
    """

    results: Tables
    of_runs: OfRuns
    material: Material
    drawn: Sequence[Figure]
    points: pd.DataFrame

    @cached_property
    def between(self) -> pd.DataFrame:
        return between(self.results, self.of_runs.cases)

    @cached_property
    def causes(self) -> pd.DataFrame:
        return causes.causes(self.results, self.of_runs)

    @cached_property
    def findings(self) -> list[Finding]:
        return audit.audit(self.results, of_runs=self.of_runs)

    @cached_property
    def contrasts(self) -> list[Contrast]:
        """Pairs for every fact in which otherwise equal runs differ."""
        runs = measured(self.results.runs)
        facts = [fact for fact in ("place", *SETTINGS) if len(runs[fact].dropna().unique()) > 1]
        every = self.of_runs.cases
        measured_runs = set(runs["run_id"])
        arguments = arguments_in(with_arguments([case for case in every if case.run_id in measured_runs]))
        contrasts = [contrast for fact in arguments for contrast in _contrasts(self.results, every, fact)]
        if contrasts:
            facts = [fact for fact in facts if fact != "script"]
        contrasts += [contrast for fact in facts for contrast in _contrasts(self.results, every, fact)]
        for fact in PLACEMENT:
            for _, table in runs[runs[fact].notna()].groupby("device_name", sort=False):
                if len(table[fact].dropna().unique()) > 1:
                    placed = replace(self.results, runs=self.results.runs.loc[table.index])
                    contrasts += _contrasts(placed, every, fact)
        return contrasts

    @cached_property
    def scaling(self) -> list[dict[str, Any]]:
        """Rows of `analysis.compare.scaling`, with names as in the charts."""
        return rows_of(self.material.scaling)

    def compare(self) -> None:
        """Make the tables that take longest and need nothing of `of_runs` but the cases."""
        _ = self.contrasts, self.between, self.shifts

    @cached_property
    def imported(self) -> frozenset[str]:
        """Ids of imported runs."""
        runs = self.results.runs
        return frozenset(runs.loc[runs["imported"].eq(True), "run_id"])

    @cached_property
    def operators(self) -> tuple[pd.DataFrame, list[Problem]]:
        return operators.operators(self.results)

    @cached_property
    def attributed(self) -> tuple[pd.DataFrame, list[Problem]]:
        """Work of operators in imported traces, and problems with unreadable files."""
        return operators.attributed(self.results, ("family", "name"))

    @cached_property
    def shifts(self) -> pd.DataFrame:
        return shifts(self.points)

    def figures(self, *names: str) -> list[Figure]:
        """Figures whose name is in `names`, or begins with a name that ends in `_` or `-`."""
        beginnings = tuple(name for name in names if name.endswith(("_", "-")))
        return [drawn for drawn in self.drawn if drawn.name in names or drawn.name.startswith(beginnings)]

    def record(self, run_id: str) -> Record | None:
        """The record (run.json) of a run; None if the file can no longer be read."""
        with suppress(RooflaunchError):
            return self.results.record(run_id)
        return None


def _contrasts(results: Tables, every: Sequence[Case], fact: str) -> Iterator[Contrast]:
    """Compare the runs that differ in `fact` alone, such as the batch size; yield nothing if there are none.

    If `fact` is an argument of a script that was swept together with others, averages over the others come first.
    """
    try:
        pairing = pair_up(results, fact, every=every)
    except RooflaunchError:
        return
    if fact.startswith(ARGUMENT):
        averages = zip(ratios.averaged_pairs(pairing), rows_of(ratios.effects(pairing)), strict=True)
        yield from (Contrast(fact=fact, pair=pair, row=row) for pair, row in averages)
    for pair, row in zip(pairing.pairs, rows_of(ratios.of_pairs(pairing)), strict=True):
        yield Contrast(fact=fact, pair=pair, row=row)


def gather(
    results: Tables,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    bars: registry.Bars = registry.Bars.INTERVAL,
    judges: bool = True,
) -> ReportEvidence:
    """Make the tables that figures need, and the figures; other tables are made on first access.

    `judges`: also let other processes compute findings, causes and command lines of the runs, which only a page needs.
    """
    on_stage("tables")
    of_runs = OfRuns(cases=cases(results))
    if judges:
        of_runs.begin(breaches, causes.causes_of, command_of)
    found_points = points(results)
    tables = material.make(
        results,
        points=lambda found: found_points if found is results else points(found),
        roofs=roofs,
        kernel_points=kernel_points,
        costs=summary.costs,
        scaling=lambda found: pd.DataFrame(scaling.scaling(found, of_runs.cases)),
    )
    on_stage("figures")
    drawn = registry.figures(tables, bars)
    return ReportEvidence(results=results, of_runs=of_runs, material=tables, drawn=drawn, points=found_points)
