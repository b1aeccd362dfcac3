"""Records that anybody may have written into the bucket: each is one line, none is obeyed and none is a crash."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import backends
from launcher.backends.gcp.options import Where
from launcher.jobs import commands
from launcher.jobs.commands import Place as PlaceOf
from launcher.protocol.backend import Leftover, Listing, Machine, Output, Removed
from launcher.protocol.records import request_object, result_object, status_object
from tests.launcher.jobs.test_status import Objects, Place, beat, result
from tests.launcher.rented_vm import LAUNCHED_S, MACHINE, NAME, REQUEST, ZONE
from workload.contract.errors import RooflaunchError
from workload.contract.tables import TableFormat

HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 2**70, 1e308, float("nan"), float("inf"), "", "x", "-rf", "../../etc", "a b", "$(reboot)"),
    *("\x1b[2J\x1b]0;owned\x07", "\u009b2J", "\ud800", "0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59"),
    *([], ["-rf"], ["\x1b[2J"], [[]], {}, {"booted": 1}, {"us-central1": {}}, {"us-central1": {"usd_per_h": "x"}}),
)
GOOD = {
    request_object(NAME): REQUEST.to_bytes(),
    status_object(NAME): beat(200).to_bytes(),
    result_object(NAME): result().to_bytes(),
}
DROPPED = object()


def with_one_change(document: Any, value: object) -> Iterator[Any]:
    """The document with `value` in place of each of its parts in turn, at any depth."""
    if not isinstance(document, dict):
        return
    for key, inner in document.items():
        rest = {name: part for name, part in document.items() if name != key}
        yield rest if value is DROPPED else {**rest, key: value}
        for changed in with_one_change(inner, value):
            yield {**rest, key: changed}


def mutated(content: bytes) -> Iterator[bytes]:
    for value in (*HOSTILE, DROPPED):
        for document in with_one_change(json.loads(content), value):
            yield json.dumps(document).encode()


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Some bytes replaced, or the end cut off."""
    changed = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed[: dice.randint(1, len(changed))] if dice.random() < 0.3 else changed)


def every_case() -> Iterator[tuple[str, bytes]]:
    dice = random.Random(12)
    for name, content in GOOD.items():
        yield from ((name, changed) for changed in mutated(content))
        yield from ((name, damaged(content, dice)) for _ in range(200))


class OneVm(Place):
    """A place with one VM, until it is asked for its end."""

    def stop(self, machines: Sequence[Machine]) -> list[Removed]:
        self.listing = Listing() if machines else self.listing
        return [Removed(kind="VM", name=machine.name, zone=machine.zone, gone=True) for machine in machines]

    def leftovers(self) -> Listing[Leftover]:
        return Listing()

    def output(self, _: Machine, start: int) -> Output:
        return Output(text="", next_start=start)


class Writable(Objects):
    def write(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        there = if_absent and name in self.found
        self.found |= {} if there else {name: content}
        return not there


AT_HOME = PlaceOf(backend="gcp", where=Where(project="my-project", bucket="my-bucket"))


def every_command() -> Iterator[tuple[str, Callable[[], int]]]:
    """In each of its forms, the deletion last."""
    for form in TableFormat:
        where: dict[str, Any] = {"place": AT_HOME, "output_format": form}
        for name, every in ((None, False), (None, True), (NAME, False), (NAME[-6:], False)):
            yield f"status {name} {every} {form}", partial(commands.show_status, name=name, every=every, **where)
        yield f"logs {form}", partial(commands.show_logs, name=NAME, follow=False, **where)
        for dry_run in (True, False):
            yield f"reap {dry_run} {form}", partial(commands.reap, dry_run=dry_run, **where)
    where = {"place": AT_HOME, "output_format": TableFormat.TABLE}
    yield "down", partial(commands.take_down, names=[NAME], every=False, yes=True, **where)


@pytest.mark.slow
def test_no_record_crashes_a_command_or_reaches_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(3)
    for name, content in dice.sample(list(every_case()), 150):
        objects, machines = Writable({**GOOD, name: content}), OneVm([MACHINE], now_s=LAUNCHED_S + 230)
        if dice.random() < 0.5 and name != result_object(NAME):
            del objects.found[result_object(NAME)]
        backend = SimpleNamespace(settings=id, machines=lambda _, it=machines: it, store=lambda _, it=objects: it)
        monkeypatch.setattr(backends, "load", lambda _, it=backend: it)
        for command, run in every_command():
            code = ended = None
            try:
                code = run()
            except RooflaunchError as error:
                ended = error
            said = capsys.readouterr()
            report = ended.report() if ended else ""
            for line in (*said.out.splitlines(), *said.err.splitlines(), *report.splitlines()):
                assert line.isprintable(), (command, name, content, line)
            # Only a log may be missing: whatever a record says, a VM can be seen and ended.
            assert code == 0 or (command.startswith("logs") and ended and ended.exit_code == 3), (command, report)
            if "json" in command and not command.startswith("logs"):
                json.loads(said.out, parse_constant=lambda constant: pytest.fail(f"no JSON: {constant}"))
            if command == "down":
                assert said.out == f"VM {NAME} in {ZONE} is gone\n"
