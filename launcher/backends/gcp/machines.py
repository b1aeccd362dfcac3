"""VMs of a project behind the interface of `launcher.protocol.backend`."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.backends.gcp.compute import ZONE, Compute
from launcher.backends.gcp.plan import VmPlan
from launcher.backends.gcp.provision import AT_A_TIME, Provisioning, remove
from launcher.backends.gcp.refusals import DeniedError
from launcher.backends.gcp.resources import Instance
from launcher.protocol.backend import Condition, Leftover, Listing, Machine, Output, Removed, Submitted, Tell
from launcher.protocol.records import NAME, LaunchPhase
from workload.contract.errors import RooflaunchError, ToolError
from workload.contract.text import duration
from workload.storage.store import UnreachableError

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
