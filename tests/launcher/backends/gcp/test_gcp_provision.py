"""From a plan to a running VM: the real client against the fake Compute Engine, on a clock of the test's own."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from launcher.backends.gcp import answers
from launcher.backends.gcp import compute as border
from launcher.backends.gcp import machines as provisioning
from launcher.backends.gcp.answers import OperationFault
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.machines import Provisioning, scope_of
from launcher.backends.gcp.options import Settings
from launcher.backends.gcp.plan import VmPlan
from launcher.backends.zone_by_zone import Scope, widest
from launcher.protocol.backend import Submitted, Tried
from tests.launcher.backends.gcp import canned_cloud
from tests.launcher.backends.gcp.canned_cloud import plan_of
from tests.launcher.backends.gcp.fake_compute import Clock, FakeCompute
from tests.launcher.backends.told import errors_of
from workload.contract.errors import InterruptedRunError, NoCapacityError, ToolError
from workload.storage.store import UnreachableError

pytestmark = pytest.mark.world

NAME = "rooflaunch-t4-20261121-142530-c0ffee"
SETTINGS = replace(canned_cloud.SETTINGS, project="test-project")
A, B, C, F = (f"us-central1-{letter}" for letter in "abcf")
EAST = "us-east1-c"
Go = Callable[..., Submitted]


def plan_for(*zones: str, settings: Settings = SETTINGS, **options: Any) -> VmPlan:
    return plan_of(zones, settings=settings, **options)


def provision(compute: Compute, clock: Clock, plan: VmPlan, budget_s: float, told: list[str]) -> Submitted:
    return Provisioning(
        plan=plan, compute=compute, budget_s=budget_s, now=clock.now, sleep=clock.sleep, on_event=told.append
    ).run()


@pytest.fixture
def go(compute: Compute, clock: Clock) -> Go:
    """Provision a plan."""

    def launch(plan: VmPlan, *, budget_s: float = 600.0, events: list[str] | None = None) -> Submitted:
        return provision(compute, clock, plan, budget_s, [] if events is None else events)

    return launch


def inserts(fake: FakeCompute) -> list[str]:
    """The zones that were asked for a VM, in order."""
    found = (re.fullmatch(r"POST .*/zones/([^/]+)/instances", each) for each in fake.calls)
    return [each[1] for each in found if each]


@pytest.mark.parametrize("spot", [False, True])
@pytest.mark.parametrize("gpu", ["t4", "l4", "v100", "a100", "a100-80gb", "h100", "h200"])
def test_every_gpu_is_accepted(gpu: str, spot: bool, fake: FakeCompute, go: Go) -> None:
    machine = "a3-highgpu-8g" if gpu == "h100" and not spot else None
    plan = plan_for(gpu=gpu, spot=spot, machine_type=machine)
    got = go(plan)
    assert (got.machines[0].zone, got.machines[0].name, got.machines[0].status) == (plan.zones[0], plan.name, "RUNNING")
    vm = fake.vm(got.machines[0].name)
    assert (vm.spot, vm.machine_type) == (spot, plan.machine.name)
    assert len(fake.calls) == 5, "quotas of project and region, insert, wait, get"
    assert got.machines[0].deadline_s == fake.vm(plan.name).deadline_s
    # What the client sends is what the plan says, but for its own order of keys.
    body = fake.bodies[0]
    assert body == plan.body(plan.zones[0], request_id=body["labels"]["rooflaunch-request"])


def test_named_then_available_then_the_region_then_others(fake: FakeCompute, go: Go) -> None:
    fake.stockout(A, ["europe-west4-c", F])
    for zone in (C, "europe-west4-c", F, B, "europe-west4-a", "europe-west4-b"):
        fake.stockout(zone)
    plan = plan_for(A, C)
    got = go(plan)
    # The regions that were tried are near from then on: their other zones come before a third region.
    tried = [A, C, "europe-west4-c", F, B, "europe-west4-a", "europe-west4-b"]
    assert inserts(fake) == [*tried, next(zone for zone in plan.zones if zone not in tried)]
    assert [(each.zone, each.name) for each in fake.instances] == [(got.machines[0].zone, NAME)]
    assert [(each.zone, each.code) for each in got.tried][:2] == [
        (A, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"),
        (C, "ZONE_RESOURCE_POOL_EXHAUSTED"),
    ]


@pytest.mark.parametrize(
    ("options", "settings", "is_tried"),
    [
        pytest.param({}, SETTINGS, True, id="only the cloud knows it"),
        pytest.param({"max_cost_usd": 2.0}, SETTINGS, False, id="its price is unknown"),
        pytest.param({"fallback": False}, SETTINGS, False, id="no fallback"),
        pytest.param({}, replace(SETTINGS, subnetwork="mine"), False, id="a subnetwork has a region"),
    ],
)
def test_suggested_zone_beyond_the_plan_is_tried_if_the_options_allow(
    options: dict[str, Any], settings: Settings, is_tried: bool, fake: FakeCompute, go: Go
) -> None:
    plan = plan_for(A, gpu="v100", settings=settings, **options)
    for zone in plan.zones:
        fake.stockout(zone, ["us-south1-a"])
    if is_tried:
        assert go(plan).machines[0].zone == "us-south1-a"
    else:
        with pytest.raises(NoCapacityError):
            go(plan)
        assert sorted(inserts(fake)) == sorted(plan.zones)


# Quotas.


STANDARD, PREEMPTIBLE = "NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS"
NONE_LEFT, ONE_LEFT = (4, 4), (4, 3)


@pytest.mark.parametrize(
    ("standard", "preemptible", "refused"),
    [
        (NONE_LEFT, (0, 0), "PREEMPTIBLE_NVIDIA_T4_GPUS is 0, 0 in use; NVIDIA_T4_GPUS is 4, 4 in use, 1 wanted"),
        ((0, 0), NONE_LEFT, "PREEMPTIBLE_NVIDIA_T4_GPUS is 4, 4 in use; NVIDIA_T4_GPUS is 0, 0 in use, 1 wanted"),
        (NONE_LEFT, ONE_LEFT, ""),
        (ONE_LEFT, NONE_LEFT, ""),
        (ONE_LEFT, (0, 0), ""),
    ],
    ids=["neither", "neither, as in a new project", "preemptible", "standard", "standard alone is granted"],
)
def test_vm_takes_whichever_quota_is_left(
    standard: tuple[int, int], preemptible: tuple[int, int], refused: str, fake: FakeCompute, go: Go
) -> None:
    fake.set_quota("us-central1", STANDARD, standard[0], usage=standard[1])
    fake.set_quota("us-central1", PREEMPTIBLE, preemptible[0], usage=preemptible[1])
    got = go(plan_for(A, B, EAST))
    assert (inserts(fake), got.machines[0].zone) == (([EAST], EAST) if refused else ([A], A))
    tried = Tried(zone="us-central1", code="QUOTA_EXCEEDED", message=refused, seconds=0.0)
    assert got.tried == ((tried,) if refused else ())
    # Each region once, though two of its zones were named.
    assert fake.count("GET .*/regions/us-central1$") == 1


def test_a_quota_that_an_insert_finds_out_is_not_tried_again_in_its_region(fake: FakeCompute, go: Go) -> None:
    fake.hide_quota("us-central1", STANDARD)
    fake.hide_quota("us-central1", PREEMPTIBLE)
    got = go(plan_for(A, B, EAST))
    assert (inserts(fake), got.tried[0].code) == ([A, EAST], "QUOTA_EXCEEDED")


@pytest.mark.parametrize("unknown", [STANDARD, PREEMPTIBLE])
def test_an_unknown_quota_is_left_to_the_insert(unknown: str, fake: FakeCompute, go: Go) -> None:
    fake.set_quota("us-central1", unknown, None)
    fake.set_quota("us-central1", STANDARD if unknown == PREEMPTIBLE else PREEMPTIBLE, 0)
    assert go(plan_for(A)).machines[0].zone == A


# Faults of one insert.


def operation_error(code: str, message: str) -> Callable[[FakeCompute], None]:
    return lambda fake: fake.fail(A, {"code": code, "message": message})


def answer(status: int, message: str, reason: str) -> Callable[[FakeCompute], None]:
    return lambda fake: fake.refuse(status, message, reason=reason, match="POST .*/instances$")


MISSING = {"code": "RESOURCE_NOT_FOUND", "message": f"The resource 'projects/p/zones/{A}' was not found"}
NO_GPU = f"The resource 'projects/test-project/zones/{A}/acceleratorTypes/nvidia-tesla-t4' was not found"
STOCKOUT = f"The zone 'projects/test-project/zones/{A}' does not have enough resources available"


@pytest.mark.parametrize(
    ("fail", "code"),
    [
        (operation_error("INTERNAL_ERROR", "Internal error. Please try again."), "INTERNAL_ERROR"),
        (answer(503, STOCKOUT, "backendError"), "ZONE_RESOURCE_POOL_EXHAUSTED"),
        (answer(404, NO_GPU, "notFound"), "NOT_IN_ZONE"),
        (lambda fake: fake.fail(A, MISSING, lives=True), "RESOURCE_NOT_FOUND"),
        (lambda fake: fake.fail(A, is_taken=True, is_once=True), "PREEMPTED"),
        (lambda fake: fake.endless_operation(A, lives=False), "TOOK_TOO_LONG"),
    ],
    ids=[
        "internal error",
        "stockout by HTTP",
        "no such GPU",
        "error, but the VM lives",
        "preempted at boot",
        "endless",
    ],
)
def test_a_zone_that_fails_is_cleared_and_the_next_one_taken(
    fail: Callable[[FakeCompute], None], code: str, fake: FakeCompute, go: Go
) -> None:
    fail(fake)
    got = go(plan_for(A, B, spot=True))
    assert (got.machines[0].zone, got.tried[0].code, inserts(fake)) == (B, code, [A, B])
    assert [(each.zone, each.name) for each in fake.instances] == [(B, NAME)]


def test_a_conflict_with_our_own_insert_is_success(fake: FakeCompute, go: Go) -> None:
    fake.fail(A, is_lost=True, is_once=True)
    got = go(plan_for(A))
    assert (got.machines[0].zone, inserts(fake), got.tried) == (A, [A, A], ())
    assert len(fake.all_vms) == 1


def test_an_endless_operation_of_a_running_vm(fake: FakeCompute, clock: Clock, go: Go) -> None:
    fake.endless_operation(A)
    got = go(plan_for(A))
    assert (got.machines[0].zone, got.machines[0].status) == (A, "RUNNING")
    assert clock.slept_s == 10.0


@pytest.mark.parametrize("status", [429, 503])
def test_a_zone_that_stays_busy_is_exhausted(status: int, fake: FakeCompute, clock: Clock, go: Go) -> None:
    fake.burst(status, 1000, f"POST .*{A}/instances$")
    got = go(plan_for(A, B))
    assert (got.machines[0].zone, got.tried[0].code) == (B, f"HTTP_{status}")
    # 30 s of asking again, and 9 s to see that none of these inserts was done after all.
    assert clock.slept_s <= 40


def test_a_cloud_that_is_gone_after_the_insert(fake: FakeCompute, go: Go) -> None:
    fake.endless_operation(A)
    fake.burst(500, 1000, "/wait$")
    fake.burst(500, 3, "DELETE")
    with pytest.raises(UnreachableError):
        go(plan_for(A, B))
    assert (inserts(fake), fake.instances) == ([A], [])


# Refusals.

CONSTRAINT = "Constraint constraints/compute.requireShieldedVm violated for project projects/p."
ACCOUNT = f"The resource '{SETTINGS.service_account}' of type 'serviceAccount' was not found."
NO_SUBNETWORK = "The resource 'projects/p/regions/us-central1/subnetworks/gpu' was not found"


def full(fake: FakeCompute) -> None:
    fake.stockout(A)
    fake.fail(B, {"code": "VM_MIN_COUNT_NOT_REACHED", "message": "0 of 1"})


def slow(fake: FakeCompute) -> None:
    for zone in (A, B, C):
        fake.endless_operation(zone, lives=False)


def delete_at_once(fake: FakeCompute) -> None:
    """Somebody deletes the VM before it is looked at."""
    fake.fail(A, is_taken=True)
    fake.preempt = fake.kill  # type: ignore[method-assign]


REFUSED: dict[str, tuple[Callable[[FakeCompute], object], VmPlan]] = {
    "no zone has room": (full, plan_for(A, B, fallback=False, spot=True)),
    "out of time": (slow, plan_for(A, B, C, fallback=False)),
    "no region has the subnetwork": (
        answer(404, NO_SUBNETWORK, "notFound"),
        plan_for(A, fallback=False, settings=replace(SETTINGS, subnetwork="gpu")),
    ),
    "new project": (lambda fake: fake.set_quota("global", "GPUS_ALL_REGIONS", 0), plan_for(A)),
    "unknown code": (operation_error("SURPRISE", "new"), plan_for(A, B)),
    "no service account": (operation_error("RESOURCE_NOT_FOUND", ACCOUNT), plan_for(A, B)),
    "policy": (operation_error("CONDITION_NOT_MET", CONSTRAINT), plan_for(A, B)),
    "body": (answer(400, "Invalid value for field 'x'", "invalid"), plan_for(A, B)),
    "permission": (answer(403, "Required permission", "forbidden"), plan_for(A, B)),
    "deleted at once": (delete_at_once, plan_for(A, B)),
    "name is taken by another": (lambda fake: fake.add_vm(NAME, A), plan_for(A)),
}


def test_refusals_leave_nothing_of_ours_and_are_told_with_a_cure(
    monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    asked: dict[str, str] = {}

    def launch(name: str) -> None:
        prepare, plan = REFUSED[name]
        with FakeCompute() as fake:
            monkeypatch.setenv(answers.ENDPOINT_VARIABLE, fake.url)
            clock = Clock()
            compute = border.connect("test-project", sleep=clock.sleep, monotonic=clock.now)
            prepare(fake)
            strangers = fake.instances
            try:
                provision(compute, clock, plan, 200.0, [])
            finally:
                assert fake.instances == strangers
                asked[name] = f"asked: {' '.join(inserts(fake))}; deleted: {fake.count('DELETE')}\n"

    found = [errors_of(launch, {name: {"name": name}}) + asked[name] for name in REFUSED]
    golden("provision-refusals.txt", "\n".join(found))


# Interrupted.


def test_interrupt_while_the_insert_goes_on_leaves_no_vm(fake: FakeCompute, clock: Clock, go: Go) -> None:
    def interrupt(_: float) -> None:
        clock.on_sleep = lambda _: None
        raise InterruptedRunError("SIGTERM", hint="")

    fake.endless_operation(A)
    clock.on_sleep = interrupt
    events: list[str] = []
    with pytest.raises(InterruptedRunError):
        go(plan_for(A), events=events)
    assert (fake.instances, inserts(fake)) == ([], [A])
    assert events[-1] == f"{A}: checking that no VM is left"


def test_vms_that_arrive_after_an_interrupted_insert_are_removed(
    fake: FakeCompute, clock: Clock, monkeypatch: pytest.MonkeyPatch, go: Go
) -> None:
    def insert(*_: object) -> Any:
        raise KeyboardInterrupt

    # Each time that one is removed, the look-out for another starts anew.
    arrivals_s = [clock.s + 5, clock.s + 14]

    def arrive(now_s: float) -> None:
        if arrivals_s and now_s >= arrivals_s[0]:
            arrivals_s.pop(0)
            fake.add_vm(NAME, A)

    monkeypatch.setattr(Compute, "insert", insert)
    clock.on_sleep = arrive
    with pytest.raises(KeyboardInterrupt):
        go(plan_for(A))
    assert ([each.zone for each in fake.all_vms], fake.instances) == ([A, A], [])


def test_an_insert_that_is_done_after_it_was_given_up(fake: FakeCompute, clock: Clock, go: Go) -> None:
    fake.burst(503, 1000, f"POST .*{A}/instances$")

    def arrive(_: float) -> None:
        if fake.count("DELETE") == 2 and not fake.all_vms:
            fake.add_vm(NAME, A)

    clock.on_sleep = arrive
    assert go(plan_for(A, B)).machines[0].zone == B
    assert ([each.zone for each in fake.all_vms], [each.zone for each in fake.instances]) == ([A, B], [B])


def test_an_insert_whose_answer_never_comes(fake: FakeCompute, clock: Clock, go: Go) -> None:
    fake.fail(A, is_lost=True, is_once=True)
    # The first was done, and answered with 503; the service is down from then on.
    clock.on_sleep = lambda _: fake.burst(500, 1, "POST .*/instances$")
    with pytest.raises(UnreachableError):
        go(plan_for(A, B))
    assert (len(fake.all_vms), fake.instances) == (1, [])


def test_a_vm_that_cannot_be_removed_ends_the_search(
    fake: FakeCompute, clock: Clock, monkeypatch: pytest.MonkeyPatch, go: Go
) -> None:
    monkeypatch.setattr(provisioning, "PAUSE_S", 30.0)
    fake.fail(A, MISSING, lives=True)
    fake.delete_fails(1000)
    with pytest.raises(ToolError) as caught:
        go(plan_for(A, B))
    assert caught.value.report() == (
        f"error: VM '{NAME}' in {A} is not confirmed to be gone (the cloud deletes it at its time limit)\n"
        f"hint: launch down {NAME}"
    )
    # It was tried for as long as a deletion may take, and not twice.
    assert 180 <= clock.slept_s < 240
    # Two VMs of one launch would write over each other's results.
    assert inserts(fake) == [A]


# The code table.

REGIONAL, GLOBAL = {"region": "us-central1"}, {"global": "global"}


@pytest.mark.parametrize(
    ("code", "message", "dimensions", "scope"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_OF_TOMORROW", "", {}, Scope.ZONE),
        ("RESOURCE_NOT_FOUND", "The resource 'projects/p/zones/z/instances/n' was not found", {}, Scope.ZONE),
        ("RESOURCE_NOT_FOUND", "projects/p/regions/r/subnetworks/s was not found", {}, Scope.REGION),
        ("RESOURCE_NOT_FOUND", "projects/p/global/networks/n was not found", {}, Scope.FATAL),
        ("QUOTA_EXCEEDED", "", REGIONAL, Scope.REGION),
        ("QUOTA_EXCEEDED", "", GLOBAL, Scope.PROJECT),
        ("QUOTA_EXCEEDED", "Quota 'X' exceeded. Limit: 0.0 in region us-central1.", {}, Scope.REGION),
        ("QUOTA_EXCEEDED", "Quota 'X' exceeded. Limit: 0.0 globally.", {}, Scope.PROJECT),
        ("", "", {}, Scope.FATAL),
    ],
)
def test_how_far_a_code_reaches(code: str, message: str, dimensions: dict[str, str], scope: Scope) -> None:
    assert scope_of(OperationFault(code=code, message=message, quota_dimensions=dimensions)) is scope


def test_the_widest_of_several_errors_counts() -> None:
    stockout = OperationFault(code="ZONE_RESOURCE_POOL_EXHAUSTED", message="")
    quota = OperationFault(code="QUOTA_EXCEEDED", message="", quota_dimensions=REGIONAL)
    assert widest(map(scope_of, [stockout, quota])) is Scope.REGION
    assert widest(map(scope_of, [quota, OperationFault(code="NEW", message="")])) is Scope.FATAL
