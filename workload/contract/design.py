"""Differences of configurations from all blocks of one place. Pure; standard library only.

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
from math import exp, fsum, inf, isfinite, lgamma, log, sqrt
from operator import mul
from statistics import fmean, variance

from workload.contract.text import counted

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
# Level of the F test of "further terms for positions explain nothing".
LACKS_FIT = 0.1
MOST_POSITIONS = 30
# Values below this share of the logarithms are rounding errors.
ROUNDING = 1e-13
SINGULAR = 1e-9
# Terms of the continued fraction of the beta function; 200 are enough for a million degrees of freedom.
MOST_TERMS = 500


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
        """Weighted sum of logarithms in each block that has all configurations of `weights`."""
        return tuple(fsum(weight * cell.log for cell, weight in cells) for cells in self._blocks_with(weights))

    def _without_positions(self, weights: Mapping[Hashable, float]) -> tuple[tuple[float, ...], float]:
        """`_series` without the effect of positions, and the variance that this correction adds to the mean."""
        blocks = self._blocks_with(weights)
        series = tuple(
            fsum(weight * (cell.log - self._common.effect_of_position(cell)) for cell, weight in cells)
            for cells in blocks
        )
        return series, self._common.variance_of_positions(blocks)

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
        few = _Fit(self._cells, usual)
        if not few.columns or few.degrees < LEAST_DEGREES:
            return 0
        if few.columns < usual:
            return None
        return self._columns_that_fit(few, usual, every) if usual < every <= MOST_POSITIONS else usual

    def _columns_that_fit(self, few: "_Fit", usual: int, every: int) -> int | None:
        """Number of terms for positions: `usual`, or `every` if one term per position explains significantly more.

        None if positions matter but are confounded with configurations, or if too few degrees of freedom are left.
        """
        full = _Fit(self._cells, every)
        if full.columns < every:
            # The runs' orders confound some positions with configurations, which does harm only if positions matter.
            return None if _is_better(few, _Fit(self._cells, 0)) else usual
        if full.degrees < LEAST_BLOCKS or full.is_exact or not _is_better(full, few):
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
            fit = self._fit(pool)
            if fit.degrees < LEAST_DEGREES or fit.columns < (self._columns or 0):
                # Too few runs remain for a common estimate.
                return frozenset(), frozenset(configurations)
        own = {name for name, p_value in p_values.items() if p_value < OWN_BLOCKS}
        return frozenset(pool), frozenset({*configurations} - {*pool} | own)

    def _p_values(self, pool: Sequence[Hashable]) -> dict[Hashable, float]:
        """p-value of each configuration of `pool`, in a test of "scatters as the others" against "scatters more"."""
        all_fit = self._fit(pool)
        p_values = {}
        for name in pool:
            others = self._fit([other for other in pool if other != name])
            degrees = all_fit.degrees - others.degrees
            if degrees < 1 or others.degrees < 1 or all_fit.is_exact:
                continue
            extra = max(all_fit.squares - others.squares, 0.0) / degrees
            ratio = inf if others.is_exact else extra * others.degrees / others.squares
            p_values[name] = f_tail(ratio, degrees, others.degrees)
        return p_values

    @cached_property
    def _common(self) -> "_Fit":
        return self._fit([name for name in self._cells_by_configuration if name in self._pool])

    def _fit(self, configurations: Iterable[Hashable]) -> "_Fit":
        cells = [cell for name in configurations for cell in self._cells_by_configuration[name]]
        return _Fit(cells, self._columns or 0)


def _is_better(fit: "_Fit", other: "_Fit") -> bool:
    """Whether `fit`, with more terms for positions, explains significantly more than `other`."""
    terms = other.degrees - fit.degrees
    if terms < 1 or fit.is_exact:
        return False
    ratio = (other.squares - fit.squares) / terms * fit.degrees / fit.squares
    return f_tail(ratio, terms, fit.degrees) < LACKS_FIT


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


@dataclass(frozen=True, kw_only=True)
class _Term:
    """A linear combination of the terms of positions, with coefficients `factors`. `raw`: its values in the cells.

    `unit`: the part of `raw` orthogonal to configurations, blocks and earlier terms, with length 1.
    """

    raw: list[float]
    unit: list[float]
    factors: list[float]


class _Fit:
    """Least squares of the cells' logarithms on configurations, blocks and terms of the position.

    `squares`: sum of squared residuals, with `degrees` of freedom; `columns`: number of terms of positions that are
    independent of configurations and blocks.
    """

    def __init__(self, cells: Sequence[_Cell], columns: int) -> None:
        self._cells = cells
        self._two_way = _TwoWay([cell.configuration for cell in cells], [cell.block for cell in cells])
        self._terms: list[_Term] = []
        self._starts = min((cell.position for cell in cells if cell.position is not None), default=0.0)
        for number in range(columns):
            self._add(number, columns)
        self.columns = len(self._terms)
        self.degrees = len(cells) - self._two_way.rank - self.columns
        logs = [cell.log for cell in cells]
        residuals = self._two_way.residuals(logs)
        self._slopes = [0.0] * columns
        for term in self._terms:
            effect = _dot(term.unit, residuals)
            self._slopes = _subtracted(self._slopes, -effect, term.factors)
            residuals = _subtracted(residuals, effect, term.unit)
        self.squares = _dot(residuals, residuals)
        self.is_exact = self.squares <= len(cells) * (ROUNDING * max([1.0, *map(abs, logs)])) ** 2

    def _add(self, number: int, columns: int) -> None:
        """Add a term of positions, unless it is a combination of configurations, blocks and earlier terms."""
        raw = [_position_term(cell, number, self._starts) for cell in self._cells]
        rest = self._two_way.residuals(raw)
        factors = [float(column == number) for column in range(columns)]
        for term in self._terms:
            share = _dot(term.unit, rest)
            raw, rest = _subtracted(raw, share, term.raw), _subtracted(rest, share, term.unit)
            factors = _subtracted(factors, share, term.factors)
        length = sqrt(_dot(rest, rest))
        if length > SINGULAR * sqrt(len(raw)):
            raw, rest, factors = ([value / length for value in values] for values in (raw, rest, factors))
            self._terms.append(_Term(raw=raw, unit=rest, factors=factors))

    def effect_of_position(self, cell: _Cell) -> float:
        """Estimated effect of the position on a cell's logarithm; the cell need not be part of the fit."""
        return sum(slope * _position_term(cell, number, self._starts) for number, slope in enumerate(self._slopes))

    def variance_of_positions(self, blocks: "Sequence[Sequence[tuple[_Cell, float]]]") -> float:
        """Variance that the estimated effects of positions add to the mean of the weighted sums of `blocks`."""
        total = 0.0
        for term in self._terms:
            weighted_terms = (
                weight * factor * _position_term(cell, number, self._starts)
                for cells in blocks
                for cell, weight in cells
                for number, factor in enumerate(term.factors)
                if factor
            )
            total += (fsum(weighted_terms) / len(blocks)) ** 2
        return total * self.squares / self.degrees

    def contrast(self, weights: Mapping[Hashable, float]) -> tuple[float, float]:
        """Value and standard error of a weighted sum of configurations, whose weights sum to zero."""
        shares = self._two_way.functional(weights)
        plain = shares
        for term in self._terms:
            shares = _subtracted(shares, _dot(term.raw, plain), term.unit)
        value = fsum(share * cell.log for share, cell in zip(shares, self._cells, strict=True))
        return value, sqrt(self.squares / self.degrees * _dot(shares, shares))


