"""The whole request of a launch, compared with the files in plans/.

`python -m tests.launcher.backends.gcp.test_gcp_plan` writes them anew.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from launcher.backends.gcp import gpus
from launcher.backends.gcp import plan as planning
from launcher.backends.gcp.gpus import Driver
from launcher.backends.gcp.plan import Options, make_plan
from launcher.backends.gcp.planned_vm import VmPlan
from launcher.backends.gcp.price_list import PriceList
from launcher.backends.gcp.settings import Settings, resolve_settings
from launcher.protocol.records import NAME, Price, Request, region_of
from launcher.protocol.task import Task, TaskRun
from launcher.sizes import parse_duration_s
from tests.launcher.backends.gcp.canned_prices import TODAY
from workload.contract import prices
from workload.contract.errors import ExitCode, RooflaunchError, ToolError, UsageError
from workload.contract.spec import Device, Precision, Profile, RunSpec, resolve
from workload.contract.text import dollars, minutes

ROOT = Path(__file__).parents[4]
PLANS = Path(__file__).with_name("plans")
NOW = datetime(2026, 11, 21, 14, 25, 30, 123000, tzinfo=UTC)
IMAGE = f"us-central1-docker.pkg.dev/my-project/rooflaunch/trainer@sha256:{'0123456789abcdef' * 4}"
BOOT = "# nobody's boot.py\n\nprint('ok')\n"
SCRIPT = "#!/bin/bash\necho 'verbatim: $(date) \"${NAME}\"'\n"
GUEST = "# nobody's guest.py\n"
SHUTDOWN = "#!/bin/bash\n# nobody's shutdown.sh\n\ntrue\n"
LABEL_KEY, LABEL_VALUE = re.compile(r"[a-z][_\-a-z0-9]{0,62}"), re.compile(r"[_\-a-z0-9]{0,63}")


def settings_of(**given: str) -> Settings:
    return resolve_settings({"project": "my-project", **given}, {}, None, default_project=lambda: None)[0]


def planned(
    gpu: str = "t4",
    run: Mapping[str, object] | None = None,
    settings: Settings | None = None,
    *,
    image: str = IMAGE,
    now: datetime = NOW,
    price_list: PriceList | None = None,
    **options: Any,
) -> VmPlan:
    return make_plan(
        resolve(run or {}, {}, None),
        Options(gpu=gpu, **options),
        settings or settings_of(),
        image=image,
        now=now,
        token="0a1b2c",
        price_list=price_list,
    )


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a VM runs is others' matter: here it is something that a plan could not pass on by luck."""
    (tmp_path / "startup.sh").write_text(SCRIPT)
    (tmp_path / "boot.py").write_text(BOOT)
    (tmp_path / "guest.py").write_text(GUEST)
    (tmp_path / "shutdown.sh").write_text(SHUTDOWN)
    monkeypatch.setattr(planning, "PROGRAM_FOLDER", tmp_path)


def refused(error: type[RooflaunchError] = UsageError, **options: Any) -> tuple[str, str]:
    with pytest.raises(error) as caught:
        planned(**options)
    assert caught.value.exit_code == (ExitCode.USAGE if error is UsageError else ExitCode.TOOL)
    return str(caught.value), caught.value.hint


GOLDEN: dict[str, dict[str, Any]] = {
    "t4": {},
    "l4": {"gpu": "l4"},
    "v100": {"gpu": "v100"},
    "a100": {"gpu": "a100"},
    "a100-80gb": {"gpu": "a100-80gb"},
    "h100-spot": {"gpu": "h100", "spot": True},
    "h200": {"gpu": "h200"},
    "t4-everything": {
        "zones": ("us-central1-f", "us-central1-a"),
        "fallback": False,
        "spot": True,
        "machine_type": "n1-standard-8",
        "max_run_time_s": 7200,
        "max_cost_usd": 0.5,
        "external_ip": False,
        "disk_gb": 200,
        "rerun_preempted": 1,
        "settings": Settings(
            project="my-project",
            bucket="my-bucket",
            repository="europe-docker.pkg.dev/my-project/images/trainer",
            service_account="runner@my-project.iam.gserviceaccount.com",
            network="vpc",
            subnetwork="projects/my-project/regions/us-central1/subnetworks/gpu",
        ),
        "run": {
            "model": "resnet50",
            "dataset": "imagenette",
            "data_dir": "/home/me/data",
            "repeats": "3",
            "profile": "ncu",
        },
    },
    "t4-cpu": {"run": {"device": "cpu"}},
}


