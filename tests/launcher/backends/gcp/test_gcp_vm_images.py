"""Which image the VM boots: what may be named, which of several there is, and what Secure Boot does to its driver."""

from dataclasses import replace
from typing import Any

import pytest

from launcher.backends.gcp import gpus
from launcher.backends.gcp.gpus import Driver, VmImage
from launcher.backends.gcp.plan import find_image
from launcher.backends.gcp.planned_vm import VmPlan
from launcher.backends.gcp.refusals import DeniedError
from launcher.jobs import liveness
from launcher.protocol.records import Request
from launcher.sizes import shown
from tests.launcher.backends.gcp.gcp_plans import planned
from workload.contract.errors import ExitCode, ToolError, UsageError
from workload.storage.store import UnreachableError

UBUNTU = "ubuntu-os-cloud/ubuntu-2404-lts-amd64"
OWN = "projects/my-project/global/images/own-1"
FORMS = (
    "--vm-image must be PROJECT/FAMILY, projects/PROJECT/global/images/family/FAMILY or "
    "projects/PROJECT/global/images/IMAGE; got '{}'"
)
OTHER_DRIVER = "--no-secure-boot, or --vm-image of an image with a signed driver and --vm-driver preinstalled"


def source_of(plan: VmPlan) -> str:
    return str(plan.body("us-central1-a", request_id="0")["disks"][0]["initializeParams"]["sourceImage"])


def line(plan: VmPlan, label: str) -> str:
    (text,) = (row for row in plan.text().splitlines() if row.startswith(label))
    return text.removeprefix(label).strip()


class Project:
    """Compute Engine as far as it is asked for families: `gone` are there no more, an error is raised."""

    def __init__(self, *gone: str, error: Exception | None = None) -> None:
        self.gone, self.error, self.asked = gone, error, list[str]()

    def get_image(self, project: str, family: str) -> str | None:
        self.asked.append(f"{project}/{family}")
        if self.error:
            raise self.error
        return None if family in self.gone else f"{family}-v20261101"


# What may be named.


