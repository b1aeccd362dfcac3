"""Records that anybody may have written into the bucket: each is one line, none is obeyed and none is a crash."""

import json
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.backends.gcp.backend import ComputeEngine
from launcher.backends.gcp.options import Where
from launcher.backends.gcp.resources import Operation
from launcher.jobs import commands, launches
from launcher.jobs.commands import Place as PlaceOf
from launcher.jobs.commands import Ports
from launcher.jobs.launches import LaunchState
from launcher.protocol.backend import Listing, Output
from launcher.protocol.records import request_object, result_object, status_object
from tests.launcher.backends.gcp.plain import INSTANCE, LAUNCHED_S, NAME, REQUEST, ZONE
from tests.launcher.backends.gcp.test_gcp_status import Objects, Place, as_store, beat, result, session_of
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


@pytest.mark.slow
@pytest.mark.parametrize("instances", [[], [INSTANCE]], ids=["no VM", "a VM"])
def test_no_record_crashes_status_or_reaches_the_terminal(instances: list[Any]) -> None:
    cases, states = 0, set()
    for name, content in every_case():
        # Beside a result the heartbeat is not read.
        others = {key: good for key, good in GOOD.items() if (key, name) != (result_object(NAME), status_object(NAME))}
        objects = Objects({**others, name: content})
        (launch,) = launches.list_launches(session_of(Place(instances, now_s=LAUNCHED_S + 230), objects))
        lines = launches.render([launch], LAUNCHED_S + 230).splitlines()
        assert len(lines) == 2, content
        detail = launches.render_one(launch, as_store(objects), LAUNCHED_S + 230)
        assert all(line.isprintable() for line in (*lines, *detail.splitlines())), content
        commands = [line for line in detail.splitlines() if line.startswith("next ")]
        assert all(re.fullmatch(r"next +(launch|analyze)( [\w./:+-]+| -[fo])+", line) for line in commands), commands
        assert not any(" -rf" in line or ".." in line for line in commands), commands
        json.dumps(launch.to_json(), allow_nan=False).encode()
        cases += 1
        states.add(launch.state)
    assert cases > 1500
    assert {LaunchState.UNREADABLE, LaunchState.DONE} <= states


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Objects:
    """`launch` over records in memory, beside a VM that is deleted when it is asked for; nothing else can be asked."""
    objects, vms = Objects({}), [INSTANCE]

    def delete(*_: str) -> Operation:
        vms.clear()
        return Operation(name="o", zone=ZONE)

    def write(name: str, content: bytes, *, if_absent: bool = False) -> bool:
        there = if_absent and name in objects.found
        objects.found |= {} if there else {name: content}
        return not there

    compute: Any = SimpleNamespace(
        project="my-project",
        instances=lambda: Listing(there=tuple(vms)),
        disks=Listing,
        now_s=lambda: LAUNCHED_S + 230,
        preempted=lambda *_: False,
        get=lambda *_: None,
        delete=delete,
        serial=lambda _zone, _name, start: Output(text="", next_start=start),
    )
    objects.write = write  # type: ignore[attr-defined]
    compute.counted = lambda: compute
    compute.calls = {}
    engine = ComputeEngine(
        compute=lambda _: compute, bucket=lambda _: as_store(objects), default_project=lambda: "my-project"
    )
    ports = Ports(
        backend=lambda _: engine,
        now=lambda: 0.0,
        sleep=lambda _: None,
        is_terminal=lambda: False,
        confirm=lambda *_: False,
    )
    monkeypatch.setattr(commands, "real_ports", lambda: ports)
    monkeypatch.setattr(objects, "back", lambda: vms.append(INSTANCE) if not vms else None, raising=False)
    return objects


AT_HOME = PlaceOf(backend="gcp", where=Where(project="my-project", bucket="my-bucket"))


def every_command() -> Iterator[tuple[str, Callable[[], int]]]:
    """In each of its forms, the deletion last."""
    for form in TableFormat:
        where: dict[str, Any] = {"place": AT_HOME, "output_format": form}
        yield f"status {form}", partial(commands.show_status, name=None, every=False, **where)
        yield f"status --all {form}", partial(commands.show_status, name=None, every=True, **where)
        yield f"status RUN {form}", partial(commands.show_status, name=NAME, every=False, **where)
        yield f"status TOKEN {form}", partial(commands.show_status, name=NAME[-6:], every=False, **where)
        yield f"logs {form}", partial(commands.show_logs, name=NAME, follow=False, **where)
        yield f"reap --dry-run {form}", partial(commands.reap, dry_run=True, **where)
        yield f"reap {form}", partial(commands.reap, dry_run=False, **where)
    yield (
        "down",
        partial(
            commands.take_down, names=[NAME], every=False, yes=True, output_format=TableFormat.TABLE, place=AT_HOME
        ),
    )


@pytest.mark.slow
def test_no_record_crashes_a_command_or_reaches_the_terminal(
    world: Objects, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(3)
    for name, content in dice.sample(list(every_case()), 150):
        world.found = {**GOOD, name: content}
        if dice.random() < 0.5 and name != result_object(NAME):
            del world.found[result_object(NAME)]
        world.back()  # type: ignore[attr-defined]
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
