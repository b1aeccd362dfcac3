"""Cloud Batch over its REST protocol: jobs with scripted states, tasks that run for real where a test says how.

Bodies are parsed by the client library's own types, which refuse an unknown field; a path that we do not know is
answered with 501 and fails the test at the end.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from google.cloud import batch_v1
from google.protobuf import json_format

from tests.ports import Answering, Fake

REGION, PROJECT = "us-central1", "my-project"
PARENT = f"projects/{PROJECT}/locations/{REGION}"
PREEMPTED_CODE = 50001
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
ENDED = ("SUCCEEDED", "FAILED")


class Work(Protocol):
    """A task's container under way."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...


Execute = Callable[["FakeTask", Mapping[str, Any], Mapping[str, str]], Work]


@dataclass(kw_only=True)
class FakeTask:
    """One task, as it is now."""

    name: str
    launch: str
    state: str = "PENDING"
    attempt: int = 0
    began_s: float = 0.0
    zone: str = "us-central1-a"
    events: list[dict[str, Any]] = field(default_factory=list)
    work: Work | None = None


@dataclass(kw_only=True)
class FakeJob:
    """One job: its body as it was asked for, and its tasks."""

    id: str
    body: dict[str, Any]
    created_s: float
    state: str = "QUEUED"
    events: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[FakeTask] = field(default_factory=list)

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.body["taskGroups"][0]["taskSpec"])


