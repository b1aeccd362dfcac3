"""Dataclasses for Compute Engine's VMs, disks, operations and quotas.

The functions take the client's own objects: google.cloud.compute_v1's `Instance` and the like.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.backends.zone_by_zone import Fault
from launcher.protocol.backend import ANYWHERE, Condition, Machine
from launcher.protocol.records import epoch_s

LIMIT_LABEL = "rooflaunch-limit"
# Google's default: a host error is noticed within 5.5 min, and the VM is started again within some minutes.
RESTART_S = 15 * 60.0
STARTING = frozenset({"PROVISIONING", "STAGING"})
REPAIRING = "REPAIRING"
# States of a VM that a host error or a person has stopped.
STOPPED = frozenset({"STOPPED", "TERMINATED", "SUSPENDED"})
# Codes of warnings that a list lacks zones. Other warnings, such as NO_RESULTS_ON_PAGE, do not matter.
GAPS = ("UNREACHABLE", "PARTIAL_SUCCESS")
REQUEST_LABEL = "rooflaunch-request"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation in a zone, such as creating a VM; `Compute.wait` waits for its end."""

    name: str
    zone: str


@dataclass(frozen=True, kw_only=True)
class OperationFault(Fault):
    """An error of an operation. `quota_dimensions`: where the quota applies, such as {"region": "us-central1"}."""

    quota_dimensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Instance(Machine):
    """A VM. `request_id`: the id of the insert that made it; empty for somebody else's VM."""

    request_id: str = ""


@dataclass(frozen=True, kw_only=True)
class VmDisk:
    """A disk. `users`: names of the VMs that use it.

    `deadline_s`: planned end of the disk's launch, in seconds since 1970; None if unknown.
    """

    name: str
    zone: str
    deadline_s: float | None
    users: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Limit and current usage of one quota of a project, in a region or overall."""

    limit: float
    usage: float

    @property
    def remaining(self) -> float:
        return self.limit - self.usage


def operation(answer: Any, zone: str) -> Operation:
    return Operation(name=str(answer.name), zone=zone)


def faults(answer: Any) -> tuple[OperationFault, ...]:
    known = tuple(_fault(error) for error in answer.error.errors)
    if known or not answer.http_error_status_code:
        return known
    code, message = answer.http_error_status_code, answer.http_error_message
    return (OperationFault(code=f"HTTP_{code}", message=str(message)),)


def _fault(error: Any) -> OperationFault:
    zones: list[str] = []
    dimensions: dict[str, str] = {}
    for detail in error.error_details:
        named = detail.error_info.metadatas.get("zonesAvailable", "")
        zones += [zone.strip() for zone in named.split(",") if zone.strip()]
        dimensions |= dict(detail.quota_info.dimensions)
    return OperationFault(
        code=str(error.code), message=str(error.message), zones_available=tuple(zones), quota_dimensions=dimensions
    )


def instance(answer: Any) -> Instance:
    status, restarts = str(answer.status), bool(answer.scheduling.automatic_restart)
    deadline_s, stopped_s = _vm_deadline_s(answer), epoch_s(answer.last_stop_timestamp)
    restarts_until_s = None if stopped_s is None else stopped_s + RESTART_S
    condition = Condition.RUNNING
    if status in STOPPED:
        condition = Condition.STOPPED
    elif status in STARTING:
        condition = Condition.STARTING
    elif status == REPAIRING and restarts:
        # The cloud restarts a VM under repair, at the latest when its time limit ends.
        condition, restarts_until_s = Condition.STOPPED, deadline_s
    return Instance(
        name=str(answer.name),
        zone=last_part(answer.zone),
        condition=condition,
        status=status,
        created_s=epoch_s(answer.creation_timestamp),
        deadline_s=deadline_s,
        restarts=restarts,
        restarts_until_s=restarts_until_s,
        request_id=str(answer.labels.get(REQUEST_LABEL, "")),
    )


def disk(answer: Any) -> VmDisk:
    text = answer.labels.get(LIMIT_LABEL, "")
    return VmDisk(
        name=str(answer.name),
        zone=last_part(answer.zone),
        deadline_s=_limit_after(answer.creation_timestamp, int(text) if text.isascii() and text.isdigit() else 0),
        users=tuple(last_part(user) for user in answer.users),
    )


def gaps(page: Any) -> list[str]:
    """Zones (or regions) that a page of an aggregated list reports as unreachable."""
    places = [last_part(place) for place in page.unreachables]
    places += [last_part(scope) for scope, part in page.items.items() if part.warning.code in GAPS]
    if page.warning.code in GAPS and not places:
        places += [last_part(item.value) for item in page.warning.data if "zones/" in item.value] or [ANYWHERE]
    return places


def _vm_deadline_s(answer: Any) -> float | None:
    """End time that the cloud reports, in seconds since 1970, else creation time plus limit; None if unknown."""
    deadline_s = epoch_s(answer.resource_status.scheduling.termination_timestamp)
    if deadline_s is not None:
        return deadline_s
    return _limit_after(answer.creation_timestamp, int(answer.scheduling.max_run_duration.seconds))


def _limit_after(created_at: str, limit_s: int) -> float | None:
    created_s = epoch_s(created_at)
    return created_s + limit_s if created_s is not None and limit_s else None


def quotas(answer: Any) -> Mapping[str, Quota]:
    return {str(quota.metric): Quota(limit=float(quota.limit), usage=float(quota.usage)) for quota in answer.quotas}


def last_part(url: str) -> str:
    """Last part of a resource's URL: a zone comes as `https://…/zones/us-central1-a`."""
    return str(url).rpartition("/")[2]
