"""Getting an instance: every row of EC2's errors, doubtful answers, and the two limits, on a clock that tests move."""

import re
from typing import Any

import pytest

from launcher.backends.aws.machines import HUNG_S, remove
from launcher.backends.aws.plan import LATE_S
from launcher.protocol.backend import Condition, Machine, Submitted
from tests.launcher.backends.aws.aws_world import SETTINGS, World, plan_of
from tests.launcher.backends.aws.fake_aws import AwsError
from workload.contract.errors import ExitCode, NoCapacityError, RooflaunchError, ToolError

pytestmark = [pytest.mark.world, pytest.mark.slow]

FIRST, SECOND = "use1-az4", "use1-az6"


def submitted(world: World, **options: Any) -> Submitted:
    return world.machines().submit(plan_of(**options), world.told.append)


def refused(world: World, error: type[RooflaunchError] = NoCapacityError, **options: Any) -> RooflaunchError:
    with pytest.raises(error) as caught:
        submitted(world, **options)
    assert world.left == (0, 0, 0)
    return caught.value


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


def test_a_spot_instance_is_one_time_and_never_stopped(world: World) -> None:
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
    assert len(world.fake.schedules) == 1


@pytest.mark.parametrize("reason", ["Server.InsufficientInstanceCapacity", "Server.InternalError"])
def test_an_instance_that_ends_at_once_counts_as_no_capacity(world: World, reason: str) -> None:
    world.fake.dies_of[FIRST] = reason
    done = submitted(world)
    assert [(tried.zone, tried.code) for tried in done.tried] == [(FIRST, reason)]
    assert [vm.zone for vm in world.fake.live] == [SECOND]
    assert world.left == (1, 1, 1)


@pytest.mark.parametrize(
    ("code", "in_reason"),
    [
        ("VcpuLimitExceeded", False),
        ("InstanceLimitExceeded", False),
        ("MaxSpotInstanceCountExceeded", False),
        ("Client.VolumeLimitExceeded", True),
    ],
)
def test_a_quota_is_not_tried_again_in_the_region(world: World, code: str, in_reason: bool) -> None:
    if in_reason:
        world.fake.dies_of[FIRST] = code
    else:
        world.fake.errors["RunInstances"] = [AwsError(code)]
    error = refused(world)
    assert world.fake.calls["RunInstances"] == 1
    assert f"{FIRST}: {code}: " in str(error)
    assert (error.exit_code, "request-service-quota-increase" in error.hint) == (ExitCode.NO_CAPACITY, True)


def test_a_lost_answer_is_asked_again_with_the_same_token(world: World) -> None:
    world.fake.lost_answers = 2
    submitted(world)
    assert world.fake.calls["RunInstances"] == 3
    assert world.left == (1, 1, 1)


def test_a_refusal_after_a_lost_answer_leaves_no_instance(world: World) -> None:
    world.fake.lost_answers = 1
    world.fake.errors["RunInstances"] = [AwsError("InternalError", 500), AwsError("InternalError", 500)]
    asked = world.fake.answer

    def refuse_the_second(service: str, action: str, fields: dict[str, Any]) -> Any:
        if action == "RunInstances" and world.fake.vms:
            raise AwsError("InsufficientInstanceCapacity", 500)
        return asked(service, action, fields)

    world.fake.answer = refuse_the_second  # type: ignore[method-assign]
    error = refused(world)
    assert f"{FIRST}: InsufficientInstanceCapacity" in str(error)
    assert [vm.state for vm in world.fake.vms.values()] == ["terminated"]


@pytest.mark.parametrize("status", [500, 503])
def test_a_failed_server_is_asked_again_with_the_same_token(world: World, status: int) -> None:
    world.fake.errors["RunInstances"] = [AwsError("InternalError", status)] * 2
    submitted(world)
    assert world.left == (1, 1, 1)


