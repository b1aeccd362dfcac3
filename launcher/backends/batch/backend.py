"""Cloud Batch as a backend of `launch`. Settings, prices, images and bucket are the same as for Compute Engine."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from launcher.backends.batch.machines import BatchMachines
from launcher.backends.batch.options import Options, Where
from launcher.backends.batch.plan import PREFIX, BatchPlan, make_plan, zones_in
from launcher.backends.batch.service import BatchService
from launcher.backends.gcp import gpus
from launcher.backends.gcp.backend import ComputeEngine, docker_log_in
from launcher.backends.gcp.options import Settings
from launcher.backends.gcp.options import Where as VmWhere
from launcher.backends.vm_container import prepared_image
from launcher.protocol.backend import Check, Job
from launcher.protocol.records import LAUNCHES, READERS
from workload.storage import gcs

if TYPE_CHECKING:
    from workload.storage.gcs import Bucket


@dataclass(frozen=True, kw_only=True)
class Region:
    """Region in which Batch runs the jobs, and the settings of Google Cloud."""

    region: str
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class CloudBatch:
    """The backend `batch`. The fields are its connections to services and clock, which a test replaces."""

    name: str = "batch"
    vm: ComputeEngine = field(default_factory=ComputeEngine)
    service: Callable[[str, str], BatchService] = BatchService
    bucket: Callable[[str], "Bucket"] = lambda name: gcs.connect(name, prefix=LAUNCHES, root=f"{PREFIX}/", jobs=READERS)
    sleep: Callable[[float], None] = time.sleep

    def settings(self, where: Where, options: Options | None = None, *, offline: bool = False) -> Region:
        """Settings for region, project and bucket.

        Raises `UsageError` for a name that Google does not allow, or an unknown GPU.
        """
        vm_options = None
        if options is not None:
            gpus.require(options.gpu)
            vm_options = options.for_vm(())
        place = VmWhere(project=where.project, bucket=where.bucket)
        return Region(region=where.region, settings=self.vm.settings(place, vm_options, offline=offline))

    def plan(self, job: Job, options: Options, settings: Region, *, now: datetime, offline: bool = False) -> BatchPlan:
        as_gcp = options.for_vm(zones_in(settings.region, options))
        vm = self.vm.plan(job, as_gcp, settings.settings, now=now, offline=offline)
        return make_plan(vm, options, settings.region)

    def prepare(self, draft: BatchPlan, machines: BatchMachines) -> BatchPlan:
        """Push the image for this code, unless the user chose an image; return the plan with the image's digest."""
        # Building and pushing an image takes minutes, so check first that Batch answers.
        now_s = machines.now_s()
        flavour, repository = draft.vm.request.options["flavour"], draft.settings.repository
        image, notes = prepared_image(self.vm.engine, draft.options.image, flavour, repository, docker_log_in)
        return draft.launched(datetime.fromtimestamp(now_s, UTC), image=image, notes=notes)

    def machines(self, settings: Region) -> BatchMachines:
        service = self.service(settings.settings.project, settings.region)
        return BatchMachines(service, lambda: self.store(settings), sleep=self.sleep)

    def store(self, settings: Region) -> "Bucket":
        return self.bucket(settings.settings.bucket)

    def checks(self, where: Where) -> Iterator[Check]:
        from launcher.backends.batch import doctor  # noqa: PLC0415 - only `launch doctor` needs it

        return iter(doctor.examine(where))


backend = CloudBatch()
