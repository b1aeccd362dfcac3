"""Variation of step times within each run, and of throughput between runs and hosts. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.causes import causes
from analysis.loading.cases import Case, cases, shared
from analysis.loading.configurations import (
    CONFIGURATION,
    DATA_DETAILS,
    DETAILS,
    NAMED,
    NAMED_COLUMNS,
    PLACE,
    SOFTWARE,
    Group,
    group,
    label,
    measured,
)
from analysis.loading.tables import Tables, joined
from analysis.statistics.autocorrelation import effective_n, period_scan
from analysis.statistics.components import PlacedRun, machine_split, variance_split
from analysis.statistics.samples import median_of
from analysis.statistics.steady import drift
from workload.contract.tables import Column, Role, facts
from workload.stats.intervals import MAD_TO_STDEV


def _with_interval(column: Column) -> tuple[Column, Column, Column]:
    """Three columns: a figure, the lower and the upper end of its interval."""
    low, high = (replace(column, name=f"{column.name}_{end}", heading=end) for end in ("low", "high"))
    return column, low, high


WITHIN_COLUMNS = (
    *facts(run_id="run", place="place", model="model", batch_size="batch", precision="precision"),
    Column(name="steps", heading="steps"),
    Column(name="step_median_s", heading="step", unit="s", prefixed=True),
    Column(name="step_p5_s", heading="p5", unit="s", prefixed=True),
    Column(name="step_p95_s", heading="p95", unit="s", prefixed=True),
    Column(name="robust_cov", heading="robust CoV", unit="%", digits=3),
    Column(name="cov", heading="CoV", unit="%", digits=3),
    Column(name="autocorrelation", heading="lag 1", digits=2),
    Column(name="effective_steps", heading="worth steps", digits=3),
    Column(name="warmup_steps", heading="warm-up left"),
    Column(name="steady", heading="steady"),
    Column(name="drift", heading="drift", unit="%", digits=2),
    Column(name="period_steps", heading="period", optional=True),
    Column(name="period_ratio", heading="ratio", digits=3, optional=True),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    *DETAILS,
)
BETWEEN_COLUMNS = (
    *NAMED_COLUMNS,
    *_with_interval(Column(name="images_per_s", heading="{unit}/s")),
    Column(name="runs", heading="runs"),
    Column(name="interval", heading="interval", role=Role.NOTE),
    *_with_interval(Column(name="cov_between", heading="between runs", unit="%", digits=3)),
    Column(name="cov_within", heading="within runs", unit="%", digits=3),
    Column(name="effective_steps", heading="worth steps", digits=3),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    *DATA_DETAILS,
)


CAUSE_COLUMNS = (
    *facts(run_id="run", cause="cause"),
    Column(name="share_explained", heading="explains", unit="%", digits=3),
    Column(name="share_low", heading="low", unit="%", digits=3, optional=True),
    Column(name="share_high", heading="high", unit="%", digits=3, optional=True),
    *facts(share_of="of"),
    Column(name="is_fault", heading="fault"),
    Column(name="evidence", heading="evidence", role=Role.SENTENCE),
    Column(name="cure", heading="cure", role=Role.SENTENCE),
    *(Column(name=name, heading=label(name), detail=True) for name in NAMED),
    *DATA_DETAILS,
)


MACHINE_COLUMNS = (
    *NAMED_COLUMNS,
    Column(name="runs", heading="runs"),
    *_with_interval(Column(name="cov_runs", heading="CoV of runs", unit="%", digits=3)),
    Column(name="hosts", heading="machines"),
    *_with_interval(Column(name="cov_hosts", heading="CoV of machines", unit="%", digits=3, optional=True)),
    Column(name="configurations", heading="configurations", detail=True),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    *DATA_DETAILS,
)


@dataclass(frozen=True, kw_only=True)
class VarianceTable:
    """A table of `analyze variance`; `nothing`: message if the table has no row."""

    make: Callable[[Tables], pd.DataFrame]
    columns: Sequence[Column]
    heading: str
    nothing: str


def table(results: Tables, part: str) -> pd.DataFrame:
    """Make the table named `part` (a key of `TABLES`); each row has all facts of its configuration."""
    frame = TABLES[part].make(results)
    facts = [name for name in (*NAMED, *(column.name for column in DETAILS)) if name not in frame]
    # A table that lacks facts has rows of single runs: add the facts by run_id.
    return frame.merge(results.runs[["run_id", *facts]], on="run_id", how="left") if facts else frame


def within(results: Tables) -> pd.DataFrame:
    """A row per run with measured steps, columns as in `WITHIN_COLUMNS`; CoV and drift are fractions.

    Robust CoV (coefficient of variation) = 1.4826 x median absolute deviation / median: one slow step hardly changes
    it. The standard deviation of the plain CoV has the divisor n - 1. `effective_steps`, headed "worth steps": number
    of independent steps that the run is worth. `warmup_steps`: first measured steps that are slower than the rest.
    `drift`: change over the steps after the warm-up. `period_steps`: None if no period was found.
    """
    lines = [_within(case) for case in cases(results) if np.isfinite(case.step_s).any()]
    return pd.DataFrame(lines, columns=[column.name for column in WITHIN_COLUMNS])


def _within(case: Case) -> dict[str, Any]:
    steps = case.step_s
    known = steps[np.isfinite(steps)]
    median, mean = float(median_of(known)), float(known.mean())
    p5, p95 = np.percentile(known, [5, 95])
    has_spread = known.size > 1 and median > 0
    worth, state, period = effective_n(steps), case.steadiness, period_scan(steps)
    reasons = (
        None if has_spread else "1 value: no spread",
        worth.reason,
        period.reason if period.found else None,
        state.unseen if state.steady else state.reason,
    )
    return {
        **{name: case[name] for name in ("run_id", *NAMED, *(column.name for column in DETAILS))},
        "steps": known.size,
        "step_median_s": median,
        "step_p5_s": p5,
        "step_p95_s": p95,
        "robust_cov": MAD_TO_STDEV * float(median_of(np.abs(known - median))) / median if has_spread else None,
        "cov": float(known.std(ddof=1)) / mean if has_spread else None,
        "autocorrelation": worth.lag1,
        "effective_steps": worth.effective,
        "warmup_steps": state.warmup_steps,
        "steady": state.steady,
        "drift": drift(steps[state.warmup_steps or 0 :]),
        "period_steps": period.period if period.found else None,
        "period_ratio": period.ratio if period.found else None,
        "note": joined(dict.fromkeys(reasons)),
    }


def between(results: Tables, runs: Sequence[Case] | None = None) -> pd.DataFrame:
    """A row per configuration and place, columns as in `BETWEEN_COLUMNS`; runs that may not be pooled have extra rows.

    `images_per_s` has an interval over runs. `cov_between` and `cov_within`: standard deviations of the logarithm of
    step times between and within runs, which are fractions.
    """
    by_id = {case.run_id: case for case in runs or cases(results)}
    groups = group(measured(results.runs))
    lines = [_between(pool, [by_id[run_id] for run_id in pool.values("run_id")]) for pool in groups]
    return pd.DataFrame(lines, columns=[column.name for column in BETWEEN_COLUMNS])


def _between(pool: Group, runs: list[Case]) -> dict[str, Any]:
    split = variance_split([case.step_s for case in runs])
    return {
        **pool.facts,
        "runs": len(runs),
        **pool.rate.columns("images_per_s"),
        "interval": pool.rate.interval_words,
        **split.between.columns("cov_between"),
        "cov_within": split.within.value,
        "effective_steps": split.effective,
        # For a single run, the column `interval` already says why there is no interval.
        "note": joined(dict.fromkeys([*((split.reason, split.between.reason) if len(pool) > 1 else ()), *pool.apart])),
    }


# --- hosts


def machines(results: Tables) -> pd.DataFrame:
    """A row per place and software, over all configurations, columns as in `MACHINE_COLUMNS`; only runs on known hosts.

    `cov_*`: standard deviation of the logarithm of images/s, so a fraction.
    """
    wanted = set(measured(results.runs)["run_id"])
    groups: dict[tuple[Any, ...], list[Case]] = defaultdict(list)
    for case in cases(results):
        if case.run_id in wanted and case["images_per_s"] is not None and case.host is not None:
            groups[tuple(case[fact] for fact in (*PLACE, *SOFTWARE))].append(case)
    # A single run has no variation to split.
    lines = [_machine(runs) for runs in groups.values() if len(runs) > 1]
    return pd.DataFrame(lines, columns=[column.name for column in MACHINE_COLUMNS])


def _machine(runs: Sequence[Case]) -> dict[str, Any]:
    placed = list(_placed(runs))
    split = machine_split(placed)
    facts = dict.fromkeys((*NAMED, *(column.name for column in DETAILS)))
    return {
        **{fact: shared(runs, fact) for fact in facts},
        "configurations": len({run.configuration for run in placed}),
        "runs": len(runs),
        "hosts": split.hosts,
        **split.between_runs.columns("cov_runs"),
        **split.between_hosts.columns("cov_hosts"),
        "note": joined(
            f"{name}: {reason}"
            for name, reason in (
                ("between runs", split.between_runs.reason),
                ("between machines", split.between_hosts.reason),
            )
            if reason
        ),
    }


def _placed(runs: Sequence[Case]) -> Iterator[PlacedRun]:
    """Runs with host and noise; runs of one configuration share the noise of their steps."""
    configurations: dict[tuple[Any, ...], list[Case]] = defaultdict(list)
    for case in runs:
        configurations[tuple(case[fact] for fact in CONFIGURATION)].append(case)
    for configuration, repeats in configurations.items():
        split = variance_split([case.step_s for case in repeats])
        is_known = split.within.value is not None and split.effective is not None and split.runs == len(repeats)
        worth = (split.effective or 0.0) / len(repeats)
        for case in repeats:
            yield PlacedRun(
                figure=float(case["images_per_s"]),
                configuration=configuration,
                # Hosts of two zones that have one name are two hosts.
                host=(case["zone"], case.host),
                noise=(split.within.value or 0.0) ** 2 / worth if is_known else None,
                noise_degrees=worth - 1,
            )


# --- all tables

TABLES: Mapping[str, VarianceTable] = {
    "between": VarianceTable(
        make=between,
        columns=BETWEEN_COLUMNS,
        heading="between runs, by configuration and place",
        nothing="no completed run with measured steps",
    ),
    "within": VarianceTable(
        make=within, columns=WITHIN_COLUMNS, heading="within runs", nothing="no run with measured steps"
    ),
    "machines": VarianceTable(
        make=machines,
        columns=MACHINE_COLUMNS,
        heading="variation between runs on a machine, and between machines, by place",
        nothing="no place with two runs on known machines",
    ),
    "causes": VarianceTable(
        make=causes, columns=CAUSE_COLUMNS, heading="causes", nothing="no cause found in steps and telemetry"
    ),
}
