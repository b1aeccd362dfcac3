"""Whole launches: the real client against a fake Compute Engine, a real fake-gcs-server, and a canned VM."""

import re
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from launcher.backends.gcp.plan import Options, make_plan
from launcher.backends.gcp.planned_vm import VmPlan
from launcher.jobs import liveness, watch
from launcher.jobs import run as launching
from launcher.jobs.launches import LaunchState
from launcher.jobs.run import LaunchOutcome, LeftRunningError, again, run
from launcher.jobs.session import Event, EventKind
from launcher.protocol.records import LaunchPhase, Request, epoch_s, request_object, result_object
from tests.launcher.backends.gcp.canned_cloud import IMAGE, QUICK, SETTINGS, ZONE, Cloud, Clouds
from tests.launcher.backends.gcp.canned_vm import DURATIONS, Fault
from tests.launcher.backends.gcp.fake_compute import Vm
from tests.workload.storage.gcs_server import BUCKET
from workload.contract import bundle
from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    NoCapacityError,
    RunFailedError,
    ToolError,
    UsageError,
)
from workload.contract.spec import resolve
from workload.storage import fetch

pytestmark = pytest.mark.world


def test_a_launch_brings_its_bundles_home_and_leaves_no_vm(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan(given={"repeats": "2"})
        outcome = cloud.run(plan)
        assert (outcome.exit_code, outcome.error, outcome.zone, outcome.tried) == (0, None, ZONE, ())
        assert [found.document["status"] for found in outcome.bundles] == ["completed", "completed"]
        for found in outcome.bundles:
            assert bundle.read(cloud.output / found.document["run_id"]).files == found.files
        assert cloud.fake.instances == []
        assert cloud.fake.disks == []
        # From the insert to when it was seen to be gone, by the cloud's clock.
        assert outcome.billed_from is not None
        assert outcome.billed_to is not None
        began, ended = map(datetime.fromisoformat, (outcome.billed_from, outcome.billed_to))
        seconds = (ended - began).total_seconds()
        price = plan.price(ZONE)
        assert price is not None
        assert outcome.usd == pytest.approx(price.usd(seconds), abs=price.usd(2))
        assert outcome.billed_to >= outcome.phases[LaunchPhase.FINISHED][:19]
        assert cloud.told(EventKind.PHASE) == [phase for phase in LaunchPhase if not phase.startswith("profile")]
        assert list(outcome.phases) == [phase for phase in LaunchPhase if not phase.startswith("profile")]
        request = cloud.bucket.read(request_object(plan.name))
        assert request == plan.request.to_bytes()
        assert cloud.state(plan.name).state is LaunchState.DONE


def test_a_whole_launch_by_phase_and_by_call(clouds: Clouds) -> None:
    """The figures of the note: simulated seconds by phase, requests by kind."""
    with clouds(scale=250, durations=DURATIONS) as cloud:
        began_s = cloud.clock.now()
        outcome = cloud.run(cloud.plan())
        took_s = cloud.clock.now() - began_s
        assert outcome.error is None
        times = {phase: (epoch_s(text) or 0.0) - began_s for phase, text in outcome.phases.items()}
        # What the VM needed, and a few looks more; the upper bounds leave room for a slow machine.
        assert 185 <= times[LaunchPhase.RUN_STARTED] <= 400
        assert 250 <= took_s <= 600
        assert outcome.calls["compute.instances.insert"] == 1
        assert outcome.calls["compute.zoneOperations.wait"] <= 2
        assert 10 <= outcome.calls["compute.instances.get"] <= 48
        assert outcome.calls["compute.instances.get_guest_attributes"] <= 36


def test_a_zone_without_the_machine_is_told_and_another_taken(clouds: Clouds) -> None:
    with clouds() as cloud:
        cloud.fake.stockout(ZONE, ["us-central1-f"])
        outcome = cloud.run(cloud.plan())
        assert outcome.zone == "us-central1-f"
        assert [(each.zone, each.code) for each in outcome.tried] == [
            (ZONE, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
        ]
        assert outcome.bundles[0].document["run_id"].split("-gcp-")[1].startswith("t4-us-central1-f-")


def test_no_capacity_is_told_in_the_bucket_too(clouds: Clouds) -> None:
    with clouds() as cloud:
        cloud.fake.stockout(ZONE)
        plan = cloud.plan(fallback=False)
        with pytest.raises(NoCapacityError) as raised:
            cloud.run(plan)
        assert raised.value.exit_code == ExitCode.NO_CAPACITY
        launch = cloud.state(plan.name)
        assert launch.state is LaunchState.FAILED
        assert launch.why.startswith("no n1-standard")
        assert cloud.result(plan.name).exit_code == ExitCode.NO_CAPACITY
        assert cloud.fake.instances == []


def test_a_failed_run_is_brought_home_with_its_error(clouds: Clouds) -> None:
    with clouds(fault=Fault.FAILS) as cloud:
        plan = cloud.plan()
        outcome = cloud.run(plan)
        assert outcome.exit_code == ExitCode.RUN_FAILED
        assert isinstance(outcome.error, RunFailedError)
        assert outcome.error.report() == f"error: '{plan.name}': the loss is nan\nhint: a lower learning rate"
        assert [found.document["status"] for found in outcome.bundles] == ["failed"]
        assert cloud.fake.instances == []


def test_a_vm_that_does_not_delete_itself_is_deleted_and_that_confirmed(
    clouds: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "SELF_DELETION_S", 30)
    with clouds(fault=Fault.STAYS) as cloud:
        cloud.fake.delete_fails(2)
        outcome = cloud.run(cloud.plan())
        assert (outcome.exit_code, outcome.error, len(outcome.bundles)) == (0, None, 1)
        assert cloud.fake.instances == []
        assert "the VM did not end by itself: deleting it" in cloud.told(EventKind.NOTE)
        assert cloud.fake.count("DELETE .*/instances/") == 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.SILENT, "did not start the run within N min (last: nothing, VM RUNNING)"),
        (Fault.NO_HEARTBEAT, "did not start the run within N min (last: image_pulled)"),
        (Fault.STOPS_BEATING, "has sent no heartbeat for N min"),
        (Fault.STOPS, "stopped and was not started again in N min"),
    ],
)
def test_a_vm_that_hangs_is_removed_and_what_it_said_kept(
    clouds: Clouds, monkeypatch: pytest.MonkeyPatch, fault: Fault, said: str
) -> None:
    # The real limits are tested with a clock that nobody waits for.
    monkeypatch.setattr(liveness, "BOOT_LIMIT_S", 150)
    monkeypatch.setattr(liveness, "SILENCE_LIMIT_S", 120)
    monkeypatch.setattr(watch, "RESTART_S", 300)
    with clouds(fault=fault, scale=400) as cloud:
        plan = cloud.plan()
        outcome = cloud.run(plan)
        assert outcome.exit_code == ExitCode.RUN_FAILED
        assert re.sub(r"\d+ (s|min)\b", "N min", str(outcome.error)) == f"'{plan.name}' {said}"
        assert cloud.fake.instances == []
        saved = cloud.output / f"{plan.name}-serial.txt"
        assert saved.is_file() is (fault is not Fault.SILENT)
        assert cloud.result(plan.name).error == str(outcome.error)
        assert cloud.state(plan.name).state is LaunchState.FAILED


