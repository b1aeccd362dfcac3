"""Compute Engine as a backend of `launch`: its settings, prices, image and plan are prepared before a VM exists."""

import os
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import docker_engine
from launcher.backends.gcp import answers, gpus
from launcher.backends.gcp import compute as compute_engine
from launcher.backends.gcp.answers import Quota, message_of, no_credentials
from launcher.backends.gcp.compute import Compute, connect, credentials_for, default_project
from launcher.backends.gcp.gpus import GpuOffer
from launcher.backends.gcp.machines import ComputeMachines
from launcher.backends.gcp.options import ANY_PROJECT, Options, Settings, Where, resolve_settings
from launcher.backends.gcp.plan import VmPlan, find_image, make_plan
from launcher.docker_engine import Engine
from launcher.images.build import image_to_be, prepared_image
from launcher.protocol.backend import Check, CheckPart, Health, Job
from launcher.protocol.records import LAUNCHES, READERS
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.invocation import document
from workload.storage import gcs
from workload.storage.buckets import foreign_answer
from workload.storage.gcs import LOG_IN

if TYPE_CHECKING:
    from requests import Response

    from workload.storage.gcs import Bucket


@dataclass(frozen=True, kw_only=True)
class ComputeEngine:
    """The backend `gcp`. The fields are its connections to services and clock, which a test replaces."""

    name: str = "gcp"
    compute: Callable[[str], Compute] = connect
    bucket: Callable[[str], "Bucket"] = lambda name: gcs.connect(name, prefix=LAUNCHES, jobs=READERS)
    engine: Callable[[], Engine] = docker_engine.connect
    default_project: Callable[[], str | None] = default_project
    sleep: Callable[[float], None] = time.sleep

    def settings(self, where: Where, options: Options | None = None, *, offline: bool = False) -> Settings:
        """Settings for project and bucket.

        Raises `UsageError` for a name that Google does not allow, or an unknown GPU.
        """
        if options is not None:
            gpus.require(options.gpu)
        # Finding the project of the credentials may need the network.
        project = (lambda: ANY_PROJECT) if offline else self.default_project
        return resolve_settings(
            vars(where) | (vars(options) if options else {}), os.environ, Path.cwd(), default_project=project
        )[0]

    def plan(self, job: Job, options: Options, settings: Settings, *, now: datetime, offline: bool = False) -> VmPlan:
        del offline  # a plan asks no service
        return make_plan(
            job.resolved,
            options,
            settings,
            image=options.image or image_to_be(job.specs, gpus.require(options.gpu).flavour, settings.repository),
            now=now,
            token=job.token,
            task=job.task,
        )

    def prepare(self, draft: VmPlan, machines: ComputeMachines) -> VmPlan:
        """Push the container image if needed; return the plan with its digest and with the VM's boot image."""
        cloud, options = machines.compute, draft.options
        if options.image is None:
            # Building and pushing an image takes minutes, so check first that the project answers.
            cloud.project_quotas()
        vm_image, notes = find_image(draft.vm_images, cloud)
        flavour = draft.request.options["flavour"]
        image, more = prepared_image(self.engine, options.image, flavour, draft.settings.repository, docker_log_in)
        now = datetime.fromtimestamp(cloud.now_s(), UTC)
        return draft.launched(now, image=image).on_image(vm_image, (*notes, *more))

    def machines(self, settings: Settings) -> ComputeMachines:
        return ComputeMachines(self.compute(settings.project), sleep=self.sleep)

    def store(self, settings: Settings) -> "Bucket":
        return self.bucket(settings.bucket)

    def checks(self, where: Where) -> Iterator[Check]:
        return examine(vars(where))


backend = ComputeEngine()


def docker_log_in(host: str) -> str:
    """Command that lets Docker push to a registry of Google; empty for another host."""
    return f"gcloud auth configure-docker {host}" if host.endswith((".pkg.dev", "gcr.io")) else ""


# Services of Google Cloud over plain REST, for `launch doctor`. The client libraries for Service Usage, IAM and
# Resource Manager are not used, because no other part of this program needs them. No request changes anything.

ANSWER_S = 15.0
# Only this version has bindings with a condition: https://cloud.google.com/iam/docs/policies#versions
POLICY_VERSION = 3


