"""Start the VM of a plan, trying zone after zone within a time budget; and delete a VM and confirm the deletion.

Quotas are read first, which takes under a second; learning them from a failed insert takes 30 s. After any failure no
VM of the launch is left: each failed or interrupted insert is followed by a look-up of the VM's name.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.planned_vm import VmPlan
from launcher.backends.gcp.refusals import (
    NOT_IN_ZONE,
    QUOTA_EXCEEDED,
    STOCKOUT,
    AlreadyThereError,
    DeniedError,
    RefusedError,
    refused_for_good,
)
from launcher.backends.gcp.resources import STARTING, Instance, Operation, OperationFault, Quota
from launcher.protocol.backend import Submitted, Tried
from launcher.protocol.records import region_of
from workload.contract.errors import NoCapacityError, RooflaunchError, ToolError
from workload.storage.store import UnreachableError

BUDGET_S = 600.0
# Limit for an insert: a lack of machines is reported within 30 s; a VM runs within a minute.
OPERATION_S = 180.0
# Seconds between look-ups of the VM itself while its operation is under way.
LOOK_EVERY_S = 10.0
# When the time budget ends, an operation that is under way has at least so many seconds left.
LAST_CHANCE_S = 30.0
REMOVE_S = 180.0
DELETION_S = 60.0
PAUSE_S = 3.0
# After an insert whose answer was lost, check this long that no VM exists: the insert may still create one.
SETTLE_S = 9.0
GLOBAL_QUOTA = "GPUS_ALL_REGIONS"
RUNNING = "RUNNING"

# Our own error codes, in addition to Compute Engine's.
TOOK_TOO_LONG = "TOOK_TOO_LONG"
PREEMPTED = "PREEMPTED"
DELETED = "DELETED"
BUSY = ("HTTP_429", "HTTP_503")
NOT_FOUND = "RESOURCE_NOT_FOUND"
_ZONE_CODES = (STOCKOUT, "VM_MIN_COUNT_NOT_REACHED", NOT_FOUND, NOT_IN_ZONE, TOOK_TOO_LONG, PREEMPTED, *BUSY)
# Resources that, if missing, are missing in every zone.
_MISSING_EVERYWHERE = re.compile(r"serviceaccount|service account|/images/|/networks/|@", re.IGNORECASE)
_EVERYWHERE = re.compile(r"globally|ALL[_-]REGIONS", re.IGNORECASE)


class Scope(StrEnum):
    """Part of the cloud in which a failure rules out further attempts. `fatal`: no attempt can succeed anywhere."""

    ZONE = "zone"
    REGION = "region"
    PROJECT = "project"
    FATAL = "fatal"


def provision(
    plan: VmPlan,
    compute: Compute,
    *,
    budget_s: float = BUDGET_S,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    on_event: Callable[[str], None],
) -> Submitted:
    """Start the plan's VM in the first zone with a free machine; return the VM once it runs.

    `budget_s`: no insert starts later than this many seconds after the beginning. Raises `NoCapacityError`,
    which names every attempt, and `ToolError` for other errors. After an error or an interrupt no VM is left.
    """
    return _Provisioning(plan, compute, budget_s=budget_s, now=now, sleep=sleep, on_event=on_event).run()


def remove(
    compute: Compute,
    zone: str,
    name: str,
    *,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    limit_s: float = REMOVE_S,
    settle_s: float = 0.0,
) -> bool:
    """Delete a VM, repeatedly if needed; return True once no VM of its name has existed for `settle_s` seconds.

    Returns False after `limit_s` seconds.

    Raises `DeniedError` if the cloud refuses for good.
    """
    end_s = now() + limit_s
    gone_s: float | None = None
    while True:
        had_vm, gone = _delete(compute, zone, name, end_s - now())
        if had_vm or not gone:
            gone_s = None
        if gone:
            gone_s = now() if gone_s is None else gone_s
            if now() - gone_s >= settle_s:
                return True
        if now() >= end_s:
            return False
        sleep(PAUSE_S)


def _delete(compute: Compute, zone: str, name: str, wait_s: float) -> tuple[bool, bool]:
    """Request the deletion of a VM and wait for it, at most `wait_s` and `DELETION_S` seconds.

    Returns whether there was a VM, and whether there is none now. After an error that may pass, the answer is
    (True, False), so that the caller repeats the request. Raises `DeniedError`.
    """
    try:
        operation = compute.delete(zone, name)
        if operation is not None:
            compute.wait(operation, max(min(wait_s, DELETION_S), 1.0))
        return operation is not None, compute.get(zone, name) is None
    except DeniedError:
        raise
    except ToolError:
        return True, False


class _Provisioning:
    """Attempts of one launch to start its VM, zone by zone, with the results so far."""

    def __init__(
        self,
        plan: VmPlan,
        compute: Compute,
        *,
        budget_s: float,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        on_event: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._name = plan.request.name
        self._compute = compute
        self._now, self._sleep, self._on_event = now, sleep, on_event
        self._end_s = now() + budget_s
        self._budget_s = budget_s
        self._tried: list[Tried] = []
        self._done: list[str] = []
        self._blocked: set[str] = set()
        self._with_known_quota: set[str] = set()
        self._suggested: list[str] = []
        self._may_live = False

    def run(self) -> Submitted:
        if not self._has_quota_in_project():
            raise self._no_capacity()
        while (zone := self._next_zone()) is not None and self._now() < self._end_s:
            if not self._has_quota_in(region_of(zone)):
                continue
            self._done.append(zone)
            instance = self._try(zone)
            if instance is not None:
                return Submitted(machines=(instance,), tried=tuple(self._tried))
        raise self._no_capacity()

    # The order of zones.

    def _next_zone(self) -> str | None:
        """Next zone to try; None if no zone is left.

        Order: requested zones, zones that the cloud suggested, zones in regions that were tried, other zones.
        """
        near = {region_of(zone) for zone in self._done}

        def rank(zone: str) -> tuple[int, int]:
            if zone in self._plan.options.zones:
                return 0, 0
            if zone in self._suggested:
                return 1, self._suggested.index(zone)
            return (2 if region_of(zone) in near else 3), 0

        return min(self._open_zones(), key=rank, default=None)

    def _open_zones(self) -> list[str]:
        """Zones that may still be tried."""
        return [zone for zone in self._reach() if zone not in self._done and region_of(zone) not in self._blocked]

    def _reach(self) -> list[str]:
        """Zones of the plan, then zones that the cloud has suggested although our table lacks them.

        Suggested zones are left out without `fallback`, and if the plan has a cost limit or a subnetwork.
        """
        plan = self._plan
        free = plan.options.fallback and plan.options.max_cost_usd is None and not plan.settings.subnetwork
        return list(dict.fromkeys([*plan.zones, *(self._suggested if free else ())]))

    # Quotas.

    def _has_quota_in_project(self) -> bool:
        quota = self._compute.project_quotas().get(GLOBAL_QUOTA) if self._plan.request.gpu_count else None
        return self._fits("all regions", {GLOBAL_QUOTA: quota})

    def _has_quota_in(self, region: str) -> bool:
        """Return whether the region's quotas may have room for the VM; if not, block all zones of the region.

        The quotas are read once per region. If the cloud does not report a quota, the result is True.
        """
        request = self._plan.request
        if region in self._with_known_quota or not request.gpu_count:
            return region not in self._blocked
        self._with_known_quota.add(region)
        quotas = self._compute.region_quotas(region)
        metrics = self._plan.gpu.quota_metrics(spot=request.spot, limit_s=request.limit_s)
        allowed = self._fits(region, {metric: quotas.get(metric) for metric in metrics})
        if not allowed:
            self._blocked.add(region)
        return allowed

    def _fits(self, where: str, quotas: Mapping[str, Quota | None]) -> bool:
        """Whether one of `quotas` may have room for the VM; if not, report the quotas' limits and usage to the user."""
        wanted = self._plan.request.gpu_count
        known = {metric: quota for metric, quota in quotas.items() if quota is not None}
        if len(known) < len(quotas) or any(quota.remaining >= wanted for quota in known.values()):
            return True
        figures = "; ".join(f"{metric} is {quota.limit:g}, {quota.usage:g} in use" for metric, quota in known.items())
        self._note(where, (OperationFault(code=QUOTA_EXCEEDED, message=f"{figures}, {wanted} wanted"),), self._now())
        return False

    # One zone.

    def _try(self, zone: str) -> Instance | None:
        """Start the VM in this zone and return it once it runs. If the attempt fails, remove the VM and return None."""
        asked_s = self._now()
        self._on_event(f"{zone}: asking for {self._what()}")
        try:
            result = self._insert(zone)
            if isinstance(result, Instance):
                self._on_event(f"{zone}: the VM runs")
                return result
            self._clear(zone, result)
        except BaseException:
            if self._may_live:
                self._abandon(zone)
            raise
        self._note(zone, result, asked_s)
        self._learn(zone, result)
        return None

    def _insert(self, zone: str) -> Instance | tuple[OperationFault, ...]:
        request_id = uuid.uuid4().hex
        body = self._plan.body(zone, request_id=request_id)
        self._may_live = True
        try:
            operation = self._compute.insert(zone, body, request_id)
        except RefusedError as error:
            return error.faults
        except AlreadyThereError:
            self._require_ours(zone, request_id)
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
        end_s = self._now() + self._patience_s()
        while (left_s := end_s - self._now()) > 0:
            faults = self._compute.wait(operation, min(LOOK_EVERY_S, left_s))
            if faults is not None:
                return faults
            vm = self._compute.get(operation.zone, self._name)
            if vm is not None and vm.status == RUNNING:
                return ()
        return None

    def _require_ours(self, zone: str, request_id: str) -> None:
        """Raise `ToolError` if the VM of this name belongs to another launch, and must not be deleted.

        Called after a 409. If the VM is ours, the first insert worked, and the 409 answers a repetition.
        """
        vm = self._compute.get(zone, self._name)
        if vm is not None and vm.request_id != request_id:
            self._may_live = False
            raise ToolError(
                f"zone {zone} has another VM '{self._name}', which does not belong to this launch", hint="launch again"
            )

    def _await_running(self, zone: str, *, limit_s: float | None = None) -> Instance | tuple[OperationFault, ...]:
        """Wait until the VM runs; return the VM, or the reason why it does not run."""
        end_s = self._now() + (self._patience_s() if limit_s is None else limit_s)
        while (vm := self._compute.get(zone, self._name)) is not None and vm.status in STARTING:
            if self._now() >= end_s:
                return (OperationFault(code=TOOK_TOO_LONG, message=f"still {vm.status}"),)
            self._sleep(PAUSE_S)
        if vm is not None and vm.status == RUNNING:
            return vm
        status = "gone" if vm is None else vm.status
        return (self._lost(zone, f"the VM is {status} right after its insert"),)

    def _lost(self, zone: str, message: str) -> OperationFault:
        """Fault for a VM that vanished: preempted if the cloud says so or the VM is spot, else deleted by somebody."""
        if self._compute.preempted(zone, self._name) or self._plan.request.spot:
            return OperationFault(code=PREEMPTED, message=message)
        return OperationFault(code=DELETED, message=message)

    def _patience_s(self) -> float:
        return min(OPERATION_S, max(self._end_s - self._now(), LAST_CHANCE_S))

    # After a failure.

    def _clear(self, zone: str, faults: tuple[OperationFault, ...]) -> None:
        """Remove a VM that an attempt may have left: an operation can fail although its VM exists."""
        uncertain = any(fault.code in BUSY for fault in faults)
        if not uncertain and self._compute.get(zone, self._name) is None:
            return
        if not self._remove(zone, settle_s=SETTLE_S if uncertain else 0.0):
            self._may_live = False  # `_try` need not repeat the removal, which was tried just now
            raise ToolError(self._not_confirmed(zone), hint=f"launch down {self._name}")

    def _abandon(self, zone: str) -> None:
        """Remove the VM that an insert may have made.

        Errors of the removal are only reported to the user, because the caller is already raising an exception.
        """
        self._on_event(f"{zone}: checking that no VM is left")
        try:
            gone = self._remove(zone, settle_s=SETTLE_S)
        except RooflaunchError as error:
            self._on_event(str(error))
            gone = False
        if not gone:
            self._on_event(f"{self._not_confirmed(zone)}: launch down {self._name}")

    def _remove(self, zone: str, *, settle_s: float) -> bool:
        return remove(self._compute, zone, self._name, now=self._now, sleep=self._sleep, settle_s=settle_s)

    def _not_confirmed(self, zone: str) -> str:
        return f"VM '{self._name}' in {zone} is not confirmed to be gone (the cloud deletes it at its time limit)"

    def _learn(self, zone: str, faults: tuple[OperationFault, ...]) -> None:
        """Learn from a failure which zones the cloud suggests and which would fail; raise if none can succeed."""
        self._suggested += [zone for fault in faults for zone in fault.zones_available if zone not in self._suggested]
        match reach(faults):
            case Scope.ZONE:
                return
            case Scope.REGION:
                self._blocked.add(region_of(zone))
            case Scope.PROJECT:
                raise self._no_capacity()
            case Scope.FATAL:
                reasons = "; ".join(f"{fault.code}: {fault.message}" for fault in faults)
                if refused := refused_for_good(reasons):
                    raise refused
                raise ToolError(f"Compute Engine did not make the VM in {zone}: {reasons}", hint="launch doctor gcp")

    def _note(self, where: str, faults: tuple[OperationFault, ...], asked_s: float) -> None:
        fault = faults[0]
        took_s = self._now() - asked_s
        self._tried.append(Tried(zone=where, code=fault.code, message=fault.message, seconds=took_s))
        self._on_event(f"{where}: {_error_text(fault.code, fault.message)}")

    # Messages.

    def _what(self) -> str:
        request = self._plan.request
        count = f"{request.gpu_count} x " if request.gpu_count > 1 else ""
        return f"{request.machine_type} with {count}{self._plan.gpu.title}{' (spot)' if request.spot else ''}"

    def _no_capacity(self) -> NoCapacityError:
        lines = [
            f"  {tried.zone}: {_error_text(tried.code, tried.message)} ({tried.seconds:.0f} s)" for tried in self._tried
        ]
        untried = self._open_zones()
        if untried and self._now() >= self._end_s:
            lines.append(f"  not tried, as {self._budget_s:g} s have passed: {', '.join(untried)}")
        message = "\n".join([f"no {self._what()} is free; tried:", *lines])
        return NoCapacityError(message, hint=self._what_next())

    def _what_next(self) -> str:
        """Hint for the user: request quota, name another subnetwork, or run again later or with another GPU."""
        if all(tried.code.startswith("QUOTA") for tried in self._tried):
            page = f"https://console.cloud.google.com/iam-admin/quotas?project={self._plan.settings.project}"
            return f"ask for more at {page}; launch doctor gcp shows what each region has"
        if all("/subnetworks/" in tried.message for tried in self._tried):
            name = self._plan.settings.subnetwork
            return (
                f"no region has a subnetwork '{name}': set another --subnetwork, or add regions to `subnets` in infra/"
            )
        other = "without --spot" if self._plan.request.spot else "with --spot"
        wider = "" if self._plan.options.fallback else ", without --no-fallback"
        return f"run again later{wider}, {other}, or with another --gpu"