def golden(plan: VmPlan) -> str:
    """As committed: the script left out, the run's request readable."""
    found = plan.to_json()
    for item in found["insert"]["metadata"]["items"]:
        if item["key"] in planning.PROGRAMS:
            item["value"] = f"launcher/backends/gcp/{planning.PROGRAMS[item['key']]}"
        if item["key"] == "rooflaunch-request":
            item["value"] = json.loads(item["value"])
    return json.dumps(found, indent=1) + "\n"


@pytest.mark.parametrize("name", GOLDEN)
def test_the_plan_is_the_committed_one(name: str) -> None:
    assert golden(planned(**GOLDEN[name])) == (PLANS / f"{name}.json").read_text()


def test_no_other_plan_is_committed() -> None:
    assert {path.stem for path in PLANS.iterdir()} == set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_what_google_demands_of_a_request(name: str) -> None:
    plan = planned(**GOLDEN[name])
    body = plan.body(plan.zones[-1], request_id="0" * 32)
    zone = plan.zones[-1]
    assert NAME.fullmatch(body["name"])
    assert body["machineType"].startswith(f"zones/{zone}/machineTypes/")
    assert ("guestAccelerators" in body) == body["machineType"].partition("machineTypes/")[2].startswith("n1-")
    scheduling = body["scheduling"]
    assert scheduling["onHostMaintenance"] == "TERMINATE"
    assert scheduling["automaticRestart"] is (scheduling["provisioningModel"] == "STANDARD"), "a spot VM may not"
    assert scheduling["instanceTerminationAction"] == "DELETE"
    assert scheduling["maxRunDuration"] == {"seconds": str(plan.request.limit_s)}
    assert body["disks"][0]["autoDelete"] is True
    assert f"/{zone}/" in body["disks"][0]["initializeParams"]["diskType"]
    for labels in (body["labels"], body["disks"][0]["initializeParams"]["labels"]):
        assert all(LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value) for key, value in labels.items())
    assert int(body["labels"]["rooflaunch-limit"]) == plan.request.limit_s
    assert body["labels"]["rooflaunch-request"] == "0" * 32
    assert "rooflaunch-request" not in body["disks"][0]["initializeParams"]["labels"]
    metadata = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    assert (metadata["startup-script"], metadata["rooflaunch-boot"]) == (SCRIPT, BOOT)
    assert metadata["shutdown-script"] == SHUTDOWN
    assert Request.from_bytes(metadata["rooflaunch-request"].encode()) == plan.request
    assert sum(len(key) + len(value) for key, value in metadata.items()) < 256_000


@pytest.mark.parametrize("name", GOLDEN)
def test_googles_own_client_takes_the_request(name: str) -> None:
    """Every field is one of its message, with the right type: from_json refuses anything else."""
    from google.cloud import compute_v1

    plan = planned(**GOLDEN[name])
    body = plan.body(plan.zones[0], request_id="0" * 32)
    instance = compute_v1.Instance.from_json(json.dumps(body), ignore_unknown_fields=False)
    assert instance.scheduling.max_run_duration.seconds == plan.request.limit_s
    assert instance.scheduling.provisioning_model == ("SPOT" if plan.options.spot else "STANDARD")
    assert [each.accelerator_count for each in instance.guest_accelerators] == [1] * bool(plan.gpu.accelerator)
    assert instance.disks[0].initialize_params.disk_size_gb == plan.options.disk_gb
    assert dict(instance.labels) == body["labels"]
    assert len(instance.network_interfaces[0].access_configs) == plan.options.external_ip


@pytest.mark.parametrize("gpu", sorted(gpus.load()))
def test_what_is_asked_for_can_be_read_again(gpu: str) -> None:
    """Each field keeps to the rule that the readers of records have."""
    for image in (IMAGE, "localhost:5000/trainer:cuda-0123456789ab"):
        request = planned(gpu, image=image, spot=True).request
        assert Request.from_bytes(request.to_bytes()).to_bytes() == request.to_bytes()


def lines_of(plan: VmPlan) -> list[str]:
    return plan.text().partition("\n\n")[0].splitlines()


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
        ({"gpu_count": 2}, "the run computes on one GPU of 2"),
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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60m", 3600), ("1h30m", 5400), ("90s", 90), ("30s", 30), ("120d", 10_368_000), ("1d2h3m4s", 93_784)],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration_s(text, "--max-run-time") == seconds


