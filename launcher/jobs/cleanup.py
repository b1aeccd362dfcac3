"""End launches: `launch down` ends the named launches, `launch reap` all that are stopped or past their limit.

A machine counts as gone only if a later query confirms this. Machines are removed only if the place itself lists them
as ours; we store no list of machines.
"""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime

from launcher.jobs import launches
from launcher.jobs.liveness import PROVISIONING_S
from launcher.protocol.backend import Listing, Machine, Machines, Removed
from launcher.protocol.records import (
    NAME,
    NO_VARIABLES,
    VARIABLES,
    Request,
    Result,
    request_object,
    result_object,
    variables_object,
)
from workload.contract.errors import ExitCode, RooflaunchError, ToolError
from workload.storage.store import Store

AT_A_TIME = 8


def down(chosen: Sequence[Machine], machines: Machines, store: Store | None) -> list[Removed]:
    """Remove these machines, all at once, and note in the store who ended them."""
    removed = machines.stop(chosen)
    now_s = machines.now_s() if removed else 0.0

    def note(machine: Removed) -> None:
        if machine.gone and store is not None:
            error = f"the {machines.noun} was removed by `launch down`"
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
        request = store.read(request_object(name))
        if seen.result is not None or request is None:
            return
        if Request.from_bytes(request).script.get("env"):
            store.write(variables_object(name), NO_VARIABLES, is_private=True)
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


def erase_variables(store: Store, machines: Machines, *, down: Collection[str] = ()) -> list[str]:
    """Erase the stored environment variables (`--env`) of every launch that is over; return the launches' names.

    Errors of the store are ignored.
    A launch without a machine is over once its launcher can no longer be requesting a machine. `down`: names of
    launches that a user ended, which are over as soon as they have no machine.
    """
    with suppress(RooflaunchError):
        # An object with variables is longer than an emptied one.
        names = [
            listed.name.removeprefix(VARIABLES).removesuffix(".json")
            for listed in store.objects(VARIABLES)
            if listed.bytes > len(NO_VARIABLES)
        ]
        if names := [name for name in names if NAME.fullmatch(name)]:
            listing, now_s = machines.look(), machines.now_s()
            ended = [name for name in names if not _may_live(store, name, listing, now_s, is_down=name in down)]
            return [name for name in ended if store.write(variables_object(name), NO_VARIABLES, is_private=True)]
    return []


def _may_live(store: Store, name: str, listing: Listing[Machine], now_s: float, *, is_down: bool) -> bool:
    """Whether a launch may still read its stored environment variables."""
    machine = next((machine for machine in listing if machine.name == name), None)
    seen = launches.read_records(store, name, machine)
    if seen.result is not None:
        return False
    if machine is not None or listing.unreachable:
        return True
    # A launcher may still be requesting the machine.
    return now_s - (seen.launched_s or 0.0) < PROVISIONING_S and not is_down


def require_gone(removed: Sequence[Removed], unlisted: Sequence[str] = ()) -> None:
    """Raise `ToolError` naming all items not confirmed to be gone, and zones that do not answer."""
    doubtful = [f"{item.kind} {item.name} in {item.zone}: {item.reason}" for item in removed if not item.gone]
    doubtful += [f"anything in {zone}, which does not answer" for zone in unlisted]
    if doubtful:
        verb = "confirmed" if any(not item.gone and not item.unknown for item in removed) else "known"
        raise ToolError(
            f"not {verb} to be gone: {'; '.join(doubtful)}",
            hint="run the same command again; launch status shows what is left",
        )
