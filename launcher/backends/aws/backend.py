"""EC2 as a backend of `launch`: its settings, image, AMI and plan are prepared before an instance exists."""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import docker_engine
from launcher.backends.aws import gpus
from launcher.backends.aws.machines import Ec2Machines
from launcher.backends.aws.options import Options, Where
from launcher.backends.aws.plan import ZONE_NAME, InstancePlan, make_plan
from launcher.backends.aws.service import Ec2
from launcher.backends.aws.settings import ANY_ACCOUNT, Settings, open_bucket, resolve_settings
from launcher.backends.vm_container import image_to_be, prepared_image
from launcher.docker_engine import Engine
from launcher.protocol.backend import Check, Job
from launcher.protocol.records import Price
from workload.contract.errors import NoCapacityError, RooflaunchError, UsageError

if TYPE_CHECKING:
    from workload.storage.s3 import Bucket


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
            image=options.image or image_to_be(job, gpus.require(options.gpu).flavour, settings.repository),
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
        from launcher.backends.aws.doctor import examine  # noqa: PLC0415 - only `launch doctor` needs it

        return iter(examine(where))


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
