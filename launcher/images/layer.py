"""Packages of a script, as a layer on an image: keyed by that image and by the file that names the packages.

PyTorch and its own packages keep the image's versions: results with another PyTorch would not be comparable.
"""

import hashlib
from pathlib import Path

from launcher.docker_engine import Engine, Image
from launcher.images import build as building
from launcher.images import contents
from workload.contract.errors import ToolError, UsageError

MOST_BYTES = 1_000_000
HELD = ("torch", "torchvision", "numpy")
# The image has no pip of its own, so ensurepip comes first. Any builder can read this Dockerfile.
DOCKERFILE = f"""ARG BASE_IMAGE
FROM ${{BASE_IMAGE}}
USER 0:0
COPY requirements.txt /opt/build/script.txt
RUN python -m ensurepip > /dev/null \\
    && python -c "import importlib.metadata as m; [print(n + '==' + m.version(n)) for n in {HELD}]" \\
       > /opt/build/held.txt \\
    && python -m pip install --no-cache-dir --disable-pip-version-check --progress-bar off --no-color \\
       --requirement /opt/build/script.txt --constraint /opt/build/held.txt \\
    && python -m pip uninstall --quiet --yes pip
USER 1000:1000
"""


def read(path: str) -> bytes:
    """Content of the file that `--requirements` names. Raises `UsageError` if it cannot be read or is too large."""
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(
            f"the requirements '{path}' cannot be read: {error.strerror}", hint="--requirements requirements.txt"
        ) from error
    if len(content) > MOST_BYTES:
        raise UsageError(
            f"the requirements '{path}' have {len(content)} bytes: this is not a list of packages",
            hint="a list of packages, one per line",
        )
    return content


def layered(engine: Engine, base: Image, requirements: bytes, *, platform: str = "") -> Image:
    """Image `base` with the packages added, built once for the same base and requirements. Raises `ToolError`."""
    key = hashlib.sha256(b"\n".join((base.id.encode(), DOCKERFILE.encode(), requirements))).hexdigest()
    tag = f"{contents.REPOSITORY}:script-{key[: contents.HASH_DIGITS]}"
    if (existing := engine.image(tag)) is not None:
        return existing
    events = engine.build(
        contents.tar_of({"Dockerfile": DOCKERFILE.encode(), "requirements.txt": requirements}),
        dockerfile="Dockerfile",
        tag=tag,
        build_args={"BASE_IMAGE": base.id},
        # A label of its own, so that a search for an image for this code does not find this layer.
        labels={contents.INPUTS_LABEL: f"{base.labels.get(contents.INPUTS_LABEL, '')}+{key[: contents.HASH_DIGITS]}"},
        # Resolve names as on this machine, because only this machine may know pip's index.
        network="host",
        cached=True,
        platform=platform,
    )
    building.logged(tag, events)
    image = engine.image(tag)
    if image is None:
        raise ToolError(f"the engine lost the image {tag} right after the build", hint="launch doctor docker")
    return image


def pushed(engine: Engine, reference: str, requirements: bytes) -> str:
    """Add the packages to a registry's image, and push the result to the same repository.

    Returns the new image's reference, by digest. Raises `ToolError`.
    """
    base = engine.image(reference)
    if base is None:
        raise ToolError(f"the engine has no image '{reference}'", hint=f"docker pull {reference}")
    image = layered(engine, base, requirements, platform=building.platform_of_a_vm(engine))
    repository = reference.partition("@")[0]
    # The engine knows which flavour the base has, and nothing else of its recipe.
    flavour = image.labels.get(contents.FLAVOUR_LABEL, "")
    built = building.built_of(image, flavour=flavour, tag=image.name, base=base.name, base_digest=base.digest)
    return f"{repository}@{building.push(engine, built, repository).digest}"
