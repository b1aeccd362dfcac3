"""Whole launches: the real client against a fake Compute Engine, a real fake-gcs-server, and a canned VM."""

import threading
from datetime import datetime
from pathlib import Path

import pytest

from launcher.jobs import run as launching
from launcher.jobs.launches import LaunchState
from launcher.jobs.run import run
from launcher.jobs.session import Event, EventKind
from launcher.protocol.records import LaunchPhase, Request, request_object, result_object
from tests.launcher.backends.gcp.canned_cloud import QUICK, ZONE, Cloud, Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.workload.storage.gcs_server import BUCKET
from workload.contract import bundle
from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    NoCapacityError,
    ToolError,
)
from workload.contract.record import Status
from workload.storage import fetch
from workload.storage.fetch import FetchReport

pytestmark = pytest.mark.world


def test_a_launch_brings_its_bundles_home_and_leaves_no_vm(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan(given={"repeats": "2"})
        outcome = cloud.run(plan)
        assert (outcome.exit_code, outcome.error, outcome.zone, outcome.tried) == (0, None, ZONE, ())
        assert [found.document["status"] for found in outcome.bundles] == ["completed", "completed"]
        for found in outcome.bundles:
            assert bundle.read(cloud.output / found.document["run_id"]).files == found.files
        assert (cloud.fake.instances, cloud.fake.disks) == ([], [])
        assert cloud.fake.count("DELETE") == 1, "its own"
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
        assert list(outcome.phases) == cloud.told(EventKind.PHASE)
        assert cloud.bucket.read(request_object(plan.name)) == plan.request.to_bytes()
        assert cloud.state(plan.name).state is LaunchState.DONE


def test_no_capacity_is_told_in_the_bucket_too(clouds: Clouds) -> None:
    with clouds() as cloud:
        cloud.fake.stockout(ZONE)
        plan = cloud.plan(fallback=False)
        with pytest.raises(NoCapacityError) as raised:
            cloud.run(plan)
        launch = cloud.state(plan.name)
        assert (launch.state, launch.why) == (LaunchState.FAILED, str(raised.value))
        assert cloud.result(plan.name).exit_code == ExitCode.NO_CAPACITY
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


def preempting(cloud: Cloud) -> threading.Thread:
    """Take the first VM back once it trains."""

    def watch() -> None:
        assert cloud.vm.started.wait(60)
        cloud.fake.preempt(cloud.fake.instances[0].name)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_a_preempted_launch_runs_again_under_a_new_name(clouds: Clouds) -> None:
    durations = {**QUICK, LaunchPhase.RUN_ENDED: 40.0}
    with clouds(durations=durations, grace_s=0.3) as cloud:
        thread = preempting(cloud)
        plan = cloud.plan(spot=True, rerun_preempted=2)
        outcome = cloud.run(plan)
        thread.join()
        assert (outcome.exit_code, outcome.error, outcome.attempts) == (0, None, 2)
        assert [found.document["status"] for found in outcome.bundles] == ["preempted", "completed"]
        assert outcome.name != plan.name
        names = [Request.from_bytes(vm.metadata["rooflaunch-request"].encode()).name for vm in cloud.fake.all_vms]
        assert names == [plan.name, outcome.name]
        assert Request.from_bytes(cloud.bucket.read(request_object(outcome.name)) or b"").attempt == 2
        assert f"preempted; attempt 2 is '{outcome.name}'" in cloud.told(EventKind.NOTE)
        assert cloud.fake.instances == []


def test_interrupted_launch_leaves_no_vm_and_says_so(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan()

        def stop(event: Event) -> None:
            if "the VM runs" in event.text:
                raise KeyboardInterrupt

        with pytest.raises(InterruptedRunError) as raised:
            run(cloud.session(on_event=stop), plan, output=cloud.output)
        assert raised.value.report() == f"error: interrupted; no VM of '{plan.name}' is left\nhint: launch again"
        assert cloud.fake.instances == []
        assert cloud.result(plan.name).exit_code == ExitCode.INTERRUPTED


def test_interrupted_in_an_outage_nothing_is_said_to_be_gone(clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        plan = cloud.plan()

        def stop(event: Event) -> None:
            if event.text == f"{ZONE}: the VM runs":
                cloud.fake.outage(ZONE)
                raise KeyboardInterrupt

        with pytest.raises(InterruptedRunError) as raised:
            run(cloud.session(on_event=stop), plan, output=cloud.output)
        assert raised.value.report() == (
            f"error: interrupted; could not confirm whether VM '{plan.name}' still exists\n"
            f"hint: launch down {plan.name}"
        )
        assert cloud.bucket.read(result_object(plan.name)) is None
        assert len(cloud.fake.instances) == 1


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


def test_runs_that_are_not_completed_decide_the_exit_code(clouds: Clouds) -> None:
    with clouds() as cloud:
        cloud.vm.status_of = lambda _: Status.OUT_OF_MEMORY
        assert cloud.run(cloud.plan()).exit_code == ExitCode.OUT_OF_MEMORY


def test_bundles_that_cannot_be_fetched_stay_where_they_are(clouds: Clouds, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ToolError("the network is gone", hint="")

    def nothing(_: object, source: object, output: Path, **__: object) -> FetchReport:
        return FetchReport(source=str(source), output=output, outcomes=(), refused=(), error=lost)

    monkeypatch.setattr(fetch, "fetch", nothing)
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
