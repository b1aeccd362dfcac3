"""Plan of `launch aws`: the instance, what it may cost, its text for the user, and the request. Uses no network."""

import gzip
import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.backends.aws import gpus
from launcher.backends.aws.answers import ENDS_TAG, LABEL, LABEL_VALUE, LIMIT_TAG, NAME_TAG, Ami
from launcher.backends.aws.gpus import GpuOffer
from launcher.backends.aws.options import ANY_ACCOUNT, Options, Settings
from launcher.backends.rented_plan import (
    Cloud,
    Draft,
    RentedPlan,
    cost_rows,
    draft_of,
    needs_price,
    own_price,
    work_notes,
    zones_text,
)
from launcher.backends.shared_plan import program_text, run_rows, text_of
from launcher.protocol.records import Price, Task, region_of
from launcher.values import shown
from workload.contract import prices
from workload.contract.errors import UsageError
from workload.contract.spec import Resolved
from workload.contract.text import did_you_mean

# EC2's limit before the encoding: docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html, read 2026-11.
MAX_BYTES = 16 * 1024
FOLDER = Path(__file__).parent
# Line that ends a file's text in the script.
END = "END-OF-ROOFLAUNCH-FILE"
SECONDS_PER_MIN = 60
# The timer in the first line holds even if everything after it fails: EC2 has no time limit of its own, but deletes an
# instance that powers off.
SCRIPT = """\
#!/bin/bash
shutdown -P +{minutes}
# User data of `launch aws`. If a step fails, the instance ends at once.
trap poweroff EXIT
set -e
mkdir -p {home}
cd {home}
{files}
echo $(($(date +%s) + {limit_s})) >ends
# Without this, the host's name would contain its private address.
hostnamectl set-hostname {launch} || true
cp rooflaunch.service /etc/systemd/system/
systemctl enable --now --no-block rooflaunch.service
trap - EXIT
"""
# A unit, not cloud-init, runs the boot: it starts again after a restart, and at a shutdown it is stopped before Docker,
# with time for the agent to seal and to upload.
UNIT = """\
[Unit]
Description=Runs of rooflaunch
Wants=network-online.target
After=network-online.target docker.service

[Service]
ExecStart=/bin/bash {home}/startup.sh {home}
StandardOutput=journal+console
KillMode=mixed
TimeoutStopSec=90

[Install]
WantedBy=multi-user.target
"""


def user_data_text(parameters: Mapping[str, Any]) -> str:
    """User data as a shell script. Raises `ToolError` for a broken installation.

    `parameters`: facts that the instance needs to start; all others are in the launch's request in the store.
    """
    home = f"/var/lib/rooflaunch/{parameters['launch']}"
    files = {
        **{name: program_text(FOLDER / name) for name in ("boot.py", "guest.py", "startup.sh")},
        "parameters.json": f"{json.dumps(dict(parameters))}\n",
        "rooflaunch.service": UNIT.format(home=home),
    }
    return SCRIPT.format(
        minutes=math.ceil(parameters["limit_s"] / SECONDS_PER_MIN),
        limit_s=parameters["limit_s"],
        home=shlex.quote(home),
        launch=shlex.quote(parameters["launch"]),
        files="\n".join(f"cat >{name} <<'{END}'\n{content}{END}" for name, content in files.items()),
    )


def user_data(parameters: Mapping[str, Any]) -> bytes:
    """User data as EC2 gets it: compressed, which cloud-init undoes. Raises `UsageError` if it is too long."""
    content = gzip.compress(user_data_text(parameters).encode(), mtime=0)
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"the user data of the instance has {len(content)} bytes; EC2 takes {MAX_BYTES}", hint="a shorter --image"
        )
    return content


# --- the plan

# Assumed seconds from the request to a usable driver; nobody has measured it here.
USABLE_S = 180
# An instance costs money from its start to its end: EC2 bills neither the wait for it nor the shutdown. A request is
# given up after 180 s. The guest's timer counts in minutes and leaves 90 s for the shutdown; then the schedule, which
# has a precision of a minute, ends it.
STARTING_S, STOPPING_S = 180, 90
LATE_S = 120
DISK_TYPE = "gp3"
# Placeholders of a plan that was made without AWS.
AMI_TO_BE, GROUP_TO_BE = "ami-found-at-launch", "sg-found-at-launch"
ZONE_NAME = re.compile(r"([a-z]{2}(?:-[a-z]+){1,2}-[0-9])[a-z]")
ZONE_ID = re.compile(r"([a-z]+[0-9])-az[0-9]{1,2}")
CLOUD = Cloud(
    backend="aws",
    scheme="s3",
    around_s=STARTING_S + LATE_S + STOPPING_S,
    at_limit="a timer on the VM ends it, and if that fails, a schedule of EventBridge",
    usable="assumed",
    calculator="calculator.aws",
    image="123456789012.dkr.ecr.us-east-1.amazonaws.com/rooflaunch/trainer@sha256:…",
    zone="use1-az4",
)


