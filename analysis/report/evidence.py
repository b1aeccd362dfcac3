"""All tables and figures of a report, each made once; tables that cannot be made carry the reason."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis import audit
from analysis.audit.rule import Finding
from analysis.figures import Figure, material, registry
from analysis.figures.material import Material
from analysis.kernels import operators
from analysis.kernels.breakdown import kernel_points
from analysis.loading.index import Problem
from analysis.loading.tables import Tables
from analysis.report.contrasts import Contrast, contrasts
from analysis.roofline.points import points, shifts
from analysis.roofline.roofs import roofs
from analysis.summary import costs
from analysis.variance import causes
from analysis.variance.tables import between
from workload.contract.errors import RooflaunchError
from workload.contract.record import Record


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportEvidence:
    """Results, and the tables and figures made from them."""

    results: Tables
    material: Material
    drawn: Sequence[Figure]

    @cached_property
    def between(self) -> pd.DataFrame:
        return between(self.results)

    @cached_property
    def causes(self) -> pd.DataFrame:
        return causes.causes(self.results)

    @cached_property
    def findings(self) -> list[Finding]:
        return audit.audit(self.results)

    @cached_property
    def contrasts(self) -> list[Contrast]:
        return contrasts(self.results)

    @cached_property
    def operators(self) -> tuple[pd.DataFrame, list[Problem]]:
        return operators.operators(self.results)

    @cached_property
    def listed_alone(self) -> pd.DataFrame:
        """Operators of runs without attributed kernels."""
        return operators.operators(self.results, with_attributed=False)[0]

    @cached_property
    def attributed(self) -> tuple[pd.DataFrame, list[Problem]]:
        """Work of operators in imported traces, and problems."""
        return operators.attributed(self.results, ("family", "name"))

    @cached_property
    def shifts(self) -> pd.DataFrame:
        return shifts(self.results)

    def figures(self, *names: str) -> list[Figure]:
        """Figures whose name is in `names`, or begins with a name that ends in `_` or `-`."""
        return [drawn for drawn in self.drawn if any(_is_named(drawn.name, name) for name in names)]

    def record(self, run_id: str) -> Record | None:
        """run.json of a run; None if its bundle has gone since it was loaded."""
        with suppress(RooflaunchError):
            return self.results.record(run_id)
        return None


def _is_named(name: str, wanted: str) -> bool:
    return name == wanted or (wanted.endswith(("_", "-")) and name.startswith(wanted))


def gather(results: Tables, *, on_stage: Callable[[str], None] = lambda _: None) -> ReportEvidence:
    """Make the tables that figures need, and the figures; other tables are made on first access."""
    on_stage("tables")
    tables = material.make(
        results,
        points=points,
        roofs=roofs,
        kernel_points=kernel_points,
        costs=costs.costs,
    )
    on_stage("figures")
    return ReportEvidence(results=results, material=tables, drawn=registry.figures(tables))
