"""Bodies of requests to Compute Engine, what it refuses in them, and its errors, for the fake and its tests."""

import re
from collections.abc import Mapping
from typing import Any

# A launch of the tests of the client: zone, name, and id of its insert.
A, VM_NAME, ID = "us-central1-a", "rooflaunch-t4-20261121-142530-c0ffee", "0123456789abcdef0123456789abcdef"
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z]")
LABEL_KEY = re.compile(r"[a-z][_\-a-z0-9]{0,62}")
LABEL_VALUE = re.compile(r"[_\-a-z0-9]{0,63}")
# A family, or one image of it by the date that it has in its name.
IMAGE = re.compile(r"(?:.*/)?projects/([^/]+)/global/images/(?:family/)?([^/]+?)(?:-v[0-9]{8})?")
IMAGE_FAMILIES = {
    ("ubuntu-os-accelerator-images", "ubuntu-accelerator-2204-amd64-with-nvidia-580"),
    ("ubuntu-os-accelerator-images", "ubuntu-accelerator-2404-amd64-with-nvidia-580"),
    ("deeplearning-platform-release", "common-cu129-ubuntu-2204-nvidia-580"),
    ("ubuntu-os-cloud", "ubuntu-2204-lts"),
    ("ubuntu-os-cloud", "ubuntu-2404-lts-amd64"),
    ("debian-cloud", "debian-12"),
    ("cos-cloud", "cos-stable"),
}
METADATA_BYTES = 256 << 10
# What an insert may say, here: more than the launcher sends is a mistake of the launcher's.
BODY_FIELDS = {
    *("name", "machineType", "disks", "networkInterfaces", "scheduling", "metadata", "labels", "serviceAccounts"),
    "guestAccelerators",
}


class RefusalError(Exception):
    """An answer that is no success; `reason` and `info` as Google writes them in its two formats."""

    def __init__(self, status: int, message: str, reason: str = "invalid", info: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.info = info

    def document(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "code": self.status,
            "message": str(self),
            "errors": [{"message": str(self), "domain": "global", "reason": self.reason}],
        }
        if self.info:
            kind = "type.googleapis.com/google.rpc.ErrorInfo"
            error["details"] = [{"@type": kind, "reason": self.info, "domain": "googleapis.com", "metadata": {}}]
        return {"error": error}


def stockout_error(zone: str, *, zones_available: str = "", with_details: bool = False) -> dict[str, Any]:
    """As `operation.error.errors[]` has it."""
    place = f"projects/test-project/zones/{zone}"
    message = f"The zone '{place}' does not have enough resources available to fulfill the request."
    if not with_details:
        return {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": message}
    # As kubernetes/k8s.io#9834 has it.
    metadatas = {"zone": zone, "vmType": "n1-standard-4", "zonesAvailable": zones_available}
    details = [
        {"help": {"links": [{"url": "https://cloud.google.com/compute/docs/resource-error", "description": "docs"}]}},
        {"errorInfo": {"reason": "resource_availability", "domain": "compute.googleapis.com", "metadatas": metadatas}},
    ]
    return {"code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "message": message, "errorDetails": details}


def quota_error(where: str, metric: str, limit: float) -> dict[str, Any]:
    """As `operation.error.errors[]` has it; `where`: a region or `global`."""
    everywhere, limit = where == "global", float(limit)
    place = "globally" if everywhere else f"in region {where}"
    info = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{metric.replace('_', '-')}-per-project-{'' if everywhere else 'region'}".rstrip("-"),
        "limit": limit,
        "dimensions": {"global": "global"} if everywhere else {"region": where},
    }
    message = f"Quota '{metric}' exceeded.  Limit: {limit} {place}."
    return {"code": "QUOTA_EXCEEDED", "message": message, "errorDetails": [{"quotaInfo": info}]}


def plain_body(name: str, zone: str) -> dict[str, Any]:
    """The least that an insert needs, without a GPU."""
    return {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/n1-standard-1",
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts",
                    "diskSizeGb": "10",
                },
            }
        ],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "scheduling": {
            "automaticRestart": False,
            "onHostMaintenance": "TERMINATE",
            "instanceTerminationAction": "DELETE",
            "maxRunDuration": {"seconds": "3600"},
        },
        "metadata": {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]},
    }


