"""VMs of a project behind the interface of `launcher.protocol.backend`; first, how the VM of a plan is started.

Quotas are read before a zone is tried, which takes under a second; learning them from a failed insert takes 30 s. After
any failure no VM of the launch is left: each failed or interrupted insert is followed by a look-up of the VM's name.
"""

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from launcher.backends.gcp.answers import (
    NOT_IN_ZONE,
    QUOTA_EXCEEDED,
    STARTING,
    STOCKOUT,
    AlreadyThereError,
    DeniedError,
    Instance,
    Operation,
    OperationFault,
    Quota,
    RefusedError,
    refused_for_good,
)
from launcher.backends.gcp.compute import ZONE, Compute
from launcher.backends.gcp.plan import VmPlan
from launcher.backends.zone_by_zone import SETTLE_S, Fault, Scope, ZoneByZone
from launcher.protocol.backend import Condition, Leftover, Listing, Machine, Output, Removed, Submitted, Tell
from launcher.protocol.records import NAME, LaunchPhase
from workload.contract.errors import RooflaunchError, ToolError
from workload.contract.text import duration
from workload.storage.store import UnreachableError

# Limit for an insert: a lack of machines is reported within 30 s; a VM runs within a minute.
OPERATION_S = 180.0
# Seconds between look-ups of the VM itself while its operation is under way.
LOOK_EVERY_S = 10.0
REMOVE_S = 180.0
PAUSE_S = 3.0
# Number of requests that are sent at the same time.
AT_A_TIME = 8
GLOBAL_QUOTA = "GPUS_ALL_REGIONS"
RUNNING = "RUNNING"

# Our own error codes, in addition to Compute Engine's.
TOOK_TOO_LONG = "TOOK_TOO_LONG"
PREEMPTED = "PREEMPTED"
DELETED = "DELETED"
BUSY = ("HTTP_429", "HTTP_503")
NOT_FOUND = "RESOURCE_NOT_FOUND"
# Compute Engine's word for a failure of its own, after which it asks to try again.
INTERNAL = "INTERNAL_ERROR"
_ZONE_CODES = (STOCKOUT, "VM_MIN_COUNT_NOT_REACHED", NOT_FOUND, NOT_IN_ZONE, TOOK_TOO_LONG, PREEMPTED, INTERNAL, *BUSY)
# Resources that, if missing, are missing in every zone.
_MISSING_EVERYWHERE = re.compile(r"serviceaccount|service account|/images/|/networks/|@", re.IGNORECASE)
_EVERYWHERE = re.compile(r"globally|ALL[_-]REGIONS", re.IGNORECASE)


@dataclass(kw_only=True)
class _Deletion:
    """A VM that is being deleted. `status`: as last seen, empty once it is gone, None if its zone does not answer.

    `gone_from_s`: time since which no VM of this name has existed. `refused`: why the cloud refuses for good.
    """

    zone: str
    name: str
    status: str | None = RUNNING
    gone_from_s: float | None = None
    refused: str = ""

    def request(self, compute: Compute) -> None:
        """Request the deletion. A failure that may pass is ignored, because the request is repeated."""
        try:
            if compute.delete(self.zone, self.name) is not None:
                self.gone_from_s = None
        except RooflaunchError as error:
            if isinstance(error, DeniedError) or not isinstance(error, ToolError):
                self.refused = str(error)

    def look(self, compute: Compute, listed: Mapping[tuple[str, str], str], now: Callable[[], float]) -> None:
        """Update `status`. A VM that is not `listed` is asked for by itself, because lists may be incomplete."""
        self.status = listed.get((self.zone, self.name))
        if self.status is None:
            with suppress(ToolError):
                vm = compute.get(self.zone, self.name)
                self.status = vm.status if vm else ""
        if self.status != "":
            self.gone_from_s = None
        elif self.gone_from_s is None:
            self.gone_from_s = now()

    def removed(self, *, is_gone: bool) -> Removed:
        if self.status is None and not self.refused:
            return Removed.unanswered("VM", self.name, [self.zone])
        reason = "" if is_gone else self.refused or "the VM still exists"
        return Removed(kind="VM", name=self.name, zone=self.zone, gone=is_gone, reason=reason)