def _position_term(cell: _Cell, number: int, starts: float) -> float:
    """Value of one regressor for a run. The regressors explain how the position in a block changes a run's figure.

    `starts`: number of the first position. Regressor 0 is 1 for every run but the first of its block. Regressor 1
    counts the positions after the second. Regressor n > 1 is 1 for the run that is n - 1 positions after the first.
    """
    after = (cell.position or 0.0) - starts
    if number == 0:
        return min(after, 1.0)
    return max(after - 1.0, 0.0) if number == 1 else float(after == number - 1)


class _TwoWay:
    """Least squares on configurations and blocks: eliminates the larger of the two sets, solves for the smaller."""

    def __init__(self, configurations: Sequence[Hashable], blocks: Sequence[Hashable]) -> None:
        self._configurations = configurations
        self._configurations_are_more = len(set(configurations)) >= len(set(blocks))
        more, fewer = (configurations, blocks) if self._configurations_are_more else (blocks, configurations)
        # Numbers of each cell's configuration and block; `_large` belongs to the larger of the two sets.
        self._large, self._small = _numbered(more), _numbered(fewer)
        self._sizes = [0.0] * (max(self._large, default=-1) + 1)
        for large in self._large:
            self._sizes[large] += 1
        size = max(self._small, default=-1) + 1
        normal = [[0.0] * size for _ in range(size)]
        members: dict[int, list[int]] = defaultdict(list)
        for large, small in zip(self._large, self._small, strict=True):
            normal[small][small] += 1
            members[large].append(small)
        for large, smalls in members.items():
            for row in smalls:
                for column in smalls:
                    normal[row][column] -= 1 / self._sizes[large]
        self._inverse, rank = _inverse(normal)
        self.rank = len(self._sizes) + rank

    def residuals(self, values: Sequence[float]) -> list[float]:
        """Residuals of the values after fitting configurations and blocks, one per cell."""
        large_sums, small_sums = [0.0] * len(self._sizes), [0.0] * len(self._inverse)
        for large, small, value in zip(self._large, self._small, values, strict=True):
            large_sums[large] += value
            small_sums[small] += value
        return [value - part for value, part in zip(values, self._combined(large_sums, small_sums), strict=True)]

    def functional(self, weights: Mapping[Hashable, float]) -> list[float]:
        """Weights of the cells in the least-squares estimate of a weighted sum of configurations."""
        labels = self._large if self._configurations_are_more else self._small
        numbers = dict(zip(self._configurations, labels, strict=True))
        large_sums, small_sums = [0.0] * len(self._sizes), [0.0] * len(self._inverse)
        side = large_sums if self._configurations_are_more else small_sums
        for name, weight in weights.items():
            side[numbers[name]] += weight
        return self._combined(large_sums, small_sums)

    def _combined(self, large_sums: Sequence[float], small_sums: Sequence[float]) -> list[float]:
        """Solve the normal equations for these right-hand sides; return configuration plus block parameter per cell."""
        right = list(small_sums)
        for large, small in zip(self._large, self._small, strict=True):
            right[small] -= large_sums[large] / self._sizes[large]
        small_parameters = [_dot(row, right) for row in self._inverse]
        rest = list(large_sums)
        for large, small in zip(self._large, self._small, strict=True):
            rest[large] -= small_parameters[small]
        large_parameters = [value / size for value, size in zip(rest, self._sizes, strict=True)]
        return [
            large_parameters[large] + small_parameters[small]
            for large, small in zip(self._large, self._small, strict=True)
        ]


