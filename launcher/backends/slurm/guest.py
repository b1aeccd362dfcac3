"""Facts about the machine of an element of a job array, from Slurm's variables and the element's log.

Standard library only. This file travels in the launch's folder, not in an image: see launcher/agent/home.py.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload.contract.errors import ToolError

if TYPE_CHECKING:
    from launcher.protocol.records import Request

# Line that Slurm's daemon on the node writes into a job's log before it signals the job:
# https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/req.c
TAKEN = re.compile(rb"slurmstepd.*CANCELLED AT \S+ DUE TO (PREEMPTION|JOB REQUEUE|NODE FAILURE)")


@dataclass(frozen=True, kw_only=True)
class Element:
    """Start of a launch on a node; `log_start`: length of the launch's log in bytes before this start."""

    home: Path
    variables: Mapping[str, str]
    log: Path
    log_start: int = 0

    @property
    def zone(self) -> str:
        """Partition of the job."""
        return self.variables.get("SLURM_JOB_PARTITION", "")

    def request(self) -> bytes:
        """Content of request.json, which the job's script wrote. Raises `ToolError` if it cannot be read."""
        try:
            return (self.home / "request.json").read_bytes()
        except OSError as error:
            raise ToolError(f"no request in '{self.home}': {error.strerror}", hint="launch again") from error

    def created_s(self) -> None:
        """None: waiting in the queue costs nothing, so costs count from the start of the script."""

    def deleted_s(self) -> float | None:
        """Time when Slurm ends the job at its limit, in seconds since 1970; None if unknown."""
        end = self.variables.get("ROOFLAUNCH_END_S", "")
        return float(end) if end.isdigit() else None

    def is_preempted(self) -> bool:
        """Whether Slurm takes the node away (preemption, requeue, node failure); False if a user cancelled the job."""
        return bool(self._taken())

    def await_preemption(self, wait: Callable[[float], bool]) -> bool:
        """Return False without waiting, because Slurm announces a preemption by a signal."""
        del wait
        return False

    def comes_back(self) -> bool:
        """Whether Slurm requeues the job; False after a preemption if the partition cancels preempted jobs."""
        # The agent has already checked every field of the request.
        options = json.loads(self.request()).get("options", {})
        is_cancelled = self._taken() == "PREEMPTION" and options.get("preempted") == "CANCEL"
        return bool(options.get("requeue")) and not is_cancelled

    def report(self, name: str, value: str) -> None:
        """Do nothing: the heartbeat in the store reports the phases of a start."""

    def facts(self, request: "Request") -> Mapping[str, Any]:
        """Always empty: the trainer itself reads Slurm's variables, and there are no facts of a cloud."""
        del request
        return {}

    def _taken(self) -> str:
        try:
            with self.log.open("rb") as log:
                log.seek(self.log_start)
                words = TAKEN.findall(log.read())
        except OSError:
            return ""
        return words[-1].decode() if words else ""


def this_machine() -> Element:
    """Element of the job array in which this process runs."""
    home = Path(__file__).resolve().parent
    log = home.parents[1] / "launches" / home.name / "startup.log"
    start = log.stat().st_size if log.exists() else 0
    return Element(home=home, variables=os.environ, log=log, log_start=start)
