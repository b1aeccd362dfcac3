"""Table of `analyze summary`: throughput of each configuration in each place. Pure."""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.loading.configurations import DETAILS, NAMED_COLUMNS, Group, completed, group
from workload.contract.record import Status
from workload.contract.tables import Column, Role

COLUMNS = (
    *NAMED_COLUMNS,
    Column(name="images_per_s", heading="{unit}/s"),
    Column(name="images_per_s_low", heading="low"),
    Column(name="images_per_s_high", heading="high"),
    Column(name="runs", heading="runs"),
    Column(name="step_s", heading="step", unit="s", prefixed=True),
    Column(name="bound", heading="limited by"),
    Column(name="busy", heading="busy", optional=True, role=Role.SENTENCE),
    Column(name="data_wait_fraction", heading="data waits", unit="%", digits=3),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True),
    Column(name="interval", heading="interval", role=Role.NOTE),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    *DETAILS,
)


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """A line per configuration and place, columns as in `COLUMNS`; the best throughput per model first.

    `images_per_s`, `step_s`, `flop_per_s` and `data_wait_fraction` are medians over completed runs; `step_s` is the
    median of each run's median step. `runs` counts the completed runs; `note` counts the others by status.
    """
    lines = [_line(pool) for pool in group(runs)]
    best: dict[str, float] = defaultdict(float)
    for line in lines:
        best[line["model"]] = max(best[line["model"]], line["images_per_s"] or 0.0)
    lines.sort(key=lambda line: (-best[line["model"]], line["model"], -(line["images_per_s"] or 0.0)))
    return pd.DataFrame(lines, columns=[column.name for column in COLUMNS])


def _line(pool: Group) -> dict[str, Any]:
    done = replace(pool, runs=completed(pool.runs))
    figures, flop = done.figures(), pool.median("train_flop_per_step")
    broken = Counter(status for status in pool.texts("status") if status != Status.COMPLETED)
    return {
        **pool.facts,
        **figures,
        "interval": figures["interval"] if done.rate.n else None,
        "flop_per_s": flop / figures["step_s"] if flop and figures["step_s"] else None,
        "note": "; ".join(f"{number} {status.replace('_', ' ')}" for status, number in broken.most_common()) or None,
    }