@pytest.mark.parametrize(
    "text",
    [
        "29s",
        "120d1s",
        "",
        "60",
        "m",
        "1.5h",
        "30m1h",
        "-60m",
        " 60m",
        "60 m",
        "60m\n",
        "\u0666\u0660m",
        "$(reboot)",
        "9" * 4096,
    ],
    ids=str,
)
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration_s(text, "--max-run-time")
    shown = gpus.shown(text)
    rule = "--max-run-time must be a duration such as 60m or 1h30m, from 30 s to 120 d"
    assert str(caught.value) == f"{rule}; got '{shown}'"
    assert caught.value.hint == "--max-run-time 60m"


def test_a_zone_without_the_gpu_names_those_with_it() -> None:
    those = "us-central1-a,b,c,f us-east1-b,c us-west1-a,b europe-west4-a,b,c asia-east1-c"
    assert refused(gpu="v100", zones=("us-east1-d",)) == (
        f"no V100 16 GB in zone 'us-east1-d'; the zones with one: {those}",
        "--zone us-east1-c",
    )
    assert refused(gpu="v100", zones=("here",))[1] == "--zone us-central1-a"


@pytest.mark.parametrize(
    ("zones", "fallback", "first", "count"),
    [
        ((), True, ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east1-b"], 51),
        (("us-west1-b",), True, ["us-west1-b", "us-west1-a", "us-central1-a", "us-central1-b"], 51),
        (
            ("us-west1-b", "us-east1-c"),
            True,
            ["us-west1-b", "us-east1-c", "us-east1-b", "us-east1-d", "us-west1-a"],
            51,
        ),
        (("us-west1-b", "us-west1-b"), False, ["us-west1-b"], 1),
    ],
)
def test_order_of_the_zones(zones: tuple[str, ...], fallback: bool, first: list[str], count: int) -> None:
    plan = planned(zones=zones, fallback=fallback)
    assert list(plan.zones)[: len(first)] == first
    assert len(set(plan.zones)) == len(plan.zones) == count
    assert plan.request.zones == list(plan.zones)


def test_known_prices_come_first() -> None:
    """The table's order is by region, and no region is split by it."""
    zones = planned("h100", spot=True).zones
    assert zones[:3] == ("us-central1-a", "us-central1-b", "us-central1-c")
    assert zones == gpus.require("h100").zones


def test_fallback_needs_a_named_zone_to_be_switched_off() -> None:
    assert refused(fallback=False) == (
        "--no-fallback allows only the zones that are named with --zone, but none is named",
        "--zone us-central1-a --no-fallback",
    )


def test_a_subnetwork_with_its_region_keeps_the_launch_there() -> None:
    there = settings_of(subnetwork="regions/us-west1/subnetworks/gpu")
    plan = planned(settings=there)
    assert plan.zones == ("us-west1-a", "us-west1-b")
    interface = plan.body("us-west1-a", request_id="")["networkInterfaces"][0]
    assert interface["subnetwork"] == "regions/us-west1/subnetworks/gpu"
    assert "network" not in interface
    assert refused(settings=there, zones=("us-central1-a",)) == (
        "zone 'us-central1-a' is not in the region of subnetwork 'regions/us-west1/subnetworks/gpu'",
        "--zone us-west1-a",
    )
    nowhere = settings_of(subnetwork="regions/us-west4/subnetworks/gpu")
    assert refused(gpu="v100", settings=nowhere)[0].startswith(
        "no V100 16 GB in the region of subnetwork 'regions/us-west4/subnetworks/gpu'; the zones with one: us-central1"
    )


@pytest.mark.parametrize(
    ("network", "subnetwork", "expected"),
    [
        (None, None, {"network": "global/networks/default"}),
        ("vpc", None, {"network": "global/networks/vpc"}),
        ("projects/host-project/global/networks/vpc", None, {"network": "projects/host-project/global/networks/vpc"}),
        (None, "gpu", {"subnetwork": "regions/us-east1/subnetworks/gpu"}),
        ("vpc", "gpu", {"network": "global/networks/vpc", "subnetwork": "regions/us-east1/subnetworks/gpu"}),
    ],
)
def test_network(network: str | None, subnetwork: str | None, expected: dict[str, str]) -> None:
    plan = planned(settings=replace(settings_of(), network=network, subnetwork=subnetwork), external_ip=False)
    assert plan.body("us-east1-b", request_id="")["networkInterfaces"] == [expected]


@pytest.mark.parametrize(
    ("gpu", "machine_type", "gpu_count", "expected"),
    [
        ("t4", None, 1, ("n1-standard-4", 1)),
        ("t4", None, 4, ("n1-standard-4", 4)),
        ("t4", "n1-standard-32", 2, ("n1-standard-32", 2)),
        ("l4", None, 2, ("g2-standard-24", 2)),
        ("l4", "g2-standard-48", 1, ("g2-standard-48", 4)),
        ("l4", "g2-standard-48", 4, ("g2-standard-48", 4)),
        ("h100", None, 8, ("a3-highgpu-8g", 8)),
        ("h200", None, 1, ("a3-ultragpu-8g", 8)),
    ],
)
def test_machine(gpu: str, machine_type: str | None, gpu_count: int, expected: tuple[str, int]) -> None:
    plan = planned(gpu, machine_type=machine_type, gpu_count=gpu_count)
    assert (plan.request.machine_type, plan.request.gpu_count) == expected


A2 = "a2-highgpu-1g, a2-highgpu-2g, a2-highgpu-4g, a2-highgpu-8g"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            {"gpu": "v100", "machine_type": "n1-standard-16"},
            "n1-standard-16 has 2 or 4 or 8 GPUs of V100 16 GB; got --gpu-count 1",
            "--gpu-count 2, or another --machine-type",
        ),
        (
            {"gpu": "l4", "machine_type": "g2-standard-4", "gpu_count": 2},
            "g2-standard-4 has 1 GPUs of L4 24 GB; got --gpu-count 2",
            "--gpu-count 1, or another --machine-type",
        ),
        (
            {"gpu": "a100", "gpu_count": 3},
            "a VM has 1, 2, 4, 8 GPUs of A100 40 GB; got --gpu-count 3",
            "--gpu-count 1",
        ),
        ({"gpu_count": 0}, "a VM has 1, 2, 4 GPUs of T4 16 GB; got --gpu-count 0", "--gpu-count 1"),
        (
            {"gpu": "h100"},
            "a3-highgpu-1g is not sold on demand, only as spot, flex-start or by reservation",
            "--spot or --machine-type a3-highgpu-8g",
        ),
        (
            {"gpu": "a100", "machine_type": "n1-standard-8"},
            f"machine type for a100 must be one of {A2}; got 'n1-standard-8'",
            "--machine-type a2-highgpu-1g",
        ),
        (
            {"disk_gb": 49},
            "--disk-gb must be 50 to 65536, for two images and data; got '49'",
            "--disk-gb 100",
        ),
        ({"disk_gb": 65537}, "--disk-gb must be 50 to 65536, for two images and data; got '65537'", "--disk-gb 100"),
        ({"max_run_time_s": 29}, "--max-run-time must be 30 s to 120 d; got '29 s'", "--max-run-time 60m"),
        ({"max_cost_usd": 0.0}, "--max-cost must be a positive sum in USD; got '0.0'", "--max-cost 1.50"),
        ({"max_cost_usd": math.nan}, "--max-cost must be a positive sum in USD; got 'nan'", "--max-cost 1.50"),
        ({"usd_per_h": math.inf}, "--usd-per-h must be a positive sum in USD; got 'inf'", "--usd-per-h 1.50"),
        (
            {"rerun_preempted": 1},
            "--rerun-preempted is only for spot VMs, because only these are preempted; got '1'",
            "--spot --rerun-preempted 2",
        ),
        (
            {"rerun_preempted": -1, "spot": True},
            "--rerun-preempted is only for spot VMs, because only these are preempted; got '-1'",
            "--spot --rerun-preempted 2",
        ),
    ],
)
def test_refused(options: dict[str, Any], message: str, hint: str) -> None:
    assert refused(**options) == (message, hint)


