"""The landlord of an element of a job array: what Slurm says to it, in its variables and its log.

Standard library only. It travels in the launch's folder and not in an image: see launcher/agent/landlord.py.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.jobs.records import Request
from workload.contract.errors import ToolError

# What Slurm's own daemon on the node writes into a job's log before it signals the job:
# https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/req.c
TAKEN = re.compile(rb"slurmstepd.*CANCELLED AT \S+ DUE TO (PREEMPTION|JOB REQUEUE|NODE FAILURE)")


@dataclass(frozen=True, kw_only=True)
class Element:
    """One start of a launch; `log_start`: where its log ended before this start."""

    home: Path
    variables: Mapping[str, str]
    log: Path
    log_start: int = 0

    @property
    def zone(self) -> str:
        """The partition."""
        return self.variables.get("SLURM_JOB_PARTITION", "")

    def request(self) -> bytes:
        """As the job's script has it."""
        try:
            return (self.home / "request.json").read_bytes()
        except OSError as error:
            raise ToolError(f"no request in '{self.home}': {error.strerror}", hint="launch again") from error

    def created_s(self) -> None:
        """Waiting costs nothing: the job begins with its script."""

    def deleted_s(self) -> float | None:
        """When its time limit ends it; None where Slurm did not say."""
        end = self.variables.get("ROOFLAUNCH_END_S", "")
        return float(end) if end.isdigit() else None

    def is_preempted(self) -> bool:
        """Whether Slurm takes the node away; of an end that somebody asked for it says nothing."""
        return bool(self._taken())

    def await_preemption(self, is_over: Callable[[float], bool]) -> bool:
        """The job is told by a signal."""
        del is_over
        return False

    def comes_back(self) -> bool:
        """Whether Slurm puts it back into the queue, which it does not do where preempted jobs are cancelled."""
        options = Request.from_bytes(self.request()).options
        is_cancelled = self._taken() == "PREEMPTION" and options.get("preempted") == "CANCEL"
        return bool(options.get("requeue")) and not is_cancelled

    def report(self, name: str, value: str) -> None:
        """There is nobody to tell: the heartbeat in the store says it."""

    def facts(self, request: Request) -> Mapping[str, Any]:
        """None of a cloud; Slurm's own are read by the trainer."""
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
    """The element that this process belongs to."""
    home = Path(__file__).resolve().parent
    log = home.parents[1] / "launches" / home.name / "startup.log"
    start = log.stat().st_size if log.exists() else 0
    return Element(home=home, variables=os.environ, log=log, log_start=start)