@pytest.mark.slow
def test_a_vm_that_its_host_stopped_saves_what_it_has_at_its_second_start(clouds: Clouds) -> None:
    with clouds(fault=Fault.RESTARTS) as cloud:
        plan = cloud.plan()
        outcome = cloud.run(plan)
        assert str(outcome.error) == f"'{plan.name}': the machine interrupted the run and started again"
        assert [found.document["status"] for found in outcome.bundles] == ["failed"]
        assert f"'{plan.name}' is TERMINATED: the cloud starts it again, to save its results" in cloud.told(
            EventKind.NOTE
        )
        assert len(cloud.fake.all_vms) == 1
        assert cloud.fake.instances == []
        assert cloud.fake.count("DELETE") == 1, "its own"


def test_a_vm_that_vanishes_without_a_result(clouds: Clouds) -> None:
    with clouds(fault=Fault.VANISHES) as cloud:
        plan = cloud.plan()
        outcome = cloud.run(plan)
        assert str(outcome.error) == f"'{plan.name}' was deleted before it had a result"
        assert outcome.bundles == ()
        assert cloud.fake.instances == []


def preempting(cloud: Cloud, times: int) -> threading.Thread:
    """Take the first `times` VMs back once they train."""

    def watch() -> None:
        for _ in range(times):
            assert cloud.vm.started.wait(60)
            cloud.vm.started.clear()
            cloud.fake.preempt(cloud.fake.instances[0].name)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("salvages", [True, False], ids=["in time", "too late"])
