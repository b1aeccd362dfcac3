"""A request for one VM, as tests of the client and of the fake send it."""

from typing import Any

from tests.launcher.backends.gcp.compute_bodies import plain_body

A = "us-central1-a"
NAME = "rooflaunch-t4-20261121-142530-c0ffee"
ID = "0123456789abcdef0123456789abcdef"


def gpu_body(**changes: Any) -> dict[str, Any]:
    """A T4 as the plan asks for it, in short."""
    body = plain_body(NAME, A)
    body["machineType"] = f"zones/{A}/machineTypes/n1-standard-4"
    kind = f"zones/{A}/acceleratorTypes/nvidia-tesla-t4"
    return {**body, "guestAccelerators": [{"acceleratorType": kind, "acceleratorCount": 1}], **changes}
