"""How much a step time says about the next ones, and so how many independent steps a run is worth."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import rankdata

from analysis.statistics.samples import Floats, counted, ordered

# Below this number of steps no correlation can be shown: the standard error of one lag is 1 / sqrt(n) > 0.35.
LEAST_STEPS = 8
# The correlation of fewer steps cannot be told well enough for an interval: 95 % intervals of a median from 20 steps
# of lag 1 = 0.8 and 0.9 cover 84 % and 75 %, of a slope 65 % and 54 %. From 100 steps of lag 1 up to 0.9 both cover
# 94 % or more; of lag 1 = 0.95, a third gets none and the others cover 86 % (benchmarks/coverage.py).
LEAST_FOR_INTERVAL = 100


@dataclass(frozen=True, kw_only=True)
class Correlogram:
    """Autocorrelation at the lags 0, 1, 2, ...; empty with a reason where there is none."""

    n: int
    values: Floats
    reason: str | None = None

    def at(self, lag: int) -> float | None:
        return float(self.values[lag]) if lag < self.values.size else None


@dataclass(frozen=True, kw_only=True)
class EffectiveN:
    """`n` steps carry the information of `effective` independent ones (at most n); `tau` = n / effective."""

    n: int
    effective: float | None
    tau: float | None = None
    lag1: float | None = None
    reason: str | None = None


def correlogram(values: npt.ArrayLike, *, max_lag: int | None = None, robust: bool = False) -> Correlogram:
    """The usual (biased, positive definite) estimate up to `max_lag` (default: all).

    robust: of normal scores (van der Waerden) in place of the values; one slow step cannot hide how the rest goes.
    """
    series, reason = ordered(values, least=LEAST_STEPS)
    if reason:
        return Correlogram(n=series.size, values=np.empty(0), reason=reason)
    return Correlogram(n=series.size, values=acf(normal_scores(series) if robust else series)[: _stop(max_lag)])


def _stop(max_lag: int | None) -> int | None:
    return None if max_lag is None else max_lag + 1


def effective_n(values: npt.ArrayLike, *, robust: bool = True) -> EffectiveN:
    """From the initial monotone sequence: correlations summed in pairs while the pairs stay positive, made decreasing.

    Geyer, Practical Markov chain Monte Carlo, Statistical Science 7 (1992), section 3.3. `robust`: as in `correlogram`.
    """
    correlations = correlogram(values, robust=robust)
    if correlations.reason:
        return EffectiveN(n=correlations.n, effective=None, reason=correlations.reason)
    tau = integrated_time(correlations.values)
    return EffectiveN(n=correlations.n, effective=correlations.n / tau, tau=tau, lag1=correlations.at(1))


def integrated_time(correlations: Floats) -> float:
    """1 + 2 x the sum of the correlations at lags 1, 2, ..., by Geyer's rule; at least 1 and at most n.

    Alternating series would be worth more than n: not claimed, as the estimate is too uncertain for that.
    """
    pairs = correlations[: correlations.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = pairs > 0
    kept = pairs if positive.all() else pairs[: int(np.argmin(positive))]
    tau = 2 * float(np.minimum.accumulate(kept).sum()) - 1
    return float(np.clip(tau, 1.0, correlations.size))


def acf(series: Floats) -> Floats:
    """Autocorrelation at all lags, shape (n,), by the fast Fourier transform."""
    centred = series - series.mean()
    # Padded, so that the end of the series does not meet its beginning.
    spectrum = np.fft.rfft(centred, 2 * series.size)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), 2 * series.size)[: series.size]
    return np.asarray(covariance / covariance[0], dtype=np.float64)


def normal_scores(series: Floats) -> Floats:
    """Each value by its rank, as a normal sample of that size would have it; ties share the mean rank."""
    return np.asarray(ndtri(rankdata(series) / (series.size + 1)), dtype=np.float64)


def too_short(steps: int) -> str | None:
    """Why so many steps give no interval."""
    if steps >= LEAST_FOR_INTERVAL:
        return None
    return f"{counted(steps, 'step')}: at least {LEAST_FOR_INTERVAL} tell how they correlate: no interval"


def cautious_time(scores: Floats, *, trend: bool = False) -> float:
    """Integrated time for an interval: at least that of a first-order autoregression freed of its bias.

    Without it, 95 % intervals from 100 steps at rho = 0.9 cover 85 % (benchmarks/coverage.py).
    """
    correlations = acf(scores)
    rho = unbiased_lag1(float(correlations[1]), n=float(scores.size), trend=trend)
    return max(integrated_time(correlations), (1 + rho) / (1 - rho))


def unbiased_lag1(rho: float, *, n: float, runs: int = 1, trend: bool = False) -> float:
    """From the usual lag-1 estimate of series of `n` steps (mean over `runs`); 0 where it is noise at the 5 % level.

    Taking off the mean biases it by -(1 + 4 rho) / n, a trend line by -(2 + 5 rho) / n: Kendall, Biometrika 41 (1954);
    Shaman & Stine, JASA 83 (1988); one rho / n of each comes from the divisor n.
    """
    if rho < 1.645 / np.sqrt(n * runs):
        return 0.0
    unbiased = (n * rho + 2) / (n - 5) if trend else (n * rho + 1) / (n - 4)
    return float(min(unbiased, 1 - 2 / n))
