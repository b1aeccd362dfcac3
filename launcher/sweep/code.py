"""Identity of a place's code in the keys of its runs: an image by its name, else the content of our files."""

import hashlib
import importlib.metadata
from collections.abc import Mapping

from launcher.images import contents
from launcher.kinds import Runtime
from launcher.sweep.places import LOCAL, Place

# Libraries of a process on this machine; the recipe of an image lists its own.
LIBRARIES = ("torch", "torchvision")


def code_of(place: Place) -> str:
    """Identify the code that runs at a place, independently of folder and commit; runs of other code are other runs.

    An image that is named by a tag is identified by the tag, although the image behind a tag may change unnoticed. For
    a script, the identity has two parts: the script's code and ours.
    """
    return f"{_ours(place)} script {place.script.code}" if place.script else _ours(place)


def _ours(place: Place) -> str:
    named: str | None = getattr(place.options, "image", None)
    if named:
        return f"image {named.partition('@')[2] or named}"
    if getattr(place.options, "runtime", None) is not Runtime.PROCESS:
        inputs = {name: contents.make_recipe(flavour).inputs for name, flavour in contents.load_flavours().items()}
        return f"images {_digest(inputs)}"
    packages = tuple(f"{name}/" for name in contents.TRAINER_PACKAGES)
    trainer = {name: text for name, text in contents.agent_code().items() if name.startswith(packages)}
    files = {name: hashlib.sha256(text).hexdigest() for name, text in trainer.items()}
    libraries = {name: _version(name) for name in LIBRARIES} if place.backend == LOCAL else {}
    return f"code {_digest({**files, **libraries})}"


def is_by_tag(place: Place) -> bool:
    """Whether the place names an image without its digest, so that the image may change."""
    named: str | None = getattr(place.options, "image", None)
    return named is not None and "@sha256:" not in named


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _digest(parts: Mapping[str, str]) -> str:
    text = "\n".join(f"{name}={value}" for name, value in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()