@pytest.mark.parametrize("options", [{"disk_gb": 50}, {"disk_gb": 65536}, {"max_run_time_s": 30}])
def test_bounds_are_allowed(options: dict[str, Any]) -> None:
    plan = planned(**options)
    assert {name: getattr(plan.options, name) for name in options} == options


def test_a_limit_that_the_estimate_just_fits() -> None:
    estimate_s = planned().expected_s
    assert planned(max_run_time_s=int(estimate_s)).notes == ()
    assert planned(max_run_time_s=120 * 86400).request.limit_s == 120 * 86400


@pytest.mark.parametrize(
    ("seconds", "text"), [(45.4, "45 s"), (60, "1 min"), (429, "7.2 min"), (3600, "60 min"), (3303, "55 min")]
)
def test_minutes(seconds: float, text: str) -> None:
    assert minutes(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"), [(None, "cost unknown"), (0.0001, "0.01 USD"), (0.5, "0.50 USD"), (0.5401, "0.55 USD")]
)
def test_dollars_are_rounded_up(usd: float | None, text: str) -> None:
    assert dollars(usd) == text


@pytest.mark.parametrize(
    ("run", "message", "hint"),
    [
        ({"device": "mps"}, "a VM has no Apple GPU; got --mps", "leave --mps out"),
        (
            {"compile": True},
            "--compile needs a C++ compiler, which the images do not contain; a VM runs one of these images",
            "leave --compile out",
        ),
        (
            {"dataset": "~/photos"},
            "a VM cannot read the folder '~/photos' of this machine",
            "--dataset synthetic, or --dataset imagenette --download",
        ),
        (
            {"precision": "tf32"},
            "precision tf32 needs compute capability 8.0 or newer; a T4 16 GB has 7.5",
            "--precision fp32, or --precision amp",
        ),
    ],
)
def test_runs_that_a_vm_cannot_do(run: dict[str, object], message: str, hint: str) -> None:
    assert refused(run=run) == (message, hint)


