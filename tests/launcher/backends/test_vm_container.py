"""The image of a launch on a rented VM: built, pushed and named by digest, for the architecture of the VMs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from launcher.backends.gcp.backend import docker_log_in
from launcher.docker_engine import EngineEvent, Image
from launcher.images import build, contents
from launcher.images import build as building
from tests.launcher.backends.gcp.canned_cloud import IMAGE, SETTINGS
from tests.launcher.backends.gcp.command_world import no_docker
from tests.launcher.backends.told import errors_of

REPOSITORY = SETTINGS.repository


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is part of an image's name, and asks git."""
    monkeypatch.setattr(contents, "current_commit", lambda: "")


class Docker:
    """The part of an engine that `launch gcp` asks; holds one image, and pushes it."""

    def __init__(self, *, holds: bool, denied: str = "") -> None:
        recipe = contents.make_recipe(contents.require_flavour("cuda"))
        labels = {contents.FLAVOUR_LABEL: "cuda", contents.INPUTS_LABEL: recipe.inputs_hash}
        plain: dict[str, Any] = {"id": "sha256:1", "reference": "", "size_bytes": 1, "created": "", "labels": labels}
        own = Image(tags=("rooflaunch:cuda-ffffffffffff",), architecture="arm64", **plain)
        for_vms = Image(tags=("rooflaunch:cuda-0123456789ab",), architecture="amd64", **plain)
        self.held = [own, for_vms] if holds else [own]
        self.architecture = "arm64"
        self.denied = denied
        self.tagged: list[tuple[str, str]] = []

    def image(self, name: str) -> Image | None:
        assert name.startswith("debian:") or "/" in name or ":" in name
        return None

    def images(self, labels: dict[str, str]) -> list[Image]:
        return [each for each in self.held if each.labels == labels]

    def tag(self, image: str, name: str) -> None:
        self.tagged.append((image, name))

    def push(self, name: str) -> list[EngineEvent]:
        assert name == self.tagged[-1][1]
        return (
            [EngineEvent(error=self.denied)]
            if self.denied
            else [EngineEvent(text="pushed"), EngineEvent(digest="sha256:" + "a" * 64)]
        )

    def registry_digest(self, name: str) -> str:
        assert name == "host:5000/trainer:cuda"
        return "sha256:" + "b" * 64


def pushed(docker: Docker, repository: str = REPOSITORY) -> str:
    engine: Any = docker
    return build.pushed_image(engine, "cuda", repository, docker_log_in)


@dataclass
class Registry:
    """The part of an engine that asks a registry what it has an image for."""

    platforms: frozenset[str]

    def registry_platforms(self, name: str) -> frozenset[str]:
        assert name == IMAGE
        return self.platforms


UNCHECKED = "could not check that the image is for linux/amd64: "


@pytest.mark.parametrize(
    ("platforms", "notes"),
    [
        ({"linux/amd64"}, ()),
        ({"linux/amd64", "linux/arm64"}, ()),
        (set(), (f"{UNCHECKED}the registry does not report its platform",)),
    ],
)
def test_an_image_of_the_vms_architecture(platforms: set[str], notes: tuple[str, ...]) -> None:
    engine: Any = Registry(frozenset(platforms))
    assert build.architecture_notes(lambda: engine, IMAGE) == notes


def test_without_an_engine_the_architecture_is_not_checked() -> None:
    [note] = build.architecture_notes(no_docker, IMAGE)
    assert note.startswith(f"{UNCHECKED}no Docker engine: ")


def test_the_image_for_this_code_is_pushed_and_run_by_digest() -> None:
    docker = Docker(holds=True)
    assert pushed(docker) == f"{REPOSITORY}@sha256:{'a' * 64}"
    assert docker.tagged == [("sha256:1", f"{REPOSITORY}:cuda-0123456789ab")]


def test_an_image_that_is_not_there_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker(holds=False)
    made, asked = Docker(holds=True).held[1], []

    def build(_: object, recipe: contents.Recipe) -> building.Built:
        asked.append(recipe.platform)
        return building.existing(recipe, made)

    monkeypatch.setattr("launcher.images.build.build", build)
    assert pushed(docker) == f"{REPOSITORY}@sha256:{'a' * 64}"
    assert asked == ["linux/amd64"], "the image of this machine is none for a VM"


def test_refusals_of_an_image_are_told_with_a_cure(golden: Callable[[str, str], None]) -> None:
    arm: Any = Registry(frozenset({"linux/arm64"}))

    def prepared() -> str:
        return build.prepared_image(lambda: arm, IMAGE, "cuda", REPOSITORY, docker_log_in)

    def push(repository: str) -> str:
        return pushed(Docker(holds=True, denied="denied: no"), repository)

    refused = errors_of(prepared, {"image for another processor": {}})
    denied = errors_of(push, {name: {"repository": name} for name in (REPOSITORY, "host:5000/trainer")})
    unknown = errors_of(lambda: build.by_digest(no_docker, "host:5000/trainer:cuda"), {"tag, no Docker": {}})
    golden("image-refusals.txt", f"{refused}\n{denied}\n{unknown}")


def test_tag_is_looked_up_and_a_digest_taken_as_it_is() -> None:
    assert build.by_digest(no_docker, IMAGE) == IMAGE
    docker: Any = Docker(holds=False)
    assert build.by_digest(lambda: docker, "host:5000/trainer:cuda") == f"host:5000/trainer@sha256:{'b' * 64}"
