"""Launches on a cluster (elements of job arrays), with the interface that every backend has, and refusals of sbatch."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.backends.remote_jobs import RemoteJobs
from launcher.backends.slurm.plan import Cluster, SlurmPlan, job_script
from launcher.protocol.backend import ANYWHERE, Condition, Leftover, Listing, Machine, Submitted, Tell
from launcher.protocol.records import NAME
from workload.contract.errors import NoCapacityError, RooflaunchError, ToolError, UsageError
from workload.contract.text import printable
from workload.storage.ssh import Connection, Login
from workload.storage.store import UnreachableError

ACCOUNTS = "sacctmgr show assoc user=$USER format=account,partition,qos"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """How to explain an error message of Slurm, and what the user can do about it.

    `pattern`: regular expression that finds the message; the texts are those of Slurm's src/common/slurm_errno.c.
    """

    pattern: str
    meaning: str
    hint: str
    error: type[RooflaunchError] = UsageError


REFUSALS = (
    Refusal(
        pattern="Invalid account",
        meaning="the account is missing, unknown, or may not use this partition",
        hint=f"--account NAME; on the login node: {ACCOUNTS}",
    ),
    Refusal(
        pattern="Invalid partition name|invalid partition specified",
        meaning="there is no such partition",
        hint="--partition NAME; launch doctor slurm shows the partitions",
    ),
    Refusal(
        pattern="Invalid qos",
        meaning="this quality of service does not exist, or you may not use it",
        hint="--qos NAME",
    ),
    Refusal(
        pattern="time limit is invalid|time limit exceeds|PartitionTimeLimit",
        meaning="the requested time is above the limit of the partition",
        hint="a shorter --time; launch doctor slurm shows the limits",
    ),
    Refusal(
        pattern="Invalid feature",
        meaning="no node has the feature that --constraint asks for",
        hint="--constraint F; launch doctor slurm shows the features",
    ),
    Refusal(
        pattern="Invalid generic resource|Invalid Trackable RESource",
        meaning="the cluster has no resource of the kind in --gres",
        hint="--gres gpu:1; launch doctor slurm shows the GPUs of each partition",
    ),
    Refusal(
        pattern="node configuration is not available|Node count specification|Memory specification can not"
        "|More processors requested",
        meaning="no node of the partition has the requested resources",
        hint="another --partition, or less of --machines, --gres, --constraint or memory; launch doctor slurm",
    ),
    Refusal(
        pattern="MaxSubmit|job submit limit|QOS policy|Job violates accounting",
        meaning="you have reached your limit of jobs, or ask for more than you may use",
        hint="wait until some jobs have ended (squeue shows them), or use fewer --repeats or a shorter --time",
        error=NoCapacityError,
    ),
    Refusal(
        pattern="Invalid job array",
        meaning="the array has more elements than the cluster allows",
        hint="scontrol show config shows MaxArraySize",
    ),
    Refusal(
        pattern="not permitted|Access/permission denied|User's group",
        meaning="you may not use this partition",
        hint="another --partition, or ask the cluster's administrator",
    ),
    Refusal(
        pattern="Unable to contact slurm controller|Zero Bytes|Socket timed out|Connection refused|no answer within",
        meaning="Slurm's controller does not answer",
        hint="scontrol ping shows whether the controller answers; then run the same command again",
        error=ToolError,
    ),
    Refusal(
        pattern="unrecognized option|invalid option|Invalid directive|Script arguments|Invalid .* specification",
        meaning="sbatch does not know an option, or does not accept its value",
        hint="see --sbatch and the other options; --dry-run --request shows the whole script",
    ),
)


# Line with Slurm's own reason. Other lines are from a job_submit plugin, which a site writes, or match `SLURMS_OWN`.
REASON = re.compile(r"Batch job submission failed: *(.*)")
SLURMS_OWN = re.compile(
    r"invalid partition specified|can ?not be satisfied|More processors requested|\w+Limit$|\w+Per(User|Job)$"
)


def explained(message: str, place: str) -> RooflaunchError:
    """Error for a refusal by sbatch, with sbatch's message quoted.

    If a plugin of the site refused the job, the plugin's messages come before Slurm's own reason, which says less.
    """
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in message.splitlines()]
    lines = list(dict.fromkeys(line for line in lines if line))
    reasons = [match[1] for line in lines if (match := REASON.match(line))]
    quoted = printable("; ".join(lines)) or "no message"
    site_lines = [line for line in lines if not REASON.match(line) and not SLURMS_OWN.search(line)]
    if reasons and site_lines:
        rule = f"a rule of this cluster: {printable('; '.join(site_lines))} ({printable(reasons[0])})"
        hint = "use an option of launch slurm, or --sbatch OPTION, that fulfils the rule; or ask the administrator"
        return UsageError(f"sbatch on {place} refused the job by {rule}", hint=hint)
    for refusal in REFUSALS:
        if re.search(refusal.pattern, message, re.IGNORECASE):
            return refusal.error(f"sbatch on {place} refused the job: {refusal.meaning} ({quoted})", hint=refusal.hint)
    return ToolError(f"sbatch on {place} refused the job: {quoted}", hint="--dry-run --request shows the whole script")


# Limit for stopping jobs: Slurm waits for KillWait (30 s unless the site sets another) and for its epilog.
STOP_LIMIT_S = 90.0
# Limit for submitting: sbatch, which a busy controller lets wait, and then the search for its job.
SUBMIT_LIMIT_S = 180.0
# Delay after which a job past its time limit is a leftover: a site may configure Slurm to end jobs late.
LATE_S = 600.0
# Slurm's default of MaxArraySize: https://slurm.schedmd.com/slurm.conf.html#OPT_MaxArraySize
USUAL_ARRAY_SIZE = 1001
# Program on the login node that asks Slurm; the program of `launch ssh` reports facts and receives our code.
SLURM_PROGRAM = "launcher/backends/slurm/remote.py"
# Slurm's states of a job: see squeue(1), JOB STATE CODES. Any state in neither table counts as running. In COMPLETING,
# the job's processes may still be ending.
WAITING = frozenset(
    {*("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED"), *("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")}
)
# Slurm starts a job in one of these states, or with a reason for waiting that contains "held" (`JobHeldUser`, `launch
# failed requeued held`), only after somebody has released it.
HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
# Why a job ended, by its final state; empty for COMPLETED.
ENDED: Mapping[str, str] = {
    "COMPLETED": "",
    "FAILED": "the job's script failed",
    "TIMEOUT": "the job reached its time limit",
    "DEADLINE": "the job could not finish before its deadline",
    "OUT_OF_MEMORY": "the job used more memory than it had requested",
    "CANCELLED": "the job was cancelled",
    "NODE_FAIL": "the job's node failed",
    "BOOT_FAIL": "the job's node did not start",
    "REVOKED": "the job runs on another cluster",
    "PREEMPTED": "another job took the node (preempted)",
}


class SlurmMachines(RemoteJobs):
    """Elements of job arrays of this user on one cluster, whose login node is this machine or is reached over ssh."""

    program, prefix = SLURM_PROGRAM, "slurm"

    def __init__(
        self,
        cluster: Cluster,
        *,
        connect: Callable[[Login], Connection] = Connection,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        connection = connect(cluster.login) if cluster.login else None
        super().__init__(connection, cluster.root, where=cluster.place, monotonic=monotonic)
        self.cluster = cluster

    @property
    def place(self) -> str:
        return self.cluster.place

    def ask(self, do: str, **question: Any) -> dict[str, Any]:
        """Send the request `do`; return the answer. Raises `UnreachableError` if Slurm or the node does not answer."""
        answer = super().ask(do, **question)
        if "silent" in answer:
            raise UnreachableError(
                f"Slurm does not answer on {self.place}: {answer['silent']}",
                hint="scontrol ping shows whether Slurm's controller answers; then run the same command again",
            )
        return answer

    def submit(self, plan: SlurmPlan, tell: Tell) -> Submitted:
        """Submit an array of one element, which runs the plan's launch."""
        return self.submit_together([plan], tell)

    def submit_together(self, plans: Sequence[SlurmPlan], tell: Tell) -> Submitted:
        """Submit plans for one cluster as one array, or as several if the cluster limits the size of an array.

        Returns machines in the order of the plans. Plans that were submitted before are not submitted again.
        """
        tell(f"submitting to Slurm on {self.place}")
        most = max(1, (plans[0].most_elements or USUAL_ARRAY_SIZE) - 1)
        for start in range(0, len(plans), most):
            self._submit_array(plans[start : start + most])
        names = [plan.request.name for plan in plans]
        # Slurm may show a new job a moment late.
        shown = {machine.name: machine for machine in self.look(dict.fromkeys(names, ())) if machine.status}
        waiting = Machine(name="", zone=plans[0].zone, condition=Condition.STARTING, status="pending", queued=True)
        return Submitted(machines=tuple(shown.get(name) or replace(waiting, name=name) for name in names))

    def _submit_array(self, plans: Sequence[SlurmPlan]) -> None:
        plan, requests = plans[0], [plan.request for plan in plans]
        assert plan.node is not None
        words = [f"--dependency=afterok:{plan.after}", "--kill-on-invalid-dep=yes"] if plan.after else []
        name = requests[0].name
        try:
            answer = self.ask(
                "submit",
                within_s=SUBMIT_LIMIT_S,
                array=name,
                names=[request.name for request in requests],
                script=job_script(requests, plan.options, plan.node, gres=plan.gres),
                words=words,
                check=plan.after,
            )
        except UnreachableError as error:
            error.hint += f"; the job may be in the queue: launch status {name} shows it, launch down {name} ends it"
            raise
        if "refused" in answer:
            raise explained(answer["refused"], self.place)

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        wanted = None if names is None else [name for name in names if NAME.fullmatch(name)]
        try:
            rows = self.ask("look", names=wanted)["jobs"]
        except UnreachableError:
            if names is None:
                return Listing(unreachable=(ANYWHERE,))
            raise
        machines = [_machine(row) for row in rows]
        known = {machine.name for machine in machines}
        machines += [
            Machine(name=name, zone=next(iter(zones), ""), condition=Condition.GONE)
            for name, zones in (names or {}).items()
            if name not in known
        ]
        return Listing(there=tuple(machines))

    def _end(self, names: Sequence[str]) -> Mapping[str, str]:
        """Cancel the jobs with one `scancel`, then poll until none of them is in the queue."""
        answer = self.ask("stop", names=names, wait_s=STOP_LIMIT_S, within_s=2 * STOP_LIMIT_S)
        stopped: Mapping[str, str] = answer["stopped"]
        return stopped

    def leftovers(self) -> Listing[Leftover]:
        """Jobs that still run after their time limit, because Slurm did not end them."""
        why = "the job is past its limit, but Slurm did not end it"
        return self.look().overdue(self.now_s(), late_s=LATE_S, kind=self.noun, why=why)


