"""Cloud Batch's tasks hold to the contract of every backend: the real client, asked of a fake that speaks REST."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from launcher.backends.batch.backend import BatchMachines, Region
from launcher.backends.batch.options import Options
from launcher.backends.batch.plan import BatchPlan
from launcher.backends.batch.service import ENDPOINT_VARIABLE, BatchService
from launcher.protocol.backend import Machine, Machines
from launcher.protocol.records import log_object
from tests.launcher.backends import contract
from tests.launcher.backends.batch.batch_plans import batch_plan
from tests.launcher.backends.batch.fake_batch import PROJECT, REGION, FakeBatch
from tests.launcher.backends.contract import CHECKS, Check, Place, name_of
from tests.launcher.backends.gcp.canned_cloud import SETTINGS
from tests.launcher.backends.gcp.fake_compute import Clock
from workload.contract.spec import resolve
from workload.storage.address import open_store
from workload.storage.folder import Folder

pytestmark = [pytest.mark.world, pytest.mark.slow]

ROOT = Path(__file__).parents[4]


def plan_of(token: str, **changes: object) -> BatchPlan:
    options = Options(**{"gpu": "t4", "zones": ("us-central1-a", "us-central1-b"), **changes})
    now = datetime(2027, 1, 15, 8, tzinfo=UTC)
    return batch_plan(resolve({}, {}, None), options, REGION, now=now, token=token)


@dataclass
class BatchPlace(Place):
    """A fake Cloud Batch, asked by the real client."""

    fake: FakeBatch
    clock: Clock
    store: Folder
    folder: Path
    tokens: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    def machines(self) -> Machines:
        service = BatchService(PROJECT, REGION, sleep=self.clock.sleep, monotonic=self.clock.now)
        return BatchMachines(service, lambda: self.store, sleep=self.clock.sleep)

    def plan(self) -> BatchPlan:
        return plan_of(f"{next(self.tokens):06x}")

    def count(self) -> int:
        return self.fake.running()

    def launcher(self, plan: contract.Plan) -> Sequence[str]:
        settings = Region(region=REGION, settings=SETTINGS)
        return contract.launcher_of("launcher.backends.batch.backend", plan, settings, self.folder)

    def print(self, machine: Machine, text: str) -> None:
        name = log_object(machine.name)
        self.store.write(name, (self.store.read(name) or b"") + text.encode())

    def lose(self, machine: Machine) -> None:
        self.fake.delete(machine.name)

    def preempt(self, machine: Machine) -> None:
        self.fake.preempt(machine.name)

    def fill(self) -> None:
        self.fake.stockout = "VM in Managed Instance Group meets error: Batch Error: ZONE_RESOURCE_POOL_EXHAUSTED"

    def refuse_ends(self) -> None:
        self.fake.cancels_nothing = True

    def hide(self, machine: Machine) -> None:
        del machine
        self.fake.refuses = (503, "UNAVAILABLE", "The service is currently unavailable.")

    def pass_limit(self, machine: Machine) -> None:
        self.fake.task(machine.name).events[-1]["eventTime"] = "2020-01-01T00:00:00Z"

    def add_stranger(self) -> str:
        self.fake.add_stranger("database")
        return "database"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BatchPlace]:
    clock = Clock()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    store = open_store(str(tmp_path))
    assert isinstance(store, Folder)
    with FakeBatch(clock=clock.now) as fake:
        monkeypatch.setenv(ENDPOINT_VARIABLE, fake.url)
        yield BatchPlace(fake, clock, store, tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract(check: Check, place: BatchPlace) -> None:
    check(place)