class Services:
    """Client for one project's services. `session`: google-auth's AuthorizedSession of the user's account."""

    def __init__(self, project: str, session: Any) -> None:
        self.project = project
        self._session = session

    def enabled(self) -> frozenset[str]:
        """Enabled services of the project, as `compute.googleapis.com`."""
        url = f"https://serviceusage.googleapis.com/v1/projects/{self.project}/services"
        names, query = set[str](), {"filter": "state:ENABLED"}
        while True:
            answer = self._ask("GET", f"{url}?{urllib.parse.urlencode(query)}")
            names |= {str(service["config"]["name"]) for service in answer.get("services", ())}
            if not answer.get("nextPageToken"):
                return frozenset(names)
            query["pageToken"] = answer["nextPageToken"]

    def roles_in_project(self, email: str) -> frozenset[str]:
        """Roles that the project grants to a service account itself, not to a group that it is a member of."""
        url = f"https://cloudresourcemanager.googleapis.com/v1/projects/{self.project}:getIamPolicy"
        policy = self._ask("POST", url, {"options": {"requestedPolicyVersion": POLICY_VERSION}})
        member = f"serviceAccount:{email}"
        bindings = (binding for binding in policy.get("bindings", ()) if member in binding.get("members", ()))
        return frozenset(str(binding["role"]) for binding in bindings)

    def permissions(self, roles: Collection[str]) -> frozenset[str]:
        """Permissions that these roles grant together."""
        answers = (self._ask("GET", f"https://iam.googleapis.com/v1/{role}") for role in roles)
        return frozenset(permission for answer in answers for permission in answer.get("includedPermissions", ()))

    def _ask(self, method: str, url: str, content: Any = None) -> Mapping[str, Any]:
        """Document at `url`; {} for a 404. Raises `ToolError`."""
        import requests  # noqa: PLC0415 - loaded only when it is needed
        from google.auth import exceptions as auth  # noqa: PLC0415

        host = urllib.parse.urlsplit(url).hostname or url
        try:
            response = self._session.request(method, url, json=content, timeout=ANSWER_S)
        except (auth.TransportError, requests.RequestException) as error:
            raise ToolError(
                f"{host} cannot be reached: {message_of(error)}",
                hint=f"check the network and its proxy (curl -I https://{host}), then run again",
            ) from error
        except auth.GoogleAuthError as error:
            raise no_credentials(error) from error
        if response.status_code == HTTPStatus.NOT_FOUND:
            return {}
        if response.status_code != HTTPStatus.OK:
            raise _refused(response, host, self.project)
        try:
            document: Mapping[str, Any] = response.json()
        except ValueError as error:
            raise foreign_answer(host, f"https://{host}") from error
        return document


def connect_services(project: str) -> Services:
    """Client for the services of `project`; no request is sent yet. Raises `DeniedError` without credentials."""
    from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415 - loaded only when it is needed

    make_session: Any = AuthorizedSession
    return Services(project, make_session(credentials_for(None)))


def _refused(response: "Response", host: str, project: str) -> ToolError:
    message, reasons = _message_of(response)
    if "SERVICE_DISABLED" in reasons:
        return ToolError(
            f"{host} is not enabled in project '{project}'", hint=f"gcloud services enable {host} --project {project}"
        )
    if response.status_code == HTTPStatus.FORBIDDEN:
        # With a user's own credentials some services require a project whose quota the request counts against.
        if "quota project" in message:
            hint = f"gcloud auth application-default set-quota-project {project}"
        else:
            hint = f"ask the owner of project '{project}', or use another account: {LOG_IN}"
        return ToolError(f"{host}: {message}", hint=hint)
    return ToolError(f"{host}: {message}", hint="run again; if the error stays, report it as a bug")


def _message_of(response: "Response") -> tuple[str, frozenset[str]]:
    """Message and reasons of an error answer: https://google.aip.dev/193."""
    try:
        error = response.json()["error"]
        reasons = frozenset(str(detail.get("reason", "")) for detail in error.get("details", ()))
        return str(error["message"]).splitlines()[0][:300], reasons
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"HTTP {response.status_code}", frozenset()


# Checks of `launch doctor gcp`. A missing role of the user or of the VM's service account is named by the service that
# refuses a launch.

# Services that the launcher and its VMs call. infra/gcp/ enables them; a new project has only storage.
NEEDED_SERVICES = ("compute.googleapis.com", "storage.googleapis.com", "artifactregistry.googleapis.com")
ALL_REGIONS = "GPUS_ALL_REGIONS"
# `delete` is needed to replace an object, as a VM does with its heartbeat.
BUCKET_PERMISSIONS = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list")
ENDPOINTS = (answers.ENDPOINT_VARIABLE, gcs.EMULATOR_VARIABLE)
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
        services = None if endpoint else connect_services(settings.project)
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
    except ToolError as error:
        return GCP.note("APIs", f"not seen: {error}", cure.format(" ".join(NEEDED_SERVICES)))
    if missing := [name for name in NEEDED_SERVICES if name not in enabled]:
        return GCP.problem("APIs", f"not enabled: {', '.join(missing)}", cure.format(" ".join(missing)))
    return GCP.ok("APIs", f"enabled: {', '.join(name.partition('.')[0] for name in NEEDED_SERVICES)}")


# Quotas.


def _quota_checks(compute: Compute, everywhere: Mapping[str, Quota]) -> Iterator[Check]:
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
        bucket = gcs.connect(settings.bucket, prefix="")
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
