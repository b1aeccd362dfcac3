"""Consequences of each fault of the cloud, as a table: fault, outcome, VMs left, bundles home and lost, requests.

    python benchmarks/launch_faults.py [gcp|aws]

The launcher, the cloud's client and the bucket's server are real; Compute Engine, EC2 and the VM's inside are the fakes
of the tests. The clock runs 200 times as fast.
"""

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.launcher.backends.aws.canned_instance import AwsCloud, aws_clouds_on  # noqa: E402
from tests.launcher.backends.aws.fake_aws import AwsError, FakeAws  # noqa: E402
from tests.launcher.backends.gcp.canned_cloud import ZONE, Cloud, clouds_on  # noqa: E402
from tests.launcher.backends.gcp.canned_vm import Fault  # noqa: E402
from tests.launcher.backends.gcp.fake_compute import FakeCompute  # noqa: E402
from tests.workload.storage.gcs_server import running  # noqa: E402
from workload.contract.errors import RooflaunchError  # noqa: E402
from workload.storage.inventory import sealed_runs  # noqa: E402

NEAR = "us-central1-f"
ALL = "GPUS_ALL_REGIONS"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault: events in the cloud, in the guest and during the run, and the options of the launch."""

    name: str
    script: Callable[[Any], object] = lambda _: None
    guest: Fault | list[Fault] = Fault.NONE
    meanwhile: Callable[[Any, str], object] | None = None
    salvages: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def _stockout_everywhere(fake: FakeCompute) -> None:
    for zone in ("us-central1-a", "us-central1-b"):
        fake.stockout(zone)


CASES = (
    Case(name="none"),
    Case(name="stockout, zonesAvailable", script=lambda fake: fake.stockout(ZONE, (NEAR,))),
    Case(name="stockout, no zonesAvailable", script=lambda fake: fake.stockout(ZONE)),
    Case(
        name="stockout in all zones named",
        script=_stockout_everywhere,
        options={"zones": ("us-central1-a", "us-central1-b"), "fallback": False},
    ),
    Case(name="quota of the region 0", script=lambda fake: fake.set_quota("us-central1", "NVIDIA_T4_GPUS", 0)),
    Case(name="quota of all regions 0", script=lambda fake: fake.set_quota("global", ALL, 0)),
    Case(name="quota that only the insert finds", script=lambda fake: fake.hide_quota("us-central1", "NVIDIA_T4_GPUS")),
    Case(name="409 on a retried insert", script=lambda fake: fake.conflict_on_retry(ZONE)),
    Case(name="RESOURCE_NOT_FOUND, VM lives", script=lambda fake: fake.not_found_but_lives(ZONE)),
    Case(name="preempted at boot", script=lambda fake: fake.preempt_at_boot(ZONE), options={"spot": True}),
    Case(
        name="preempted mid-run, time to save",
        meanwhile=lambda cloud, name: cloud.fake.preempt(name),
        options={"spot": True},
    ),
    Case(
        name="preempted mid-run, no time",
        meanwhile=lambda cloud, name: cloud.fake.preempt(name),
        salvages=False,
        options={"spot": True},
    ),
    Case(
        name="the same, --rerun-preempted 1",
        meanwhile=lambda cloud, name: cloud.fake.preempt(name),
        salvages=False,
        options={"spot": True, "rerun_preempted": 1},
    ),
    Case(name="silent from the start", guest=Fault.SILENT),
    Case(name="running without heartbeat", guest=Fault.NO_HEARTBEAT),
    Case(name="stops beating", guest=Fault.STOPS_BEATING),
    Case(name="stopped, not deleted", guest=Fault.STOPS),
    Case(name="deleted by somebody", meanwhile=lambda cloud, name: cloud.fake.kill(name)),
    Case(name="the run fails (exit 6)", guest=Fault.FAILS),
    Case(name="VM stays, 2 deletions fail", script=lambda fake: fake.delete_fails(2), guest=Fault.STAYS),
    Case(name="burst of five 503", script=lambda fake: fake.burst(503, 5)),
    Case(name="burst of five 429", script=lambda fake: fake.burst(429, 5)),
    Case(name="operation without end, VM runs", script=lambda fake: fake.endless_operation(ZONE)),
    Case(name="operation without end, no VM", script=lambda fake: fake.endless_operation(ZONE, lives=False)),
    Case(name="result without its bundle", guest=Fault.NO_RUNS),
)


AZ = "use1-az4"


def _refuses(code: str, *, status: int = 400, where: str = "RunInstances", times: int = 1) -> Callable[[FakeAws], None]:
    """EC2 answers this error so many times. `where`: the action, and the zone if only one is concerned."""

    def script(fake: FakeAws) -> None:
        fake.errors[where] = [AwsError(code, status)] * times

    return script


def _set(**values: Any) -> Callable[[FakeAws], None]:
    def script(fake: FakeAws) -> None:
        for name, value in values.items():
            setattr(fake, name, value)

    return script


def _preempt(cloud: AwsCloud, name: str) -> None:
    cloud.fake.preempt(cloud.fake.named(name), notice=True)


AWS_CASES = (
    Case(name="none"),
    *(
        Case(name=f"{code}, first zone", script=_refuses(code, status=status, where=f"RunInstances {AZ}"))
        for code, status in (("InsufficientInstanceCapacity", 500), ("Unsupported", 400), ("SpotMaxPriceTooLow", 400))
    ),
    Case(name="no capacity in any zone", script=_refuses("InsufficientInstanceCapacity", status=500, times=9)),
    Case(name="ends at once: no capacity", script=_set(dies_of={AZ: "Server.InsufficientInstanceCapacity"})),
    Case(name="ends at once: volume limit", script=_set(dies_of={AZ: "Client.VolumeLimitExceeded"})),
    Case(name="quota 0", script=_set(quotas={"L-DB2E81BA": 0.0})),
    Case(name="quota that only RunInstances finds", script=_refuses("VcpuLimitExceeded")),
    Case(name="quota of spot, the same", script=_refuses("MaxSpotInstanceCountExceeded"), options={"spot": True}),
    Case(name="RequestLimitExceeded, 3 times", script=_refuses("RequestLimitExceeded", status=503, times=3)),
    Case(name="InternalError, twice", script=_refuses("InternalError", status=500, times=2)),
    Case(name="2 lost answers of RunInstances", script=_set(lost_answers=2)),
    Case(name="every answer of RunInstances is lost", script=_set(lost_answers=10**6)),
    Case(name="NotFound right after RunInstances", script=_set(hides=3)),
    Case(name="UnauthorizedOperation", script=_refuses("UnauthorizedOperation", status=403)),
    Case(name="instance profile missing", script=_set(profiles=set())),
    Case(name="schedule's role missing", script=_set(roles=set())),
    Case(name="scheduler busy, twice", script=_refuses("ThrottlingException", where="CreateSchedule", times=2)),
    Case(name="no right to tag", script=_refuses("UnauthorizedOperation", status=403, where="CreateTags")),
    Case(name="spot notice mid-run, time to save", meanwhile=_preempt, options={"spot": True}),
    Case(name="spot notice mid-run, no time", meanwhile=_preempt, salvages=False, options={"spot": True}),
    Case(
        name="the same, --rerun-preempted 1",
        meanwhile=_preempt,
        salvages=False,
        options={"spot": True, "rerun_preempted": 1},
    ),
    Case(name="silent from the start", guest=Fault.SILENT),
    Case(name="running without heartbeat", guest=Fault.NO_HEARTBEAT),
    Case(name="stops beating", guest=Fault.STOPS_BEATING),
    Case(name="stops beating, and its shutdown hangs", script=_set(hangs=True), guest=Fault.STOPS_BEATING),
    Case(
        name="terminated by somebody",
        meanwhile=lambda cloud, name: cloud.fake.end(cloud.fake.named(name), "Client.UserInitiatedShutdown"),
    ),
    Case(name="the run fails (exit 6)", guest=Fault.FAILS),
    Case(name="VM stays after its run", guest=Fault.STAYS),
    Case(name="burst of five 503", script=_refuses("Unavailable", status=503, where="DescribeInstances", times=5)),
    Case(name="result without its bundle", guest=Fault.NO_RUNS),
)


def watch(cloud: Cloud | AwsCloud, case: Case) -> Iterator[str]:
    """Cells of a fault's row, after its name."""
    case.script(cloud.fake)
    plan: Any = cloud.plan(**case.options)
    if case.meanwhile:
        threading.Thread(target=_in_the_run, args=(cloud, plan.request.name, case.meanwhile), daemon=True).start()
    began_s = cloud.clock.now()
    try:
        outcome = cloud.run(plan)
        told = f"exit {int(outcome.exit_code)}" + (f": {outcome.error}" if outcome.error else f", in {outcome.zone}")
        bundles = len(outcome.bundles)
    except RooflaunchError as error:
        told, bundles = f"exit {int(error.exit_code)}: {error}", 0
    took_s = cloud.clock.now() - began_s
    yield told.splitlines()[0].replace(f"'{plan.request.name}' ", "").replace(f"'{plan.request.name}': ", "")[:90]
    if isinstance(cloud, AwsCloud):
        yield str(len(cloud.fake.vms))
        yield f"{len(cloud.fake.live)}, {len(cloud.fake.volumes)}, {len(cloud.fake.schedules)}"
        requests = cloud.fake.calls.total()
    else:
        yield str(len(cloud.fake.all_vms))
        yield str(len(cloud.fake.instances))
        requests = len(cloud.fake.calls)
    sealed = sum(1 for _ in sealed_runs(cloud.bucket))
    yield f"{bundles}, {sealed - bundles}"
    yield str(requests)
    yield f"{took_s:.0f}"


def _in_the_run(cloud: Any, name: str, act: Callable[[Any, str], object]) -> None:
    with suppress(KeyError):
        cloud.vm.started.wait(30)
        act(cloud, name)


def main() -> None:
    """Print the table."""
    on_aws = sys.argv[1:] == ["aws"]
    left = "VMs, disks, schedules left" if on_aws else "VMs left"
    columns = ("fault", "outcome", "VMs made", left, "bundles home, lost", "requests", "simulated s")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for case in AWS_CASES if on_aws else CASES:
        with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
            folder = Path(name)
            with running(folder / "gcs.log") as server:
                clouds: Any = (aws_clouds_on if on_aws else clouds_on)(server, folder, patch)
                with clouds(fault=case.guest, salvages=case.salvages) as cloud:
                    print(f"| {case.name} | {' | '.join(watch(cloud, case))} |", flush=True)


if __name__ == "__main__":
    main()