def reach(faults: Iterable[OperationFault]) -> Scope:
    """Widest scope in which these errors rule out further attempts. An unknown code counts as fatal."""
    scopes = {_scope(fault) for fault in faults}
    return next(scope for scope in (Scope.FATAL, Scope.PROJECT, Scope.REGION, Scope.ZONE) if scope in scopes)


def _scope(fault: OperationFault) -> Scope:
    if fault.code.startswith("QUOTA"):
        return _quota_scope(fault)
    if fault.code == NOT_FOUND and "/subnetworks/" in fault.message:
        return Scope.REGION
    if fault.code == NOT_FOUND and _MISSING_EVERYWHERE.search(fault.message):
        return Scope.FATAL
    return Scope.ZONE if fault.code.startswith(_ZONE_CODES) else Scope.FATAL


def _quota_scope(fault: OperationFault) -> Scope:
    if fault.quota_dimensions:
        return Scope.REGION if "region" in fault.quota_dimensions else Scope.PROJECT
    return Scope.PROJECT if _EVERYWHERE.search(fault.message) else Scope.REGION


def _error_text(code: str, message: str) -> str:
    """Error code, with its message unless the code explains itself."""
    plain = code.startswith((STOCKOUT, NOT_IN_ZONE))
    return code if plain else f"{code}: {message}"
