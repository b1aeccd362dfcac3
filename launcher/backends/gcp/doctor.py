"""`launch doctor gcp`: check one by one what a launch needs in the cloud. Changes nothing there."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.backends.gcp import compute as compute_engine
from launcher.backends.gcp import gpus, price_list, refusals
from launcher.backends.gcp import services as google_services
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.gpus import GpuOffer, VmImage
from launcher.backends.gcp.machines import ComputeMachines
from launcher.backends.gcp.price_list import PriceLookup
from launcher.backends.gcp.resources import Quota
from launcher.backends.gcp.services import DisabledError, ForbiddenError, Services
from launcher.backends.gcp.settings import Settings, resolve_settings
from launcher.images import contents
from launcher.protocol.checks import Check, CheckPart, Health
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.invocation import document
from workload.contract.text import counted
from workload.storage import gcs as storage
from workload.storage.gcs import Bucket

# Services that the launcher and its VMs call. infra/gcp/ enables them; a new project has only storage.
NEEDED_SERVICES = ("compute.googleapis.com", "storage.googleapis.com", "artifactregistry.googleapis.com")
ALL_REGIONS = "GPUS_ALL_REGIONS"
# `delete` is needed to replace an object, as a VM does with its heartbeat.
BUCKET_PERMISSIONS = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list")
PULL_PERMISSION = "artifactregistry.repositories.downloadArtifacts"
VM_PERMISSIONS = ("compute.instances.delete", "compute.instances.get")
# An intruder in a VM controls the project if the VM's account has one of these roles in the whole project.
BROAD_ROLES = frozenset({"roles/owner", "roles/editor"})
ENDPOINTS = (refusals.ENDPOINT_VARIABLE, storage.EMULATOR_VARIABLE)
REPOSITORY = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<name>[^/]+)/(?P<package>.+)")
_IMAGE_LISTS = ("allowedValues", "deniedValues")
GCP = CheckPart("gcp")
REGIONS_SHOWN = 3
AT_A_TIME = 8
# Longest wait for Google's price list. The list is kept for a day, so launches need not wait for it.
PRICES_S = 60.0

Resolved = tuple[Settings, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class CloudPorts:
    """Connections to the services that are checked; tests replace these connections.

    `endpoint`: name of an environment variable that is set and redirects requests; None if none is set.
    """

    compute: Callable[[str], Compute]
    bucket: Callable[[str], Bucket]
    services: Callable[[str], Services]
    tags: Callable[[], Mapping[str, str]]
    endpoint: str | None = None
    prices: Callable[[str], PriceLookup] | None = None


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository of Artifact Registry, and the name of the images' package in it."""

    name: str
    package: str


def examine(options: Mapping[str, str | None] | None = None) -> Iterator[Check]:
    """Run every check. `options`: settings from the command line (`project`, `bucket`, …), which override others."""

    def resolve() -> Resolved:
        return resolve_settings(options or {}, os.environ, Path.cwd(), default_project=compute_engine.default_project)

    return checks(resolve, real_ports())


def real_ports() -> CloudPorts:
    """Connections to Google's services, or to the endpoints that tests set."""
    return CloudPorts(
        compute=compute_engine.connect,
        bucket=lambda name: storage.connect(name, prefix=""),
        services=google_services.connect,
        tags=current_tags,
        endpoint=next((name for name in ENDPOINTS if os.environ.get(name)), None),
        prices=lambda project: price_list.current(project, now_s=time.time(), wait_s=PRICES_S),
    )


def current_tags() -> dict[str, str]:
    """Tags of the images for this code, by flavour."""
    commit = contents.current_commit()
    recipes = {name: contents.make_recipe(row, commit=commit) for name, row in contents.load_flavours().items()}
    return {name: recipe.tag.partition(":")[2] for name, recipe in recipes.items()}


