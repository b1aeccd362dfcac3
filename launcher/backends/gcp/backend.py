"""Compute Engine as a backend of `launch`: its settings, prices, image and plan are prepared before a VM exists."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import docker_engine
from launcher.backends.gcp import gpus
from launcher.backends.gcp.compute import Compute, connect, default_project
from launcher.backends.gcp.machines import ComputeMachines
from launcher.backends.gcp.options import Options, Where
from launcher.backends.gcp.plan import VmPlan, find_image, make_plan
from launcher.backends.gcp.settings import ANY_PROJECT, Settings, resolve_settings
from launcher.backends.vm_container import image_to_be, prepared_image
from launcher.docker_engine import Engine
from launcher.protocol.backend import Check, Job
from launcher.protocol.records import LAUNCHES, READERS
from workload.storage import gcs

if TYPE_CHECKING:
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
            image=options.image or image_to_be(job, gpus.require(options.gpu).flavour, settings.repository),
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
        from launcher.backends.gcp import doctor  # noqa: PLC0415 - only `launch doctor` needs it

        return iter(doctor.examine(vars(where)))


backend = ComputeEngine()


def docker_log_in(host: str) -> str:
    """Command that lets Docker push to a registry of Google; empty for another host."""
    return f"gcloud auth configure-docker {host}" if host.endswith((".pkg.dev", "gcr.io")) else ""
