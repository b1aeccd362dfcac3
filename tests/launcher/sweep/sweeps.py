"""Sweeps made by hand, for tests of what carries them out: the matrix file has tests of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.sweep.places import Configuration, Place, PlacePlan, plan_place
from workload.contract.spec import Device, RunSpec

NAME = "night"
TINY = RunSpec(
    model="squeezenet1_1", device=Device.CPU, batch_size=2, image_size=32, iterations=2, warmup=1, ceilings=False
)


def plan_of(place: Place, configurations: Sequence[Configuration], blocks: int, *, job: str = NAME) -> PlacePlan:
    """Plan of a place; the keys of its runs differ from those of other places and jobs."""
    named = replace(place, asked={"name": place.name})
    return plan_place(named, configurations, name=job, repeats=blocks, seed=0, code=job)


def configurations_of(base: RunSpec = TINY, **lists: Sequence[Any]) -> tuple[Configuration, ...]:
    """All combinations."""
    combinations: list[Mapping[str, Any]] = [{}]
    for name, values in lists.items():
        combinations = [{**before, name: value} for before in combinations for value in values]
    return tuple(Configuration(values=values, spec=replace(base, **values)) for values in combinations)
