"""Facts that a VM learns about itself from its metadata server and Compute Engine. Standard library only.

This file travels in the VM's metadata, or in the command of a Cloud Batch task, instead of in the image. The interface
is described in launcher/agent/home.py.

A run's record gets its facts from workload/environment/cloud.py, which, unlike this module, never waits for an answer.
"""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from launcher.agent.home import epoch_s, request_in
from workload.contract.errors import ToolError
from workload.environment.cloud import METADATA_ADDRESS, Answer, MetadataServer, named_address

if TYPE_CHECKING:
    from launcher.protocol.records import Request

COMPUTE = "https://compute.googleapis.com"
NAMESPACE = "rooflaunch"
LIMIT_S = 10.0
TRIES = 5
PAUSE_S = 1.0
# Seconds for which the server may delay an unchanged answer.
WAIT_S = 60
# Pause after a request to the metadata server without an answer.
ASK_AGAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Guest:
    """The VM of this process. `metadata`, `compute`: addresses of the services; `sleep`: pauses between tries."""

    metadata: tuple[str, int]
    compute: str
    sleep: Callable[[float], None] = time.sleep

    @property
    def zone(self) -> str:
        """Zone of this VM, as `us-central1-a`."""
        return self.text("instance/zone").rpartition("/")[2]

    def text(self, key: str) -> str:
        """Value of a metadata key. Raises `ToolError` if the server lacks the key or does not answer."""
        return self._ask(key).text

    def request(self) -> bytes:
        """The launch's request, as the launcher wrote it."""
        return self.text("instance/attributes/rooflaunch-request").encode()

    def report(self, name: str, value: str) -> None:
        """Set a guest attribute. Raises `ToolError` if the server refuses it."""
        self._ask(f"instance/guest-attributes/{NAMESPACE}/{name}", put=value)

    def preempted(self, *, since: str | None = None) -> tuple[bool, str]:
        """Whether the VM is being preempted, and the answer's ETag. `since`: an earlier ETag; wait for a change."""
        wait = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={since}" if since else ""
        answer = self._ask(f"instance/preempted{wait}", limit_s=LIMIT_S + (WAIT_S if since else 0))
        return answer.text.strip().upper() == "TRUE", answer.tag

    def is_preempted(self) -> bool:
        """Whether the VM is being preempted; False if the metadata server does not answer."""
        try:
            return self.preempted()[0]
        except ToolError:
            return False

    def await_preemption(self, wait: Callable[[float], bool]) -> bool:
        """Wait until the VM is preempted. Without an answer, return False if `wait(pause_s)` says the run is over."""
        tag: str | None = None
        while True:
            try:
                is_preempted, tag = self.preempted(since=tag)
            except ToolError:
                is_preempted, tag = False, None
                if wait(ASK_AGAIN_S):
                    return False
            if is_preempted:
                return True

    def comes_back(self) -> bool:
        """Always False: a preempted VM is not restarted; `--rerun-preempted` starts a new launch instead."""
        return False

    def created_s(self) -> float | None:
        """Time at which the VM was created, in seconds since 1970."""
        return epoch_s(self.instance().get("creationTimestamp"))

    def deleted_s(self) -> float | None:
        """Time at which Compute Engine deletes the VM, in seconds since 1970: its start plus `maxRunDuration`."""
        status = self.instance().get("resourceStatus") or {}
        return epoch_s((status.get("scheduling") or {}).get("terminationTimestamp"))

    def facts(self, request: "Request") -> Mapping[str, Any]:
        """Facts on the VM: its zone, whether it is a spot VM, its boot image, and the physical host if known."""
        status = self.instance().get("resourceStatus") or {}
        host = {"physical_host": status["physicalHost"]} if status.get("physicalHost") else {}
        vm_image = request.options.get("vm_image")
        return {"provider": "gce", "zone": self.zone, "spot": request.spot, "vm_image": vm_image, **host}

    def instance(self) -> Mapping[str, Any]:
        """Compute Engine's description of this VM; {} without an answer or without permission to ask."""
        try:
            token = json.loads(self.text("instance/service-accounts/default/token"))["access_token"]
            where = (
                f"projects/{self.text('project/project-id')}/zones/{self.zone}/instances/{self.text('instance/name')}"
            )
            url = f"{self.compute}/compute/v1/{where}"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - ours
            # No proxy: Google's own endpoint needs none on a VM.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=LIMIT_S) as answer:
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
    """The VM of a Cloud Batch task. The store holds the launch's request, and Batch ends the task after `limit_s`.

    `began_s`: when the task began, in seconds since 1970; `tries_left`: how often Batch still restarts the task.
    """

    store: str
    launch: str
    began_s: float
    limit_s: float
    tries_left: int

    def request(self) -> bytes:
        """The launch's request from the store, where the launcher wrote it before it created the job."""
        return request_in(self.store, self.launch)

    def report(self, name: str, value: str) -> None:
        """Do nothing: Batch's VMs have no guest attributes, and the heartbeat in the store reports the phases."""

    def deleted_s(self) -> float:
        """Time at which Batch ends the task, in seconds since 1970: the task's start plus `limit_s`."""
        return self.began_s + self.limit_s

    def comes_back(self) -> bool:
        """Whether Batch restarts a task whose VM was preempted."""
        return self.tries_left > 0


def this_machine(environment: Mapping[str, str] = os.environ) -> Guest:
    """The VM of this process; environment variables can redirect the metadata server's and Compute Engine's address."""
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
        hint="this program runs only on a VM of `launch gcp`",
    )
