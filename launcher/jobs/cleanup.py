"""End launches: `launch down` those that were named, `launch reap` whatever is stopped or past its limit.

A deletion counts when a later question answers that there is no such VM. What is removed is found by our labels in the
cloud, never by a list of our own.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from launcher.backends.door import Leftover, Listing, Removed
from launcher.backends.gcp.compute import ZONE, Compute
from launcher.backends.gcp.provision import PAUSE_S, REMOVE_S
from launcher.backends.gcp.refusals import DeniedError
from launcher.backends.gcp.resources import Disk, Instance
from launcher.jobs import launches
from launcher.jobs.records import NAME, Result, request_object, result_object
from workload.contract.errors import ExitCode, RooflaunchError, ToolError
from workload.storage.store import Store

# The cloud itself may act 30 s after the limit; a launcher that still follows gets its turn too.
GRACE_S = 5 * 60
AT_A_TIME = 8


def running(compute: Compute) -> Listing[Instance]:
    """Every VM of a launch, by name; another that somebody gave our label is none of ours."""
    listing = compute.instances()
    ours = sorted((each for each in listing if NAME.fullmatch(each.name)), key=lambda each: each.name)
    return replace(listing, there=tuple(ours))


def look_in(compute: Compute, zones: Sequence[str], name: str) -> tuple[Instance | None, list[str]]:
    """The VM of that name, asked of these zones one by one; and those of them that do not answer either."""

    def ask(zone: str) -> Instance | str | None:
        if not ZONE.fullmatch(zone):  # a region, or nobody knows where
            return zone
        try:
            return compute.get(zone, name)
        except DeniedError:
            raise
        except ToolError:
            return zone

    with ThreadPoolExecutor(AT_A_TIME) as workers:
        answers = list(workers.map(ask, zones))
    there = next((answer for answer in answers if isinstance(answer, Instance)), None)
    return there, [] if there else [answer for answer in answers if isinstance(answer, str)]


def leftovers(compute: Compute) -> Listing[Leftover]:
    """VMs that are stopped for good or, by the cloud's clock, past their limit; and disks past it that no VM uses."""
    there, disks = running(compute), compute.disks()
    now_s = compute.now_s()
    vms = [
        Leftover(kind="VM", name=each.name, zone=each.zone, why=why)
        for each in there
        if (why := _why_left(each, now_s))
    ]
    left_disks = [
        Leftover(kind="disk", name=each.name, zone=each.zone, why=_past(each.deadline_s, now_s))
        for each in disks
        if _is_left(each, now_s)
    ]
    silent = dict.fromkeys((*there.unreachable, *disks.unreachable))
    return Listing(there=(*vms, *left_disks), unreachable=tuple(silent))


def _why_left(vm: Instance, now_s: float) -> str:
    """Empty for a VM that is where it should be. One that is stopped has no end any more that the cloud would keep.

    One that the cloud is about to start again is let be: it saves what it measured, and deletes itself.
    """
    if vm.may_start_again(now_s):
        return ""
    if vm.stopped_for_good(now_s):
        return f"it is {vm.status}, and the cloud never deletes a stopped VM"
    is_past = vm.deadline_s is not None and now_s > vm.deadline_s + GRACE_S
    return _past(vm.deadline_s, now_s) if is_past else ""


def _is_left(disk: Disk, now_s: float) -> bool:
    is_ours = NAME.fullmatch(disk.name) is not None
    return is_ours and not disk.users and disk.deadline_s is not None and now_s > disk.deadline_s + GRACE_S


def _past(deadline_s: float | None, now_s: float) -> str:
    return f"its limit was {launches.duration(now_s - (deadline_s or 0))} ago"


