"""`launch doctor gcp`: check login, project, APIs, GPU quota and bucket. Changes nothing in the cloud.

A missing role of the user or of the VM's service account is named by the service that refuses a launch.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launcher.backends.gcp import compute as compute_engine
from launcher.backends.gcp import gpus, refusals
from launcher.backends.gcp import services as google_services
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.gpus import GpuOffer
from launcher.backends.gcp.resources import Quota
from launcher.backends.gcp.services import DisabledError, ForbiddenError, Services
from launcher.backends.gcp.settings import Settings, resolve_settings
from launcher.protocol.backend import Check, CheckPart, Health
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.invocation import document
from workload.storage import gcs as storage

# Services that the launcher and its VMs call. infra/gcp/ enables them; a new project has only storage.
NEEDED_SERVICES = ("compute.googleapis.com", "storage.googleapis.com", "artifactregistry.googleapis.com")
ALL_REGIONS = "GPUS_ALL_REGIONS"
# `delete` is needed to replace an object, as a VM does with its heartbeat.
BUCKET_PERMISSIONS = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list")
ENDPOINTS = (refusals.ENDPOINT_VARIABLE, storage.EMULATOR_VARIABLE)
GCP = CheckPart("gcp")
REGIONS_SHOWN = 3
AT_A_TIME = 8


def examine(options: Mapping[str, str | None] | None = None) -> Iterator[Check]:
    """Run every check, in order. Without a project or credentials, yield only one failed check, which says so.

    `options`: settings from the command line (`project`, `bucket`, …), which override others.
    """
    # Name of a variable that redirects requests to another server than Google's.
    endpoint = next((name for name in ENDPOINTS if os.environ.get(name)), "")
    try:
        settings, origins = resolve_settings(
            options or {}, os.environ, Path.cwd(), default_project=compute_engine.default_project
        )
        compute = compute_engine.connect(settings.project)
        services = None if endpoint else google_services.connect(settings.project)
    except RooflaunchError as error:
        yield GCP.failed("project", error)
        return
    everywhere: Mapping[str, Quota] | None = None
    try:
        everywhere = compute.project_quotas()
        yield GCP.ok("project", f"{settings.project} ({origins['project']}); Compute Engine answers")
    except RooflaunchError as error:
        yield GCP.failed("project", error)
    if services is None:
        yield GCP.note("APIs", f"not checked: {endpoint} is set")
    else:
        yield _services_check(services)
    if everywhere is not None:
        yield from _quota_checks(compute, everywhere)
    yield from _bucket_checks(settings, endpoint)


def _services_check(services: Services) -> Check:
    cure = f"gcloud services enable {{}} --project {services.project}"
    try:
        enabled = services.enabled()
    except (ForbiddenError, DisabledError) as error:
        return GCP.note("APIs", f"not seen: {error}", cure.format(" ".join(NEEDED_SERVICES)))
    except ToolError as error:
        return GCP.failed("APIs", error)
    if missing := [name for name in NEEDED_SERVICES if name not in enabled]:
        return GCP.problem("APIs", f"not enabled: {', '.join(missing)}", cure.format(" ".join(missing)))
    return GCP.ok("APIs", f"enabled: {', '.join(name.partition('.')[0] for name in NEEDED_SERVICES)}")


# Quotas.


def _quota_checks(compute: Compute, everywhere: Mapping[str, Quota]) -> Iterator[Check]:
    """Check the quotas of the project (`everywhere`) and of each region with a GPU."""
    cure = f"ask for more: https://console.cloud.google.com/iam-admin/quotas?project={compute.project}, filter {{}}"
    yield _all_regions_check(everywhere.get(ALL_REGIONS), cure.format(ALL_REGIONS))
    table = gpus.load()
    regions = sorted({region for gpu in table.values() for region in gpu.regions})
    quotas, error = _region_quotas(compute, regions)
    if error:
        unseen = [region for region in regions if region not in quotas]
        yield GCP.note("regions", f"not seen: {', '.join(unseen)}: {error}", error.hint)
    rows = [_gpu_quota_check(gpu, quotas, cure.format(gpu.quota)) for gpu in table.values()]
    # Quota for one kind of GPU is enough, so only a lack of quota for every kind is a problem.
    if quotas and all(row.state is not Health.OK for row in rows):
        yield GCP.problem("quota", "no region has any GPU quota left", cure.format("GPU"))
    yield from rows


def _all_regions_check(quota: Quota | None, cure: str) -> Check:
    if quota is None:
        return GCP.note(ALL_REGIONS, "unknown: the project does not report this quota")
    if quota.limit <= 0:
        return GCP.problem(ALL_REGIONS, "0 GPUs, as in every new project: no VM with a GPU can start", cure)
    found = f"{quota.remaining:g} of {quota.limit:g} GPUs left"
    if quota.remaining > 0:
        return GCP.ok(ALL_REGIONS, found)
    return GCP.note(ALL_REGIONS, found, f"launch status; or {cure}")


def _region_quotas(
    compute: Compute, regions: Sequence[str]
) -> tuple[dict[str, Mapping[str, Quota]], RooflaunchError | None]:
    """Quotas by region, and the first error. A region that does not answer is left out."""

    def ask(region: str) -> Mapping[str, Quota] | RooflaunchError:
        try:
            return compute.region_quotas(region)
        except RooflaunchError as error:
            return error

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        answers = dict(zip(regions, pool.map(ask, regions), strict=True))
    quotas = {region: answer for region, answer in answers.items() if not isinstance(answer, RooflaunchError)}
    return quotas, next((answer for answer in answers.values() if isinstance(answer, RooflaunchError)), None)


def _gpu_quota_check(gpu: GpuOffer, quotas: Mapping[str, Mapping[str, Quota]], cure: str) -> Check:
    """Check a GPU's standard and preemptible quotas. A VM that lives for at most 7 days may use either quota."""
    kinds = {"standard": gpu.quota, "preemptible": gpu.preemptible_quota}
    # A region that does not report a quota is left out.
    known = [(region, quotas[region]) for region in gpu.regions if region in quotas]
    remaining = {
        kind: {region: there[metric].remaining for region, there in known if metric in there}
        for kind, metric in kinds.items()
    }
    usable = any(count > 0 for by_region in remaining.values() for count in by_region.values())
    name = f"quota {gpu.name}"
    summary = "; ".join(f"{kind}: {_best(by_region)}" for kind, by_region in remaining.items())
    return GCP.ok(name, f"GPUs left, {summary}") if usable else GCP.note(name, f"GPUs left, {summary}", cure)


