"""EC2 as a backend of `launch`: its settings, image, AMI and plan are prepared before an instance exists."""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import docker_engine
from launcher.backends.aws import gpus
from launcher.backends.aws.machines import Ec2Machines
from launcher.backends.aws.options import ANY_ACCOUNT, Options, Settings, Where, resolve_settings
from launcher.backends.aws.plan import ZONE_NAME, InstancePlan, make_plan
from launcher.backends.aws.service import Ec2
from launcher.docker_engine import Engine
from launcher.images.build import image_to_be, prepared_image
from launcher.protocol.backend import Check, CheckPart, Job
from launcher.protocol.records import LAUNCHES, READERS, Price
from workload.contract.errors import NoCapacityError, RooflaunchError, UsageError
from workload.contract.spec import resolve

if TYPE_CHECKING:
    from workload.storage.s3 import Bucket

PART = CheckPart("aws")
MARKETS = {False: "on demand", True: "spot"}


def open_bucket(settings: Settings) -> "Bucket":
    """Open the bucket of these settings. Raises `UsageError` if S3 says that it is in another region.

    An instance asks S3 in its own region before its agent runs, and S3 charges for traffic between regions.
    """
    from workload.storage import s3  # noqa: PLC0415 - loaded when it is used

    bucket = s3.connect(settings.bucket, prefix=LAUNCHES, jobs=READERS)
    if bucket.region not in ("", settings.region):
        raise UsageError(
            f"{bucket} is in region '{bucket.region}', but the instances are in '{settings.region}'",
            hint=f"--region {bucket.region}, or --bucket with a bucket in {settings.region}",
        )
    return bucket


@dataclass(frozen=True, kw_only=True)
class ElasticCompute:
    """The backend `aws`. The fields are its connections to services and clock, which a test replaces."""

    name: str = "aws"
    ec2: Callable[[str], Ec2] = Ec2
    bucket: Callable[[Settings], "Bucket"] = open_bucket
    engine: Callable[[], Engine] = docker_engine.connect
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic

    def settings(self, where: Where, options: Options | None = None, *, offline: bool = False) -> Settings:
        """Settings for region and bucket. Raises `UsageError` for a name that AWS does not allow, or an unknown GPU."""
        if options is not None:
            gpus.require(options.gpu)
        given = vars(where) | (vars(options) if options else {})
        account = (lambda _: ANY_ACCOUNT) if offline else (lambda region: self.ec2(region).account())
        return resolve_settings(given, os.environ, Path.cwd(), account=account)[0]

    def plan(
        self, job: Job, options: Options, settings: Settings, *, now: datetime, offline: bool = False
    ) -> InstancePlan:
        notes: list[str] = []

        def spot_price(machine_type: str, zones: Sequence[str]) -> Price | None:
            price, why = spot_price_now(self.ec2, settings.region, machine_type, tuple(zones))
            notes.extend(why)
            return price

        asks = options.spot and options.usd_per_h is None and not offline
        return make_plan(
            job.resolved,
            options,
            settings,
            image=options.image or image_to_be(job.specs, gpus.require(options.gpu).flavour, settings.repository),
            now=now,
            token=job.token,
            task=job.task,
            spot_price=spot_price if asks else None,
            notes=notes,
        )

    def prepare(self, draft: InstancePlan, machines: Ec2Machines) -> InstancePlan:
        """Ask AWS for zones, quota, AMI and security group, push the image if needed; return the final plan."""
        ec2, options, settings = machines.ec2, draft.options, draft.settings
        # Building and pushing an image takes minutes, so check first all that AWS can tell.
        zones = zones_there(ec2, draft)
        notes = quota_notes(ec2, draft)
        ami = ec2.ami(options.ami or ec2.newest_ami(settings.ami_parameter))
        group = ec2.security_group(settings.security_group, settings.subnet)
        flavour = draft.request.options["flavour"]
        image, more = prepared_image(self.engine, options.image, flavour, settings.repository, docker_log_in)
        now = datetime.fromtimestamp(ec2.now_s(), UTC)
        return draft.launched(now, image=image, zones=zones, ami=ami, group=group, notes=(*notes, *more))

    def machines(self, settings: Settings) -> Ec2Machines:
        return Ec2Machines(self.ec2(settings.region), sleep=self.sleep, monotonic=self.monotonic)

    def store(self, settings: Settings) -> "Bucket":
        return self.bucket(settings)

    def checks(self, where: Where) -> Iterator[Check]:
        """Checks of `launch doctor aws`; nothing is created. If the account cannot be read, no other check is made."""
        try:
            settings = self.settings(where)
            client = self.ec2(settings.region)
            zones = sorted(client.zone_ids().values())
        except RooflaunchError as error:
            yield PART.failed("account", error)
            return
        yield PART.ok("account", f"{settings.account}, region {settings.region} with {', '.join(zones)}")
        yield from _quotas(client)
        yield PART.looked(
            "ami", lambda: f"{(ami := client.ami(client.newest_ami(settings.ami_parameter))).id}, {ami.name}"
        )
        yield PART.looked("network", lambda: client.security_group(settings.security_group, settings.subnet))
        for spot, market in MARKETS.items():
            yield PART.looked(f"request for a VM, {market}", partial(_tried, client, settings, spot=spot))
        yield PART.looked("bucket", lambda: self.bucket(settings).locate(""))
        yield PART.looked("VM's role", lambda: client.instance_profile(settings.instance_profile))
        yield PART.looked("schedule's role", lambda: client.schedule_role(settings.schedule_role))
        yield _registry(client, settings)


backend = ElasticCompute()


