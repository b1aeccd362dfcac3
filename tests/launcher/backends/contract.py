"""What every backend's machines must hold to, each time against its real engine or a fake that speaks its protocol.

A backend writes a `Place`, in which all that can go wrong there can be made to, and a fixture `place` beside

    @pytest.mark.parametrize("check", CHECKS, ids=name_of)
    def test_contract(check: Check, place: Place) -> None:
        check(place)
"""

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from launcher.protocol.backend import Condition, Machine, Machines, Plan
from workload.contract.errors import NoCapacityError, RooflaunchError
from workload.contract.spec import Device

# A run of seconds on a CPU.
TINY: Mapping[str, object] = {
    "device": Device.CPU,
    "model": "squeezenet1_1",
    "batch_size": 1,
    "iterations": 2,
    "warmup": 1,
    "image_size": 64,
    "ceilings": False,
}
# A launcher that submits a plan, says so and stays.
LAUNCHER = """
import importlib, pickle, sys
from pathlib import Path
backend = importlib.import_module(sys.argv[1]).backend
plan, settings = pickle.loads(Path(sys.argv[2]).read_bytes())
backend.machines(settings).submit(plan, lambda text: None)
print("submitted", flush=True)
sys.stdin.read()
"""
CHILD_S = 60
HOSTILE = ("", "-rf", "../../etc", "a b", "$(reboot)", "\x1b[2J", "x" * 300, "ü", "name\n", "%2e%2e")


class Place:
    """One place, empty at first. What cannot happen there stays as it is here, and its checks are left out.

    `is_for_one`: it has one machine at a time.
    """

    is_for_one = False

    def machines(self) -> Machines:
        """A connection of its own, as another launcher has one."""
        raise NotImplementedError

    def plan(self) -> Any:
        """Of a job that was never submitted."""
        raise NotImplementedError

    def started(self, machine: Machine) -> Machine:
        """What was submitted, once it has left a queue that the place may have; as it is then."""
        return machine

    def count(self) -> int:
        """How many machines there are, whoever asked for them, as the place itself knows."""
        raise NotImplementedError

    def launcher(self, plan: Plan) -> Sequence[str]:
        """The command of a process that submits the plan, prints `submitted` then and stays."""
        raise NotImplementedError(plan)

    def print(self, machine: Machine, text: str) -> None:
        """What the machine prints."""
        _cannot(machine, text)

    def lose(self, machine: Machine) -> None:
        """It is gone, and nobody asked for its end."""
        _cannot(machine)

    def preempt(self, machine: Machine) -> None:
        """The place takes it back."""
        _cannot(machine)

    def fill(self) -> None:
        """From now on nobody can have a machine."""
        _cannot()

    def refuse_ends(self) -> None:
        """From now on no machine ends, however often it is asked for."""
        _cannot()

    def hide(self, machine: Machine) -> None:
        """Its zone does not answer any more."""
        _cannot(machine)

    def pass_limit(self, machine: Machine) -> None:
        """Its time limit is over for long, and the place did not end it."""
        _cannot(machine)

    def add_stranger(self) -> str:
        """The name of a machine that is not ours and must be left alone."""
        _cannot()


# A place's clock is known to within the time that its answer took: seconds on a busy machine.
ROUND_TRIP_S = 60


def _cannot(*_: object) -> NoReturn:
    pytest.skip("it cannot happen there")


def launcher_of(backend: str, plan: Plan, settings: object, folder: Path) -> Sequence[str]:
    """Command of a `Place.launcher`. `backend`: module of the backend; `folder`: for the plan and the settings."""
    path = folder / "plan"
    path.write_bytes(pickle.dumps((plan, settings)))
    return (sys.executable, "-c", LAUNCHER, backend, str(path))


def silent(_: str) -> None:
    """Nobody listens."""


def submit(place: Place, plan: Plan | None = None) -> Machine:
    submitted = place.machines().submit(plan or place.plan(), silent)
    assert len(submitted.machines) == 1
    return place.started(submitted.machines[0])