@pytest.mark.parametrize(
    ("text", "path", "driver"),
    [
        ("my-project/own", "projects/my-project/global/images/family/own", Driver.PREINSTALLED),
        ("debian-cloud/debian-13", "projects/debian-cloud/global/images/family/debian-13", Driver.INSTALL),
        (UBUNTU, "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64", Driver.INSTALL),
        ("projects/my-project/global/images/family/own", None, Driver.PREINSTALLED),
        (OWN, None, Driver.PREINSTALLED),
        (f"https://www.googleapis.com/compute/v1/{OWN}", OWN, Driver.PREINSTALLED),
        (f"https://compute.googleapis.com/compute/v1/{OWN}", OWN, Driver.PREINSTALLED),
    ],
)
def test_an_image_that_is_named(text: str, path: str | None, driver: Driver) -> None:
    plan = planned(vm_image=text)
    assert source_of(plan) == plan.request.options["vm_image"] == (path or text)
    assert (plan.vm_image.driver, plan.driver) == (driver, driver)
    assert plan.metadata()["rooflaunch-driver"] == driver
    assert Request.from_bytes(plan.request.to_bytes()) == plan.request


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "own",
            "my-project/",
            "/own",
            "my-project/Own",
            "my-project/a/b",
            "-rf/own",
            "my-project/own\n",
            "$(a)/b",
        ),
        *("https://evil.example.com/projects/my-project/global/images/own", "projects/p/global/images/own", f"{OWN}/"),
        "$(a)/b",
    ],
)
def test_no_image(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(vm_image=text or " ")
    assert str(caught.value) == FORMS.format(shown(text or " "))
    assert caught.value.hint == f"--vm-image {UBUNTU}"


def test_the_plan_shows_it() -> None:
    assert line(planned(vm_image="my-project/own"), "vm image") == "my-project, newest of own"
    plan = planned(vm_image=OWN, vm_driver="install")
    assert line(plan, "vm image") == "my-project, own-1"
    assert line(plan, "driver").startswith("installed on the VM, with a reboot or two; ")
    assert planned(vm_image=OWN).to_json()["vm_images"] == [OWN]


def test_a_run_on_the_cpu_needs_no_driver_of_any_image() -> None:
    plan = planned(run={"device": "cpu"}, vm_image=UBUNTU, secure_boot=True)
    assert (plan.driver, plan.shielded["enableSecureBoot"]) == (Driver.NONE, True)
    assert plan.on_image(replace(plan.vm_image, name="x"), ()).driver is Driver.NONE


# Shielded VM options.

ON = {"enableSecureBoot": True, "enableVtpm": True, "enableIntegrityMonitoring": True}


@pytest.mark.parametrize(
    ("options", "sent", "shown"),
    [
        ({}, None, None),
        ({"secure_boot": True}, ON, "Secure Boot on, vTPM on, integrity on"),
        ({"secure_boot": False}, {**ON, "enableSecureBoot": False}, "Secure Boot off, vTPM on, integrity on"),
        ({"vtpm": False}, dict.fromkeys(ON, False), "Secure Boot off, vTPM off, integrity off"),
        (
            {"integrity_monitoring": False},
            {**ON, "enableSecureBoot": False, "enableIntegrityMonitoring": False},
            "Secure Boot off, vTPM on, integrity off",
        ),
    ],
)
def test_shielded_options(options: dict[str, bool], sent: dict[str, bool] | None, shown: str | None) -> None:
    from google.cloud import compute_v1

    plan = planned(**options)
    body = plan.body("us-central1-a", request_id="0")
    assert body.get("shieldedInstanceConfig") == sent
    assert set(sent or ()) <= {
        "".join(word.title() if index else word for index, word in enumerate(name.split("_")))
        for name in compute_v1.ShieldedInstanceConfig.meta.fields
    }, "the names of Google's client"
    assert ("shielded" in plan.text()) == (shown is not None)
    if shown:
        assert line(plan, "shielded") == shown


def test_integrity_is_measured_with_the_vtpm() -> None:
    with pytest.raises(UsageError) as caught:
        planned(vtpm=False, integrity_monitoring=True)
    assert caught.value.report() == (
        "error: --integrity-monitoring needs the vTPM; got --no-vtpm\nhint: --no-vtpm --no-integrity-monitoring"
    )


@pytest.mark.parametrize("gpu", ["t4", "l4", "a100", "h100"])
def test_under_secure_boot_images_with_unsigned_drivers_are_left_out(gpu: str) -> None:
    plan = planned(gpu, secure_boot=True, spot=gpu == "h100")
    assert [image.name for image in plan.vm_images] == [
        "ubuntu-accelerator-2204-amd64-with-nvidia-580",
        "ubuntu-accelerator-2404-amd64-with-nvidia-580",
    ]
    assert plan.notes == ()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"gpu": "v100"}, "the V100 16 GB's is built on the VM: it would not load"),
        ({"vm_image": UBUNTU}, "the T4 16 GB's is built on the VM: it would not load"),
        ({"vm_image": OWN, "vm_driver": "install"}, "the T4 16 GB's is built on the VM: it would not load"),
        (
            {"vm_image": "deeplearning-platform-release/common-cu129-ubuntu-2204-nvidia-580"},
            "the T4 16 GB's in common-cu129-ubuntu-2204-nvidia-580 is not signed: it would not load",
        ),
    ],
)
def test_a_driver_that_secure_boot_does_not_load(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(secure_boot=True, **options)
    assert (str(caught.value), caught.value.hint) == (
        f"Secure Boot loads only signed drivers, but {why}",
        OTHER_DRIVER,
    )


def test_a_driver_of_which_nobody_knows_whether_it_loads() -> None:
    plan = planned("v100", secure_boot=True, vm_image=OWN)
    assert plan.notes == ("under Secure Boot the driver of own-1 loads only if the VM's firmware trusts its signature",)


# Which of them there is.


def test_every_gpu_has_images_to_fall_back_on() -> None:
    for gpu in gpus.load().values():
        assert len({image.path for image in gpu.vm_images}) == len(gpu.vm_images) > 1
    assert not any(image.name == "ubuntu-2204-lts" for image in gpus.require("v100").vm_images), "gcc-11"


def test_a_family_becomes_its_newest_image() -> None:
    plan, project = planned(), Project()
    image, notes = find_image(plan.vm_images, project, is_named=False)
    plan = plan.on_image(image, notes)
    newest = "ubuntu-accelerator-2204-amd64-with-nvidia-580-v20261101"
    assert source_of(plan) == plan.request.options["vm_image"]
    assert plan.request.options["vm_image"] == f"projects/ubuntu-os-accelerator-images/global/images/{newest}"
    assert (plan.notes, len(project.asked)) == ((), 1)


def test_a_renamed_family_is_told_and_the_next_one_taken() -> None:
    plan = planned()
    usual = plan.request
    first, second, third, last = plan.vm_images
    image, notes = find_image(plan.vm_images, Project(first.name, second.name, third.name), is_named=False)
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


def test_no_family_is_left() -> None:
    images = gpus.require("v100").vm_images
    with pytest.raises(ToolError) as caught:
        find_image(images, Project(*(image.name for image in images)), is_named=False)
    assert caught.value.report() == (
        "error: no VM image is left, because none of these families exists any more: "
        "ubuntu-os-cloud/ubuntu-2404-lts-amd64, debian-cloud/debian-12\nhint: --vm-image PROJECT/FAMILY "
        "with a family that exists (gcloud compute images list --project ubuntu-os-cloud "
        "--no-standard-images)"
    )
    assert caught.value.exit_code is ExitCode.TOOL


def test_a_named_family_that_is_not_there() -> None:
    with pytest.raises(UsageError) as caught:
        find_image(planned(vm_image="my-project/own").vm_images, Project("own"), is_named=True)
    assert caught.value.report() == (
        "error: --vm-image: there is no image family 'own' in project 'my-project'\n"
        "hint: gcloud compute images list --project my-project --no-standard-images"
    )


def test_an_image_is_not_looked_up() -> None:
    project = Project()
    image = VmImage(project="my-project", name="own-1", is_family=False)
    assert find_image([image], project, is_named=True) == (image, ())
    assert project.asked == []


def test_a_family_that_we_may_not_see_is_left_to_the_insert() -> None:
    image = VmImage(project="other-project", name="own")
    error = DeniedError("no permission in project", hint="ask")
    assert find_image([image], Project(error=error), is_named=True) == (
        image,
        ("VM image other-project/own could not be looked up: no permission in project",),
    )
    with pytest.raises(UnreachableError):
        find_image([image], Project(error=UnreachableError("no network", hint="wait")), is_named=True)
