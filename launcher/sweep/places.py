"""What a sweep is made of, as values: places, each with the tasks of its machines. Standard library only.

A repeat is a block, and a block runs on one machine: every configuration once, in a random order, which every second
block has in reverse.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workload.contract.spec import Origin, RunSpec
from workload.contract.task import Task, TaskRun

LOCAL = "local"
# What an argument of a script begins with, as an axis of a matrix.
ARGUMENT = "args."


def as_text(value: Any) -> str:
    """Value of a matrix, formatted for a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class Place:
    """One `[[on]]` of a matrix. `backend`: local, or one of `launcher.backends.BACKENDS`.

    `options` and `where` are the dataclasses of `launch <backend>`, as `Backend.settings` and `Backend.plan` take them;
    here `launcher.machine.options.LocalOptions` and None. `asked`: plain values of the entry that say what is measured,
    by the names of the file; they are part of every run's key. `machines`: how many share the blocks, 0 for a machine
    of its own for every block. `script`: of somebody's own script what the place was asked for, and once its folder was
    looked at a `launcher.sweep.script.PlacedScript`; None for our trainer.
    """

    name: str
    backend: str
    options: Any = None
    where: Any = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    machines: int = 1
    script: Any = None

    def machine_of(self, block: int) -> int:
        """The number of the machine, from 1, that a block runs on; more blocks change nothing for earlier ones."""
        return (block - 1) % self.machines + 1 if self.machines else block


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One of a matrix. `values`: what the matrix says of it, the same at every place; `spec`: as this place runs it."""

    values: Mapping[str, Any]
    spec: RunSpec

    @property
    def text(self) -> str:
        """Words for messages: `resnet50, batch_size 64`; an argument of a script under its own name, `lr 0.1`."""
        words = (
            f"{value}" if name == "model" else f"{name.removeprefix(ARGUMENT)} {as_text(value)}"
            for name, value in self.values.items()
        )
        return ", ".join(words) or self.spec.model


@dataclass(frozen=True, kw_only=True)
class PlacePlan:
    """A place with all that is asked of it, a task per machine; `done`: the keys of runs that need not run again.

    `configurations`, `origin` (who set an option of them) and `code` (what identifies the code or image) are what the
    tasks were made of, so that further blocks can be added (`launcher.sweep.blocks`).
    """

    place: Place
    tasks: tuple[Task, ...]
    done: frozenset[str] = frozenset()
    configurations: tuple[Configuration, ...] = ()
    origin: Mapping[str, Origin] = field(default_factory=dict)
    code: str = ""

    @property
    def runs(self) -> tuple[TaskRun, ...]:
        """Of all tasks, done or not."""
        return tuple(run for task in self.tasks for run in task.runs)

    @property
    def missing(self) -> tuple[Task, ...]:
        """The tasks without the runs that are done; a task that is done whole is left out."""
        return self.without(self.done)

    def without(self, keys: Collection[str]) -> tuple[Task, ...]:
        """The tasks without these runs."""
        left = (replace(task, runs=tuple(run for run in task.runs if run.run_key not in keys)) for task in self.tasks)
        return tuple(task for task in left if task.runs)

    def too_large(self, out_of_memory: Collection[str]) -> dict[str, RunSpec]:
        """The runs whose configuration ran out of memory here at a smaller batch, by key, each with that smaller one.

        `out_of_memory`: keys of runs that did. Runs that are among them are no part of the answer.
        """
        if not out_of_memory:
            return {}
        smallest: dict[RunSpec, RunSpec] = {}
        for run in self.runs:
            size, alike = run.spec.batch_size, replace(run.spec, batch_size=None)
            if run.run_key not in out_of_memory or size is None:
                continue
            known = smallest.get(alike)
            if known is None or known.batch_size is None or size < known.batch_size:
                smallest[alike] = run.spec
        larger: dict[str, RunSpec] = {}
        for run in self.runs:
            smaller = smallest.get(replace(run.spec, batch_size=None))
            if smaller is None or run.run_key in out_of_memory or run.spec.batch_size is None:
                continue
            if smaller.batch_size is not None and run.spec.batch_size > smaller.batch_size:
                larger[run.run_key] = smaller
        return larger


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A matrix at its places. `seed`: of the order of each block."""

    name: str
    repeats: int
    seed: int
    places: tuple[PlacePlan, ...]
