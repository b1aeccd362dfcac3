"""A rented place: a machine for each block, all of them looked at together, whatever becomes of them."""

import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import api
from analysis.report import answer
from analysis.report.evidence import gather
from launcher.backends.aws.backend import ElasticCompute
from launcher.backends.aws.options import Options, Where
from launcher.backends.aws.service import Ec2
from launcher.protocol.records import LaunchPhase, Request, request_object
from launcher.sweep.drive import lock_held
from launcher.sweep.places import Place, Sweep, Until
from tests.launcher.backends.aws.aws_world import IMAGE, ZONES
from tests.launcher.backends.aws.canned_instance import AwsCloud, aws_clouds_on
from tests.launcher.backends.aws.fake_aws import REGION, AwsError
from tests.launcher.backends.gcp.canned_cloud import QUICK, ZONE, Cloud, Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.launcher.sweep.cloudy import cloud_sweep, gcp_of, no_docker, swept, t4
from tests.waiting import until
from tests.workload.storage.gcs_server import BUCKET, GcsServer
from workload.contract import bundle
from workload.contract.record import Status
from workload.storage.inventory import sealed_in

pytestmark = [pytest.mark.world, pytest.mark.slow]

# Long enough for something to happen meanwhile.
LONG = {**QUICK, LaunchPhase.RUN_ENDED: 30.0}
# So long that a busy machine, too, comes to act before the second run is over.
LONGER = {**QUICK, LaunchPhase.RUN_ENDED: 240.0}


def keys_of(sweep: Sweep) -> list[str]:
    return sorted(run.run_key for place in sweep.places for run in place.runs)


def at_home(cloud: Cloud, sweep: Sweep) -> list[str]:
    """The keys of its runs that are whole in the folder of results, each as often as there is a bundle of it."""
    keys = set(keys_of(sweep))
    return sorted(one.run_key for one in sealed_in(cloud.output) if one.run_key in keys and one.status == "completed")


def check_whole(cloud: Cloud, sweep: Sweep) -> None:
    """Every run is here, none was measured twice, and no machine is left."""
    assert at_home(cloud, sweep) == keys_of(sweep)
    assert {len(cloud.vm.sealed[key]) for key in keys_of(sweep)} == {1}
    assert cloud.fake.instances == []


def flat(text: str) -> str:
    """Text without its line breaks."""
    return " ".join(text.split())


