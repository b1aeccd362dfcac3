"""Launches on a cluster, which are elements of job arrays, behind the interface that every backend has."""

import io
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from launcher.backends.slurm.login_node import Cluster, LoginNode
from launcher.backends.slurm.plan import SlurmPlan
from launcher.backends.slurm.refusals import explained
from launcher.backends.slurm.script import job_script
from launcher.backends.slurm.states import state_of
from launcher.protocol.backend import (
    ANYWHERE,
    Condition,
    Leftover,
    Listing,
    Machine,
    Output,
    Removed,
    Submitted,
    Tell,
)
from launcher.protocol.records import NAME
from workload.contract.errors import ToolError
from workload.contract.text import printable
from workload.storage.ssh import Connection, Login
from workload.storage.store import UnreachableError

# Limit for stopping jobs: Slurm waits for KillWait (30 s unless the site sets another) and for its epilog.
STOP_LIMIT_S = 90.0
# Limit for submitting: a busy controller takes a while for an array of a thousand elements.
SUBMIT_LIMIT_S = 120.0
# Delay after which a job past its limit is a leftover: a site may configure Slurm to end jobs late.
LATE_S = 600.0
# Slurm's default of MaxArraySize: https://slurm.schedmd.com/slurm.conf.html#OPT_MaxArraySize
USUAL_ARRAY_SIZE = 1001


class SlurmMachines:
    """Elements of job arrays of this user on one cluster."""

    noun = "job"

    def __init__(
        self,
        cluster: Cluster,
        *,
        connect: Callable[[Login], Connection] = Connection,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node = LoginNode(cluster, connect=connect, monotonic=monotonic)

    @property
    def place(self) -> str:
        return self.node.cluster.place

    @property
    def calls(self) -> Mapping[str, int]:
        return {f"slurm.{name}": count for name, count in self.node.calls.items()}

    def now_s(self) -> float:
        return self.node.now_s()

    def submit(self, plan: SlurmPlan, tell: Tell) -> Submitted:
        """Submit an array of one element."""
        return self.submit_together([plan], tell)

    def submit_together(self, plans: Sequence[SlurmPlan], tell: Tell) -> Submitted:
        """Submit all plans of one place in one array, or more if the cluster's limit requires it; machines in order.

        Submitting again returns the elements that exist.
        """
        tell(f"submitting to Slurm on {self.place}")
        most = max(1, (plans[0].most_elements or USUAL_ARRAY_SIZE) - 1)
        for start in range(0, len(plans), most):
            self._submit_array(plans[start : start + most])
        names = [plan.request.name for plan in plans]
        known = {machine.name: machine for machine in self.look(dict.fromkeys(names, ()))}
        waiting = Machine(name="", zone=plans[0].zone, condition=Condition.STARTING, status="pending", queued=True)
        there = (known.get(name) for name in names)
        return Submitted(
            machines=tuple(
                # Slurm may show a new job a moment late.
                replace(waiting, name=name) if machine is None or not machine.status else machine
                for name, machine in zip(names, there, strict=True)
            )
        )

    def _submit_array(self, plans: Sequence[SlurmPlan]) -> None:
        plan, requests = plans[0], [plan.request for plan in plans]
        assert plan.node is not None
        words = [f"--dependency=afterok:{plan.after}", "--kill-on-invalid-dep=yes"] if plan.after else []
        answer = self.node.ask(
            "submit",
            within_s=SUBMIT_LIMIT_S,
            array=requests[0].name,
            names=[request.name for request in requests],
            script=job_script(requests, plan.options, plan.node, gres=plan.gres),
            words=words,
            check=plan.after,
        )
        if "refused" in answer:
            raise explained(answer["refused"], self.place)

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        wanted = None if names is None else [name for name in names if NAME.fullmatch(name)]
        try:
            rows = self.node.ask("look", names=wanted)["jobs"]
        except UnreachableError:
            if names is None:
                return Listing(unreachable=(ANYWHERE,))
            raise
        there = [_machine(row) for row in rows]
        known = {machine.name for machine in there}
        zones = names or {}
        there += [
            Machine(name=name, zone=next(iter(zones[name]), ""), condition=Condition.GONE)
            for name in zones
            if name not in known
        ]
        return Listing(there=tuple(there))

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        """Cancel all with one scancel, then poll until none is in the queue."""
        names = [machine.name for machine in machines if NAME.fullmatch(machine.name)]
        if not machines:
            return []
        try:
            answer = self.node.ask("stop", names=names, wait_s=STOP_LIMIT_S, within_s=2 * STOP_LIMIT_S)["stopped"]
        except ToolError:
            return [Removed.unanswered(self.noun, machine.name, [self.place]) for machine in machines]
        reasons = [answer.get(machine.name, "no job has this name") for machine in machines]
        return [
            Removed(kind=self.noun, name=machine.name, zone=machine.zone, gone=not reason, reason=printable(reason))
            for machine, reason in zip(machines, reasons, strict=True)
        ]

    def output(self, machine: Machine, start: int) -> Output:
        content = io.BytesIO()
        self.node.ask("output", sink=content, name=machine.name, start=start)
        text = content.getvalue()
        return Output(text=text.decode(errors="replace"), next_start=start + len(text))

    def phases(self, machine: Machine) -> Mapping[str, str]:
        """Empty: the heartbeat, which has the phases, comes within a second of the start."""
        del machine
        return {}

    def leftovers(self) -> Listing[Leftover]:
        """Jobs past their limit that Slurm did not end."""
        now_s, listing = self.now_s(), self.look()
        left = [
            Leftover(kind=self.noun, name=job.name, zone=job.zone, why="it is past its limit, but Slurm did not end it")
            for job in listing
            if job.deadline_s is not None and now_s > job.deadline_s + LATE_S
        ]
        return Listing(there=tuple(left), unreachable=listing.unreachable)


def check_name() -> str:
    """New random name for a check of the nodes."""
    return f"check-{secrets.token_hex(6)}"


def _machine(row: Mapping[str, str]) -> Machine:
    state = state_of(row["state"])
    reason = printable(row["reason"])
    shown = row["state"].lower()
    if state.queued and reason not in ("", "None"):
        shown += f" ({reason})"
    is_over = state.condition is Condition.GONE
    by_whom = row["state"].partition(" ")[2]
    return Machine(
        name=row["name"],
        # A waiting job may name several partitions.
        zone=row["partition"].replace(",", "+"),
        condition=state.condition,
        status=shown,
        created_s=None if state.queued else _time(row["started"]),
        deadline_s=_time(row["ends"]) if state.condition is Condition.RUNNING else None,
        queued=state.queued,
        preempted=state.preempted,
        why=f"Slurm says {row['state'].split(maxsplit=1)[0]}: {state.why} {by_whom}".strip()
        if is_over and state.why
        else "",
    )


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() else None