def _best(remaining: Mapping[str, float]) -> str:
    """Text on the regions with the most GPUs left: `us-central1 4, us-east1 1 and 12 more`. Ties keep their order."""
    if not remaining:
        return "unknown: no region reports this quota"
    best = sorted((region for region in remaining if remaining[region] > 0), key=lambda region: -remaining[region])
    shown = ", ".join(f"{region} {remaining[region]:g}" for region in best[:REGIONS_SHOWN])
    more = len(best) - REGIONS_SHOWN
    return (f"{shown} and {more} more" if more > 0 else shown) or "none left"


# Bucket.


def _bucket_checks(settings: Settings, endpoint: str) -> Iterator[Check]:
    try:
        bucket = storage.connect(settings.bucket, prefix="")
    except UsageError as error:
        create = f"gcloud storage buckets create gs://{settings.bucket} --project {settings.project}"
        page = document("infra/gcp/README.md")
        cure = f"{create} --uniform-bucket-level-access"
        yield GCP.problem("bucket", str(error), f"{page}, or {cure}" if page else cure)
        return
    except RooflaunchError as error:
        yield GCP.failed("bucket", error)
        return
    yield GCP.ok("bucket", f"gs://{settings.bucket} answers")
    if endpoint:
        yield GCP.note("bucket access", f"not checked: {endpoint} is set")
        return
    try:
        held = bucket.permitted(BUCKET_PERMISSIONS)
    except RooflaunchError as error:
        yield GCP.failed("bucket access", error)
        return
    if missing := [permission for permission in BUCKET_PERMISSIONS if permission not in held]:
        grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket.name} --role roles/storage.objectUser"
        cure = f"the bucket's owner can run: {grant} --member user:YOU"
        yield GCP.problem("bucket access", f"you lack {', '.join(missing)}", cure)
    else:
        yield GCP.ok("bucket access", "objects can be read, written and replaced")
