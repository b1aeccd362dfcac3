"""Records that anybody may have written into the bucket: each is one line, none is obeyed and none is a crash."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.jobs import launches
from launcher.jobs.launches import State
from launcher.jobs.records import request_object, result_object, status_object
from tests.launcher.backends.gcp.plain import INSTANCE, LAUNCHED_S, NAME, REQUEST
from tests.launcher.backends.gcp.test_gcp_status import Objects, as_bucket, as_compute, beat, result

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


@pytest.mark.parametrize("instances", [[], [INSTANCE]], ids=["no VM", "a VM"])
def test_no_record_crashes_status_or_reaches_the_terminal(instances: list[Any]) -> None:
    cases, states = 0, set()
    for name, content in every_case():
        # Beside a result the heartbeat is not read.
        others = {key: good for key, good in GOOD.items() if (key, name) != (result_object(NAME), status_object(NAME))}
        bucket = as_bucket(Objects({**others, name: content}))
        (launch,) = launches.list_launches(as_compute(instances), bucket, now_s=LAUNCHED_S + 230)
        lines = launches.render([launch], LAUNCHED_S + 230).splitlines()
        assert len(lines) == 2, content
        detail = launches.render_one(launch, "my-bucket", LAUNCHED_S + 230)
        assert all(line.isprintable() for line in (*lines, *detail.splitlines())), content
        commands = [line for line in detail.splitlines() if line.startswith("next ")]
        assert all(re.fullmatch(r"next +(launch|analyze)( [\w./:+-]+| -[fo])+", line) for line in commands), commands
        assert not any(" -rf" in line or ".." in line for line in commands), commands
        json.dumps(launch.to_json(), allow_nan=False).encode()
        cases += 1
        states.add(launch.state)
    assert cases > 1500
    assert {State.UNREADABLE, State.DONE} <= states
