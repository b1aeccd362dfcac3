"""Instances of a region behind the interface of `launcher.protocol.backend`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import inf

from launcher.backends.aws.plan import LATE_S, InstancePlan
from launcher.backends.aws.provision import Provisioning, guard, remove
from launcher.backends.aws.resources import Instance
from launcher.backends.aws.service import Ec2, schedule_name
from launcher.protocol.backend import ANYWHERE, Condition, Leftover, Listing, Machine, Output, Removed, Submitted, Tell
from launcher.protocol.records import NAME
from workload.contract.errors import RooflaunchError
from workload.contract.text import duration
from workload.storage.s3_errors import error_code
from workload.storage.store import UnreachableError

# An instance counts as a leftover this long after its limit. Before, its timer, its schedule or its launcher ends it.
GRACE_S = LATE_S + 5 * 60
# EC2 shows the last 64 KB of a console. The end of the text that was read before, this many characters, is searched in
# the next answer: new text follows it.
OVERLAP = 500


class Ec2Machines:
    """The instances of one region. Durations are measured with the clock `monotonic`."""

    noun = "VM"

    def __init__(self, ec2: Ec2, *, sleep: Callable[[float], None], monotonic: Callable[[], float]) -> None:
        self.ec2 = ec2
        self._sleep, self._monotonic = sleep, monotonic
        self._ids: dict[str, str] = {}
        self._without_schedule: set[str] = set()
        self._printed: dict[str, str] = {}

    @property
    def place(self) -> str:
        return self.ec2.region

    @property
    def calls(self) -> Mapping[str, int]:
        return dict(self.ec2.calls)

    def now_s(self) -> float:
        return self.ec2.now_s()

    def submit(self, plan: InstancePlan, tell: Tell) -> Submitted:
        """Start the plan's instance. If one of that name exists, return it; make its schedule if missing."""
        earlier = [seen for seen in self.ec2.instances([plan.name]) if seen.condition is not Condition.GONE]
        for seen in earlier:
            guard(plan, self.ec2, seen)
        if earlier:
            return Submitted(machines=tuple(earlier))
        start = Provisioning(plan=plan, ec2=self.ec2, now=self._monotonic, sleep=self._sleep, on_event=tell)
        submitted = start.run()
        self._ids |= {made.name: made.id for made in submitted.machines if isinstance(made, Instance)}
        return submitted

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        """Look up machines. The schedule of a machine that has ended is deleted, once."""
        if names is None:
            try:
                return Listing(there=tuple(self._ours()))
            except UnreachableError as error:
                # The server answers, but not with a list. Without any answer the network is down.
                if not error_code(error.__cause__):
                    raise
                return Listing(unreachable=(ANYWHERE,))
        valid = [name for name in names if NAME.fullmatch(name)]
        listed = self.ec2.instances(valid) if valid else []
        there = {name: self._found(name, [seen for seen in listed if seen.name == name]) for name in valid}
        return Listing(there=tuple(there.get(name) or _gone(name, zones) for name, zones in names.items()))

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        kinds = [item.kind if isinstance(item, Leftover) else self.noun for item in machines]
        names = [item.name for item, kind in zip(machines, kinds, strict=True) if kind == self.noun]
        known = {name: [self._ids[name]] if name in self._ids else [] for name in names}
        reasons = remove(self.ec2, known, now=self._monotonic, sleep=self._sleep) if known else {}
        removed = []
        for item, kind in zip(machines, kinds, strict=True):
            reason = reasons[item.name] if kind == self.noun else self._reason_left(kind, item.name)
            removed.append(Removed(kind=kind, name=item.name, zone=item.zone, gone=not reason, reason=reason))
        return removed

    def output(self, machine: Machine, start: int) -> Output:
        """Console text from position `start` on; positions count all text that this object has read."""
        instance = self._live(machine)
        if instance is None:
            return Output(text="", next_start=start)
        text = self._printed[instance.id] = _grown(self._printed.get(instance.id, ""), self.ec2.console(instance.id))
        return Output(text=text[start:], next_start=max(start, len(text)))

    def phases(self, machine: Machine) -> Mapping[str, str]:
        """Always empty: boot.py writes the phases into the store from its first second on."""
        del machine
        return {}

    def leftovers(self) -> Listing[Leftover]:
        """Instances that are stopped or past their limit; disks that no instance uses; schedules without instance."""
        scheduled = self.ec2.scheduled()
        ours, now_s = self._ours(), self.now_s()
        vms = ((vm, _why_left(vm, now_s)) for vm in ours)
        disks = [disk for disk in self.ec2.free_volumes() if now_s > (disk.deadline_s or -inf) + GRACE_S]
        left = [Leftover(kind=self.noun, name=vm.name, zone=vm.zone, why=why) for vm, why in vms if why]
        left += [Leftover(kind="disk", name=disk.id, zone=disk.zone, why="no VM uses it") for disk in disks]
        live = {vm.id for vm in ours}
        for gone in [one for one in scheduled if one not in live]:
            if (seen := self.ec2.instance(gone)) and seen.condition is not Condition.GONE:
                continue
            why = f"its VM {gone} is gone"
            left.append(Leftover(kind="schedule", name=schedule_name(gone), zone=self.ec2.region, why=why))
        return Listing(there=tuple(left))

    # Look-ups.

    def _ours(self) -> list[Instance]:
        """Instances of launches that are not gone, sorted by name. Our tag with a foreign name does not count."""
        there = (vm for vm in self.ec2.instances() if vm.condition is not Condition.GONE and NAME.fullmatch(vm.name))
        return sorted(there, key=lambda vm: vm.name)

    def _found(self, name: str, listed: Collection[Instance]) -> Instance | None:
        """The instance of this name: one that exists, else the last one that ended; None if EC2 knows none."""
        known = self._ids.get(name)
        if not listed and known:
            # A list may lag behind; an id that was seen once and is unknown now is gone.
            listed = [seen] if (seen := self.ec2.instance(known)) else []
        live = [seen for seen in listed if seen.condition is not Condition.GONE]
        for ended in listed:
            if ended.condition is Condition.GONE:
                self._drop_schedule(ended.id)
        best = max(live or listed, key=lambda seen: seen.created_s or 0.0, default=None)
        if best is not None:
            self._ids[name] = best.id
        return best

    def _live(self, machine: Machine) -> Instance | None:
        found = self._found(machine.name, self.ec2.instances([machine.name])) if NAME.fullmatch(machine.name) else None
        return found if found and found.condition is not Condition.GONE else None

    def _drop_schedule(self, instance_id: str) -> None:
        if instance_id not in self._without_schedule:
            self._without_schedule.add(instance_id)
            with suppress(RooflaunchError):  # `launch reap` deletes it later
                self.ec2.delete_schedule(instance_id)

    def _reason_left(self, kind: str, name: str) -> str:
        """Delete a disk or a schedule; return why it is still there, or an empty text."""
        try:
            if kind == "disk":
                self.ec2.delete_volume(name)
                there = any(disk.id == name for disk in self.ec2.free_volumes())
            else:
                instance_id = name.removeprefix("rooflaunch-")
                self.ec2.delete_schedule(instance_id)
                there = instance_id in self.ec2.scheduled()
        except RooflaunchError as error:
            return str(error)
        return f"the {kind} still exists" if there else ""


def _gone(name: str, zones: Sequence[str]) -> Machine:
    return Machine(name=name, zone=zones[0] if len(zones) == 1 else "", condition=Condition.GONE)


def _why_left(vm: Machine, now_s: float) -> str:
    """Reason why the instance is a leftover; empty if it is none."""
    if vm.condition is Condition.STOPPED:
        return f"the VM is {vm.status}, and its disk costs money"
    if vm.deadline_s is not None and now_s > vm.deadline_s + GRACE_S:
        return f"its time limit ended {duration(now_s - vm.deadline_s)} ago"
    return ""


def _grown(before: str, window: str) -> str:
    """Text of a console: `before`, which was read earlier, continued by the new part of `window`, its latest text."""
    tail = before[-OVERLAP:]
    end = window.rfind(tail) + len(tail) if tail and tail in window else 0
    return before + window[end:]
