"""Client for Cloud Batch in one region of one project; answers become dataclasses.

google-cloud-batch is imported inside functions only. The retries of google-cloud-batch are turned off, as in the client
for Compute Engine: this module repeats requests.
"""

import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from launcher.backends.batch.plan import LAUNCH_VARIABLE, PREEMPTED_CODE
from launcher.backends.gcp.answers import (
    BUSY,
    DeniedError,
    is_temporary,
    message_of,
    no_credentials,
    reasons_of,
    translated,
    unreachable,
)
from launcher.backends.gcp.compute import credentials_for
from launcher.backends.gcp.options import RESOURCE_NAME
from launcher.backends.zone_by_zone import CloudClock
from workload.contract.errors import ToolError, UsageError
from workload.storage.buckets import Service, repeated
from workload.storage.gcs import LOG_IN
from workload.storage.store import UnreachableError

ENDPOINT_VARIABLE = "ROOFLAUNCH_BATCH_ENDPOINT"
PUBLIC_ENDPOINT = "https://batch.googleapis.com"
BATCH = Service(name="Cloud Batch", public=PUBLIC_ENDPOINT, variables=(ENDPOINT_VARIABLE,))
# Limits for one request, which takes a second or two, and for repeating a failing request.
ANSWER_S, RETRY_S = 15.0, 30.0
# A job whose request got no answer may appear a moment later.
SEARCHES, SEARCH_EVERY_S = 3, 3.0
PAGE = 1000


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """A job. `launches`: name of each task's launch, in the order of tasks. `labels`: the labels that we gave the job.

    `events`: Batch's descriptions of what happened, oldest first.
    """

    id: str
    state: str
    created_s: float
    launches: tuple[str, ...]
    events: tuple[str, ...]
    labels: Mapping[str, str]

    @property
    def is_over(self) -> bool:
        """Whether none of the job's tasks will run any more."""
        return self.state in ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True, kw_only=True)
class BatchTask:
    """A task of a job.

    `began_s`: start of its latest run, in seconds since 1970. `codes`: its exit codes, oldest first. `zone`: empty if
    unknown.
    """

    index: int
    state: str
    began_s: float | None
    codes: tuple[int, ...]
    events: tuple[str, ...]
    zone: str = ""

    @property
    def was_preempted(self) -> bool:
        """Whether the task's last VM was preempted."""
        return bool(self.codes) and self.codes[-1] == PREEMPTED_CODE


