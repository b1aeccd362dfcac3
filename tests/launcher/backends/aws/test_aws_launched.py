"""A launch on EC2 from its request to its bundles, with what may go wrong in between: nothing is left behind."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launcher.backends.aws.canned_instance import AwsCloud, AwsClouds, aws_clouds_on
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.workload.storage.gcs_server import GcsServer, running
from workload.contract.errors import ExitCode

pytestmark = [pytest.mark.world, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with running(tmp_path_factory.mktemp("gcs") / "log") as made:
        yield made


@pytest.fixture
def clouds(server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AwsClouds:
    return aws_clouds_on(server, tmp_path, monkeypatch)


def left(cloud: AwsCloud) -> tuple[int, int, int]:
    return len(cloud.fake.live), len(cloud.fake.volumes), len(cloud.fake.schedules)


def during(cloud: AwsCloud, act: Callable[[], object]) -> None:
    def wait_and_act() -> None:
        assert cloud.vm.started.wait(60)
        act()

    threading.Thread(target=wait_and_act, daemon=True).start()


def test_a_run_ends_with_its_bundle_and_its_price(clouds: AwsClouds) -> None:
    with clouds() as cloud:
        outcome = cloud.run(cloud.plan())
    assert (outcome.exit_code, outcome.error, outcome.zone, len(outcome.bundles)) == (
        ExitCode.DONE,
        None,
        "use1-az4",
        1,
    )
    assert outcome.usd is not None
    assert 0 < outcome.usd < 0.1
    assert {"booted", "image_pulled", "run_ended", "finished"} <= set(outcome.phases)
    assert left(cloud) == (0, 0, 0)


def test_a_spot_vm_that_is_taken_away_is_replaced(clouds: AwsClouds) -> None:
    with clouds(salvages=False) as cloud:
        during(cloud, lambda: cloud.fake.preempt(cloud.fake.live[0], notice=True))
        outcome = cloud.run(cloud.plan(spot=True, rerun_preempted=1))
    assert (outcome.exit_code, outcome.attempts, len(outcome.bundles)) == (ExitCode.DONE, 2, 1)
    assert len(cloud.fake.vms) == 2
    assert left(cloud) == (0, 0, 0)


@pytest.mark.parametrize("fault", [Fault.STOPS_BEATING, Fault.STAYS])
def test_a_guest_that_does_not_end_is_ended(clouds: AwsClouds, fault: Fault) -> None:
    with clouds(fault=fault) as cloud:
        outcome = cloud.run(cloud.plan())
    assert (outcome.exit_code == ExitCode.DONE) == (fault is Fault.STAYS)
    assert left(cloud) == (0, 0, 0)
