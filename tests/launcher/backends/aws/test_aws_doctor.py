"""`launch doctor aws` on a fake AWS: what is sound, what is missing, and an account that does not answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher import doctor as machine_doctor
from launcher.backends.aws.backend import ElasticCompute
from launcher.backends.aws.options import Settings, Where
from launcher.protocol.backend import Check, Health
from tests.launcher.backends.aws.aws_world import World, aws_world
from tests.launcher.backends.aws.fake_aws import ACCOUNT, AwsError, FakeAws
from workload.contract.errors import UsageError
from workload.storage.s3 import Bucket
from workload.storage.store import Patience

pytestmark = [pytest.mark.world, pytest.mark.slow]

Golden = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def examined(world: World) -> list[Check]:
    def bucket(settings: Settings) -> Bucket:
        if settings.bucket != f"rooflaunch-{ACCOUNT}-us-east-1":
            raise UsageError(f"bucket '{settings.bucket}' does not exist", hint="aws s3 ls")
        return Bucket(lambda _: None, settings.bucket, Patience())

    checks = list(ElasticCompute(ec2=lambda _: world.ec2(), bucket=bucket).checks(Where()))
    assert len({check.name for check in checks}) == len(checks), "each row has a name of its own"
    return checks


def new_account(fake: FakeAws) -> None:
    fake.quotas["L-3819A6DF"] = 0.0
    for made in (fake.groups, fake.profiles, fake.roles, fake.repositories):
        made.clear()
    fake.errors["DescribeImages"] = [AwsError("UnauthorizedOperation", 403)]


def other_trust(fake: FakeAws) -> None:
    fake.trusted = "ec2.amazonaws.com"


def some_quota(fake: FakeAws) -> None:
    fake.quotas["L-417A185B"] = 16.0


def expired(fake: FakeAws) -> None:
    fake.errors["GetCallerIdentity"] = [AwsError("ExpiredToken", 403)]


def unusual_request(fake: FakeAws) -> None:
    fake.errors["RunInstances"] = 2 * [AwsError("InvalidParameterCombination", 400, "no behavior for spot")]


SPOILED = (new_account, other_trust, some_quota, expired, unusual_request)


def test_checks_of_a_sound_and_of_spoiled_accounts(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """Of a spoiled account the rows that a sound one does not have, and how many others there are."""
    with aws_world(monkeypatch) as world:
        usual = examined(world)
        assert world.left == (0, 0, 0), "requests for VMs are tried, and nothing is made"
    parts = [f"## sound\n{machine_doctor.render(usual)}\n"]
    for spoil in SPOILED:
        with aws_world(monkeypatch) as world:
            spoil(world.fake)
            found = examined(world)
        other = [check for check in found if check not in usual]
        name = spoil.__name__.replace("_", " ")
        parts.append(f"## {name}\n{machine_doctor.render(other)}\nand {len(found) - len(other)} as usual\n")
    golden("doctor.txt", "\n".join(parts))


def test_another_registry_is_not_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLAUNCH_AWS_REPOSITORY", "registry.example.com/team/trainer")
    [check] = [check for check in examined(world) if check.name == "registry"]
    told = "registry.example.com/team/trainer is not in this account's registry: not checked"
    assert (check.state, check.found) == (Health.NOTE, told)