class FakeBatch(Fake):
    """A context manager; `.url` is for ROOFLAUNCH_BATCH_ENDPOINT. Without `execute` a task runs until a test ends it.

    `stockout`: what a job that waits in the queue says. `refuses`: (status, reason, message) for each question.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time, execute: Execute | None = None) -> None:
        self.clock, self.execute = clock, execute
        self.jobs: dict[str, FakeJob] = {}
        self.stockout = ""
        self.refuses: tuple[int, str, str] | None = None
        self.cancels_nothing = False
        self.asked: Counter[str] = Counter()
        self.lock = threading.RLock()
        super().__init__(_Handler)

    def __exit__(self, *error: object) -> None:
        for job in self.jobs.values():
            for task in job.tasks:
                if task.work is not None and task.work.poll() is None:
                    task.work.terminate()
        super().__exit__(*error)

    # What a test makes happen.

    def task(self, launch: str) -> FakeTask:
        return next(task for job in self.jobs.values() for task in job.tasks if task.launch == launch)

    def running(self) -> int:
        """How many tasks go on."""
        return sum(
            task.state not in ENDED
            for job in self.jobs.values()
            for task in job.tasks
            if job.state not in OVER and job.id in self.jobs
        )

    def end(self, launch: str, code: int = 0) -> None:
        """The task's container ends."""
        with self.lock:
            self._ended(self._job_of(launch), self.task(launch), code)

    def preempt(self, launch: str) -> None:
        """Its VM is taken back."""
        with self.lock:
            task = self.task(launch)
            if task.work is not None:
                task.work.terminate()
                while task.work.poll() is None:
                    time.sleep(0.02)
                task.work = None
            self._ended(self._job_of(launch), task, PREEMPTED_CODE)

    def delete(self, launch: str) -> None:
        """Somebody deletes its job."""
        with self.lock:
            job = self._job_of(launch)
            self._stop(job)
            del self.jobs[job.id]

    def add_stranger(self, name: str) -> None:
        """Somebody else's job, which goes on."""
        body = {"taskGroups": [{"taskCount": "1", "taskSpec": {}}], "labels": {"team": "data"}}
        job = FakeJob(id=name, body=body, created_s=self.clock() - 10**6)
        job.tasks.append(FakeTask(name=f"{PARENT}/jobs/{name}/taskGroups/group0/tasks/0", launch=name, state="RUNNING"))
        self.jobs[name] = job

    def _job_of(self, launch: str) -> FakeJob:
        return next(job for job in self.jobs.values() if any(task.launch == launch for task in job.tasks))

    def _event(self, description: str, **more: Any) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.clock(), UTC).isoformat().replace("+00:00", "Z")
        return {"description": description, "eventTime": at, **more}

    def _ended(self, job: FakeJob, task: FakeTask, code: int) -> None:
        what = f"Task state is updated from RUNNING to FAILED on zones/{task.zone}/instances/1 with exit code {code}."
        if code == 0:
            task.state = "SUCCEEDED"
            task.events.append(self._event("Task is done.", taskState="SUCCEEDED"))
            return
        task.events.append(self._event(what, taskState="FAILED", taskExecution={"exitCode": code}))
        policies = job.spec.get("lifecyclePolicies", [])
        is_retried = any(code in policy["actionCondition"]["exitCodes"] for policy in policies)
        if is_retried and task.attempt < int(job.spec.get("maxRetryCount", 0)):
            task.attempt += 1
            task.state = "PENDING"
        else:
            task.state = "FAILED"

    def _stop(self, job: FakeJob) -> None:
        for task in job.tasks:
            if task.work is not None and task.work.poll() is None:
                task.work.terminate()

    # What the service does by itself, whenever it is asked something.

    def advance(self) -> None:
        for job in self.jobs.values():
            if job.state in OVER:
                continue
            if self.stockout and job.state == "QUEUED":
                if not job.events:
                    job.events.append(self._event(self.stockout))
                continue
            job.state = "RUNNING"
            for task in job.tasks:
                self._advance_task(job, task)
            if all(task.state in ENDED for task in job.tasks):
                job.state = "FAILED" if any(task.state == "FAILED" for task in job.tasks) else "SUCCEEDED"

    def _advance_task(self, job: FakeJob, task: FakeTask) -> None:
        if task.state == "PENDING":
            task.state, task.began_s = "RUNNING", self.clock()
            where = f"Task runs on zones/{task.zone}/instances/1"
            task.events.append(self._event(where, taskState="RUNNING"))
            if self.execute is not None:
                group = job.body["taskGroups"][0]
                own = group["taskEnvironments"][int(task.name.rpartition("/")[2])]["variables"]
                variables = {**job.spec["environment"]["variables"], **own}
                variables["BATCH_TASK_RETRY_ATTEMPT"] = str(task.attempt)
                task.work = self.execute(task, job.spec["runnables"][0]["container"], variables)
        if task.work is not None and task.state == "RUNNING" and (code := task.work.poll()) is not None:
            task.work = None
            self._ended(job, task, code)

    # What it is asked over REST.

    def answer(self, method: str, path: str, query: Mapping[str, str], content: bytes) -> tuple[int, Any]:  # noqa: PLR0911
        with self.lock:
            if self.refuses:
                status, reason, message = self.refuses
                info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "x"}
                return status, {"error": {"code": status, "message": message, "details": [info]}}
            self.advance()
            at = path.removeprefix(f"/v1/{PARENT}/jobs")
            if at == path:
                return 404, _error(404, f"Location {path.split('/')[5]} is not found")
            if not at:
                return self._create(query, content) if method == "POST" else self._list(method)
            job_id, _, rest = at.removeprefix("/").partition("/")
            job_id, _, verb = job_id.partition(":")
            job = self.jobs.get(job_id)
            if job is None:
                return 404, _error(404, f"Job projects/{PROJECT}/locations/{REGION}/jobs/{job_id} not found")
            if (method, rest, verb) == ("GET", "", ""):
                self.asked["get"] += 1
                return 200, self._job(job)
            if (method, rest, verb) == ("GET", "taskGroups/group0/tasks", ""):
                self.asked["tasks"] += 1
                return 200, self._tasks(job, query)
            if (method, rest, verb) == ("POST", "", "cancel"):
                return self._cancel(job)
            self.unknown.append(f"{method} {path}")
            return 501, _error(501, "not known here")

    def _create(self, query: Mapping[str, str], content: bytes) -> tuple[int, Any]:
        self.asked["create"] += 1
        job_id = query["jobId"]
        if job_id in self.jobs:
            return 409, _error(409, f"Job {job_id} already exists")
        try:
            parsed = batch_v1.Job.from_json(content.decode(), ignore_unknown_fields=False)
        except json_format.ParseError as error:
            return 400, _error(400, f"Invalid JSON payload received: {error}")
        body = json_format.MessageToDict(batch_v1.Job.pb(parsed))
        group = body["taskGroups"][0]
        count = len(group.get("taskEnvironments", ())) or int(group.get("taskCount", 1))
        job = FakeJob(id=job_id, body=body, created_s=self.clock())
        for index in range(count):
            launch = group["taskEnvironments"][index]["variables"]["ROOFLAUNCH_LAUNCH"]
            job.tasks.append(FakeTask(name=f"{PARENT}/jobs/{job_id}/taskGroups/group0/tasks/{index}", launch=launch))
        self.jobs[job_id] = job
        return 200, self._job(job)

    def _list(self, method: str) -> tuple[int, Any]:
        assert method == "GET"
        self.asked["list"] += 1
        return 200, {"jobs": [self._job(job) for job in self.jobs.values()]}

    def _cancel(self, job: FakeJob) -> tuple[int, Any]:
        self.asked["cancel"] += 1
        if job.state in OVER:
            return 400, _error(400, f"Job {job.id} is in state {job.state} and cannot be cancelled")
        if not self.cancels_nothing:
            self._stop(job)
            job.state = "CANCELLED"
        return 200, {"name": f"{PARENT}/operations/1", "done": True}

    def _job(self, job: FakeJob) -> dict[str, Any]:
        counts = Counter(task.state for task in job.tasks)
        status = {
            "state": job.state,
            "statusEvents": job.events,
            "taskGroups": {"group0": {"counts": {state: str(count) for state, count in counts.items()}}},
        }
        created = datetime.fromtimestamp(job.created_s, UTC).isoformat().replace("+00:00", "Z")
        return {**job.body, "name": f"{PARENT}/jobs/{job.id}", "createTime": created, "status": status}

    def _tasks(self, job: FakeJob, query: Mapping[str, str]) -> dict[str, Any]:
        start, size = int(query.get("pageToken") or 0), min(int(query.get("pageSize", 100)), 1000)
        page = job.tasks[start : start + size]
        tasks = [{"name": task.name, "status": {"state": task.state, "statusEvents": task.events}} for task in page]
        more = {"nextPageToken": str(start + size)} if start + size < len(job.tasks) else {}
        return {"tasks": tasks, **more}


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": message}}


class _Handler(Answering):
    fake: FakeBatch
    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        split = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        status, document = self.fake.answer(self.command, split.path, query, self.content())
        self.send(status, json.dumps(document), Content_Type="application/json; charset=UTF-8")

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.fake.clock() if timestamp is None else timestamp)

    do_GET = do_POST = do_DELETE = _do
