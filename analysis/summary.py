"""`analyze summary`: what each configuration reached in each place, a line each. Pure."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import pandas as pd

from analysis.configurations import CONFIGURATION, NAMED, PLACE, SOFTWARE, shown
from analysis.statistics import over_runs
from workload.bundle import Status
from workload.tables import Column

FACTS = (*CONFIGURATION, *PLACE, *SOFTWARE)
# Of the runs of a line.
MEDIANS = ("images_per_s", "step_median_s", "data_wait_fraction")

COLUMNS = (
    Column(name="place", heading="place"),
    Column(name="device_name", heading="device"),
    Column(name="model", heading="model"),
    Column(name="batch_size", heading="batch"),
    Column(name="precision", heading="precision"),
    Column(name="runs", heading="runs"),
    Column(name="images_per_s", heading="images/s"),
    Column(name="images_per_s_low", heading="low"),
    Column(name="images_per_s_high", heading="high"),
    Column(name="interval", heading="interval"),
    Column(name="step_s", heading="step", unit="s", prefixed=True),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True),
    Column(name="bound", heading="limited by"),
    Column(name="data_wait_fraction", heading="data waits", unit="%", digits=3),
    Column(name="note", heading="note", optional=True),
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
    varying = _varying(list(groups))
    lines = [_line(group, varying[_name(key)]) for key, group in groups.items()]
    best: dict[str, float] = defaultdict(float)
    for line in lines:
        best[line["model"]] = max(best[line["model"]], line["images_per_s"] or 0.0)
    lines.sort(key=lambda line: (-best[line["model"]], line["model"], -(line["images_per_s"] or 0.0)))
    return pd.DataFrame(lines, columns=[column.name for column in COLUMNS])


def _name(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the table shows of a configuration."""
    return tuple(value for fact, value in zip(FACTS, key, strict=True) if fact in NAMED)


def _varying(keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[str]]:
    """By name, the facts in which the lines of that name differ."""
    by_name: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for key in keys:
        by_name[_name(key)].append(key)
    return {
        name: [
            fact for index, fact in enumerate(FACTS) if fact not in NAMED and len({key[index] for key in same_name}) > 1
        ]
        for name, same_name in by_name.items()
    }


def _line(group: Sequence[Run], varying: Sequence[str]) -> dict[str, Any]:
    completed = [run for run in group if run["status"] == Status.COMPLETED]
    first = group[0]
    medians = {name: _median(completed, name) for name in MEDIANS}
    step_s, flop = medians["step_median_s"], first["train_flop_per_step"]
    low, high, interval = _interval(completed)
    return {
        **{name: first[name] for name in NAMED},
        "runs": len(completed),
        "images_per_s": medians["images_per_s"],
        "images_per_s_low": low,
        "images_per_s_high": high,
        "interval": interval,
        "step_s": step_s,
        "flop_per_s": flop / step_s if flop and step_s else None,
        "bound": _bounds(completed),
        "data_wait_fraction": medians["data_wait_fraction"],
        "note": "; ".join([*_broken_off(group), *(shown(name, first[name]) for name in varying)]) or None,
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
    return found.low, found.high, f"{found.level:.0%}, {found.method}"


def _bounds(runs: Sequence[Run]) -> str | None:
    """`memory`, or with how many runs say which: `compute 2, memory 1`."""
    counts = Counter(run["bound"] for run in runs if run["bound"])
    if len(counts) < 2:  # noqa: PLR2004
        return next(iter(counts), None)
    return ", ".join(f"{bound} {count}" for bound, count in counts.most_common())


def _broken_off(group: Sequence[Run]) -> list[str]:
    counts = Counter(run["status"] for run in group if run["status"] != Status.COMPLETED)
    return [f"{count} {status.replace('_', ' ')}" for status, count in counts.most_common()]
