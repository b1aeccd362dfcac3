"""A task: runs that one machine makes one after another. Standard library only.

`launch ... --repeats N` is a task of one configuration, N blocks of one run each. The tasks of a sweep have whole
blocks of a matrix. In a request, a run has only its differences from the request's own spec, so that a task of
hundreds of runs fits into the metadata of a VM.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from workload.contract.errors import UsageError
from workload.contract.spec import RunSpec
from workload.contract.text import counted


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """A run: `spec` with `repeats` 1, its block, and its position within the block, both from 1.

    `run_key`: hash of the run's options, block, code and place, 16 hex digits; a run whose sealed bundle
    has this key is not measured again. A launch that is no sweep has empty keys and measures every run.
    """

    spec: RunSpec
    block: int = 1
    position: int = 1
    run_key: str = ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Runs of one machine. `job`: the sweep's name, empty for a single launch. `number`: the task's number, from 1.

    `devices`: largest number of devices of a configuration at this place, even if its runs are done: the machine has as
    many.
    """

    job: str = ""
    number: int = 1
    devices: int = 1
    runs: tuple[TaskRun, ...]

    @property
    def blocks(self) -> int:
        """Number of blocks with at least one run in the task."""
        return len({run.block for run in self.runs})

    def __str__(self) -> str:
        """Words for a plan: `6 runs in 2 blocks, task 1 of 'imagenette'`."""
        job = f" of '{self.job}'" if self.job else ""
        return f"{counted(len(self.runs), 'run')} in {counted(self.blocks, 'block')}, task {self.number}{job}"

    @classmethod
    def of_repeats(cls, spec: RunSpec) -> Self:
        """Task of one configuration, run `spec.repeats` times."""
        once = replace(spec, repeats=1)
        runs = tuple(TaskRun(spec=once, block=block) for block in range(1, spec.repeats + 1))
        return cls(devices=spec.devices, runs=runs)

    def mapped(self, change: Callable[[RunSpec], RunSpec]) -> Self:
        """Task with `change` applied to each run's spec. A `UsageError` that `change` raises gets the run's number."""

        def changed(number: int, run: TaskRun) -> TaskRun:
            try:
                return replace(run, spec=change(run.spec))
            except UsageError as error:
                raise UsageError(f"run {number} of {self}: {error}", hint=error.hint) from error

        return replace(self, runs=tuple(changed(number, run) for number, run in enumerate(self.runs, 1)))

    def to_json(self, base: RunSpec) -> dict[str, Any]:
        """Task as JSON values; each spec has only its differences from `base`."""
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
        several = {"devices": self.devices} if self.devices > 1 else {}
        return {"job": self.job, "number": self.number, **several, "runs": runs}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], base: RunSpec) -> Self:
        """Parse the output of `to_json`. Raises `UsageError` for anything else."""
        usual = base.to_json()
        try:
            runs = tuple(
                TaskRun(
                    # A value that is None, such as a batch size left to the device, becomes the option's default.
                    spec=RunSpec.from_json({**usual, **run["spec"]}),
                    block=int(run["block"]),
                    position=int(run["position"]),
                    run_key=str(run["key"]),
                )
                for run in values["runs"]
            )
            devices = int(values.get("devices", 1))
            return cls(job=str(values["job"]), number=int(values["number"]), devices=devices, runs=runs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the request has no readable task: {error!r}", hint="launch again") from error
