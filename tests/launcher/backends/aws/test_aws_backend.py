"""What a launch asks of AWS before an instance exists, and how each bad input is told."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from launcher.backends.aws.answers import ENDPOINT_VARIABLE
from launcher.backends.aws.backend import ElasticCompute, zones_there
from launcher.backends.aws.options import Options, Where
from launcher.backends.aws.plan import InstancePlan
from launcher.backends.aws.service import AMI_PARAMETERS
from launcher.protocol.backend import Job
from tests.launcher.backends.aws.aws_world import GROUP, IMAGE, NOW, SETTINGS, World, plan_of
from tests.launcher.backends.aws.fake_aws import ACCOUNT, AMI, AwsError
from tests.launcher.backends.told import errors_of
from workload.contract.errors import ExitCode, NoCapacityError, RooflaunchError, ToolError
from workload.contract.spec import resolve

pytestmark = [pytest.mark.world, pytest.mark.slow]


QUOTA = {False: ("L-DB2E81BA", "on demand"), True: ("L-3819A6DF", "spot")}
Golden = Callable[[str, str], None]


class Registry:
    """The part of a Docker engine that looks up an image by digest."""

    def registry_platforms(self, _: str) -> set[str]:
        return {"linux/amd64"}


def backend(world: World) -> ElasticCompute:
    return ElasticCompute(
        ec2=lambda _: world.ec2(), engine=Registry, sleep=world.clock.sleep, monotonic=world.clock.now
    )  # type: ignore[arg-type,return-value]


def prepared(world: World, settings: Any = SETTINGS, **options: Any) -> Any:
    ours = backend(world)
    draft = replace(plan_of(image=IMAGE, **options), settings=settings, ami=None, group=None)
    return ours.prepare(draft, ours.machines(settings))


def test_the_final_plan(world: World) -> None:
    plan = prepared(world, zones=("us-east-1a", "use1-az6"))
    assert plan.zones == tuple(plan.request.zones) == ("use1-az4", "use1-az6")
    assert (plan.ami.id, plan.ami.root, plan.ami.gigabytes, plan.group) == (AMI, "/dev/sda1", 75, GROUP)
    assert plan.request.launched_at == "2027-01-15T08:00:00.000+00:00"
    assert "RunInstances" not in world.fake.calls


def test_other_zones_follow_those_that_are_named(world: World) -> None:
    plan = plan_of(zones=("us-east-1b",), fallback=True)
    assert zones_there(world.ec2(), plan) == ["use1-az6", "use1-az1", "use1-az2", "use1-az4"]


def test_a_subnet_decides_the_zone(world: World) -> None:
    settings = replace(SETTINGS, subnet="subnet-0123456789abcdef0")
    plan = prepared(world, settings, zones=(), fallback=True)
    assert plan.zones == ("use1-az6",)
    assert world.fake.calls["DescribeSubnets"] == 2, "for its zone and for its network"
    body = plan.body("use1-az6")
    assert "Placement" not in body
    assert body["NetworkInterfaces"][0]["SubnetId"] == settings.subnet


def test_the_ami_is_found_without_parameters(world: World) -> None:
    world.fake.parameters.clear()
    assert prepared(world).ami.id == AMI
    assert world.fake.calls["GetParameter"] == len(AMI_PARAMETERS)


def test_the_account_is_asked_for_the_settings(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    ours = backend(world)
    assert ours.settings(Where()).bucket == f"rooflaunch-{ACCOUNT}-us-east-1"
    calls = dict(world.fake.calls)
    assert ours.settings(Where(), offline=True).account == "account"
    assert world.fake.calls == calls


MISSING: dict[str, dict[str, Any]] = {
    "zone of another account": {"zones": ("us-east-1f",)},
    "zone id of another account": {"zones": ("use1-az5",)},
    "zone without the machine type": {"gpu": "l4", "zones": ("use1-az2",)},
    "region without the machine type": {"gpu": "h100", "zones": (), "fallback": True},
    "no AMI": {"ami": "ami-0aaaaaaaaaaaaaaaa"},
    "no parameter": {"settings": replace(SETTINGS, ami_parameter="/my/ami")},
    "no security group": {"settings": replace(SETTINGS, security_group="closed")},
    "no subnet": {"settings": replace(SETTINGS, subnet="subnet-0aaaaaaaa"), "fallback": True, "zones": ()},
}
# Answers of AWS to a look-up: code, and message if it matters.
REFUSALS: dict[str, tuple[str, str]] = {
    "credentials are too old": ("RequestExpired", ""),
    "credentials are wrong": ("AuthFailure", ""),
    "signature is wrong": ("InvalidSignatureException", ""),
    "denied": ("UnauthorizedOperation", ""),
    "region is not enabled": ("OptInRequired", ""),
    "clock is wrong": ("RequestTimeTooSkewed", ""),
    "clock is behind": ("SignatureDoesNotMatch", "Signature expired: 1 is now earlier than 2"),
    "clock is ahead": ("InvalidSignatureException", "Signature not yet current: 2 is later than 1"),
    "anything else": ("InvalidParameter", ""),
}


def test_refusals_before_an_instance_exists_are_told_with_a_cure(world: World, golden: Golden) -> None:
    def look_up(code: str, message: str) -> None:
        world.fake.errors["DescribeAvailabilityZones"] = [AwsError(code, 403, message)]
        prepared(world)

    def boot(**image: str) -> None:
        """Windows would start, and never run our program; the processor is told before an image is built."""
        world.fake.image = image
        prepared(world, ami=AMI)

    refused = {name: {"code": code, "message": message} for name, (code, message) in REFUSALS.items()}
    missing = errors_of(lambda **options: prepared(world, **options), MISSING)
    systems = {"AMI with Windows": {"platform": "windows"}, "AMI for another processor": {"architecture": "arm64"}}
    golden("prepare-refusals.txt", "\n".join([missing, errors_of(boot, systems), errors_of(look_up, refused)]))
    assert world.left == (0, 0, 0)


def planned(world: World, *, offline: bool = False, **options: Any) -> InstancePlan:
    job, given = Job(resolved=resolve({}, {}, None), token="0a1b2c"), Options(**{"gpu": "t4", "spot": True, **options})
    return backend(world).plan(job, replace(given, image=IMAGE), SETTINGS, now=NOW, offline=offline)


@pytest.fixture
def spot_prices(world: World) -> None:
    now_s = NOW.timestamp()
    world.fake.spot_prices = [
        ("g4dn.xlarge", "use1-az4", 0.30, now_s - 60),
        ("g4dn.xlarge", "use1-az4", 0.20, now_s - 7200),
        ("g4dn.xlarge", "use1-az6", 0.25, now_s - 90),
        ("g4dn.xlarge", "use1-az1", 0.45, now_s - 90),
        ("g6.xlarge", "use1-az4", 0.90, now_s - 90),
    ]


@pytest.mark.usefixtures("spot_prices")
@pytest.mark.parametrize(
    ("zones", "usd_per_h", "where"),
    [
        (("us-east-1a", "use1-az6"), 0.30, "use1-az4, the highest of 2 zones"),
        (("use1-az6",), 0.25, "use1-az6, the highest of 1 zone"),
        ((), 0.45, "use1-az1, the highest of 3 zones"),
    ],
)
def test_a_spot_launch_asks_for_the_price_of_now(
    world: World, zones: tuple[str, ...], usd_per_h: float, where: str
) -> None:
    plan = planned(world, zones=zones, fallback=not zones, max_cost_usd=0.2)
    disk_and_address = 100 * 0.08 / 672 + 0.005
    assert plan.usd_per_h("use1-az4") == pytest.approx(usd_per_h + disk_and_address)
    assert plan.limit_s == int(0.2 / (usd_per_h + disk_and_address) * 3600) - 390
    assert f"read 2027-01-15: EC2's spot price in {where}\n" in f"{plan.text()}\n"
    assert plan.price("use1-az6") == plan.request.price("use1-az6"), "what the record of the run has"


@pytest.mark.usefixtures("spot_prices")
def test_other_plans_and_further_tasks_do_not_ask_for_the_spot_price(world: World) -> None:
    for options, usd_per_h in (({"offline": True}, 0.216), ({"spot": False}, 0.526), ({"usd_per_h": 0.5}, 0.5)):
        assert planned(world, **options).price("use1-az4").usd_per_h == usd_per_h  # type: ignore[union-attr]
    assert not world.fake.calls
    ours, given = backend(world), Options(gpu="t4", spot=True, image=IMAGE)
    for token in ("0a1b2c", "0a1b2d"):
        plan = ours.plan(Job(resolved=resolve({}, {}, None), token=token), given, SETTINGS, now=NOW)
        assert plan.price("use1-az4").usd_per_h == 0.45  # type: ignore[union-attr]
    assert world.fake.calls["DescribeSpotPriceHistory"] == 1


def test_without_a_spot_price_of_now_the_table_counts(world: World) -> None:
    assert planned(world).price("use1-az4").usd_per_h == 0.216, "EC2 names none"  # type: ignore[union-attr]
    assert world.fake.calls["DescribeSpotPriceHistory"] == 1
    world.fake.errors["DescribeSpotPriceHistory"] = [AwsError("UnauthorizedOperation", 403)]
    plan = planned(world)
    assert plan.price("use1-az4").usd_per_h == 0.216  # type: ignore[union-attr]
    told = "the spot price is not that of today: no permission for DescribeSpotPriceHistory in us-east-1: "
    assert [note for note in plan.notes if note.startswith(told)]


@pytest.mark.parametrize("spot", QUOTA)
def test_the_quota_is_asked_before_an_image_is_built(world: World, spot: bool) -> None:
    """A new account has none, and building and pushing an image takes minutes."""
    code, market = QUOTA[spot]
    world.fake.quotas[code] = 3.0
    with pytest.raises(NoCapacityError) as caught:
        prepared(world, spot=spot)
    assert str(caught.value) == f"the quota of us-east-1 for G and VT ({market}) is 3 vCPUs; g4dn.xlarge has 4"
    assert caught.value.hint == (
        "ask for more: aws service-quotas request-service-quota-increase --service-code ec2 "
        f"--quota-code {code} --desired-value 4 --region us-east-1; or another --region"
    )
    world.fake.quotas[code] = 4.0
    assert prepared(world, spot=spot).notes == plan_of(spot=spot).notes


def test_a_quota_that_aws_does_not_report_is_a_note(world: World) -> None:
    del world.fake.quotas["L-3819A6DF"]
    assert "AWS does not report the quota L-3819A6DF" in prepared(world, spot=True).notes


def failed(world: World) -> RooflaunchError:
    with pytest.raises(ToolError) as caught:
        prepared(world)
    assert caught.value.exit_code == ExitCode.TOOL
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_a_busy_server_is_asked_for_half_a_minute(world: World) -> None:
    world.fake.outage = AwsError("RequestLimitExceeded", 503)
    error = failed(world)
    assert "answers that it is busy: RequestLimitExceeded" in str(error)
    assert 15 < world.clock.slept_s <= 30


def test_no_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT_VARIABLE, "http://127.0.0.1:9")
    error = failed(world)
    assert str(error).startswith("EC2 cannot be reached at http://127.0.0.1:9: ")
    assert error.hint == "start the server at this address, or unset AWS_ENDPOINT_URL"


def no_keys(patch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        patch.setenv(name, "absent")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")


# What is wrong with this machine.
LOCAL: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "address without http": lambda patch: patch.setenv(ENDPOINT_VARIABLE, "localhost:1"),
    "address that is none": lambda patch: patch.setenv(ENDPOINT_VARIABLE, "foo"),
    "no credentials": no_keys,
    "no such profile": lambda patch: patch.setenv("AWS_PROFILE", "missing"),
    "no boto3": lambda patch: patch.setitem(sys.modules, "boto3", None),
}


def test_faults_of_this_machine_are_told_with_a_cure(world: World, golden: Golden) -> None:
    def prepare(spoil: Callable[[pytest.MonkeyPatch], None]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            spoil(patch)
            prepared(world)

    golden("machine-refusals.txt", errors_of(prepare, {name: {"spoil": spoil} for name, spoil in LOCAL.items()}))
