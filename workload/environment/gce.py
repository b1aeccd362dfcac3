"""Facts of a VM from Compute Engine's metadata server.

Only the named keys are requested, one by one: a recursive query would also return service accounts, SSH keys and
start-up scripts.
"""

import json
from http import HTTPStatus

from workload.environment.metadata import MetadataServer

TEXT_KEYS = {
    "instance_id": "instance/id",
    "instance_name": "instance/name",
    "zone": "instance/zone",
    "machine_type": "instance/machine-type",
    "image": "instance/image",
    "cpu_platform": "instance/cpu-platform",
    "maintenance_event": "instance/maintenance-event",
    "on_host_maintenance": "instance/scheduling/on-host-maintenance",
    "physical_host": "instance/attributes/physical_host",
}
FLAG_KEYS = {
    "preempted": "instance/preempted",
    "spot": "instance/scheduling/preemptible",
    "automatic_restart": "instance/scheduling/automatic-restart",
}
TOPOLOGY_KEY = "instance/attributes/physical_host_topology"


def gce_facts(server: MetadataServer) -> dict[str, object] | None:
    """Facts of the VM; None if the server does not answer. A fact that the server does not know is None."""
    try:
        server.ask("instance/id")
    except OSError:
        return None
    return {
        "provider": "gce",
        **{name: _last_part(name, _text(server, key)) for name, key in TEXT_KEYS.items()},
        **{name: _flag(_text(server, key)) for name, key in FLAG_KEYS.items()},
        "physical_host_topology": _topology(_text(server, TOPOLOGY_KEY)),
    }


def _text(server: MetadataServer, key: str) -> str | None:
    try:
        answer = server.ask(key)
    except OSError:
        return None
    return answer.text.strip() or None if answer.status == HTTPStatus.OK else None


def _last_part(name: str, text: str | None) -> str | None:
    """Last part of a zone or machine type: `projects/1/zones/us-central1-a` -> `us-central1-a`; other texts unchanged.

    The name of an image is unchanged too, because its project names the image's owner.
    """
    return text.rpartition("/")[2] if text and name in {"zone", "machine_type"} else text


def _flag(text: str | None) -> bool | None:
    return {"TRUE": True, "FALSE": False}.get((text or "").upper())


def _topology(text: str | None) -> dict[str, str] | None:
    """Opaque names of cluster, block, sub-block and host; None if `text` is not a JSON object."""
    try:
        parsed = json.loads(text or "null")
    except ValueError:
        return None
    return {key: str(value) for key, value in parsed.items()} if isinstance(parsed, dict) else None