def beside(place: Place) -> list[Machine]:
    """One machine more, where the place can have several at once."""
    return [] if place.is_for_one else [submit(place)]


def names(machines: Sequence[Machine]) -> set[str]:
    return {machine.name for machine in machines}


def condition(machines: Machines, machine: Machine) -> Condition | None:
    """None where nothing is known of it."""
    listing = machines.look({machine.name: (machine.zone,)})
    return next((seen.condition for seen in listing if seen.name == machine.name), None)


def listed(machines: Machines) -> set[str]:
    return {machine.name for machine in machines.look()}


def test_what_was_submitted_is_there(place: Place) -> None:
    plan, began_s = place.plan(), place.machines().now_s()
    machine = submit(place, plan)
    assert (machine.name, machine.condition, place.count()) == (plan.request.name, Condition.RUNNING, 1)
    other = place.machines()
    assert listed(other) == {machine.name}
    assert condition(other, machine) is Condition.RUNNING
    [known] = other.look({machine.name: ()})
    assert (known.name, known.zone, known.condition) == (machine.name, machine.zone, Condition.RUNNING)
    assert known.created_s is None or -ROUND_TRIP_S < known.created_s - began_s < other.now_s() - began_s + ROUND_TRIP_S


def test_submitted_twice_it_is_there_once(place: Place) -> None:
    plan = place.plan()
    first = submit(place, plan)
    again = submit(place, plan)
    assert (first.name, first.zone) == (again.name, again.zone)
    assert place.count() == 1


def test_two_launchers_at_once_have_two_machines(place: Place) -> None:
    if place.is_for_one:
        _cannot()
    plans, had = [place.plan(), place.plan()], list[Machine]()
    threads = [threading.Thread(target=lambda plan=plan: had.append(submit(place, plan))) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CHILD_S)
    assert {machine.name for machine in had} == {plan.request.name for plan in plans} == listed(place.machines())
    assert place.count() == 2


def test_what_was_stopped_is_gone_and_not_listed(place: Place) -> None:
    machine, others = submit(place), beside(place)
    machines = place.machines()
    [removed] = machines.stop([machine])
    assert (removed.name, removed.gone, removed.reason) == (machine.name, True, "")
    assert condition(machines, machine) is Condition.GONE
    assert listed(machines) == names(others)
    assert place.count() == len(others)
    together = machines.look({one.name: () for one in (machine, *others)})
    assert {seen.name: seen.condition for seen in together} == {
        machine.name: Condition.GONE,
        **{other.name: Condition.RUNNING for other in others},
    }
    assert machines.output(machine, 0).text == ""


def test_stopped_twice_it_is_gone_as_before(place: Place) -> None:
    machine, others = submit(place), beside(place)
    assert [removed.gone for removed in place.machines().stop([machine])] == [True]
    again = place.machines().stop([*others, machine])
    assert [(removed.name, removed.gone) for removed in again] == [(one.name, True) for one in (*others, machine)]
    assert place.machines().stop([]) == []
    assert place.count() == 0


def test_an_end_that_is_not_confirmed_is_none(place: Place) -> None:
    machine = submit(place)
    place.refuse_ends()
    [removed] = place.machines().stop([machine])
    assert not removed.gone
    assert removed.reason
    assert place.count() == 1


