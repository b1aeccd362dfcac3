"""`launch gcp` from the command line to the bundle at home, and everything that may happen to its launcher meanwhile.

Compute Engine, its metadata server and `nvidia-smi` are fakes; real are the client of Compute Engine, the bucket's
server, the registry that the image is pushed to and pulled from, the start-up script, the engine, the image, the run.
"""

import json
import os
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.protocol.records import LaunchPhase
from tests import off_clock
from tests.docker_engine.commands import ROOT, TINY, docker
from tests.docker_engine.laptop import Laptop
from tests.launcher.backends.gcp import fake_vm
from tests.launcher.backends.gcp.fake_compute import FakeCompute, Vm
from tests.launcher.backends.gcp.fake_metadata import TOKEN
from tests.launcher.script import tiny
from tests.waiting import until
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

PROJECT = "proj-1"
GCP = ["gcp", "--gpu", "t4", "--zone", "us-central1-a", "--cpu", *TINY]
WHERE = ["--project", PROJECT, "--bucket", BUCKET]
# Long: on a busy machine a run of 20 steps alone takes minutes.
END_LIMIT_S = 400


@dataclass(frozen=True, kw_only=True)
class GoogleLaptop(Laptop):
    """A laptop that launches on the fake Compute Engine."""

    compute: FakeCompute

    def bucket_contents(self) -> dict[str, bytes]:
        """Every object by name, asked over plain HTTP."""
        base = f"{self.environment['STORAGE_EMULATOR_HOST']}/storage/v1/b/{BUCKET}/o"
        names = [item["name"] for item in json.loads(_got(base))["items"]]
        return {name: _got(f"{base}/{urllib.parse.quote(name, safe='')}?alt=media") for name in names}


