"""The whole request of a launch, compared with the files in plans/.

`python -m tests.launcher.backends.gcp.test_gcp_plan` writes them anew.
"""

import json
import re
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path

import pytest

from launcher.backends.gcp import gpus
from launcher.backends.gcp import plan as planning
from launcher.backends.gcp.planned_vm import VmPlan
from launcher.protocol.records import NAME, Request
from tests.launcher.backends.gcp.gcp_plans import (
    BOOT,
    GOLDEN,
    IMAGE,
    NOW,
    SCRIPT,
    SHUTDOWN,
    planned,
    refused,
    settings_of,
)
from workload.contract.errors import ToolError

pytestmark = pytest.mark.usefixtures("made_up_programs")

PLANS = Path(__file__).with_name("plans")
LABEL_KEY, LABEL_VALUE = re.compile(r"[a-z][_\-a-z0-9]{0,62}"), re.compile(r"[_\-a-z0-9]{0,63}")


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
    attached = [plan.request.gpu_count] if plan.gpu.accelerator else []
    assert [each.accelerator_count for each in instance.guest_accelerators] == attached
    assert instance.disks[0].initialize_params.disk_size_gb == plan.options.disk_gb
    assert dict(instance.labels) == body["labels"]
    assert len(instance.network_interfaces[0].access_configs) == plan.options.external_ip


@pytest.mark.parametrize("gpu", sorted(gpus.load()))
def test_what_is_asked_for_can_be_read_again(gpu: str) -> None:
    """Each field keeps to the rule that the readers of records have."""
    for image in (IMAGE, "localhost:5000/trainer:cuda-0123456789ab"):
        request = planned(gpu, image=image, spot=True).request
        assert Request.from_bytes(request.to_bytes()).to_bytes() == request.to_bytes()


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


def test_times_are_utc_whatever_clock_planned_them() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=9)))
    plan = planned(now=there)
    assert plan == planned()
    assert (plan.name, plan.request.launched_at) == (
        "rooflaunch-t4-20261121-142530-0a1b2c",
        "2026-11-21T14:25:30.123+00:00",
    )


def test_an_installation_without_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PROGRAM_FOLDER", Path("nowhere"))
    assert refused(ToolError) == ("this installation lacks startup.sh", "install rooflaunch again")


if __name__ == "__main__":
    PLANS.mkdir(exist_ok=True)
    for name, options in GOLDEN.items():
        (PLANS / f"{name}.json").write_text(golden(planned(**options)))
