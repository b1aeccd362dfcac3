"""Differences of configurations from all blocks of one place. Pure.

Two-way analysis of variance: the logarithm of a figure = its configuration + its block + its position in the block +
scatter. One scatter is estimated from the whole design, so three blocks of six configurations give 8 degrees of freedom
instead of 2. The scatter of a configuration that varies more would be underestimated. Therefore an F test removes such
a configuration from the common estimate, and its differences use Student's t on its own blocks (benchmarks/blocks.py
--parts design; docs/blocks.md has the figures). Runs may be missing, because the fit is least squares.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum, inf, isfinite, log, sqrt
from statistics import fmean, variance
from typing import TYPE_CHECKING

from workload.contract.text import counted

if TYPE_CHECKING:
    from workload.stats.least_squares import Fit

LEAST_BLOCKS = 2
# Levels of F tests of "this configuration scatters as the others". Below LEAVES, corrected for the number of
# configurations, a configuration leaves the common estimate. Below OWN_BLOCKS, uncorrected, its differences use its own
# blocks. A single level would either keep noisy configurations in the estimate, or make the common scatter too small.
LEAVES = 0.1
OWN_BLOCKS = 0.15
# The test compares a configuration with the others, so the test needs at least three configurations.
LEAST_FOR_TEST = 3
# Positions are fitted only if at least this many degrees of freedom remain. With fewer, an interval without positions
# is narrower, and reversed blocks already balance the positions.
LEAST_DEGREES = 4
MOST_POSITIONS = 30
# Differences below this share of the logarithms are rounding errors.
ROUNDING = 1e-13


@dataclass(frozen=True, kw_only=True)
class Run:
    """A positive figure (images/s or seconds) with its configuration, block and position in the block, from 1."""

    figure: float
    configuration: Hashable
    block: Hashable
    position: float | None = None


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A difference of logarithms with its standard error, or the `reason` why both are missing.

    `series`: the difference in each block that has all compared configurations, in order. `shared`: number of
    configurations from whose common scatter the error is estimated; 0 if the error comes from `series` alone.
    `noisy`: compared configurations that scatter more than the others.
    """

    value: float | None
    error: float | None
    degrees: int
    series: tuple[float, ...]
    shared: int = 0
    noisy: tuple[Hashable, ...] = ()
    reason: str | None = None

    @property
    def blocks(self) -> int:
        """Number of blocks that have all configurations of the difference."""
        return len(self.series)


