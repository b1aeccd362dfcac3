"""Slurm's words for a job's state, and what they are for us. See squeue(1), JOB STATE CODES."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.backends.door import Condition


@dataclass(frozen=True, kw_only=True)
class State:
    """`why`: what to tell of one that has ended. `queued`: it waits, and neither its start nor its limit has come."""

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
    # Its processes may still be ending.
    "COMPLETING": _runs(),
    "SUSPENDED": _runs(),
    "STOPPED": _runs(),
    "SIGNALING": _runs(),
    "STAGE_OUT": _runs(),
    "RESIZING": _runs(),
    "COMPLETED": _ended(),
    "FAILED": _ended("its script failed"),
    "TIMEOUT": _ended("it reached its time limit"),
    "DEADLINE": _ended("it could not end before its deadline"),
    "OUT_OF_MEMORY": _ended("it took more of the node's memory than it had asked for"),
    "CANCELLED": _ended("somebody cancelled it"),
    "NODE_FAIL": _ended("its node failed"),
    "BOOT_FAIL": _ended("its node did not start"),
    "REVOKED": _ended("another cluster runs it"),
    "PREEMPTED": _ended("another job took its node (preempted)", preempted=True),
}


def state_of(text: str) -> State:
    """Of `CANCELLED by 1000` the first word counts. An unknown state is one of a job that is there."""
    return STATES.get(text.split(maxsplit=1)[0] if text else "", _runs())
