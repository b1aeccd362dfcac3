"""What a report rests on: every table of the analysis, made once. What cannot be made says why."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from analysis import audit, causes, compare, costs, operators, roofline, variance
from analysis.audit.finding import Finding
from analysis.cases import Case, cases
from analysis.figures import material, registry
from analysis.figures.figure import Figure, Missing
from analysis.figures.material import Material
from analysis.loading import Results
from analysis.problem import Problem
from analysis.shifts import shifts
from analysis.statistics import Comparison
from analysis.statistics.samples import LEVEL
from workload.contract.errors import RooflaunchError
from workload.contract.record import Record

# run.json is read again for what the tables do not hold: once per configuration.


@dataclass(frozen=True, kw_only=True)
class Compared:
    """`analysis.compare.compare`, or why there is nothing."""

    table: pd.DataFrame
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportEvidence:
    """Results, and what was made of them."""

    results: Results
    material: Material
    drawn: Sequence[Figure | Missing]

    @cached_property
    def between(self) -> pd.DataFrame:
        return variance.between(self.results)

    @cached_property
    def causes(self) -> pd.DataFrame:
        return causes.causes(self.results)

    @cached_property
    def findings(self) -> list[Finding]:
        return audit.audit(self.results)

    @cached_property
    def by_place(self) -> Compared:
        return self.compared("place")

    @cached_property
    def by_precision(self) -> Compared:
        return self.compared("precision")

    @cached_property
    def operators(self) -> tuple[pd.DataFrame, list[Problem]]:
        return operators.operators(self.results)

    @cached_property
    def listed_alone(self) -> pd.DataFrame:
        """Of `operators`, what `attributed` does not have."""
        return operators.operators(self.results, with_attributed=False)[0]

    @cached_property
    def attributed(self) -> tuple[pd.DataFrame, list[Problem]]:
        """Of imported traces."""
        return operators.attributed(self.results, ("family", "name"))

    @cached_property
    def shifts(self) -> pd.DataFrame:
        return shifts(self.results)

    def compared(self, by: str, runs: pd.DataFrame | None = None) -> Compared:
        """All runs, or some of them, by one fact."""
        results = self.results if runs is None else replace(self.results, runs=runs)
        try:
            return Compared(table=compare.compare(results, by))
        except RooflaunchError as error:
            return Compared(table=pd.DataFrame(), reason=str(error))

    @cached_property
    def _cases(self) -> dict[str, Case]:
        """By run, those with a throughput that a machine can have."""
        known = set(self.material.runs.loc[self.material.runs["images_per_s"] > 0, "run_id"])
        return {case.run_id: case for case in cases(self.results) if case.run_id in known}

    def comparison(self, left: Sequence[str], right: Sequence[str], *, level: float = LEVEL) -> Comparison:
        """Runs against runs as `analyze compare` does it, paired within blocks; `ratio`: images/s, right over left."""
        sides = ([self._cases[run_id] for run_id in run_ids if run_id in self._cases] for run_ids in (left, right))
        return compare.compare_sides(*sides, level=level)

    def figures(self, *names: str) -> list[Figure]:
        """Those that are called one of `names`, or begin with one that ends in `_` or `-`."""
        return [
            drawn
            for drawn in self.drawn
            if isinstance(drawn, Figure) and any(_is_named(drawn.name, name) for name in names)
        ]

    @property
    def missing(self) -> list[Missing]:
        return [drawn for drawn in self.drawn if isinstance(drawn, Missing)]

    def record(self, run_id: str) -> Record | None:
        """run.json; None where the bundle has gone since it was loaded."""
        with suppress(RooflaunchError):
            return self.results.record(run_id)
        return None


def _is_named(name: str, wanted: str) -> bool:
    return name == wanted or (wanted.endswith(("_", "-")) and name.startswith(wanted))


def gather(results: Results, *, on_stage: Callable[[str], None] = lambda _: None) -> ReportEvidence:
    """The tables that figures need, and the figures; the rest when a section asks for it."""
    on_stage("tables")
    tables = material.make(
        results,
        points=roofline.points,
        roofs=roofline.roofs,
        kernel_points=roofline.kernel_points,
        costs=costs.costs,
    )
    on_stage("figures")
    return ReportEvidence(results=results, material=tables, drawn=registry.figures(tables))