class Design:
    """Runs of one place. Several runs of one configuration in one block count as one, with their mean logarithm.

    Runs whose figure is no positive number are left out. `noisy`: configurations that scatter more than the
    others. `has_positions`: whether the fit corrects for positions.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self._cells = _cells(runs)
        self._cells_by_configuration: dict[Hashable, list[_Cell]] = {}
        for cell in self._cells:
            self._cells_by_configuration.setdefault(cell.configuration, []).append(cell)
        self._columns = self._position_columns()
        self._pool, self.noisy = self._scatter_alike()

    @property
    def has_positions(self) -> bool:
        return bool(self._columns)

    @property
    def configurations(self) -> tuple[Hashable, ...]:
        """Configurations in order of appearance."""
        return tuple(self._cells_by_configuration)

    def contrast(self, weights: Mapping[Hashable, float]) -> Contrast:
        """Weighted sum of the configurations' logarithms: `{"a": -1, "b": 1}` is the logarithm of b over a.

        If the weights do not sum to zero, for example for a single configuration, the sum contains the variation of
        blocks. Its error then comes from the sums of the blocks alone.
        """
        series = self._series(weights)
        value = fmean(series) if series else None
        if len(series) < LEAST_BLOCKS:
            needs = {1: "the configuration", 2: "both"}.get(len(weights), f"all {len(weights)} configurations")
            few = f"{counted(len(series), 'block')} with {needs}: no interval from fewer than {LEAST_BLOCKS}"
            return Contrast(value=value, error=None, degrees=0, series=series, reason=few)
        if max(series) - min(series) <= ROUNDING * max(1.0, *map(abs, series)):
            what = "the difference is" if len(weights) > 1 else "the figure is"
            same = (
                f"{what} exactly the same in {len(series)} blocks: no interval (perhaps they are copies of one block)"
            )
            return Contrast(value=value, error=None, degrees=0, series=series, reason=same)
        # In an average of more than two configurations, a slightly noisy one matters little: only configurations that
        # were removed from the common estimate count as noisy.
        is_pair = len(weights) <= 2  # noqa: PLR2004
        noisy = tuple(name for name in weights if (name in self.noisy if is_pair else name not in self._pool))
        is_common = not noisy and abs(fsum(weights.values())) < ROUNDING
        if is_common and self._pool and self._common.degrees and (self._columns or len(self._pool) >= LEAST_FOR_TEST):
            value, error = self._common.contrast(weights)
            return Contrast(
                value=value, error=error, degrees=self._common.degrees, series=series, shared=len(self._pool)
            )
        positions_variance = 0.0
        if abs(fsum(weights.values())) < ROUNDING and self._columns and self._pool:
            series, positions_variance = self._without_positions(weights)
        return Contrast(
            value=fmean(series),
            error=sqrt(variance(series) / len(series) + positions_variance),
            degrees=len(series) - 1,
            series=series,
            noisy=noisy,
        )

    def _series(self, weights: Mapping[Hashable, float]) -> tuple[float, ...]:
        return tuple(fsum(weight * cell.log for cell, weight in cells) for cells in self._blocks_with(weights))

    def _without_positions(self, weights: Mapping[Hashable, float]) -> tuple[tuple[float, ...], float]:
        """`_series` without the effect of positions, and the variance that this correction adds to the mean."""
        blocks = self._blocks_with(weights)
        positions = [cell.position or 0.0 for cells in blocks for cell, _ in cells]
        effects = iter(self._common.effects_of(positions))
        series = tuple(fsum(weight * (cell.log - next(effects)) for cell, weight in cells) for cells in blocks)
        shares = [weight / len(blocks) for cells in blocks for _, weight in cells]
        return series, self._common.variance_of_effects(positions, shares)

    def _blocks_with(self, weights: Mapping[Hashable, float]) -> "list[list[tuple[_Cell, float]]]":
        """Cells and weights of the configurations, for each block that has all configurations of `weights`."""
        sides = [{cell.block: cell for cell in self._cells_by_configuration.get(name, ())} for name in weights]
        blocks = [block for block in sides[0] if all(block in side for side in sides[1:])] if sides else []
        return [
            [(side[block], weight) for side, weight in zip(sides, weights.values(), strict=True)] for block in blocks
        ]

    def _position_columns(self) -> int | None:
        """Number of terms for positions in the fit: 0, 1, 2 or all; None if positions matter but cannot be estimated.

        The two usual terms are a jump after the first run of a block and a trend over the later runs, as on a device
        that warms up. If the usual terms do not fit, each position gets a term.
        """
        positions = [cell.position for cell in self._cells]
        known = [position for position in positions if position is not None]
        if not known or len(known) < len(positions):
            return 0
        every = int(max(known) - min(known))
        usual = min(2, every)
        few = _fit(self._cells, usual)
        if not few.terms or few.degrees < LEAST_DEGREES:
            return 0
        if few.terms < usual:
            return None
        return self._columns_that_fit(few, usual, every) if usual < every <= MOST_POSITIONS else usual

    def _columns_that_fit(self, few: "Fit", usual: int, every: int) -> int | None:
        """Number of terms for positions: `usual`, or `every` if one term per position explains significantly more.

        None if positions matter but are confounded with configurations, or if too few degrees of freedom are left.
        """
        full = _fit(self._cells, every)
        if full.terms < every:
            # The runs' orders confound some positions with configurations, which does harm only if positions matter.
            return None if few.is_better(_fit(self._cells, 0)) else usual
        if full.degrees < LEAST_BLOCKS or full.is_exact or not full.is_better(few):
            return usual
        return every if full.degrees >= LEAST_DEGREES else None

    def _scatter_alike(self) -> tuple[frozenset[Hashable], frozenset[Hashable]]:
        """Configurations with a common scatter, and configurations whose error comes from their own blocks alone."""
        configurations = list(self._cells_by_configuration)
        pool = list(configurations) if self._columns is not None else []
        p_values: dict[Hashable, float] = {}
        while len(pool) >= LEAST_FOR_TEST:
            p_values = self._p_values(pool)
            noisiest = min(p_values, key=lambda name: p_values[name], default=None)
            if noisiest is None or p_values[noisiest] * len(pool) >= LEAVES:
                break
            pool.remove(noisiest)
            p_values = {}
        if len(pool) < len(configurations):
            fit = self._fit(pool) if pool else None
            if fit is None or fit.degrees < LEAST_DEGREES or fit.terms < (self._columns or 0):
                # Too few runs remain for a common estimate.
                return frozenset(), frozenset(configurations)
        own = {name for name, p_value in p_values.items() if p_value < OWN_BLOCKS}
        return frozenset(pool), frozenset({*configurations} - {*pool} | own)

    def _p_values(self, pool: Sequence[Hashable]) -> dict[Hashable, float]:
        """p-value of each configuration of `pool`, in a test of "scatters as the others" against "scatters more"."""
        from workload.stats.least_squares import f_tail

        all_fit = self._fit(pool)
        p_values = {}
        for name in pool:
            others = self._fit([other for other in pool if other != name])
            degrees = all_fit.degrees - others.degrees
            if degrees < 1 or others.degrees < 1 or all_fit.is_exact:
                continue
            extra = max(all_fit.squares - others.squares, 0.0) / degrees
            p_values[name] = f_tail(inf if others.is_exact else extra / others.variance, degrees, others.degrees)
        return p_values

    @cached_property
    def _common(self) -> "Fit":
        return self._fit([name for name in self._cells_by_configuration if name in self._pool])

    def _fit(self, configurations: Iterable[Hashable]) -> "Fit":
        cells = [cell for name in configurations for cell in self._cells_by_configuration[name]]
        return _fit(cells, self._columns or 0)


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """A configuration in a block, with the mean logarithm and position of its runs there."""

    configuration: Hashable
    block: Hashable
    log: float
    position: float | None


def _cells(runs: Iterable[Run]) -> list[_Cell]:
    runs_by_cell: dict[tuple[Hashable, Hashable], list[Run]] = defaultdict(list)
    for run in runs:
        if isfinite(run.figure) and run.figure > 0:
            runs_by_cell[run.configuration, run.block].append(run)
    cells = []
    for (configuration, block), same in runs_by_cell.items():
        positions = [run.position for run in same if run.position is not None]
        cells.append(
            _Cell(
                configuration=configuration,
                block=block,
                log=fmean(log(run.figure) for run in same),
                position=fmean(positions) if len(positions) == len(same) else None,
            )
        )
    return cells


def _fit(cells: Sequence[_Cell], terms: int) -> "Fit":
    # A launch that decides nothing loads neither numpy nor scipy.
    from workload.stats.least_squares import Fit

    return Fit(
        [cell.log for cell in cells],
        [cell.configuration for cell in cells],
        [cell.block for cell in cells],
        [cell.position or 0.0 for cell in cells],
        terms,
    )
