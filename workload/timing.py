"""From recorded steps to the `timing` of run.json."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median, quantiles, stdev
from typing import Any

from workload.recorder import PhaseTotals


def summarize(measured: PhaseTotals, *, wall_s: float, cpus_used: float) -> dict[str, Any]:
    """Throughput and step times of the measured region: `wall_s` seconds of the host's clock, CPUs busy on average.

    `images_per_s` is images over wall time, never a mean of rates. `explained_fraction` is the share of the wall
    time that steps and data waits add up to. Without a single step the figures are None.
    """
    if not measured.step_s:
        return {"measured_s": wall_s, "cpus_used": cpus_used, "images": 0, "images_per_s": None, "step_s": None}
    step_sum_s, data_sum_s = sum(measured.step_s), sum(measured.data_s)
    return {
        "measured_s": wall_s,
        "cpus_used": cpus_used,
        "images": measured.images,
        "images_per_s": measured.images / wall_s,
        "step_s": describe(measured.step_s),
        "data_wait_fraction": data_sum_s / wall_s,
        "explained_fraction": (step_sum_s + data_sum_s) / wall_s,
    }


def describe(seconds: Sequence[float]) -> Mapping[str, float | int | None]:
    """Median, mean, sample standard deviation, extremes and 5th/95th percentiles; None where n is too small."""
    several = len(seconds) > 1
    twentieths = quantiles(seconds, n=20, method="inclusive") if several else None
    return {
        "n": len(seconds),
        "median": median(seconds),
        "mean": fmean(seconds),
        "stdev": stdev(seconds) if several else None,
        "min": min(seconds),
        "max": max(seconds),
        "p5": twentieths[0] if twentieths else None,
        "p95": twentieths[-1] if twentieths else None,
    }
