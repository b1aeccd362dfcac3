"""Do the intervals of `analysis.statistics` cover what they say? Simulated data whose truth is known.

    python benchmarks/coverage.py              about 15 minutes on one core
    python benchmarks/coverage.py --scale 0.1 --parts split

Wanted: 95 % intervals cover 93-97 %. Times are exp(run effect + steps within the run); rho is the lag-1 autocorrelation
of the steps, `noisy` means that the spread within runs hides the one between them. Beside coverage: the share of series
that got no interval, and the median width.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from scipy.signal import lfilter
from scipy.stats import ttest_ind

from analysis.statistics import autocorrelation, comparison, components, samples, steady
from analysis.statistics.samples import Floats, Interval

STEPS = 100
BETWEEN, WITHIN = 0.006, 0.002
NOISY_BETWEEN, NOISY_WITHIN = 0.001, 0.02
# Real effects that a normal sample does not show: skewed, heavy tails, 1 run of 10 on a slow host.
EFFECTS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "skewed": lambda rng, n: rng.exponential(size=n),
    "heavy": lambda rng, n: rng.standard_t(3, size=n),
    "1 of 10": lambda rng, n: rng.normal(size=n) + 5 * (rng.random(n) < 0.1),
}


def waves(rng: np.random.Generator, *, series: int, steps: int, rho: float) -> Floats:
    """Stationary AR(1) of variance 1, shape (series, steps)."""
    shocks = rng.normal(size=(series, steps)) * np.sqrt(1 - rho**2)
    shocks[:, 0] /= np.sqrt(1 - rho**2)
    return np.asarray(lfilter([1.0], [1.0, -rho], shocks, axis=1), dtype=np.float64)


def simulated_runs(rng: np.random.Generator, effect: str, *, runs: int, rho: float, noisy: bool) -> Floats:
    """Step times, shape (runs, STEPS)."""
    between, within = (NOISY_BETWEEN, NOISY_WITHIN) if noisy else (BETWEEN, WITHIN)
    levels = between * EFFECTS[effect](rng, runs)
    return np.exp(levels[:, None] + within * waves(rng, series=runs, steps=STEPS, rho=rho))


def row(name: str, intervals: Iterable[tuple[Interval | None, float]]) -> str:
    """Coverage of the intervals that there are, with its binomial standard error."""
    found = list(intervals)
    given = [(interval, truth) for interval, truth in found if interval is not None]
    if not given:
        return f"{name:<58} none of {len(found)} got an interval"
    covered = float(np.mean([interval.holds(truth) for interval, truth in given]))
    error = np.sqrt(covered * (1 - covered) / len(given))
    width = np.median([interval.high - interval.low for interval, _ in given])
    refused = 1 - len(given) / len(found)
    mark = "" if 0.93 - 2 * error <= covered <= 0.97 + 2 * error else "  OUTSIDE 93-97 %"
    return f"{name:<58} {covered:7.1%} +- {error:4.1%}  no interval {refused:4.0%}  width {width:.2g}{mark}"


def over_runs(rng: np.random.Generator, scale: float) -> Iterator[str]:
    for effect in EFFECTS:
        for noisy in (False, True):
            pool = simulated_runs(rng, effect, runs=int(20_000 * scale), rho=0.9, noisy=noisy)
            medians = np.median(pool, axis=1)
            truth = float(np.median(medians))
            for n in (3, 5, 6, 10, 20):
                groups = medians[: medians.size // n * n].reshape(-1, n)[:4000]
                name = f"median over {n} runs, {effect}{', noisy' if noisy else ''}"
                yield row(name, ((samples.over_runs(group).interval, truth) for group in groups))


def ratios(rng: np.random.Generator, scale: float) -> Iterator[str]:
    for effect in EFFECTS:
        for noisy in (False, True):
            for first, second in ((2, 2), (3, 3), (3, 10), (5, 5), (6, 6), (10, 10)):
                series = int(4000 * scale)
                base = simulated_runs(rng, effect, runs=series * first, rho=0.9, noisy=noisy)
                slow = 1.05 * simulated_runs(rng, effect, runs=series * second, rho=0.9, noisy=noisy)
                pairs = zip(base.reshape(series, first, -1), slow.reshape(series, second, -1), strict=True)
                name = f"ratio, {first} against {second} runs, {effect}{', noisy' if noisy else ''}"
                yield row(name, ((comparison.compare(list(a), list(b)).interval, 1.05) for a, b in pairs))


def modes(rng: np.random.Generator, scale: float) -> Iterator[str]:
    """Hard cases: runs in two modes, where a few runs may show only one, and two sides with unlike scatter."""
    for n in (3, 4, 5, 6, 10):
        figures = np.exp(0.002 * rng.normal(size=(2, int(4000 * scale), n)))
        figures *= np.where(rng.random(figures.shape) < 0.35, 1.05, 1.0)
        name = f"ratio, {n} against {n} runs, two modes (65/35, 5 % apart)"
        yield row(name, ((comparison.compare(list(a), list(b)).interval, 1.0) for a, b in zip(*figures, strict=True)))
    for first, second in ((3, 10), (3, 5), (5, 10)):
        small, large = (
            np.exp(spread * rng.normal(size=(int(4000 * scale), size)))
            for spread, size in ((4 * BETWEEN, first), (BETWEEN, second))
        )
        name = f"ratio, {first} against {second} runs, the fewer scatter 4 times as much"
        pairs = zip(small, large, strict=True)
        yield row(name, ((comparison.compare(list(a), list(b)).interval, 1.0) for a, b in pairs))


def split(rng: np.random.Generator, scale: float) -> Iterator[str]:
    for runs, rho, noisy in ((3, 0.0, False), (5, 0.0, False), (10, 0.0, True), (5, 0.9, False), (10, 0.9, False)):
        within_stdev = NOISY_WITHIN if noisy else WITHIN
        lengths = np.linspace(STEPS // 2, STEPS, runs).astype(int)
        found = []
        for _ in range(int(1000 * scale)):
            times = np.exp(
                BETWEEN * rng.normal(size=(runs, 1)) + within_stdev * waves(rng, series=runs, steps=STEPS, rho=rho)
            )
            found.append(components.variance_split([x[:n] for x, n in zip(times, lengths, strict=True)]))
        name = f"{runs} runs of 50-100 steps, rho {rho}{', noisy' if noisy else ''}"
        yield row(f"stdev within, {name}", ((one.within.interval, within_stdev) for one in found))
        yield row(f"stdev between, {name}", ((one.between.interval, BETWEEN) for one in found))


def shares(rng: np.random.Generator, scale: float) -> Iterator[str]:
    for correlation, rho in ((0.0, 0.0), (0.0, 0.9), (0.7, 0.0), (0.7, 0.9)):
        series = int(2000 * scale)
        clock, rest = (waves(rng, series=series, steps=200, rho=rho) for _ in range(2))
        times = correlation * clock + np.sqrt(1 - correlation**2) * rest
        truth = (6 / np.pi * np.arcsin(correlation / 2)) ** 2
        name = f"share explained, 200 steps, correlation {correlation}, rho {rho}"
        yield row(
            name, ((autocorrelation.share_explained(a, b).interval, truth) for a, b in zip(times, clock, strict=True))
        )


def alarms(rng: np.random.Generator, scale: float) -> Iterator[str]:
    """Shares of false results, which must be small, and one share that must be 80 %."""
    for rho in (0.0, 0.5, 0.9):
        series = 1 + 0.002 * waves(rng, series=int(2000 * scale), steps=STEPS, rho=rho)
        periodic = np.mean([autocorrelation.period_scan(x).found for x in series])
        unsteady = np.mean([not steady.steady_state(x).steady for x in series])
        warm = np.mean([(steady.steady_state(x).warmup_steps or 0) > 0 for x in series])
        yield f"false alarms, rho {rho}: period {periodic:.2%}, not steady {unsteady:.2%}, warm-up seen {warm:.2%}"
    for n in (3, 5, 10):
        error = BETWEEN * np.sqrt(2 / n)
        detectable = comparison.Difference(value=0.0, error=error, degrees=2 * n - 2).detectable(0.05)
        base, other = (rng.normal(size=(int(4000 * scale), n)) * BETWEEN for _ in range(2))
        hits = ttest_ind(base, other + detectable, axis=1).pvalue < 0.05
        none = [
            (comparison.compare(np.exp(a), np.exp(b)).p_value or 0) < 0.05
            for a, b in zip(base[:1000], other[:1000], strict=True)
        ]
        yield (
            f"{n} against {n} runs: smallest detectable difference {detectable:.2%} found by {np.mean(hits):.1%}; "
            f"p < 0.05 without a difference {np.mean(none):.1%}"
        )


PARTS = {part.__name__: part for part in (split, shares, alarms, over_runs, ratios, modes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    for name in options.parts:
        for line in PARTS[name](np.random.default_rng(options.seed), options.scale):
            print(line, flush=True)


if __name__ == "__main__":
    main()