def test_tf32_where_the_gpu_has_it() -> None:
    assert planned("a100", {"precision": "tf32"}).spec.precision == "tf32"


@pytest.mark.parametrize(
    ("run", "device", "flavour", "driver"),
    [
        ({}, Device.CUDA, "cuda", "preinstalled"),
        ({"device": "cuda"}, Device.CUDA, "cuda", "preinstalled"),
        ({"device": "cpu"}, Device.CPU, "cpu", "none"),
    ],
)
def test_device(run: dict[str, object], device: Device, flavour: str, driver: str) -> None:
    plan = planned(run=run)
    metadata = {item["key"]: item["value"] for item in plan.shown_body()["metadata"]["items"]}
    assert (plan.spec.device, plan.request.options["flavour"]) == (device, flavour)
    assert metadata["rooflaunch-driver"] == driver


def test_the_run_is_otherwise_the_one_asked_for() -> None:
    run = {
        "model": "vgg16",
        "dataset": "cifar10",
        "data_dir": "/data",
        "batch_size": "8",
        "seed": "7",
        "profile": "ncu",
    }
    plan = planned(run=run)
    asked = resolve(run, {}, None)
    assert plan.spec == replace(asked.spec, device=Device.CUDA, download=True, data_dir=RunSpec().data_dir)
    assert RunSpec.from_json(plan.request.spec) == plan.spec
    kept = {name: "option" for name in run if name != "data_dir"}
    assert plan.request.spec_origin == kept


@pytest.mark.parametrize(
    ("options", "limit_s"),
    [
        # By hand: 0.54 USD per hour, 100 GB x 0.10 / 672 h = 0.01488 and 0.005 are 0.55988; 0.27 USD buy 1736 s,
        # of which 180 s go before the VM's start, 30 s for a late cloud and 90 s to shut down.
        ({"max_cost_usd": 0.27}, 1436),
        # Without an address 0.55488: 1751 s. As spot 0.255 + 0.01488 + 0.0025 = 0.27238: 3568 s.
        ({"max_cost_usd": 0.27, "external_ip": False}, 1451),
        ({"max_cost_usd": 0.27, "spot": True}, 3268),
        # 1000 GB are 0.14881 and not 0.01488: 0.69381.
        ({"max_cost_usd": 0.27, "disk_gb": 1000}, 1100),
        ({"max_cost_usd": 100.0}, 3600),
        # One's own figure is of it all.
        ({"max_cost_usd": 0.27, "usd_per_h": 0.27}, 3300),
        ({"max_cost_usd": 0.27, "spot": True, "rerun_preempted": 2, "usd_per_h": 0.18}, 1500),
        ({"max_cost_usd": 0.15, "usd_per_h": 0.6}, 600),
    ],
)
def test_max_cost_lowers_the_limit(options: dict[str, Any], limit_s: int) -> None:
    plan = planned(**options)
    assert plan.request.limit_s == limit_s
    most = plan.max_usd(plan.zones[0])
    assert most is not None
    assert most * (plan.options.rerun_preempted + 1) <= options["max_cost_usd"] + 1e-9


def test_max_cost_keeps_to_zones_with_a_price() -> None:
    assert planned(max_cost_usd=1.0).zones == ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")
    assert len(planned(max_cost_usd=1.0, usd_per_h=0.5).zones) == 51


