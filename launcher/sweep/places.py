"""Data of a sweep: places, each with the tasks of its machines. Standard library only.

A repeat is a block. A block runs on one machine and has every configuration once, in a random order; every second block
reverses the order of the block before it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.protocol.task import Task, TaskRun
from workload.contract.spec import Origin, RunSpec

LOCAL = "local"
# Prefix of a script's argument as an axis of a matrix.
ARGUMENT = "args."


def as_text(value: Any) -> str:
    """Value of a matrix, formatted for a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Entry `[[on]]` of a matrix. `backend`: local, or one of `launcher.backends.BACKENDS`.

    `options` and `where` are the dataclasses of `launch <backend>`, as `Backend.settings` and `Backend.plan` take them;
    for this machine they are `launcher.machine.local_options.LocalOptions` and None. `asked`: plain values of the entry
    that affect the measurement, by their names in the file; they are part of every run's key. `machines`: number of
    machines that share the blocks, 0 for one machine per block. `script`: None for our trainer; for a user's script the
    options of the place, replaced by a `launcher.sweep.script.PlacedScript` once its folder was read.
    """

    name: str
    backend: str
    options: Any = None
    where: Any = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    machines: int = 1
    script: Any = None

    def machine_of(self, block: int) -> int:
        """Number of the machine, from 1, that runs a block; adding blocks changes nothing for earlier ones."""
        return (block - 1) % self.machines + 1 if self.machines else block


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Configuration of a matrix. `values`: from the matrix, equal at every place; `spec`: run options at this place."""

    values: Mapping[str, Any]
    spec: RunSpec

    @property
    def text(self) -> str:
        """Text for messages: `resnet50, batch_size 64`; an argument of a script has its own name: `lr 0.1`."""
        words = (
            f"{value}" if name == "model" else f"{name.removeprefix(ARGUMENT)} {as_text(value)}"
            for name, value in self.values.items()
        )
        return ", ".join(words) or self.spec.model


@dataclass(frozen=True, kw_only=True)
class PlacePlan:
    """Place with all its runs, one task per machine; `done`: keys of runs that need not run again.

    `configurations`, `origin` (source of each option's value) and `code` (identity of the code or image) are the values
    that the tasks were made of, so that further blocks can be added (`launcher.sweep.blocks`).
    """

    place: Place
    tasks: tuple[Task, ...]
    done: frozenset[str] = frozenset()
    configurations: tuple[Configuration, ...] = ()
    origin: Mapping[str, Origin] = field(default_factory=dict)
    code: str = ""

    @property
    def runs(self) -> tuple[TaskRun, ...]:
        """Runs of all tasks, done or not."""
        return tuple(run for task in self.tasks for run in task.runs)

    @property
    def missing(self) -> tuple[Task, ...]:
        """Tasks with only the runs that are not done; tasks without such runs are left out."""
        return self.without(self.done)

    def without(self, keys: Collection[str]) -> tuple[Task, ...]:
        """Tasks without the runs of these keys; empty tasks are left out."""
        left = (replace(task, runs=tuple(run for run in task.runs if run.run_key not in keys)) for task in self.tasks)
        return tuple(task for task in left if task.runs)

    def too_large(self, out_of_memory: Collection[str]) -> dict[str, RunSpec]:
        """Runs whose configuration ran out of memory here at a smaller batch: by key, the spec with the smaller batch.

        `out_of_memory`: keys of runs that ran out of memory. These runs themselves are not in the result.
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
    """Matrix at its places. `seed`: determines the order of runs in each block."""

    name: str
    repeats: int
    seed: int
    places: tuple[PlacePlan, ...]