def remove(
    compute: Compute,
    vms: Sequence[tuple[str, str]],
    *,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    settle_s: float = 0.0,
) -> list[Removed]:
    """Delete these VMs (zone, name); one counts as gone once no VM of its name has existed for `settle_s` seconds.

    All deletions are requested before any is waited for, since each takes minutes. Each round reads one list of all
    VMs. If a VM exists but is not STOPPING, its deletion was lost or failed, and is requested again. Gives up after
    `REMOVE_S` seconds.
    """
    deletions = [_Deletion(zone=zone, name=name) for zone, name in vms]
    remaining, end_s = deletions, now() + REMOVE_S if vms else 0.0

    def is_gone(deletion: _Deletion) -> bool:
        return deletion.gone_from_s is not None and now() - deletion.gone_from_s >= settle_s

    with ThreadPoolExecutor(AT_A_TIME) as workers:
        while remaining:
            again = [deletion for deletion in remaining if deletion.status != "STOPPING"]
            list(workers.map(partial(_Deletion.request, compute=compute), again))
            listed: dict[tuple[str, str], str] = {}
            if len(remaining) > 1:
                with suppress(ToolError):
                    listed = {(vm.zone, vm.name): vm.status for vm in compute.instances()}
            list(workers.map(partial(_Deletion.look, compute=compute, listed=listed, now=now), remaining))
            remaining = [deletion for deletion in remaining if not (is_gone(deletion) or deletion.refused)]
            if remaining and now() >= end_s:
                break
            if remaining:
                sleep(PAUSE_S)
    return [deletion.removed(is_gone=is_gone(deletion) and not deletion.refused) for deletion in deletions]