@dataclass(frozen=True, kw_only=True)
class InstancePlan(RentedPlan):
    """Plan of a launch with its instance. `body` is the request that creates it.

    `ami`, `group`: None until AWS was asked. A zone is its id; the name of a zone (`us-east-1a`) is replaced by its id
    when AWS is asked, because names differ between accounts.
    """

    cloud = CLOUD

    options: Options
    settings: Settings
    gpu: GpuOffer
    uses_gpu: bool
    ami: Ami | None = None
    group: str | None = None

    @property
    def usable_s(self) -> float:
        """Assumed seconds from the request until the driver can be used."""
        return USABLE_S

    def price(self, zone: str) -> Price | None:
        """Price in the launch's only region; the same for all zones."""
        del zone
        return self.request.price(f"{gpus.region_code(self.settings.region)}-az0")

    @property
    def regions_without_price(self) -> list[str]:
        """List of the launch's region, or an empty list if the price of its machine is known."""
        return [] if self.request.prices else [self.settings.region]

    def region_title(self, region: str) -> str:
        """Name of the launch's region."""
        del region
        return self.settings.region

    @property
    def quota_code(self) -> str:
        """Code of the quota in vCPUs that the machine counts against."""
        return self.gpu.quota.code(spot=self.options.spot)

    @property
    def quota_request(self) -> str:
        """Command that asks AWS for a quota that holds one machine."""
        ask = f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {self.quota_code}"
        return f"{ask} --desired-value {self.machine.vcpus} --region {self.settings.region}"

    def client_token(self, zone: str) -> str:
        """Token by which EC2 recognises a repeated request: it then returns the instance that it made before."""
        trial = (self.name, self.machine.name, zone, "spot" if self.options.spot else "on-demand")
        return hashlib.sha256("|".join(trial).encode()).hexdigest()

    def body(self, zone: str) -> dict[str, Any]:
        """Arguments of RunInstances for this zone. Contains no credential."""
        ami = self.ami or Ami(id=AMI_TO_BE, name="", root="/dev/sda1", gigabytes=0)
        tags = {
            LABEL: LABEL_VALUE,
            NAME_TAG: self.name,
            # A duration, no end time: this computer's clock may be hours off, and EC2 records the start.
            LIMIT_TAG: str(self.limit_s),
            "Name": self.name,
        }
        kinds = ("instance", "volume", "network-interface", *(("spot-instances-request",) if self.options.spot else ()))
        spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        market = {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": spot}} if self.options.spot else {}
        zone_kind = "AvailabilityZoneId" if ZONE_ID.fullmatch(zone) else "AvailabilityZone"
        disk = {
            "VolumeSize": max(self.options.disk_gb, ami.gigabytes),
            "VolumeType": DISK_TYPE,
            "DeleteOnTermination": True,
            "Encrypted": True,
        }
        return {
            "ImageId": ami.id,
            "InstanceType": self.machine.name,
            "MinCount": 1,
            "MaxCount": 1,
            "ClientToken": self.client_token(zone),
            # The default is `stop`, which leaves a disk that costs money.
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MaintenanceOptions": {"AutoRecovery": "disabled"},
            "MetadataOptions": {
                "HttpTokens": "required",
                "HttpEndpoint": "enabled",
                "HttpPutResponseHopLimit": 2,
                "InstanceMetadataTags": "enabled",
            },
            "IamInstanceProfile": {"Name": self.settings.instance_profile},
            "BlockDeviceMappings": [{"DeviceName": ami.root, "Ebs": disk}],
            "NetworkInterfaces": [self._interface()],
            **({} if self.settings.subnet else {"Placement": {zone_kind: zone}}),
            **market,
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
                for kind in kinds
            ],
        }

    def _interface(self) -> dict[str, Any]:
        subnet = {"SubnetId": self.settings.subnet} if self.settings.subnet else {}
        return {
            "DeviceIndex": 0,
            "AssociatePublicIpAddress": self.options.external_ip,
            "DeleteOnTermination": True,
            "Groups": [self.group or GROUP_TO_BE],
            **subnet,
        }

    def start_up_program(self) -> bytes:
        """The instance's start-up program, compressed. Raises `UsageError` if it is larger than EC2 takes."""
        return user_data(self._parameters())

    def _parameters(self) -> dict[str, Any]:
        return {
            "launch": self.name,
            "driver": "preinstalled" if self.uses_gpu else "none",
            "ends_tag": ENDS_TAG,
            "store": self.request.store,
            "region": self.settings.region,
            "image": self.request.image,
            "is_task": bool(self.request.task),
            "limit_s": self.limit_s,
        }

    def launched(
        self, now: datetime, *, image: str, zones: Sequence[str], ami: Ami, group: str, notes: Sequence[str] = ()
    ) -> "InstancePlan":
        """Copy of the plan with the zones, AMI and group that AWS has, launched at `now` and named for this time."""
        plan = self.at(now, image=image)
        request = replace(plan.request, zones=list(zones), options={**plan.request.options, "ami": ami.id})
        plan = replace(plan, request=request, zones=tuple(zones), ami=ami, group=group, notes=(*notes, *self.notes))
        plan.start_up_program()
        return plan

    def text(self, width: int | None = None) -> str:
        """The plan as text for the user, in lines of at most `width` characters."""
        return text_of([*run_rows(self.request), *_vm(self), *cost_rows(self), *_limits(self)], self.notes, width)

    def sent_text(self) -> str:
        """Requests that create the instance in the first zone and then its schedule, with long texts shortened."""
        data = self.start_up_program()
        lines = len(user_data_text(self._parameters()).splitlines())
        body = {**self.body(self.zones[0]), "UserData": f"<start-up program, {lines} lines, {len(data)} bytes>"}
        request = f"request    RunInstances in {self.zones[0]}, then CreateSchedule with {self.settings.schedule_role}"
        return f"{request}\n{json.dumps(body, indent=1)}"

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object, for `--dry-run --format json`. Key `run_instances`: request for the first zone."""
        return {**self.facts(ami=self.ami.id if self.ami else None), "run_instances": self.body(self.zones[0])}


def make_plan(
    resolved: Resolved,
    options: Options,
    settings: Settings,
    *,
    image: str,
    now: datetime,
    token: str,
    task: Task | None = None,
    spot_price: Callable[[str, Sequence[str]], Price | None] | None = None,
    notes: Sequence[str] = (),
) -> InstancePlan:
    """Plan of `launch aws`. Reads only this program's own tables and the instance's start-up programs.

    `task`: runs of a sweep, which replace the run of `resolved`. `image`: reference with a digest, except in a dry run.
    `token`: 6 hex digits that make the name unique. `spot_price`: today's price of a machine type in the dearest of
    some zones, if AWS may be asked. Raises `UsageError` for a run that an instance cannot do or options that do not fit
    the GPU.
    """
    gpu = gpus.require(options.gpu)
    gpus.refuse_machine_type(options.machine_type, gpu)
    if options.ami is not None and not re.fullmatch(r"ami-[0-9a-f]{8,17}", options.ami):
        raise UsageError(f"--ami must be the id of an AMI; got '{shown(options.ami)}'", hint="--ami ami-ID")
    draft = draft_of(CLOUD, gpu, options, resolved, task)
    zones = _zone_order(gpu, options, settings.region)
    today = spot_price(draft.machine.name, zones) if spot_price else None
    known = _known_price(draft, settings.region, now, today)
    more = {"region": settings.region, "flavour": draft.flavour, "ami": options.ami}
    plan = InstancePlan(
        request=draft.request(now, token, image=image, bucket=settings.bucket, zones=zones, known=known, more=more),
        settings=settings,
        gpu=gpu,
        machine=draft.machine,
        uses_gpu=draft.uses_gpu,
        options=options,
        zones=zones,
    )
    plan.start_up_program()
    return replace(plan, notes=(*draft.changed, *notes, *_notes(plan)))


def _zone_order(gpu: GpuOffer, options: Options, region: str) -> tuple[str, ...]:
    """Zones to try: named zones, then the others of the region; with `fallback` False only the named zones.

    Raises `UsageError` for a region or zone without the GPU. The name of a zone is only compared with the region.
    """
    there = gpu.zones_in(region)
    if not there:
        raise UsageError(
            f"no {gpu.title} in region '{region}'; the regions with one: {', '.join(gpu.regions)}",
            hint=f"--region {gpu.regions[0]}",
        )
    known = gpus.region_names()
    for zone in options.zones:
        name, zone_id = ZONE_NAME.fullmatch(zone), ZONE_ID.fullmatch(zone)
        named = name[1] if name else known.get(region_of(zone)) if zone_id else None
        if named != region and named in known.values():
            raise UsageError(f"zone '{zone}' is in {named}, but the launch is in {region}", hint=f"--region {named}")
        if (name and named != region) or (not name and zone not in there):
            raise UsageError(
                f"no {gpu.title} in zone '{shown(zone)}' of {region}; the zones with one: {', '.join(there)}",
                hint=f"--zone {there[0]}{did_you_mean(zone, there, before='; ')}",
            )
    named_zones = tuple(dict.fromkeys(options.zones))
    if not options.fallback:
        return named_zones
    return (*named_zones, *(zone for zone in there if zone not in named_zones))


def _known_price(draft: Draft, region: str, now: datetime, today: Price | None) -> Mapping[str, Price]:
    """Price of VM, disk and address by the first part of zone ids, from user, AWS or table; {} if unknown.

    Raises `UsageError` for `--max-cost` without a price, or without that of the disk.
    """
    own, address = draft.options.usd_per_h, prices.load().aws_address
    price = draft.price(region, DISK_TYPE, address, today=today) if own is None else own_price(own, now)
    if draft.options.max_cost_usd is not None and (price is None or price.disk_usd_per_h is None):
        raise needs_price(draft.options, CLOUD, f"with its disk in {region}")
    return {gpus.region_code(region): price} if price else {}


def _vm(plan: InstancePlan) -> Iterator[tuple[str, str]]:
    kind = "spot" if plan.options.spot else "on demand"
    yield "vm", f"{plan.machine.name} with {plan.request.gpu_count} x {plan.gpu.title}, {kind}"
    yield "name", plan.name
    yield "region", plan.settings.region
    yield "zones", zones_text(plan)
    newest = plan.settings.ami_parameter or "newest Deep Learning Base AMI of AWS, Ubuntu 22.04"
    chosen = f"{plan.ami.id}, {plan.ami.name}" if plan.ami else plan.options.ami or f"{newest}; not asked yet"
    yield "ami", chosen
    driver = f"in the AMI; the run needs {plan.gpu.minimum_driver} or newer"
    yield "driver", driver if plan.uses_gpu else "none: the run does not use the GPU"
    yield "disk", f"{plan.options.disk_gb} GB, {DISK_TYPE}, encrypted"
    yield "image", f"{plan.request.image}, flavour {plan.request.options['flavour']}"
    yield "role", plan.settings.instance_profile
    yield "bucket", f"s3://{plan.settings.bucket}/runs/"
    asked = "" if plan.ami else "; not asked yet, and 0 in a new account"
    yield "quota", f"{plan.machine.vcpus} vCPUs of {plan.gpu.quota.title} ({kind}), {plan.quota_code}{asked}"


def _limits(plan: InstancePlan) -> Iterator[tuple[str, str]]:
    yield "limit 1", "a timer on the VM, set first of all: fails if the kernel hangs, or user data never ran"
    made = f"made with role {plan.settings.schedule_role} once the VM's id is known; no run starts before it exists"
    yield "limit 2", f"a one-time schedule, to the minute, {made}"


def _notes(plan: InstancePlan) -> Iterator[str]:
    yield from work_notes(plan, uses_gpu=plan.uses_gpu)
    if plan.settings.account == ANY_ACCOUNT:
        yield f"no account was asked: '{ANY_ACCOUNT}' stands for its number"
    names = [zone for zone in plan.options.zones if ZONE_NAME.fullmatch(zone)]
    if names and plan.ami is None:
        yield f"{', '.join(names)}: a zone's name differs between accounts; its id is looked up at the launch"
    if plan.options.spot:
        yield "EC2 does not promise the spot price, and ends a spot VM with 2 minutes' notice at best"
    if not plan.options.external_ip:
        yield "without a public address the subnet needs a NAT gateway, or endpoints of S3, ECR and STS"
