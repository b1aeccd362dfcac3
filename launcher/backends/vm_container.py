"""Container image of a run on a rented VM: the one for this code, pushed if needed, or the user's own, by digest."""

from collections.abc import Callable

from launcher.docker_engine import Engine
from launcher.images import build as building
from launcher.images import contents
from launcher.machine.runtime import CPU_FLAVOUR
from launcher.protocol.backend import Job
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device


def image_to_be(job: Job, flavour: str, repository: str) -> str:
    """Planned reference of the image for this code, by tag: the push gives the digest. `flavour`: for the GPU."""
    on_cpu = all(spec.device is Device.CPU for spec in job.specs)
    row = contents.require_flavour(CPU_FLAVOUR if on_cpu else flavour)
    recipe = contents.make_recipe(row, commit=contents.current_commit())
    return f"{repository}:{recipe.tag.partition(':')[2]}"


def prepared_image(
    engine: Callable[[], Engine], image: str | None, flavour: str, repository: str, log_in: Callable[[str], str]
) -> tuple[str, tuple[str, ...]]:
    """Image of a launch by digest, and notes on it: the user's `image`, or the one for this code, which is pushed.

    Raises `UsageError` for an image that no VM can run, `ToolError` if an image cannot be found, built or pushed.
    """
    if image is None:
        return pushed_image(engine(), flavour, repository, log_in), ()
    reference = by_digest(engine, image)
    return reference, architecture_notes(engine, reference)


def by_digest(engine: Callable[[], Engine], image: str) -> str:
    """Reference of the image by digest, which never changes. A tag is looked up in its registry.

    Raises `ToolError` if the tag cannot be looked up.
    """
    if "@sha256:" in image:
        return image
    try:
        digest = engine().registry_digest(image)
    except ToolError as error:
        raise ToolError(
            f"--image needs a digest, but the digest of the tag '{image}' cannot be found: {error}",
            hint="--image HOST/NAME@sha256:…, as `launch build --push` prints it",
        ) from error
    head, slash, last = image.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}@{digest}"


def architecture_notes(engine: Callable[[], Engine], reference: str) -> tuple[str, ...]:
    """Notes for an image whose platform cannot be checked. Raises `UsageError` for an image that no VM can run."""
    try:
        platforms = engine().registry_platforms(reference)
    except ToolError as error:
        return (f"could not check that the image is for {contents.VM_PLATFORM}: {error}",)
    if not platforms:
        return (
            f"could not check that the image is for {contents.VM_PLATFORM}: the registry does not report its platform",
        )
    if contents.VM_PLATFORM not in platforms:
        raise UsageError(
            f"'{reference}' is an image for {', '.join(sorted(platforms))}; the VMs are {contents.VM_PLATFORM}",
            hint=f"--image with an image for {contents.VM_PLATFORM}, as `launch build --push` makes it",
        )
    return ()


def pushed_image(engine: Engine, flavour: str, repository: str, log_in: Callable[[str], str]) -> str:
    """Push the image for this code to `repository`, built if the engine lacks it; return its reference by digest.

    `log_in`: command that lets Docker push to a host; empty for a registry that is not the cloud's.
    """
    row = contents.require_flavour(flavour)
    held = engine.image(row.pinned_base)
    platform = building.platform_of_a_vm(engine)
    recipe = contents.make_recipe(
        row, base_id=held.id if held else "", commit=contents.current_commit(), platform=platform
    )
    labelled = engine.images({contents.FLAVOUR_LABEL: flavour, contents.INPUTS_LABEL: recipe.inputs_hash})
    matching = [image for image in labelled if image.architecture in ("", contents.VM_ARCHITECTURE)]
    # An image on another base, built with `launch build --base`, is also an image for this code.
    built = building.existing(recipe, matching[0]) if matching else building.build(engine, recipe)
    try:
        pushed = building.push(engine, built, repository)
    except ToolError as error:
        if command := log_in(repository.partition("/")[0]):
            raise ToolError(str(error), hint=f"{command}, then run the same command again") from error
        raise
    return f"{repository}@{pushed.digest}"
