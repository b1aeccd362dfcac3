"""Public interface of `import analysis`: the tables of runs, and the tables of the commands as methods."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.loading.configurations import CONFIGURATION
from analysis.loading.tables import Tables, load_folders
from workload.contract.errors import UsageError
from workload.contract.peaks import own_peaks, use
from workload.contract.text import counted


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Results(Tables):
    """Tables of runs, with the tables of several commands of `analyze` as methods."""

    def __repr__(self) -> str:
        configurations = counted(len(self.runs[list(CONFIGURATION)].drop_duplicates()), "configuration")
        places = counted(self.runs["place"].nunique(), "place")
        problems = f"; {counted(len(self.problems), 'problem')}" if self.problems else ""
        return f"<Results: {counted(len(self.runs), 'run')} of {configurations} on {places}{problems}>"

    def summary(self) -> pd.DataFrame:
        """A row per configuration and place, the fastest of each model first.

        Columns: `analysis.summary.throughput.COLUMNS`.
        """
        from analysis.summary.throughput import summarize  # noqa: PLC0415 - only for who asks, here and below

        return summarize(self.runs)

    def compare(
        self,
        by: str | None = None,
        allow_mixed: Collection[str] = (),
        *,
        baseline: str | None = None,
        all_pairs: bool = False,
    ) -> pd.DataFrame:
        """A row per pair of values of `by`; None: the first fact in which otherwise equal runs differ.

        Parameters and errors: see `analysis.compare.ratios.compare`.
        """
        from analysis.compare.ratios import compare  # noqa: PLC0415

        return compare(self, by, baseline=baseline, all_pairs=all_pairs, allow_mixed=allow_mixed)

    def roofline(self) -> pd.DataFrame:
        """A row per configuration, place and source of FLOP and bytes: see `analysis.roofline.points.points`."""
        from analysis.roofline.points import points  # noqa: PLC0415

        return points(self)

    def predict(self, gpus: Sequence[str]) -> pd.DataFrame:
        """Step times on GPUs that were not run: see `analysis.roofline.predictions.predict`."""
        from analysis.roofline.predictions import predict  # noqa: PLC0415

        return predict(self, gpus)

    def variance(self, part: str = "between") -> pd.DataFrame:
        """A table of `analyze variance`; `part`: `between`, `within`, `machines` or `causes`.

        Raises `UsageError` for another `part`.
        """
        from analysis.variance.tables import TABLES, table  # noqa: PLC0415

        if part not in TABLES:
            raise UsageError(f"variance has no part '{part}'", hint=f"one of {', '.join(TABLES)}")
        return table(self, part)

    def audit(self) -> pd.DataFrame:
        """A row per finding, errors first; columns: the fields of `analysis.audit.Finding`. Empty without findings."""
        from analysis.audit import as_frame, audit  # noqa: PLC0415

        return as_frame(audit(self))

    @cached_property
    def figures(self) -> Mapping[str, Any]:
        """The report's figures as Altair charts by name; all are drawn on first access."""
        from analysis.figures.export import chart  # noqa: PLC0415 - Altair
        from analysis.report.evidence import gather  # noqa: PLC0415

        return {drawn.name: chart(drawn) for drawn in gather(self).drawn}


def load(*folders: str | Path, verify: bool = False, peaks: str | Path | None = None) -> Results:
    """Load the runs in any number of folders: see `analysis.load`."""
    use(own_peaks(Path(peaks) if peaks else None))
    tables = load_folders([Path(folder) for folder in folders], verify=verify)
    return Results(**vars(tables))
