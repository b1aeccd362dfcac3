"""The fake of Compute Engine: requests that it refuses, and when its VMs end."""

import http.client
import json
import threading
import urllib.parse
from typing import Any

import pytest

from launcher.backends.gcp import compute as border
from launcher.backends.gcp import refusals
from launcher.backends.gcp.compute import Compute
from tests.launcher.backends.gcp.fake_compute import FakeCompute, Vm
from tests.launcher.backends.gcp.vm_request import ID, NAME, A, gpu_body
from workload.contract.errors import ToolError

pytestmark = pytest.mark.world


def changed(path: str, value: Any) -> dict[str, Any]:
    """The body with the value at a path such as `disks.0.boot`."""
    body: Any = json.loads(json.dumps(gpu_body()))
    *parents, last = path.split(".")
    place = body
    for each in parents:
        place = place[int(each)] if each.isdigit() else place[each]
    place[last] = value
    return dict(body)


SPOT_THAT_RESTARTS = {
    "provisioningModel": "SPOT",
    "automaticRestart": True,
    "onHostMaintenance": "TERMINATE",
    "instanceTerminationAction": "DELETE",
    "maxRunDuration": {"seconds": "3600"},
}


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("name", "Rooflaunch", "name"),
        ("name", "r" * 64, "name"),
        ("labels", {"UPPER": "x"}, "labels"),
        ("labels", {"a": "x y"}, "labels"),
        ("labels", {"a": "x" * 64}, "labels"),
        ("machineType", "zones/us-central1-b/machineTypes/n1-standard-4", "machineType"),
        ("machineType", f"zones/{A}/machineTypes/n1-standard-96", "machineType"),
        ("machineType", f"zones/{A}/machineTypes/g2-standard-4", "guestAccelerators"),
        ("guestAccelerators.0.acceleratorCount", 3, "guestAccelerators[0].acceleratorCount"),
        ("scheduling.onHostMaintenance", "MIGRATE", "scheduling.onHostMaintenance"),
        ("scheduling", SPOT_THAT_RESTARTS, "scheduling.automaticRestart"),
        ("scheduling.instanceTerminationAction", "STOP", "scheduling.instanceTerminationAction"),
        ("scheduling.provisioningModel", "CHEAP", "scheduling.provisioningModel"),
        ("scheduling.maxRunDuration", {"seconds": "29"}, "scheduling.maxRunDuration.seconds"),
        ("scheduling.maxRunDuration", {"seconds": "10368001"}, "scheduling.maxRunDuration.seconds"),
        ("disks.0.autoDelete", False, "disks[0].autoDelete"),
        ("disks.0.initializeParams.sourceImage", "global/images/mine", "disks[0].initializeParams.sourceImage"),
        ("metadata.items", [{"key": "k", "value": "x" * (256 * 1024 + 1)}], "metadata.items"),
    ],
)
def test_the_fake_refuses_what_the_cloud_refuses(
    path: str, value: Any, field: str, fake: FakeCompute, compute: Compute
) -> None:
    with pytest.raises(ToolError) as caught:
        compute.insert(A, changed(path, value), ID)
    assert str(caught.value).startswith(f"Compute Engine refused insert: Invalid value for field 'resource.{field}'")
    assert fake.all_vms == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/compute/v1/projects/test-project/global/snapshots"), ("PATCH", "/compute/v1/projects/test-project")],
)
def test_the_fake_says_what_it_does_not_know(method: str, path: str, fake: FakeCompute) -> None:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(fake.url).netloc, timeout=60)
    connection.request(method, path)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    assert (answer.status, document["error"]["message"]) == (501, f"the fake knows no {method} {path}")


def test_a_guest_lives_until_its_vm_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def guest(vm: Vm) -> None:
        """Delete itself as a start-up script does: with its token, over plain HTTP."""
        assert (vm.alive, vm.metadata["enable-guest-attributes"]) == (True, "TRUE")
        path = f"/compute/v1/projects/{vm.project}/zones/{vm.zone}/instances/{vm.name}"
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(fake.url).netloc, timeout=60)
        connection.request("DELETE", path, headers={"Authorization": "Bearer the-vm's"})
        assert connection.getresponse().status == 200
        connection.close()
        assert vm.gone.wait(60)
        ended.set()

    with FakeCompute(vm=guest, operation_s=0.02, boot_s=0.02) as fake:
        monkeypatch.setenv(refusals.ENDPOINT_VARIABLE, fake.url)
        compute = border.connect("test-project")
        operation = compute.insert(A, gpu_body(), ID)
        assert compute.wait(operation, 60.0) == ()
        assert ended.wait(60)
        assert (fake.instances, fake.vm(NAME).alive, fake.tokens) == ([], False, {"the-vm's"})
