"""The context of a run: what a launcher tells the trainer, as one JSON argument. Standard library only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from workload.contract.errors import UsageError


class KeptCeilings(StrEnum):
    """Stored ceilings, beside the bundles, that a run may use instead of measuring them.

    `hour`: ceilings of the last hour. `none`: no ceilings. `block`: ceilings of any age, so that a later run of a block
    uses the ceilings of the block's first run.
    """

    HOUR = "hour"
    NONE = "none"
    BLOCK = "block"


@dataclass(frozen=True, kw_only=True)
class Context:
    """Facts that a launcher knows and the trainer cannot; passed as one JSON argument and kept in the bundle.

    `outside`: facts by section of run.json's `environment`, collected outside the container, where they are visible.
    `profile_later`: the launcher profiles the bundle itself after the timing runs. `job` (name, task, block, position)
    and `run_key` are set for a run of a sweep. `settles`: let the device cool down before the warm-up, to `settle_to_c`
    degrees Celsius; None for the first run of a task, because its start temperature is the target of later runs.
    `cpu_shares`: number of equal shares into which the CPUs are divided, if more than the run has devices. A run of one
    device then has as many CPUs as each device in the task's runs of several devices. `script_commit`: commit of the
    folder that a script was copied from, with `-dirty` if the folder had changes.
    """

    backend: str = "local"
    runtime: str = "process"
    runtime_reason: str | None = None
    place: str | None = None
    repeat: int = 1
    repeats: int = 1
    spec_origin: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    profile_later: bool = False
    job: Mapping[str, Any] | None = None
    run_key: str = ""
    kept_ceilings: str = KeptCeilings.HOUR
    settles: bool = False
    settle_to_c: float | None = None
    cpu_shares: int = 1
    script_commit: str = ""

    def place_on(self, device: str) -> str:
        """Name of the place of a run on this device: the launcher's, or `local-cpu`."""
        return self.place or f"local-{device}"

    def to_argument(self) -> str:
        """JSON, in one line, of the fields that differ from their defaults."""
        defaults = Context()
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return json.dumps({name: value for name, value in values.items() if value != getattr(defaults, name)})

    @classmethod
    def from_argument(cls, text: str) -> "Context":
        """Parse the output of `to_argument`. Raises `UsageError` for anything else."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise UsageError(f"--context is only for launchers; got '{text}'", hint="leave --context out") from error
