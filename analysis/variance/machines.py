"""Variation between runs on a host, between hosts and between zones, from all runs of a place. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.loading.cases import Case, cases
from analysis.loading.configurations import CONFIGURATION, DATA_DETAILS, DETAILS, NAMED, PLACE, SOFTWARE, measured
from analysis.loading.tables import Tables
from analysis.statistics import PlacedRun, machine_split, position_effect, variance_split
from workload.contract.tables import Column, Role

COLUMNS = (
    Column(name="place", heading="place", role=Role.FACT),
    Column(name="device_name", heading="device", role=Role.FACT),
    Column(name="model", heading="model", role=Role.FACT),
    Column(name="batch_size", heading="batch", role=Role.FACT),
    Column(name="precision", heading="precision", role=Role.FACT),
    Column(name="runs", heading="runs"),
    Column(name="cov_runs", heading="CoV of runs", unit="%", digits=3),
    Column(name="cov_runs_low", heading="low", unit="%", digits=3),
    Column(name="cov_runs_high", heading="high", unit="%", digits=3),
    Column(name="hosts", heading="hosts"),
    Column(name="cov_hosts", heading="CoV of hosts", unit="%", digits=3, optional=True),
    Column(name="cov_hosts_low", heading="low", unit="%", digits=3, optional=True),
    Column(name="cov_hosts_high", heading="high", unit="%", digits=3, optional=True),
    Column(name="zones", heading="zones", optional=True),
    Column(name="cov_zones", heading="CoV of zones", unit="%", digits=3, optional=True),
    Column(name="cov_zones_low", heading="low", unit="%", digits=3, optional=True),
    Column(name="cov_zones_high", heading="high", unit="%", digits=3, optional=True),
    Column(name="first_ratio", heading="first in block", digits=4, optional=True),
    Column(name="first_ratio_low", heading="low", digits=4, optional=True),
    Column(name="first_ratio_high", heading="high", digits=4, optional=True),
    Column(name="place_ratio", heading="per position", digits=4, optional=True),
    Column(name="place_ratio_low", heading="low", digits=4, optional=True),
    Column(name="place_ratio_high", heading="high", digits=4, optional=True),
    Column(name="p_order", heading="p (order)", digits=2, optional=True),
    Column(name="configurations", heading="configurations", detail=True),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    *DATA_DETAILS,
)


def machines(results: Tables) -> pd.DataFrame:
    """A row per place and software, over all configurations, columns as in `COLUMNS`; only runs on known hosts.

    `cov_*`: standard deviation of the logarithm of images/s, so a fraction. `first_ratio`: throughput of the first run
    of a block over that of later ones. `place_ratio`: factor from each later position in the block to the next.
    """
    wanted = set(measured(results.runs)["run_id"])
    groups: dict[tuple[Any, ...], list[Case]] = defaultdict(list)
    for case in cases(results):
        if case.run_id in wanted and case["images_per_s"] is not None and case.host is not None:
            groups[tuple(case[fact] for fact in (*PLACE, *SOFTWARE))].append(case)
    # A single run has no variation to split.
    lines = [_line(runs) for runs in groups.values() if len(runs) > 1]
    return pd.DataFrame(lines, columns=[column.name for column in COLUMNS])


def _line(runs: Sequence[Case]) -> dict[str, Any]:
    placed = list(_placed(runs))
    split, order = machine_split(placed), position_effect(placed)
    facts = dict.fromkeys((*NAMED, *(column.name for column in DETAILS)))
    return {
        **{fact: _shared(runs, fact) for fact in facts},
        "configurations": len({run.configuration for run in placed}),
        "runs": len(runs),
        "hosts": split.hosts,
        "zones": split.zones if any(run.zone for run in placed) else None,
        **split.between_runs.columns("cov_runs"),
        **split.between_hosts.columns("cov_hosts"),
        **split.between_zones.columns("cov_zones"),
        **order.first.columns("first_ratio"),
        **order.per_place.columns("place_ratio"),
        "p_order": order.p_value,
        "note": "; ".join(
            f"{what}: {reason}"
            for what, reason in (
                ("between runs", split.between_runs.reason),
                ("between hosts", split.between_hosts.reason),
                # Machines outside a cloud have no zone, and runs without blocks have no order.
                ("between zones", split.between_zones.reason if any(run.zone for run in placed) else None),
                ("order", order.reason if any(run.block for run in placed) else None),
            )
            if reason
        )
        or None,
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


def _shared(runs: Sequence[Case], fact: str) -> Any:
    """The value that all runs share; None if they differ."""
    first = runs[0][fact]
    return first if all(case[fact] == first for case in runs) else None