@dataclass(kw_only=True)
class Provisioning(ZoneByZone):
    """Attempts of one launch on Compute Engine."""

    plan: VmPlan
    compute: Compute
    _with_known_quota: set[str] = field(default_factory=set)

    def _reach(self) -> list[str]:
        """Zones of the plan, then zones that the cloud has suggested although our table lacks them.

        Suggested zones are left out without `fallback`, and if the plan has a cost limit or a subnetwork.
        """
        plan = self.plan
        free = plan.options.fallback and plan.options.max_cost_usd is None and not plan.settings.subnetwork
        return list(dict.fromkeys([*plan.zones, *(self._suggested if free else ())]))

    # Quotas.

    def _has_quota_in_project(self) -> bool:
        quota = self.compute.project_quotas().get(GLOBAL_QUOTA) if self.plan.request.gpu_count else None
        return self._fits("all regions", {GLOBAL_QUOTA: quota})

    def _has_quota_in(self, region: str) -> bool:
        """Return whether the region's quotas may have room for the VM; if not, block all zones of the region.

        The quotas are read once per region. If the cloud does not report a quota, the result is True.
        """
        request = self.plan.request
        if region in self._with_known_quota or not request.gpu_count:
            return region not in self._blocked
        self._with_known_quota.add(region)
        quotas = self.compute.region_quotas(region)
        metrics = self.plan.gpu.quota_metrics(spot=request.spot, limit_s=request.limit_s)
        allowed = self._fits(region, {metric: quotas.get(metric) for metric in metrics})
        if not allowed:
            self._blocked.add(region)
        return allowed

    def _fits(self, where: str, quotas: Mapping[str, Quota | None]) -> bool:
        wanted = self.plan.request.gpu_count
        known = {metric: quota for metric, quota in quotas.items() if quota is not None}
        if len(known) < len(quotas) or any(quota.remaining >= wanted for quota in known.values()):
            return True
        figures = "; ".join(f"{metric} is {quota.limit:g}, {quota.usage:g} in use" for metric, quota in known.items())
        self._note(where, (OperationFault(code=QUOTA_EXCEEDED, message=f"{figures}, {wanted} wanted"),), self.now())
        return False

    def _insert(self, zone: str) -> Instance | tuple[Fault, ...]:
        request_id = uuid.uuid4().hex
        body = self.plan.body(zone, request_id=request_id)
        self._may_live = True
        try:
            operation = self.compute.insert(zone, body, request_id)
        except RefusedError as error:
            return error.faults
        except AlreadyThereError:
            # If the VM is ours, the first insert worked, and this answers a repetition. Another VM is not deleted.
            vm = self.compute.get(zone, self.plan.name)
            if vm is not None and vm.request_id != request_id:
                self._may_live = False
                raise ToolError(
                    f"zone {zone} has another VM '{self.plan.name}', which does not belong to this launch",
                    hint="launch again",
                ) from None
            return self._await_running(zone)
        except RooflaunchError as error:
            # An error that Compute Engine answered means that there is no VM; without an answer there may be one.
            self._may_live = isinstance(error, UnreachableError)
            raise
        faults = self._await_operation(operation)
        if faults:
            return faults
        # An operation that does not end may still have made the VM.
        return self._await_running(zone, limit_s=0.0 if faults is None else None)

    def _await_operation(self, operation: Operation) -> tuple[OperationFault, ...] | None:
        """Wait for the insert. Returns the operation's faults, () once the VM runs, None if neither happens in time.

        An operation may stay unfinished for ever while its VM runs, does its work and deletes itself.
        """
        end_s = self.now() + self._patience_s(OPERATION_S)
        while (left_s := end_s - self.now()) > 0:
            faults = self.compute.wait(operation, min(LOOK_EVERY_S, left_s))
            if faults is not None:
                return faults
            vm = self.compute.get(operation.zone, self.plan.name)
            if vm is not None and vm.status == RUNNING:
                return ()
        return None

    def _await_running(self, zone: str, *, limit_s: float | None = None) -> Instance | tuple[Fault, ...]:
        end_s = self.now() + (self._patience_s(OPERATION_S) if limit_s is None else limit_s)
        while (vm := self.compute.get(zone, self.plan.name)) is not None and vm.status in STARTING:
            if self.now() >= end_s:
                return (OperationFault(code=TOOK_TOO_LONG, message=f"still {vm.status}"),)
            self.sleep(PAUSE_S)
        if vm is not None and vm.status == RUNNING:
            return vm
        status = "gone" if vm is None else vm.status
        # A VM that vanished was preempted if the cloud says so or the VM is spot, else deleted by somebody.
        was_preempted = self.compute.preempted(zone, self.plan.name) or self.plan.request.spot
        code = PREEMPTED if was_preempted else DELETED
        return (OperationFault(code=code, message=f"the VM is {status} right after its insert"),)

    # After a failure.

    def _clear(self, zone: str, faults: tuple[Fault, ...]) -> None:
        """Remove a VM that an attempt may have left: an operation can fail although its VM exists."""
        uncertain = any(fault.code in BUSY for fault in faults)
        if not uncertain and self.compute.get(zone, self.plan.name) is None:
            return
        self._removed(zone, settle_s=SETTLE_S if uncertain else 0.0)

    def _remove(self, zone: str, *, settle_s: float) -> bool:
        vms = [(zone, self.plan.name)]
        [removed] = remove(self.compute, vms, now=self.now, sleep=self.sleep, settle_s=settle_s)
        if removed.reason:
            self.on_event(removed.reason)
        return removed.gone

    def _scope(self, fault: Fault) -> Scope:
        return scope_of(fault)

    def _fatal(self, zone: str, faults: tuple[Fault, ...]) -> ToolError:
        reasons = "; ".join(f"{fault.code}: {fault.message}" for fault in faults)
        refused = refused_for_good(reasons)
        return refused or ToolError(
            f"Compute Engine did not make the VM in {zone}: {reasons}", hint="launch doctor gcp"
        )

    def _error_text(self, code: str, message: str) -> str:
        plain = code.startswith((STOCKOUT, NOT_IN_ZONE))
        return code if plain else f"{code}: {message}"

    def _what_next(self) -> str:
        if all(tried.code.startswith("QUOTA") for tried in self._tried):
            page = f"https://console.cloud.google.com/iam-admin/quotas?project={self.plan.settings.project}"
            return f"ask for more at {page}; launch doctor gcp shows what each region has"
        if all("/subnetworks/" in tried.message for tried in self._tried):
            name = self.plan.settings.subnetwork
            wider = "add regions to `subnets` in infra/gcp/"
            return f"no region has a subnetwork '{name}': set another --subnetwork, or {wider}"
        return self._run_again()


