"""Which image the VM boots: the first of the GPU's families that exists."""

import pytest

from launcher.backends.gcp import gpus
from launcher.backends.gcp.answers import DeniedError
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.gpus import Driver, VmImage
from launcher.backends.gcp.plan import VmPlan, find_image
from launcher.jobs import liveness
from tests.launcher.backends.gcp.gcp_plans import planned
from workload.contract.errors import ToolError
from workload.storage.store import UnreachableError


def source_of(plan: VmPlan) -> str:
    return str(plan.body("us-central1-a", request_id="0")["disks"][0]["initializeParams"]["sourceImage"])


class Project(Compute):
    """Compute Engine as far as it is asked for families: `gone` are there no more, an error is raised."""

    def __init__(self, *gone: str, error: Exception | None = None) -> None:
        self.gone, self.error, self.asked = gone, error, list[str]()

    def get_image(self, project: str, family: str) -> str | None:
        self.asked.append(f"{project}/{family}")
        if self.error:
            raise self.error
        return None if family in self.gone else f"{family}-v20261101"


def test_every_gpu_has_images_to_fall_back_on() -> None:
    for gpu in gpus.load().values():
        assert len({image.path for image in gpu.vm_images}) == len(gpu.vm_images) > 1
    assert not any(image.name == "ubuntu-2204-lts" for image in gpus.require("v100").vm_images), "gcc-11"


def test_a_family_becomes_its_newest_image() -> None:
    plan, project = planned(), Project()
    image, notes = find_image(plan.vm_images, project)
    plan = plan.on_image(image, notes)
    newest = "ubuntu-accelerator-2204-amd64-with-nvidia-580-v20261101"
    assert source_of(plan) == plan.request.options["vm_image"]
    assert plan.request.options["vm_image"] == f"projects/ubuntu-os-accelerator-images/global/images/{newest}"
    assert (plan.notes, len(project.asked)) == ((), 1)
    assert planned(run={"device": "cpu"}).on_image(image, ()).driver is Driver.NONE


def test_a_renamed_family_is_told_and_the_next_one_taken() -> None:
    plan = planned()
    usual = plan.request
    first, second, third, last = plan.vm_images
    image, notes = find_image(plan.vm_images, Project(first.name, second.name, third.name))
    plan = plan.on_image(image, notes)
    assert plan.request.options["vm_image"] == f"projects/{last.project}/global/images/{last.name}-v20261101"
    assert (plan.driver, plan.metadata()["rooflaunch-driver"]) == (Driver.INSTALL, "install")
    assert liveness.boot_limit_s(plan.request) == liveness.INSTALLING_BOOT_LIMIT_S > liveness.boot_limit_s(usual)
    assert plan.notes == (
        *(
            f"VM image family {image.name} no longer exists in project {image.project}"
            for image in (first, second, third)
        ),
        f"the VM boots {last.name}-v20261101 of ubuntu-os-cloud instead",
    )


def test_a_family_that_we_may_not_see_is_left_to_the_insert() -> None:
    image = VmImage(project="other-project", name="own")
    error = DeniedError("no permission in project", hint="ask")
    assert find_image([image], Project(error=error)) == (
        image,
        ("VM image other-project/own could not be looked up: no permission in project",),
    )
    every = gpus.require("v100").vm_images
    with pytest.raises(ToolError, match="no VM image is left, because none of these families exists any more: "):
        find_image(every, Project(*(family.name for family in every)))
    with pytest.raises(UnreachableError):
        find_image([image], Project(error=UnreachableError("no network", hint="wait")))
