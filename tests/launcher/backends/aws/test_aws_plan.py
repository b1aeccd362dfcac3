"""Plans of `launch aws`: made without network and credentials, the same each time, and compared with committed ones."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from launcher.backends.aws.options import ANY_ACCOUNT, Options, Settings, resolve_settings
from launcher.backends.aws.plan import InstancePlan, make_plan
from launcher.protocol.records import Price
from tests.launcher.backends.aws.aws_world import GROUP, IMAGE, NOW, plan_of
from tests.launcher.backends.aws.fake_aws import AMI
from tests.launcher.backends.told import errors_of
from workload.contract.errors import UsageError
from workload.contract.spec import resolve

Golden = Callable[[str, str], None]


def settings_of(**given: str) -> Settings:
    return resolve_settings(given, {}, None, account=lambda _: ANY_ACCOUNT)[0]


def planned(
    gpu: str = "t4",
    run: Mapping[str, object] | None = None,
    settings: Settings | None = None,
    spot_price: Any = None,
    **options: Any,
) -> InstancePlan:
    return make_plan(
        resolve(run or {}, {}, None),
        Options(gpu=gpu, **options),
        settings or settings_of(),
        image=options.get("image") or IMAGE,
        now=NOW,
        token="0a1b2c",
        spot_price=spot_price,
    )


PLANS: dict[str, dict[str, Any]] = {
    "t4-spot": {"spot": True},
    "l4": {"gpu": "l4", "zones": ("us-east-1a",), "fallback": False, "max_cost_usd": 1.0},
    "a10g-everything": {
        "gpu": "a10g",
        "zones": ("usw2-az2", "usw2-az1"),
        "spot": True,
        "rerun_preempted": 1,
        "machine_type": "g5.2xlarge",
        "max_run_time_s": 5400,
        "usd_per_h": 1.2,
        "external_ip": False,
        "disk_gb": 200,
        "ami": "ami-0aaaaaaaaaaaaaaaa",
        "settings": settings_of(region="us-west-2", bucket="s3://my-bucket", subnet="subnet-0123456789abcdef0"),
        "run": {"model": "resnet50", "dataset": "imagenette", "repeats": "3", "profile": "ncu"},
    },
    "h100": {"gpu": "h100"},
    "t4-cpu": {"run": {"device": "cpu"}},
    "t4-two": {"run": {"devices": 2}},
}


@pytest.mark.parametrize("name", PLANS)
def test_plan_is_the_committed_one(name: str, golden: Golden) -> None:
    plan = planned(**PLANS[name])
    asked = plan.to_json()["run_instances"]
    golden(f"{name}.txt", f"{plan.text()}\n\n{json.dumps(asked, indent=1)}\n")
    first, _, body = plan.sent_text().partition("\n")
    assert first.startswith(f"request    RunInstances in {plan.zones[0]}, then CreateSchedule with ")
    shown = json.loads(body)
    assert shown.pop("UserData").endswith(f"lines, {len(plan.start_up_program())} bytes>")
    assert shown == asked


def test_a_token_for_each_trial() -> None:
    def token(zone: str = "use1-az1", **options: Any) -> str:
        return planned(**options).client_token(zone)

    tokens = {token(), token("use1-az2"), token(spot=True), token(machine_type="g4dn.2xlarge")}
    assert len(tokens) == 4
    assert all(len(text) == 64 and text.isascii() for text in tokens)
    assert token() == token()


def test_the_final_plan_has_what_aws_told() -> None:
    plan = plan_of()
    body = plan.body("use1-az6")
    assert (body["ImageId"], body["NetworkInterfaces"][0]["Groups"]) == (AMI, [GROUP])
    assert body["Placement"] == {"AvailabilityZoneId": "use1-az6"}
    assert plan.request.options["ami"] == AMI
    assert "ami        ami-0123456789abcdef0, base" in plan.text()
    assert plan.request.price("use1-az6") == plan.price("use1-az6")
    small = plan_of(disk_gb=50).body("use1-az4")["BlockDeviceMappings"][0]["Ebs"]
    assert small["VolumeSize"] == 75, "as large as the AMI needs"


@pytest.mark.parametrize(
    ("gpu", "devices", "machine", "count"),
    [
        ("t4", 4, "g4dn.12xlarge", 4),
        ("t4", 5, "g4dn.metal", 8),
        ("l4", 2, "g6.12xlarge", 4),
        ("l4", 8, "g6.48xlarge", 8),
        ("a10g", 4, "g5.12xlarge", 4),
        ("a100", 2, "p4d.24xlarge", 8),
        ("h100", 8, "p5.48xlarge", 8),
    ],
)
def test_a_machine_for_several_devices(gpu: str, devices: int, machine: str, count: int) -> None:
    request = planned(gpu, {"devices": devices}).request
    assert (request.machine_type, request.gpu_count) == (machine, count)


def test_costs_by_hand() -> None:
    # 0.526 + 100 GB at 0.08 USD in 672 h + 0.005 USD = 0.5429 USD per hour, for 60 min and 390 s.
    plan = planned()
    assert plan.usd_per_h("use1-az1") == pytest.approx(0.5429, abs=1e-4)
    assert plan.highest_usd == pytest.approx(0.5429048 * 3990 / 3600, abs=1e-6)
    assert planned(max_cost_usd=0.30).limit_s == int(0.30 / 0.5429047619 * 3600) - 390


def test_where_the_price_of_the_disk_is_unknown_the_spot_price_stands_alone() -> None:
    def spot_price(*_: object) -> Price:
        return Price(usd_per_h=0.2, source="EC2's spot price", read="2027-01-15")

    settings = settings_of(region="us-west-2")
    plan = planned(settings=settings, spot=True, spot_price=spot_price)
    assert "price      0.200 USD per hour in us-west-2; read 2027-01-15: EC2's spot price\n" in plan.text()
    assert "besides    disk, address, traffic and tax, which are not counted here\n" in plan.text()
    with pytest.raises(UsageError, match=r"type .spot. is unknown with its disk in us-west-2"):
        planned(settings=settings, spot=True, spot_price=spot_price, max_cost_usd=1.0)


REFUSED: dict[str, dict[str, Any]] = {
    "GPU that EC2 lacks": {"gpu": "v100"},
    "unknown GPU": {"gpu": "t5"},
    "machine type with a slice of a GPU": {"gpu": "l4", "machine_type": "g6f.xlarge"},
    "machine type with a slice and memory": {"gpu": "l4", "machine_type": "gr6f.4xlarge"},
    "machine type that is gone": {"gpu": "l4", "machine_type": "p3.2xlarge"},
    "machine type that no other cloud has": {"gpu": "l4", "machine_type": "p3dn.24xlarge"},
    "machine type of another GPU": {"machine_type": "g6.xlarge"},
    "zone id of another region": {"zones": ("usw2-az1",)},
    "zone of another region": {"zones": ("us-west-2a",)},
    "zone of no region": {"zones": ("us-moon-1a",)},
    "zone without the GPU": {"zones": ("use1-az3",)},
    "hostile zone": {"zones": ("$(reboot)",)},
    "region without the GPU": {"gpu": "l4", "settings": settings_of(region="us-west-1")},
    "hostile AMI": {"ami": "ami-1; reboot"},
    "cost of less than a start": {"gpu": "a100", "max_cost_usd": 1.0},
    "cost without a price": {"gpu": "h100", "spot": True, "max_cost_usd": 5.0},
    "no fallback without a zone": {"fallback": False},
    "reruns on demand": {"rerun_preempted": 1},
    "too many devices": {"run": {"devices": 16}},
    "too many devices for the machine type": {"machine_type": "g4dn.2xlarge", "run": {"devices": 2}},
    "hostile image": {"image": "$(reboot)"},
    "tf32 on a T4": {"run": {"precision": "tf32"}},
}


def test_options_that_do_not_fit_are_refused_with_a_cure(golden: Golden) -> None:
    golden("plan-refusals.txt", errors_of(planned, REFUSED))
