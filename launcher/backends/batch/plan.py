"""Plan of `launch batch`, made before any request: the VM of `launch gcp` as a job of Cloud Batch. Reads our files.

Fields of the job: https://cloud.google.com/batch/docs/reference/rest/v1/projects.locations.jobs
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.backends.batch.options import Options
from launcher.backends.gcp import plan as gcp_plan
from launcher.backends.gcp.compute import SCOPE
from launcher.backends.gcp.gpus import Driver, require
from launcher.backends.gcp.options import Settings
from launcher.backends.gcp.plan import VmPlan
from launcher.backends.rented_plan import PULL_S
from launcher.backends.shared_plan import Gpu, program_text, run_rows, text_of
from launcher.protocol.backend import Estimate
from launcher.protocol.records import Price, Request, region_of
from launcher.values import DEFAULT_SHM_BYTES, Runtime, text
from workload.contract.errors import UsageError
from workload.contract.spec import Profile
from workload.contract.text import dollars, minutes

# Exit code of a task whose VM was preempted: https://cloud.google.com/batch/docs/troubleshooting
PREEMPTED_CODE = 50001
LABELS = {"rooflaunch": "launch"}
QUEUE_LABEL, LIMIT_LABEL = "rooflaunch-queue-s", "rooflaunch-limit-s"
# Environment variables that identify a task's launch. Batch stores them with the job, where any launcher can read them.
LAUNCH_VARIABLE, STORE_VARIABLE, RETRIES_VARIABLE = "ROOFLAUNCH_LAUNCH", "ROOFLAUNCH_STORE", "ROOFLAUNCH_RETRIES"
LIMIT_VARIABLE = "ROOFLAUNCH_LIMIT_S"
# Folder of Batch's records and bundles, apart from those of `launch gcp`, whose commands look for VMs.
PREFIX = "batch"
# Seconds until a job runs. Google publishes 87 s for a job without a GPU; 120 s are added for a GPU's driver.
STARTED_S = {Driver.NONE: 87, Driver.PREINSTALLED: 87 + 120, Driver.INSTALL: 87 + 120}
NEEDS_PRIVATE_ACCESS = (
    "without an external address the subnetwork needs Private Google Access, as create_network in infra/gcp/ makes it"
)
USER = 1000
PROGRAM = Path(__file__).with_name("start.py")
GUEST = Path(__file__).parents[1] / "gcp" / "guest.py"
# Docker gives capabilities to root only; setpriv hands one to the user (see launcher.machine.containers.for_profile).
COUNTER_OPTIONS = "--user 0:0 --cap-drop ALL --cap-add SYS_ADMIN --cap-add SETUID --cap-add SETGID --cap-add SETPCAP"
# Libraries and programs of the driver that Batch installs, and the option for its devices, as in Google's example:
# https://cloud.google.com/batch/docs/create-run-job-gpus. Nextflow does the same (GoogleBatchTaskHandler.groovy).
DRIVER_VOLUMES = ("/var/lib/nvidia/lib64:/usr/local/nvidia/lib64", "/var/lib/nvidia/bin:/usr/local/nvidia/bin")
COUNTER_WORDS = (
    "setpriv",
    f"--reuid={USER}",
    f"--regid={USER}",
    "--clear-groups",
    "--inh-caps=-all,+sys_admin",
    "--ambient-caps=-all,+sys_admin",
    "--bounding-set=-all,+sys_admin",
)
# `{}`: first driver version that does not support the GPU. A V100 also needs the proprietary kernel module.
NO_PROMISE_OF_DRIVER = "Batch chooses the driver itself, but this GPU needs a driver below {}"


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The complete plan of a launch. `vm`: the plan of `launch gcp` for the same run, with price and limits."""

    request: Request
    vm: VmPlan
    options: Options
    region: str
    notes: tuple[str, ...] = ()
    programs: Mapping[str, str] = field(repr=False)

    @property
    def settings(self) -> Settings:
        """Settings of Google Cloud."""
        return self.vm.settings

    @property
    def gpu(self) -> Gpu:
        """GPU of the VM."""
        return self.vm.gpu

    @property
    def submissions(self) -> int:
        """Always 1: the launcher submits a job once, because Batch itself starts a preempted task again."""
        return 1

    def renamed(self, request: Request) -> "BatchPlan":
        """Copy of the plan with `request`, for a separate job."""
        vm_request = replace(self.vm.request, spec=request.spec, script=request.script)
        return replace(self, request=request, vm=self.vm.renamed(vm_request))

    def launched(self, now: datetime, *, image: str, notes: Sequence[str]) -> "BatchPlan":
        """Copy of the plan with `image` (a reference by digest), the launch time `now`, and a name with this time.

        `notes` come before the plan's own.
        """
        vm_plan = self.vm.launched(now, image=image)
        named = vm_plan.request
        request = replace(self.request, name=named.name, launched_at=named.launched_at, image=named.image)
        return replace(self, vm=vm_plan, request=request, notes=(*notes, *self.notes))

    @property
    def ready_s(self) -> float:
        """Estimated seconds from the moment that a GPU is free until the run starts."""
        return STARTED_S[self.vm.driver] + PULL_S

    @property
    def estimate(self) -> Estimate:
        """Estimate from the moment a GPU is free; how long a job waits for one is unknown."""
        price, limit_s = self.price, self.request.limit_s
        attempts = self.options.rerun_preempted + 1
        return Estimate(
            ready_s=self.ready_s,
            run_s=self.vm.run_s,
            limit_s=limit_s,
            usd_per_h=price.whole_usd_per_h if price else None,
            most_usd=price.usd((limit_s + self.ready_s) * attempts) if price else None,
        )

    @property
    def price(self) -> Price | None:
        """Price of the VM; None if unknown."""
        return self.request.price(self.request.zones[0])

    def text(self, width: int | None = None) -> str:
        """The plan as text for the user, in lines of at most `width` characters."""
        return text_of([*run_rows(self.vm.request), *self._rows()], self.notes, width)

    def _rows(self) -> Iterator[tuple[str, str]]:
        vm, options, limit_s = self.vm, self.options, self.request.limit_s
        kind = "spot" if options.spot else "on demand"
        yield "vm", f"{vm.machine.name} with {vm.request.gpu_count} x {vm.gpu.title}, {kind}"
        yield "name", self.request.name
        yield "zones", f"any of {', '.join(self.request.zones)}, chosen by Batch"
        yield "queue", f"up to {minutes(options.queue_time_s)} for a free GPU while this command runs; then cancelled"
        yield "image", f"{self.request.image}, flavour {vm.request.options['flavour']}"
        yield "account", self.settings.service_account
        yield "store", f"{self.request.store}/runs/"
        attempts = options.rerun_preempted + 1
        expected_s = min(self.ready_s + vm.run_s, limit_s)
        price = self.price
        expected = price.usd(expected_s) if price else None
        if price:
            figure = f"{price.whole_usd_per_h:.3f} USD per hour in {self.region}"
            yield "price", f"{figure}; read {price.read}: {price.source}"
        else:
            yield "price", f"unknown in {self.region}; set a price with --usd-per-h"
        parts = f"{minutes(self.ready_s)} to start and {minutes(vm.run_s)} for the run assumed"
        yield "expected", f"{minutes(expected_s)} once the task has a VM, {dollars(expected)}: {parts}"
        times = f" for each of {attempts} attempts" if attempts > 1 else ""
        most = f"{minutes(limit_s)}{times}, {dollars(self.estimate.most_usd)} with the starts"
        yield "at most", f"{most}; then Batch ends the task and its VM"
        yield "besides", f"{price.uncounted if price else 'traffic and tax'}, which are not counted here"

    def sent_text(self) -> str:
        """Text of the request that would be sent to Batch; the texts of the programs in it are shortened."""
        job = json.loads(json.dumps(self.body([self])))
        container = job["taskGroups"][0]["taskSpec"]["runnables"][0]["container"]
        names = {
            text: f"<launcher/backends/{name}, {len(text.splitlines())} lines>" for name, text in self.programs.items()
        }
        container["commands"] = [names.get(word, word) for word in container["commands"]]
        return (
            f"request    jobs.create in {self.region}; --format json shows its texts in "
            f"full\n{json.dumps(job, indent=1)}"
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object, for `--dry-run --format json`."""
        return {
            "name": self.request.name,
            "region": self.region,
            "price": self.price and asdict(self.price),
            "expected_s": self.ready_s + self.vm.run_s,
            "request": asdict(self.request),
            "job": self.body([self]),
            "notes": list(self.notes),
        }

    def body(self, plans: Sequence["BatchPlan"]) -> dict[str, Any]:
        """Body of jobs.create: a task for each plan; the plans differ only in their runs. Contains no credential."""
        limit_s, retries = self.request.limit_s, self.options.rerun_preempted
        task = {
            "runnables": [{"container": self._container(plans)}],
            "computeResource": {"cpuMilli": str(self.vm.machine.vcpus * 1000)},
            "maxRunDuration": f"{limit_s}s",
            "maxRetryCount": retries,
            "environment": {
                "variables": {
                    STORE_VARIABLE: self.request.store,
                    LIMIT_VARIABLE: str(limit_s),
                    RETRIES_VARIABLE: str(retries),
                    # Passed on for the run's record, because a container cannot see its own image's digest.
                    "ROOFLAUNCH_IMAGE_DIGEST": self.request.image.partition("@")[2],
                }
            },
        }
        if retries:
            again = {"action": "RETRY_TASK", "actionCondition": {"exitCodes": [PREEMPTED_CODE]}}
            task["lifecyclePolicies"] = [again]
        labels = {**LABELS, QUEUE_LABEL: str(self.options.queue_time_s), LIMIT_LABEL: str(limit_s)}
        return {
            "taskGroups": [
                {
                    "taskSpec": task,
                    "taskCount": str(len(plans)),
                    "parallelism": str(len(plans)),
                    # Two tasks on one VM would disturb each other's measurements.
                    "taskCountPerNode": "1",
                    "taskEnvironments": [{"variables": {LAUNCH_VARIABLE: plan.request.name}} for plan in plans],
                }
            ],
            "allocationPolicy": self._allocation(labels),
            # Without a logsPolicy nothing goes to Cloud Logging; the task leaves its own log in the bucket.
            "labels": labels,
        }

    def _container(self, plans: Sequence["BatchPlan"]) -> dict[str, Any]:
        program, guest = self.programs.values()
        begin = ["python", "-c", program, guest]
        shm_bytes = DEFAULT_SHM_BYTES * self.request.work.devices
        options = f"--network host --shm-size {text(shm_bytes)}"
        if any(run.spec.profile is Profile.NCU for plan in plans for run in plan.request.work.runs):
            begin, options = [*COUNTER_WORDS, *begin], f"{options} {COUNTER_OPTIONS}"
        container = {"imageUri": self.request.image, "entrypoint": begin[0], "commands": begin[1:]}
        if self.vm.driver is Driver.NONE:
            return {**container, "options": options}
        return {**container, "volumes": list(DRIVER_VOLUMES), "options": f"{options} --privileged"}

    def _allocation(self, labels: Mapping[str, str]) -> dict[str, Any]:
        vm, options = self.vm, self.options
        policy: dict[str, Any] = {
            "machineType": vm.machine.name,
            "provisioningModel": "SPOT" if options.spot else "STANDARD",
            "bootDisk": {"sizeGb": str(options.disk_gb), "type": vm.gpu.disk_type},
        }
        if vm.gpu.accelerator:
            policy["accelerators"] = [{"type": vm.gpu.accelerator, "count": str(vm.request.gpu_count)}]
        interface: dict[str, Any] = {"noExternalIpAddress": not options.external_ip}
        if self.settings.network or not self.settings.subnetwork:
            name = self.settings.network or "default"
            path = name if "/" in name else f"projects/{self.settings.project}/global/networks/{name}"
            interface["network"] = path
        if self.settings.subnetwork:
            interface["subnetwork"] = _subnetwork(self.settings, self.region)
        return {
            "location": {"allowedLocations": [f"zones/{zone}" for zone in self.request.zones]},
            "instances": [{"policy": policy, "installGpuDrivers": vm.driver is not Driver.NONE}],
            "serviceAccount": {"email": self.settings.service_account, "scopes": [SCOPE]},
            "network": {"networkInterfaces": [interface]},
            "labels": dict(labels),
        }


def make_plan(vm: VmPlan, options: Options, region: str) -> BatchPlan:
    """Plan of `launch batch`, made from the plan of `launch gcp` for the same options. Reads start.py and guest.py."""
    request = replace(
        vm.request,
        backend="batch",
        store=f"{vm.request.store}/{PREFIX}",
        place=f"batch-{vm.gpu.name}",
        runtime=Runtime.PROCESS,
        zones=list(vm.zones),
        options={**{name: vm.request.options[name] for name in ("project", "flavour")}, "region": region},
    )
    return BatchPlan(
        request=request,
        vm=vm,
        options=options,
        region=region,
        notes=tuple(_notes(vm, options)),
        programs={f"{path.parent.name}/{path.name}": program_text(path) for path in (PROGRAM, GUEST)},
    )


def zones_in(region: str, options: Options) -> tuple[str, ...]:
    """Zones that the user allows; if `options` names none, all zones of the region that have the GPU.

    Raises `UsageError` if the region has none, and for a named zone outside the region or without the GPU.
    """
    gpu = require(options.gpu)
    there = tuple(zone for zone in gpu.zones if region_of(zone) == region)
    if not there:
        raise UsageError(
            f"no {gpu.title} in region '{region}'; the regions with one: {', '.join(gpu.regions)}",
            hint=f"--region {gpu.regions[0]}",
        )
    for zone in options.zones:
        if zone not in there:
            raise UsageError(
                f"zone '{zone}' has no {gpu.title} in {region}; zones with one: {', '.join(there)}",
                hint=f"--zone {there[0]}, or --region {region_of(zone) or there[0]}",
            )
    return tuple(dict.fromkeys(options.zones)) or there


def _notes(vm: VmPlan, options: Options) -> Iterator[str]:
    yield from (note for note in vm.notes if note != gcp_plan.NEEDS_NAT)
    if not options.external_ip:
        yield NEEDS_PRIVATE_ACCESS
    if vm.gpu.driver_below and vm.driver is not Driver.NONE:
        yield NO_PROMISE_OF_DRIVER.format(vm.gpu.driver_below)
    if not options.external_ip and any(run.spec.download for run in vm.request.work.runs):
        yield "the data set is downloaded from the internet: without an external address this needs Cloud NAT"
    if any(run.spec.profile is Profile.NCU for run in vm.request.work.runs):
        yield (
            "the container has CAP_SYS_ADMIN during the whole task, not only for the profile, because Batch "
            "starts one container"
        )


def _subnetwork(settings: Settings, region: str) -> str:
    name = settings.subnetwork or ""
    if name.startswith("projects/"):
        return name
    path = name if name.startswith("regions/") else f"regions/{region}/subnetworks/{name}"
    return f"projects/{settings.project}/{path}"
