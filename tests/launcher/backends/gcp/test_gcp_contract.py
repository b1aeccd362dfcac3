"""Compute Engine's machines hold to the contract of every backend."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from launcher.backends.gcp import compute as border
from launcher.backends.gcp.answers import ENDPOINT_VARIABLE
from launcher.backends.gcp.machines import ComputeMachines
from launcher.backends.gcp.plan import VmPlan
from launcher.protocol.backend import Machine, Machines
from tests.launcher.backends import contract
from tests.launcher.backends.contract import CHECKS, Check, Place, name_of
from tests.launcher.backends.gcp.canned_cloud import SETTINGS, plan_of
from tests.launcher.backends.gcp.fake_compute import Clock, FakeCompute

pytestmark = pytest.mark.world

ROOT = Path(__file__).parents[4]
ZONES = ("us-central1-a", "us-central1-b")
# Of nobody's launch: a name or a label is not ours.
STRANGER = "database"


class ComputePlace(Place):
    """A fake Compute Engine, asked by the real client."""

    def __init__(self, fake: FakeCompute, clock: Clock, folder: Path) -> None:
        self.fake, self.clock, self.folder, self.tokens = fake, clock, folder, iter(range(1000))

    def machines(self) -> Machines:
        compute = border.connect(SETTINGS.project, sleep=self.clock.sleep, monotonic=self.clock.now)
        return ComputeMachines(compute, sleep=self.clock.sleep)

    def plan(self) -> VmPlan:
        return plan_of(ZONES, f"{next(self.tokens):06x}", fallback=False)

    def count(self) -> int:
        return len(self.fake.instances)

    def launcher(self, plan: contract.Plan) -> Sequence[str]:
        return contract.launcher_of("launcher.backends.gcp.backend", plan, SETTINGS, self.folder)

    def print(self, machine: Machine, text: str) -> None:
        self.fake.vm(machine.name).write_serial(text)

    def lose(self, machine: Machine) -> None:
        self.fake.kill(machine.name)

    def preempt(self, machine: Machine) -> None:
        self.fake.preempt(machine.name)

    def fill(self) -> None:
        for zone in ZONES:
            self.fake.stockout(zone)

    def refuse_ends(self) -> None:
        self.fake.delete_fails(10**6)

    def hide(self, machine: Machine) -> None:
        self.fake.outage(machine.zone)

    def pass_limit(self, machine: Machine) -> None:
        vm = self.fake.vm(machine.name)
        vm.created_s -= 2 * vm.limit_s
        vm.deadline_s = vm.created_s + vm.limit_s

    def add_stranger(self) -> str:
        self.fake.add_vm(STRANGER, project=SETTINGS.project, labels={"rooflaunch": "launch"}, age_s=10**5)
        return STRANGER


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ComputePlace]:
    clock = Clock()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with FakeCompute(clock=clock.now) as fake:
        monkeypatch.setenv(ENDPOINT_VARIABLE, fake.url)
        yield ComputePlace(fake, clock, tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract(check: Check, place: ComputePlace) -> None:
    check(place)
