"""Jobs on one machine reached over ssh, with the interface that every backend has."""

import io
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.backends.ssh.plan import SshPlan
from launcher.protocol.backend import Condition, Leftover, Listing, Machine, Output, Removed, Submitted, Tell
from launcher.protocol.records import NAME
from workload.contract.errors import NoCapacityError, ToolError
from workload.contract.text import printable
from workload.storage.ssh import QUESTION_LIMIT_S, Connection, LostError, source_of

ROOT = "~/.rooflaunch"
PROGRAM = "launcher/backends/ssh/remote.py"
KEEPER = "launcher/backends/ssh/keeper.py"
# Limit per job for stopping: remote.py waits for the end of each job, which may take nearly a minute.
STOP_LIMIT_S = 90.0
# Time that an agent has to end after SIGTERM, before it is killed.
GRACE_S = 30.0
# Delay after which a job past its deadline is a leftover: the keeper ends a job some seconds late.
LATE_S = 60.0


class SshMachines:
    """Jobs on one ssh machine, which runs one job at a time; `calls`: number of requests to the machine, by kind."""

    noun = "job"

    def __init__(self, connection: Connection, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._monotonic = connection, monotonic
        self._program = source_of(PROGRAM)
        self._calls: Counter[str] = Counter()
        # Offset from our monotonic clock to the machine's own clock.
        self._offset_s: float | None = None

    @property
    def place(self) -> str:
        return str(self._connection.login)

    @property
    def calls(self) -> Mapping[str, int]:
        return {f"ssh.{name}": count for name, count in self._calls.items()}

    def ask(
        self, do: str, *, payload: bytes = b"", sink: Any = None, within_s: float = QUESTION_LIMIT_S, **question: Any
    ) -> dict[str, Any]:
        """Send the request `do` to remote.py on the machine; return the answer. Raises errors of `Connection.ask`."""
        self._calls[do] += 1
        asked = {"do": do, "root": ROOT, **question}
        answer = self._connection.ask(self._program, asked, payload=payload, sink=sink, limit_s=within_s)
        self._offset_s = float(answer["now_s"]) - self._monotonic()
        return answer

    def now_s(self) -> float:
        if self._offset_s is None:
            self.ask("look", names=[])
        assert self._offset_s is not None
        return self._monotonic() + self._offset_s

    def submit(self, plan: SshPlan, tell: Tell) -> Submitted:
        """Start the job in a session of its own. Raises `NoCapacityError` if the machine runs another job of ours."""
        assert plan.start is not None
        tell(f"starting the job on {self.place}")
        answer = self.ask(
            "start",
            name=plan.request.name,
            request=plan.request.to_bytes().decode(),
            keeper=source_of(KEEPER),
            words=list(plan.start.words),
            environment=dict(plan.start.environment),
            container=plan.start.container,
            limit_s=plan.request.limit_s,
            grace_s=GRACE_S,
        )
        if "busy" in answer:
            other = printable(answer["busy"]) or "another job of rooflaunch"
            raise NoCapacityError(
                f"{self.place} is busy with {other}: two runs at the same time would disturb each other",
                hint=f"launch logs {other} -f, or launch down {other}",
            )
        machine = self._machine(answer["job"])
        if machine is None:
            raise ToolError(f"the job did not start on {self.place}", hint=f"launch logs {plan.request.name}")
        return Submitted(machines=(machine,))

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        wanted = None if names is None else [name for name in names if NAME.fullmatch(name)]
        host = self._connection.login.host
        try:
            answer = self.ask("look", names=wanted)["jobs"]
        except LostError:
            return Listing(unreachable=(host,))
        jobs = [job for job in map(self._machine, answer) if job and NAME.fullmatch(job.name)]
        known = {machine.name for machine in jobs}
        jobs += [Machine(name=name, zone=host, condition=Condition.GONE) for name in names or () if name not in known]
        return Listing(there=tuple(jobs))

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        """End these jobs: first SIGTERM, then SIGKILL; remote.py checks whether any process is left."""
        host = self._connection.login.host
        names = [machine.name for machine in machines if NAME.fullmatch(machine.name)]
        try:
            within_s = STOP_LIMIT_S * max(1, len(names))
            answer = self.ask("stop", names=names, grace_s=GRACE_S, within_s=within_s)["stopped"]
        except ToolError:
            return [Removed.unanswered(self.noun, machine.name, [host]) for machine in machines]
        reasons = {machine.name: answer.get(machine.name, "no job has this name") for machine in machines}
        return [
            Removed(kind=self.noun, name=name, zone=host, gone=not reason, reason=reason)
            for name, reason in reasons.items()
        ]

    def output(self, machine: Machine, start: int) -> Output:
        printed = io.BytesIO()
        self.ask("output", sink=printed, name=machine.name, start=start)
        content = printed.getvalue()
        return Output(text=content.decode(errors="replace"), next_start=start + len(content))

    def phases(self, machine: Machine) -> Mapping[str, str]:
        """Always empty: the heartbeat, which reports the phases, begins within a second of the job's start."""
        del machine
        return {}

    def leftovers(self) -> Listing[Leftover]:
        """Jobs that run past their time limit, because the keeper, which enforces the limit, was killed."""
        why = "the job is past its limit, but still running"
        return self.look().overdue(self.now_s(), late_s=LATE_S, kind=self.noun, why=why)

    def _machine(self, job: Mapping[str, Any]) -> Machine | None:
        """`Machine` made of a job's description; None if the job was never started, or its description is damaged."""
        try:
            name, created_s, deadline_s = str(job["name"]), float(job["created_s"]), float(job["deadline_s"])
            is_running = bool(job["is_running"])
        except (KeyError, TypeError, ValueError):  # the job's file is damaged, or not ours
            return None
        return Machine(
            name=name,
            zone=self._connection.login.host,
            condition=Condition.RUNNING if is_running else Condition.GONE,
            status="running" if is_running else "ended",
            created_s=created_s,
            deadline_s=deadline_s,
            why=str(job.get("why", "")),
        )
