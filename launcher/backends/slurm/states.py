"""Slurm's states of a job, and their meaning here. See squeue(1), JOB STATE CODES."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.protocol.backend import Condition


@dataclass(frozen=True, kw_only=True)
class State:
    """Meaning of a job's state. `why`: reason of the end; `queued`: the job waits, without start time and deadline."""

    condition: Condition
    why: str = ""
    queued: bool = False
    preempted: bool = False


def _waits() -> State:
    return State(condition=Condition.STARTING, queued=True)


def _runs() -> State:
    return State(condition=Condition.RUNNING)


def _ended(why: str = "", *, preempted: bool = False) -> State:
    return State(condition=Condition.GONE, why=why, preempted=preempted)


STATES: Mapping[str, State] = {
    "PENDING": _waits(),
    "CONFIGURING": _waits(),
    "REQUEUED": _waits(),
    "REQUEUE_FED": _waits(),
    "REQUEUE_HOLD": _waits(),
    "SPECIAL_EXIT": _waits(),
    "RESV_DEL_HOLD": _waits(),
    "RUNNING": _runs(),
    # The job's processes may still be ending.
    "COMPLETING": _runs(),
    "SUSPENDED": _runs(),
    "STOPPED": _runs(),
    "SIGNALING": _runs(),
    "STAGE_OUT": _runs(),
    "RESIZING": _runs(),
    "COMPLETED": _ended(),
    "FAILED": _ended("its script failed"),
    "TIMEOUT": _ended("it reached its time limit"),
    "DEADLINE": _ended("it could not finish before its deadline"),
    "OUT_OF_MEMORY": _ended("it used more memory than it had requested"),
    "CANCELLED": _ended("it was cancelled"),
    "NODE_FAIL": _ended("its node failed"),
    "BOOT_FAIL": _ended("its node did not start"),
    "REVOKED": _ended("it runs on another cluster"),
    "PREEMPTED": _ended("another job took its node (preempted)", preempted=True),
}


def state_of(text: str) -> State:
    """Meaning of a state, from its first word (as in `CANCELLED by 1000`). An unknown state counts as running."""
    return STATES.get(text.split(maxsplit=1)[0] if text else "", _runs())
