"""Variation of step times within each run, and of throughput between runs, hosts and zones. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

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
from analysis.statistics.autocorrelation import effective_n
from analysis.statistics.components import variance_split
from analysis.statistics.describe import summarize
from analysis.statistics.hosts import PlacedRun, machine_split, position_effect
from analysis.statistics.periods import period_scan
from analysis.statistics.samples import Estimate
from analysis.statistics.trend import Drift, drift
from analysis.variance.causes import causes
from workload.contract.tables import Column, Role, facts


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
    *_with_interval(Column(name="drift", heading="drift", unit="%", digits=2)),
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
    *_with_interval(Column(name="icc", heading="ICC", digits=3)),
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
    Column(name="zones", heading="zones", optional=True),
    *_with_interval(Column(name="cov_zones", heading="CoV of zones", unit="%", digits=3, optional=True)),
    *_with_interval(Column(name="first_ratio", heading="first in block", digits=4, optional=True)),
    *_with_interval(Column(name="place_ratio", heading="per position", digits=4, optional=True)),
    Column(name="p_order", heading="p (order)", digits=2, optional=True),
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
    """A row per run with measured steps, columns as in `WITHIN_COLUMNS`; CoV, drift and its interval are fractions.

    `effective_steps`, headed "worth steps": number of independent steps that the run is worth. `warmup_steps`: first
    measured steps that are slower than the rest. `drift`: change over the steps after the warm-up. `period_steps`: None
    if no period was found.
    """
    lines = [_within(case) for case in cases(results) if np.isfinite(case.step_s).any()]
    return pd.DataFrame(lines, columns=[column.name for column in WITHIN_COLUMNS])


def _within(case: Case) -> dict[str, Any]:
    steps = case.step_s
    figures, worth, state, period = summarize(steps), effective_n(steps), case.steadiness, period_scan(steps)
    warmup = state.warmup_steps or 0
    rest = steps[warmup:] if warmup <= steps.size // 2 else steps
    change = drift(rest)
    low, high = _relative_ends(change, float(np.median(rest)))
    reasons = (
        figures.reason,
        worth.reason,
        period.reason if period.found else None,
        state.unseen if state.steady else state.reason,
    )
    return {
        **{name: case[name] for name in ("run_id", *NAMED, *(column.name for column in DETAILS))},
        "steps": figures.n,
        "step_median_s": figures.median,
        "step_p5_s": figures.p5,
        "step_p95_s": figures.p95,
        "robust_cov": figures.robust_cov,
        "cov": figures.cov,
        "autocorrelation": worth.lag1,
        "effective_steps": worth.effective,
        "warmup_steps": state.warmup_steps,
        "steady": state.steady,
        "drift": change.change,
        "drift_low": low,
        "drift_high": high,
        "period_steps": period.period if period.found else None,
        "period_ratio": period.ratio if period.found else None,
        "note": joined(dict.fromkeys(reasons)),
    }


def _relative_ends(change: Drift, median: float) -> tuple[float | None, float | None]:
    """Ends of the interval of the change over the series, as fractions of its median; None if unknown."""
    if change.interval is None or not median > 0:
        return None, None
    scale = (change.n - 1) / median
    return change.interval.low * scale, change.interval.high * scale


def between(results: Tables, runs: Sequence[Case] | None = None) -> pd.DataFrame:
    """A row per configuration and place, columns as in `BETWEEN_COLUMNS`; runs that may not be pooled have extra rows.

    `images_per_s` has an interval over runs. `cov_between` and `cov_within`: standard deviations of the logarithm of
    step times between and within runs, which are fractions. `icc`: share of the variance that more steps do not reduce.
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
        **split.icc.columns("icc"),
        "effective_steps": split.effective,
        "note": joined(dict.fromkeys(_notes(pool, split.reason, split.between))),
    }


def _notes(pool: Group, reason: str | None, estimate: Estimate) -> tuple[str | None, ...]:
    # For a single run, the column `interval` already says why there is no interval.
    alone = len(pool) == 1
    return (None if alone else reason, None if alone else estimate.reason, *pool.apart)


# --- hosts and zones


def machines(results: Tables) -> pd.DataFrame:
    """A row per place and software, over all configurations, columns as in `MACHINE_COLUMNS`; only runs on known hosts.

    `cov_*`: standard deviation of the logarithm of images/s, so a fraction. `first_ratio`: throughput of the first run
    of a block over that of later ones. `place_ratio`: factor of throughput from one position in the block to the next,
    beginning at the second position.
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
    split, order = machine_split(placed), position_effect(placed)
    facts = dict.fromkeys((*NAMED, *(column.name for column in DETAILS)))
    return {
        **{fact: shared(runs, fact) for fact in facts},
        "configurations": len({run.configuration for run in placed}),
        "runs": len(runs),
        "hosts": split.hosts,
        "zones": split.zones if any(run.zone for run in placed) else None,
        **split.between_runs.columns("cov_runs"),
        **split.between_hosts.columns("cov_hosts"),
        **split.between_zones.columns("cov_zones"),
        **order.first.columns("first_ratio"),
        **order.per_position.columns("place_ratio"),
        "p_order": order.p_value,
        "note": joined(
            f"{name}: {reason}"
            for name, reason in (
                ("between runs", split.between_runs.reason),
                ("between machines", split.between_hosts.reason),
                # Machines outside a cloud have no zone, and runs without blocks have no order.
                ("between zones", split.between_zones.reason if any(run.zone for run in placed) else None),
                ("order", order.reason if any(run.block for run in placed) else None),
            )
            if reason
        ),
    }


def _placed(runs: Sequence[Case]) -> Iterator[PlacedRun]:
    """Runs with host, zone, position and noise; runs of one configuration share the noise of their steps."""
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
                host=case.host,
                zone=case["zone"],
                block=case.block,
                position=case["position"],
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
        heading="variation between runs on a machine, between machines and between zones, by place",
        nothing="no place with two runs on known machines",
    ),
    "causes": VarianceTable(
        make=causes, columns=CAUSE_COLUMNS, heading="causes", nothing="no cause found in steps and telemetry"
    ),
}
