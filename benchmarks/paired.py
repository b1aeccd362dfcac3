"""Comparison of two ways to do the same work, in turn, so that a drift of the machine affects both."""

import random
from collections.abc import Sequence
from statistics import median

from benchmarks.gpu_truth.loops import ratios as measure

__all__ = ["interval", "measure", "report"]

RESAMPLES = 10_000


def interval(ratios: Sequence[float], *, seed: int = 0) -> tuple[float, float, float]:
    """Median and bootstrap 95 % interval; pairs are independent, runs of steps inside them are not resampled."""
    draw = random.Random(seed)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return median(ratios), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def report(name: str, ratios: Sequence[float]) -> str:
    """Line with the median ratio, its interval and the number of pairs."""
    middle, low, high = interval(ratios)
    return f"{name}: median ratio {middle:.4f} (95 % {low:.4f} to {high:.4f}, {len(ratios)} pairs)"
