"""Facts of a rented machine from the metadata server of its cloud, within a second.

This module decides which cloud it is. A run on any other machine must not wait for an answer, so the firmware or a
variable decides whether a server is asked at all. Only the named keys are requested, one by one: a recursive query
would also return service accounts, SSH keys and start-up scripts. The account's number and the private address of EC2's
identity document are dropped.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from workload.environment.machine import HostSystem
from workload.environment.metadata import EC2_VARIABLE, HOST_VARIABLE, InstanceMetadata, MetadataServer, named_address
from workload.environment.system import dmi_makers

# Limit of all requests together. On a VM an answer takes about a millisecond.
LIMIT_S = 1.0
# Limit of one answer: these values are short.
MOST_BYTES = 64 * 1024
# EC2's older types of instances run on Xen: their firmware is Xen's, and their UUID begins with these letters.
XEN_UUID, EC2_UUID = "/sys/hypervisor/uuid", "ec2"
# Our name -> key of Compute Engine's server, for texts and for flags.
GCE_TEXTS = {
    "instance_id": "instance/id",
    "instance_name": "instance/name",
    "zone": "instance/zone",
    "machine_type": "instance/machine-type",
    "image": "instance/image",
    "cpu_platform": "instance/cpu-platform",
    "physical_host": "instance/attributes/physical_host",
}
GCE_FLAGS = {
    "preempted": "instance/preempted",
    "spot": "instance/scheduling/preemptible",
}
EC2_IDENTITY = "dynamic/instance-identity/document"
# Our name -> name in EC2's identity document.
EC2_TEXTS = {"instance_id": "instanceId", "machine_type": "instanceType", "image": "imageId", "region": "region"}
# A zone's id (`use1-az4`) names the same zone in all accounts; a zone's letter (`us-east-1a`) does not.
EC2_ZONE = "meta-data/placement/availability-zone-id"
# `on-demand`, `spot`, `scheduled` or `capacity-block`.
EC2_LIFE_CYCLE = "meta-data/instance-life-cycle"
# Only dedicated hosts have this key.
EC2_HOST = "meta-data/placement/host-id"


def cloud_facts(machine: HostSystem, *, clock: Callable[[], float] = time.monotonic) -> dict[str, object] | None:
    """Facts of the VM, for section `cloud` of run.json; None on any other machine, and if no server answers.

    A fact that the server does not know is None.
    """
    variable = _variable(machine)
    address = named_address(machine.environ, variable) if variable else None
    if address is None:
        return None
    deadline_s = clock() + LIMIT_S
    with suppress(OSError):
        if variable == EC2_VARIABLE:
            return _of_ec2(InstanceMetadata(address=address, deadline_s=deadline_s, clock=clock, most_bytes=MOST_BYTES))
        return _of_gce(MetadataServer(address=address, deadline_s=deadline_s, clock=clock, most_bytes=MOST_BYTES))
    return None


def _variable(machine: HostSystem) -> str | None:
    """Variable that may hold the metadata server's address, and that identifies the cloud; None if there is no server.

    A variable that is set decides, otherwise the firmware's maker. A Linux without firmware may be a VM of Google's.
    """
    for variable in (HOST_VARIABLE, EC2_VARIABLE):
        if machine.environ.get(variable):
            return variable
    makers = dmi_makers(machine)
    if any(maker.startswith("Amazon EC2") for maker in makers) or (machine.text(XEN_UUID) or "").startswith(EC2_UUID):
        return EC2_VARIABLE
    is_google = any(maker.startswith("Google") for maker in makers)
    return HOST_VARIABLE if is_google or (not makers and machine.exists("/proc/self")) else None


def _of_gce(server: MetadataServer) -> dict[str, object]:
    """Facts of a VM of Compute Engine. Raises `OSError` if its server does not answer."""
    server.ask("instance/id")

    def text(key: str) -> str | None:
        with suppress(OSError):
            answer = server.ask(key)
            return answer.text.strip() or None if answer.status == HTTPStatus.OK else None
        return None

    texts = {name: text(key) for name, key in GCE_TEXTS.items()}
    # The server gives whole paths: `projects/1/zones/us-central1-a`. The path of an image names its owner, and is kept.
    short = {name: (texts[name] or "").rpartition("/")[2] or None for name in ("zone", "machine_type")}
    flags = {name: {"TRUE": True, "FALSE": False}.get((text(key) or "").upper()) for name, key in GCE_FLAGS.items()}
    return {"provider": "gce", **texts, **short, **flags}


def _of_ec2(server: InstanceMetadata) -> dict[str, object] | None:
    """Facts of an EC2 instance; None if its identity is unreadable. Raises `OSError` if its server does not answer."""
    identity: object = None
    with suppress(ValueError):
        identity = json.loads(server.ask(EC2_IDENTITY) or "{}")
    if not isinstance(identity, dict):
        return None

    def text(key: str) -> str | None:
        with suppress(OSError):
            return server.ask(key) or None
        return None

    life_cycle = text(EC2_LIFE_CYCLE)
    return {
        "provider": "ec2",
        **{ours: str(identity[theirs]) if identity.get(theirs) else None for ours, theirs in EC2_TEXTS.items()},
        "zone": text(EC2_ZONE),
        "spot": None if life_cycle is None else life_cycle == "spot",
        "physical_host": text(EC2_HOST),
    }
