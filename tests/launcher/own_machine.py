"""A launch on a machine that its user can log in to."""

from typing import Any

from launcher.protocol.records import Request
from workload.contract.spec import RunSpec

NAME = "rooflaunch-box-20261121-142530-3fa9c1"


def own_machine_request(**changes: Any) -> Request:
    plain: dict[str, Any] = {
        "name": NAME,
        "backend": "ssh",
        "launched_at": "2026-11-21T14:25:30.000+00:00",
        "store": "/store",
        "place": "ssh-box",
        "runtime": "process",
        "limit_s": 60,
        "spec": RunSpec().to_json(),
    }
    return Request(**plain | changes)
