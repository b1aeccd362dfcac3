"""Reduce many environments to those that a figure can show: one machine per device, and the fastest devices. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

import pandas as pd

from analysis.figures import labels
from analysis.figures.material import Material, by_speed
from workload.contract.text import counted

# The number of colours and symbols: with more environments, two would look alike in the legend.
MOST_ENVIRONMENTS = 8

# An environment and a task, whose rows the reduced figures keep.
Pair = tuple[str, str]


def legible(material: Material) -> tuple[Material, str]:
    """Material with at most `MOST_ENVIRONMENTS` environments, and a sentence for captions on the others.

    Machines with the same device are merged into one environment named after the device. For each task, the merged
    environment has the rows of a single machine: among the machines with the most configurations, the machine with the
    middle throughput. Figures are not averaged. If all machines have the same device, the fastest environments are
    kept. The sentence is empty if no environment is left out.
    """
    count = len(material.environments)
    if count <= MOST_ENVIRONMENTS:
        return material, ""
    device_of = _devices(material)
    if len(set(device_of.values())) == 1:
        kept = _of_one_device(material, device_of)
        words = f"{count} places with one device: the {MOST_ENVIRONMENTS} fastest are drawn"
    else:
        kept = _by_device(material, device_of)
        words = f"{count} places: for each device and model, the machine with the middle throughput is drawn"
        drawn = list(dict.fromkeys(kept.values()))
        if len(drawn) > MOST_ENVIRONMENTS:
            fastest = set(_order(material, kept)[:MOST_ENVIRONMENTS])
            kept = {pair: name for pair, name in kept.items() if name in fastest}
            words += f"; of {counted(len(drawn), 'device')} the {MOST_ENVIRONMENTS} fastest"
    return _reduced(material, kept), f"{words}; the tables show all. "


def _devices(material: Material) -> dict[str, str]:
    """Name of each environment's device, followed by the number of machines with this device if there are several."""
    rows = material.every.drop_duplicates("env")
    facts = rows[["device_name", "threads"]].astype(object)
    facts = facts.where(facts.notna(), None)
    names = labels.devices([{str(name): value for name, value in row.items()} for row in facts.to_dict("records")])
    machines = Counter(names)
    return {
        env: f"{name} ({machines[name]} machines)" if machines[name] > 1 else name
        for env, name in zip(rows["env"], names, strict=True)
    }


def _of_one_device(material: Material, device_of: Mapping[str, str]) -> dict[Pair, str]:
    fastest = [env for env in material.environments if env in device_of][:MOST_ENVIRONMENTS]
    return {(env, task): env for env in fastest for task in material.tasks}


def _by_device(material: Material, device_of: Mapping[str, str]) -> dict[Pair, str]:
    """Pairs (environment, task) to keep, with the device's name: one machine's environment for each device and task."""
    rows: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for table in (material.measured, material.points, material.kernel_points):
        rates = table["images_per_s"] if table is material.measured else [0.0] * len(table)
        for env, task, rate in zip(table.get("env", ()), table.get("task", ()), rates, strict=True):
            lines = rows[device_of[env], task][env]
            if table is material.measured or not lines:
                lines.append(log(rate) if rate and rate > 0 else 0.0)
    return {(_middle(machines), task): device for (device, task), machines in rows.items()}


def _middle(machines: Mapping[str, Sequence[float]]) -> str:
    most = max(map(len, machines.values()))
    widest = [env for env, lines in machines.items() if len(lines) == most]
    ordered = sorted(widest, key=lambda env: (sum(machines[env]), env))
    return ordered[(len(ordered) - 1) // 2]


def _order(material: Material, kept: Mapping[Pair, str]) -> list[str]:
    return by_speed(_renamed(material.every, kept), _renamed(material.measured, kept), "env")


def _reduced(material: Material, kept: Mapping[Pair, str]) -> Material:
    every, measured, runs = (_renamed(table, kept) for table in (material.every, material.measured, material.runs))
    device_of = {env: name for (env, _), name in kept.items()}
    roofs = material.roofs
    if len(roofs):
        roofs = roofs[roofs["env"].isin(list(device_of))]
        # If several machines represent a device, keep one machine's roofs for each precision and kind.
        roofs = roofs.assign(env=roofs["env"].map(device_of)).drop_duplicates(["env", "precision", "kind"])
    # Renumber the lines: these row numbers of `measured` have changed.
    line_of = {run_id: line for line, run_ids in enumerate(measured["run_ids"]) for run_id in run_ids}
    return replace(
        material,
        every=every,
        measured=measured,
        runs=runs.assign(line=runs["run_id"].map(line_of)),
        failed=_renamed(material.failed, kept),
        points=_renamed(material.points, kept),
        kernel_points=_renamed(material.kernel_points, kept),
        costs=_renamed(material.costs, kept),
        scaling=_renamed(material.scaling, kept),
        roofs=roofs.reset_index(drop=True),
        environments=by_speed(every, measured, "env"),
        tasks=[task for task in material.tasks if task in set(every["task"])],
    )


def _renamed(table: pd.DataFrame, kept: Mapping[Pair, str]) -> pd.DataFrame:
    """Rows of the pairs (environment, task) in `kept`; column `env` becomes the pair's name in `kept`."""
    if table.empty:
        return table
    names = [kept.get(pair) for pair in zip(table["env"], table["task"], strict=True)]
    is_kept = [name is not None for name in names]
    return table[is_kept].assign(env=[name for name in names if name is not None]).reset_index(drop=True)
