"""Plan of `launch gcp` before anything happens: from options, GPU table and settings to the whole request. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from launcher.backends.gcp import choices, gpus, plan_text, vm_images
from launcher.backends.gcp.gpus import Driver, GpuOffer, VmImage
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.plan_text import PROGRAMS
from launcher.backends.gcp.planned_vm import PlannedVm
from launcher.backends.gcp.settings import ANY_PROJECT, Settings
from launcher.backends.gcp.skus import PriceList
from launcher.kinds import Runtime
from launcher.machine.runtime import CPU_FLAVOUR
from launcher.protocol.records import Request
from launcher.protocol.task import Task
from launcher.sizes import shown
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, Precision, Resolved

PROGRAM_FOLDER = Path(__file__).parent
# NVIDIA's bf16 units came with Ampere: https://docs.nvidia.com/cuda/ampere-tuning-guide (improved tensor cores).
BF16_CAPABILITY = (8, 0)
# Characters of an image reference: a registry, a path, a tag, a digest.
IMAGE = r"[a-z0-9][-._/:@a-zA-Z0-9]{0,511}"
# All metadata of an instance together may have 256 KB.
MAX_METADATA_BYTES = 250_000
NEEDS_NAT = "without an external address the VM needs Cloud NAT, for its packages"


@dataclass(frozen=True, kw_only=True)
class VmPlan(PlannedVm):
    """The complete plan of a launch, as its user reads it and as `submit` sends it."""

    def renamed(self, request: Request) -> "VmPlan":
        """Copy of the plan with `request`, as a launch of its own."""
        return replace(self, request=request)

    def launched(self, now: datetime, *, image: str) -> "VmPlan":
        """The plan with this launch time, also in its name, and with the image by the registry's digest."""
        request = replace(
            self.request,
            name=_name(self.gpu, now, token=self.name.rpartition("-")[2]),
            launched_at=_stamp(now),
            image=_checked_image(image),
        )
        plan = replace(self, request=request)
        _check_size(plan)
        return plan

    def on_image(self, image: VmImage, notes: tuple[str, ...]) -> "VmPlan":
        """The plan with the VM image that was found for it."""
        driver = self.driver if self.driver is Driver.NONE else image.driver
        return replace(
            self,
            vm_images=(image,),
            driver=driver,
            request=replace(
                self.request, options={**self.request.options, "vm_image": image.path, "driver": str(driver)}
            ),
            notes=(*notes, *self.notes),
        )

    def text(self, width: int | None = None) -> str:
        """Text of the plan, with our commands as the user can type them here."""
        return plan_text.render(self, width)

    def sent_text(self) -> str:
        """Request that the first zone would be sent, with its long texts shortened."""
        return plan_text.render_request(self)


def make_plan(
    resolved: Resolved,
    options: Options,
    settings: Settings,
    *,
    image: str,
    now: datetime,
    token: str,
    task: Task | None = None,
    today: PriceList | None = None,
    notes: Sequence[str] = (),
) -> VmPlan:
    """Plan of `launch gcp`. Reads only the tables and the start-up programs.

    `task`: runs of a sweep, in place of the resolved spec's. `image` has the registry's digest, except in a dry run.
    `token`: 6 hex digits that make the name unique. `now` is timezone-aware. `today`: Google's price list, if
    available. Raises `UsageError` for a run that a VM cannot do or options that the GPU does not have, `ToolError` for
    a broken installation.
    """
    gpu = gpus.require(options.gpu)
    choices.check_options(options)
    machine, count = choices.choose_machine(gpu, options)
    spec, changed = choices.on_vm(resolved.spec, gpu)
    if task is not None:
        asked, task = task, task.mapped(lambda one: choices.on_vm(one, gpu)[0].checked())
        changed = list(dict.fromkeys(note for run in asked.runs for note in choices.on_vm(run.spec, gpu)[1]))
    specs = [run.spec for run in task.runs] if task else [spec]
    with_driver = any(one.device is not Device.CPU for one in specs)
    images = vm_images.candidates(gpu, options, with_driver=with_driver)
    driver = images[0].driver if with_driver else Driver.NONE
    zones = choices.zone_order(gpu, options, settings)
    prices = choices.known_prices(gpu, machine, count, options, zones, now, today)
    if options.max_cost_usd is not None:
        zones = choices.with_price(zones, prices, options)
    request = Request(
        name=_name(gpu, now, token=token),
        backend="gcp",
        launched_at=_stamp(now),
        store=f"gs://{settings.bucket}",
        place=f"gcp-{gpu.name}",
        runtime=Runtime.DOCKER,
        limit_s=choices.time_limit_s(options, prices.values()),
        spec=spec.to_json(),
        spec_origin={key: str(value) for key, value in resolved.origin.items() if key != "data_dir"},
        image=_checked_image(image),
        gpu=gpu.name,
        gpu_count=count,
        machine_type=machine.name,
        zones=list(zones),
        spot=options.spot,
        prices={region: asdict(price) for region, price in prices.items()},
        options={
            "project": settings.project,
            "flavour": gpu.flavour if with_driver else CPU_FLAVOUR,
            "vm_image": images[0].path,
            "driver": str(driver),
            "secure_boot": bool(options.secure_boot),
        },
        task=task.to_json(spec) if task else {},
    )
    plan = VmPlan(
        request=request,
        settings=settings,
        gpu=gpu,
        machine=machine,
        vm_images=images,
        driver=driver,
        shielded=vm_images.shielded_config(options),
        options=options,
        zones=zones,
        programs={key: _program(name) for key, name in PROGRAMS.items()},
    )
    _check_size(plan)
    return replace(plan, notes=(*changed, *notes, *_notes(plan)))