def _machine(row: Mapping[str, str]) -> Machine:
    # The first word is the state, as in `CANCELLED by 1000`.
    state, _, by_whom = row["state"].partition(" ")
    is_waiting, why = state in WAITING, ENDED.get(state)
    condition = Condition.STARTING if is_waiting else Condition.RUNNING if why is None else Condition.GONE
    reason = "" if row["reason"] == "None" else printable(row["reason"])
    # A held job is not queued: its launcher gives it up after the time for a boot, instead of waiting for ever.
    is_held = is_waiting and (state in HELD or "held" in reason.lower())
    release = f"scontrol release {row['array_job']}_{row['index']} lets it start" if is_held else ""
    waits = "; ".join(filter(None, (reason, release))) if is_waiting else ""
    ended = f"Slurm says {state}: {why} {by_whom}".strip() if why else ""
    return Machine(
        name=row["name"],
        # A waiting job may name several partitions.
        zone=row["partition"].replace(",", "+"),
        condition=condition,
        status=state.lower() + (f" ({waits})" if waits else ""),
        created_s=None if is_waiting else _epoch_s(row["started"]),
        deadline_s=_epoch_s(row["ends"]) if condition is Condition.RUNNING else None,
        queued=is_waiting and not is_held,
        preempted=state == "PREEMPTED",
        why=f"Slurm holds the job ({reason or state})" if is_held else ended,
    )


def _epoch_s(text: str) -> float | None:
    return float(text) if text.isdigit() else None