def checks(resolve: Callable[[], Resolved], cloud: CloudPorts) -> Iterator[Check]:
    """Run every check, in order. Without a project or credentials, yield only one failed check, which says so."""
    try:
        settings, origins = resolve()
        compute = cloud.compute(settings.project)
        services = None if cloud.endpoint else cloud.services(settings.project)
    except RooflaunchError as error:
        yield GCP.failed("project", error)
        return

    def project() -> str:
        compute.project_quotas()
        return f"{settings.project} ({origins['project']}); Compute Engine answers"

    usable = GCP.looked("project", project)
    yield usable
    yield from _service_checks(services, settings, cloud)
    yield from _price_checks(settings, cloud)
    if usable.state is Health.OK:
        yield from _quota_checks(compute, settings)
        yield from _image_family_checks(compute)
        yield from _policy_checks(services)
        yield from _or_failed("leftovers", _leftover_checks(compute))
    yield from _or_failed("bucket", _bucket_checks(settings, cloud))
    yield from _or_failed("repository", _repository_checks(services, settings, cloud))
    yield from _account_checks(services, settings, cloud)


def _or_failed(name: str, checks: Iterator[Check]) -> Iterator[Check]:
    """Yield `checks`; if one raises an error, yield a failed check called `name` instead, and end."""
    try:
        yield from checks
    except RooflaunchError as error:
        yield GCP.failed(name, error)


def _or_unseen(name: str, checks: Iterator[Check]) -> Iterator[Check]:
    """Like `_or_failed`, but if the user may not read what is checked, yield a note instead of a failed check."""
    try:
        yield from checks
    except ForbiddenError as error:
        yield GCP.note(name, f"not seen: {error}", error.hint)
    except RooflaunchError as error:
        yield GCP.failed(name, error)


# Project and services.


def _service_checks(services: Services | None, settings: Settings, cloud: CloudPorts) -> Iterator[Check]:
    if services is None:
        yield _unasked("APIs", cloud)
        return
    cure = f"gcloud services enable {{}} --project {settings.project}"
    try:
        enabled = services.enabled()
    except (ForbiddenError, DisabledError) as error:
        yield GCP.note("APIs", f"not seen: {error}", cure.format(" ".join(NEEDED_SERVICES)))
    except ToolError as error:
        yield GCP.failed("APIs", error)
    else:
        if missing := [name for name in NEEDED_SERVICES if name not in enabled]:
            yield GCP.problem("APIs", f"not enabled: {', '.join(missing)}", cure.format(" ".join(missing)))
        else:
            yield GCP.ok("APIs", f"enabled: {', '.join(name.partition('.')[0] for name in NEEDED_SERVICES)}")


def _price_checks(settings: Settings, cloud: CloudPorts) -> Iterator[Check]:
    """Check whether today's price list can be read. If not, yield a note, because built-in prices are enough."""
    if cloud.prices is None:
        return
    if cloud.endpoint:
        yield _unasked("prices", cloud)
        return
    today = cloud.prices(settings.project)
    if today.prices:
        yield GCP.ok("prices", f"Google's price list, read {today.prices.read}")
    else:
        yield GCP.note("prices", f"from the built-in table, with their dates: {today.why}", today.hint)


# Quotas.


def _quota_checks(compute: Compute, settings: Settings) -> Iterator[Check]:
    cure = f"ask for more: https://console.cloud.google.com/iam-admin/quotas?project={settings.project}, filter {{}}"
    yield from _or_failed(ALL_REGIONS, _all_regions_checks(compute, cure.format(ALL_REGIONS)))
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


def _all_regions_checks(compute: Compute, cure: str) -> Iterator[Check]:
    quota = compute.project_quotas().get(ALL_REGIONS)
    if quota is None:
        yield GCP.note(ALL_REGIONS, "unknown: the project does not report this quota")
    elif quota.limit <= 0:
        yield GCP.problem(ALL_REGIONS, "0 GPUs, as in every new project: no VM with a GPU can start", cure)
    else:
        found = f"{quota.remaining:g} of {quota.limit:g} GPUs left"
        note = GCP.note(ALL_REGIONS, found, f"launch status; or {cure}")
        yield GCP.ok(ALL_REGIONS, found) if quota.remaining > 0 else note


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


# VM images and leftovers in Compute Engine.


