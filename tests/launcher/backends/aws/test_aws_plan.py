"""Plans of `launch aws`: made without network and credentials, the same each time, and compared with committed ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.aws import plan as planning
from launcher.backends.aws.options import ANY_ACCOUNT, Options, Settings, resolve_settings
from launcher.backends.aws.plan import InstancePlan, make_plan
from launcher.protocol.records import Price, Task, TaskRun
from tests.launcher.backends.aws.aws_world import GROUP, IMAGE, NOW, plan_of
from tests.launcher.backends.aws.fake_aws import AMI
from workload.contract.errors import ExitCode, UsageError
from workload.contract.spec import RunSpec, resolve

PLANS = Path(__file__).with_name("plans")


def settings_of(**given: str) -> Settings:
    return resolve_settings(given, {}, None, account=lambda _: ANY_ACCOUNT)[0]


def planned(
    gpu: str = "t4",
    run: Mapping[str, object] | None = None,
    settings: Settings | None = None,
    task: Task | None = None,
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
        task=task,
        spot_price=spot_price,
    )


GOLDEN: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("name", GOLDEN)
def test_the_plan_is_the_committed_one(name: str) -> None:
    """To change a plan on purpose, delete its file, run this test, and read the difference."""
    plan, path = planned(**GOLDEN[name]), PLANS / f"{name}.txt"
    found = f"{plan.text()}\n\n{json.dumps(plan.to_json()['run_instances'], indent=1)}\n"
    if not path.exists():
        path.write_text(found, encoding="utf-8")
        pytest.fail(f"{path} is new: read it")
    assert found == path.read_text(encoding="utf-8")


def test_the_request_is_shown_with_the_size_of_the_user_data() -> None:
    shown = planned().sent_text()
    first, _, body = shown.partition("\n")
    assert first == "request    RunInstances in use1-az1, then CreateSchedule with rooflaunch-schedule"
    document = json.loads(body)
    size = len(planned().start_up_program())
    assert document.pop("UserData").endswith(f"lines, {size} bytes>")
    assert document == planned().to_json()["run_instances"]
    assert size <= planning.MAX_BYTES


def test_the_user_data_begins_with_the_timer_and_holds_no_request() -> None:
    plan = planned(max_run_time_s=5430, run={"model": "resnet50"})
    text = planning.user_data_text(plan._parameters())
    assert text.splitlines()[:2] == ["#!/bin/bash", "shutdown -P +91"]
    assert "resnet50" not in text


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


def test_the_disk_is_as_large_as_the_ami_needs() -> None:
    plan = plan_of(disk_gb=50)
    assert plan.body("use1-az4")["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 75


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


def test_runs_of_a_task_that_no_vm_can_do_are_named() -> None:
    task = Task(job="night", runs=(TaskRun(spec=RunSpec()), TaskRun(spec=RunSpec(compile=True), position=2)))
    with pytest.raises(UsageError, match="run 2 of 2 runs in 1 block, task 1 of 'night': "):
        planned(task=task)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            {"gpu": "l4", "machine_type": "g6f.xlarge"},
            "machine type 'g6f.xlarge' is a",
            "--machine-type g6.xlarge",
        ),
        ({"gpu": "v100"}, "EC2 has no V100 for one run any more", "--gpu t4"),
        ({"zones": ("usw2-az1",)}, "zone 'usw2-az1' is in us-west-2, but", "--region us-west-2"),
        ({"zones": ("us-west-2a",)}, "zone 'us-west-2a' is in us-west-2, but", "--region us-west-2"),
        ({"zones": ("us-moon-1a",)}, "no T4 16 GB in zone 'us-moon-1a' of us-east-1", "--zone use1-az1"),
        ({"zones": ("use1-az3",)}, "no T4 16 GB in zone 'use1-az3' of us-east-1", "--zone use1-az1"),
        ({"zones": ("$(reboot)",)}, "no T4 16 GB in zone '$(reboot)' of us-east-1", "--zone use1-az1"),
        ({"gpu": "l4", "settings": settings_of(region="us-west-1")}, "no L4 24 GB in region 'us-west-1'", "--region"),
        ({"ami": "ami-1; reboot"}, "--ami must be the id of an AMI", "--ami ami-ID"),
        ({"machine_type": "g6.xlarge"}, "machine type for t4 must be one of g4dn.xlarge", "--machine-type g4dn.xlarge"),
        ({"gpu": "a100", "max_cost_usd": 1.0}, "--max-cost 1 buys 0 s at 21.97 USD per hour", "--max-cost 6.05"),
        (
            {"gpu": "h100", "spot": True, "max_cost_usd": 5.0},
            "--max-cost needs a price",
            "--usd-per-h with the figure of calculator",
        ),
        ({"fallback": False}, "--no-fallback allows only the zones", "--zone use1-az4 --no-fallback"),
        ({"rerun_preempted": 1}, "--rerun-preempted is only for spot VMs", "--spot --rerun-preempted 2"),
        ({"run": {"devices": 16}}, "a VM has 1, 4, 8 GPUs of T4 16 GB, and up to 96 vCPUs", "--devices 8"),
        (
            {"machine_type": "g4dn.2xlarge", "run": {"devices": 2}},
            "g4dn.2xlarge has at most 1 GPU and 8 vCPUs; got --devices 2",
            "--machine-type g4dn.12xlarge",
        ),
        ({"image": "$(reboot)"}, "image must be a reference", "--image 123456789012.dkr.ecr"),
        ({"run": {"precision": "tf32"}}, "precision tf32 needs compute capability 8.0", "--precision fp32"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(**options)
    assert str(caught.value).startswith(message)
    assert caught.value.hint.startswith(hint)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE
