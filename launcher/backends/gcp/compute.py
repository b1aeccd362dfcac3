"""Client for Compute Engine in one project: all requests to Compute Engine are made in this module.

google-cloud-compute and google.auth are imported inside functions only. The client's own retries (up to ten minutes)
are turned off: every request is repeated here, within a limit, so that a caller knows how long a request can take.
"""

import copy
import json
import os
import re
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from launcher.backends.gcp import answers
from launcher.backends.gcp.answers import (
    COMPUTE_ENGINE,
    ENDPOINT_VARIABLE,
    DeniedError,
    Instance,
    Operation,
    OperationFault,
    Quota,
    VmDisk,
    explained,
    is_temporary,
    message_of,
    no_credentials,
    translated,
)
from launcher.backends.zone_by_zone import CloudClock
from launcher.protocol.backend import ANYWHERE, Listing, Output
from workload.contract.errors import ToolError
from workload.storage.buckets import repeated
from workload.storage.store import UnreachableError

T = TypeVar("T")

SCOPE = "https://www.googleapis.com/auth/cloud-platform"

LABEL = "rooflaunch"
LABEL_VALUE = "launch"
GUEST_NAMESPACE = "rooflaunch"
PREEMPTED = "compute.instances.preempted"
ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z]")

# Limit for one request: a look-up takes less than a second, an insert a few seconds. A failing request is repeated for
# `RETRY_S` seconds.
ANSWER_S, RETRY_S = 15.0, 30.0
# The server may delay its answer to `wait` for up to two minutes.
WAIT_ANSWER_S = 130.0
# Shortest limit of a request, even if less time is left.
LAST_ANSWER_S = 1.0
# Pause before the next `wait` request, if the server answered early although the operation was not done.
WAIT_PAUSE_S = 2.0
# Size of the connection pool, which up to 100 launches share. A pool that is too small opens new connections.
CONNECTIONS = 32


@dataclass(frozen=True, kw_only=True)
class _Clients:
    """Clients of google-cloud-compute, one per kind of resource, made at first use. Safe to share between threads."""

    credentials: Any
    endpoint: str | None
    clock: CloudClock
    made: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, kind: str) -> Any:
        with self.lock:
            return self.made.get(kind) or self.made.setdefault(kind, self._make(kind))

    def _make(self, kind: str) -> Any:
        import requests  # noqa: PLC0415 - loaded only when it is needed
        from google.cloud import compute_v1  # noqa: PLC0415

        options = {"api_endpoint": self.endpoint} if self.endpoint else None
        client = getattr(compute_v1, f"{kind}Client")(credentials=self.credentials, client_options=options)
        for scheme in ("http://", "https://"):
            adapter = requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS)
            client.transport._session.mount(scheme, adapter)  # noqa: SLF001 - no public way
        client.transport._session.hooks["response"].append(self.clock.read_date)  # noqa: SLF001
        return client