def _image_family_checks(compute: Compute) -> Iterator[Check]:
    table, name = gpus.load().values(), "VM image"
    newest: dict[VmImage, str | None] = {}
    for image in dict.fromkeys(image for gpu in table for image in gpu.vm_images):
        try:
            newest[image] = compute.get_image(image.project, image.name)
        except RooflaunchError as error:
            yield GCP.failed(name, error)
    for image, latest in newest.items():
        users = [gpu for gpu in table if image in gpu.vm_images]
        named = ", ".join(gpu.name for gpu in users)
        if latest:
            yield GCP.ok(name, f"{latest} of project {image.project}, for {named}")
            continue
        gone = f"no image family {image.name} in project {image.project}, for {named}"
        cure = (
            f"gcloud compute images list --project {image.project} --no-standard-images; if the family is missing "
            "there, report this as a bug"
        )
        if all(any(newest.get(other) for other in gpu.vm_images) for gpu in users):
            yield GCP.note(name, f"{gone}: launches use the next family", cure)
        else:
            yield GCP.problem(name, gone, cure)


# Policies of the organisation.


def _policy_checks(services: Services | None) -> Iterator[Check]:
    """Check the policies that would refuse the VMs of `launch gcp`, if the user may read them."""
    if services is None:
        return
    for name, constraint, judge in (
        ("Shielded VM policy", refusals.SHIELDED_VM, _shielded_check),
        ("VM image policy", refusals.TRUSTED_IMAGES, _trusted_images_check),
    ):
        try:
            yield judge(name, services.effective_policy(constraint))
        except RooflaunchError as error:
            viewer = "ask the organisation's administrator for roles/orgpolicy.policyViewer"
            cure = error.hint if isinstance(error, DisabledError) else viewer
            yield GCP.note(name, f"could not read {constraint}: {error}", cure)


def _shielded_check(name: str, policy: Mapping[str, Any]) -> Check:
    if not policy.get("booleanPolicy", {}).get("enforced"):
        return GCP.ok(name, "VMs may start without Secure Boot")
    builds = ", ".join(gpu.name for gpu in gpus.load().values() if not any(image.signed for image in gpu.vm_images))
    return GCP.note(
        name,
        f"VMs need Secure Boot, vTPM and integrity monitoring; no signed driver is known for {builds}",
        "--secure-boot with each launch",
    )


def _trusted_images_check(name: str, policy: Mapping[str, Any]) -> Check:
    rules = policy.get("listPolicy", {})
    allowed, denied = ([str(entry).removeprefix("is:") for entry in rules.get(key, ())] for key in _IMAGE_LISTS)
    if any(entry.startswith("under:") for entry in (*allowed, *denied)):
        return GCP.note(
            name, f"names folders or organisations, which are not checked: {', '.join((*allowed, *denied))}"
        )

    def is_trusted(image: VmImage) -> bool:
        project = f"projects/{image.project}"
        by_default = rules.get("allValues") != "DENY" and not allowed
        return project not in denied and (by_default or project in allowed)

    # Check only the image that a launch boots by default.
    refused = [gpu for gpu in gpus.load().values() if not is_trusted(gpu.vm_image)]
    if not refused:
        return GCP.ok(name, "the projects of the images are trusted")
    projects = ", ".join(dict.fromkeys(gpu.vm_image.project for gpu in refused))
    others = dict.fromkeys(image for gpu in refused for image in gpu.vm_images if is_trusted(image))
    trusted = f"; it trusts {', '.join(allowed)}" if allowed else ""
    cure = " or ".join(f"--vm-image {image.project}/{image.name}" for image in others)
    return GCP.problem(
        name,
        f"not trusted: {projects}, for {', '.join(gpu.name for gpu in refused)}{trusted}",
        cure or "--vm-image PROJECT/FAMILY of a trusted project, with apt; or ask the organisation's administrator",
    )


def _leftover_checks(compute: Compute) -> Iterator[Check]:
    machines = ComputeMachines(compute, sleep=time.sleep)
    leftovers, running = machines.leftovers(), len(machines.look().there)
    if leftovers.unreachable:
        silent = ", ".join(leftovers.unreachable)
        yield GCP.problem("leftovers", f"not known in {silent}: no answer", "launch reap, later")
    if leftovers.there:
        named = ", ".join(f"{item.kind} {item.name} in {item.zone} ({item.why})" for item in leftovers)
        yield GCP.problem("leftovers", named, "launch reap")
    elif not leftovers.unreachable:
        yield GCP.ok("leftovers", f"none; {counted(running, 'VM')} of launches now")


