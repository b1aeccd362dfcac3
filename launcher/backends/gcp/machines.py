"""VMs of a project behind the interface of `launcher.protocol.backend`."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.backends.gcp.compute import ZONE, Compute
from launcher.backends.gcp.planned_vm import VmPlan
from launcher.backends.gcp.provision import PAUSE_S, REMOVE_S, Provisioning
from launcher.backends.gcp.refusals import DeniedError
from launcher.backends.gcp.resources import Instance, VmDisk
from launcher.protocol.backend import Condition, Leftover, Listing, Machine, Output, Removed, Submitted, Tell
from launcher.protocol.records import NAME, LaunchPhase
from workload.contract.errors import RooflaunchError, ToolError
from workload.contract.text import duration
from workload.storage.store import UnreachableError

AT_A_TIME = 8
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
        removed = {(done.kind, done.zone, done.name): done for done in self._remove_vms(vms)}
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
            if _is_left(disk, now_s)
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
        """Look up VMs by name in one list; for a VM that the list may lack, ask each zone where the VM may be."""
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
        """Look for the VM in each of these zones; return the VM, and the zones without an answer if it is not found."""

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

    def _remove_vms(self, vms: Sequence[tuple[str, str]]) -> list[Removed]:
        """Delete these VMs (zone, name).

        All deletions are requested before any is waited for, since each takes minutes.

        Each round reads one list of all VMs. Lists may be incomplete, so a VM that is not listed counts as gone only
        after a separate request has confirmed that. If a VM is listed but not STOPPING, its deletion was lost or
        failed, and is requested again.
        """
        refused: dict[tuple[str, str], str] = {}
        gone: dict[tuple[str, str], bool | None] = {}
        listed: dict[tuple[str, str], str] = {}
        end_s = self.now_s() + REMOVE_S if vms else 0.0
        with ThreadPoolExecutor(AT_A_TIME) as workers:
            while not all(gone.get(vm) or vm in refused for vm in vms):
                remaining = [vm for vm in vms if not gone.get(vm) and vm not in refused]
                undeleted = [vm for vm in remaining if listed.get(vm) != "STOPPING"]
                reasons = zip(undeleted, workers.map(self._request_deletion, undeleted), strict=True)
                refused |= {vm: why for vm, why in reasons if why}
                try:
                    listed = {(vm.zone, vm.name): vm.status for vm in self.compute.instances()}
                except ToolError:
                    listed = {}  # without the list, `_is_gone` looks up each VM
                missing = [vm for vm in remaining if vm not in listed and vm not in refused]
                answers = workers.map(self._is_gone, missing)
                gone |= dict.fromkeys(remaining, False) | dict(zip(missing, answers, strict=True))
                if all(gone[vm] or vm in refused for vm in vms) or self.now_s() >= end_s:
                    break
                self._sleep(PAUSE_S)
        return [_removed_vm(vm, gone[vm], refused.get(vm, "the VM still exists")) for vm in vms]

    def _request_deletion(self, vm: tuple[str, str]) -> str:
        """Request the deletion of a VM. Returns the reason if the cloud refuses for good, else an empty text."""
        try:
            self.compute.delete(*vm)
        except RooflaunchError as error:
            return str(error) if isinstance(error, DeniedError) or not isinstance(error, ToolError) else ""
        return ""

    def _is_gone(self, vm: tuple[str, str]) -> bool | None:
        """Whether the VM is gone; None if its zone does not answer."""
        try:
            return self.compute.get(*vm) is None
        except ToolError:
            return None

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


def _removed_vm(vm: tuple[str, str], gone: bool | None, reason: str) -> Removed:
    zone, name = vm
    if gone is None:
        return Removed.unanswered("VM", name, [zone])
    return Removed(kind="VM", name=name, zone=zone, gone=gone, reason="" if gone else reason)


def _why_left(vm: Machine, now_s: float) -> str:
    """Reason why the VM is a leftover; empty if the VM is no leftover. The cloud never deletes a stopped VM.

    A VM that the cloud will restart is no leftover: after the restart, the VM saves its results and deletes itself.
    """
    if vm.may_start_again(now_s):
        return ""
    if vm.stopped_for_good(now_s):
        return f"the VM is {vm.status}, and the cloud never deletes a stopped VM"
    is_past = vm.deadline_s is not None and now_s > vm.deadline_s + GRACE_S
    return _past(vm.deadline_s, now_s) if is_past else ""


def _is_left(disk: VmDisk, now_s: float) -> bool:
    is_ours = NAME.fullmatch(disk.name) is not None
    return is_ours and not disk.users and disk.deadline_s is not None and now_s > disk.deadline_s + GRACE_S


def _past(deadline_s: float | None, now_s: float) -> str:
    return f"its time limit ended {duration(now_s - (deadline_s or 0))} ago"
