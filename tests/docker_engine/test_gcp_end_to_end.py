"""`launch gcp` from the command line to the bundle at home, and everything that may happen to its launcher meanwhile.

Compute Engine, its metadata server and `nvidia-smi` are fakes; real are the client of Compute Engine, the bucket's
server, the registry that the image is pushed to and pulled from, the start-up script, the engine, the image, the run.
"""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.jobs.records import Phase
from tests.docker_engine.commands import ROOT, TINY, docker, launch_words
from tests.launcher.backends.gcp import fake_vm
from tests.launcher.backends.gcp.fake_compute import FakeCompute, Vm
from tests.launcher.backends.gcp.fake_metadata import TOKEN
from tests.workload.storage import gcs_server
from tests.workload.storage.gcs_server import BUCKET
from workload.contract import bundle
from workload.contract.errors import ExitCode

# The first push of an image with PyTorch takes minutes.
pytestmark = [
    pytest.mark.world,
    pytest.mark.docker,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("image"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the start-up script of a VM runs as root"),
]

REGISTRY = "127.0.0.1:5005"
PROJECT = "proj-1"
GCP = ["gcp", "--gpu", "t4", "--zone", "us-central1-a", "--cpu", *TINY]
WHERE = ["--project", PROJECT, "--bucket", BUCKET]
END_LIMIT_S = 120


@dataclass(frozen=True, kw_only=True)
class Laptop:
    """Where `launch` is typed. Nothing but its environment and its folder knows of the cloud."""

    compute: FakeCompute
    environment: dict[str, str]
    folder: Path

    def launch(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            launch_words(*words),
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=800,
        )

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            launch_words(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )

    def status(self, *words: str) -> list[dict[str, Any]]:
        done = self.launch("status", *WHERE, "--format", "json", *words)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return list(found["launches"] if isinstance(found, dict) else found)

    def bucket_contents(self) -> dict[str, bytes]:
        """Every object by name, asked over plain HTTP."""
        base = f"{self.environment['STORAGE_EMULATOR_HOST']}/storage/v1/b/{BUCKET}/o"
        names = [item["name"] for item in json.loads(_got(base))["items"]]
        return {name: _got(f"{base}/{urllib.parse.quote(name, safe='')}?alt=media") for name in names}

    def another(self, folder: Path) -> "Laptop":
        """Another machine: the same cloud, and nothing of this one's files."""
        folder.mkdir()
        return Laptop(compute=self.compute, environment=self.environment, folder=folder)


def _got(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


@pytest.fixture(scope="module")
def registry() -> str:
    try:
        urllib.request.urlopen(f"http://{REGISTRY}/v2/", timeout=5).close()
    except urllib.error.URLError:
        pytest.skip("no registry answers: .ci/registry")
    return REGISTRY


@pytest.fixture
def laptop(registry: str, tmp_path: Path) -> Iterator[Laptop]:
    folder = tmp_path / "laptop"
    folder.mkdir()
    with gcs_server.running(tmp_path / "gcs.log") as storage:

        def inside(vm: Vm) -> None:
            fake_vm.guest(storage.url, compute.url, tmp_path / "vms")(vm)

        with FakeCompute(vm=inside, grace_s=25) as compute:
            environment = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "ROOFLAUNCH_COMPUTE_ENDPOINT": compute.url,
                "STORAGE_EMULATOR_HOST": storage.url,
                "ROOFLAUNCH_REPOSITORY": f"{registry}/rooflaunch/trainer",
            }
            yield Laptop(compute=compute, environment=environment, folder=folder)
    assert docker("ps", "--all", "--quiet", "--filter", "name=rooflaunch-t4-").stdout == ""


def test_one_command_from_the_image_to_the_bundles_at_home(laptop: Laptop, image: dict[str, Any]) -> None:
    words = [*GCP, *WHERE, "--iterations", "3", "--repeats", "2", "--profile", "torch", "-o", "home"]
    done = laptop.launch(*words, "--format", "json")
    assert done.returncode == ExitCode.DONE, done.stderr
    told = json.loads(done.stdout)
    assert not laptop.compute.instances, "no VM is left"
    assert [run["repeat"]["index"] for run in told["runs"]] == [1, 2]
    assert list(told["phases"]) == list(Phase)
    assert list(told["phases"].values())[1:] == sorted(told["phases"].values())[1:]
    assert told["usd"] >= sum(run["cost"]["usd"] for run in told["runs"]) - 0.001
    folders = [laptop.folder / run["path"] for run in told["runs"]]
    for folder in folders:
        record = bundle.read(folder).record
        where = record["environment"]
        assert record["status"] == "completed"
        assert (where["backend"], where["place"]) == ("gcp", "gcp-t4-us-central1-a")
        assert where["container"]["image_digest"] == image["image_id"], "the one that was pushed"
        assert where["container"]["registry_digest"].startswith("sha256:")
        assert (record["cost"]["usd_per_h"], record["cost"]["price_date"]) == (0.54, "2026-07")
        assert record["spec_origin"]["iterations"] == "option"
        assert record["cost"]["usd"] == pytest.approx(0.54 * record["cost"]["billed_s"] / 3600, abs=1e-6)
        cloud = where["cloud"]
        assert (cloud["zone"], cloud["machine_type"]) == ("us-central1-a", "n1-standard-4")
        assert (cloud["spot"], cloud["preempted"]) == (False, False)
        assert where["host"]["hostname"] == Path("/proc/sys/kernel/hostname").read_text().strip()
    assert bundle.read(folders[0]).record["profile"]["status"] == "completed"
    assert TOKEN not in done.stderr + done.stdout
    stored = laptop.bucket_contents()
    assert {f"launches/{told['name']}/{name}" for name in ("request.json", "status.json", "result.json")} <= set(stored)
    assert [name for name, content in stored.items() if TOKEN.encode() in content] == []
    # What it left in the bucket is enough for anybody else.
    [seen] = laptop.another(laptop.folder.parent / "other").status()
    assert (seen["name"], seen["state"], seen["runs"]) == (told["name"], "done", [path.name for path in folders])
    logs = laptop.launch("logs", told["name"][-6:], *WHERE)
    assert logs.returncode == 0, logs.stderr
    assert "rooflaunch: phase image_pulled" in logs.stdout


def test_a_launcher_that_is_killed_is_not_missed(laptop: Laptop) -> None:
    killed = laptop.begin(*GCP, *WHERE, "--iterations", "20", "-o", "home")
    with killed:
        assert killed.stderr is not None
        for line in killed.stderr:
            if "the VM runs" in line:
                break
        killed.send_signal(signal.SIGKILL)
    other = laptop.another(laptop.folder.parent / "other")
    [seen] = other.status()
    assert seen["state"] in ("starting", "running", "uploading")
    deadline_s = time.monotonic() + END_LIMIT_S
    while (seen := other.status()[0])["state"] != "done":
        assert time.monotonic() < deadline_s, seen
        time.sleep(1)
    while laptop.compute.instances:
        assert time.monotonic() < deadline_s, "the VM deletes itself"
        time.sleep(0.2)
    assert list(laptop.folder.glob("home/*")) == [], "nobody was there to bring it home"
    fetched = subprocess.run(
        [*launch_words()[:2], "analysis", "fetch", f"gs://{BUCKET}", "-o", "home"],
        check=False, capture_output=True, text=True, cwd=other.folder, env=other.environment,
    )  # fmt: skip
    assert fetched.returncode == 0, fetched.stderr
    [run_id] = seen["runs"]
    assert len(bundle.read(other.folder / "home" / run_id).steps()) == 21
