"""Two ways to do the same work, in turn, so that a machine that drifts drifts for both."""

import random
from collections.abc import Callable, Sequence
from statistics import median

RESAMPLES = 10_000


def measure(first: Callable[[], float], second: Callable[[], float], *, pairs: int, seed: int = 0) -> list[float]:
    """`pairs` ratios first / second of the seconds that each call returns; the order within a pair is random."""
    order = random.Random(seed)
    ratios = []
    for _ in range(pairs):
        if order.random() < 0.5:
            numerator, denominator = first(), second()
        else:
            denominator, numerator = second(), first()
        ratios.append(numerator / denominator)
    return ratios


def interval(ratios: Sequence[float], *, seed: int = 0) -> tuple[float, float, float]:
    """Median and bootstrap 95 % interval; pairs are independent, runs of steps inside them are not resampled."""
    draw = random.Random(seed)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return median(ratios), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def report(name: str, ratios: Sequence[float]) -> str:
    """One line: the median ratio, its interval and the number of pairs."""
    middle, low, high = interval(ratios)
    return f"{name}: median ratio {middle:.4f} (95 % {low:.4f} to {high:.4f}, {len(ratios)} pairs)"
