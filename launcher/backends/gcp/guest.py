"""The landlord of a VM: what it asks its metadata server, and Compute Engine about itself. Standard library only.

It travels in the VM's metadata, or in the command of a task of Cloud Batch, and not in the image: see
launcher/agent/landlord.py.

Facts for the record come from workload/environment/gce.py, which nothing may hold up; what is asked here is waited for.
"""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from launcher.agent.home import epoch_s
from launcher.jobs.records import Request, request_object
from workload.contract.errors import ToolError
from workload.environment.metadata import METADATA_ADDRESS, Answer, MetadataServer, named_address
from workload.storage.store import open_store

COMPUTE = "https://compute.googleapis.com"
NAMESPACE = "rooflaunch"
LIMIT_S = 10.0
TRIES = 5
PAUSE_S = 1.0
# How long the server may keep a question whose answer has not changed.
WAIT_S = 60
# After the server has not answered.
ASK_AGAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Guest:
    """This VM. `sleep` is for the pauses between tries."""

    metadata: tuple[str, int]
    compute: str
    sleep: Callable[[float], None] = time.sleep

    @property
    def zone(self) -> str:
        """`us-central1-a`."""
        return self.text("instance/zone").rpartition("/")[2]

    def text(self, key: str) -> str:
        """The value of a key. Raises `ToolError` where the server does not have it, or does not answer."""
        return self._ask(key).text

    def request(self) -> bytes:
        """What the launch was asked to do, as the launcher wrote it."""
        return self.text("instance/attributes/rooflaunch-request").encode()

    def report(self, name: str, value: str) -> None:
        """Set a guest attribute. Raises `ToolError` where the server does not take it."""
        self._ask(f"instance/guest-attributes/{NAMESPACE}/{name}", put=value)

    def preempted(self, *, since: str | None = None) -> tuple[bool, str]:
        """Whether the VM is being taken away, and the answer's tag; with `since` the server waits for another one."""
        wait = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={since}" if since else ""
        answer = self._ask(f"instance/preempted{wait}", limit_s=LIMIT_S + (WAIT_S if since else 0))
        return answer.text.strip().upper() == "TRUE", answer.tag

    def is_preempted(self) -> bool:
        """Whether the VM is being taken away; where nobody answers, it is not known to be."""
        try:
            return self.preempted()[0]
        except ToolError:
            return False

    def await_preemption(self, is_over: Callable[[float], bool]) -> bool:
        """Wait until the VM is taken away; False once `is_over`, asked where the server does not answer, says so."""
        tag: str | None = None
        while True:
            try:
                taken, tag = self.preempted(since=tag)
            except ToolError:
                taken, tag = False, None
                if is_over(ASK_AGAIN_S):
                    return False
            if taken:
                return True

    def comes_back(self) -> bool:
        """Never: `--rerun-preempted` is a launch of its own."""
        return False

    def created_s(self) -> float | None:
        """When the VM was inserted."""
        return epoch_s(self.instance().get("creationTimestamp"))

    def deleted_s(self) -> float | None:
        """When Compute Engine deletes the VM: its `maxRunDuration` after its start."""
        status = self.instance().get("resourceStatus") or {}
        return epoch_s((status.get("scheduling") or {}).get("terminationTimestamp"))

    def facts(self, request: Request) -> Mapping[str, Any]:
        """What stands in the request, and the host that only Compute Engine tells."""
        status = self.instance().get("resourceStatus") or {}
        host = {"physical_host": status["physicalHost"]} if status.get("physicalHost") else {}
        vm_image = request.options.get("vm_image")
        return {"provider": "gce", "zone": self.zone, "spot": request.spot, "vm_image": vm_image, **host}

    def instance(self) -> Mapping[str, Any]:
        """This VM as Compute Engine describes it; empty where the service account may not ask, or nobody answers."""
        try:
            token = json.loads(self.text("instance/service-accounts/default/token"))["access_token"]
            where = (
                f"projects/{self.text('project/project-id')}/zones/{self.zone}/instances/{self.text('instance/name')}"
            )
            url = f"{self.compute}/compute/v1/{where}"
            asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - ours
            # No proxy: Google's own endpoint needs none on a VM.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(asked, timeout=LIMIT_S) as answer:
                document = json.loads(answer.read())
        except (ToolError, OSError, ValueError, KeyError):
            return {}
        return document if isinstance(document, dict) else {}

    def _ask(self, key: str, *, put: str | None = None, limit_s: float = LIMIT_S) -> Answer:
        for left in reversed(range(TRIES)):
            deadline_s = time.monotonic() + limit_s
            server = MetadataServer(address=self.metadata, deadline_s=deadline_s, connect_limit_s=LIMIT_S)
            try:
                answer = server.ask(key, put=put)
            except OSError as error:
                if not left:
                    raise _refused(key, str(error)) from error
            else:
                if answer.status == HTTPStatus.OK:
                    return answer
                if not left or answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                    raise _refused(key, f"HTTP {answer.status}")
            self.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")


@dataclass(frozen=True, kw_only=True)
class BatchGuest(Guest):
    """The VM of a task of Cloud Batch. The launch lies in its store, and Batch ends the task at its limit.

    `began_s`: when the task began, in seconds since 1970; `tries_left`: how often Batch starts it again.
    """

    store: str
    launch: str
    began_s: float
    limit_s: float
    tries_left: int

    def request(self) -> bytes:
        """As the launcher wrote it into the store before there was a job."""
        name = request_object(self.launch)
        content = open_store(self.store, probe=f"{name.rpartition('/')[0]}/").read(name)
        if content is None:
            raise ToolError(f"{self.store} has no {name}", hint="launch again")
        return content

    def report(self, name: str, value: str) -> None:
        """Batch's VMs have no guest attributes: the heartbeat in the store says it."""

    def deleted_s(self) -> float:
        """Batch's `maxRunDuration` counts from the start of the task."""
        return self.began_s + self.limit_s

    def comes_back(self) -> bool:
        """Whether Batch starts a task again whose VM was taken back."""
        return self.tries_left > 0


def this_machine(environment: Mapping[str, str] = os.environ) -> Guest:
    """The landlord of the VM that we are on; both addresses can be pointed elsewhere."""
    metadata = named_address(environment) or METADATA_ADDRESS
    compute = (environment.get("ROOFLAUNCH_COMPUTE_ENDPOINT") or COMPUTE).rstrip("/")
    if (launch := environment.get("ROOFLAUNCH_LAUNCH")) is None:
        return Guest(metadata=metadata, compute=compute)
    tries = int(environment["ROOFLAUNCH_RETRIES"]) - int(environment.get("BATCH_TASK_RETRY_ATTEMPT") or 0)
    return BatchGuest(
        metadata=metadata,
        compute=compute,
        store=environment["ROOFLAUNCH_STORE"],
        launch=launch,
        began_s=time.time(),
        limit_s=float(environment["ROOFLAUNCH_LIMIT_S"]),
        tries_left=tries,
    )


def _refused(key: str, why: str) -> ToolError:
    return ToolError(
        f"the metadata server has no answer for '{key.partition('?')[0]}': {why}",
        hint="this runs on a VM of `launch gcp` alone",
    )
