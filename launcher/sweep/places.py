"""What a sweep is made of, as values: places, each with the tasks of its machines. Standard library only.

A repeat is a block, and a block runs on one machine: every configuration once, in a random order of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workload.contract.task import Task

LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Place:
    """One `[[on]]` of a matrix. `backend`: local, or one of `launcher.backends.BACKENDS`.

    `options`: the options of `launch <backend>` by field name, as they were asked for; `machines`: how many share the
    blocks (of a rented place one per block unless the matrix says otherwise).
    """

    name: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    machines: int = 1


@dataclass(frozen=True, kw_only=True)
class PlacePlan:
    """A place with all that is asked of it, a task per machine; `done`: the keys of runs that need not run again."""

    place: Place
    tasks: tuple[Task, ...]
    done: frozenset[str] = frozenset()

    @property
    def missing(self) -> tuple[Task, ...]:
        """The tasks without the runs that are done; a task that is done whole is left out."""
        left = (
            Task(job=task.job, number=task.number, runs=tuple(run for run in task.runs if run.run_key not in self.done))
            for task in self.tasks
        )
        return tuple(task for task in left if task.runs)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A matrix at its places. `seed`: of the order of each block."""

    name: str
    repeats: int
    seed: int
    places: tuple[PlacePlan, ...]
