"""End launches: those named to `launch down`, or with `launch reap` all that are stopped or past their limit.

A machine counts as gone only if a later question confirms it. Machines are removed if the place itself lists them as
ours; we keep no list of our own.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime

from launcher.backends.door import Machine, Machines, Removed
from launcher.jobs import launches
from launcher.jobs.records import NO_VARIABLES, Request, Result, request_object, result_object, variables_object
from workload.contract.errors import ExitCode, RooflaunchError, ToolError
from workload.storage.store import Store

AT_A_TIME = 8


def down(chosen: Sequence[Machine], machines: Machines, store: Store | None) -> list[Removed]:
    """Remove these machines, all at once, and note in the store who ended them."""
    removed = machines.stop(chosen)
    now_s = machines.now_s() if removed else 0.0

    def note(machine: Removed) -> None:
        if machine.gone and store is not None:
            error = f"its {machines.noun} was removed by `launch down`"
            settle(store, machine.name, machine.zone, ExitCode.INTERRUPTED, error, now_s=now_s)

    with ThreadPoolExecutor(AT_A_TIME) as workers:
        list(workers.map(note, removed))
    return list(removed)


def settle(
    store: Store,
    name: str,
    zone: str,
    exit_code: int,
    error: str,
    *,
    now_s: float,
    preempted: bool = False,
    timed_out: bool = False,
) -> None:
    """Write a result for a launch whose machine is gone, if it has none. Errors of the store are ignored.

    The phases and runs that the machine reported last are kept.
    """
    with suppress(RooflaunchError):
        seen = launches.read_records(store, name, None)
        asked = store.read(request_object(name))
        if seen.result is not None or asked is None:
            return
        if Request.from_bytes(asked).script.get("env"):
            store.write(variables_object(name), NO_VARIABLES)
        result = Result(
            exit_code=int(exit_code),
            zone=zone,
            runs=seen.runs,
            phases=seen.phases,
            ended_at=datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds"),
            error=error,
            preempted=preempted,
            timed_out=timed_out,
        )
        store.write(result_object(name), result.to_bytes(), if_absent=True)


def require_gone(removed: Sequence[Removed], unlisted: Sequence[str] = ()) -> None:
    """Raise `ToolError` naming all items not confirmed to be gone, and zones that do not answer."""
    left = [f"{item.kind} {item.name} in {item.zone}: {item.reason}" for item in removed if not item.gone]
    sure = any(not item.gone and not item.unknown for item in removed)
    left += [f"whatever is in {zone}, which does not answer" for zone in unlisted]
    if left:
        verb = "confirmed" if sure else "known"
        raise ToolError(f"not {verb} to be gone: {'; '.join(left)}", hint="the same command again; launch status")
