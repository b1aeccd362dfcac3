"""Instances of a region behind the interface of `launcher.protocol.backend`.

First, how the instance of a plan is started, how the schedule that ends it is made, and how both are removed. After any
failure no instance of the launch is left: each failed, doubtful or interrupted request is followed by a search for the
launch's tag, which an instance has from its first moment.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from launcher.backends.aws.answers import (
    BUSY,
    CAPACITY,
    ENDS_TAG,
    LOST,
    QUOTA,
    TOOK_TOO_LONG,
    VOLUME_QUOTA,
    DeniedError,
    DoubtfulError,
    Instance,
    RefusedError,
    scope_of,
)
from launcher.backends.aws.plan import LATE_S, InstancePlan
from launcher.backends.aws.service import Ec2, schedule_name
from launcher.backends.zone_by_zone import SETTLE_S, Fault, Scope, ZoneByZone
from launcher.protocol.backend import ANYWHERE, Condition, Leftover, Listing, Machine, Output, Removed, Submitted, Tell
from launcher.protocol.records import NAME, utc
from workload.contract.errors import RooflaunchError, ToolError
from workload.contract.text import duration
from workload.storage.s3_errors import error_code
from workload.storage.store import UnreachableError

# Limit for an instance to run: a lack of machines is reported within seconds, and an instance runs within a minute.
RUNNING_S = 180.0
# How long a request without a clear answer, or refused for its new instance profile, is repeated with its token.
DOUBT_S = 30.0
REMOVE_S = 240.0
PAUSE_S = 3.0
# An instance that is still shutting down after this long is ended without waiting for its system.
HUNG_S = 120.0
STILL_THERE = "the VM still exists"


def guard(plan: InstancePlan, ec2: Ec2, instance: Instance) -> None:
    """Make the schedule that ends the instance, then set the tag for which the agent waits; nothing if it is set."""
    if instance.has_schedule:
        return
    began_s = ec2.now_s() if instance.created_s is None else instance.created_s
    ends_s = began_s + plan.limit_s + LATE_S
    ec2.schedule_end(instance.id, ends_s, plan.settings.schedule_role_arn)
    ec2.tag(instance.id, ENDS_TAG, utc(ends_s))


def remove(
    ec2: Ec2,
    wanted: Mapping[str, Collection[str]],
    *,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    limit_s: float = REMOVE_S,
    settle_s: float = 0.0,
) -> dict[str, str]:
    """End all instances of these names, repeatedly if needed, and delete their schedules; return why any is left.

    `wanted`: names, with the ids that are known already. A reason is empty once no instance of its name has existed
    for `settle_s` seconds. An instance that EC2 does not list counts as gone only if a look-up of its id confirms it.
    """
    removal = _Removal(ec2, wanted, now=now)
    end_s = now() + limit_s
    while removal.round(settle_s) and now() < end_s:
        sleep(PAUSE_S)
    return removal.reasons


class _Removal:
    """Removal of the instances of some launches, in rounds: each lists the instances and ends those that are left."""

    def __init__(self, ec2: Ec2, wanted: Mapping[str, Collection[str]], *, now: Callable[[], float]) -> None:
        self.reasons = dict.fromkeys(wanted, STILL_THERE)
        self._ec2, self._now = ec2, now
        self._ids = {name: set(ids) for name, ids in wanted.items()}
        self._open = set(wanted)
        self._asked_s: dict[str, float] = {}
        self._gone_s: dict[str, float] = {}

    def round(self, settle_s: float) -> bool:
        """List the instances and ask for the end of those that are left; return whether any is left."""
        try:
            live = self._live()
        except UnreachableError as error:
            self.reasons |= dict.fromkeys(self._open, str(error))
            return bool(self._open)
        except RooflaunchError as error:
            self.reasons |= dict.fromkeys(self._open, str(error))
            return False
        for name in list(self._open):
            self.reasons[name] = STILL_THERE
            if live[name]:
                self._gone_s.pop(name, None)
                self._end(name, live[name])
            elif self._now() - self._gone_s.setdefault(name, self._now()) >= settle_s:
                self._finish(name, "")
        return bool(self._open)

    def _live(self) -> dict[str, list[Instance]]:
        live: dict[str, list[Instance]] = {name: [] for name in self._open}
        seen = set[str]()
        for instance in self._ec2.instances(sorted(self._open)) if self._open else ():
            seen.add(instance.id)
            self._ids[instance.name].add(instance.id)
            if instance.condition is not Condition.GONE:
                live[instance.name].append(instance)
        for name in self._open:
            unlisted = [self._ec2.instance(one) for one in self._ids[name] - seen]
            live[name] += [one for one in unlisted if one and one.condition is not Condition.GONE]
        return live

    def _end(self, name: str, instances: Collection[Instance]) -> None:
        for instance in instances:
            asked_s = self._asked_s.setdefault(instance.id, self._now())
            hangs = self._now() - asked_s > HUNG_S
            if instance.status == "shutting-down" and not hangs:
                continue
            try:
                self._ec2.terminate(instance.id, at_once=hangs)
            except UnreachableError:
                continue  # repeated in the next round
            except RooflaunchError as error:
                self._finish(name, str(error))
                return

    def _finish(self, name: str, reason: str) -> None:
        self.reasons[name] = reason
        self._open.discard(name)
        if not reason:
            for instance_id in self._ids[name]:
                # `launch reap` deletes a schedule that stays here; its time comes in any case.
                with suppress(RooflaunchError):
                    self._ec2.delete_schedule(instance_id)


@dataclass(kw_only=True)
class Provisioning(ZoneByZone):
    """Attempts of one launch on EC2. The instance that `run` returns runs and has its schedule."""

    plan: InstancePlan
    ec2: Ec2
    _ids: set[str] = field(default_factory=set)
    # Whether an answer was lost in this zone, so that an instance of ours may exist although a later request failed.
    _is_doubtful: bool = False

    def _insert(self, zone: str) -> Instance | tuple[Fault, ...]:
        body = {**self.plan.body(zone), "UserData": self.plan.start_up_program()}
        self._may_live = True
        asked = self._ask(body)
        if not isinstance(asked, Instance):
            self._may_live = self._is_doubtful
            return (asked,)
        self._ids.add(asked.id)
        guard(self.plan, self.ec2, asked)
        return self._await_running(asked)

    def _ask(self, body: Mapping[str, Any]) -> Instance | Fault:
        """Ask for the instance; after an answer that tells nothing, repeat the request with the same token."""
        end_s = self.now() + DOUBT_S
        self._is_doubtful = False
        while True:
            try:
                return self.ec2.run_instance(body)
            except RefusedError as error:
                # A profile that was made a moment ago is not known everywhere yet.
                if "iaminstanceprofile" not in str(error).lower().replace(" ", "") or self.now() >= end_s:
                    return Fault(code=error.code, message=str(error).partition(f"{error.code}: ")[2])
            except DoubtfulError:
                self._is_doubtful = True
                if self.now() >= end_s:
                    raise  # `_try` then searches for what the requests may have made
            except UnreachableError as error:
                if self.now() >= end_s:
                    return Fault(code=BUSY, message=str(error))
            except RooflaunchError:
                self._may_live = self._is_doubtful
                raise
            self.sleep(PAUSE_S)

    def _await_running(self, asked: Instance) -> Instance | tuple[Fault, ...]:
        """Wait until the instance runs; return it, or the reason why it does not run.

        EC2 may not know an instance right after it has made it.
        """
        end_s = self.now() + self._patience_s(RUNNING_S)
        while True:
            seen = self.ec2.instance(asked.id)
            if seen is not None and seen.status == "running":
                return seen
            if seen is not None and seen.status != "pending":
                return (Fault(code=seen.reason or LOST, message=seen.why or f"the VM is {seen.status}"),)
            if self.now() >= end_s:
                return (Fault(code=TOOK_TOO_LONG, message=f"still {seen.status if seen else 'unknown'}"),)
            self.sleep(PAUSE_S)

    def _clear(self, zone: str, faults: tuple[Fault, ...]) -> None:
        del faults
        if self._may_live:
            self._removed(zone, settle_s=SETTLE_S if self._is_doubtful else 0.0)
        self._may_live = False

    def _remove(self, zone: str, *, settle_s: float) -> bool:
        del zone
        wanted = {self.plan.name: self._ids}
        return not remove(self.ec2, wanted, now=self.now, sleep=self.sleep, settle_s=settle_s)[self.plan.name]

    def _not_confirmed(self, zone: str) -> str:
        return f"VM '{self.plan.name}' in {zone} is not confirmed to be gone (its timer ends it at its time limit)"

    def _scope(self, fault: Fault) -> Scope:
        return scope_of(fault)

    def _fatal(self, zone: str, faults: tuple[Fault, ...]) -> RooflaunchError:
        reasons = "; ".join(f"{fault.code}: {fault.message}" for fault in faults)
        if any("iaminstanceprofile" in fault.message.lower().replace(" ", "") for fault in faults):
            profile = self.plan.settings.instance_profile
            return DeniedError(
                f"the instance profile '{profile}' cannot be used: {reasons}",
                hint="make it with infra/aws/, or name another one with --instance-profile",
            )
        return ToolError(f"EC2 did not make the VM in {zone}: {reasons}", hint="launch doctor aws")

    def _error_text(self, code: str, message: str) -> str:
        return code if code in CAPACITY and not code.startswith("Server.") else f"{code}: {message}"

    def _what_next(self) -> str:
        if any(tried.code in VOLUME_QUOTA for tried in self._tried):
            return "delete unused volumes, or ask for a larger quota of gp3 storage (service ebs); or another --region"
        if any(tried.code in QUOTA for tried in self._tried):
            return f"ask for more: {self.plan.quota_request}; or another --region"
        return f"{self._run_again()} or --region"


# --- instances as machines

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
            if ended.condition is Condition.GONE and ended.id not in self._without_schedule:
                self._without_schedule.add(ended.id)
                with suppress(RooflaunchError):  # `launch reap` deletes it later
                    self.ec2.delete_schedule(ended.id)
        best = max(live or listed, key=lambda seen: seen.created_s or 0.0, default=None)
        if best is not None:
            self._ids[name] = best.id
        return best

    def _live(self, machine: Machine) -> Instance | None:
        found = self._found(machine.name, self.ec2.instances([machine.name])) if NAME.fullmatch(machine.name) else None
        return found if found and found.condition is not Condition.GONE else None

    def _reason_left(self, kind: str, name: str) -> str:
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
