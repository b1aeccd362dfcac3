"""An account of moto, ready for `launch aws`; and its instance, whose inside really runs on this machine.

moto answers as EC2 does, but an instance of it is a row in a table. Here such a row gets a guest: the user data of its
RunInstances, with Docker and all containers. Its metadata server has what moto knows, so that the tag which the
launcher sets is the one that the guest waits for. A power-off ends the instance, and the end of the instance its guest.
"""

import base64
import gzip
import json
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from launcher.backends.aws.answers import NAME_TAG
from tests.launcher.backends.aws.fake_aws import REGION
from tests.launcher.backends.aws.fake_instance import NOTE, SHIMS, Instance, instance
from tests.launcher.backends.gcp.fake_vm import HOMES, remove_containers
from tests.waiting import until
from tests.workload.environment.imds_server import IDENTITY
from tests.workload.storage.s3_server import S3Server

ROLE = {"Version": "2012-10-17", "Statement": []}
AMI_PARAMETER = "/rooflaunch/ami"
LIVE = ("pending", "running")
LOOK_EVERY_S = 0.2
# Longer than systemd waits for the unit at a shutdown.
SHUTDOWN_S = 120.0


def furnish(client: Callable[[str], Any]) -> tuple[str, str]:
    """Make roles, profile, security group and AMI parameter; return the ids of the AMI and the group.

    `client`: returns a client of boto3 for a service.
    """
    iam, ec2 = client("iam"), client("ec2")
    for role in ("rooflaunch-vm", "rooflaunch-schedule"):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(ROLE))
    iam.create_instance_profile(InstanceProfileName="rooflaunch-vm")
    images = ec2.describe_images()["Images"]
    ami = next(each["ImageId"] for each in images if each.get("RootDeviceName") and each.get("Platform") != "windows")
    client("ssm").put_parameter(Name=AMI_PARAMETER, Value=ami, Type="String")
    return ami, ec2.create_security_group(GroupName="rooflaunch", Description="no ingress")["GroupId"]


class GuestOf:
    """The inside of the first instance that somebody starts in a moto server. A context manager."""

    def __init__(self, moto: S3Server, folder: Path) -> None:
        self._moto, self._folder = moto, folder
        self.ec2, self.scheduler = self.client("ec2"), self.client("scheduler")
        self.inside: Instance | None = None
        self._over, self._errors = threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join(SHUTDOWN_S + 60)
        assert kind or not self._errors, self._errors

    def client(self, service: str) -> Any:
        return self._moto.session.client(service, endpoint_url=self._moto.url, region_name=REGION)

    def instances(self) -> list[dict[str, Any]]:
        """Instances as moto has them, ended ones too."""
        return [one for row in self.ec2.describe_instances()["Reservations"] for one in row["Instances"]]

    def left(self) -> list[object]:
        """What costs money or acts, and is still there: instances, disks, addresses and schedules."""
        live = [one for one in self.instances() if one["State"]["Name"] != "terminated"]
        disks, addresses = self.ec2.describe_volumes()["Volumes"], self.ec2.describe_addresses()["Addresses"]
        return [*live, *disks, *addresses, *self.scheduler.list_schedules()["Schedules"]]

    def console(self) -> str:
        return self.inside.console() if self.inside else "no instance was started"

    def home(self) -> Path:
        """The launch's folder."""
        [tags] = [tags_of(one) for one in self.instances()]
        return HOMES / tags[NAME_TAG]

    def _follow(self) -> None:
        try:
            until(lambda: self._over.is_set() or self.instances(), within_s=800, every_s=LOOK_EVERY_S)
            for one in self.instances():
                self._run(one)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            self._errors.append(error)

    def _run(self, started: dict[str, Any]) -> None:
        name = tags_of(started)[NAME_TAG]
        # The engine knows nothing of a private mount: the launch's folder is where it is on a real instance.
        with instance(self._folder, private=("/etc/systemd/system",)) as guest:
            try:
                self._prepare(guest, started)
                self.inside = guest
                guest.start()
                self._attend(guest)
            finally:
                remove_containers(HOMES / name)
                shutil.rmtree(HOMES / name, ignore_errors=True)

    def _prepare(self, guest: Instance, started: dict[str, Any]) -> None:
        where = {"InstanceId": started["InstanceId"]}
        sent = self.ec2.describe_instance_attribute(**where, Attribute="userData")["UserData"]["Value"]
        guest.sent = gzip.decompress(base64.b64decode(sent)).decode()
        guest.aws.url = self._moto.url
        docker = f'{NOTE}exec {shutil.which("docker")} "$@"\n'
        guest.shims = {name: text for name, text in SHIMS.items() if name != "date"} | {"docker": docker}
        identity = {
            **IDENTITY,
            "instanceId": started["InstanceId"],
            "imageId": started["ImageId"],
            "instanceType": started["InstanceType"],
            "pendingTime": f"{started['LaunchTime']:%Y-%m-%dT%H:%M:%SZ}",
        }
        zones = self.ec2.describe_availability_zones()["AvailabilityZones"]
        zone = next(zone for zone in zones if zone["ZoneName"] == started["Placement"]["AvailabilityZone"])
        guest.imds.keys |= {
            "dynamic/instance-identity/document": json.dumps(identity),
            "meta-data/instance-life-cycle": started.get("InstanceLifecycle", "on-demand"),
            "meta-data/placement/availability-zone": zone["ZoneName"],
            "meta-data/placement/availability-zone-id": zone["ZoneId"],
        }
        del guest.imds.keys["meta-data/tags/instance/rooflaunch-ends"]

    def _attend(self, guest: Instance) -> None:
        """Keep the metadata server as moto has the instance, until one of the two has ended the other."""
        off = guest.folder / "off"
        while not off.exists():
            is_over = self._over.wait(LOOK_EVERY_S)
            [now] = self.instances()
            for key, value in tags_of(now).items():
                guest.imds.tag(key, value)
            if is_over or now["State"]["Name"] not in LIVE:
                with suppress(ProcessLookupError):
                    guest.stop()
                until(off.exists, guest.console, within_s=SHUTDOWN_S)
        [now] = self.instances()
        if now["State"]["Name"] in LIVE:
            self.ec2.terminate_instances(InstanceIds=[now["InstanceId"]])


def tags_of(described: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}
