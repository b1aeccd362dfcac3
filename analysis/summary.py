"""`analyze summary`: what each configuration reached in each place, a line each. Pure."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import pandas as pd

from analysis.configurations import CONFIGURATION, DETAILS, PLACE, SOFTWARE
from analysis.statistics import over_runs
from workload.contract.bundle import Status
from workload.contract.tables import Column, Role
from workload.contract.text import percent

FACTS = (*CONFIGURATION, *PLACE, *SOFTWARE)
# Of the runs of a line.
MEDIANS = ("images_per_s", "step_median_s", "data_wait_fraction")

COLUMNS = (
    Column(name="place", heading="place", role=Role.FACT),
    Column(name="device_name", heading="device", role=Role.FACT),
    Column(name="model", heading="model", role=Role.FACT),
    Column(name="batch_size", heading="batch", role=Role.FACT),
    Column(name="precision", heading="precision", role=Role.FACT),
    Column(name="images_per_s", heading="images/s"),
    Column(name="images_per_s_low", heading="low"),
    Column(name="images_per_s_high", heading="high"),
    Column(name="runs", heading="runs"),
    Column(name="step_s", heading="step", unit="s", prefixed=True),
    Column(name="bound", heading="limited by"),
    Column(name="data_wait_fraction", heading="data waits", unit="%", digits=3),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True),
    Column(name="interval", heading="interval", role=Role.NOTE),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    *DETAILS,
)


Run = dict[str, Any]


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """A line per configuration and place, columns as in `COLUMNS`; the best throughput per model first.

    `images_per_s`, `step_s`, `flop_per_s` and `data_wait_fraction` are medians over completed runs; `step_s` of each
    run's median step. `runs` counts the completed ones; those that broke off are in `note`.
    """
    needed = runs[[*FACTS, "status", "bound", "train_flop_per_step", *MEDIANS]].astype(object)
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in needed.where(needed.notna(), None).to_dict("records"):
        groups[tuple(run[name] for name in FACTS)].append({str(key): run[key] for key in run})
    lines = [_line(group) for group in groups.values()]
    best: dict[str, float] = defaultdict(float)
    for line in lines:
        best[line["model"]] = max(best[line["model"]], line["images_per_s"] or 0.0)
    lines.sort(key=lambda line: (-best[line["model"]], line["model"], -(line["images_per_s"] or 0.0)))
    return pd.DataFrame(lines, columns=[column.name for column in COLUMNS])


def _line(group: Sequence[Run]) -> dict[str, Any]:
    completed = [run for run in group if run["status"] == Status.COMPLETED]
    first = group[0]
    medians = {name: _median(completed, name) for name in MEDIANS}
    step_s, flop = medians["step_median_s"], first["train_flop_per_step"]
    low, high, interval = _interval(completed)
    return {
        **{name: first[name] for name in FACTS},
        "runs": len(completed),
        "images_per_s": medians["images_per_s"],
        "images_per_s_low": low,
        "images_per_s_high": high,
        "interval": interval,
        "step_s": step_s,
        "flop_per_s": flop / step_s if flop and step_s else None,
        "bound": _bounds(completed),
        "data_wait_fraction": medians["data_wait_fraction"],
        "note": "; ".join(_broken_off(group)) or None,
    }


def _median(runs: Sequence[Run], name: str) -> float | None:
    known = [run[name] for run in runs if run[name] is not None]
    return median(known) if known else None


def _interval(runs: Sequence[Run]) -> tuple[float | None, float | None, str | None]:
    """Of the median over runs, and how it was found, or why there is none."""
    rates = [run["images_per_s"] for run in runs if run["images_per_s"] is not None]
    if not rates:
        return None, None, None
    estimate = over_runs(rates)
    found = estimate.interval
    if found is None:
        return None, None, estimate.reason
    return found.low, found.high, f"{percent(found.level)}, {found.method}"


def _bounds(runs: Sequence[Run]) -> str | None:
    """`memory`, or with how many runs say which: `compute 2, memory 1`."""
    counts = Counter(run["bound"] for run in runs if run["bound"])
    if len(counts) < 2:  # noqa: PLR2004
        return next(iter(counts), None)
    return ", ".join(f"{bound} {count}" for bound, count in counts.most_common())


def _broken_off(group: Sequence[Run]) -> list[str]:
    counts = Counter(run["status"] for run in group if run["status"] != Status.COMPLETED)
    return [f"{count} {status.replace('_', ' ')}" for status, count in counts.most_common()]