def meanwhile(condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Do something as soon as a condition holds."""

    def watch() -> None:
        until(condition, every_s=0.005)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def interrupt(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def test_each_block_has_a_machine_of_its_own_and_all_bundles_come_home(
    clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds() as cloud:
        sweep = cloud_sweep(name="own-machines", blocks=3)
        outcome = swept(cloud, sweep)
        assert (outcome.exit_code, [(place.done, place.new_runs) for place in outcome.places]) == (0, [(6, 6)])
        check_whole(cloud, sweep)
        assert len(cloud.fake.all_vms) == 3
        lines = capsys.readouterr().err
        assert re.search(r"t4: 6/6  block \d, resnet(18|50): 250 images/s", lines)
        # Each told once what a machine is for.
        requests = [Request.from_bytes(vm.metadata["rooflaunch-request"].encode()) for vm in cloud.fake.all_vms]
        assert sorted(request.work.number for request in requests) == [1, 2, 3]
        assert {request.work.job for request in requests} == {"own-machines"}
        # Each machine: 9 s of boot, 3 s of image, two runs whose phases take 2 s each, 3 s of upload.
        spent = outcome.places[0].spent
        least = {"boot": 27, "image": 9, "upload": 9, "steps": 4.5, "imports": 4.8, "outside": 3 * 9 - 12}
        assert all(spent.seconds[part] > seconds - 0.1 for part, seconds in least.items()), spent
        costs = [bundle.read_record(folder).cost for folder in cloud.output.glob("2*")]
        uploads_usd = spent.seconds["upload"] * 0.5599 / 3600
        paid = sum(cost.usd or 0.0 for cost in costs if cost)
        assert (spent.usd or 0.0) - uploads_usd == pytest.approx(paid, rel=1e-4)
        assert f"; 0.037 USD {spent.text()} " in flat(outcome.text())


@pytest.mark.night(part="places")
def test_machines_that_are_lost_or_taken_back_are_replaced(clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds(fault=[Fault.VANISHES], durations=LONG) as cloud:
        sweep = cloud_sweep(t4(spot=True), name="lost", blocks=2)
        taken = meanwhile(
            lambda: bool(cloud.vm.sealed) and bool(cloud.fake.instances),
            lambda: cloud.fake.preempt(cloud.fake.instances[0].name),
        )
        outcome = swept(cloud, sweep)
        taken.join()
        assert (outcome.exit_code, outcome.places[0].done) == (0, 4)
        check_whole(cloud, sweep)
        assert len(cloud.fake.all_vms) == 4
        lines = capsys.readouterr().err
        assert len(re.findall(r"another VM runs the remaining \d runs?", lines)) == 2


@pytest.mark.night(part="places")
def test_a_task_that_brings_nothing_again_and_again_is_given_up_with_its_reason(clouds: Clouds) -> None:
    with clouds(fault=Fault.VANISHES, durations=LONG) as cloud:
        outcome = swept(cloud, cloud_sweep(name="in-vain", blocks=1))
        assert outcome.exit_code == 6
        assert len(cloud.fake.all_vms) == 3
        assert cloud.fake.instances == []
        [why] = {failure.why for failure in outcome.places[0].failures}
        assert why == "the VM was deleted before it had a result (3 machines in a row had no result)"


def test_one_failed_run_stops_no_other_and_is_listed_with_its_cure(clouds: Clouds) -> None:
    with clouds() as cloud:
        cloud.vm.status_of = lambda run: Status.FAILED if run.spec.model == "resnet50" else Status.COMPLETED
        outcome = swept(cloud, cloud_sweep(name="fails", blocks=2))
        assert (outcome.exit_code, outcome.places[0].done) == (6, 2)
        assert len(cloud.fake.all_vms) == 2
        text = outcome.text()
        assert "failed        resnet50 (block 1), resnet50 (block 2): failed\n" in text
        assert "cure          see log.txt in the run's bundle; the same command repeats the run\n" in text


def test_without_room_for_all_machines_the_rest_waits_for_those_that_run(
    clouds: Clouds, capsys: pytest.CaptureFixture[str]
) -> None:
    with clouds() as cloud:
        cloud.fake.hide_quota("us-central1", "PREEMPTIBLE_NVIDIA_T4_GPUS", 0)
        cloud.fake.hide_quota("us-central1", "NVIDIA_T4_GPUS", 1)
        sweep = cloud_sweep(name="quota", blocks=3)
        outcome = swept(cloud, sweep)
        assert outcome.exit_code == 0
        check_whole(cloud, sweep)
        assert "further machines wait until another has ended" in capsys.readouterr().err


def test_without_any_room_it_ends_with_what_the_cloud_says(clouds: Clouds) -> None:
    with clouds() as cloud:
        cloud.fake.stockout(ZONE)
        outcome = swept(cloud, cloud_sweep(name="no-room", blocks=3))
        assert outcome.exit_code == 5
        assert len(outcome.places[0].failures) == 6
        assert cloud.fake.count("POST .*/instances$") == 3
        assert cloud.fake.instances == []


def test_what_a_place_may_not_do_ends_that_place_alone(clouds: Clouds) -> None:
    with clouds() as cloud:
        sweep = cloud_sweep(t4(), t4("spendthrift", max_run_time_s=1), name="two-places", blocks=1)
        outcome = swept(cloud, sweep)
        assert outcome.exit_code == 6
        assert [place.done for place in outcome.places] == [2, 0]
        assert "--max-run-time" in outcome.places[1].failures[0].why


@pytest.mark.night(part="places")
def test_who_leaves_finds_the_machines_at_the_next_start(clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds(durations=LONGER) as cloud:
        sweep = cloud_sweep(name="left", blocks=2)
        meanwhile(lambda: len(cloud.vm.sealed) >= 1, interrupt(signal.SIGTERM))
        outcome = swept(cloud, sweep)
        assert outcome.exit_code == 130
        assert len(cloud.fake.instances) == 2
        assert "unfinished" in outcome.text()
        capsys.readouterr()
        outcome = swept(cloud, sweep)
        assert (outcome.exit_code, outcome.places[0].done) == (0, 4)
        check_whole(cloud, sweep)
        assert len(cloud.fake.all_vms) == 2
        assert "of an earlier start is still running: following it" in capsys.readouterr().err


@pytest.mark.night(part="places")
@pytest.mark.parametrize("answer", ["s", "f"], ids=["stop", "finish"])
def test_ctrl_c_asks(clouds: Clouds, answer: str) -> None:
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return answer

    with clouds(durations=LONGER) as cloud:
        sweep = cloud_sweep(name=f"asked-{answer}", blocks=2)
        cloud.fake.hide_quota("us-central1", "PREEMPTIBLE_NVIDIA_T4_GPUS", 0)
        cloud.fake.hide_quota("us-central1", "NVIDIA_T4_GPUS", 1)
        meanwhile(lambda: len(cloud.vm.sealed) >= 1, interrupt(signal.SIGINT))
        outcome = swept(cloud, sweep, ask=ask)
        assert outcome.exit_code == 130
        assert len(asked) == 1
        # Either way nothing runs any more; who finishes has the whole first block.
        assert cloud.fake.instances == []
        assert len(cloud.fake.all_vms) == 1
        assert outcome.places[0].done == {"s": 1, "f": 2}[answer]
        outcome = swept(cloud, sweep)
        assert outcome.exit_code == 0
        check_whole(cloud, sweep)


def test_what_a_killed_process_asked_for_is_asked_for_again_under_the_same_name(clouds: Clouds) -> None:
    with clouds() as cloud:
        sweep = cloud_sweep(name="killed", blocks=1)
        plan = cloud.plan()
        [task] = sweep.places[0].tasks
        request = replace(plan.request, task=task.to_json(plan.spec))
        cloud.bucket.write(request_object(request.name), request.to_bytes())
        with lock_held(cloud.output, "killed"):
            pass
        outcome = swept(cloud, sweep)
        assert outcome.exit_code == 0
        check_whole(cloud, sweep)
        assert [vm.name for vm in cloud.fake.all_vms] == [request.name]


def test_blocks_are_added_until_the_intervals_are_narrow(clouds: Clouds) -> None:
    with clouds() as cloud:
        cloud.vm.rate_of = lambda run: 250.0 + run.block % 2
        sweep = cloud_sweep(name="until", blocks=2)
        outcome = swept(cloud, sweep, until=Until(share=0.05))
        [place] = outcome.places
        assert (outcome.exit_code, place.done, len(cloud.fake.all_vms)) == (0, 16, 8)
        assert place.decision is not None
        assert place.decision.is_narrow
        assert "resnet18: 250.5, from 250 to 251 (8 blocks, +-0.2 %)" in outcome.text()


def test_the_whole_sweep_costs_no_more_than_it_may(clouds: Clouds) -> None:
    with clouds() as cloud:
        sweep = cloud_sweep(name="budget", blocks=3)
        outcome = swept(cloud, sweep, max_cost_usd=0.9)
        assert outcome.exit_code == 0
        requests = [Request.from_bytes(vm.metadata["rooflaunch-request"].encode()) for vm in cloud.fake.all_vms]
        highest = [(request.price(ZONE), request.limit_s) for request in requests]
        assert sum(price.usd(limit_s) for price, limit_s in highest if price) <= 0.9
        assert {limit_s < 3600 for _, limit_s in highest} == {True}
        poor = swept(cloud, cloud_sweep(name="poor", blocks=3), max_cost_usd=0.05)
        assert poor.exit_code == 2
        assert len(cloud.fake.all_vms) == 3


@pytest.mark.parametrize(("own_usd", "sweep_usd"), [(0.2, None), (0.2, 0.5), (0.5, 0.2)])
def test_a_machine_costs_no_more_than_its_place_and_the_sweep_allow(
    clouds: Clouds, own_usd: float, sweep_usd: float | None
) -> None:
    with clouds() as cloud:
        name = f"limits-{own_usd}-{sweep_usd}"
        sweep = cloud_sweep(t4(max_cost_usd=own_usd), name=name, blocks=1, model=["resnet18"])
        assert swept(cloud, sweep, max_cost_usd=sweep_usd).exit_code == 0
        request = Request.from_bytes(cloud.fake.all_vms[0].metadata["rooflaunch-request"].encode())
        price = request.price(ZONE)
        assert price is not None
        assert 0.1 < price.usd(request.limit_s) <= 0.2


def aws_backend(cloud: AwsCloud) -> ElasticCompute:
    ec2 = Ec2(REGION, sleep=cloud.clock.sleep, monotonic=cloud.clock.now)
    return ElasticCompute(
        ec2=lambda _: ec2,
        bucket=lambda _: cloud.bucket,  # type: ignore[arg-type,return-value]
        engine=no_docker,
        sleep=cloud.clock.sleep,
        monotonic=cloud.clock.now,
    )


def test_a_sweep_over_gcp_and_aws(
    clouds: Clouds, gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(gpu="t4", zones=ZONES, fallback=False, spot=True, image=IMAGE)
    twin = Place(name="aws-t4", backend="aws", options=options, where=Where(region=REGION, bucket=BUCKET), machines=0)
    with clouds() as google, aws_clouds_on(gcs, tmp_path, monkeypatch)(clock=google.clock) as amazon:
        amazon.fake.errors[f"RunInstances {ZONES[0]}"] = [AwsError("InsufficientInstanceCapacity", 500)]
        sweep = cloud_sweep(t4(), twin, name="twins", blocks=3)
        backends: dict[str, Any] = {"gcp": gcp_of(google), "aws": aws_backend(amazon)}
        outcome = swept(google, sweep, backend_of=backends.__getitem__)
        assert (outcome.exit_code, [(place.done, place.new_runs) for place in outcome.places]) == (0, [(6, 6), (6, 6)])
        assert google.fake.instances == []
        assert (len(amazon.fake.live), amazon.fake.volumes, amazon.fake.schedules) == (0, {}, {})
        assert len(amazon.fake.vms) == 3
    keys = sorted(run.run_key for place in sweep.places for run in place.runs)
    assert sorted(one.run_key for one in sealed_in(google.output) if one.status == "completed") == keys
    (said,) = [text for text in answer.sentences(gather(api.load(google.output))) if "a T4?" in text]
    assert said.startswith("Is a T4 a T4? ")
    # A canned VM's record has no region, so its price is unknown.
    assert "an unknown price on aws, an unknown price on gcp; driver, CPU and image are the same." in said