def test_a_preempted_launch_is_told_and_its_bundle_kept(clouds: Clouds, salvages: bool) -> None:
    durations = {**QUICK, LaunchPhase.RUN_ENDED: 40.0}
    with clouds(salvages=salvages, durations=durations, grace_s=0.3) as cloud:
        thread = preempting(cloud, 1)
        plan = cloud.plan(spot=True)
        outcome = cloud.run(plan)
        thread.join()
        assert outcome.exit_code == ExitCode.RUN_FAILED
        assert outcome.error is not None
        assert ("preempted" in str(outcome.error)) or ("taken back" in str(outcome.error))
        assert [found.document["status"] for found in outcome.bundles] == (["preempted"] if salvages else [])
        assert cloud.result(plan.name).preempted
        assert cloud.state(plan.name).state is LaunchState.PREEMPTED
        assert cloud.fake.instances == []
        assert outcome.attempts == 1


def test_a_preempted_launch_runs_again_under_a_new_name(clouds: Clouds) -> None:
    durations = {**QUICK, LaunchPhase.RUN_ENDED: 40.0}
    with clouds(durations=durations, grace_s=0.3) as cloud:
        thread = preempting(cloud, 1)
        plan = cloud.plan(spot=True, rerun_preempted=2)
        outcome = cloud.run(plan)
        thread.join()
        assert (outcome.exit_code, outcome.error, outcome.attempts) == (0, None, 2)
        assert [found.document["status"] for found in outcome.bundles] == ["preempted", "completed"]
        assert outcome.name != plan.name
        names = [Request.from_bytes(vm.metadata["rooflaunch-request"].encode()).name for vm in cloud.fake.all_vms]
        assert names == [plan.name, outcome.name]
        second = cloud.bucket.read(request_object(outcome.name))
        assert second is not None
        assert Request.from_bytes(second).attempt == 2
        assert f"preempted; attempt 2 is '{outcome.name}'" in cloud.told(EventKind.NOTE)
        assert cloud.fake.instances == []


def test_another_attempt_is_a_launch_of_its_own() -> None:
    plan = make_plan(
        resolve({}, {}, None),
        Options(gpu="t4"),
        SETTINGS,
        image=IMAGE,
        now=datetime(2026, 11, 21, tzinfo=UTC),
        token="0" * 6,
    )
    other = again(plan, 1795262400.5)
    assert other.request.name.startswith("rooflaunch-t4-20261121-120000-")
    assert other.body(ZONE, request_id="a")["name"] == other.request.name
    assert other.request == replace(
        plan.request, name=other.request.name, launched_at="2026-11-21T12:00:00.500+00:00", attempt=2
    )


