"""Compute Engine's machines hold to the contract of every backend, which fails on backends that are broken."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.backends.gcp import compute as border
from launcher.backends.gcp.answers import ENDPOINT_VARIABLE
from launcher.backends.gcp.machines import ComputeMachines
from launcher.backends.gcp.plan import VmPlan
from launcher.protocol.backend import Condition, Leftover, Listing, Machine, Machines, Removed
from tests.launcher.backends import contract
from tests.launcher.backends.contract import CHECKS, Check, Place, name_of
from tests.launcher.backends.gcp.canned_cloud import SETTINGS, plan_of
from tests.launcher.backends.gcp.fake_compute import Clock, FakeCompute
from workload.contract.errors import ToolError

pytestmark = pytest.mark.world

ROOT = Path(__file__).parents[4]
ZONES = ("us-central1-a", "us-central1-b")
# Of nobody's launch: a name or a label is not ours.
STRANGER = "database"


class ComputePlace(Place):
    """A fake Compute Engine, asked by the real client."""

    made: type[ComputeMachines] = ComputeMachines

    def __init__(self, fake: FakeCompute, clock: Clock, folder: Path) -> None:
        self.fake, self.clock, self.folder, self.tokens = fake, clock, folder, iter(range(1000))

    def machines(self) -> Machines:
        compute = border.connect(SETTINGS.project, sleep=self.clock.sleep, monotonic=self.clock.now)
        return self.made(compute, sleep=self.clock.sleep)

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


# Backends that are broken, each in one way.


class BelievesItsDeletions(ComputeMachines):
    """Asks for the end once, and takes that for the end."""

    def stop(self, machines: Sequence[Machine | Leftover]) -> Sequence[Removed]:
        for machine in machines:
            with suppress(ToolError):
                self.compute.delete(machine.zone, machine.name)
        return [Removed(kind="VM", name=machine.name, zone=machine.zone, gone=True) for machine in machines]


class RemembersMachines(ComputeMachines):
    """What ran once, it says, runs."""

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        listing = super().look(names)
        return replace(
            listing, there=tuple(replace(vm, condition=Condition.RUNNING, preempted=False) for vm in listing)
        )


class EndsWhatIsOthers(ComputeMachines):
    """Takes every VM for one of ours."""

    def _ours(self) -> Listing[Machine]:
        listing = self.compute.instances()
        return Listing(there=tuple(listing), unreachable=listing.unreachable)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (BelievesItsDeletions, contract.test_an_end_that_is_not_confirmed_is_none),
        (BelievesItsDeletions, contract.test_in_an_outage_nothing_is_said_to_be_gone),
        (RemembersMachines, contract.test_a_machine_that_was_lost_is_gone),
        (RemembersMachines, contract.test_a_machine_that_was_taken_back_says_so),
        (RemembersMachines, contract.test_what_was_stopped_is_gone_and_not_listed),
        (EndsWhatIsOthers, contract.test_machines_of_others_are_let_be),
    ],
)
def test_the_contract_fails_on_a_broken_backend(
    broken: type[ComputeMachines], check: Check, place: ComputePlace
) -> None:
    place.made = broken
    with pytest.raises(AssertionError):
        check(place)