class BatchService:
    """Cloud Batch in one region of a project. Safe to share between threads.

    `calls` counts requests, including each repetition.
    """

    def __init__(
        self,
        project: str,
        region: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.project, self.region = project, region
        self.calls: Counter[str] = Counter()
        self._parent = f"projects/{project}/locations/{region}"
        self._sleep, self._monotonic = sleep, monotonic
        self._clock = CloudClock(monotonic)
        self._client: Any = None
        self._lock = threading.Lock()

    def now_s(self) -> float:
        """Seconds since 1970 by the cloud's clock. Raises `ToolError` if the answers have no date."""
        shortest = {"parent": self._parent, "page_size": 1}
        return self._clock.now_s(BATCH, "jobs", lambda: self._ask("list_jobs", shortest))

    def create(self, job_id: str, body: Mapping[str, Any], request_id: str) -> BatchJob | None:
        """Request the job described by `body` (REST names); None if a job of this id exists already.

        If every answer is lost, the job is looked up before the error is raised: Batch may have made it all the same.
        """
        from google.api_core import exceptions as api  # noqa: PLC0415 - see the module
        from google.cloud import batch_v1  # noqa: PLC0415

        job = batch_v1.Job.from_json(json.dumps(body))
        request = {"parent": self._parent, "job_id": job_id, "job": job, "request_id": request_id}
        try:
            return _job(self._ask("create_job", request))
        except UnreachableError:
            for _ in range(SEARCHES):
                self._sleep(SEARCH_EVERY_S)
                if self.job(job_id):
                    return None
            raise
        except ToolError as error:
            if isinstance(error.__cause__, api.Conflict):
                return None
            raise

    def jobs(self) -> list[BatchJob]:
        """All jobs in the region that rooflaunch submitted."""
        # The client compares the labels too, because a server may ignore the filter.
        pages = self._pages("list_jobs", {"parent": self._parent, "filter": 'labels.rooflaunch="launch"'})
        return [_job(job) for page in pages for job in page.jobs if dict(job.labels).get("rooflaunch") == "launch"]

    def job(self, job_id: str) -> BatchJob | None:
        """Job of this id; None if there is none."""
        if not re.fullmatch(RESOURCE_NAME, job_id):
            return None
        answer = self._ask("get_job", {"name": f"{self._parent}/jobs/{job_id}"}, missing=True)
        return None if answer is None else _job(answer)

    def tasks(self, job_id: str) -> list[BatchTask]:
        """Tasks of a job that exist already, in the order of `index`."""
        pages = self._pages("list_tasks", {"parent": f"{self._parent}/jobs/{job_id}/taskGroups/group0"}, missing=True)
        return sorted((_task(task) for page in pages for task in page.tasks), key=lambda task: task.index)

    def cancel(self, job_id: str) -> None:
        """Make Batch end the job's tasks. Does nothing if the job is over or does not exist."""
        self._ask("cancel_job", {"name": f"{self._parent}/jobs/{job_id}"}, missing=True, over=True)

    def _pages(self, method: str, request: Mapping[str, Any], *, missing: bool = False) -> Iterator[Any]:
        """Pages of a list, requested one by one. `missing`: a 404 gives no pages instead of an error."""
        request = {**request, "page_size": PAGE}
        while (page := self._ask(method, request, missing=missing)) is not None:
            yield page
            if not page.next_page_token:
                return
            request["page_token"] = page.next_page_token

    def _ask(self, method: str, request: Mapping[str, Any], *, missing: bool = False, over: bool = False) -> Any:
        """Send a request; return the answer. `missing`: None for a 404; `over`: None if the job has already ended."""
        from google.api_core import exceptions as api  # noqa: PLC0415 - see the module

        def call() -> Any:
            with self._lock:
                self.calls[f"batch.{method}"] += 1
                client = self._client = self._client or self._connected()
            answer = getattr(client, method)(dict(request), retry=None, timeout=ANSWER_S)
            # The client's pagers would request further pages by themselves, without our limits.
            return getattr(answer, "_response", answer)

        with translated(BATCH, lambda error: self._explained(error, method)):
            try:
                return repeated(call, RETRY_S, is_temporary, sleep=self._sleep, monotonic=self._monotonic)
            except api.NotFound as error:
                if missing and re.search("/jobs/|not found", message_of(error), re.IGNORECASE):
                    return None
                raise
            except (api.FailedPrecondition, api.BadRequest):
                if over:
                    return None
                raise

    def _connected(self) -> Any:
        endpoint = os.environ.get(ENDPOINT_VARIABLE)
        try:
            from google.cloud import batch_v1  # noqa: PLC0415 - see the module
        except ModuleNotFoundError as error:
            raise ToolError(
                "the package google-cloud-batch is missing", hint="pip install 'rooflaunch[batch]'"
            ) from error
        client = batch_v1.BatchServiceClient(
            credentials=credentials_for(endpoint),
            transport="rest",
            client_options={"api_endpoint": endpoint} if endpoint else None,
        )
        session: Any = client.transport._session  # type: ignore[attr-defined] # noqa: SLF001 - no public way
        session.hooks["response"].append(self._clock.read_date)
        return client

    def _explained(self, error: Any, method: str) -> ToolError | UsageError:
        code, message = int(error.code), message_of(error)
        if code in BUSY:
            return unreachable(BATCH, error)
        if reasons_of(error) & {"accessNotConfigured", "SERVICE_DISABLED"}:
            return DeniedError(
                f"the Batch API is disabled in project '{self.project}'",
                hint=f"gcloud services enable batch.googleapis.com --project {self.project}",
            )
        if code == 403:  # noqa: PLR2004 - HTTP
            return DeniedError(
                f"no permission for Batch in project '{self.project}': {message}",
                hint="ask the project's owner to add you to `launchers` in infra/gcp/, "
                f"or use another account: {LOG_IN}",
            )
        if code == 401:  # noqa: PLR2004
            return no_credentials(error)
        if code == 404 and "ocation" in message:  # noqa: PLR2004
            return UsageError(f"Batch has no region '{self.region}': {message}", hint="--region us-central1")
        return ToolError(f"Cloud Batch refused {method}: {message}", hint=f"launch doctor batch --region {self.region}")


def _job(job: Any) -> BatchJob:
    environments = [environment for group in job.task_groups for environment in group.task_environments]
    return BatchJob(
        id=job.name.rpartition("/")[2],
        state=_name(job.status.state),
        created_s=_seconds(job.create_time) or 0.0,
        launches=tuple(dict(environment.variables).get(LAUNCH_VARIABLE, "") for environment in environments),
        events=tuple(event.description for event in job.status.status_events),
        labels=dict(job.labels),
    )


def _task(task: Any) -> BatchTask:
    events = list(task.status.status_events)
    began = [_seconds(event.event_time) for event in events if _name(event.task_state) == "RUNNING"]
    codes = [event.task_execution.exit_code for event in events if _name(event.task_state) == "FAILED"]
    codes += [PREEMPTED_CODE for event in events if not codes and f"{PREEMPTED_CODE}" in event.description]
    zones = re.findall(r"zones/([a-z0-9-]+)/", " ".join(event.description for event in events))
    return BatchTask(
        index=int(task.name.rpartition("/")[2]),
        state=_name(task.status.state),
        began_s=began[-1] if began else None,
        codes=tuple(codes),
        events=tuple(event.description for event in events),
        zone=zones[-1] if zones else "",
    )


def _name(state: Any) -> str:
    """Name of a state; its number if the client is older than the state."""
    return str(getattr(state, "name", f"STATE_{state}"))


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
