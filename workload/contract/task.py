"""A task: the runs that one machine works through in order, in one go. Standard library only.

`launch ... --repeats N` is the task of one configuration, N blocks of one run; a sweep makes its tasks of whole blocks
of a matrix. In a request a run holds only what differs from the request's own spec, so that a task of hundreds of runs
fits into the metadata of a VM.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from workload.contract.errors import UsageError
from workload.contract.spec import RunSpec
from workload.contract.text import counted


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """One run: `spec` with `repeats` 1, its block, and its place in the order of that block, both from 1.

    `run_key` says what was asked for, in 16 hex digits: a sealed bundle that has it need not be measured again. Empty
    outside of a sweep, where everything is measured.
    """

    spec: RunSpec
    block: int = 1
    position: int = 1
    run_key: str = ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """`job`: the sweep's name, empty for a launch by itself; `number`: which task of the job, from 1."""

    job: str = ""
    number: int = 1
    runs: tuple[TaskRun, ...]

    @property
    def blocks(self) -> int:
        """How many blocks it has runs of."""
        return len({run.block for run in self.runs})

    def __str__(self) -> str:
        """What a plan says of it: `6 runs in 2 blocks, task 1 of 'imagenette'`."""
        job = f" of '{self.job}'" if self.job else ""
        return f"{counted(len(self.runs), 'run')} in {counted(self.blocks, 'block')}, task {self.number}{job}"

    @classmethod
    def of_repeats(cls, spec: RunSpec) -> Self:
        """One configuration, as often as its `repeats` says."""
        once = replace(spec, repeats=1)
        return cls(runs=tuple(TaskRun(spec=once, block=block) for block in range(1, spec.repeats + 1)))

    def mapped(self, change: Callable[[RunSpec], RunSpec]) -> Self:
        """The same runs with the options that `change` makes of theirs; what it refuses is said of which run."""

        def changed(number: int, run: TaskRun) -> TaskRun:
            try:
                return replace(run, spec=change(run.spec))
            except UsageError as error:
                raise UsageError(f"run {number} of {self}: {error}", hint=error.hint) from error

        return replace(self, runs=tuple(changed(number, run) for number, run in enumerate(self.runs, 1)))

    def to_json(self, base: RunSpec) -> dict[str, Any]:
        """Plain values; of each spec what differs from `base`."""
        usual = base.to_json()
        runs = [
            {
                "block": run.block,
                "position": run.position,
                "key": run.run_key,
                "spec": {name: value for name, value in run.spec.to_json().items() if value != usual[name]},
            }
            for run in self.runs
        ]
        return {"job": self.job, "number": self.number, "runs": runs}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], base: RunSpec) -> Self:
        """The inverse of `to_json`. Raises `UsageError` for what is no task."""
        usual = base.to_json()
        try:
            runs = tuple(
                TaskRun(
                    # A value that is None again, as a batch size left to the device, is the option's default.
                    spec=RunSpec.from_json({**usual, **run["spec"]}),
                    block=int(run["block"]),
                    position=int(run["position"]),
                    run_key=str(run["key"]),
                )
                for run in values["runs"]
            )
            return cls(job=str(values["job"]), number=int(values["number"]), runs=runs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the request has no readable task: {error!r}", hint="launch again") from error