def test_detached_it_ends_by_itself_and_status_knows(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        outcome = cloud.run(plan, detach=True)
        assert (outcome.exit_code, outcome.detached, outcome.bundles) == (0, True, ())
        assert cloud.state(plan.name).state in (LaunchState.STARTING, LaunchState.RUNNING)
        assert cloud.fake.all_vms[0].gone.wait(60)
        launch = cloud.state(plan.name)
        assert launch.state is LaunchState.DONE
        assert len(launch.seen.runs) == 1


def run_until(cloud: Cloud, plan: VmPlan, text: str, error: BaseException) -> None:
    """Follow a launch; the first event with this text raises the error."""

    def stop(event: Event) -> None:
        if text in event.text:
            raise error

    run(cloud.session(on_event=stop), plan, output=cloud.output)


class Killed(BaseException):
    """What no code of ours handles: the process is gone."""


@pytest.mark.parametrize("when", list(LaunchPhase)[:6])
def test_a_launcher_that_is_killed_leaves_a_launch_that_ends_well(clouds: Clouds, when: LaunchPhase) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        with pytest.raises(Killed):
            run_until(cloud, plan, when, Killed())
        if when is LaunchPhase.REQUESTED:
            assert cloud.state(plan.name).state is LaunchState.REQUESTED
            assert cloud.fake.all_vms == []
            return
        assert cloud.state(plan.name).state in (
            LaunchState.STARTING,
            LaunchState.RUNNING,
            LaunchState.UPLOADING,
            LaunchState.DONE,
        )
        assert cloud.fake.all_vms[0].gone.wait(60)
        assert cloud.state(plan.name).state is LaunchState.DONE
        assert cloud.fake.instances == []


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), InterruptedRunError("by SIGTERM", hint="")], ids=["1", "2"])
def test_interrupted_while_following_the_vm_goes_on(clouds: Clouds, interrupt: BaseException) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        with pytest.raises(LeftRunningError) as raised:
            run_until(cloud, plan, LaunchPhase.BOOTED, interrupt)
        assert raised.value.exit_code == ExitCode.INTERRUPTED
        assert raised.value.report() == (
            f"error: interrupted; '{plan.name}' keeps running in {ZONE}, uploads its bundles and ends by itself\n"
            f"hint: launch logs {plan.name} -f to follow it, launch down {plan.name} to end it"
        )
        assert cloud.fake.all_vms[0].gone.wait(60)
        assert cloud.state(plan.name).state is LaunchState.DONE


@pytest.mark.parametrize("at", [f"{ZONE}: asking for", "the VM runs"], ids=["before", "after"])
def test_interrupted_while_provisioning_no_vm_is_left(clouds: Clouds, at: str) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        with pytest.raises(InterruptedRunError) as raised:
            run_until(cloud, plan, at, KeyboardInterrupt())
        assert raised.value.report() == f"error: interrupted; no VM of '{plan.name}' is left\nhint: launch again"
        assert cloud.fake.instances == []
        assert cloud.result(plan.name).exit_code == ExitCode.INTERRUPTED


