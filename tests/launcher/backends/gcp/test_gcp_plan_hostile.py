"""Hostile text in the options of a plan."""

import re
from typing import Any

import pytest

from launcher.backends.gcp.planned_vm import VmPlan
from launcher.protocol.records import Request
from launcher.sizes import shown
from tests.launcher.backends.gcp.gcp_plans import planned, refused

pytestmark = pytest.mark.usefixtures("made_up_programs")

HOSTILE = ["$(reboot)", "`reboot`", "a'b\"c", "x\nrooflaunch-driver=none", "; rm -rf /", "é\u2028\0\ud800", "x" * 4096]
HOSTILE_IDS = ["command", "backticks", "quotes", "newline", "semicolon", "unicode", "4 KB"]


@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE_IDS)
def test_run_options_travel_as_data(text: str) -> None:
    """The trainer judges them; on their way they are JSON in one metadata value and nowhere else."""
    plan = planned(run={"model": text})
    body = plan.shown_body()
    items = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    carrier = items.pop("rooflaunch-request")
    assert Request.from_bytes(carrier.encode()).spec["model"] == text
    assert carrier.isascii()
    rest = {**body, "metadata": items}
    assert rest == {**planned().shown_body(), "metadata": items}
    assert items == {key: value for key, value in _items(planned()).items() if key != "rooflaunch-request"}
    assert len(plan.text().splitlines()) == len(planned(run={"model": "vgg16"}).text().splitlines())


def _items(plan: VmPlan) -> dict[str, str]:
    return {item["key"]: item["value"] for item in plan.shown_body()["metadata"]["items"]}


@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE_IDS)
@pytest.mark.parametrize("name", ["gpu", "zones", "machine_type", "image", "dataset"])
def test_hostile_choices_are_refused_in_one_line(name: str, text: str) -> None:
    options: dict[str, Any] = {name: (text,) if name == "zones" else text}
    message, _ = refused(**({"run": options} if name == "dataset" else options))
    assert shown(text) in message
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 1000


def test_a_request_too_large_for_metadata() -> None:
    message, hint = refused(run={"model": "x" * 250_000})
    assert re.fullmatch(r"the request has 25\d{4} bytes; a VM's metadata takes 250000", message)
    assert hint == "shorter values for --model and the other run options"