# Bucket.


def _bucket_checks(settings: Settings, cloud: CloudPorts) -> Iterator[Check]:
    try:
        bucket = cloud.bucket(settings.bucket)
    except UsageError as error:
        create = f"gcloud storage buckets create gs://{settings.bucket} --project {settings.project}"
        yield GCP.problem("bucket", str(error), _with_terraform(f"{create} --uniform-bucket-level-access"))
        return
    yield GCP.ok("bucket", f"gs://{settings.bucket} answers")
    if cloud.endpoint:
        yield _unasked("bucket access", cloud)
        return
    yield from _or_failed("bucket access", _writable_checks(bucket))
    yield from _access_checks(bucket)


def _writable_checks(bucket: Bucket) -> Iterator[Check]:
    name, held = "bucket access", bucket.permitted(BUCKET_PERMISSIONS)
    if missing := [permission for permission in BUCKET_PERMISSIONS if permission not in held]:
        grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket.name} --role roles/storage.objectUser"
        yield GCP.problem(
            name, f"you lack {', '.join(missing)}", f"the bucket's owner can run: {grant} --member user:YOU"
        )
    else:
        yield GCP.ok(name, "objects can be read, written and replaced")


def _access_checks(bucket: Bucket) -> Iterator[Check]:
    name = "bucket set-up"
    try:
        access = bucket.access()
    except RooflaunchError as error:
        yield GCP.note(name, f"not seen: {error}", "ask the bucket's owner for roles/storage.legacyBucketReader")
        return
    update = f"gcloud storage buckets update gs://{bucket.name}"
    if not access.uniform:
        cure = f"{update} --uniform-bucket-level-access"
        yield GCP.problem(name, "no uniform access: each object can have its own readers", cure)
    elif access.public_access_prevention != "enforced":
        yield GCP.note(name, "uniform access; the bucket could be made public", f"{update} --public-access-prevention")
    else:
        where = access.location.lower() or "an unknown location"
        yield GCP.ok(name, f"uniform access, never public, in {where}")


# Images.


def _repository_checks(services: Services | None, settings: Settings, cloud: CloudPorts) -> Iterator[Check]:
    repository = parse_repository(settings.repository)
    if services is None:
        yield _unasked("repository", cloud)
        return
    if repository is None:
        yield GCP.note("repository", f"{settings.repository} is not in Artifact Registry, so it is not checked")
        return
    if not services.has_repository(repository.name):
        _, project, _, location, _, name = repository.name.split("/")
        create = f"gcloud artifacts repositories create {name} --repository-format docker"
        cure = _with_terraform(f"{create} --location {location} --project {project}")
        yield GCP.problem("repository", f"{repository.name} does not exist", cure)
        return
    yield GCP.ok("repository", settings.repository)
    for flavour, tag in cloud.tags().items():
        checks = _tag_checks(services, repository, settings, flavour, tag)
        yield from _or_failed(f"image {flavour}", checks)


def _tag_checks(
    services: Services, repository: Repository, settings: Settings, flavour: str, tag: str
) -> Iterator[Check]:
    name, digest = f"image {flavour}", services.tag_digest(repository.name, repository.package, tag)
    if digest:
        yield GCP.ok(name, f"{tag}, {digest}")
    else:
        push = f"launch build --flavour {flavour} --push --repository {settings.repository}"
        yield GCP.note(name, f"{tag} is not in the repository; the first launch that needs this image pushes it", push)


def parse_repository(reference: str) -> Repository | None:
    """Repository and package of `us-central1-docker.pkg.dev/P/R/trainer`; None for references to other registries."""
    parts = REPOSITORY.fullmatch(reference)
    if not parts:
        return None
    name = f"projects/{parts['project']}/locations/{parts['location']}/repositories/{parts['name']}"
    return Repository(name=name, package=parts["package"])


# The service account.


def _account_checks(services: Services | None, settings: Settings, cloud: CloudPorts) -> Iterator[Check]:
    if services is None:
        yield _unasked("service account", cloud)
        return
    yield from _or_unseen("service account", _existence_checks(services, settings))
    yield from _or_unseen("use of it", _use_checks(services, settings.service_account))
    yield from _role_checks(services, settings)


