"""`launch doctor batch`: check what a job of Cloud Batch needs besides the checks of `launch doctor gcp`.

Changes nothing.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.backends.batch.machines import BatchMachines
from launcher.backends.batch.options import Where
from launcher.backends.batch.plan import PREFIX
from launcher.backends.batch.service import ENDPOINT_VARIABLE, BatchService
from launcher.backends.gcp import backend
from launcher.backends.gcp.backend import ComputeEngine, Services
from launcher.backends.gcp.options import Settings
from launcher.backends.gcp.options import Where as VmWhere
from launcher.protocol.backend import Check, CheckPart
from workload.contract.errors import RooflaunchError
from workload.contract.text import counted
from workload.storage import gcs
from workload.storage.gcs import Bucket

BATCH = CheckPart("batch")
# Permission of Batch's agent on the VM: https://cloud.google.com/batch/docs/create-run-job-custom-service-account
REPORTER = "batch.states.report"
REPORTER_ROLE = "roles/batch.agentReporter"


@dataclass(frozen=True, kw_only=True)
class BatchPorts:
    """Connections to the services that are checked; tests replace these connections."""

    service: Callable[[str, str], BatchService] = BatchService
    services: Callable[[str], Services] = backend.connect_services
    bucket: Callable[[str], Bucket] = lambda name: gcs.connect(name, prefix=f"{PREFIX}/")


def examine(where: Where, ports: BatchPorts | None = None) -> Iterator[Check]:
    """Run every check, in order. Without a project, yield only one failed check, which says so."""
    ports = ports or BatchPorts()
    try:
        settings = ComputeEngine().settings(VmWhere(project=where.project, bucket=where.bucket))
    except RooflaunchError as error:
        yield BATCH.failed("project", error)
        return
    yield from _queue_checks(ports, settings, where)

    def bucket() -> str:
        ports.bucket(settings.bucket)
        return f"gs://{settings.bucket}/{PREFIX} can be read"

    yield BATCH.looked("bucket", bucket)
    yield reporter_check(settings, ports)
    yield BATCH.note(
        "the rest", "quotas, images, registry and service account are checked for Compute Engine", "launch doctor gcp"
    )


def _queue_checks(ports: BatchPorts, settings: Settings, where: Where) -> Iterator[Check]:
    service = ports.service(settings.project, where.region)
    try:
        jobs = [job for job in service.jobs() if not job.is_over]
        machines = BatchMachines(service, lambda: ports.bucket(settings.bucket))
        leftovers = list(machines.leftovers())
    except RooflaunchError as error:
        yield BATCH.failed("API", error)
        return
    running = counted(len(jobs), "running job")
    yield BATCH.ok("API", f"Batch answers in {where.region} of {settings.project}; {running} of rooflaunch")
    if leftovers:
        named = ", ".join(f"{leftover.name} ({leftover.why})" for leftover in leftovers)
        yield BATCH.problem("leftovers", named, f"launch reap --region {where.region}")


def reporter_check(settings: Settings, ports: BatchPorts) -> Check:
    """Check that the VM's service account has the role `REPORTER_ROLE`.

    Without this role Batch's agent on the VM cannot report that it is alive, and every task fails after a while.
    """
    if os.environ.get(ENDPOINT_VARIABLE):
        return BATCH.note("VM's role", f"not asked: {ENDPOINT_VARIABLE} points elsewhere")
    account = settings.service_account
    cure = (
        f"gcloud projects add-iam-policy-binding {settings.project} --member serviceAccount:{account} "
        f"--role {REPORTER_ROLE}; infra/gcp/ grants this role"
    )
    try:
        client = ports.services(settings.project)
        roles = client.roles_in_project(account)
        may_report = REPORTER_ROLE in roles or REPORTER in client.permissions(roles)
    except RooflaunchError as error:
        return BATCH.note("VM's role", f"not seen: {error}", cure)
    if not may_report:
        return BATCH.problem(
            "VM's role", f"{account} lacks {REPORTER_ROLE}: Batch would consider the VM's tasks lost", cure
        )
    return BATCH.ok("VM's role", f"{account} may report to Batch")