@cache
def spot_price_now(
    ec2: Callable[[str], Ec2], region: str, machine_type: str, zones: tuple[str, ...]
) -> tuple[Price | None, tuple[str, ...]]:
    """Today's spot price, and a note if AWS does not tell it. A sweep plans each task, and asks only for the first."""
    try:
        return ec2(region).spot_price(machine_type, zones), ()
    except RooflaunchError as error:
        return None, (f"the spot price is not that of today: {error}",)


def docker_log_in(host: str) -> str:
    """Command that logs Docker in to the registry `host`; empty if it is none of ECR."""
    ecr = re.fullmatch(r"[0-9]{12}\.dkr\.ecr\.([-a-z0-9]+)\.amazonaws\.com", host)
    password = f"aws ecr get-login-password --region {ecr[1]}" if ecr else ""
    return f"{password} | docker login -u AWS --password-stdin {host}" if ecr else ""


def quota_notes(ec2: Ec2, plan: InstancePlan) -> tuple[str, ...]:
    """Note on a quota that AWS does not report. Raises `NoCapacityError` if the quota holds no machine of this type."""
    limit = ec2.quota(plan.quota_code)
    if limit is None:
        return (f"AWS does not report the quota {plan.quota_code}",)
    if limit < plan.machine.vcpus:
        market = "spot" if plan.options.spot else "on demand"
        raise NoCapacityError(
            f"the quota of {ec2.region} for {plan.gpu.quota.title} ({market}) is {limit:g} vCPUs; "
            f"{plan.machine.name} has {plan.machine.vcpus}",
            hint=f"ask for more: {plan.quota_request}; or another --region",
        )
    return ()


def zones_there(ec2: Ec2, plan: InstancePlan) -> Sequence[str]:
    """Ids of the plan's zones in which this account can have the machine type, in the plan's order.

    Raises `UsageError` for a named zone that this account does not have, or that does not offer the type.
    """
    ids, machine_type = ec2.zone_ids(), plan.machine.name
    offered = [zone for zone in ec2.zones_with(machine_type) if zone in ids.values()]
    if subnet := plan.settings.subnet:
        zone_of_subnet = ec2.zone_of_subnet(subnet)
        offered = [zone for zone in offered if zone == zone_of_subnet]
    if not offered:
        where = f"the zone of subnet '{subnet}'" if subnet else f"region '{ec2.region}'"
        raise UsageError(f"{where} has no {machine_type} for this account", hint="another --region or --machine-type")
    for zone in plan.options.zones:
        if ids.get(zone, zone) not in offered:
            is_known = zone in ids or zone in ids.values()
            why = f"has no {machine_type}" if is_known else "is not a zone of this account"
            raise UsageError(
                f"zone '{zone}' {why} in {ec2.region}; the zones with one: {', '.join(offered)}",
                hint=f"--zone {offered[0]}",
            )
    named = [ids.get(zone, zone) for zone in plan.options.zones]
    planned = [zone for zone in plan.zones if not ZONE_NAME.fullmatch(zone)]
    others = [*planned, *offered] if plan.options.fallback else []
    return list(dict.fromkeys(zone for zone in (*named, *others) if zone in offered))


def _tried(client: Ec2, settings: Settings, *, spot: bool) -> str:
    """Ask EC2 whether it takes the request that `launch aws` sends; nothing is made. Raises EC2's error if not.

    EC2 looks at the request and the permissions, and not at quotas and free machines.
    """
    now, gpu = datetime.now(UTC), next(gpu for gpu in gpus.load().values() if gpu.zones_in(settings.region))
    image, options = f"{settings.repository}@sha256:{'0' * 64}", Options(gpu=gpu.name, spot=spot)
    draft = make_plan(resolve({}, {}, None), options, settings, image=image, now=now, token=f"{0:06x}")
    ami = client.ami(client.newest_ami(settings.ami_parameter))
    group = client.security_group(settings.security_group, settings.subnet)
    zones = client.zones_with(draft.machine.name) or draft.zones
    client.try_instance(draft.launched(now, image=image, zones=zones, ami=ami, group=group).body(zones[0]))
    return f"EC2 takes it: {draft.machine.name} in {zones[0]}"


def _registry(client: Ec2, settings: Settings) -> Check:
    """Check whether the repository exists. One of another account or region is not checked, only noted."""
    host, _, name = settings.repository.partition("/")
    if not host.startswith(f"{settings.account}.dkr.ecr.{settings.region}."):
        return PART.note("registry", f"{settings.repository} is not in this account's registry: not checked")
    return PART.looked("registry", lambda: client.repository(name))


def _quotas(client: Ec2) -> Iterator[Check]:
    families: dict[str, tuple[str, dict[str, int]]] = {}
    for gpu in gpus.load().values():
        for spot, market in MARKETS.items():
            _, needs = families.setdefault(gpu.quota.code(spot=spot), (f"quota {gpu.quota.title}, {market}", {}))
            needs[gpu.name] = gpu.machine_types[gpu.default_machine_type].vcpus
    for code, (name, needs) in families.items():
        ask = f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code}"
        try:
            limit = client.quota(code)
        except RooflaunchError as error:
            yield PART.failed(name, error)
            continue
        if limit is None:
            yield PART.note(name, f"AWS does not report {code}")
        elif short := {gpu: vcpus for gpu, vcpus in needs.items() if vcpus > limit}:
            cure = f"{ask} --desired-value {min(short.values())} --region {client.region}"
            yield PART.note(name, f"{limit:g} vCPUs ({code}): too few for --gpu {', '.join(short)}", cure)
        else:
            yield PART.ok(name, f"{limit:g} vCPUs ({code})")
