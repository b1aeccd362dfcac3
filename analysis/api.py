"""Public interface of `import analysis`: the tables of runs, and the tables of the commands as methods."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.loading.configurations import CONFIGURATION
from analysis.loading.tables import Tables, load_folders
from workload.contract import operating_system
from workload.contract.errors import UsageError
from workload.contract.peaks import own_peaks, use
from workload.contract.text import counted

# Columns of a frame that a notebook shows without dots.
SHOWN_COLUMNS = 20


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Results(Tables):
    """Tables of runs, with the tables of several commands of `analyze` as methods.

    A frame has the first 20 columns that contain values, or with `wide` all columns of the command's JSON.
    """

    def __repr__(self) -> str:
        configurations = counted(len(self.runs[list(CONFIGURATION)].drop_duplicates()), "configuration")
        places = counted(self.runs["place"].nunique(), "place")
        problems = f"; {counted(len(self.problems), 'problem')}" if self.problems else ""
        return f"<Results: {counted(len(self.runs), 'run')} of {configurations} on {places}{problems}>"

    def __len__(self) -> int:
        return len(self.runs)

    def report(self, output: str | Path = "report.html") -> Path:
        """Write the page of `analyze report`; return its path. Raises `OSError` if it cannot be written."""
        from analysis.report import html  # noqa: PLC0415 - Altair
        from analysis.report.compose import compose  # noqa: PLC0415
        from analysis.report.evidence import gather  # noqa: PLC0415

        path = Path(output)
        operating_system.replace_text(path, html.render(compose(gather(self))))
        return path

    def summary(self, *, wide: bool = False, samples: int | None = None) -> pd.DataFrame:
        """A row per configuration and place, the fastest of each model first.

        Columns: `analysis.summary.COLUMNS`. `samples`: the user's own amount of work, whose time and cost are told.
        """
        from analysis.summary import summarize  # noqa: PLC0415 - only for who asks, here and below

        return _shown(summarize(self.runs, samples), wide=wide)

    def compare(
        self,
        by: str | None = None,
        allow_mixed: Collection[str] = (),
        *,
        baseline: str | None = None,
        wide: bool = False,
    ) -> pd.DataFrame:
        """A row per pair of values of `by`; None: the first fact in which otherwise equal runs differ.

        Parameters and errors: see `analysis.compare.compare`.
        """
        from analysis.compare import compare  # noqa: PLC0415

        compared = compare(self, by, baseline=baseline, allow_mixed=allow_mixed)
        return _shown(compared, wide=wide)

    def roofline(self, *, wide: bool = False) -> pd.DataFrame:
        """A row per configuration, place and source of FLOP and bytes: see `analysis.roofline.points.points`."""
        from analysis.roofline.points import points  # noqa: PLC0415

        return _shown(points(self), wide=wide)

    def variance(self, part: str = "between", *, wide: bool = False) -> pd.DataFrame:
        """A table of `analyze variance`; `part`: `between`, `within`, `machines` or `causes`.

        Raises `UsageError` for another `part`.
        """
        from analysis.variance import TABLES, table  # noqa: PLC0415

        if part not in TABLES:
            raise UsageError(f"variance has no part '{part}'", hint=f"one of {', '.join(TABLES)}")
        return _shown(table(self, part), wide=wide)

    def audit(self) -> pd.DataFrame:
        """A row per finding, errors first; columns: the fields of `analysis.audit.Finding`. Empty without findings."""
        from analysis.audit import as_frame, audit  # noqa: PLC0415

        return as_frame(audit(self))

    @cached_property
    def figures(self) -> Mapping[str, Any]:
        """The report's figures as Altair charts by name; all are drawn on first access."""
        from analysis.figures.export import chart  # noqa: PLC0415 - Altair
        from analysis.report.evidence import gather  # noqa: PLC0415

        return {drawn.name: chart(drawn) for drawn in gather(self, judges=False).drawn}


def _shown(frame: pd.DataFrame, *, wide: bool) -> pd.DataFrame:
    """All columns of `frame`, or the first ones that contain values."""
    return frame if wide else frame[[name for name in frame if frame[name].notna().any()][:SHOWN_COLUMNS]]


def load(*folders: str | Path, verify: bool = False, peaks: str | Path | None = None) -> Results:
    """Load the runs in any number of folders: see `analysis.load`."""
    use(own_peaks(Path(peaks) if peaks else None))
    tables = load_folders([Path(folder) for folder in folders], verify=verify)
    return Results(**vars(tables))
