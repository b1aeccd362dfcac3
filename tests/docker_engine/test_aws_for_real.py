"""`launch aws` from the command line to the bundle at home, with the instance's user data on this machine's engine.

EC2, S3, SSM and EventBridge Scheduler are moto's, the metadata server is ours; real are the clients of all of them, the
registry that the image is pushed to and pulled from, the user data, the engine, the agent and the run in the image.
"""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.protocol.records import LaunchPhase
from tests.docker_engine.commands import ROOT, TINY, docker
from tests.docker_engine.laptop import Laptop
from tests.launcher.backends.aws.moto_account import AMI_PARAMETER, GuestOf, furnish
from tests.waiting import until
from tests.workload.environment.imds_server import ACCOUNT, ADDRESS, SECRET, SESSION
from tests.workload.storage import s3_server
from tests.workload.storage.s3_server import BUCKET
from workload.contract import bundle
from workload.contract.errors import ExitCode

# The first push of an image with PyTorch takes minutes.
pytestmark = [
    pytest.mark.world,
    pytest.mark.docker,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("image"),
    pytest.mark.skipif(os.geteuid() != 0, reason="user data runs as root"),
]

# moto ignores the zone of a request: it puts every instance into us-east-1a, which has this id there.
ZONE = "use1-az6"
AWS = ["aws", "--gpu", "t4", "--zone", ZONE, "--cpu", *TINY]
ENDLESS = ["--iterations", "1000000", "-o", "home"]
END_LIMIT_S = 400


@dataclass(frozen=True, kw_only=True)
class AmazonLaptop(Laptop):
    """A laptop that launches on moto."""

    guest: GuestOf

    def steps(self) -> list[Path]:
        """Files with the steps of runs that measure."""
        files = self.guest.home().glob(f"results/*/{bundle.STEPS}")
        return [steps for steps in files if steps.read_text().count("measured") > 5]


@pytest.fixture
def laptop(registry: str, tmp_path: Path) -> Iterator[AmazonLaptop]:
    folder = tmp_path / "laptop"
    folder.mkdir()
    with s3_server.running(tmp_path / "moto.log") as moto, GuestOf(moto, tmp_path / "vm") as guest:
        furnish(guest.client)
        environment = {
            **os.environ,
            **s3_server.SETTINGS,
            "PYTHONPATH": str(ROOT),
            "AWS_ENDPOINT_URL": moto.url,
            "ROOFLAUNCH_AWS_BUCKET": BUCKET,
            "ROOFLAUNCH_AWS_REPOSITORY": f"{registry}/rooflaunch/trainer",
            "ROOFLAUNCH_AWS_AMI_PARAMETER": AMI_PARAMETER,
        }
        yield AmazonLaptop(environment=environment, folder=folder, where=("--backend", "aws"), guest=guest)
    assert docker("ps", "--all", "--quiet", "--filter", "name=rooflaunch-t4-").stdout == ""


def test_one_command_from_the_image_to_the_bundle_at_home(laptop: AmazonLaptop, image: dict[str, Any]) -> None:
    done = laptop.launch(*AWS, "--iterations", "3", "-o", "results", "--format", "json")
    assert done.returncode == ExitCode.DONE, done.stderr + laptop.guest.console()
    told = json.loads(done.stdout)
    assert laptop.guest.left() == []
    [instance] = laptop.guest.instances()
    assert instance["StateReason"]["Code"].startswith("Client.")
    assert {LaunchPhase.BOOTED, LaunchPhase.IMAGE_PULLED, LaunchPhase.FINISHED} <= set(told["phases"])
    [run] = told["runs"]
    folder = laptop.folder / run["path"]
    record = bundle.read(folder).document
    where = record["environment"]
    assert (record["status"], where["backend"], where["place"]) == ("completed", "aws", f"aws-t4-{ZONE}")
    assert where["container"]["image_digest"] == image["image_id"], "the one that was pushed"
    known = ("provider", "zone", "machine_type", "spot", "preempted", "image", "instance_id")
    assert [where["cloud"][name] for name in known] == [
        *("ec2", ZONE, "g4dn.xlarge", False, False),
        *(instance["ImageId"], instance["InstanceId"]),
    ]
    assert record["cost"]["usd_per_h"] == 0.526
    assert 0 < record["cost"]["usd"] <= told["usd"] + 0.001
    # What is left in the bucket is enough for anybody else.
    other = laptop.another(laptop.folder.parent / "other")
    [seen] = other.status()
    assert (seen["name"], seen["state"], seen["runs"]) == (told["name"], "done", [folder.name])
    other.fetch(f"s3://{BUCKET}")
    fetched = bundle.read(other.folder / "home" / folder.name)
    assert (fetched.document, len(fetched.steps())) == (record, 4)
    logs = other.launch("logs", told["name"][-6:], *other.where)
    assert logs.returncode == 0, logs.stderr
    assert "rooflaunch: phase image_pulled" in logs.stdout
    public = done.stderr + done.stdout + logs.stdout + laptop.guest.console() + json.dumps(record)
    assert not [secret for secret in (SECRET, SESSION) if secret in public]
    assert not [private for private in (ACCOUNT, ADDRESS) if private in json.dumps(record)]


def test_a_spot_vm_brings_its_steps_out(laptop: AmazonLaptop) -> None:
    with laptop.begin(*AWS, "--spot", *ENDLESS) as launched:
        until(lambda: laptop.guest.inside and laptop.steps(), laptop.guest.console, within_s=END_LIMIT_S)
        assert laptop.guest.inside
        laptop.guest.inside.imds.interrupt()
        _, said = launched.communicate(timeout=END_LIMIT_S)
    assert launched.returncode == ExitCode.RUN_FAILED, said
    assert f"the spot VM was taken away (preempted) in {ZONE}" in said
    assert laptop.guest.left() == []
    [folder] = (laptop.folder / "home").iterdir()
    found = bundle.read(folder)
    assert (found.document["status"], found.document["environment"]["cloud"]["preempted"]) == ("preempted", True)
    assert sum(row["phase"] == "measured" for row in found.steps()) > 3


@pytest.mark.night(part="kills")
def test_a_launcher_that_is_killed_is_not_missed(laptop: AmazonLaptop) -> None:
    with laptop.begin(*AWS, "--iterations", "20", "-o", "home") as killed:
        laptop.await_line(killed, "run started")
        killed.send_signal(signal.SIGKILL)
    until(lambda: laptop.status()[0]["state"] == "done", laptop.status, within_s=END_LIMIT_S)
    live = [one for one in laptop.guest.instances() if one["State"]["Name"] != "terminated"]
    assert live == []
    reaped = laptop.launch("reap", *laptop.where)
    assert reaped.returncode == ExitCode.DONE, reaped.stderr
    assert laptop.guest.left() == [], "its schedule too"
    laptop.fetch(f"s3://{BUCKET}")
    [folder] = (laptop.folder / "home").iterdir()
    assert len(bundle.read(folder).steps()) == 21
