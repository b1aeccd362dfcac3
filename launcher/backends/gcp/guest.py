"""The landlord of a VM: what it asks its metadata server, and Compute Engine about itself. Standard library only.

It travels in the VM's metadata and not in the image: see launcher/agent/landlord.py.

Facts for the record come from workload/environment/gce.py, which nothing may hold up; what is asked here is waited for.
Keys: cloud.google.com/compute/docs/metadata/predefined-metadata-keys, read 2026-11.
"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from launcher.agent.home import epoch_s
from launcher.jobs.records import Request
from workload.contract.errors import ToolError

FLAVOR = {"Metadata-Flavor": "Google"}
# The address, not the name: a container's name servers need not know it.
METADATA_HOST = "169.254.169.254"
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

    metadata: str
    compute: str
    sleep: Callable[[float], None] = time.sleep

    @property
    def zone(self) -> str:
        """`us-central1-a`."""
        return self.text("instance/zone").rpartition("/")[2]

    def text(self, key: str) -> str:
        """The value of a key. Raises `ToolError` where the server does not have it, or does not answer."""
        return self._ask(key)[0]

    def request(self) -> bytes:
        """What the launch was asked to do, as the launcher wrote it."""
        return self.text("instance/attributes/rooflaunch-request").encode()

    def report(self, name: str, value: str) -> None:
        """Set a guest attribute. Raises `ToolError` where the server does not take it."""
        self._ask(f"instance/guest-attributes/{NAMESPACE}/{name}", method="PUT", content=value.encode())

    def preempted(self, *, since: str | None = None) -> tuple[bool, str]:
        """Whether the VM is being taken away, and the answer's tag; with `since` the server waits for another one."""
        wait = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={since}" if since else ""
        text, tag = self._ask(f"instance/preempted{wait}", limit_s=LIMIT_S + (WAIT_S if since else 0))
        return text.strip().upper() == "TRUE", tag

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
            content, _ = _fetch(url, {"Authorization": f"Bearer {token}"}, limit_s=LIMIT_S)
            found = json.loads(content)
        except (ToolError, OSError, ValueError, KeyError):
            return {}
        return found if isinstance(found, dict) else {}

    def _ask(
        self, key: str, *, method: str = "GET", content: bytes | None = None, limit_s: float = LIMIT_S
    ) -> tuple[str, str]:
        url = f"{self.metadata}/computeMetadata/v1/{key}"
        for left in reversed(range(TRIES)):
            try:
                return _fetch(url, FLAVOR, method=method, content=content, limit_s=limit_s)
            except urllib.error.HTTPError as error:
                missing = error.code in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN)
                if missing or not left:
                    raise _refused(key, f"HTTP {error.code}") from error
            except OSError as error:
                if not left:
                    raise _refused(key, str(error)) from error
            self.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")


def this_machine(environment: Mapping[str, str] = os.environ) -> Guest:
    """The landlord of the VM that we are on; both addresses can be pointed elsewhere."""
    return Guest(
        metadata=f"http://{environment.get('GCE_METADATA_HOST') or METADATA_HOST}",
        compute=(environment.get("ROOFLAUNCH_COMPUTE_ENDPOINT") or COMPUTE).rstrip("/"),
    )


def _fetch(
    url: str, headers: Mapping[str, str], *, method: str = "GET", content: bytes | None = None, limit_s: float
) -> tuple[str, str]:
    """The text and its tag. Raises `HTTPError`, `OSError`."""
    asked = urllib.request.Request(url, headers=dict(headers), method=method, data=content)  # noqa: S310 - ours
    # No proxy: metadata is a matter of this machine, and Google's own endpoint needs none on a VM.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(asked, timeout=limit_s) as answer:
        if headers is FLAVOR and answer.headers.get("Metadata-Flavor") != FLAVOR["Metadata-Flavor"]:
            raise OSError("the answer is not from Google's metadata server")
        return answer.read().decode(), answer.headers.get("ETag") or ""


def _refused(key: str, why: str) -> ToolError:
    return ToolError(
        f"the metadata server has no answer for '{key.partition('?')[0]}': {why}",
        hint="this runs on a VM of `launch gcp` alone",
    )