def test_after_answers_that_stay_lost_nothing_is_left(world: World) -> None:
    world.fake.lost_answers = 10**6
    error = refused(world, ToolError)
    assert "cannot be reached" in str(error)
    assert f"{FIRST}: checking that no VM is left" in world.told
    assert len(world.fake.vms) == 1


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "EC2ThrottledException"])
def test_a_busy_ec2_is_asked_again_later(world: World, code: str) -> None:
    world.fake.errors["RunInstances"] = [AwsError(code, 503)] * 3
    submitted(world)
    assert world.fake.calls["RunInstances"] == 4
    assert world.left == (1, 1, 1)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("UnauthorizedOperation", "no permission for RunInstances in us-east-1"),
        ("AuthFailure", "no usable credentials for AWS in us-east-1"),
        ("PendingVerification", "this account cannot use us-east-1: PendingVerification"),
        ("OptInRequired", "this account cannot use us-east-1: OptInRequired"),
        ("RequestExpired", "the credentials for AWS have expired"),
        ("RequestTimeTooSkewed", "the clock of this machine is wrong"),
        ("InvalidParameterCombination", "EC2 did not make the VM in use1-az4: InvalidParameterCombination"),
    ],
)
def test_errors_after_which_no_zone_is_tried(world: World, code: str, said: str) -> None:
    world.fake.errors["RunInstances"] = [AwsError(code, 403 if "Un" in code else 400)]
    error = refused(world, ToolError)
    assert str(error).startswith(said)
    assert error.exit_code == ExitCode.TOOL
    assert error.hint
    assert world.fake.calls["RunInstances"] == 1


def test_a_profile_that_is_made_a_moment_later(world: World) -> None:
    world.fake.profiles.clear()
    world.clock.on_sleep = lambda _: world.fake.profiles.add("rooflaunch-vm")
    submitted(world)
    assert world.left == (1, 1, 1)


def test_a_profile_that_does_not_exist(world: World) -> None:
    world.fake.profiles.clear()
    error = refused(world, ToolError)
    assert str(error).startswith("the instance profile 'rooflaunch-vm' cannot be used: InvalidParameterValue: ")
    assert error.hint == "make it with infra/aws/, or name another one with --instance-profile"


def test_a_schedule_role_that_does_not_exist(world: World) -> None:
    """No instance runs without its schedule: it is ended again."""
    world.fake.roles.clear()
    error = refused(world, ToolError)
    assert str(error).startswith("the schedule's role cannot be used: ")
    assert error.hint == "make the role with infra/aws/, or name another one with --schedule-role"


def test_an_instance_that_ec2_does_not_know_yet(world: World) -> None:
    world.fake.hides = 3
    submitted(world)
    assert world.left == (1, 1, 1)


def test_a_tag_waits_until_ec2_knows_the_new_instance(world: World) -> None:
    world.fake.errors["CreateTags"] = [AwsError("InvalidInstanceID.NotFound")] * 4
    submitted(world)
    assert "rooflaunch-ends" in world.fake.live[0].tags
    assert world.left == (1, 1, 1)


PAGE = "<html><body>log in</body></html>"
ITEM = "<item><launchTime>soon</launchTime></item>"
BAD_TIME = f"<reservationSet><item><instancesSet>{ITEM}</instancesSet></item></reservationSet>"


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("DescribeAvailabilityZones", PAGE),
        ("DescribeInstances", f"<R>{BAD_TIME}</R>"),
        ("RunInstances", PAGE),
        ("RunInstances", "<html><br>"),
        ("CreateTags", "<html><br>"),
        ("CreateSchedule", "3"),
    ],
)
def test_malformed_answer_is_an_error_with_a_hint_and_leaves_no_instance(world: World, action: str, body: str) -> None:
    world.fake.errors[action] = [AwsError("Malformed", 200, body=body)] * 100
    error = refused(world, ToolError)
    assert str(error).startswith("another server than EC2 answers at http://127.0.0.1:")
    assert "correct HTTPS_PROXY" in error.hint


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
