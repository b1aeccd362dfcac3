"""Facts of an instance from EC2's metadata server.

Only the named keys are requested. The account's number and the private address of the identity document are dropped.
"""

import json
from contextlib import suppress

from workload.environment.metadata import InstanceMetadata

IDENTITY_KEY = "dynamic/instance-identity/document"
# Our name -> name in the identity document.
IDENTITY = {"instance_id": "instanceId", "machine_type": "instanceType", "image": "imageId", "region": "region"}
# A zone's id (`use1-az4`) names the same zone in all accounts; a zone's letter (`us-east-1a`) does not.
ZONE_KEY = "meta-data/placement/availability-zone-id"
# `on-demand`, `spot`, `scheduled` or `capacity-block`.
LIFE_CYCLE_KEY = "meta-data/instance-life-cycle"
# Only dedicated hosts have this key.
HOST_KEY = "meta-data/placement/host-id"
SPOT = "spot"


def ec2_facts(server: InstanceMetadata) -> dict[str, object] | None:
    """Facts of the instance; None if the server does not answer. A fact that the server does not know is None."""
    try:
        identity = json.loads(server.ask(IDENTITY_KEY) or "{}")
    except (OSError, ValueError):
        return None
    if not isinstance(identity, dict):
        return None
    life_cycle = _text(server, LIFE_CYCLE_KEY)
    return {
        "provider": "ec2",
        **{ours: str(identity[theirs]) if identity.get(theirs) else None for ours, theirs in IDENTITY.items()},
        "zone": _text(server, ZONE_KEY),
        "life_cycle": life_cycle,
        "spot": None if life_cycle is None else life_cycle == SPOT,
        "physical_host": _text(server, HOST_KEY),
    }


def _text(server: InstanceMetadata, key: str) -> str | None:
    with suppress(OSError):
        return server.ask(key) or None
    return None