def _numbered(labels: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels]


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return fsum(map(mul, first, second))


def _subtracted(values: Sequence[float], share: float, other: Sequence[float]) -> list[float]:
    """`values` - `share` x `other`, by element."""
    return [value - share * part for value, part in zip(values, other, strict=True)]


def _inverse(matrix: list[list[float]]) -> tuple[list[list[float]], int]:
    """Generalized inverse and rank of a positive semidefinite matrix, by the sweep operator.

    Goodnight, The American Statistician 33 (1979).
    """
    swept = [list(row) for row in matrix]
    size, rank = len(swept), 0
    smallest = SINGULAR * max((row[at] for at, row in enumerate(swept)), default=0.0)
    dependent = []
    for at in range(size):
        pivot = swept[at][at]
        if pivot <= smallest:
            dependent.append(at)
            continue
        rank += 1
        row = [value / pivot for value in swept[at]]
        for other in range(size):
            factor = swept[other][at]
            if other == at or not factor:
                continue
            swept[other] = _subtracted(swept[other], factor, row)
            swept[other][at] = -factor / pivot
        row[at] = 1 / pivot
        swept[at] = row
    for at in dependent:
        swept[at] = [0.0] * size
        for line in swept:
            line[at] = 0.0
    return swept, rank


def f_tail(ratio: float, first: float, second: float) -> float:
    """Probability that an F statistic with `first` and `second` degrees of freedom exceeds `ratio`.

    Computed from the continued fraction of the incomplete beta function (Abramowitz & Stegun, 1964, 26.5.8 and 26.6.2).
    """
    if ratio == inf:
        return 0.0
    share = second / (second + first * ratio)
    return _beta(second / 2, first / 2, share)


def _beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x)) / a
    # Lentz's method, Applied Optics 15 (1976).
    value, upper, lower = 1.0, 1.0, 0.0
    for term in range(MOST_TERMS):
        half = term // 2
        if term == 0:
            factor = 1.0
        elif term % 2:
            factor = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            factor = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1 / ((1 + factor * lower) or 1e-300)
        upper = (1 + factor / upper) or 1e-300
        value *= upper * lower
        if abs(upper * lower - 1) < ROUNDING:
            break
    return front * (value - 1)
