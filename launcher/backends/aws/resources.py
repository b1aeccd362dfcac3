"""Dataclasses for EC2's instances, images and volumes, made of boto3's answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from launcher.protocol.backend import Condition, Machine

# Tags of everything that a launch makes.
LABEL, LABEL_VALUE = "rooflaunch", "launch"
NAME_TAG, LIMIT_TAG = "rooflaunch-name", "rooflaunch-limit"
# Tag of the instance: when a schedule ends the instance (`2026-12-01T10:00:00Z`). The launcher makes the schedule, then
# sets the tag; the instance starts no run before.
ENDS_TAG = "rooflaunch-ends"
SPOT_ENDED = "Server.SpotInstanceTermination"
CONDITIONS = {
    "pending": Condition.STARTING,
    "running": Condition.RUNNING,
    "shutting-down": Condition.RUNNING,
    "stopping": Condition.STOPPED,
    "stopped": Condition.STOPPED,
    "terminated": Condition.GONE,
}


@dataclass(frozen=True, kw_only=True)
class Instance(Machine):
    """An instance. `id`: EC2's id; `reason`: EC2's code for its end; `has_schedule`: it has a schedule (by its tag)."""

    id: str
    reason: str = ""
    limit_s: float | None = None
    has_schedule: bool = False


@dataclass(frozen=True, kw_only=True)
class Ami:
    """An image that an instance boots. `root`: name of its root device, which the request must repeat exactly."""

    id: str
    name: str
    root: str
    gigabytes: int


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A disk that no instance uses, with the planned end of its launch, if known."""

    id: str
    name: str
    zone: str
    deadline_s: float | None


def instance(answer: Mapping[str, Any], zone_ids: Mapping[str, str]) -> Instance:
    """Instance that an answer describes. `zone_ids`: ids of zones by their names in this account."""
    tags, reason = tags_of(answer), answer.get("StateReason", {})
    state = str(answer["State"]["Name"])
    created_s = _seconds(answer.get("LaunchTime"))
    limit_s = _number(tags.get(LIMIT_TAG))
    code = str(reason.get("Code", ""))
    return Instance(
        name=tags.get(NAME_TAG, ""),
        zone=zone_id(answer.get("Placement", {}), zone_ids),
        condition=CONDITIONS.get(state, Condition.RUNNING),
        status=state,
        created_s=created_s,
        deadline_s=created_s + limit_s if created_s is not None and limit_s else None,
        preempted=code == SPOT_ENDED,
        why=f"{code}: {reason.get('Message', '')}" if code and CONDITIONS.get(state) is Condition.GONE else "",
        id=str(answer["InstanceId"]),
        reason=code,
        limit_s=limit_s,
        has_schedule=ENDS_TAG in tags,
    )


def volume(answer: Mapping[str, Any], zone_ids: Mapping[str, str]) -> Volume:
    """Volume that an answer describes."""
    tags, created_s = tags_of(answer), _seconds(answer.get("CreateTime"))
    limit_s = _number(tags.get(LIMIT_TAG))
    deadline_s = created_s + limit_s if created_s is not None and limit_s else None
    where = zone_id(answer, zone_ids)
    return Volume(id=str(answer["VolumeId"]), name=tags.get(NAME_TAG, ""), zone=where, deadline_s=deadline_s)


def zone_id(answer: Mapping[str, Any], zone_ids: Mapping[str, str]) -> str:
    """Id of the zone that an answer names; its name in this account if the id is not known."""
    name = str(answer.get("AvailabilityZone", ""))
    return str(answer.get("AvailabilityZoneId") or zone_ids.get(name, name))


def tags_of(answer: Mapping[str, Any]) -> dict[str, str]:
    """Tags of a resource."""
    return {str(tag["Key"]): str(tag["Value"]) for tag in answer.get("Tags", ())}


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() else None


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