def test_what_a_killed_launcher_left_can_be_seen_and_ended(place: Place) -> None:
    plan = place.plan()
    with subprocess.Popen(place.launcher(plan), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any(line == "submitted\n" for line in process.stdout)
        finally:
            process.kill()
    machines = place.machines()
    [seen] = machines.look({plan.request.name: plan.request.zones})
    machine = place.started(seen)
    assert machine.condition is Condition.RUNNING
    assert submit(place, plan).name == machine.name
    assert place.count() == 1
    assert [removed.gone for removed in machines.stop([machine])] == [True]
    assert place.count() == 0


def test_a_machine_that_was_lost_is_gone(place: Place) -> None:
    machine = submit(place)
    machines = place.machines()
    assert condition(machines, machine) is Condition.RUNNING
    place.lose(machine)
    [seen] = machines.look({machine.name: (machine.zone,)})
    assert (seen.condition, seen.preempted) == (Condition.GONE, False)
    assert listed(machines) == set()
    assert [removed.gone for removed in machines.stop([machine])] == [True]


def test_a_machine_that_was_taken_back_says_so(place: Place) -> None:
    machine = submit(place)
    place.preempt(machine)
    [seen] = place.machines().look({machine.name: (machine.zone,)})
    assert (seen.condition, seen.preempted) == (Condition.GONE, True)
    assert seen.why


def test_without_room_nothing_is_left_and_all_that_was_tried_is_told(place: Place) -> None:
    place.fill()
    plan = place.plan()
    with pytest.raises(NoCapacityError) as raised:
        place.machines().submit(plan, silent)
    assert all(zone in str(raised.value) for zone in plan.request.zones)
    assert raised.value.hint
    assert place.count() == 0


def test_interrupted_it_leaves_no_machine(place: Place) -> None:
    lines = list[str]()

    def interrupt(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.machines().submit(place.plan(), interrupt)
    assert place.count() == 0


def test_past_its_limit_it_is_left_over(place: Place) -> None:
    old, others = submit(place), beside(place)
    machines = place.machines()
    assert list(machines.leftovers()) == []
    place.pass_limit(old)
    left = list(machines.leftovers())
    assert [(item.kind, item.name) for item in left] == [(machines.noun, old.name)]
    assert all(item.why for item in left)
    assert [removed.gone for removed in machines.stop(left)] == [True]
    assert listed(machines) == names(others)
    assert list(machines.leftovers()) == []


def test_in_an_outage_nothing_is_said_to_be_gone(place: Place) -> None:
    machine = submit(place)
    machines = place.machines()
    place.hide(machine)
    assert machine.name in listed(machines) or machines.look().may_have_more(machine.zone)
    for zones in ((machine.zone,), ()):
        try:
            listing = machines.look({machine.name: zones})
        except RooflaunchError:
            continue  # nothing is known, and that is said
        assert all(seen.condition is not Condition.GONE for seen in listing)
        assert listing.there or listing.unreachable
    [removed] = machines.stop([machine])
    assert not removed.gone
    assert place.count() == 1


def test_machines_of_others_are_let_be(place: Place) -> None:
    machine = submit(place)
    stranger = place.add_stranger()
    machines = place.machines()
    assert listed(machines) == {machine.name}
    assert all(item.name != stranger for item in machines.leftovers())
    assert place.count() == 2


def test_hostile_names_are_no_machines(place: Place) -> None:
    machine = submit(place)
    machines = place.machines()
    for name in HOSTILE:
        try:
            listing = machines.look({name: ()})
        except RooflaunchError:
            continue
        assert all(seen.condition is Condition.GONE for seen in listing)
    assert listed(machines) == {machine.name}


def test_output_goes_on_from_where_it_was(place: Place) -> None:
    machine = submit(place)
    machines = place.machines()
    place.print(machine, "first\n")
    first = machines.output(machine, 0)
    assert first.text.endswith("first\n")
    assert machines.output(machine, first.next_start).text == ""
    place.print(machine, "grün\n")
    second = machines.output(machine, first.next_start)
    assert second.text == "grün\n"
    assert second.next_start > first.next_start
    assert isinstance(machines.phases(machine), dict)


def test_the_clock_is_the_places(place: Place) -> None:
    one, other = place.machines(), place.machines()
    assert abs(one.now_s() - other.now_s()) < ROUND_TRIP_S
    assert 1e9 < one.now_s() < 1e10
    assert one.place
    assert all(isinstance(count, int) for count in one.calls.values())


Check = Callable[[Place], None]
CHECKS: tuple[Check, ...] = tuple(check for name, check in list(globals().items()) if name.startswith("test_"))


def name_of(check: Check) -> str:
    """As it stands in a report."""
    return check.__name__.removeprefix("test_")
