"""Runs that differ in one fact, for every fact: the pairs of `analysis.compare.ratios`, and which side is faster. Pure.

Settings and places are compared among all runs; zone, hypervisor, backend and runtime among the runs of one device.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from analysis.compare import ratios
from analysis.compare.pairing import Pair, Side, pair_up, value_text
from analysis.loading.configurations import CONFIGURATION, measured
from analysis.loading.rows import rows as rows_of
from analysis.loading.tables import Tables
from analysis.statistics.comparison import ALPHA
from workload.contract.errors import RooflaunchError

# Another model or unit is another task.
SETTINGS = tuple(fact for fact in CONFIGURATION if fact not in ("model", "unit"))
PLACEMENT = ("zone", "hypervisor", "backend", "runtime")


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A pair of sides that differ in the fact `by`, and its `row` of `analysis.compare.ratios`."""

    by: str
    pair: Pair
    row: Mapping[str, Any]

    @property
    def is_certain(self) -> bool:
        """Whether the interval, corrected for all pairs of this fact, leaves out 1 and names a winner."""
        ends = (self.row["ratio_low"], self.row["ratio_high"])
        p = self.row["p_holm"]
        return p is not None and p < ALPHA and any(end and abs(end - 1) >= ratios.SAME_WITHIN for end in ends)

    @property
    def effect(self) -> float:
        """The throughput of the faster side over that of the slower; 1 where one of them is unknown."""
        ratio = self.row["ratio"]
        return max(ratio, 1 / ratio) if ratio else 1.0

    @property
    def grows(self) -> bool:
        """Whether the right side, that of the larger value, is the faster one."""
        return (self.row["ratio"] or 1.0) >= 1

    @property
    def sides(self) -> tuple[Side, Side]:
        """The faster and the slower setting."""
        left, right = self.pair.left, self.pair.right
        return (right, left) if self.grows else (left, right)


def contrasts(results: Tables) -> list[Contrast]:
    """Every pair, fact by fact; none for a fact in which no two runs differ that agree in the rest."""
    runs = measured(results.runs)
    found = [one for by in ("place", *SETTINGS) if runs[by].nunique() > 1 for one in _by(results, by)]
    for by in PLACEMENT:
        for _, table in runs[runs[by].notna()].groupby("device_name", sort=False):
            if table[by].nunique() > 1:
                found += _by(replace(results, runs=results.runs.loc[table.index]), by)
    return found


def _by(results: Tables, by: str) -> Iterator[Contrast]:
    try:
        pairing = pair_up(results, by)
    except RooflaunchError:
        return
    for pair, row in zip(pairing.pairs, rows_of(ratios.of_pairs(pairing)), strict=True):
        yield Contrast(by=by, pair=pair, row=row)


def value_of(by: str, side: Side) -> str:
    """The value of `by` that the runs of a side have, for people."""
    return value_text(by, side.value)
