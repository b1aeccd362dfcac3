"""Table of `analyze summary`: throughput of each configuration in each place. Pure."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from analysis.loading.arguments import after_program
from analysis.loading.configurations import CONFIGURATION, DETAILS, NAMED_COLUMNS, PLACE, SOFTWARE, Group, group
from analysis.loading.rows import cells
from workload.contract.record import Status
from workload.contract.spent import PARTS, RUN_PARTS, Spent
from workload.contract.tables import Column, Role

# Parts of a run's time that every run of our trainer has; the columns of other parts are hidden if no run has them.
USUAL_PARTS = ("steps", "imports", "prepare", "environment", "warmup")

COLUMNS = (
    *NAMED_COLUMNS,
    Column(name="arguments", heading="arguments", optional=True, role=Role.FACT),
    Column(name="images_per_s", heading="{unit}/s"),
    Column(name="images_per_s_low", heading="low"),
    Column(name="images_per_s_high", heading="high"),
    Column(name="all_images_per_s", heading="{unit}/s of all devices", optional=True),
    Column(name="runs", heading="runs"),
    Column(name="step_s", heading="step", unit="s", prefixed=True),
    Column(name="bound", heading="limited by"),
    Column(name="busy", heading="busy", optional=True, role=Role.SENTENCE),
    Column(name="data_wait_fraction", heading="data waits", unit="%", digits=3),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True),
    Column(name="interval", heading="interval", role=Role.NOTE),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    Column(name="images_per_s_mean", heading="mean {unit}/s", detail=True),
    Column(name="images_per_s_sd", heading="± SD", digits=2, optional=True, detail=True),
    Column(name="gain", heading="gain over the batch before", unit="%", digits=2, optional=True, detail=True),
    Column(name="wall_s", heading="a run took", unit="s", digits=3, detail=True),
    Column(name="usd_per_run", heading="USD a run", digits=2, optional=True, detail=True),
    Column(
        name="activation_bytes", heading="activations", unit="B", prefixed=True, digits=3, optional=True, detail=True
    ),
    *(
        Column(
            name=f"{part}_share",
            heading=f"time in {PARTS[part]}",
            unit="%",
            digits=2,
            optional=part not in USUAL_PARTS,
            detail=True,
        )
        for part in RUN_PARTS
    ),
    *DETAILS,
)


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """A line per configuration and place, columns as in `COLUMNS`; the best throughput per model first.

    `images_per_s`, `step_s`, `flop_per_s` and `data_wait_fraction` are medians over completed runs; `step_s` is the
    median of each run's median step. `runs` counts the completed runs; `note` counts the others by status. `wall_s` and
    `usd_per_run` are means over completed runs, and the shares of a run's parts are shares of the time of all.
    `images_per_s` and all other figures are those of one device, `all_images_per_s` is the sum of all devices; None if
    no run has several. `images_per_s_mean`, `images_per_s_sd`: mean and standard deviation over runs. `gain`:
    throughput over that of the next smaller batch size of an otherwise equal configuration in the same place, minus 1;
    `analyze compare --by batch_size` has its interval.
    """
    lines = [_line(pool) for pool in group(runs)]
    _add_gains(lines)
    if not any((line["devices"] or 1) > 1 for line in lines):
        # It would repeat `images_per_s`.
        lines = [line | {"all_images_per_s": None} for line in lines]
    best: dict[str, float] = defaultdict(float)
    for line in lines:
        best[line["model"]] = max(best[line["model"]], line["images_per_s"] or 0.0)
    lines.sort(key=lambda line: (-best[line["model"]], line["model"], -(line["images_per_s"] or 0.0)))
    return pd.DataFrame(lines, columns=[column.name for column in COLUMNS])


def _add_gains(lines: Sequence[dict[str, Any]]) -> None:
    facts = tuple(fact for fact in (*CONFIGURATION, *PLACE, *SOFTWARE) if fact != "batch_size")
    by_others: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        line["gain"] = None
        if line["images_per_s"] and line["batch_size"]:
            by_others[tuple(line[fact] for fact in facts)].append(line)
    for alike in by_others.values():
        for smaller, larger in pairwise(sorted(alike, key=lambda line: line["batch_size"])):
            if larger["batch_size"] > smaller["batch_size"]:
                larger["gain"] = larger["images_per_s"] / smaller["images_per_s"] - 1


def spent(runs: pd.DataFrame) -> Spent:
    """Time of all these runs together, by part, and its cost."""
    rows = cells(runs[[*(f"{part}_s" for part in RUN_PARTS), "usd"]])
    return Spent.total(
        Spent(seconds={part: value for part, value in zip(RUN_PARTS, values, strict=True) if value}, usd=usd, runs=1)
        for *values, usd in rows
    )


def _line(pool: Group) -> dict[str, Any]:
    done = pool.only([status == Status.COMPLETED for status in pool.values("status")])
    figures, flop = done.figures(), pool.median("train_flop_per_step")
    time = spent(done.runs)
    broken = Counter(status for status in pool.texts("status") if status != Status.COMPLETED)
    return {
        **pool.facts,
        "arguments": after_program(pool["script"]),
        **figures,
        "all_images_per_s": done.median("all_images_per_s"),
        "interval": figures["interval"] if done.rate.n else None,
        "flop_per_s": flop / figures["step_s"] if flop and figures["step_s"] else None,
        "wall_s": time.wall_s / time.runs if time.runs else None,
        "activation_bytes": pool.median("activation_bytes"),
        "usd_per_run": None if time.usd is None else time.usd / time.runs,
        **{f"{part}_share": share for part, share in time.shares().items()},
        "note": "; ".join(f"{number} {status.replace('_', ' ')}" for status, number in broken.most_common()) or None,
    }