def test_max_cost_counts_the_dearest_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region with a price of the VM, and none of its disk, has no price."""
    t4, table = gpus.require("t4"), prices.load()
    there = [replace(t4.prices[0], region=region, usd_per_h=1.08) for region in ("us-east1", "us-west1")]
    disk = replace(table.disks[0], region="us-east1", usd_per_gb_month=0.20)
    monkeypatch.setattr(gpus, "load", lambda: {"t4": replace(t4, prices=(*t4.prices, *there))})
    monkeypatch.setattr(prices, "load", lambda: replace(table, disks=(*table.disks, disk)))
    plan = planned(max_cost_usd=0.54)
    # 1.08 + 100 x 0.20 / 672 + 0.005 = 1.114762 USD per hour: 1743.87 s, of which 300 around the limit.
    assert plan.request.limit_s == 1443
    usd_per_h = [plan.usd_per_h(zone) for zone in ("us-central1-a", "us-east1-b", "us-west1-a")]
    assert usd_per_h == [pytest.approx(0.559881, abs=1e-6), pytest.approx(1.114762, abs=1e-6), None]
    assert plan.highest_usd == pytest.approx(1.114762 * 1743 / 3600, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"gpu": "h200"},
            "--max-cost needs a price, but the price of this machine type (on demand) is unknown anywhere",
        ),
        (
            {"gpu": "a100", "spot": True},
            "--max-cost needs a price, but the price of this machine type (spot) is unknown anywhere",
        ),
        (
            {"zones": ("us-central1-a", "us-east1-c", "us-east1-b")},
            ("--max-cost needs a price, but the price of this machine type (on demand) is unknown in us-east1-c,b"),
        ),
    ],
)
def test_max_cost_without_a_price(options: dict[str, Any], message: str) -> None:
    hint = "--usd-per-h with the figure of cloud.google.com/products/calculator, or leave --max-cost out"
    assert refused(max_cost_usd=1.0, **options) == (message, hint)


def test_max_cost_that_buys_nothing() -> None:
    around = "beside 300 s to start and to stop; a run needs 600 s or more"
    assert refused(max_cost_usd=0.09) == (
        f"--max-cost 0.09 buys 278 s at 0.5599 USD per hour with disk and address, {around}",
        "--max-cost 0.14",
    )
    assert planned(max_cost_usd=0.14).request.limit_s == 600
    assert refused(max_cost_usd=0.001)[0].startswith("--max-cost 0.001 buys 0 s")


@drawn(
    usd_per_h=st.floats(0.01, 500),
    max_cost_usd=st.floats(0.01, 1000),
    reruns=st.integers(0, 20),
    hours=st.integers(1, 48),
)
def test_no_plan_costs_more_than_allowed(usd_per_h: float, max_cost_usd: float, reruns: int, hours: int) -> None:
    options: dict[str, Any] = {"usd_per_h": usd_per_h, "spot": True, "rerun_preempted": reruns}
    try:
        plan = planned(max_cost_usd=max_cost_usd, max_run_time_s=hours * 3600, **options)
    except UsageError as error:
        # Its hint is a sum that works.
        enough = float(error.hint.removeprefix("--max-cost "))
        plan = planned(max_cost_usd=enough, max_run_time_s=hours * 3600, **options)
        max_cost_usd = enough
    most = plan.max_usd(plan.zones[0])
    assert most is not None
    assert most * (reruns + 1) <= max_cost_usd * (1 + 1e-9)
    assert 600 <= plan.request.limit_s <= hours * 3600


# Today's list.


def test_todays_list_beats_the_table_region_by_region() -> None:
    plan = planned(price_list=TODAY)
    sources = {region: (price["source"], price["read"]) for region, price in plan.request.prices.items()}
    today = ("Google's price list", "2026-11-21")
    assert sources == dict.fromkeys(("us-central1", "us-east1", "us-west1", "europe-west4"), today)
    # 0.48 + 4 x 0.0348 + 15 x 0.00466 + 100 x 0.11 / 672 + 0.005 = 0.710469 in the dearest.
    assert plan.highest_usd == pytest.approx(0.710469 * 3900 / 3600, abs=1e-6)
    price = next(line for line in lines_of(plan) if line.startswith("price"))
    assert price == (
        "price      0.540 USD per hour in us-central1, 0.560 with disk and address; read 2026-11-21: "
        "Google's price list"
    )


def test_max_cost_is_a_bound_in_every_zone_of_the_list() -> None:
    plan = planned(price_list=TODAY, max_cost_usd=0.5)
    assert {region_of(zone) for zone in plan.zones} == {"us-central1", "us-east1", "us-west1", "europe-west4"}
    # 0.5 / 0.710469 USD per hour are 2533.5 s, of which 300 around the limit.
    assert plan.limit_s == 2233
    assert all((usd := plan.max_usd(zone)) is not None and usd <= 0.5 for zone in plan.zones)


def test_what_the_list_lacks_is_the_tables() -> None:
    plan = planned("l4", price_list=TODAY)
    assert {(price["source"], price["read"]) for price in plan.request.prices.values()} == {
        ("Google Cloud's public catalog of mid-2026", "2026-07")
    }


def test_ones_own_price_counts_everywhere() -> None:
    plan = planned("a100", usd_per_h=1.5, zones=("us-west4-b",))
    price = Price(usd_per_h=1.5, source="--usd-per-h", read="2026-11-21", disk_usd_per_h=0.0, address_usd_per_h=0.0)
    assert plan.price("us-west4-b") == plan.price("asia-southeast1-a") == price
    assert lines_of(plan)[11] == "price      1.500 USD per hour in us-west4, all in all; read 2026-11-21: --usd-per-h"
    assert plan.request.prices["us-west4"] == asdict(price)


def test_cost_of_a_zone() -> None:
    plan = planned()
    assert plan.expected_usd("us-central1-a") == pytest.approx(0.559881 * 428 / 3600, rel=1e-6)
    assert plan.max_usd("us-central1-a") == pytest.approx(0.559881 * 3900 / 3600, rel=1e-6)
    assert (plan.usd_per_h("us-east1-b"), plan.expected_usd("us-east1-b"), plan.max_usd("us-east1-b")) == (None,) * 3


@pytest.mark.parametrize(
    ("run", "seconds"),
    [
        # Set-up 215 + 120 s, then 60 s per run and 0.3 s per step.
        ({}, 335 + 60 + 110 * 0.3),
        ({"repeats": "3"}, 335 + 3 * (60 + 110 * 0.3)),
        ({"iterations": "1000", "warmup": "0", "grad_accumulation": "2"}, 335 + 60 + 2000 * 0.3),
        ({"profile": "torch"}, 335 + 60 + 110 * 0.3 + 180),
        ({"dataset": "imagenette"}, 335 + 60 + 110 * 0.3 + 60),
        ({"iterations": "100000"}, 3600),
    ],
)
def test_expected_time(run: dict[str, object], seconds: float) -> None:
    assert planned(run=run).expected_s == pytest.approx(seconds)


def test_times_are_utc_whatever_clock_planned_them() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=9)))
    plan = planned(now=there)
    assert plan == planned()
    assert (plan.name, plan.request.launched_at) == (
        "rooflaunch-t4-20261121-142530-0a1b2c",
        "2026-11-21T14:25:30.123+00:00",
    )


HOSTILE = ["$(reboot)", "`reboot`", "a'b\"c", "x\nrooflaunch-driver=none", "; rm -rf /", "é\u2028\0\ud800", "x" * 4096]
HOSTILE_IDS = ["command", "backticks", "quotes", "newline", "semicolon", "unicode", "4 KB"]


@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE_IDS)
def test_run_options_travel_as_data(text: str) -> None:
    """The trainer judges them; on their way they are JSON in one metadata value and nowhere else."""
    plan = planned(run={"model": text})
    body = plan.shown_body()
    items = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    carrier = items.pop("rooflaunch-request")
    assert Request.from_bytes(carrier.encode()).spec["model"] == text
    assert carrier.isascii()
    rest = {**body, "metadata": items}
    assert rest == {**planned().shown_body(), "metadata": items}
    assert items == {key: value for key, value in _items(planned()).items() if key != "rooflaunch-request"}
    assert len(plan.text().splitlines()) == len(planned(run={"model": "vgg16"}).text().splitlines())


def _items(plan: VmPlan) -> dict[str, str]:
    return {item["key"]: item["value"] for item in plan.shown_body()["metadata"]["items"]}


@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE_IDS)
@pytest.mark.parametrize("name", ["gpu", "zones", "machine_type", "image", "dataset"])
def test_hostile_choices_are_refused_in_one_line(name: str, text: str) -> None:
    options: dict[str, Any] = {name: (text,) if name == "zones" else text}
    message, _ = refused(**({"run": options} if name == "dataset" else options))
    assert gpus.shown(text) in message
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 1000


def test_a_request_too_large_for_metadata() -> None:
    message, hint = refused(run={"model": "x" * 250_000})
    assert re.fullmatch(r"the request has 25\d{4} bytes; a VM's metadata takes 250000", message)
    assert hint == "shorter values for --model and the other run options"


def test_an_installation_without_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PROGRAM_FOLDER", Path("nowhere"))
    assert refused(ToolError) == ("this installation lacks startup.sh", "install rooflaunch again")


def a_task(**spec: Any) -> Task:
    runs = [(block, position) for block in (1, 2) for position in (1, 2)]
    specs = {1: RunSpec(model="resnet18", **spec), 2: RunSpec(model="resnet50", batch_size=64, **spec)}
    return Task(job="night", runs=tuple(TaskRun(spec=specs[at], block=block, position=at) for block, at in runs))


def of_task(task: Task) -> VmPlan:
    resolved = resolve({"dataset": task.runs[0].spec.dataset}, {}, None)
    return make_plan(resolved, Options(gpu="t4"), settings_of(), image=IMAGE, now=NOW, token="0a1b2c", task=task)


def test_a_task_of_a_sweep_travels_with_the_request_as_a_vm_does_it() -> None:
    plan = of_task(a_task(dataset="cifar10", data_dir="/home/me/data"))
    work = Request.from_bytes(plan.metadata()["rooflaunch-request"].encode()).work
    assert [(run.spec.model, run.spec.batch_size, run.block) for run in work.runs] == [
        ("resnet18", None, 1),
        ("resnet50", 64, 1),
        ("resnet18", None, 2),
        ("resnet50", 64, 2),
    ]
    assert {(run.spec.device, run.spec.download, run.spec.data_dir) for run in work.runs} == {
        (Device.CUDA, True, RunSpec().data_dir)
    }
    assert plan.text().splitlines()[0] == "plan       4 runs in 2 blocks, task 1 of 'night', each in its own process"


# Options of the last run of a task, and why the whole task is refused.
NOT_FOR_A_VM: dict[str, tuple[RunSpec, str]] = {
    "tf32 on a T4": (
        RunSpec(precision=Precision.TF32),
        "precision tf32 needs compute capability 8.0 or newer; a T4 16 GB has 7.5",
    ),
    "compile": (
        RunSpec(compile=True),
        "--compile needs a C++ compiler, which the images do not contain; a VM runs one of these images",
    ),
    "a folder of this machine": (RunSpec(dataset="photos"), "a VM cannot read the folder 'photos' of this machine"),
    "a contradiction": (RunSpec(subset=8), "synthetic data has no subset; got --subset 8"),
}


@pytest.mark.parametrize("case", NOT_FOR_A_VM)
def test_every_run_of_a_task_must_be_one_for_a_vm(case: str) -> None:
    spec, why = NOT_FOR_A_VM[case]
    with pytest.raises(UsageError) as refused:
        of_task(Task(job="night", runs=(TaskRun(spec=RunSpec()), TaskRun(spec=spec, position=2))))
    assert str(refused.value) == f"run 2 of 2 runs in 1 block, task 1 of 'night': {why}"
    assert refused.value.hint


def test_what_a_vm_needs_and_its_user_should_know_is_that_of_all_runs() -> None:
    runs = [RunSpec(device=Device.CPU), RunSpec(precision=Precision.BF16), RunSpec(dataset="cifar10")]
    plan = of_task(Task(job="night", runs=tuple(TaskRun(spec=spec) for spec in runs)))
    assert plan.driver is not Driver.NONE
    assert plan.request.options["flavour"] == "cuda"
    assert plan.notes[0] == "the VM downloads cifar10, because it starts without data"
    assert any(note.startswith("the T4 16 GB has no bf16 units") for note in plan.notes)
    on_cpu = of_task(Task(job="night", runs=(TaskRun(spec=runs[0]),)))
    assert (on_cpu.driver, on_cpu.request.options["flavour"]) == (Driver.NONE, "cpu")


def test_a_task_takes_as_long_as_its_runs_and_their_profiles() -> None:
    one = planned(run={"model": "resnet18"}).run_s
    assert of_task(a_task()).run_s == pytest.approx(4 * one)
    profiled = planned(run={"profile": "torch"}).run_s
    assert of_task(a_task(profile=Profile.TORCH)).run_s == pytest.approx(4 * profiled)
    assert planned(run={"profile": "torch", "repeats": "3"}).run_s == pytest.approx(2 * one + profiled)


def test_a_task_that_metadata_cannot_hold_is_refused() -> None:
    runs = tuple(TaskRun(spec=RunSpec(), block=block, run_key=f"{block:016x}") for block in range(3000))
    with pytest.raises(UsageError, match="a VM's metadata takes 250000") as raised:
        of_task(Task(job="night", runs=runs))
    assert str(raised.value).startswith("the request for 3000 runs in 3000 blocks, task 1 of 'night' has ")
    assert raised.value.hint == "more machines, which share the runs"


if __name__ == "__main__":
    PLANS.mkdir(exist_ok=True)
    for name, options in GOLDEN.items():
        (PLANS / f"{name}.json").write_text(golden(planned(**options)))