def _with_terraform(command: str) -> str:
    """Hint: `command`; if the Terraform guide (infra/gcp/README.md) is installed, its path and then `command`."""
    page = document("infra/gcp/README.md")
    return f"{page}, or {command}" if page else command


def _existence_checks(services: Services, settings: Settings) -> Iterator[Check]:
    email, name = settings.service_account, "service account"
    is_disabled = services.is_account_disabled(email)
    if is_disabled is None:
        create = f"gcloud iam service-accounts create {email.partition('@')[0]} --project {settings.project}"
        yield GCP.problem(name, f"{email} does not exist", _with_terraform(create))
    elif is_disabled:
        yield GCP.problem(name, f"{email} is disabled", f"gcloud iam service-accounts enable {email}")
    else:
        yield GCP.ok(name, email)


def _use_checks(services: Services, email: str) -> Iterator[Check]:
    name = "use of it"
    if services.may_act_as(email):
        yield GCP.ok(name, "you may start VMs with this account")
    else:
        grant = f"gcloud iam service-accounts add-iam-policy-binding {email} --role roles/iam.serviceAccountUser"
        yield GCP.problem(
            name, "you may not start VMs with this account", f"the account's owner can run: {grant} --member user:YOU"
        )


def _vm_role(text: str) -> str:
    """Hint for missing permissions of a VM: `text` with the path of vm.tf; without that file, the permissions."""
    page = document("infra/gcp/vm.tf")
    return text.format(page) if page else f"a custom role with {', '.join(VM_PERMISSIONS)}"


def _role_checks(services: Services, settings: Settings) -> Iterator[Check]:
    """Check the roles of the VM's account; a role in the project also holds for the bucket and the repository."""
    email, member = settings.service_account, f"--member serviceAccount:{settings.service_account}"
    try:
        everywhere = services.roles_in_project(email)
    except RooflaunchError as error:
        yield GCP.note("its roles", f"not seen: {error}", _vm_role("{} has the roles that the account needs"))
        return
    in_bucket = f"gcloud storage buckets add-iam-policy-binding gs://{settings.bucket}"
    yield _role_check(
        services,
        "its bucket role",
        lambda: everywhere | services.roles_in_bucket(settings.bucket, email),
        BUCKET_PERMISSIONS,
        f"{in_bucket} --role roles/storage.objectUser {member}",
    )
    repository = parse_repository(settings.repository)
    if repository:
        _, project, _, location, _, name = repository.name.split("/")
        in_repository = f"gcloud artifacts repositories add-iam-policy-binding {name}"
        yield _role_check(
            services,
            "its image role",
            lambda: everywhere | services.roles_in_repository(repository.name, email),
            (PULL_PERMISSION,),
            f"{in_repository} --location {location} --project {project} --role roles/artifactregistry.reader {member}",
        )
    yield _role_check(
        services, "its VM role", lambda: everywhere, VM_PERMISSIONS, _vm_role("{}: a custom role, only for our VMs")
    )
    if broad := sorted(everywhere & BROAD_ROLES):
        cure = f"gcloud projects remove-iam-policy-binding {settings.project} --role {broad[0]} {member}"
        yield GCP.note("its other roles", f"{', '.join(broad)} in the whole project: far more than a VM needs", cure)


def _role_check(
    services: Services, name: str, roles: Callable[[], frozenset[str]], needed: Sequence[str], cure: str
) -> Check:
    try:
        held = roles()
        missing = [permission for permission in needed if permission not in services.permissions(held)]
    except RooflaunchError as error:
        return GCP.note(name, f"not seen: {error}", cure)
    if missing:
        # Roles held through a group, a folder or the organization do not show in these policies.
        return GCP.problem(name, f"no custom role allows {', '.join(missing)}", cure)
    return GCP.ok(name, ", ".join(sorted(role for role in held if services.permissions([role]) & set(needed))))


def _unasked(name: str, cloud: CloudPorts) -> Check:
    return GCP.note(name, f"not checked: {cloud.endpoint} is set")