def _got(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


@pytest.fixture
def laptop(registry: str, tmp_path: Path) -> Iterator[GoogleLaptop]:
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
            yield GoogleLaptop(compute=compute, environment=environment, folder=folder, where=tuple(WHERE))
    assert docker("ps", "--all", "--quiet", "--filter", "name=rooflaunch-t4-").stdout == ""


def test_one_command_from_the_image_to_the_bundles_at_home(laptop: GoogleLaptop, image: dict[str, Any]) -> None:
    words = [*GCP, *WHERE, "--iterations", "3", "--repeats", "2", "--profile", "torch", "-o", "home"]
    done = laptop.launch(*words, "--format", "json")
    assert done.returncode == ExitCode.DONE, done.stderr
    told = json.loads(done.stdout)
    assert not laptop.compute.instances, "no VM is left"
    assert [run["repeat"]["index"] for run in told["runs"]] == [1, 2]
    # The profile comes between the two repeats: it is a phase of its own where there is one run.
    between = (LaunchPhase.PROFILE_STARTED, LaunchPhase.PROFILE_ENDED)
    assert list(told["phases"]) == [phase for phase in LaunchPhase if phase not in between]
    assert list(told["phases"].values())[1:] == sorted(told["phases"].values())[1:]
    assert told["usd"] >= sum(run["cost"]["usd"] for run in told["runs"]) - 0.001
    folders = [laptop.folder / run["path"] for run in told["runs"]]
    for folder in folders:
        record = bundle.read(folder).document
        where = record["environment"]
        assert record["status"] == "completed"
        assert (where["backend"], where["place"]) == ("gcp", "gcp-t4-us-central1-a")
        assert where["container"]["image_digest"] == image["image_id"], "the one that was pushed"
        assert where["container"]["registry_digest"].startswith("sha256:")
        assert (record["cost"]["usd_per_h"], record["cost"]["price_date"]) == (0.54, "2026-07")
        assert record["spec_origin"]["iterations"] == "option"
        usd_per_h = sum(record["cost"][name] for name in ("usd_per_h", "disk_usd_per_h", "address_usd_per_h"))
        assert usd_per_h > record["cost"]["usd_per_h"]
        assert record["cost"]["usd"] == pytest.approx(usd_per_h * record["cost"]["billed_s"] / 3600, abs=1e-6)
        cloud = where["cloud"]
        assert (cloud["zone"], cloud["machine_type"]) == ("us-central1-a", "n1-standard-4")
        assert (cloud["spot"], cloud["preempted"]) == (False, False)
        assert where["host"]["hostname"] == Path("/proc/sys/kernel/hostname").read_text().strip()
    assert bundle.read(folders[0]).document["profile"]["status"] == "completed"
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


@pytest.mark.night(part="kills")
@pytest.mark.parametrize("off_s", [-7200, 7200], ids=["two hours slow", "two hours fast"])
def test_a_machine_whose_date_is_off_launches_as_any_other(off_s: int, laptop: GoogleLaptop, tmp_path: Path) -> None:
    laptop = replace(laptop, environment={**laptop.environment, **off_clock.shift(tmp_path, off_s)})
    began_s = time.time()
    words = [*GCP, *WHERE, "--iterations", "3", "--max-run-time", "60m", "-o", "home", "--format", "json"]
    done = laptop.launch(*words)
    assert done.returncode == ExitCode.DONE, done.stderr
    told = json.loads(done.stdout)
    [run] = told["runs"]
    found = bundle.read(laptop.folder / run["path"])
    assert (found.document["status"], len(found.steps())) == ("completed", 4)
    times = [datetime.fromisoformat(at).timestamp() for at in told["phases"].values()]
    assert began_s - 2 <= min(times) <= max(times) <= time.time() + 1
    assert not laptop.compute.instances


@pytest.mark.night(part="kills")
def test_a_vm_that_its_host_stopped_saves_its_steps_and_measures_nothing_again(laptop: GoogleLaptop) -> None:
    with laptop.begin(*GCP, *WHERE, "--iterations", "1000000", "-o", "home") as following:
        laptop.await_line(following, "run started")
        [vm] = laptop.compute.instances
        until(
            lambda: any(steps.read_text().count("measured") > 5 for steps in steps_of(vm)),
            lambda: vm.serial()[0],
            within_s=END_LIMIT_S,
        )
        laptop.compute.stop(vm.name, age_s=0)
        laptop.await_line(following, "the cloud starts it again, to save its results")
        [shown] = laptop.status()
        assert (shown["state"], shown["vm"]) == ("stale", "TERMINATED")
        reaped = laptop.launch("reap", *WHERE)
        assert (reaped.returncode, reaped.stderr) == (0, ""), "it is about to be started again"
        laptop.compute.start_again(vm.name)
        _, said = following.communicate(timeout=END_LIMIT_S)
    assert following.returncode == ExitCode.RUN_FAILED, said
    assert (
        f"error: '{vm.name}': the job was broken off: its machine was restarted, or its processes were killed\n" in said
    )
    assert laptop.compute.instances == []
    [folder] = (laptop.folder / "home").iterdir()
    found = bundle.read(folder)
    assert found.document["status"] in ("failed", "interrupted")
    assert sum(row["phase"] == "measured" for row in found.steps()) > 3
    assert vm.serial()[0].count("rooflaunch: phase run_started") == 1
    assert "the run had begun when the VM was stopped: saving its results" in vm.serial()[0]


def steps_of(vm: Vm) -> list[Path]:
    """The rows of the runs that this VM has begun."""
    return list((fake_vm.HOMES / vm.name).glob(f"results/*/{bundle.STEPS}"))


def test_a_script_of_ones_own_in_the_image(laptop: GoogleLaptop) -> None:
    tiny.project(laptop.folder)
    (laptop.folder / "none.txt").write_text("# the image has all that it needs\n")
    words = [*GCP[:5], *tiny.FEW, *WHERE, "--requirements", "none.txt", "-o", "home", "--format", "json"]
    done = laptop.launch(*words, "--", "train.py", "--lr", "0.1")
    assert done.returncode == ExitCode.DONE, done.stderr
    told = json.loads(done.stdout)
    [run] = told["runs"]
    assert (run["status"], run["spec"]["model"], run["environment"]["runtime"]) == ("completed", "train.py", "docker")
    assert run["spec"]["script"]["command"] == "train.py --lr 0.1"
    assert "/trainer:script-" in done.stderr, "the layer with its packages was pushed"
    assert run["spec"]["script"]["commit"] == tiny.git(laptop.folder, "rev-parse", "HEAD")
    assert sorted(run["spec"]["script"]["files"]) == ["package/__init__.py", "package/model.py", "train.py"]
    assert sum(name.startswith("scripts/") for name in laptop.bucket_contents()) == 1
    logs = laptop.launch("logs", told["name"], *WHERE)
    assert "here: .gitignore package train.py argv: --lr 0.1 gpus: \n" in logs.stdout
