"""`launch gcp` is killed with SIGKILL at chosen moments; what is left is found by others, and nothing measured is lost.

One that is killed while its VM trains: test_gcp_commands.py, and on the real engine in tests/docker_engine.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.protocol.records import LAUNCHES, result_object
from tests.launcher.backends.gcp.canned_cloud import IMAGE, ZONE, Cloud, Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.waiting import until
from tests.workload.storage.gcs_server import BUCKET
from workload.contract import bundle
from workload.storage import fetch
from workload.storage.address import parse_source

pytestmark = [
    pytest.mark.world,
    pytest.mark.night(part="kills"),
]

ROOT = Path(__file__).parents[4]
AT_HOME = ("--project", "my-project", "--bucket", BUCKET)
GCP = ("gcp", "--gpu", "t4", "--zone", ZONE, "--no-fallback", "--image", IMAGE, *AT_HOME, "-o", "home")
INSERTS = "POST .*/instances$"


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "launcher", *words]
    return subprocess.Popen(
        argv, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def kill_when(moment: Callable[[], object], folder: Path) -> None:
    """Start a launch, and kill it as soon as `moment()`."""
    with start(folder, *GCP) as process:
        until(lambda: process.poll() is not None or moment(), every_s=0.005)
        assert process.poll() is None, process.communicate()
        process.kill()
    assert process.returncode == -signal.SIGKILL


def answer(folder: Path, *words: str) -> str:
    with start(folder, *words, *AT_HOME) as process:
        said, errors = process.communicate()
    assert process.returncode == 0, errors
    return said


def state(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads(answer(folder, "status", name, "--format", "json")))


def name_of(cloud: Cloud, before: set[str]) -> str:
    """The launch that has come since."""
    (name,) = set(cloud.bucket.folders(LAUNCHES)) - before
    return name


def await_end(cloud: Cloud, name: str) -> None:
    until(lambda: cloud.bucket.read(result_object(name)) is not None)


def bring_home(cloud: Cloud, name: str, folder: Path) -> None:
    """As `launch status` says how."""
    (run_id,) = cloud.result(name).runs
    report = fetch.fetch(cloud.bucket, parse_source(f"gs://{BUCKET}/runs/{run_id}"), folder / "home")
    assert report.error is None
    assert bundle.read(folder / "home" / run_id).document["status"] == "completed"


def test_before_there_is_a_vm(clouds: Clouds, tmp_path: Path) -> None:
    with clouds() as cloud:
        before = set(cloud.bucket.folders(LAUNCHES))
        cloud.fake.burst(503, 10**6, match=INSERTS)
        kill_when(lambda: cloud.fake.count(INSERTS), tmp_path)
        name = name_of(cloud, before)
        shown = state(tmp_path, name)
        assert (shown["vm"], shown["runs"]) == (None, [])
        assert shown["state"] in ("requested", "lost")
        assert cloud.fake.all_vms == []


def test_while_the_insert_is_under_way(clouds: Clouds, tmp_path: Path) -> None:
    with clouds() as cloud:
        before = set(cloud.bucket.folders(LAUNCHES))
        cloud.fake.endless_operation(ZONE)
        kill_when(lambda: cloud.fake.all_vms, tmp_path)
        name = name_of(cloud, before)
        await_end(cloud, name)
        assert cloud.fake.vm(name).gone.wait(60)
        shown = state(tmp_path, name)
        assert (shown["state"], shown["vm"], len(shown["runs"])) == ("done", None, 1)
        bring_home(cloud, name, tmp_path)


def test_when_the_result_is_there_and_the_vm_is_too(clouds: Clouds, tmp_path: Path) -> None:
    with clouds(fault=Fault.STAYS) as cloud:
        before = set(cloud.bucket.folders(LAUNCHES))

        def has_result() -> bool:
            return any(cloud.bucket.read(result_object(vm.name)) for vm in cloud.fake.instances)

        kill_when(has_result, tmp_path)
        name = name_of(cloud, before)
        shown = state(tmp_path, name)
        assert (shown["state"], shown["why"], shown["vm"]) == ("done", "the VM is still there", "RUNNING")
        assert answer(tmp_path, "down", name) == f"VM {name} in {ZONE} is gone\n"
        bring_home(cloud, name, tmp_path)
