"""Cloud Batch as a backend of `launch`. Settings, prices, images and bucket are the same as for Compute Engine."""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from launcher.backends.batch.options import Options, Where
from launcher.backends.batch.plan import LIMIT_LABEL, PREFIX, QUEUE_LABEL, BatchPlan, make_plan, zones_in
from launcher.backends.batch.service import ENDPOINT_VARIABLE, BatchJob, BatchService, BatchTask
from launcher.backends.gcp import gpus
from launcher.backends.gcp.backend import ComputeEngine, Services, connect_services, docker_log_in
from launcher.backends.gcp.options import Settings
from launcher.backends.gcp.options import Where as VmWhere
from launcher.images.build import prepared_image
from launcher.protocol.backend import (
    Check,
    CheckPart,
    Condition,
    Job,
    Leftover,
    Listing,
    Machine,
    Output,
    Removed,
    Submitted,
    Tell,
)
from launcher.protocol.records import LAUNCHES, NAME, READERS, log_object
from workload.contract.errors import NoCapacityError, RooflaunchError, ToolError
from workload.contract.text import counted, duration
from workload.storage import gcs
from workload.storage.gcs import Bucket
from workload.storage.store import MAX_TEXT_BYTES, Store, UnreachableError

if TYPE_CHECKING:
    from workload.storage.gcs import Bucket

LOOK_EVERY_S = 10.0
# Limit for the end of a cancelled job, which takes a minute or two, and seconds between two looks at the job.
END_S, END_EVERY_S = 300.0, 5.0
# Batch ends a task at most this many seconds after its limit: a task that still runs then is a leftover.
LATE_S = 300.0
STATES = {"RUNNING": Condition.RUNNING, **dict.fromkeys(("SUCCEEDED", "FAILED", "UNEXECUTED"), Condition.GONE)}