def down(
    instances: Sequence[Instance],
    compute: Compute,
    bucket: Store | None,
    *,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[Removed]:
    """Remove these VMs, all together, and leave in the bucket who ended them."""
    removed = _remove_vms(compute, [(each.zone, each.name) for each in instances], now=now, sleep=sleep)

    def note(vm: Removed) -> None:
        if vm.gone and bucket is not None:
            error = "its VM was removed by `launch down`"
            settle(bucket, vm.name, vm.zone, ExitCode.INTERRUPTED, error, now=now)

    with ThreadPoolExecutor(AT_A_TIME) as workers:
        list(workers.map(note, removed))
    return removed


def reap(
    left: Iterable[Leftover],
    compute: Compute,
    *,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[Removed]:
    """Remove what `leftovers` has found: VMs first, since a VM's deletion takes its disk along."""
    known = list(left)
    vms = [(each.zone, each.name) for each in known if each.kind == "VM"]
    removed = _remove_vms(compute, vms, now=now, sleep=sleep)
    with ThreadPoolExecutor(AT_A_TIME) as workers:
        disks = [each for each in known if each.kind != "VM"]
        return removed + list(workers.map(lambda disk: _remove_disk(compute, disk), disks))


def _remove_vms(
    compute: Compute, vms: Sequence[tuple[str, str]], *, now: Callable[[], float], sleep: Callable[[float], None]
) -> list[Removed]:
    """End these VMs, each (zone, name): every deletion is asked for before any is waited for, since each takes minutes.

    One list tells of all of them; a VM that it lacks is gone once a question for it alone says so too, because a list
    may be incomplete. A deletion that was lost or failed leaves a VM that is not STOPPING, and is asked for again.
    """
    refused: dict[tuple[str, str], str] = {}
    gone: dict[tuple[str, str], bool | None] = {}
    listed: dict[tuple[str, str], str] = {}
    end_s = now() + REMOVE_S

    def ask(vm: tuple[str, str]) -> str:
        """Why asking again is of no use, or empty."""
        try:
            compute.delete(*vm)
        except RooflaunchError as error:
            return str(error) if isinstance(error, DeniedError) or not isinstance(error, ToolError) else ""
        return ""

    def is_gone(vm: tuple[str, str]) -> bool | None:
        """None where its zone does not answer."""
        try:
            return compute.get(*vm) is None
        except ToolError:
            return None

    with ThreadPoolExecutor(AT_A_TIME) as workers:
        while True:
            left = [vm for vm in vms if not gone.get(vm) and vm not in refused]
            asked = [vm for vm in left if listed.get(vm) != "STOPPING"]
            refused |= {vm: why for vm, why in zip(asked, workers.map(ask, asked), strict=True) if why}
            try:
                listed = {(each.zone, each.name): each.status for each in compute.instances()}
            except ToolError:
                listed = {}  # each is asked for by itself then
            missing = [vm for vm in left if vm not in listed and vm not in refused]
            gone |= dict.fromkeys(left, False) | dict(zip(missing, workers.map(is_gone, missing), strict=True))
            if all(gone[vm] or vm in refused for vm in vms) or now() >= end_s:
                break
            sleep(PAUSE_S)
    return [_removed(vm, gone[vm], refused.get(vm, "it is still there")) for vm in vms]


def _removed(vm: tuple[str, str], gone: bool | None, reason: str) -> Removed:
    zone, name = vm
    if gone is None:
        return no_answer("VM", name, [zone])
    return Removed(kind="VM", name=name, zone=zone, gone=gone, reason="" if gone else reason)


def _remove_disk(compute: Compute, disk: Leftover) -> Removed:
    try:
        compute.delete_disk(disk.zone, disk.name)
    except RooflaunchError as error:
        return Removed(kind="disk", name=disk.name, zone=disk.zone, gone=False, reason=str(error))
    listing = compute.disks()
    there = any((each.zone, each.name) == (disk.zone, disk.name) for each in listing)
    if listing.lacks(disk.zone):
        return no_answer("disk", disk.name, [disk.zone])
    return Removed(
        kind="disk", name=disk.name, zone=disk.zone, gone=not there, reason="it is still there" if there else ""
    )


def settle(
    bucket: Store,
    name: str,
    zone: str,
    exit_code: int,
    error: str,
    *,
    now: Callable[[], float],
    preempted: bool = False,
    timed_out: bool = False,
) -> None:
    """Leave a result for a launch whose VM is gone, unless it left one itself; a bucket that refuses changes nothing.

    What the VM told last of its phases and runs is kept.
    """
    with suppress(RooflaunchError):
        seen = launches.look(bucket, name, None)
        if seen.result is not None or bucket.read(request_object(name)) is None:
            return
        result = Result(
            exit_code=int(exit_code),
            zone=zone,
            runs=seen.runs,
            phases=seen.phases,
            ended_at=datetime.fromtimestamp(now(), UTC).isoformat(timespec="milliseconds"),
            error=error,
            preempted=preempted,
            timed_out=timed_out,
        )
        bucket.write(result_object(name), result.to_bytes(), if_absent=True)


def no_answer(kind: str, name: str, zones: Sequence[str]) -> Removed:
    """What may be in zones that do not answer."""
    answer = "the zone does not answer" if len(zones) == 1 else "these zones do not answer"
    return Removed(kind=kind, name=name, zone=", ".join(zones), gone=False, reason=answer, unknown=True)


def require_gone(removed: Sequence[Removed], unlisted: Sequence[str] = ()) -> None:
    """Raise `ToolError` naming what is not confirmed to be gone, and zones of which nothing is known."""
    left = [f"{each.kind} {each.name} in {each.zone}: {each.reason}" for each in removed if not each.gone]
    sure = any(not each.gone and not each.unknown for each in removed)
    left += [f"whatever is in {zone}, which does not answer" for zone in unlisted]
    if left:
        verb = "confirmed" if sure else "known"
        raise ToolError(f"not {verb} to be gone: {'; '.join(left)}", hint="the same command again; launch status")
