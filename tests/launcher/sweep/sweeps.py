"""Sweeps made by hand, for tests of what carries them out: the matrix file has tests of its own."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.protocol.task import Task, TaskRun
from launcher.sweep.places import LOCAL, Configuration, Place, PlacePlan, Sweep
from workload.contract.spec import Device, RunSpec

NAME = "night"
TINY = RunSpec(
    model="squeezenet1_1", device=Device.CPU, batch_size=2, image_size=32, iterations=2, warmup=1, ceilings=False
)


def key_of(place: str, spec: RunSpec, block: int) -> str:
    return hashlib.sha256(f"{place} {block} {spec}".encode()).hexdigest()[:16]


def plan_of(
    place: Place,
    configurations: Sequence[Configuration],
    blocks: int,
    *,
    done: frozenset[str] = frozenset(),
    job: str = NAME,
) -> PlacePlan:
    """Every configuration once a block, in an order of the block's own; a task for each machine."""
    runs: dict[int, list[TaskRun]] = {}
    for block in range(1, blocks + 1):
        order = list(configurations)
        random.Random(block).shuffle(order)
        runs.setdefault(place.machine_of(block), []).extend(
            TaskRun(spec=one.spec, block=block, position=at, run_key=key_of(f"{job} {place.name}", one.spec, block))
            for at, one in enumerate(order, 1)
        )
    tasks = tuple(Task(job=job, number=number, runs=tuple(its)) for number, its in sorted(runs.items()))
    return PlacePlan(place=place, tasks=tasks, done=done, configurations=tuple(configurations))


def grow(plan: PlacePlan, blocks: int) -> PlacePlan:
    """The same place with so many blocks."""
    return plan_of(plan.place, plan.configurations, blocks, done=plan.done, job=plan.tasks[0].job)


def configurations_of(base: RunSpec = TINY, **lists: Sequence[Any]) -> tuple[Configuration, ...]:
    """All combinations."""
    combinations: list[Mapping[str, Any]] = [{}]
    for name, values in lists.items():
        combinations = [{**before, name: value} for before in combinations for value in values]
    return tuple(Configuration(values=values, spec=replace(base, **values)) for values in combinations)


def local_sweep(blocks: int = 1, *, base: RunSpec = TINY, place: Place | None = None, **lists: Sequence[Any]) -> Sweep:
    """A sweep on this machine's CPU."""
    here = place or Place(name="here", backend=LOCAL)
    plan = plan_of(here, configurations_of(base, **lists), blocks)
    return Sweep(name=NAME, repeats=blocks, seed=0, places=(plan,))