class BatchMachines:
    """Batch tasks in one region; each task has the name of the launch that it runs."""

    noun = "task"

    def __init__(
        self, service: BatchService, store: Callable[[], Store], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._service, self._open_store, self._sleep = service, store, sleep
        self._store: Store | None = None

    @property
    def place(self) -> str:
        return f"{self._service.project} in {self._service.region}"

    @property
    def calls(self) -> Mapping[str, int]:
        return self._service.calls

    def now_s(self) -> float:
        return self._service.now_s()

    def submit(self, plan: BatchPlan, tell: Tell) -> Submitted:
        """Submit a job with one task and wait until Batch has a VM for it. Raises errors like `submit_together`."""
        return self.submit_together([plan], tell)

    def submit_together(self, plans: Sequence[BatchPlan], tell: Tell) -> Submitted:
        """Submit one job with a task for each plan, in their order, and wait until the first task has a VM.

        If there is no VM within the plan's `queue_time_s`, cancels the job and raises `NoCapacityError`.
        """
        first = plans[0]
        job_id = first.request.name
        try:
            tell(f"asking Cloud Batch in {self._service.region} for {counted(len(plans), 'task')}")
            body = first.body(plans)
            self._service.create(job_id, body, str(uuid.uuid5(uuid.NAMESPACE_URL, job_id)))
            job = self._scheduled(job_id, first.options.queue_time_s, tell)
        except BaseException:
            if not self._cancel(job_id):
                tell(f"could not confirm that job '{job_id}' is cancelled: launch down {job_id}")
            raise
        if job is None:
            queued = self._service.job(job_id)
            unknown = "Batch gives no reason; likely causes are no free GPU or a missing quota"
            reason = queued.events[-1] if queued and queued.events else unknown
            is_cancelled = self._cancel(job_id)
            unconfirmed = "" if is_cancelled else f"; could not confirm that job '{job_id}' is cancelled"
            raise NoCapacityError(
                f"no VM for '{job_id}' after {duration(first.options.queue_time_s)} in the queue of Cloud Batch in "
                f"{', '.join(first.request.zones)}: {reason}{unconfirmed}",
                hint="a longer --queue-time, another --region, or other zones (--zone); quota: launch doctor gcp",
            )
        names = [plan.request.name for plan in plans]
        # Not `look`, which has no machines if Batch does not answer now: an error lets the caller end the job.
        there = {machine.name: machine for machine in self._machines(job, set(names))}
        return Submitted(machines=tuple(there[name] for name in names))

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        """List the machines of the tasks in `names`, or of all tasks that exist; a task that does not exist is GONE.

        Requests one list of jobs, and then the list of tasks of each job that contains a named task.
        """
        try:
            jobs = self._service.jobs()
            machines = {
                machine.name: machine
                for job in jobs
                for machine in self._machines(job, None if names is None else set(names))
            }
        except UnreachableError:
            return Listing(unreachable=(self._service.region,))
        if names is None:
            there = (machine for machine in machines.values() if machine.condition is not Condition.GONE)
            return Listing(there=tuple(there))
        gone = {
            name: Machine(name=name, zone=self._service.region, condition=Condition.GONE)
            for name in names
            if name not in machines
        }
        return Listing(there=tuple((machines | gone)[name] for name in names))

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        """Cancel the jobs of these tasks.

        Batch cannot end a single task, so a job that also has other active tasks is not cancelled.
        """
        wanted = [machine.name for machine in machines]
        try:
            reasons = self._stop(set(wanted))
        except UnreachableError:
            return [Removed.unanswered(self.noun, name, [self._service.region]) for name in wanted]
        except RooflaunchError as error:
            reasons = dict.fromkeys(wanted, str(error))
        region = self._service.region
        return [
            Removed(kind=self.noun, name=name, zone=region, gone=not reasons.get(name), reason=reasons.get(name, ""))
            for name in wanted
        ]

    def output(self, machine: Machine, start: int) -> Output:
        """Output from the log that the task writes to the bucket every 20 s; nothing goes to Cloud Logging."""
        self._store = self._store or self._open_store()
        is_there = any(seen.condition is not Condition.GONE for seen in self.look({machine.name: (machine.zone,)}))
        log = self._store.read(log_object(machine.name), most_bytes=MAX_TEXT_BYTES) if is_there else None
        new = (log or b"")[start:]
        return Output(text=new.decode(errors="replace"), next_start=start + len(new))

    def phases(self, machine: Machine) -> Mapping[str, str]:
        """Always empty: the heartbeat, which begins within a second of the task's start, reports the phases."""
        del machine
        return {}

    def leftovers(self) -> Listing[Leftover]:
        """Jobs that have waited in the queue longer than requested, and tasks that still run after their time limit."""
        now_s = self.now_s()
        leftovers = []
        for job in self._service.jobs():
            if why := self._why_left(job, now_s):
                leftovers += [
                    Leftover(kind=self.noun, name=machine.name, zone=machine.zone, why=why)
                    for machine in self._machines(job, None)
                    if machine.condition is not Condition.GONE
                ]
        return Listing(there=tuple(leftovers))

    def _machines(self, job: BatchJob, wanted: set[str] | None) -> Iterator[Machine]:
        """Yield a machine for each wanted task of a job; all if `wanted` is None. A queued job lists no tasks yet."""
        if wanted is not None and not wanted & set(job.launches):
            return
        has_begun = job.state not in ("QUEUED", "SCHEDULED", "STATE_UNSPECIFIED")
        tasks = {task.index: task for task in self._service.tasks(job.id)} if has_begun else {}
        for index, name in enumerate(job.launches):
            if NAME.fullmatch(name) and (wanted is None or name in wanted):
                yield self._machine(job, name, tasks.get(index))

    def _machine(self, job: BatchJob, name: str, task: BatchTask | None) -> Machine:
        state = task.state if task else job.state
        condition = STATES.get(state, Condition.STARTING)
        if job.is_over:
            condition = Condition.GONE
        elif job.state in ("DELETION_IN_PROGRESS", "CANCELLATION_IN_PROGRESS") and condition is not Condition.GONE:
            condition = Condition.RUNNING
        limit_s = _number(job.labels.get(LIMIT_LABEL))
        began_s = task.began_s if task else None
        is_preempted = state == "FAILED" and task is not None and task.was_preempted
        events = task.events if task else job.events
        return Machine(
            name=name,
            zone=(task.zone if task else "") or self._service.region,
            condition=condition,
            status=state,
            created_s=began_s or job.created_s,
            deadline_s=began_s + limit_s if began_s and limit_s else None,
            preempted=is_preempted,
            why=events[-1] if condition is Condition.GONE and events else "",
        )

    def _scheduled(self, job_id: str, queue_time_s: float, tell: Tell) -> BatchJob | None:
        """The job once it has left the queue; None if it has waited for more than `queue_time_s` seconds."""
        last_event = ""
        while True:
            job = self._service.job(job_id)
            if job is None:
                raise ToolError(f"job '{job_id}' was deleted while it was in the queue", hint="launch again")
            if job.state not in ("QUEUED", "STATE_UNSPECIFIED"):
                return job
            if (waited_s := self.now_s() - job.created_s) > queue_time_s:
                return None
            if job.events and job.events[-1] != last_event:
                last_event = job.events[-1]
                tell(f"in the queue for {duration(waited_s)}: {last_event}")
            self._sleep(LOOK_EVERY_S)

    def _stop(self, wanted: set[str]) -> dict[str, str]:
        reasons = dict.fromkeys(wanted, "")
        for job in self._service.jobs():
            ours = wanted & set(job.launches)
            if not ours or job.is_over:
                continue
            machines = self._machines(job, None)
            active = {machine.name for machine in machines if machine.condition is not Condition.GONE}
            others = active - wanted
            if others:
                why = f"the task shares job '{job.id}' with {counted(len(others), 'task')} that would end too"
                reasons |= dict.fromkeys(ours & active, why)
            elif active and not self._cancel(job.id):
                reasons |= dict.fromkeys(ours, "the task's job still exists")
        return reasons

    def _cancel(self, job_id: str) -> bool:
        try:
            job = self._service.job(job_id)
            if job is None or job.is_over:
                return True
            self._service.cancel(job_id)
            end_s = self.now_s() + END_S
            while self.now_s() < end_s:
                job = self._service.job(job_id)
                if job is None or job.is_over:
                    return True
                self._sleep(END_EVERY_S)
        except RooflaunchError:
            pass
        return False

    def _why_left(self, job: BatchJob, now_s: float) -> str:
        if job.is_over:
            return ""
        if job.state == "QUEUED":
            waits_s, queue_s = now_s - job.created_s, _number(job.labels.get(QUEUE_LABEL))
            if queue_s is None or waits_s <= queue_s + LATE_S:
                return ""
            return f"the job has waited in the queue for {duration(waits_s)}, and no launcher waits for it"
        running = [machine for machine in self._machines(job, None) if machine.condition is Condition.RUNNING]
        deadlines = [machine.deadline_s for machine in running if machine.deadline_s is not None]
        late = [deadline_s for deadline_s in deadlines if now_s > deadline_s + LATE_S]
        return f"its time limit ended {duration(now_s - min(late))} ago" if late else ""


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None


BATCH = CheckPart("batch")
# Permission of Batch's agent on the VM: https://cloud.google.com/batch/docs/create-run-job-custom-service-account
REPORTER = "batch.states.report"
REPORTER_ROLE = "roles/batch.agentReporter"


@dataclass(frozen=True, kw_only=True)
class Region:
    """Region in which Batch runs the jobs, and the settings of Google Cloud."""

    region: str
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class CloudBatch:
    """The backend `batch`. The fields are its connections to services and clock, which a test replaces."""

    name: str = "batch"
    vm: ComputeEngine = field(default_factory=ComputeEngine)
    service: Callable[[str, str], BatchService] = BatchService
    services: Callable[[str], Services] = connect_services
    bucket: Callable[[str], "Bucket"] = lambda name: gcs.connect(name, prefix=LAUNCHES, root=f"{PREFIX}/", jobs=READERS)
    sleep: Callable[[float], None] = time.sleep

    def settings(self, where: Where, options: Options | None = None, *, offline: bool = False) -> Region:
        """Settings for region, project and bucket.

        Raises `UsageError` for a name that Google does not allow, or an unknown GPU.
        """
        vm_options = None
        if options is not None:
            gpus.require(options.gpu)
            vm_options = options.for_vm(())
        place = VmWhere(project=where.project, bucket=where.bucket)
        return Region(region=where.region, settings=self.vm.settings(place, vm_options, offline=offline))

    def plan(self, job: Job, options: Options, settings: Region, *, now: datetime, offline: bool = False) -> BatchPlan:
        as_gcp = options.for_vm(zones_in(settings.region, options))
        vm = self.vm.plan(job, as_gcp, settings.settings, now=now, offline=offline)
        return make_plan(vm, options, settings.region)

    def prepare(self, draft: BatchPlan, machines: BatchMachines) -> BatchPlan:
        """Push the image for this code, unless the user chose an image; return the plan with the image's digest."""
        # Building and pushing an image takes minutes, so check first that Batch answers.
        now_s = machines.now_s()
        flavour, repository = draft.vm.request.options["flavour"], draft.settings.repository
        image, notes = prepared_image(self.vm.engine, draft.options.image, flavour, repository, docker_log_in)
        return draft.launched(datetime.fromtimestamp(now_s, UTC), image=image, notes=notes)

    def machines(self, settings: Region) -> BatchMachines:
        service = self.service(settings.settings.project, settings.region)
        return BatchMachines(service, lambda: self.store(settings), sleep=self.sleep)

    def store(self, settings: Region) -> "Bucket":
        return self.bucket(settings.settings.bucket)

    def checks(self, where: Where) -> Iterator[Check]:
        """Checks besides those of `launch doctor gcp`. Without a project, only one failed check, which says so."""
        try:
            region = self.settings(where)
        except RooflaunchError as error:
            yield BATCH.failed("project", error)
            return
        settings = region.settings
        yield from self._queue_checks(region)

        def bucket() -> str:
            self.bucket(settings.bucket)
            return f"gs://{settings.bucket}/{PREFIX} can be read"

        yield BATCH.looked("bucket", bucket)
        yield self.role_check(settings)
        yield BATCH.note(
            "the rest",
            "quotas, images, registry and service account are checked for Compute Engine",
            "launch doctor gcp",
        )

    def _queue_checks(self, region: Region) -> Iterator[Check]:
        service, where = self.service(region.settings.project, region.region), region.region
        try:
            jobs = [job for job in service.jobs() if not job.is_over]
            leftovers = list(self.machines(region).leftovers())
        except RooflaunchError as error:
            yield BATCH.failed("API", error)
            return
        running = counted(len(jobs), "running job")
        yield BATCH.ok("API", f"Batch answers in {where} of {region.settings.project}; {running} of rooflaunch")
        if leftovers:
            named = ", ".join(f"{leftover.name} ({leftover.why})" for leftover in leftovers)
            yield BATCH.problem("leftovers", named, f"launch reap --region {where}")

    def role_check(self, settings: Settings) -> Check:
        """Check that the VM's service account has the role `REPORTER_ROLE`.

        Without this role Batch's agent on the VM cannot report that it is alive, and every task fails after a while.
        """
        if os.environ.get(ENDPOINT_VARIABLE):
            return BATCH.note("VM's role", f"not asked: {ENDPOINT_VARIABLE} points elsewhere")
        account = settings.service_account
        cure = (
            f"gcloud projects add-iam-policy-binding {settings.project} --member serviceAccount:{account} "
            f"--role {REPORTER_ROLE}; infra/gcp/ grants this role"
        )
        try:
            client = self.services(settings.project)
            roles = client.roles_in_project(account)
            may_report = REPORTER_ROLE in roles or REPORTER in client.permissions(roles)
        except RooflaunchError as error:
            return BATCH.note("VM's role", f"not seen: {error}", cure)
        if not may_report:
            return BATCH.problem(
                "VM's role", f"{account} lacks {REPORTER_ROLE}: Batch would consider the VM's tasks lost", cure
            )
        return BATCH.ok("VM's role", f"{account} may report to Batch")


backend = CloudBatch()
