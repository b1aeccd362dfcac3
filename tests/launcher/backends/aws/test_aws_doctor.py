"""`launch doctor aws` on a fake AWS: what is sound, what is missing, and an account that does not answer."""

from pathlib import Path

import pytest

from launcher.backends.aws.backend import ElasticCompute
from launcher.backends.aws.options import Settings, Where
from launcher.protocol.backend import Check, Health
from tests.launcher.backends.aws.aws_world import World
from tests.launcher.backends.aws.fake_aws import ACCOUNT, AMI, AwsError
from workload.contract.errors import UsageError
from workload.storage.s3 import Bucket
from workload.storage.store import Patience

pytestmark = [pytest.mark.world, pytest.mark.slow]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def examined(world: World) -> dict[str, Check]:
    def bucket(settings: Settings) -> Bucket:
        if settings.bucket != f"rooflaunch-{ACCOUNT}-us-east-1":
            raise UsageError(f"bucket '{settings.bucket}' does not exist", hint="aws s3 ls")
        return Bucket(lambda _: None, settings.bucket, Patience())

    checks = list(ElasticCompute(ec2=lambda _: world.ec2(), bucket=bucket).checks(Where()))
    assert len({check.name for check in checks}) == len(checks), "each row has a name of its own"
    return {check.name: check for check in checks}


def test_a_sound_account(world: World) -> None:
    checks = examined(world)
    assert checks["account"].found == f"{ACCOUNT}, region us-east-1 with use1-az1, use1-az2, use1-az4, use1-az6"
    assert checks["quota G and VT, spot"].found == "8 vCPUs (L-3819A6DF)"
    assert checks["quota P, on demand"].state is Health.NOTE
    assert checks["ami"].found.startswith(AMI)
    assert checks["bucket"].found == f"s3://rooflaunch-{ACCOUNT}-us-east-1/"
    assert checks["VM's role"].found == "rooflaunch-vm"
    assert checks["schedule's role"].found == f"arn:aws:iam::{ACCOUNT}:role/rooflaunch-schedule"
    assert checks["registry"].found == f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/rooflaunch/trainer"
    assert not [name for name, check in checks.items() if check.state is Health.PROBLEM]


def test_a_new_account(world: World) -> None:
    world.fake.quotas["L-3819A6DF"] = 0.0
    world.fake.groups.clear()
    world.fake.profiles.clear()
    world.fake.roles.clear()
    world.fake.repositories.clear()
    world.fake.errors["DescribeImages"] = [AwsError("UnauthorizedOperation", 403)]
    checks = examined(world)
    assert checks["quota G and VT, spot"].found == "0 vCPUs (L-3819A6DF): too few for --gpu t4, l4, a10g"
    assert "--quota-code L-3819A6DF --desired-value 4 --region us-east-1" in checks["quota G and VT, spot"].cure
    assert checks["network"].found == "there is no security group 'rooflaunch' in vpc-1 of us-east-1"
    assert checks["ami"].found.startswith("no permission for DescribeImages in us-east-1: ")

    missing = {name: (checks[name].found, checks[name].cure) for name in ("VM's role", "schedule's role", "registry")}
    assert missing == {
        "VM's role": (
            "there is no instance profile 'rooflaunch-vm'",
            "make it with infra/aws/, or name another one with --instance-profile",
        ),
        "schedule's role": (
            "there is no role 'rooflaunch-schedule'",
            "make it with infra/aws/, or name another one with --schedule-role",
        ),
        "registry": (
            "there is no repository 'rooflaunch/trainer' in us-east-1",
            "make it with infra/aws/, or name another one with --repository",
        ),
    }


def test_a_role_that_schedules_cannot_use(world: World) -> None:
    world.fake.trusted = "ec2.amazonaws.com"
    assert examined(world)["schedule's role"].found == (
        "role 'rooflaunch-schedule' does not trust EventBridge Scheduler"
    )


def test_another_registry_is_not_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLAUNCH_AWS_REPOSITORY", "registry.example.com/team/trainer")
    check = examined(world)["registry"]
    assert (check.state, check.found) == (
        Health.NOTE,
        "registry.example.com/team/trainer is not in this account's registry: not checked",
    )


def test_a_quota_for_some_gpus_of_its_family(world: World) -> None:
    world.fake.quotas["L-417A185B"] = 16.0
    check = examined(world)["quota P, on demand"]
    assert check.found == "16 vCPUs (L-417A185B): too few for --gpu a100, a100-80gb"
    assert "--quota-code L-417A185B --desired-value 96 --region us-east-1" in check.cure


def test_without_an_account_nothing_else_is_asked(world: World) -> None:
    world.fake.errors["GetCallerIdentity"] = [AwsError("ExpiredToken", 403)]
    checks = examined(world)
    assert list(checks) == ["account"]
    assert checks["account"].found.startswith("the credentials for AWS have expired: ")
    assert checks["account"].cure == "aws sso login, or aws configure"


def test_requests_for_vms_are_tried_and_nothing_is_made(world: World) -> None:
    markets = [f"request for a VM, {market}" for market in ("on demand", "spot")]
    assert {examined(world)[name].found for name in markets} == {"EC2 takes it: g4dn.xlarge in use1-az1"}
    assert world.left == (0, 0, 0)
    world.fake.errors["RunInstances"] = 2 * [AwsError("InvalidParameterCombination", 400, "no behavior for spot")]
    refused = "AWS refused runInstances: InvalidParameterCombination: no behavior for spot"
    checks = examined(world)
    assert {(checks[name].state, checks[name].found) for name in markets} == {(Health.PROBLEM, refused)}
