"""`launch gcp` on a machine whose date is two hours off, as a process of its own; cloud and VM have the true time."""

import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from launcher.protocol.records import LaunchPhase, Request, request_object
from tests import off_clock
from tests.launcher.backends.gcp.canned_cloud import IMAGE, ZONE, Cloud, Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.workload.storage.gcs_server import BUCKET
from workload.contract import bundle

pytestmark = [
    pytest.mark.world,
    pytest.mark.night(part="faults"),
]

ROOT = Path(__file__).parents[4]
AT_HOME = ("--project", "my-project", "--bucket", BUCKET)
GCP = ("gcp", "--gpu", "t4", "--zone", ZONE, "--image", IMAGE, *AT_HOME)
OFF_S = pytest.mark.parametrize("off_s", [-7200, 7200], ids=["two hours slow", "two hours fast"])
# The cloud's clock is the true one, so that its guest's phases are real seconds.
TRUE_TIME = {"scale": 1.0, "durations": dict.fromkeys(LaunchPhase, 0.1)}


def launch(tmp_path: Path, off_s: int, *words: str) -> "subprocess.CompletedProcess[str]":
    """`launch` as it is typed, where the clock is off; the cloud's endpoints are in the environment."""
    environment = {**os.environ, **off_clock.shift(tmp_path, off_s), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)


def request_of(cloud: Cloud, name: str) -> Request:
    return Request.from_bytes(cloud.bucket.read(request_object(name)) or b"")


@OFF_S
def test_the_date_of_a_process_is_shifted_and_its_waits_are_not(off_s: int, tmp_path: Path) -> None:
    code = "import time, datetime; a = time.monotonic(); time.sleep(0.1); b = time.monotonic() - a;"
    code += "print(time.time(), datetime.datetime.now().timestamp(), b)"
    environment = {**os.environ, **off_clock.shift(tmp_path, off_s)}
    before_s = time.time() + off_s
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    date_s, datetime_s, waited_s = map(float, done.stdout.split())
    assert before_s - 1 <= date_s <= datetime_s + 1 <= time.time() + off_s + 2
    assert 0.1 <= waited_s < abs(off_s)


@OFF_S
def test_a_launch_ends_well_and_is_dated_by_the_cloud(off_s: int, clouds: Clouds, tmp_path: Path) -> None:
    with clouds(**TRUE_TIME) as cloud:
        began_s = time.time()
        done = launch(tmp_path, off_s, *GCP, "-o", "home", "--format", "json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        requested_s = datetime.fromisoformat(told["phases"]["requested"]).timestamp()
        # A date in HTTP is cut to the second.
        assert began_s - 2 <= requested_s <= time.time() + 1
        assert request_of(cloud, told["name"]).launched_at == told["phases"]["requested"]
        times = [datetime.fromisoformat(at).timestamp() for at in told["phases"].values()]
        assert max(times) - min(times) < 100
        assert not re.search(r"\+\d+ (h|min)", done.stderr), "no phase comes minutes after the start"
        (folder,) = (tmp_path / "home").iterdir()
        assert bundle.read(folder).document["status"] == "completed"
        assert cloud.fake.instances == []


@OFF_S
def test_nobody_ends_a_healthy_vm(off_s: int, clouds: Clouds, tmp_path: Path) -> None:
    with clouds(**TRUE_TIME, fault=Fault.NO_HEARTBEAT) as cloud:
        done = launch(tmp_path, off_s, *GCP, "--detach", "--max-run-time", "90m", "--format", "json")
        assert done.returncode == 0, done.stderr
        name = json.loads(done.stdout)["name"]
        # Another machine, whose clock is off the other way.
        reaped = launch(tmp_path, -off_s, "reap", *AT_HOME)
        nothing = "no machine or disk of a launch is stopped or past its limit in my-project\n"
        assert (reaped.returncode, reaped.stdout, reaped.stderr) == (0, nothing, "")
        assert [vm.name for vm in cloud.fake.instances] == [name]
