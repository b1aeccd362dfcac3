"""The happy path on moto, which was made from AWS's own descriptions and knows nothing of our fake."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from launcher.backends.aws import service
from launcher.backends.aws.answers import ENDPOINT_VARIABLE, Ami
from launcher.backends.aws.machines import Ec2Machines
from launcher.backends.aws.service import Ec2
from launcher.protocol.backend import Machine, Machines
from tests.launcher.backends import contract
from tests.launcher.backends.aws.aws_world import plan_of
from tests.launcher.backends.aws.fake_aws import REGION
from tests.launcher.backends.aws.moto_account import furnish
from tests.launcher.backends.contract import Check, Place, name_of
from tests.launcher.backends.gcp.fake_compute import Clock
from tests.workload.storage import s3_server

pytestmark = [pytest.mark.world, pytest.mark.slow]

# moto has no limits, preemptions, outages and quotas; a second request with the same token makes a second instance.
HAPPY = (
    contract.test_what_was_submitted_is_there,
    contract.test_submitted_twice_it_is_there_once,
    contract.test_what_was_stopped_is_gone_and_not_listed,
    contract.test_stopped_twice_it_is_gone_as_before,
    contract.test_a_machine_that_was_lost_is_gone,
    contract.test_interrupted_it_leaves_no_machine,
    contract.test_hostile_names_are_no_machines,
    contract.test_the_clock_is_the_places,
)


class MotoPlace(Place):
    """One region of a moto server."""

    def __init__(self, ami: str, group: str) -> None:
        self.ami, self.group, self.tokens, self.clock = ami, group, iter(range(1000)), Clock()
        self.ec2 = Ec2(REGION)._client("ec2")

    def machines(self) -> Machines:
        return Ec2Machines(self.client(), sleep=self.clock.sleep, monotonic=self.clock.now)

    def client(self) -> Ec2:
        return Ec2(REGION, sleep=self.clock.sleep, monotonic=self.clock.now)

    def plan(self) -> Any:
        plan = plan_of(f"{next(self.tokens):06x}")
        return replace(plan, ami=Ami(id=self.ami, name="", root="/dev/sda1", gigabytes=8), group=self.group)

    def _live(self) -> list[dict[str, Any]]:
        states = [{"Name": "instance-state-name", "Values": ["pending", "running", "shutting-down", "stopped"]}]
        reservations = self.ec2.describe_instances(Filters=states)["Reservations"]
        return [instance for reservation in reservations for instance in reservation["Instances"]]

    def count(self) -> int:
        return len(self._live())

    def lose(self, machine: Machine) -> None:
        del machine
        self.ec2.terminate_instances(InstanceIds=[instance["InstanceId"] for instance in self._live()])

    def clear(self) -> None:
        for instance in self._live():
            self.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoPlace]:
    with pytest.MonkeyPatch.context() as patch, s3_server.running(tmp_path_factory.mktemp("moto") / "log") as server:
        for name, value in {**s3_server.SETTINGS, ENDPOINT_VARIABLE: server.url}.items():
            patch.setenv(name, value)
        yield MotoPlace(*furnish(Ec2(REGION)._client))


@pytest.fixture
def place(moto: MotoPlace) -> Iterator[MotoPlace]:
    yield moto
    moto.clear()


@pytest.mark.parametrize("check", HAPPY, ids=name_of)
def test_contract(check: Check, place: MotoPlace) -> None:
    check(place)


def test_the_instance_and_its_schedule_as_moto_keeps_them(place: MotoPlace) -> None:
    machines = place.machines()
    [machine] = machines.submit(place.plan(), contract.silent).machines
    [instance] = place._live()
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert (tags["rooflaunch"], tags["rooflaunch-name"], tags["rooflaunch-limit"]) == ("launch", machine.name, "3600")
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["IamInstanceProfile"]["Arn"].endswith("/rooflaunch-vm")
    name = service.schedule_name(instance["InstanceId"])
    schedule = Ec2(REGION)._client("scheduler").get_schedule(Name=name)
    assert (schedule["ActionAfterCompletion"], schedule["FlexibleTimeWindow"]) == ("DELETE", {"Mode": "OFF"})
    assert schedule["Target"]["Arn"] == service.SCHEDULE_TARGET
    assert tags["rooflaunch-ends"].startswith(schedule["ScheduleExpression"][3:-1])
    assert [removed.gone for removed in machines.stop([machine])] == [True]
    assert instance["InstanceId"] not in place.client().scheduled()
    assert place.ec2.describe_volumes()["Volumes"] == []


def test_look_ups_on_moto(moto: MotoPlace) -> None:
    client = moto.client()
    zone = client.zone_ids()["us-east-1a"]
    assert zone.startswith("use1-az")
    assert "use1-az4" in client.zones_with("g4dn.xlarge")
    assert client.account() == "123456789012"
    assert client.quota("L-3819A6DF") is None, "moto does not tell it"
    price = client.spot_price("g4dn.xlarge", ["us-east-1a", "moon1-az1"])
    assert price is not None
    assert price.usd_per_h > 0
    assert price.source == f"EC2's spot price in {zone}, the highest of 1 zone"
