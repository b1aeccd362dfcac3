"""Facts that an EC2 instance learns about itself from its metadata server. Standard library only.

This file travels in the instance's user data instead of in the image. The interface is described in
launcher/agent/home.py. A run's record gets its facts from workload/environment/cloud.py, which, unlike this
module, never waits for an answer.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.agent.home import epoch_s, request_in
from workload.contract.errors import ToolError
from workload.environment.cloud import EC2_VARIABLE, METADATA_ADDRESS, InstanceMetadata, named_address

if TYPE_CHECKING:
    from launcher.protocol.records import Request

# Tag with the end of the instance (`ENDS_TAG` of answers.py).
ENDS_KEY = "meta-data/tags/instance/rooflaunch-ends"
ZONE_KEY = "meta-data/placement/availability-zone-id"
IDENTITY_KEY = "dynamic/instance-identity/document"
# Absent until about two minutes before the end.
INTERRUPTION_KEY = "meta-data/spot/instance-action"
# As Amazon recommends: docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html.
LOOK_EVERY_S = 5.0
LIMIT_S = 10.0
TRIES = 5
PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Guest:
    """The instance of this process; `limit_s`: time limit of the launch, from the instance's start."""

    metadata: tuple[str, int]
    store: str
    launch: str
    limit_s: float
    sleep: Callable[[float], None] = time.sleep

    @property
    def zone(self) -> str:
        """Id of the instance's zone, as `use1-az4`, which names the same zone in all accounts."""
        return self._ask(ZONE_KEY) or ""

    def request(self) -> bytes:
        """The launch's request from the store, where the launcher wrote it before it started the instance."""
        return request_in(self.store, self.launch)

    def report(self, name: str, value: str) -> None:
        """Do nothing: EC2 has no guest attributes, and the heartbeat in the store reports the phases."""

    def is_preempted(self) -> bool:
        """Whether EC2 is about to take a spot instance away; False if the metadata server does not answer."""
        try:
            return bool(self._ask(INTERRUPTION_KEY))
        except ToolError:
            return False

    def await_preemption(self, wait: Callable[[float], bool]) -> bool:
        """Wait until EC2 takes the instance away; return False once `wait(pause_s)` says that the run is over."""
        while not self.is_preempted():
            if wait(LOOK_EVERY_S):
                return False
        return True

    def comes_back(self) -> bool:
        """Always False: `--rerun-preempted` starts a new launch instead."""
        return False

    def created_s(self) -> float | None:
        """Time at which the instance was started, in seconds since 1970."""
        try:
            identity = json.loads(self._ask(IDENTITY_KEY) or "{}")
        except (ToolError, ValueError):
            return None
        return epoch_s(identity.get("pendingTime")) if isinstance(identity, dict) else None

    def deleted_s(self) -> float | None:
        """Time at which the instance ends, in seconds since 1970: by its schedule or, if earlier, by its time limit."""
        try:
            scheduled_s = epoch_s(self._ask(ENDS_KEY))
        except ToolError:
            scheduled_s = None
        created_s = self.created_s()
        ends = (scheduled_s, None if created_s is None else created_s + self.limit_s)
        return min((end_s for end_s in ends if end_s is not None), default=None)

    def facts(self, request: "Request") -> Mapping[str, Any]:
        """Facts on the instance: its zone, whether it is a spot instance, and its AMI as the launch named it."""
        return {"provider": "ec2", "zone": self.zone, "spot": request.spot, "vm_image": request.options.get("ami")}

    def _ask(self, key: str) -> str | None:
        """Value of a key; None if the instance lacks it. Raises `ToolError` if the server does not answer."""
        for left in reversed(range(TRIES)):
            server = InstanceMetadata(
                address=self.metadata, deadline_s=time.monotonic() + LIMIT_S, connect_limit_s=LIMIT_S
            )
            try:
                return server.ask(key)
            except OSError as error:
                if not left:
                    raise ToolError(
                        f"the metadata server has no answer for '{key}': {error}",
                        hint="this program runs only on an instance of `launch aws`",
                    ) from error
            self.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")


def this_machine(environment: Mapping[str, str] = os.environ) -> Guest:
    """Instance on which this process runs, by variables from boot.py; a test redirects the metadata server."""
    return Guest(
        metadata=named_address(environment, EC2_VARIABLE) or METADATA_ADDRESS,
        store=environment["ROOFLAUNCH_STORE"],
        launch=environment["ROOFLAUNCH_LAUNCH"],
        limit_s=float(environment["ROOFLAUNCH_LIMIT_S"]),
    )
