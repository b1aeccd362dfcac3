"""The VMs of a project, as every backend shows its machines: Compute Engine behind `launcher.backends.door`."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.backends.door import Condition, Leftover, Listing, Machine, Output, Removed, Submitted, Tell
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.plan import Plan
from launcher.backends.gcp.provision import COMING, provision
from launcher.backends.gcp.resources import RESTART_S, STOPPED, Instance, epoch_s
from launcher.jobs import cleanup
from launcher.jobs.records import Phase
from workload.storage.store import UnreachableError

AT_A_TIME = 8


class ComputeMachines:
    """The VMs of one project; `calls` counts what is asked through this object alone."""

    noun = "VM"

    def __init__(self, compute: Compute, *, sleep: Callable[[float], None]) -> None:
        self._compute = compute.counted()
        self._sleep = sleep

    @property
    def place(self) -> str:
        return self._compute.project

    @property
    def calls(self) -> Mapping[str, int]:
        return {f"compute.{name}": count for name, count in self._compute.calls.items()}

    def now_s(self) -> float:
        return self._compute.now_s()

    def submit(self, plan: Plan, tell: Tell) -> Submitted:
        """A running VM for the plan, in the first zone that has it; the VM of that name if there is one already.

        Of a zone that does not answer nothing is known: that no plan is submitted twice, a launch's record sees to,
        which only one launcher can make.
        """
        earlier = [vm for vm in self._compute.instances() if vm.name == plan.name]
        if earlier:
            return Submitted(machines=tuple(map(machine, earlier)))
        provisioned = provision(plan, self._compute, now=self.now_s, sleep=self._sleep, on_event=tell)
        return Submitted(machines=(machine(provisioned.instance),), tried=provisioned.tried)

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        if names is None:
            listing = cleanup.running(self._compute)
            return Listing(there=tuple(map(machine, listing)), unreachable=listing.unreachable)
        if len(names) == 1 and all(len(zones) == 1 for zones in names.values()):
            [(name, (zone,))] = names.items()
            vm = self._compute.get(zone, name)
            return Listing(there=(machine(vm) if vm else self._gone(name, (zone,)),))
        return self._look_for(names)

    def _look_for(self, names: Mapping[str, Sequence[str]]) -> Listing[Machine]:
        """By one list; what that may lack is asked of each zone where it may be."""
        listing = self._compute.instances()
        listed = {vm.name: vm for vm in listing}

        def search(name: str) -> tuple[Machine | None, Sequence[str]]:
            if name in listed:
                return machine(listed[name]), ()
            zones = names[name]
            vm, silent = cleanup.look_in(
                self._compute, [zone for zone in zones or listing.unreachable if listing.lacks(zone)], name
            )
            if vm or silent:
                return machine(vm) if vm else None, silent
            try:
                return self._gone(name, zones), ()
            except UnreachableError:
                return None, zones

        with ThreadPoolExecutor(AT_A_TIME) as workers:
            answers = list(workers.map(search, names))
        silent_zones = dict.fromkeys(zone for _, silent in answers for zone in silent)
        return Listing(there=tuple(vm for vm, _ in answers if vm), unreachable=tuple(silent_zones))

    def _gone(self, name: str, zones: Sequence[str]) -> Machine:
        """A VM that is not there; why is asked where its zone is known."""
        zone = zones[0] if len(zones) == 1 else ""
        preempted = bool(zone) and self._compute.preempted(zone, name)
        why = "the cloud took the spot VM back" if preempted else ""
        return Machine(name=name, zone=zone, condition=Condition.GONE, preempted=preempted, why=why)

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        wanted = [
            item if isinstance(item, Leftover) else Leftover(kind=self.noun, name=item.name, zone=item.zone, why="")
            for item in machines
        ]
        removed = {
            (done.kind, done.zone, done.name): done
            for done in cleanup.reap(wanted, self._compute, now=self.now_s, sleep=self._sleep)
        }
        return [removed[item.kind, item.zone, item.name] for item in wanted]

    def output(self, machine: Machine, start: int) -> Output:
        return self._compute.serial(machine.zone, machine.name, start)

    def phases(self, machine: Machine) -> Mapping[str, str]:
        published = self._compute.guest_attributes(machine.zone, machine.name)
        return {phase: published[phase] for phase in Phase if phase in published}

    def leftovers(self) -> Listing[Leftover]:
        return cleanup.leftovers(self._compute)


def machine(vm: Instance) -> Machine:
    """The VM in the door's words."""
    repaired = vm.status == "REPAIRING" and vm.restarts
    restarts_until_s = None if vm.stopped_s is None else vm.stopped_s + RESTART_S
    if repaired:  # it is started again, until its limit at the latest
        restarts_until_s = vm.deadline_s
    if vm.status in STOPPED or repaired:
        condition = Condition.STOPPED
    else:
        condition = Condition.STARTING if vm.status in COMING else Condition.RUNNING
    return Machine(
        name=vm.name,
        zone=vm.zone,
        condition=condition,
        status=vm.status,
        created_s=epoch_s(vm.created_at),
        deadline_s=vm.deadline_s,
        restarts=vm.restarts,
        restarts_until_s=restarts_until_s,
    )
