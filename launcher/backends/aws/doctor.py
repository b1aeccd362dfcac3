"""Checks of `launch doctor aws`: account, quotas, AMI, network, bucket, roles and registry. Nothing is created."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backends.aws import gpus
from launcher.backends.aws.options import Options, Where
from launcher.backends.aws.plan import make_plan
from launcher.backends.aws.service import Ec2
from launcher.backends.aws.settings import Settings, open_bucket, resolve_settings
from launcher.protocol.backend import Check, CheckPart
from workload.contract.errors import RooflaunchError
from workload.contract.spec import resolve

if TYPE_CHECKING:
    from workload.storage.s3 import Bucket

PART = CheckPart("aws")
MARKETS = {False: "on demand", True: "spot"}


def examine(
    where: Where, *, ec2: Callable[[str], Ec2] = Ec2, bucket: "Callable[[Settings], Bucket]" = open_bucket
) -> Iterator[Check]:
    """Checks of `launch doctor aws`. The account is first: if it cannot be read, the other checks are left out."""
    try:
        settings, _ = resolve_settings(
            vars(where), os.environ, Path.cwd(), account=lambda region: ec2(region).account()
        )
        client = ec2(settings.region)
        zones = sorted(client.zone_ids().values())
    except RooflaunchError as error:
        yield PART.failed("account", error)
        return
    yield PART.ok("account", f"{settings.account}, region {settings.region} with {', '.join(zones)}")
    yield from _quotas(client)
    yield PART.looked("ami", lambda: f"{(ami := client.ami(client.newest_ami(settings.ami_parameter))).id}, {ami.name}")
    yield PART.looked("network", lambda: client.security_group(settings.security_group, settings.subnet))
    for spot, market in MARKETS.items():
        yield PART.looked(f"request for a VM, {market}", partial(_tried, client, settings, spot=spot))
    yield PART.looked("bucket", lambda: bucket(settings).locate(""))
    yield PART.looked("VM's role", lambda: client.instance_profile(settings.instance_profile))
    yield PART.looked("schedule's role", lambda: client.schedule_role(settings.schedule_role))
    yield _registry(client, settings)


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
    """Checks of the quotas in vCPUs; each names the GPUs for which its quota is too small."""
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
