"""Checks of the images of VMs, and of the organisation's policies for them."""

from typing import Any

import pytest

from launcher.backends.gcp import gpus
from tests.launcher.backends.gcp.doctor_world import FAMILY, NO_PERMISSION, Row, World
from tests.launcher.backends.gcp.fake_rest import PROJECT, SHIELDED_VM, TRUSTED_IMAGES, disabled, refused


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("image", "state", "found", "cure"),
    [
        ("image-v1", "ok", "image-v1 of project ubuntu-os-accelerator-images, for {}", ""),
        (
            None,
            "problem",
            f"no image family {FAMILY} in project ubuntu-os-accelerator-images, for {{}}",
            (
                "gcloud compute images list --project ubuntu-os-accelerator-images --no-standard-images; if the "
                "family is missing there, report this as a bug"
            ),
        ),
        (NO_PERMISSION, "problem", "no permission", "ask"),
    ],
    ids=["there", "gone", "error"],
)
def test_the_image_of_the_vms(image: Any, state: str, found: str, cure: str, world: World) -> None:
    world.compute.image = image
    users = ", ".join(gpu.name for gpu in gpus.load().values() if gpu.vm_images[0].name == FAMILY)
    assert "t4" in users
    rows = [row for row in world.rows() if row[0] == "VM image"]
    assert len(rows) == len({image for gpu in gpus.load().values() for image in gpu.vm_images}), "each family once"
    assert rows[0][1:] == (state, found.format(users), cure)


def test_an_image_that_is_gone_while_others_are_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.compute, "get_image", lambda _, family: None if family == FAMILY else f"{family}-v1")
    rows = [row for row in world.rows() if row[0] == "VM image"]
    users = ", ".join(gpu.name for gpu in gpus.load().values() if gpu.vm_image.name == FAMILY)
    gone = (
        f"no image family {FAMILY} in project ubuntu-os-accelerator-images, for {users}: launches use the next family"
    )
    assert [(row[1], row[2]) for row in rows if row[1] != "ok"] == [("note", gone)]


ALL_BUT_V100 = "t4, l4, a100, a100-80gb, h100, h200"
NOT_TRUSTED = f"not trusted: ubuntu-os-accelerator-images, for {ALL_BUT_V100}"
BY_HAND = "--vm-image PROJECT/FAMILY of a trusted project, with apt; or ask the organisation's administrator"
VIEWER = "ask the organisation's administrator for roles/orgpolicy.policyViewer"
RESOURCES = "cloudresourcemanager.googleapis.com"


@pytest.mark.parametrize(
    ("question", "answer", "row"),
    [
        (
            SHIELDED_VM,
            {"booleanPolicy": {"enforced": True}},
            (
                "Shielded VM policy",
                "note",
                "VMs need Secure Boot, vTPM and integrity monitoring; no signed driver is known for v100",
                "--secure-boot with each launch",
            ),
        ),
        (
            SHIELDED_VM,
            refused(),
            (
                "Shielded VM policy",
                "note",
                f"could not read constraints/compute.requireShieldedVm: {RESOURCES}: Permission denied",
                VIEWER,
            ),
        ),
        (
            TRUSTED_IMAGES,
            disabled(RESOURCES),
            (
                "VM image policy",
                "note",
                (
                    "could not read constraints/compute.trustedImageProjects: "
                    f"{RESOURCES} is not enabled in project '{PROJECT}'"
                ),
                f"gcloud services enable {RESOURCES} --project {PROJECT}",
            ),
        ),
        (TRUSTED_IMAGES, {}, ("VM image policy", "ok", "the projects of the images are trusted", "")),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"allowedValues": ["projects/ubuntu-os-cloud"]}},
            (
                "VM image policy",
                "problem",
                f"{NOT_TRUSTED}; it trusts projects/ubuntu-os-cloud",
                "--vm-image ubuntu-os-cloud/ubuntu-2404-lts-amd64",
            ),
        ),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"allowedValues": ["is:projects/ubuntu-os-cloud", "projects/ubuntu-os-accelerator-images"]}},
            ("VM image policy", "ok", "the projects of the images are trusted", ""),
        ),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"allValues": "DENY"}},
            (
                "VM image policy",
                "problem",
                (
                    "not trusted: ubuntu-os-accelerator-images, ubuntu-os-cloud, for t4, l4, v100, a100, a100-80gb, "
                    "h100, h200"
                ),
                BY_HAND,
            ),
        ),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"deniedValues": ["projects/debian-cloud"]}},
            ("VM image policy", "ok", "the projects of the images are trusted", ""),
        ),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"allowedValues": ["under:organizations/1"]}},
            (
                "VM image policy",
                "note",
                "names folders or organisations, which are not checked: under:organizations/1",
                "",
            ),
        ),
    ],
)
def test_policies_of_an_organisation(question: str, answer: Any, row: Row, world: World) -> None:
    world.rest.answers[question] = answer
    assert world.row(row[0]) == row