class Compute:
    """Compute Engine in one project. Safe to share between threads.

    `calls` counts requests, including each repetition.
    """

    def __init__(
        self,
        project: str,
        clients: _Clients,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.project = project
        self.calls: Counter[str] = Counter()
        self._clients = clients
        self._sleep = sleep
        self._monotonic = monotonic
        self._counters = [self.calls]
        self._counting = threading.Lock()

    def counted(self) -> "Compute":
        """Copy of this client whose `calls` counts only the copy's requests. This client's `calls` counts them too."""
        view: Compute = copy.copy(self)
        view.calls = Counter()
        view._counters = [view.calls, *self._counters]
        return view

    def now_s(self) -> float:
        """Seconds since 1970 by the cloud's clock, which measures every age and limit of a VM.

        Raises `ToolError` if the answers have no date.
        """
        return self._clients.clock.now_s(COMPUTE_ENGINE, "VMs", self.project_quotas)

    # Instances.

    def insert(self, zone: str, body: Mapping[str, Any], request_id: str) -> Operation:
        """Request the VM described by `body` (REST names).

        Repeating a `request_id` (32 hex digits) never makes a second VM.

        Raises `AlreadyThereError`, `RefusedError` if capacity, quota or this machine is missing, other `ToolError`s.
        """
        from google.cloud import compute_v1  # noqa: PLC0415 - loaded only when it is needed

        vm = compute_v1.Instance.from_json(json.dumps(body))
        answer = self._ask(
            "Instances", "insert", zone=zone, request_id=str(uuid.UUID(request_id)), instance_resource=vm
        )
        return answers.operation(answer, zone)

    def wait(self, operation: Operation, limit_s: float) -> tuple[OperationFault, ...] | None:
        """Wait for the operation; return the operation's faults, () if there are none.

        Returns None if the operation is not done within `limit_s` seconds.
        """
        import requests  # noqa: PLC0415 - loaded only when it is needed
        from google.cloud import compute_v1  # noqa: PLC0415

        end_s, where = self._monotonic() + limit_s, {"zone": operation.zone, "operation": operation.name}
        while (left_s := end_s - self._monotonic()) > 0:
            asked_s, retry_s = self._monotonic(), min(left_s, WAIT_ANSWER_S)
            try:
                answer_s = max(retry_s, LAST_ANSWER_S)
                answer = self._ask("ZoneOperations", "wait", answer_s=answer_s, retry_s=retry_s, **where)
                if answer.status == compute_v1.Operation.Status.DONE:
                    return answers.faults(answer)
            except UnreachableError as error:
                if not isinstance(error.__cause__, requests.Timeout):
                    raise
            # The server may answer early, for example when it is busy.
            if self._monotonic() - asked_s < WAIT_PAUSE_S:
                self._sleep(min(WAIT_PAUSE_S, max(end_s - self._monotonic(), 0.0)))
        return None

    def get(self, zone: str, name: str) -> Instance | None:
        """VM of this name; None if there is none."""
        answer = self._ask("Instances", "get", zone=zone, instance=name, missing=f"/instances/{name}'")
        return None if answer is None else answers.instance(answer)

    def delete(self, zone: str, name: str) -> Operation | None:
        """Request the deletion of a VM; None if there is no VM of this name."""
        answer = self._ask("Instances", "delete", zone=zone, instance=name, missing=f"/instances/{name}'")
        return None if answer is None else answers.operation(answer, zone)

    def instances(self) -> Listing[Instance]:
        """VMs of every launch in the project, in all zones that answer."""
        return self._labelled("Instances", answers.instance)

    def preempted(self, zone: str, name: str) -> bool:
        """Whether the cloud has recorded that it preempted this VM."""
        pages = self._pages("ZoneOperations", "list", zone=zone, filter=f'operationType="{PREEMPTED}"')
        # The host part of a target's URL differs between answers, so names are compared.
        return any(answers.last_part(operation.target_link) == name for page in pages for operation in page.items)

    def serial(self, zone: str, name: str, start: int) -> Output:
        """Output of the VM's first serial port from byte `start` on; empty if the VM is gone or has not started yet."""
        answer = self._ask_guest("get_serial_port_output", zone=zone, instance=name, port=1, start=start)
        if answer is None:
            return Output(text="", next_start=start)
        return Output(text=answer.contents, next_start=int(answer.next_))

    def guest_attributes(self, zone: str, name: str) -> dict[str, str]:
        """Guest attributes that the VM has set in our namespace; {} if none yet, or if the VM is gone."""
        answer = self._ask_guest("get_guest_attributes", zone=zone, instance=name, query_path=f"{GUEST_NAMESPACE}/")
        return {} if answer is None else {item.key: item.value for item in answer.query_value.items}

    # Disks.

    def disks(self) -> Listing[VmDisk]:
        """Disks of every launch in the project, in all zones that answer."""
        return self._labelled("Disks", answers.disk)

    def delete_disk(self, zone: str, name: str) -> Operation | None:
        """Request the deletion of a disk; None if there is no disk of this name."""
        answer = self._ask("Disks", "delete", zone=zone, disk=name, missing=f"/disks/{name}'")
        return None if answer is None else answers.operation(answer, zone)

    # Quotas and images.

    def region_quotas(self, region: str) -> Mapping[str, Quota]:
        """Quotas of a region by metric, such as `NVIDIA_T4_GPUS`."""
        return answers.quotas(self._ask("Regions", "get", region=region))

    def project_quotas(self) -> Mapping[str, Quota]:
        """Quotas of the project by metric, such as `GPUS_ALL_REGIONS`."""
        return answers.quotas(self._ask("Projects", "get"))

    def get_image(self, project: str, family: str) -> str | None:
        """Name of the newest image of a family; None if family or project does not exist, or the family is empty."""
        image = self._ask("Images", "get_from_family", project=project, family=family, missing=f"projects/{project}")
        return None if image is None else str(image.name)

    # Requests.

    def _labelled(self, kind: str, make: Callable[[Any], T]) -> Listing[T]:
        """Resources of one kind with our label, in all zones. Zones that the answer lacks are requested separately."""
        from google.api_core import exceptions as api  # noqa: PLC0415 - loaded only when it is needed

        ours = f"labels.{LABEL}={LABEL_VALUE}"
        there: list[T] = []
        silent: dict[str, None] = {}
        try:
            for page in self._pages(kind, "aggregated_list", filter=ours):
                silent |= dict.fromkeys(answers.gaps(page))
                there += [make(item) for scope in page.items.values() for item in getattr(scope, kind.lower())]
        except UnreachableError as error:
            # A server error may come from an outage of one zone. Without an answer from the server the network is down.
            if not isinstance(error.__cause__, api.GoogleAPICallError):
                raise
            return Listing(unreachable=(ANYWHERE,))
        for zone in [place for place in silent if ZONE.fullmatch(place)]:
            with suppress(UnreachableError):
                pages = list(self._pages(kind, "list", retry_s=0.0, zone=zone, filter=ours))
                if not any(page.warning.code in answers.GAPS for page in pages):
                    there += [make(item) for page in pages for item in page.items]
                    del silent[zone]
        return Listing(there=tuple(there), unreachable=tuple(silent))

    def _pages(self, kind: str, method: str, **fields: Any) -> Iterator[Any]:
        while True:
            # The client's pager would fetch the other pages by itself, without our limits.
            page = next(self._ask(kind, method, **fields).pages)
            yield page
            if not page.next_page_token:
                return
            fields["page_token"] = page.next_page_token

    def _ask_guest(self, method: str, **fields: Any) -> Any:
        """Send a request that needs a running VM; return the answer, None if the VM is gone or has not started yet."""
        from google.api_core import exceptions as api  # noqa: PLC0415 - loaded only when it is needed

        try:
            return self._ask("Instances", method, missing="", **fields)
        except ToolError as error:
            if isinstance(error.__cause__, api.BadRequest) and "not ready" in message_of(error.__cause__):
                return None
            raise

    def _ask(
        self,
        kind: str,
        method: str,
        *,
        missing: str | None = None,
        answer_s: float | None = None,
        retry_s: float | None = None,
        **fields: Any,
    ) -> Any:
        """Call `method` of the client for `kind` (such as Instances); None for a 404 whose message contains `missing`.

        `fields`: the request's fields; a field `project` replaces our project.
        """
        from google.api_core import exceptions as api  # noqa: PLC0415 - loaded only when it is needed

        request = {"project": self.project, **fields}

        def call() -> Any:
            with self._counting:
                for counter in self._counters:
                    counter[f"{kind[0].lower()}{kind[1:]}.{method}"] += 1
            # The client's `insert` and `delete` wait for the operation; `insert_unary` and `delete_unary` do not.
            form = f"{method}_unary" if method in ("insert", "delete") else method
            send = getattr(self._clients.get(kind), form)
            return send(request, retry=None, timeout=answer_s or ANSWER_S)

        limit_s = RETRY_S if retry_s is None else retry_s
        with translated(COMPUTE_ENGINE, lambda error: explained(error, self.project, method)):
            try:
                return repeated(call, limit_s, is_temporary, sleep=self._sleep, monotonic=self._monotonic)
            except api.NotFound as error:
                if missing is not None and missing in message_of(error):
                    return None
                raise


def connect(
    project: str, *, sleep: Callable[[float], None] = time.sleep, monotonic: Callable[[], float] = time.monotonic
) -> Compute:
    """Compute Engine for `project`; no request is sent yet.

    Raises `ToolError` if package or credentials are missing.
    """
    endpoint = os.environ.get(ENDPOINT_VARIABLE)
    try:
        from google.cloud import compute_v1  # noqa: F401, PLC0415 - takes 1.5 s
    except ModuleNotFoundError as error:
        raise ToolError("the package google-cloud-compute is missing", hint="pip install 'rooflaunch[gcp]'") from error
    clients = _Clients(credentials=credentials_for(endpoint), endpoint=endpoint, clock=CloudClock(monotonic))
    return Compute(project, clients, sleep=sleep, monotonic=monotonic)


def default_project() -> str | None:
    """Project of the application-default credentials; None if the credentials name no project."""
    if os.environ.get(ENDPOINT_VARIABLE):
        return os.environ.get("GOOGLE_CLOUD_PROJECT")
    try:
        project = _application_default()[1]
    except (ModuleNotFoundError, DeniedError):
        return None
    return str(project) if project else None


def credentials_for(endpoint: str | None) -> Any:
    """The user's credentials; anonymous ones for an `endpoint` other than Google's. Raises `DeniedError`."""
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415 - loaded only when it is needed

    make_anonymous: Any = AnonymousCredentials
    return make_anonymous() if endpoint else _application_default()[0]


def _application_default() -> tuple[Any, str | None]:
    """Application-default credentials and their project. Raises `DeniedError` if none can be used."""
    import google.auth  # noqa: PLC0415 - loaded only when it is needed

    # `gcloud auth` creates user credentials without a quota project; google.auth would warn about them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            credentials, project = google.auth.default(scopes=[SCOPE])
        except google.auth.exceptions.GoogleAuthError as error:
            raise no_credentials(error) from error
    return credentials, project
