"""`analyze`: turns bundles into tables, statistics, rooflines and a report.

In a notebook:

    import analysis
    results = analysis.load("results")
    results.runs.groupby("model").images_per_s.median()

`results.runs`, `.steps`, `.telemetry`, `.ceilings` and `.kernels` are pandas tables, units in their column names;
`results.problems` says what could not be read, and why. `results.summary()`, `.compare()`, `.roofline()`, `.variance()`
and `.audit()` are the tables of the commands, `results.figures` the charts of the report.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.loading import Results

__all__ = ["load"]


def load(*folders: str | Path, verify: bool = False) -> "Results":
    """The runs in any number of folders: results folders, nested ones, single bundles.

    A folder of 50 bundles and more is read in full once; after that its index (`.analysis/` in it) answers for every
    bundle whose files keep their sizes and times. `verify` reads and checks every bundle again. Raises `UsageError` for
    a folder that is not there and `NothingToDoError` where no bundle is.
    """
    from analysis.loading import load_folders  # noqa: PLC0415 - pandas, only for who loads something

    return load_folders([Path(folder) for folder in folders], verify=verify)
