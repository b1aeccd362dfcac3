"""What a launch leaves in its bucket, so that any machine can find, follow and end it. Written and read here alone.

    launches/<name>/request.json   by the launcher, before the VM exists
    launches/<name>/status.json    by the VM, again and again: its heartbeat
    launches/<name>/result.json    by the VM, once, after its bundles
    launches/<name>/startup.log    by the VM, on any exit
    runs/<run_id>/…                the bundles, each with MANIFEST.json last

A launch has the name of its VM and may leave several bundles (`--repeats`). No document holds a credential.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from workload.errors import BundleError

SCHEMA_VERSION = 1
LAUNCHES = "launches/"
RUNS = "runs/"
# What Compute Engine allows for the name of an instance, and what ours start with.
NAME = re.compile(r"rooflaunch-[a-z0-9-]{1,51}[a-z0-9]")


class Phase(StrEnum):
    """What a launch has come to, in this order; the VM's clock but for the first."""

    REQUESTED = "requested"
    BOOTED = "booted"
    DRIVER_READY = "driver_ready"
    DOCKER_READY = "docker_ready"
    IMAGE_PULLED = "image_pulled"
    RUN_STARTED = "run_started"
    RUN_ENDED = "run_ended"
    PROFILE_STARTED = "profile_started"
    PROFILE_ENDED = "profile_ended"
    UPLOADED = "uploaded"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class Price:
    """USD per hour of the whole VM with its GPUs, without disk and egress; `read`: when the list was read."""

    usd_per_h: float
    source: str
    read: str


@dataclass(frozen=True, kw_only=True)
class _Document:
    """JSON with a schema version; a field that a reader does not know is left out."""

    def to_bytes(self) -> bytes:
        """As it is stored."""
        document = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        return json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The inverse; `BundleError` for anything that is no such document, or of a newer schema."""
        try:
            document = json.loads(content)
            version = document["schema_version"]
            known = {item.name: document[item.name] for item in fields(cls) if item.name in document}
            if version <= SCHEMA_VERSION:
                return cls(**known)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            kind = cls.__name__.lower()
            raise BundleError(f"no readable {kind} of a launch: {error}", hint="launch again") from error
        raise BundleError(
            f"a launch's record has schema {version}; this version reads up to {SCHEMA_VERSION}",
            hint="upgrade rooflaunch to the version that wrote it, or a newer one",
        )


@dataclass(frozen=True, kw_only=True)
class Request(_Document):
    """Everything that was asked for: what the VM reads from its metadata, and others from the bucket.

    `launched_at` is ISO 8601 in UTC; `limit_s` is when the cloud deletes the VM; `image` has the registry's digest.
    `prices` by region, without the regions whose price is unknown. `place` is completed by the VM with its zone.
    """

    name: str
    launched_at: str
    project: str
    bucket: str
    gpu: str
    gpu_count: int
    machine_type: str
    spot: bool
    zones: list[str]
    image: str
    flavour: str
    vm_image: str
    limit_s: int
    spec: Mapping[str, Any]
    spec_origin: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attempt: int = 1

    def price(self, zone: str) -> Price | None:
        """The price in the zone's region, if it is known."""
        found = self.prices.get(region_of(zone))
        return Price(**found) if found else None


@dataclass(frozen=True, kw_only=True)
class Heartbeat(_Document):
    """That the VM lives, and what it has come to: `phases` has ISO 8601 times by `Phase`.

    `runs` are the bundles that are whole in the bucket, by id.
    """

    at: str
    zone: str
    phases: Mapping[str, str]
    runs: list[str] = field(default_factory=list)
    last_line: str = ""


@dataclass(frozen=True, kw_only=True)
class Result(_Document):
    """How the launch ended: the exit code of `launch local` for the same run, and what was uploaded whole.

    `error` and `hint` as an error prints them; `runs` are the bundles in the bucket, by id.
    """

    exit_code: int
    zone: str
    runs: list[str]
    phases: Mapping[str, str]
    ended_at: str
    error: str = ""
    hint: str = ""
    preempted: bool = False
    timed_out: bool = False
    usd: float | None = None


def request_object(name: str) -> str:
    return f"{LAUNCHES}{name}/request.json"


def status_object(name: str) -> str:
    return f"{LAUNCHES}{name}/status.json"


def result_object(name: str) -> str:
    return f"{LAUNCHES}{name}/result.json"


def log_object(name: str) -> str:
    return f"{LAUNCHES}{name}/startup.log"


def region_of(zone: str) -> str:
    """`us-central1-a` -> `us-central1`."""
    return zone.rpartition("-")[0]
