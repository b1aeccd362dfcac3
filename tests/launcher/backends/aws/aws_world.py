"""A fake AWS with a clock, and plans of `launch aws` for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from launcher.backends.aws.answers import ENDPOINT_VARIABLE, Ami
from launcher.backends.aws.machines import Ec2Machines
from launcher.backends.aws.options import Options, Settings
from launcher.backends.aws.plan import InstancePlan, make_plan
from launcher.backends.aws.service import Ec2
from tests.launcher.backends.aws.fake_aws import ACCOUNT, AMI, REGION, FakeAws
from tests.launcher.backends.gcp.fake_compute import Clock
from workload.contract.spec import resolve

ZONES = ("use1-az4", "use1-az6")
REPOSITORY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/rooflaunch/trainer"
IMAGE = f"{REPOSITORY}@sha256:{'0' * 64}"
GROUP = "sg-0123456789abcdef0"
NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)
SETTINGS = Settings(
    region=REGION,
    account=ACCOUNT,
    bucket="rooflaunch-tests",
    repository=REPOSITORY,
    instance_profile="rooflaunch-vm",
    schedule_role="rooflaunch-schedule",
    security_group="rooflaunch",
)


def plan_of(token: str = "0a1b2c", **options: object) -> InstancePlan:
    """A plan as it is submitted."""
    given = Options(**{"gpu": "t4", "zones": ZONES, "fallback": False, **options})
    draft = make_plan(resolve({}, {}, None), given, SETTINGS, image=IMAGE, now=NOW, token=token)
    ami = Ami(id=AMI, name="base", root="/dev/sda1", gigabytes=75)
    return draft.launched(NOW, image=IMAGE, zones=draft.zones, ami=ami, group=GROUP)


@dataclass
class World:
    """A fake AWS, its clock, and what a launcher told its user."""

    fake: FakeAws
    clock: Clock
    told: list[str] = field(default_factory=list)

    def ec2(self) -> Ec2:
        return Ec2(REGION, sleep=self.clock.sleep, monotonic=self.clock.now)

    def machines(self) -> Ec2Machines:
        return Ec2Machines(self.ec2(), sleep=self.clock.sleep, monotonic=self.clock.now)

    @property
    def left(self) -> tuple[int, int, int]:
        """Numbers of instances, volumes and schedules that exist."""
        return len(self.fake.live), len(self.fake.volumes), len(self.fake.schedules)


@contextmanager
def aws_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = Clock()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(name, value)
    with FakeAws(clock=clock.now) as fake:
        monkeypatch.setenv(ENDPOINT_VARIABLE, fake.url)
        yield World(fake, clock)
