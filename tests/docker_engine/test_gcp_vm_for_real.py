"""A VM's own work: the real start-up script, the agent in the real image, a trainer in a container of its own.

Compute Engine, the metadata server and the bucket are the fakes; everything between them is real.
"""

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.gcp import plan
from launcher.backends.gcp.plan import PROGRAM_FOLDER
from launcher.backends.shared_plan import program_text
from launcher.protocol import records
from launcher.protocol.records import Result
from tests.docker_engine.commands import docker
from tests.launcher.backends.gcp import fake_vm
from tests.launcher.backends.gcp.fake_compute import FakeCompute, Vm
from tests.launcher.backends.gcp.fake_metadata import TOKEN
from tests.waiting import until
from tests.workload.storage import gcs_server
from tests.workload.storage.gcs_server import BUCKET
from workload.contract import bundle
from workload.contract.bundle import Bundle
from workload.contract.errors import ExitCode
from workload.storage.address import FetchSource
from workload.storage.fetch import fetch
from workload.storage.gcs import Bucket, connect
from workload.storage.inventory import RUNS

pytestmark = [
    pytest.mark.world,
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="the start-up script of a VM runs as root"),
]

PROGRAMS = {key: program_text(PROGRAM_FOLDER / name) for key, name in plan.PROGRAMS.items()}
TINY = {"device": "cpu", "image_size": "32", "batch_size": "2", "warmup": "1", "iterations": "3", "ceilings": False}
ENDLESS = {**TINY, "iterations": "1000000"}
END_LIMIT_S = 150


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """What a test has at hand. `seen` collects every call of a program that a shim stands for."""

    compute: FakeCompute
    bucket: Bucket
    image: str
    folder: Path

    def launch(self, spec: dict[str, object], **changes: Any) -> Vm:
        name = f"rooflaunch-t4-20261121-100000-{secrets.token_hex(3)}"
        request = fake_vm.make_request(name, self.image, spec, **changes)
        return fake_vm.insert(self.compute, request, programs=PROGRAMS)

    def result(self, vm: Vm, *, within_s: float = END_LIMIT_S) -> Result:
        """Once the VM has deleted itself."""
        assert vm.gone.wait(within_s), vm.serial()[0]
        content = self.bucket.read(records.result_object(vm.name))
        assert content is not None, vm.serial()[0]
        return Result.from_bytes(content)

    def bundles(self, result: Result) -> list[Bundle]:
        for run_id in result.runs:
            fetch(
                self.bucket,
                FetchSource(address=f"gs://{BUCKET}", folder=f"{RUNS}/", run_id=run_id),
                self.folder / "home",
            )
        return [bundle.read(self.folder / "home" / run_id) for run_id in result.runs]

    def await_steps(self, vm: Vm) -> Path:
        """The folder of the run that the VM is at, once it has written steps."""

        def folders() -> list[Path]:
            assert not vm.gone.is_set(), vm.serial()[0]
            files = (fake_vm.HOMES / vm.name).glob(f"results/*/{bundle.STEPS}")
            return [steps.parent for steps in files if steps.read_text().count("\n") > 5]

        return until(folders, lambda: vm.serial()[0], within_s=END_LIMIT_S)[0]

    def calls(self, vm: Vm) -> str:
        return (self.folder / "vms" / vm.name / "calls").read_text()


@pytest.fixture
def cloud(image: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    vms = tmp_path / "vms"
    with gcs_server.running(tmp_path / "gcs.log") as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)

        def inside(vm: Vm) -> None:
            fake_vm.guest(storage.url, compute.url, vms)(vm)

        with FakeCompute(vm=inside, grace_s=25) as compute:
            bucket = connect(BUCKET, prefix="launches/")
            yield Cloud(compute=compute, bucket=bucket, image=image["tag"], folder=tmp_path)
    assert docker("ps", "--all", "--quiet", "--filter", "name=rooflaunch-t4-").stdout == ""


def test_what_a_vm_may_do_and_what_it_never_tells(cloud: Cloud) -> None:
    spec = {**TINY, "model": "$(touch /tmp/owned)`id`\"'\n;"}
    vm = cloud.launch(spec)
    result = cloud.result(vm)
    assert result.exit_code == ExitCode.USAGE
    assert result.error.startswith("unknown model '$(touch /tmp/owned)`id`\"'"), "it is data to the end"
    assert result.runs == []
    assert not Path("/tmp/owned").exists()
    said = vm.serial()[0] + cloud.calls(vm) + (cloud.bucket.read(records.log_object(vm.name)) or b"").decode()
    assert TOKEN not in said + json.dumps(vm.body)
    assert cloud.compute.tokens == {TOKEN}, "with which it deleted itself"
    [agent] = [line for line in cloud.calls(vm).splitlines() if line.startswith("docker run")]
    for word in ("--read-only", "--tmpfs /tmp", "-u 1000:1000", "--cap-drop ALL", "-v /:/host:ro", "--network host"):
        assert word in agent
    assert "SYS_ADMIN" not in agent


def test_a_preempted_vm_brings_its_steps_out(cloud: Cloud) -> None:
    vm = cloud.launch(ENDLESS)
    cloud.await_steps(vm)
    cloud.compute.preempt(vm.name)
    result = cloud.result(vm)
    assert (result.exit_code, result.preempted) == (ExitCode.RUN_FAILED, True)
    assert result.error == f"the spot VM was taken away (preempted) in {vm.zone}"
    [found] = cloud.bundles(result)
    assert (found.document["status"], found.document["error"]) == ("preempted", result.error)
    assert found.document["environment"]["cloud"]["preempted"] is True
    assert len(found.steps()) > 3