def scope_of(fault: Fault) -> Scope:
    """Scope in which an error rules out further attempts. An unknown code counts as fatal."""
    if fault.code.startswith("QUOTA"):
        if isinstance(fault, OperationFault) and fault.quota_dimensions:
            return Scope.REGION if "region" in fault.quota_dimensions else Scope.PROJECT
        return Scope.PROJECT if _EVERYWHERE.search(fault.message) else Scope.REGION
    if fault.code == NOT_FOUND and "/subnetworks/" in fault.message:
        return Scope.REGION
    if fault.code == NOT_FOUND and _MISSING_EVERYWHERE.search(fault.message):
        return Scope.FATAL
    return Scope.ZONE if fault.code.startswith(_ZONE_CODES) else Scope.FATAL


# A VM counts as a leftover this long after its limit. Before, the cloud (30 s late at most) or its launcher deletes it.
GRACE_S = 5 * 60


class ComputeMachines:
    """The VMs of one project. `compute` counts only the requests made through this object."""

    noun = "VM"

    def __init__(self, compute: Compute, *, sleep: Callable[[float], None]) -> None:
        self.compute = compute.counted()
        self._sleep = sleep

    @property
    def place(self) -> str:
        return self.compute.project

    @property
    def calls(self) -> Mapping[str, int]:
        return {f"compute.{name}": count for name, count in self.compute.calls.items()}

    def now_s(self) -> float:
        return self.compute.now_s()

    def submit(self, plan: VmPlan, tell: Tell) -> Submitted:
        """Start the plan's VM in the first zone with a free machine; if a VM of that name exists, return that VM.

        A VM in a zone that does not answer is not found. Even then no plan is submitted twice, because only one
        launcher can create a launch's record.
        """
        earlier = tuple(vm for vm in self.compute.instances() if vm.name == plan.name)
        if earlier:
            return Submitted(machines=earlier)
        start = Provisioning(plan=plan, compute=self.compute, now=self.now_s, sleep=self._sleep, on_event=tell)
        return start.run()

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        if names is None:
            return self._ours()
        if len(names) == 1 and all(len(zones) == 1 for zones in names.values()):
            [(name, (zone,))] = names.items()
            return Listing(there=(self.compute.get(zone, name) or self._gone(name, (zone,)),))
        return self._search(names)

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        """Delete VMs first, because deleting a VM deletes its disk too; then the remaining disks."""
        disks = [item for item in machines if isinstance(item, Leftover) and item.kind != self.noun]
        vms = [(item.zone, item.name) for item in machines if item not in disks]
        removed = {
            (done.kind, done.zone, done.name): done
            for done in remove(self.compute, vms, now=self.now_s, sleep=self._sleep)
        }
        with ThreadPoolExecutor(AT_A_TIME) as workers:
            removed |= {(done.kind, done.zone, done.name): done for done in workers.map(self._remove_disk, disks)}
        kinds = [item.kind if isinstance(item, Leftover) else self.noun for item in machines]
        return [removed[kind, item.zone, item.name] for kind, item in zip(kinds, machines, strict=True)]

    def output(self, machine: Machine, start: int) -> Output:
        return self.compute.serial(machine.zone, machine.name, start)

    def phases(self, machine: Machine) -> Mapping[str, str]:
        published = self.compute.guest_attributes(machine.zone, machine.name)
        return {phase: published[phase] for phase in LaunchPhase if phase in published}

    def leftovers(self) -> Listing[Leftover]:
        """VMs stopped for good or past their limit by the cloud's clock; disks past their limit that no VM uses."""
        vms, disks = self._ours(), self.compute.disks()
        now_s = self.now_s()
        left_vms = [
            Leftover(kind=self.noun, name=vm.name, zone=vm.zone, why=why) for vm in vms if (why := _why_left(vm, now_s))
        ]
        left_disks = [
            Leftover(kind="disk", name=disk.name, zone=disk.zone, why=_past(disk.deadline_s, now_s))
            for disk in disks
            if NAME.fullmatch(disk.name) and not disk.users and _is_past(disk.deadline_s, now_s)
        ]
        silent = dict.fromkeys((*vms.unreachable, *disks.unreachable))
        return Listing(there=(*left_vms, *left_disks), unreachable=tuple(silent))

    # Look-ups.

    def _ours(self) -> Listing[Machine]:
        """Every VM of a launch, sorted by name. A VM that somebody else gave our label is left out."""
        listing = self.compute.instances()
        ours = sorted((vm for vm in listing if NAME.fullmatch(vm.name)), key=lambda vm: vm.name)
        return Listing(there=tuple(ours), unreachable=listing.unreachable)

    def _search(self, names: Mapping[str, Sequence[str]]) -> Listing[Machine]:
        listing = self.compute.instances()
        listed = {vm.name: vm for vm in listing}

        def search(name: str) -> tuple[Machine | None, Sequence[str]]:
            if name in listed:
                return listed[name], ()
            zones = names[name]
            unlisted = [zone for zone in zones or listing.unreachable if listing.may_have_more(zone)]
            vm, silent = self._look_in(unlisted, name)
            if vm or silent:
                return vm, silent
            try:
                return self._gone(name, zones), ()
            except UnreachableError:
                return None, zones

        with ThreadPoolExecutor(AT_A_TIME) as workers:
            answers = list(workers.map(search, names))
        silent_zones = dict.fromkeys(zone for _, silent in answers for zone in silent)
        return Listing(there=tuple(vm for vm, _ in answers if vm), unreachable=tuple(silent_zones))

    def _look_in(self, zones: Sequence[str], name: str) -> tuple[Instance | None, list[str]]:

        def ask(zone: str) -> Instance | str | None:
            if not ZONE.fullmatch(zone):  # `zone` is a region, or unknown
                return zone
            try:
                return self.compute.get(zone, name)
            except DeniedError:
                raise
            except ToolError:
                return zone

        with ThreadPoolExecutor(AT_A_TIME) as workers:
            answers = list(workers.map(ask, zones))
        there = next((answer for answer in answers if isinstance(answer, Instance)), None)
        return there, [] if there else [answer for answer in answers if isinstance(answer, str)]

    def _gone(self, name: str, zones: Sequence[str]) -> Machine:
        """A VM that no longer exists. With a single zone, also look up whether the cloud preempted the VM."""
        zone = zones[0] if len(zones) == 1 else ""
        preempted = bool(zone) and self.compute.preempted(zone, name)
        why = "the cloud took the spot VM away" if preempted else ""
        return Machine(name=name, zone=zone, condition=Condition.GONE, preempted=preempted, why=why)

    # Deletions.

    def _remove_disk(self, disk: Leftover) -> Removed:
        try:
            self.compute.delete_disk(disk.zone, disk.name)
        except RooflaunchError as error:
            return Removed(kind="disk", name=disk.name, zone=disk.zone, gone=False, reason=str(error))
        listing = self.compute.disks()
        there = any((other.zone, other.name) == (disk.zone, disk.name) for other in listing)
        if listing.may_have_more(disk.zone):
            return Removed.unanswered("disk", disk.name, [disk.zone])
        reason = "the disk still exists" if there else ""
        return Removed(kind="disk", name=disk.name, zone=disk.zone, gone=not there, reason=reason)


def _why_left(vm: Machine, now_s: float) -> str:
    """Reason why the VM is a leftover; empty if the VM is no leftover. The cloud never deletes a stopped VM.

    A VM that the cloud will restart is no leftover: after the restart, the VM saves its results and deletes itself.
    """
    if vm.may_start_again(now_s):
        return ""
    if vm.stopped_for_good(now_s):
        return f"the VM is {vm.status}, and the cloud never deletes a stopped VM"
    return _past(vm.deadline_s, now_s) if _is_past(vm.deadline_s, now_s) else ""


def _is_past(deadline_s: float | None, now_s: float) -> bool:
    return deadline_s is not None and now_s > deadline_s + GRACE_S


def _past(deadline_s: float | None, now_s: float) -> str:
    return f"its time limit ended {duration(now_s - (deadline_s or 0))} ago"
