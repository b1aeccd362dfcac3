"""The VM's own image: which ones a launch may boot, and which exist. The run's container has another image."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from launcher.backends.gcp import gpus
from launcher.backends.gcp.gpus import Driver, GpuOffer, VmImage
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.refusals import DeniedError
from launcher.backends.gcp.settings import PROJECT
from launcher.sizes import shown
from workload.contract.errors import ToolError, UsageError

NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
FAMILY = re.compile(rf"(?P<project>{PROJECT})/(?P<name>{NAME})")
PATH = re.compile(
    r"(?:https://(?:www|compute)\.googleapis\.com/compute/v1/)?"
    rf"projects/(?P<project>{PROJECT})/global/images/(?P<family>family/)?(?P<name>{NAME})"
)
# Projects of Google's public operating systems with apt, which have no driver.
BARE_PROJECTS = frozenset({"ubuntu-os-cloud", "debian-cloud"})


class Images(Protocol):
    """The part of the Compute Engine client that is used here."""

    def get_image(self, project: str, family: str) -> str | None: ...


def parse(text: str) -> VmImage:
    """Image for PROJECT/FAMILY, or for the path or address of an image or a family. Raises `UsageError` for other text.

    For a family in our table, what is known of its driver is filled in. Another image is assumed to have a driver,
    except Ubuntu's and Debian's own.
    """
    form = PATH.fullmatch(text) or FAMILY.fullmatch(text)
    if form is None:
        raise UsageError(
            "--vm-image must be PROJECT/FAMILY, projects/PROJECT/global/images/family/FAMILY or "
            f"projects/PROJECT/global/images/IMAGE; got '{shown(text)}'",
            hint="--vm-image ubuntu-os-cloud/ubuntu-2404-lts-amd64",
        )
    parts = form.groupdict()
    is_family = parts.get("family", "family/") is not None
    known = {image.path: image for gpu in gpus.load().values() for image in gpu.vm_images}
    driver = Driver.INSTALL if parts["project"] in BARE_PROJECTS else Driver.PREINSTALLED
    named = VmImage(project=parts["project"], name=parts["name"], is_family=is_family, driver=driver)
    return known.get(named.path, named)


def candidates(gpu: GpuOffer, options: Options, *, with_driver: bool) -> tuple[VmImage, ...]:
    """Images to look for, in this order: the requested one, or the GPU's; under Secure Boot only if the driver loads.

    Raises `UsageError` if no driver would load.
    """
    chosen = (parse(options.vm_image),) if options.vm_image else gpu.vm_images
    if options.vm_driver:
        # A driver that is built on the VM is unsigned, whatever the image.
        driver = Driver(options.vm_driver)
        signed = False if driver is Driver.INSTALL else None
        chosen = tuple(
            image if image.driver is driver else replace(image, driver=driver, signed=signed) for image in chosen
        )
    if not options.secure_boot or not with_driver:
        return chosen
    loads = tuple(image for image in chosen if image.signed is not False and image.driver is not Driver.INSTALL)
    if not loads:
        how = "is built on the VM" if chosen[0].driver is Driver.INSTALL else f"in {chosen[0].name} is not signed"
        raise UsageError(
            f"Secure Boot loads only signed drivers, but the {gpu.title}'s {how}: it would not load",
            hint="--no-secure-boot, or --vm-image of an image with a signed driver and --vm-driver preinstalled",
        )
    return loads


def shielded_config(options: Options) -> dict[str, bool]:
    """Value of the insert's `shieldedInstanceConfig`; {} if no option asks for one.

    If one of the three options is set, all are sent; the others have Google's default: on, except Secure Boot. Raises
    `UsageError` for integrity monitoring without a vTPM.
    """
    asked = (options.secure_boot, options.vtpm, options.integrity_monitoring)
    if all(choice is None for choice in asked):
        return {}
    vtpm = options.vtpm is not False
    # Integrity can only be measured with a vTPM.
    integrity = vtpm if options.integrity_monitoring is None else options.integrity_monitoring
    if integrity and not vtpm:
        raise UsageError(
            "--integrity-monitoring needs the vTPM; got --no-vtpm", hint="--no-vtpm --no-integrity-monitoring"
        )
    return {"enableSecureBoot": bool(options.secure_boot), "enableVtpm": vtpm, "enableIntegrityMonitoring": integrity}


def resolve(images: Sequence[VmImage], compute: Images, *, is_named: bool) -> tuple[VmImage, tuple[str, ...]]:
    """The first image that exists, and notes for the user on those before it.

    A family becomes its newest image, so that every zone and attempt boots the same one. `is_named`: the user chose it.
    Raises `UsageError` or `ToolError` if none is left.
    """
    notes: list[str] = []
    for image in images:
        if not image.is_family:
            return image, tuple(notes)
        try:
            newest = compute.get_image(image.project, image.name)
        except DeniedError as error:
            # The insert may still be allowed to use the image.
            notes.append(f"VM image {image.project}/{image.name} could not be looked up: {error}")
            return image, tuple(notes)
        if newest:
            if notes:
                notes.append(f"the VM boots {newest} of {image.project} instead")
            return replace(image, name=newest, is_family=False), tuple(notes)
        notes.append(f"VM image family {image.name} no longer exists in project {image.project}")
    listing = f"gcloud compute images list --project {images[0].project} --no-standard-images"
    if is_named:
        raise UsageError(
            f"--vm-image: there is no image family '{images[0].name}' in project '{images[0].project}'", hint=listing
        )
    missing = ", ".join(f"{image.project}/{image.name}" for image in images)
    raise ToolError(
        f"no VM image is left, because none of these families exists any more: {missing}",
        hint=f"--vm-image PROJECT/FAMILY with a family that exists ({listing})",
    )
