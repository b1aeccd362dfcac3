"""Jobs that wait for ever, fail, are taken back or deleted, and a thousand tasks: the real client asks a fake."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.backends.batch.backend import BatchMachines, CloudBatch
from launcher.backends.batch.plan import BatchPlan
from launcher.backends.batch.service import ENDPOINT_VARIABLE, BatchService
from launcher.backends.gcp.backend import ComputeEngine
from launcher.protocol.backend import Condition, Machine
from tests.launcher.backends.batch.fake_batch import PROJECT, REGION, FakeBatch
from tests.launcher.backends.batch.test_batch_contract import plan_of
from tests.launcher.backends.contract import silent
from tests.launcher.backends.gcp.canned_cloud import IMAGE
from tests.launcher.backends.gcp.fake_compute import Clock
from tests.launcher.backends.told import errors_of
from workload.contract.errors import NoCapacityError, ToolError, UsageError
from workload.storage.address import open_store
from workload.storage.store import Store, UnreachableError

pytestmark = [pytest.mark.world, pytest.mark.slow]


class Region:
    """One region with its fake service, and machines that ask it."""

    def __init__(self, fake: FakeBatch, clock: Clock, store: Store) -> None:
        self.fake, self.clock = fake, clock
        self.service = BatchService(PROJECT, REGION, sleep=clock.sleep, monotonic=clock.now)
        self.machines = BatchMachines(self.service, lambda: store, sleep=clock.sleep)

    def submit(self, *plans: BatchPlan) -> list[Machine]:
        return list(self.machines.submit_together(plans, silent).machines)

    def look(self, name: str) -> Machine:
        [machine] = self.machines.look({name: ()})
        return machine


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Region]:
    clock = Clock()
    with FakeBatch(clock=clock.now) as fake:
        monkeypatch.setenv(ENDPOINT_VARIABLE, fake.url)
        yield Region(fake, clock, open_store(str(tmp_path)))


@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm64"])
def test_an_image_for_another_processor_is_refused_before_a_job_is_made(region: Region, platform: str) -> None:
    engine: Any = SimpleNamespace(registry_platforms=lambda _: {platform})
    backend = CloudBatch(vm=ComputeEngine(engine=lambda: engine))
    draft = plan_of("000009", image=IMAGE)
    if platform == "linux/amd64":
        assert backend.prepare(draft, region.machines).notes == draft.notes
        return
    with pytest.raises(UsageError, match="is an image for linux/arm64; the VMs are linux/amd64"):
        backend.prepare(draft, region.machines)
    assert not region.fake.jobs


def test_a_job_that_waits_for_ever_is_cancelled_with_the_reason(region: Region) -> None:
    region.fake.stockout = "Quota checking process decided to delay scheduling for the job: inadequate quotas [T4]"
    lines = list[str]()
    began_s = region.clock.now()
    with pytest.raises(NoCapacityError) as refused:
        region.machines.submit(plan_of("00000a", queue_time_s=900), lines.append)
    assert str(refused.value) == (
        "no VM for 'rooflaunch-t4-20270115-080000-00000a' after 15 min in the queue of Cloud Batch in us-central1-a, "
        "us-central1-b: Quota checking process decided to delay scheduling for the job: inadequate quotas [T4]"
    )
    assert refused.value.hint.startswith("a longer --queue-time, another --region")
    assert 900 <= region.clock.now() - began_s < 1000
    assert [job.state for job in region.fake.jobs.values()] == ["CANCELLED"]
    assert lines[0] == "asking Cloud Batch in us-central1 for 1 task"
    assert lines[1].startswith("in the queue for 0 s: Quota checking")
    assert len(lines) == 2, "said once"


def test_task_is_taken_back_as_often_as_asked_for(region: Region) -> None:
    [machine] = region.submit(plan_of("00000b", spot=True, rerun_preempted=2))
    for attempt in (1, 2):
        region.fake.preempt(machine.name)
        assert region.look(machine.name).condition is Condition.RUNNING, "Batch starts it again by itself"
        assert region.fake.task(machine.name).attempt == attempt
    region.fake.preempt(machine.name)
    seen = region.look(machine.name)
    assert (seen.condition, seen.preempted) == (Condition.GONE, True)
    assert "exit code 50001" in seen.why
    [other] = region.submit(plan_of("00000c", spot=True, rerun_preempted=1))
    region.fake.end(other.name)
    seen = region.look(other.name)
    assert (seen.condition, seen.preempted, seen.status) == (Condition.GONE, False, "SUCCEEDED")


def test_one_task_of_several_fails(region: Region) -> None:
    plans = [plan_of(f"{number:06x}") for number in (1, 2, 3)]
    names = [machine.name for machine in region.submit(*plans)]
    region.fake.end(names[1], code=6)
    listing = {seen.name: seen for seen in region.machines.look(dict.fromkeys(names, ()))}
    assert [listing[name].condition for name in names] == [Condition.RUNNING, Condition.GONE, Condition.RUNNING]
    assert "exit code 6" in listing[names[1]].why
    assert {seen.name for seen in region.machines.look()} == {names[0], names[2]}


def test_batch_ends_no_task_alone(region: Region) -> None:
    names = [machine.name for machine in region.submit(plan_of("000001"), plan_of("000002"))]
    [removed] = region.machines.stop([region.look(names[0])])
    assert (removed.gone, removed.reason) == (
        False,
        f"the task shares job '{names[0]}' with 1 task that would end too",
    )
    assert region.look(names[1]).condition is Condition.RUNNING
    assert [removed.gone for removed in region.machines.stop([region.look(name) for name in names])] == [True, True]
    assert region.fake.running() == 0


@pytest.mark.filterwarnings("ignore:Unrecognized State enum value")
@pytest.mark.parametrize(
    ("job", "task", "status", "condition"),
    [
        (99, "PENDING", "PENDING", Condition.STARTING),
        ("RUNNING", 99, "STATE_99", Condition.STARTING),
        ("RUNNING", "UNEXECUTED", "UNEXECUTED", Condition.GONE),
    ],
)
def test_states_that_the_client_does_not_know(
    region: Region, monkeypatch: pytest.MonkeyPatch, job: Any, task: Any, status: str, condition: Condition
) -> None:
    """A machine that is starting, but not queued, is given up after the time for a boot."""
    [machine] = region.submit(plan_of("00000d"))
    monkeypatch.setattr(region.fake, "advance", lambda: None)
    region.fake.jobs[machine.name].state, region.fake.task(machine.name).state = job, task
    seen = region.look(machine.name)
    assert (seen.status, seen.condition, seen.queued) == (status, condition, False)


def test_a_job_that_nobody_waits_for_is_left_over(region: Region) -> None:
    region.fake.stockout = "no T4 is free"
    plan = plan_of("00000e", queue_time_s=600)
    region.service.create(plan.request.name, plan.body([plan]), "0" * 8 + "-0000-4000-8000-000000000000")
    assert list(region.machines.leftovers()) == []
    region.clock.sleep(3600)
    [left] = region.machines.leftovers()
    assert (left.name, left.why) == (
        plan.request.name,
        "the job has waited in the queue for 60 min, and no launcher waits for it",
    )
    assert [removed.gone for removed in region.machines.stop([left])] == [True]
    assert list(region.machines.leftovers()) == []


def test_a_thousand_tasks_are_one_job_and_a_few_questions(region: Region) -> None:
    plans = [plan_of(f"{number:06x}") for number in range(1000)]
    names = [machine.name for machine in region.submit(*plans)]
    assert len(names) == 1000
    assert len(region.fake.jobs) == 1
    for name in names[:50]:
        region.fake.preempt(name)
    before = region.fake.asked.total()
    listing = {seen.name: seen for seen in region.machines.look(dict.fromkeys(names, ()))}
    assert sum(seen.preempted for seen in listing.values()) == 50
    assert sum(seen.condition is Condition.RUNNING for seen in listing.values()) == 950
    assert region.fake.asked.total() - before == 2, "one list of jobs, one page of tasks"


REFUSALS: dict[str, tuple[int, str, str]] = {
    "disabled": (403, "SERVICE_DISABLED", "Batch API has not been used in project my-project before"),
    "denied": (403, "IAM_PERMISSION_DENIED", "Permission 'batch.jobs.list' denied"),
    "region": (404, "NOT_FOUND", "Location mars-north1 is not found"),
    "refused": (400, "INVALID", "machine type n1-foo is not valid"),
    "busy": (503, "UNAVAILABLE", "The service is currently unavailable."),
}


def test_refusals_are_told_with_a_cure(region: Region, golden: Callable[[str, str], None]) -> None:
    def ask(answer: tuple[int, str, str]) -> object:
        region.fake.refuses = answer
        return region.service.jobs()

    text = errors_of(ask, {name: {"answer": answer} for name, answer in REFUSALS.items()})
    golden("refusals.txt", text.replace(region.fake.url, "http://HOST"))


@pytest.mark.parametrize("is_made", [True, False])
def test_job_is_asked_for_by_name_after_all_answers_to_its_creation_were_lost(
    is_made: bool, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, busy = region.fake.answer, {"error": {"code": 503, "message": "unavailable"}}

    def lost(method: str, path: str, query: Any, content: bytes) -> tuple[int, Any]:
        if method == "POST" and path.endswith("/jobs"):
            if is_made and region.fake.asked["create"] < 2:
                answer(method, path, query, content)
            return 503, busy
        # The job appears at the second look only.
        is_hidden = method == "GET" and not (region.fake.asked.update(["look"]) or region.fake.asked["look"] > 1)
        return (
            (404, {"error": {"code": 404, "message": f"Job {path} not found"}})
            if is_hidden
            else answer(method, path, query, content)
        )

    monkeypatch.setattr(region.fake, "answer", lost)
    plan = plan_of("00000a")
    if is_made:
        assert region.submit(plan)[0].condition is Condition.RUNNING
    else:
        with pytest.raises(UnreachableError):
            region.submit(plan)
    assert region.fake.running() == int(is_made)


def test_unconfirmed_end_of_a_job_is_told(region: Region) -> None:
    lines = list[str]()
    plan = plan_of("00000a")
    region.fake.refuses = (503, "UNAVAILABLE", "The service is currently unavailable.")
    with pytest.raises(UnreachableError):
        region.machines.submit(plan, lines.append)
    name = plan.request.name
    assert lines[1:] == [f"could not confirm that job '{name}' is cancelled: launch down {name}"]


def test_closed_port_and_missing_package_are_told(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> object:
        return BatchService(PROJECT, REGION, sleep=region.clock.sleep, monotonic=region.clock.now).jobs()

    monkeypatch.setenv(ENDPOINT_VARIABLE, "http://127.0.0.1:9")
    with pytest.raises(UnreachableError) as refused:
        ask()
    assert str(refused.value) == "Cloud Batch cannot be reached at http://127.0.0.1:9: Connection refused"
    monkeypatch.setitem(sys.modules, "google.cloud.batch_v1", None)
    monkeypatch.delattr("google.cloud.batch_v1", raising=False)
    with pytest.raises(ToolError) as missing:
        ask()
    assert missing.value.report() == (
        "error: the package google-cloud-batch is missing\nhint: pip install 'rooflaunch[batch]'"
    )
