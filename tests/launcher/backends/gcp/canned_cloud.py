"""What a launch meets, for tests: the real clients, a fake Compute Engine and bucket, canned VMs, a fast clock."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.gcp import compute as border
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.machines import ComputeMachines
from launcher.backends.gcp.options import Settings
from launcher.backends.gcp.plan import Options, VmPlan, make_plan
from launcher.jobs import launches
from launcher.jobs.run import LaunchOutcome, run
from launcher.jobs.session import Event, EventKind, Session
from launcher.protocol.records import LAUNCHES, LaunchPhase, Result, result_object
from tests.launcher.backends.gcp.canned_vm import CannedVm, FastClock
from tests.launcher.backends.gcp.fake_compute import FakeCompute
from tests.workload.storage.gcs_server import BUCKET, GcsServer
from workload.contract.spec import resolve
from workload.storage import gcs as storage
from workload.storage.gcs import Bucket
from workload.storage.store import Patience

IMAGE = "us-central1-docker.pkg.dev/my-project/rooflaunch/trainer@sha256:" + "0" * 64
SETTINGS = Settings(
    project="my-project",
    bucket=BUCKET,
    repository="us-central1-docker.pkg.dev/my-project/rooflaunch/trainer",
    service_account="rooflaunch-vm@my-project.iam.gserviceaccount.com",
)
ZONE = "us-central1-a"
# For tests that do not look at times: a launch is over in a fraction of a second. The clock's scale leaves the
# launcher's own limits long enough (5 minutes are 1.5 s) for a machine that is busy with other tests.
QUICK = dict.fromkeys(LaunchPhase, 3.0)


def plan_of(
    zones: tuple[str, ...],
    token: str = "c0ffee",
    *,
    settings: Settings = SETTINGS,
    now: datetime = datetime(2026, 11, 21, 14, 25, 30, tzinfo=UTC),
    given: dict[str, object] | None = None,
    **options: Any,
) -> VmPlan:
    """Plan of a launch on a T4, unless `options` name another GPU. `given`: options of the run."""
    chosen = Options(**{"gpu": "t4", "zones": zones, **options})
    return make_plan(resolve(given or {}, {}, None), chosen, settings, image=IMAGE, now=now, token=token)


@dataclass(kw_only=True)
class Cloud:
    """Everything that a launch meets."""

    fake: FakeCompute
    compute: Compute
    bucket: Bucket
    vm: CannedVm
    clock: FastClock
    output: Path
    events: list[Event]

    def plan(self, *, given: dict[str, object] | None = None, **changes: Any) -> VmPlan:
        now, token = datetime.fromtimestamp(self.clock.now(), UTC), f"{time.monotonic_ns() % 0x1000000:06x}"
        return plan_of((ZONE,), token, now=now, given=given, **changes)

    def run(self, plan: VmPlan, **changes: Any) -> LaunchOutcome:
        with self.clock.busy():
            return run(self.session(), plan, output=self.output, **changes)

    def session(self, **changes: Any) -> Session:
        machines = ComputeMachines(self.compute, sleep=self.clock.sleep)
        plain = Session(machines=machines, store=self.bucket, sleep=self.clock.sleep, on_event=self.events.append)
        return replace(plain, **changes)

    def told(self, kind: EventKind) -> list[str]:
        return [each.text for each in self.events if each.kind is kind]

    def state(self, name: str) -> launches.Launch:
        return launches.launch_named(self.session(), name)

    def result(self, name: str) -> Result:
        content = self.bucket.read(result_object(name))
        assert content is not None
        return Result.from_bytes(content)


Clouds = Callable[..., AbstractContextManager[Cloud]]


def clouds_on(server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clouds:
    """`with clouds(fault=…) as cloud:`; a canned VM of these faults, and a clock of this scale."""

    @contextmanager
    def make(*, scale: float = 200.0, grace_s: float = 0.0, **changes: Any) -> Iterator[Cloud]:
        clock = FastClock(scale=scale)
        home = tmp_path / "vm"
        home.mkdir(exist_ok=True)
        vm = CannedVm(server=server, api=lambda: fake.url, clock=clock, home=home, **{"durations": QUICK, **changes})
        with FakeCompute(vm=vm, grace_s=grace_s, clock=clock.now) as fake:
            monkeypatch.setenv("ROOFLAUNCH_COMPUTE_ENDPOINT", fake.url)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            compute = border.connect("my-project", sleep=clock.sleep, monotonic=clock.now)
            bucket = storage.connect(BUCKET, prefix=LAUNCHES, jobs=4, patience=Patience(retry_s=2))
            yield Cloud(
                fake=fake, compute=compute, bucket=bucket, vm=vm, clock=clock, output=tmp_path / "results", events=[]
            )

    return make
