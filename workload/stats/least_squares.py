"""Least squares of logarithms on configurations, blocks and the position of a run in its block."""

from collections.abc import Hashable, Mapping, Sequence
from math import sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import fdtrc

Floats: TypeAlias = npt.NDArray[np.float64]

# Singular values below this share of the largest are rounding errors of linearly dependent columns.
SINGULAR = 1e-9
# Values below this share of the logarithms are rounding errors.
ROUNDING = 1e-13
# Level of the F test of "further terms for positions explain nothing".
LACKS_FIT = 0.1


def indicators(labels: Sequence[Hashable]) -> Floats:
    """Indicator matrix of 0 and 1, shape (labels, distinct labels), in order of appearance."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.eye(len(numbers))[[numbers[label] for label in labels]]


def basis(columns: Floats) -> Floats:
    """Orthonormal basis of the column space, shape (rows, rank)."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > SINGULAR * sizes[0]], dtype=np.float64)


class Fit:
    """Logarithms of runs, fitted by configuration, block and `terms` regressors of the position.

    `squares`: sum of squared residuals, with `degrees` of freedom; `terms`: number of regressors of the position that
    are independent of configurations and blocks; `effects`: their estimates, with the unscaled `covariance`.
    `positions` are used only with `terms`.
    """

    def __init__(
        self,
        logs: Sequence[float],
        configurations: Sequence[Hashable],
        blocks: Sequence[Hashable],
        positions: Sequence[float],
        terms: int,
    ) -> None:
        self._logs = np.array(logs, dtype=np.float64)
        self._configurations = list(dict.fromkeys(configurations))
        columns = np.hstack([indicators(configurations), indicators(blocks)])
        # A decomposition of the normal equations takes a tenth of the time of one of the many rows of `columns`.
        squares, right = np.linalg.eigh(columns.T @ columns)
        is_independent = squares > SINGULAR * squares[-1]
        scaled = right[:, is_independent] / np.sqrt(squares[is_independent])
        self._fixed = columns @ scaled
        # Coordinates of each configuration's parameter in the basis `_fixed`.
        self._parameters = scaled[: len(self._configurations)].T
        self._first, self._count = min(positions, default=0.0), terms
        self._raw = self._terms_of(positions)
        places, rest = (part - self._fixed @ (self._fixed.T @ part) for part in (self._raw, self._logs))
        self._places = places
        _, sizes, right = np.linalg.svd(places, full_matrices=False)
        is_independent = sizes > SINGULAR * np.sqrt(len(logs))
        self.terms = int(np.count_nonzero(is_independent))
        roots = right[is_independent] / sizes[is_independent, None]
        self.covariance = roots.T @ roots
        self.effects = self.covariance @ (places.T @ rest)
        rest = rest - places @ self.effects
        self.degrees: int = len(logs) - self._fixed.shape[1] - self.terms
        self.squares = float(rest @ rest)
        scale = max(1.0, float(np.abs(self._logs).max()))
        self.is_exact = self.squares <= len(logs) * (ROUNDING * scale) ** 2

    @property
    def variance(self) -> float:
        """Variance of a run's logarithm around the fit."""
        return self.squares / self.degrees

    def _terms_of(self, positions: Sequence[float]) -> Floats:
        # Regressors that explain how the position in a block changes a run's figure, shape (runs, `count`).
        after = np.array(positions, dtype=np.float64) - self._first
        terms = [
            np.minimum(after, 1.0),
            np.maximum(after - 1.0, 0.0),
            *(after == number for number in range(1, self._count - 1)),
        ]
        return np.column_stack(terms)[:, : self._count].astype(np.float64)

    def effects_of(self, positions: Sequence[float]) -> list[float]:
        """Estimated effects of these positions on the logarithm; no run of the fit needs to have them."""
        effects: list[float] = (self._terms_of(positions) @ self.effects).tolist()
        return effects

    def variance_of_effects(self, positions: Sequence[float], weights: Sequence[float]) -> float:
        """Variance of the weighted sum of the estimated effects of these positions."""
        weighted = np.array(weights) @ self._terms_of(positions)
        return self.variance * float(weighted @ self.covariance @ weighted)

    def contrast(self, weights: Mapping[Hashable, float]) -> tuple[float, float]:
        """Value and standard error of a weighted sum of configurations, whose weights sum to zero."""
        chosen = self._parameters @ [weights.get(name, 0.0) for name in self._configurations]
        shares = self._fixed @ chosen
        shares = shares - self._places @ (self.covariance @ (self._raw.T @ shares))
        return float(shares @ self._logs), sqrt(self.variance * float(shares @ shares))

    def is_better(self, other: "Fit") -> bool:
        """Whether this fit, with more terms for positions, explains significantly more than `other`."""
        terms = other.degrees - self.degrees
        if terms < 1 or self.is_exact:
            return False
        return f_tail((other.squares - self.squares) / terms / self.variance, terms, self.degrees) < LACKS_FIT


def f_tail(ratio: float, first: float, second: float) -> float:
    """Probability that an F statistic with `first` and `second` degrees of freedom exceeds `ratio`."""
    return float(fdtrc(first, second, ratio))
