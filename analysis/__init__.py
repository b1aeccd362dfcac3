"""`analyze`: turns bundles into tables, statistics, rooflines and a report.

In a notebook:

    import analysis
    results = analysis.load("results")
    results.runs.groupby("model").images_per_s.median()

`results.runs`, `.steps`, `.telemetry`, `.ceilings` and `.kernels` are pandas tables with units in their column names.
`results.problems` lists data that could not be read, with reasons. `results.summary()`, `.compare()`, `.roofline()`,
`.variance()` and `.audit()` return the tables of the commands, `results.figures` the charts of the report.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.api import Results

__all__ = ["load"]


def load(*folders: str | Path, verify: bool = False, peaks: str | Path | None = None) -> "Results":
    """Load the runs in any number of folders: results folders, nested folders, single bundles.

    A folder with 50 or more bundles is read in full once. Afterwards its index (`.analysis/` in it) is used for every
    bundle whose files keep their sizes and times. `verify`: read and check every bundle again. `peaks`: file with own
    peaks of devices, in the form of workload/contract/peaks.toml; None: `peaks.toml` in the working folder, if present.
    All results of this process use the peaks of the last call. Raises `UsageError` for a missing folder or a wrong
    file of peaks, and `NothingToDoError` if there is no bundle.
    """
    from analysis import api  # noqa: PLC0415 - pandas, only for who loads something

    return api.load(*folders, verify=verify, peaks=peaks)