def gpu_body(**changes: Any) -> dict[str, Any]:
    """A T4 as the plan asks for it, in short."""
    kind = f"zones/{A}/acceleratorTypes/nvidia-tesla-t4"
    return {
        **plain_body(VM_NAME, A),
        "machineType": f"zones/{A}/machineTypes/n1-standard-4",
        "guestAccelerators": [{"acceleratorType": kind, "acceleratorCount": 1}],
        **changes,
    }


def check_body(body: Mapping[str, Any], zone: str) -> None:
    """Refuse what the real one refuses, and what would let a VM outlive its limit."""
    if unknown := set(body) - BODY_FIELDS:
        raise RefusalError(400, f"Invalid JSON payload received. Unknown name {sorted(unknown)}")
    scheduling, [disk] = body["scheduling"], body["disks"]
    made, model = disk["initializeParams"], scheduling.get("provisioningModel", "STANDARD")
    image = IMAGE.fullmatch(str(made.get("sourceImage")))
    kind = made.get("diskType", f"zones/{zone}/diskTypes/pd-standard")
    size = sum(len(each["value"].encode()) for each in items_of(body))
    _require(ZONE.fullmatch(zone), "zone", zone)
    _require(NAME.fullmatch(str(body["name"])), "name", body["name"])
    _check_labels(body.get("labels", {}), "labels")
    for kind_of, named in (("machineType", body["machineType"]), *_accelerators(body)):
        _require(named.startswith(f"zones/{zone}/"), kind_of, named)
    maintenance = scheduling.get("onHostMaintenance")
    _require(maintenance == "TERMINATE", "scheduling.onHostMaintenance", maintenance)
    _require(model in ("STANDARD", "SPOT"), "scheduling.provisioningModel", model)
    restart = scheduling["automaticRestart"]
    _require(restart is False or model == "STANDARD", "scheduling.automaticRestart", restart)
    action = scheduling.get("instanceTerminationAction")
    _require(action == "DELETE", "scheduling.instanceTerminationAction", action)
    seconds = int(scheduling.get("maxRunDuration", {}).get("seconds", 0))
    _require(30 <= seconds <= 120 * 86400, "scheduling.maxRunDuration.seconds", seconds)
    _require(disk.get("boot") is True, "disks[0].boot", disk.get("boot"))
    _require(disk.get("autoDelete") is True, "disks[0].autoDelete", disk.get("autoDelete"))
    _require(image and (image[1], image[2]) in IMAGE_FAMILIES, "disks[0].initializeParams.sourceImage", made)
    # 64-bit integers are strings in Google's JSON.
    _require(str(made["diskSizeGb"]).isdigit(), "disks[0].initializeParams.diskSizeGb", made["diskSizeGb"])
    _require(re.fullmatch(rf"(.*/)?zones/{zone}/diskTypes/[a-z-]+", kind), "disks[0].initializeParams.diskType", kind)
    _check_labels(made.get("labels", {}), "disks[0].initializeParams.labels")
    _require(len(body["networkInterfaces"]) == 1, "networkInterfaces", body["networkInterfaces"])
    _require(size <= METADATA_BYTES, "metadata.items", f"{size} bytes")


def _require(ok: object, path: str, value: object) -> None:
    if not ok:
        raise RefusalError(400, f"Invalid value for field 'resource.{path}': '{value}'.")


def _check_labels(labels: Mapping[str, Any], path: str) -> None:
    for key, value in labels.items():
        _require(LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(str(value)), path, f"{key}={value}")


def _accelerators(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("guestAccelerators.acceleratorType", each["acceleratorType"]) for each in body.get("guestAccelerators", ())
    ]


def items_of(body: Mapping[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = body.get("metadata", {}).get("items", [])
    return found
