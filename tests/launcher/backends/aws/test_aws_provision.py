"""Getting an instance: every row of EC2's errors, doubtful answers, and the two limits, on a clock that tests move."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from launcher.backends.aws.machines import HUNG_S, remove
from launcher.backends.aws.plan import LATE_S
from launcher.protocol.backend import Condition, Machine, Submitted
from tests.launcher.backends.aws.aws_world import SETTINGS, World, aws_world, plan_of
from tests.launcher.backends.aws.fake_aws import AwsError
from tests.launcher.backends.told import errors_of
from workload.contract.errors import NoCapacityError, ToolError

pytestmark = [pytest.mark.world, pytest.mark.slow]

FIRST, SECOND = "use1-az4", "use1-az6"


def submitted(world: World, **options: Any) -> Submitted:
    return world.machines().submit(plan_of(**options), world.told.append)


def test_the_instance_has_tags_limits_and_a_schedule(world: World) -> None:
    [machine] = submitted(world).machines
    [vm] = world.fake.live
    assert (machine.zone, machine.condition, vm.spot) == (FIRST, Condition.RUNNING, False)
    name = machine.name
    assert vm.tags.items() >= {"rooflaunch": "launch", "rooflaunch-name": name, "rooflaunch-limit": "3600"}.items()
    asked = vm.asked
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert asked["MetadataOptions"] == {
        "HttpTokens": "required",
        "HttpEndpoint": "enabled",
        "HttpPutResponseHopLimit": "2",
        "InstanceMetadataTags": "enabled",
    }
    [interface] = asked["NetworkInterface"]
    assert interface["SecurityGroupId"] == ["sg-0123456789abcdef0"]
    [disk] = asked["BlockDeviceMapping"]
    assert disk["Ebs"] == {"VolumeSize": "100", "VolumeType": "gp3", "DeleteOnTermination": "true", "Encrypted": "true"}
    [volume] = world.fake.volumes.values()
    assert volume["tags"]["rooflaunch-name"] == name
    [schedule] = world.fake.schedules.values()
    assert schedule["at_s"] == vm.created_s + 3600 + LATE_S
    assert schedule["Target"]["RoleArn"] == SETTINGS.schedule_role_arn
    assert vm.tags["rooflaunch-ends"] == "2027-01-15T09:02:00Z"


def test_spot_instance_is_one_time_and_never_stopped(world: World) -> None:
    submitted(world, spot=True)
    [vm] = world.fake.live
    market = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    assert vm.asked["InstanceMarketOptions"] == {"MarketType": "spot", "SpotOptions": market}
    kinds = [spec["ResourceType"] for spec in vm.asked["TagSpecification"]]
    assert kinds == ["instance", "volume", "network-interface", "spot-instances-request"]


CAPACITY = (
    *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacity", "UnfulfillableCapacity"),
    *("SpotMaxPriceTooLow", "Unsupported", "InsufficientFreeAddressesInSubnet"),
)


@pytest.mark.parametrize("code", CAPACITY)
@pytest.mark.parametrize("status", [400, 500])
def test_without_capacity_the_next_zone_is_asked_once_each(world: World, code: str, status: int) -> None:
    world.fake.errors[f"RunInstances {FIRST}"] = [AwsError(code, status)]
    done = submitted(world)
    assert [(tried.zone, tried.code) for tried in done.tried] == [(FIRST, code)]
    assert [vm.zone for vm in world.fake.live] == [SECOND]
    assert world.fake.calls["RunInstances"] == 2
    assert world.left == (1, 1, 1)


@pytest.mark.parametrize("reason", ["Server.InsufficientInstanceCapacity", "Server.InternalError"])
def test_instance_that_ends_at_once_counts_as_no_capacity(world: World, reason: str) -> None:
    world.fake.dies_of[FIRST] = reason
    done = submitted(world)
    assert [(tried.zone, tried.code) for tried in done.tried] == [(FIRST, reason)]
    assert [vm.zone for vm in world.fake.live] == [SECOND]
    assert world.left == (1, 1, 1)


def answers(action: str, *errors: AwsError) -> Callable[[World], object]:
    return lambda world: world.fake.errors[action].extend(errors)


def lose_answers(world: World) -> None:
    world.fake.lost_answers = 2


def hide_instance(world: World) -> None:
    world.fake.hides = 3


def make_profile_later(world: World) -> None:
    world.fake.profiles.clear()
    world.clock.on_sleep = lambda _: world.fake.profiles.add("rooflaunch-vm")


@pytest.mark.parametrize(
    ("prepare", "asked"),
    [
        pytest.param(lose_answers, 3, id="answers are lost"),
        pytest.param(answers("RunInstances", *[AwsError("InternalError", 500)] * 2), 3, id="the server fails"),
        pytest.param(answers("RunInstances", *[AwsError("RequestLimitExceeded", 503)] * 3), 4, id="EC2 is busy"),
        pytest.param(answers("RunInstances", *[AwsError("EC2ThrottledException", 503)] * 3), 4, id="throttled"),
        pytest.param(hide_instance, 1, id="EC2 does not know the instance yet"),
        pytest.param(answers("CreateTags", *[AwsError("InvalidInstanceID.NotFound")] * 4), 1, id="nor can tag it"),
        pytest.param(make_profile_later, 2, id="the profile is made a moment later"),
    ],
)
def test_doubtful_answer_is_asked_again_and_makes_one_instance(
    world: World, prepare: Callable[[World], object], asked: int
) -> None:
    prepare(world)
    submitted(world)
    assert world.left == (1, 1, 1)
    assert "rooflaunch-ends" in world.fake.live[0].tags
    assert world.fake.calls["RunInstances"] == asked


def test_refusal_after_a_lost_answer_leaves_no_instance(world: World) -> None:
    world.fake.lost_answers = 1
    asked = world.fake.answer

    def refuse_the_second(service: str, action: str, fields: dict[str, Any]) -> Any:
        if action == "RunInstances" and world.fake.vms:
            raise AwsError("InsufficientInstanceCapacity", 500)
        return asked(service, action, fields)

    world.fake.answer = refuse_the_second  # type: ignore[method-assign]
    with pytest.raises(NoCapacityError, match=f"{FIRST}: InsufficientInstanceCapacity"):
        submitted(world)
    assert [vm.state for vm in world.fake.vms.values()] == ["terminated"]
    assert world.left == (0, 0, 0)


def test_after_answers_that_stay_lost_nothing_is_left(world: World) -> None:
    world.fake.lost_answers = 10**6
    with pytest.raises(ToolError, match=r"^EC2 cannot be reached at http"):
        submitted(world)
    assert f"{FIRST}: checking that no VM is left" in world.told
    assert (len(world.fake.vms), world.left) == (1, (0, 0, 0))


def full_of_volumes(world: World) -> None:
    world.fake.dies_of[FIRST] = "Client.VolumeLimitExceeded"


PAGE = "<html><body>log in</body></html>"
BAD_TIME = "<item><instancesSet><item><launchTime>soon</launchTime></item></instancesSet></item>"
MALFORMED = {
    "DescribeAvailabilityZones": PAGE,
    "DescribeInstances": f"<R><reservationSet>{BAD_TIME}</reservationSet></R>",
    "RunInstances": "<html><br>",
    "CreateSchedule": "3",
}
# After these no other zone is tried, and nothing is left.
REFUSED: dict[str, Callable[[World], object]] = {
    "quota of vCPUs": answers("RunInstances", AwsError("VcpuLimitExceeded")),
    "quota of instances": answers("RunInstances", AwsError("InstanceLimitExceeded")),
    "quota of spot": answers("RunInstances", AwsError("MaxSpotInstanceCountExceeded")),
    "quota of volumes": full_of_volumes,
    "denied": answers("RunInstances", AwsError("UnauthorizedOperation", 403)),
    "account is new": answers("RunInstances", AwsError("PendingVerification")),
    "request that EC2 does not take": answers("RunInstances", AwsError("InvalidParameterCombination")),
    "no profile": lambda world: world.fake.profiles.clear(),
    "no role for the schedule": lambda world: world.fake.roles.clear(),
    **{
        f"malformed {action}": answers(action, *[AwsError("Malformed", 200, body=body)] * 100)
        for action, body in MALFORMED.items()
    },
}


def test_refusals_leave_nothing_and_are_told_with_a_cure(
    monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    urls = []

    def submit(prepare: Callable[[World], object]) -> None:
        with aws_world(monkeypatch) as world:
            urls.append(world.fake.url)
            prepare(world)
            try:
                submitted(world)
            finally:
                assert world.left == (0, 0, 0)
                assert {vm.zone for vm in world.fake.vms.values()} <= {FIRST}

    text = errors_of(submit, {name: {"prepare": prepare} for name, prepare in REFUSED.items()})
    for url in urls:
        text = text.replace(url, "http://HOST")
    golden("provision-refusals.txt", text)


def test_an_interrupt_between_instance_and_schedule_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = world.machines()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(machines.ec2, "schedule_end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        machines.submit(plan_of(), world.told.append)
    assert world.left == (0, 0, 0)


def test_a_second_launcher_makes_the_schedule_that_the_first_did_not(world: World) -> None:
    """The first was killed in between, so it removed nothing. Its instance waits for the tag."""
    first = world.machines()
    first.ec2.run_instance({**plan_of().body(FIRST), "UserData": plan_of().start_up_program()})
    assert world.left == (1, 1, 0)
    submitted(world)
    assert world.left == (1, 1, 1)
    assert "rooflaunch-ends" in world.fake.live[0].tags


# Limits.


def test_the_timer_of_the_guest_ends_the_instance(world: World) -> None:
    [machine] = submitted(world).machines
    world.fake.schedules.clear()
    world.clock.s = world.fake.live[0].created_s + 3599
    assert len(world.fake.live) == 1
    world.clock.sleep(1)
    assert world.left == (0, 0, 0)
    assert condition(world, machine) is Condition.GONE


def test_the_schedule_ends_an_instance_whose_guest_hangs(world: World) -> None:
    world.fake.hangs = True
    submitted(world)
    world.clock.s = world.fake.live[0].created_s + 3600 + LATE_S - 1
    assert len(world.fake.live) == 1
    world.clock.sleep(1)
    assert world.left == (0, 0, 0)


def test_a_normal_end_deletes_the_schedule_when_it_is_seen(world: World) -> None:
    [machine] = submitted(world).machines
    world.fake.end(world.fake.live[0], "Client.InstanceInitiatedShutdown")
    machines = world.machines()
    assert [condition(world, machine, machines) for _ in range(2)] == [Condition.GONE] * 2
    assert world.left == (0, 0, 0)
    assert world.fake.calls["DeleteSchedule"] == 1


def test_a_hung_guest_is_ended_without_its_shutdown(world: World) -> None:
    world.fake.hangs = True
    [machine] = submitted(world).machines
    began_s = world.clock.now()
    assert remove(world.ec2(), {machine.name: ()}, now=world.clock.now, sleep=world.clock.sleep) == {machine.name: ""}
    assert world.left == (0, 0, 0)
    assert world.clock.now() - began_s > HUNG_S


def test_reap_finds_schedules_and_disks_without_an_instance(world: World) -> None:
    [machine] = submitted(world).machines
    [vm] = world.fake.live
    disk = dict(next(iter(world.fake.volumes.values())))
    world.fake.end(vm, "Client.InstanceInitiatedShutdown")
    world.fake.volumes["vol-0aaaaaaaaaaaaaaaa"] = disk
    world.clock.sleep(3600)
    world.fake.schedules["rooflaunch-i-0bbbbbbbbbbbbbbbb"] = {**world.fake.schedules.popitem()[1], "at_s": 1e12}
    machines = world.machines()
    assert {item.kind for item in machines.leftovers()} == {"schedule"}
    world.clock.sleep(3600)
    left = list(machines.leftovers())
    assert sorted((item.kind, item.name) for item in left) == [
        ("disk", "vol-0aaaaaaaaaaaaaaaa"),
        ("schedule", "rooflaunch-i-0bbbbbbbbbbbbbbbb"),
    ]
    assert all(removed.gone for removed in machines.stop(left))
    assert world.left == (0, 0, 0)
    assert machine.name not in {item.name for item in left}


def test_output_goes_on_when_the_consoles_window_moves(world: World) -> None:
    [machine] = submitted(world).machines
    machines, vm = world.machines(), world.fake.live[0]
    vm.console = "".join(f"line {number}\n" for number in range(9000))
    first = machines.output(machine, 0)
    vm.console += "".join(f"line {number}\n" for number in range(9000, 9500))
    second = machines.output(machine, first.next_start)
    numbers = [int(number) for number in re.findall(r"line (\d+)\n", first.text + second.text)]
    assert numbers[-1] == 9499
    assert numbers == list(range(numbers[0], 9500))


def condition(world: World, machine: Machine, machines: Any = None) -> Condition:
    [seen] = (machines or world.machines()).look({machine.name: (machine.zone,)})
    return seen.condition
