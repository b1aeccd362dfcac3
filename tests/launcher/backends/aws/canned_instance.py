"""What a launch on EC2 meets, for tests: the real client, a fake AWS, canned guests, a fast clock.

The guests are those of Compute Engine's tests, and the store is the same test bucket: neither depends on the cloud.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.aws.answers import ENDPOINT_VARIABLE, Ami
from launcher.backends.aws.machines import Ec2Machines
from launcher.backends.aws.options import Options
from launcher.backends.aws.plan import InstancePlan, make_plan
from launcher.backends.aws.service import Ec2
from launcher.jobs.run import LaunchOutcome, run
from launcher.jobs.session import Event, Session
from launcher.protocol.records import LAUNCHES, request_object
from tests.launcher.backends.aws.aws_world import GROUP, IMAGE, SETTINGS, ZONES
from tests.launcher.backends.aws.fake_aws import AMI, REGION, FakeAws, Vm
from tests.launcher.backends.gcp import canned_vm
from tests.launcher.backends.gcp.canned_cloud import QUICK
from tests.launcher.backends.gcp.canned_vm import CannedVm, FastClock
from tests.workload.storage.gcs_server import BUCKET, GcsServer
from workload.contract.spec import resolve
from workload.storage import gcs as storage
from workload.storage.gcs import Bucket
from workload.storage.store import Patience


class _Inside:
    """An instance as a canned guest sees its VM."""

    def __init__(self, fake: FakeAws, vm: Vm, request: bytes) -> None:
        self._fake, self._it = fake, vm
        self.name, self.zone = vm.tags["rooflaunch-name"], vm.zone
        self.metadata = {"rooflaunch-request": request.decode()}
        self.guest_attributes: dict[str, dict[str, str]] = {}
        self.gone = self

    @property
    def preempted(self) -> bool:
        return self._it.has_notice

    def is_set(self) -> bool:
        return self._it.state == "terminated"

    def write_serial(self, text: str) -> None:
        self._it.console += text

    def serial(self) -> tuple[str, int]:
        return self._it.console, len(self._it.console)

    def power_off(self) -> None:
        self._fake.end(self._it, "Client.InstanceInitiatedShutdown")


class _Guest(canned_vm._Guest):
    _vm: Any

    def run(self) -> None:
        super().run()
        if self._vm.preempted and not self._vm.is_set():
            self._vm._fake.end(self._vm._it, "Server.SpotInstanceTermination")

    def _delete(self) -> None:
        self._vm.power_off()


class CannedInstance(CannedVm):
    """A `CannedVm` for the instances of a fake AWS."""

    def starts(self, fake: FakeAws, bucket: Bucket, vm: Vm) -> None:
        content = bucket.read(request_object(vm.tags["rooflaunch-name"]))
        assert content is not None
        faults = [*self.fault, canned_vm.Fault.NONE] if isinstance(self.fault, list) else [self.fault]
        fault = faults[min(self._count, len(faults) - 1)]
        self._count += 1
        with self.clock.busy():
            _Guest(self, _Inside(fake, vm, content), fault).run()  # type: ignore[arg-type]


@dataclass(kw_only=True)
class AwsCloud:
    """Everything that a launch meets."""

    fake: FakeAws
    bucket: Bucket
    vm: CannedInstance
    clock: FastClock
    output: Path
    events: list[Event]

    def plan(self, **changes: Any) -> InstancePlan:
        options = Options(**{"gpu": "t4", "zones": ZONES, "fallback": False, **changes})
        now, token = datetime.fromtimestamp(self.clock.now(), UTC), f"{time.monotonic_ns() % 0x1000000:06x}"
        draft = make_plan(resolve({}, {}, None), options, SETTINGS, image=IMAGE, now=now, token=token)
        ami = Ami(id=AMI, name="base", root="/dev/sda1", gigabytes=75)
        return draft.launched(now, image=IMAGE, zones=draft.zones, ami=ami, group=GROUP)

    def run(self, plan: InstancePlan) -> LaunchOutcome:
        with self.clock.busy():
            return run(self.session(), plan, output=self.output)

    def session(self) -> Session:
        ec2 = Ec2(REGION, sleep=self.clock.sleep, monotonic=self.clock.now)
        machines = Ec2Machines(ec2, sleep=self.clock.sleep, monotonic=self.clock.now)
        return Session(machines=machines, store=self.bucket, sleep=self.clock.sleep, on_event=self.events.append)


AwsClouds = Callable[..., AbstractContextManager[AwsCloud]]


def aws_clouds_on(server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AwsClouds:
    """`with clouds(fault=…) as cloud:`; a canned guest of these faults."""

    @contextmanager
    def make(*, clock: FastClock | None = None, **changes: Any) -> Iterator[AwsCloud]:
        clock = clock or FastClock()
        home = tmp_path / "instance"
        home.mkdir(exist_ok=True)
        vm = CannedInstance(server=server, api=str, clock=clock, home=home, **{"durations": QUICK, **changes})
        for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}.items():
            monkeypatch.setenv(name, value)
        with FakeAws(clock=clock.now) as fake:
            monkeypatch.setenv(ENDPOINT_VARIABLE, fake.url)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            bucket = storage.connect(BUCKET, prefix=LAUNCHES, jobs=4, patience=Patience(retry_s=2))
            fake.inside = lambda made: vm.starts(fake, bucket, made)
            yield AwsCloud(fake=fake, bucket=bucket, vm=vm, clock=clock, output=tmp_path / "results", events=[])

    return make