def _name(gpu: GpuOffer, now: datetime, *, token: str) -> str:
    return f"rooflaunch-{gpu.name}-{now.astimezone(UTC):%Y%m%d-%H%M%S}-{token}"


def _stamp(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="milliseconds")


def _checked_image(image: str) -> str:
    if not re.fullmatch(IMAGE, image):
        raise UsageError(
            f"image must be a reference such as HOST/PATH@sha256:…; got '{shown(image)}'",
            hint="--image us-central1-docker.pkg.dev/PROJECT/rooflaunch/trainer@sha256:…",
        )
    return image


def _check_size(plan: VmPlan) -> None:
    size = sum(len(key) + len(value.encode()) for key, value in plan.metadata().items())
    if size > MAX_METADATA_BYTES:
        shorter = "shorter values for --model and the other run options"
        task = plan.request.work if plan.request.task else None
        raise UsageError(
            f"the request{f' for {task}' if task else ''} has {size} bytes; a VM's metadata takes {MAX_METADATA_BYTES}",
            hint="more machines, which share the runs" if task else shorter,
        )


def _notes(plan: VmPlan) -> Iterator[str]:
    if plan.spec.script:
        yield "how long a script takes to its first step nobody knows: the time assumed is that of our own trainer"
    if plan.driver is Driver.NONE:
        yield f"the run computes on the VM's CPU; its {plan.gpu.title} is paid for all the same"
    elif plan.request.gpu_count > 1:
        yield f"the run computes on one GPU of {plan.request.gpu_count}"
    if (
        plan.driver is not Driver.NONE
        and any(run.spec.precision is Precision.BF16 for run in plan.request.work.runs)
        and plan.gpu.capability < BF16_CAPABILITY
    ):
        capability = ".".join(map(str, plan.gpu.capability))
        yield (
            f"the {plan.gpu.title} has no bf16 units (compute capability {capability}; they come with 8.0): bf16 is "
            "emulated there and slow; --precision amp uses its tensor cores"
        )
    if plan.shielded.get("enableSecureBoot") and plan.driver is not Driver.NONE and plan.vm_image.signed is None:
        image = plan.vm_image.name
        yield f"under Secure Boot the driver of {image} loads only if the VM's firmware trusts its signature"
    if plan.settings.project == ANY_PROJECT:
        yield f"no project is set: {ANY_PROJECT} stands for yours; --project names it"
    if plan.ready_s + plan.run_s > plan.limit_s:
        yield f"the run may not be over within the limit of {plan.limit_s} s: --max-run-time"
    if not plan.options.external_ip:
        yield NEEDS_NAT
    if plan.settings.subnetwork and "/" not in plan.settings.subnetwork:
        yield f"every region needs a subnetwork '{plan.settings.subnetwork}'; name it with its region to stay there"


def _program(name: str) -> str:
    try:
        return (PROGRAM_FOLDER / name).read_text(encoding="utf-8")
    except OSError as error:
        raise ToolError(f"this installation lacks {name}", hint="install rooflaunch again") from error
