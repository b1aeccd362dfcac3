"""Checks of `launch doctor aws`: account, quotas, AMI, network, bucket, roles and registry. Nothing is created."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backends.aws import gpus
from launcher.backends.aws.bucket import open_bucket
from launcher.backends.aws.options import Where
from launcher.backends.aws.service import Ec2
from launcher.backends.aws.settings import Settings, resolve_settings
from launcher.protocol.checks import Check, CheckPart
from workload.contract.errors import RooflaunchError

if TYPE_CHECKING:
    from workload.storage.s3 import Bucket

PART = CheckPart("aws")


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
    yield PART.looked("bucket", lambda: bucket(settings).locate(""))
    yield PART.looked("VM's role", lambda: client.instance_profile(settings.instance_profile))
    yield PART.looked("schedule's role", lambda: client.schedule_role(settings.schedule_role))
    yield _registry(client, settings)


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
        for spot, market in ((False, "on demand"), (True, "spot")):
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
