"""EC2's machines hold to the contract of every backend."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.backends.aws.machines import GRACE_S, Ec2Machines
from launcher.backends.aws.plan import InstancePlan
from launcher.backends.aws.service import Ec2
from launcher.protocol.backend import Machine, Machines
from tests.launcher.backends import contract
from tests.launcher.backends.aws.aws_world import SETTINGS, ZONES, World, plan_of
from tests.launcher.backends.aws.fake_aws import REGION, AwsError, FakeAws, Vm
from tests.launcher.backends.contract import CHECKS, Check, Place, name_of
from tests.launcher.backends.gcp.fake_compute import Clock

pytestmark = [pytest.mark.world, pytest.mark.slow]

ROOT = Path(__file__).parents[4]
# Of nobody's launch: a name or a tag is not ours.
STRANGER = "database"


class Ec2Place(Place):
    """A fake AWS, asked by the real boto3."""

    def __init__(self, fake: FakeAws, clock: Clock, folder: Path) -> None:
        self.fake, self.clock, self.folder, self.tokens = fake, clock, folder, iter(range(1000))

    def machines(self) -> Machines:
        ec2 = Ec2(REGION, sleep=self.clock.sleep, monotonic=self.clock.now)
        return Ec2Machines(ec2, sleep=self.clock.sleep, monotonic=self.clock.now)

    def plan(self) -> InstancePlan:
        return plan_of(f"{next(self.tokens):06x}")

    def count(self) -> int:
        return len(self.fake.live)

    def launcher(self, plan: contract.Plan) -> Sequence[str]:
        return contract.launcher_of("launcher.backends.aws.backend", plan, SETTINGS, self.folder)

    def print(self, machine: Machine, text: str) -> None:
        self.fake.named(machine.name).console += text

    def lose(self, machine: Machine) -> None:
        self.fake.end(self.fake.named(machine.name), "Client.UserInitiatedShutdown")

    def preempt(self, machine: Machine) -> None:
        self.fake.end(self.fake.named(machine.name), "Server.SpotInstanceTermination")

    def fill(self) -> None:
        for zone in ZONES:
            self.fake.errors[f"RunInstances {zone}"] = [AwsError("InsufficientInstanceCapacity", 500)] * 9

    def refuse_ends(self) -> None:
        self.fake.ends_refused = True

    def hide(self, machine: Machine) -> None:
        del machine
        self.fake.outage = AwsError("Unavailable", 503)

    def pass_limit(self, machine: Machine) -> None:
        """The guest hangs and somebody has deleted the schedule, or the limit would end the instance."""
        vm = self.fake.named(machine.name)
        vm.hangs, vm.created_s = True, vm.created_s - 2 * 3600 - GRACE_S
        del self.fake.schedules[f"rooflaunch-{vm.id}"]

    def add_stranger(self) -> str:
        fields = {"InstanceType": "g6.xlarge", "ClientToken": "t", "IamInstanceProfile": {"Name": "x"}}
        tags = {"rooflaunch": "launch", "rooflaunch-name": STRANGER}
        self.fake.vms["i-0aaaaaaaaaaaaaaaa"] = Vm(
            id="i-0aaaaaaaaaaaaaaaa",
            zone=ZONES[0],
            type="g6.xlarge",
            spot=False,
            tags=tags,
            created_s=self.clock.now() - 10**5,
            asked=fields,
            user_data=b"",
            on_shutdown="stop",
            state="running",
        )
        return STRANGER


@pytest.fixture
def place(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ec2Place:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Ec2Place(world.fake, world.clock, tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract(check: Check, place: Ec2Place) -> None:
    check(place)
