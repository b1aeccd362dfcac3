"""The text of a plan, and its notes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from launcher.backends.gcp import plan as planning
from tests.launcher.backends.gcp.gcp_plans import GOLDEN, IMAGE, lines_of, planned, settings_of

pytestmark = pytest.mark.usefixtures("made_up_programs")

BASE = f"image      {IMAGE}, flavour "
PLACES = [
    "account    rooflaunch-vm@my-project.iam.gserviceaccount.com",
    "bucket     gs://my-project-rooflaunch/runs/",
]
UBUNTU = "vm image   ubuntu-os-accelerator-images, newest of ubuntu-accelerator-2204-amd64-with-nvidia-580"
PREINSTALLED = "driver     in the VM image; the run needs 580.65.06 or newer"
CATALOG = "read 2026-07: Google Cloud's public catalog of mid-2026"
CALCULATOR = "read 2025-03: Cyclenerd/google-cloud-pricing-cost-calculator, pricing.yml of 2025-03-06"
USUAL = "3.6 min to a usable VM as published, 2 min for the image and 1.6 min for the run assumed"
BESIDES = "besides    traffic and tax, which are not counted here"
ANYWHERE = "in any zone that may be tried"
AROUND = "and 5 min to start and to stop"
LATE = "then the cloud deletes the VM"
OTHERS = "unknown in the other {} regions that may be tried (--max-cost excludes these)"
DEFAULTS = ["plan       resnet18, the device's default batch, fp32, on cuda; one run", "set by     all defaults"]


def test_text_for_a_t4() -> None:
    assert lines_of(planned()) == [
        *DEFAULTS,
        "vm         n1-standard-4 with 1 x T4 16 GB, on demand",
        "name       rooflaunch-t4-20261121-142530-0a1b2c",
        "zones      us-central1-a, us-central1-b, us-central1-c, us-central1-f and 47 other zones",
        UBUNTU,
        PREINSTALLED,
        "disk       100 GB, pd-balanced",
        f"{BASE}cuda",
        *PLACES,
        f"price      0.540 USD per hour in us-central1, 0.560 with disk and address; {CATALOG}",
        "unknown    the price in us-east1, us-east4, us-west1, us-west2 and 18 other regions",
        f"expected   7.1 min, 0.07 USD: {USUAL}",
        f"at most    60 min {AROUND}, 0.61 USD, in us-central1; {OTHERS.format(22)}; {LATE}",
        BESIDES,
    ]


def test_text_for_a_v100() -> None:
    """A stack of its own: driver, VM image and flavour."""
    assert lines_of(planned("v100", spot=True)) == [
        *DEFAULTS,
        "vm         n1-standard-8 with 1 x V100 16 GB, spot",
        "name       rooflaunch-v100-20261121-142530-0a1b2c",
        "zones      us-central1-a, us-central1-b, us-central1-c, us-central1-f and 8 other zones",
        "vm image   ubuntu-os-cloud, newest of ubuntu-2404-lts-amd64",
        "driver     installed on the VM, with a reboot or two; the run needs 525.60.13 or newer, below 581",
        "disk       100 GB, pd-balanced",
        f"{BASE}volta",
        *PLACES,
        f"price      1.361 USD per hour in us-central1, 1.378 with disk and address; {CATALOG}",
        "unknown    the price in us-east1, us-west1, europe-west4, asia-east1",
        f"expected   14.6 min, 0.34 USD: {USUAL.replace('3.6', '11.1')}",
        f"at most    60 min {AROUND}, 1.50 USD, in us-central1; {OTHERS.format(4)}; {LATE}",
        BESIDES,
    ]


def test_text_for_an_a100() -> None:
    found = lines_of(planned("a100"))
    assert found[2] == "vm         a2-highgpu-1g with 1 x A100 40 GB, on demand"
    assert found[11:] == [
        f"price      3.673 USD per hour in us-central1, 3.693 with disk and address; {CALCULATOR}",
        "unknown    the price in us-east1, us-west1, us-west3, us-west4 and 5 other regions",
        f"expected   7.1 min, 0.44 USD: {USUAL}",
        f"at most    60 min {AROUND}, 4.01 USD, in us-central1; {OTHERS.format(9)}; {LATE}",
        BESIDES,
    ]


def test_text_where_no_price_is_known() -> None:
    assert lines_of(planned("a100", spot=True))[11:] == [
        "price      unknown in us-central1; set a price with --usd-per-h",
        f"expected   7.1 min, cost unknown: {USUAL}",
        f"at most    60 min {AROUND}, the cost is unknown in every zone that may be tried; {LATE}",
        BESIDES,
    ]


def test_text_with_everything() -> None:
    assert lines_of(planned(**GOLDEN["t4-everything"])) == [
        (
            "plan       resnet50, the device's default batch, fp32, on cuda; 3 runs, each in its own process, "
            "then a profile by ncu"
        ),
        "set by     model: option, dataset: option, repeats: option, profile: option",
        "vm         n1-standard-8 with 1 x T4 16 GB, spot",
        "name       rooflaunch-t4-20261121-142530-0a1b2c",
        "zones      us-central1-f, us-central1-a, and no other",
        UBUNTU,
        PREINSTALLED,
        "disk       200 GB, pd-balanced",
        f"{BASE}cuda",
        "account    runner@my-project.iam.gserviceaccount.com",
        "bucket     gs://my-bucket/runs/",
        f"price      0.319 USD per hour in us-central1, 0.349 with disk; {CATALOG}",
        f"expected   14.2 min, 0.09 USD: {USUAL.replace('1.6', '8.7')}",
        f"at most    38 min {AROUND}, 0.25 USD for each of up to 2 attempts, 0.50 USD in all, {ANYWHERE}; {LATE}",
        BESIDES,
        "note       the VM downloads imagenette, because it starts without data",
        "note       data_dir is a folder of this machine: the VM uses its own folder",
        "note       without an external address the VM needs Cloud NAT, for its packages",
    ]


def test_at_most_is_that_of_the_dearest_zone() -> None:
    prices = {"us-central1": 0.5, "us-east1": 0.9}
    plan = planned(zones=("us-central1-a", "us-east1-b"), fallback=False)
    listed = {region: {"usd_per_h": usd, "source": "a test", "read": "2026-11"} for region, usd in prices.items()}
    dear = replace(plan, request=replace(plan.request, prices=listed))
    assert f"at most    60 min {AROUND}, 0.98 USD, in any zone that may be tried; {LATE}" in lines_of(dear)
    one = replace(plan, request=replace(plan.request, prices={"us-central1": listed["us-central1"]}))
    others = OTHERS.format(1).replace("regions", "region")
    assert f"at most    60 min {AROUND}, 0.55 USD, in us-central1; {others}; {LATE}" in lines_of(one)


@pytest.mark.parametrize(("gpu", "warned"), [("t4", True), ("v100", True), ("l4", False), ("a100", False)])
def test_bf16_without_units_for_it_is_noted(gpu: str, warned: bool) -> None:
    note = "has no bf16 units"
    assert any(note in line for line in planned(gpu, run={"precision": "bf16"}).notes) == warned
    assert not any(note in line for line in planned(gpu, run={"precision": "amp"}).notes)
    assert not any(note in line for line in planned(gpu, run={"precision": "bf16", "device": "cpu"}).notes)


def test_the_plan_fits_its_terminal() -> None:
    lines = planned().text(90).splitlines()
    # A word that is longer stays whole: the image with its digest.
    assert [line for line in lines if len(line) > 90 and len(line.split()) > 2] == []
    assert [line for line in lines if not line.startswith(" ")][-1].startswith("besides")


def test_the_request_in_short() -> None:
    plan = planned()
    assert "request" not in plan.text()
    head, _, shown = plan.sent_text().partition("\n")
    assert head == "request    instances.insert in us-central1-a; --format json shows its texts in full"
    body = json.loads(shown)
    items = {item["key"]: item for item in body["metadata"]["items"]}
    assert items["startup-script"]["value"] == "<launcher/backends/gcp/startup.sh, 2 lines>"
    assert items["rooflaunch-boot"]["value"] == "<launcher/backends/gcp/boot.py, 3 lines>"
    assert items["rooflaunch-guest"]["value"] == "<launcher/backends/gcp/guest.py, 1 lines>"
    assert items["shutdown-script"]["value"] == "<launcher/backends/gcp/shutdown.sh, 4 lines>"
    assert items["rooflaunch-request"]["value"] == "<this plan as data>"
    whole = plan.to_json()["insert"]
    whole_items = {item["key"]: item["value"] for item in whole["metadata"]["items"]}
    for key in (*planning.PROGRAMS, "rooflaunch-request"):
        items[key]["value"] = whole_items[key]
    assert body == whole


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"run": {"device": "cpu"}}, "the run computes on the VM's CPU, but its T4 16 GB must be paid too"),
        ({"gpu_count": 2}, "a run computes on one GPU of the VM's 2; the price is that of the whole VM"),
        (
            {"gpu": "l4", "run": {"devices": 3}},
            "a run computes on at most 3 GPUs of the VM's 4; the price is that of the whole VM",
        ),
        ({"max_run_time_s": 300}, "the run may take longer than the limit of 300 s: --max-run-time"),
        (
            {"settings": settings_of(subnetwork="gpu")},
            "every region needs a subnetwork 'gpu'; name it with its region to use only that region",
        ),
        ({"run": {"dataset": "cifar10"}}, "the VM downloads cifar10, because it starts without data"),
    ],
)
def test_notes(options: dict[str, Any], note: str) -> None:
    plan = planned(**options)
    assert plan.notes == (note,)
    assert lines_of(plan)[-1] == f"note       {note}"