@pytest.mark.parametrize("direct", [False, True], ids=["the list lacks the zone", "the zone does not answer"])
def test_interrupted_in_an_outage_nothing_is_said_to_be_gone(direct: bool, clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        plan = cloud.plan()

        def stop(event: Event) -> None:
            if event.text.startswith(f"{ZONE}: asking for"):
                cloud.fake.add_vm(plan.name, ZONE, project="my-project", labels={"rooflaunch": "launch"})
                cloud.fake.outage(ZONE, direct=direct)
                raise KeyboardInterrupt

        with pytest.raises(InterruptedRunError) as raised:
            run(cloud.session(on_event=stop), plan, output=cloud.output)
        unsure = f"interrupted; could not confirm whether VM '{plan.name}' still exists"
        assert str(raised.value) == (unsure if direct else f"interrupted; no VM of '{plan.name}' is left")
        assert len(cloud.fake.instances) == direct


def test_interrupted_and_not_confirmed_is_told(clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT, scale=500) as cloud:
        plan = cloud.plan()
        cloud.fake.delete_fails(1000)
        with pytest.raises(InterruptedRunError) as raised:
            run_until(cloud, plan, "the VM runs", KeyboardInterrupt())
        assert raised.value.hint == f"launch down {plan.name}"
        assert cloud.bucket.read(result_object(plan.name)) is None


def test_the_clouds_own_limit_ends_it(clouds: Clouds) -> None:
    durations = {**QUICK, LaunchPhase.RUN_ENDED: 1e6}
    with clouds(durations=durations) as cloud:
        plan = cloud.plan(max_run_time_s=60)
        original = cloud.events.append

        def end_at_limit(event: Event) -> None:
            original(event)
            if event.text == f"{ZONE}: the VM runs":
                cloud.clock.sleep(plan.request.limit_s)
                cloud.fake.kill(plan.name)

        outcome = run(cloud.session(on_event=end_at_limit), plan, output=cloud.output)
        assert str(outcome.error) == f"'{plan.name}' reached its time limit of 60 s and left no result"
        assert cloud.result(plan.name).timed_out
        assert cloud.fake.instances == []
        assert outcome.bundles == ()


def test_a_burst_of_refusals_changes_nothing(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        original = cloud.events.append

        def burst(event: Event) -> None:
            original(event)
            if event.text == LaunchPhase.BOOTED:
                cloud.fake.burst(503, 6)

        outcome = run(cloud.session(on_event=burst), plan, output=cloud.output)
        assert outcome.error is None
        assert cloud.fake.instances == []


def test_the_same_name_twice_is_refused_before_there_is_a_vm(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        cloud.bucket.write(request_object(plan.name), b"{}")
        with pytest.raises(ToolError) as raised:
            cloud.run(plan)
        assert str(raised.value) == f"bucket '{BUCKET}' has a launch '{plan.name}' already"
        assert cloud.fake.all_vms == []


def test_a_result_whose_run_did_not_arrive_is_an_error(clouds: Clouds) -> None:
    with clouds(fault=Fault.NO_RUNS) as cloud:
        plan = cloud.plan()
        outcome = cloud.run(plan)
        assert outcome.exit_code == ExitCode.BAD_BUNDLE
        assert str(outcome.error).startswith(f"incomplete in bucket '{BUCKET}': ")
        assert str(outcome.error).endswith(": no files there")
        assert cloud.fake.instances == []


def test_a_folder_that_cannot_be_written_is_told_before_there_is_a_vm(clouds: Clouds) -> None:
    with clouds() as cloud:
        cloud.output.write_text("a file")
        with pytest.raises(UsageError) as raised:
            cloud.run(cloud.plan())
        assert str(raised.value) == f"output folder '{cloud.output}' cannot be written: File exists"
        assert cloud.fake.all_vms == []


def test_bundles_that_cannot_be_fetched_stay_where_they_are(clouds: Clouds, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ToolError("the network is gone", hint="")
    monkeypatch.setattr(
        fetch,
        "fetch",
        lambda _, source, output, **__: fetch.FetchReport(
            source=str(source), output=output, outcomes=(), refused=(), error=lost
        ),
    )
    with clouds() as cloud:
        plan = cloud.plan()
        outcome = cloud.run(plan)
        (run_id,) = cloud.result(plan.name).runs
        assert outcome.error is not None
        assert outcome.error.report() == (
            f"error: the network is gone\nhint: analyze fetch gs://{BUCKET}/runs/{run_id} -o {cloud.output}"
        )
        assert outcome.exit_code == ExitCode.TOOL
        assert cloud.fake.instances == []


def test_many_at_once_share_one_client(clouds: Clouds) -> None:
    """Ten here; the benchmark runs 100."""
    with clouds() as cloud:
        outcomes: list[LaunchOutcome] = []
        plans = [cloud.plan() for _ in range(10)]
        threads = [threading.Thread(target=lambda plan=plan: outcomes.append(cloud.run(plan))) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(each.name for each in outcomes) == sorted(plan.name for plan in plans)
        assert [each.error for each in outcomes] == [None] * 10
        assert cloud.fake.instances == []
        assert len(list(cloud.output.iterdir())) == 10
        assert {each.calls["compute.instances.insert"] for each in outcomes} == {1}


def test_a_vm_of_its_own_has_no_secret_in_what_it_leaves(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        cloud.run(plan)
        vm: Vm = cloud.fake.all_vms[0]
        for name in (request_object(plan.name), result_object(plan.name)):
            assert b"secret" not in (cloud.bucket.read(name) or b"")
        assert "secret" not in str(vm.metadata)
