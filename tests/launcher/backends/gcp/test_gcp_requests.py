"""Every request that this project sends to Compute Engine, as Google's client writes it, against a golden file."""

import json
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest

from launcher.backends.gcp import answers
from launcher.backends.gcp import compute as border
from launcher.backends.gcp import plan as planning
from launcher.backends.gcp.answers import Operation
from launcher.backends.gcp.compute import Compute
from launcher.backends.shared_plan import program_text
from tests.launcher.backends.gcp.compute_bodies import plain_body
from tests.launcher.backends.gcp.fake_compute import FakeCompute
from tests.launcher.backends.gcp.gcp_plans import PLANS, planned

pytestmark = pytest.mark.world

ZONE, NAME, PROJECT = "us-central1-a", "rooflaunch-t4-20261121-142530-c0ffee", "my-project"
ID = "0123456789abcdef0123456789abcdef"
OURS = {"rooflaunch": "launch", "rooflaunch-limit": "3600"}
BODY = plain_body(NAME, ZONE) | {"labels": OURS}

QUESTIONS: dict[str, Callable[[Compute], Any]] = {
    "insert": lambda compute: compute.insert(ZONE, BODY, ID),
    "wait": lambda compute: compute.wait(Operation(name="operation-2", zone=ZONE), 1.0),
    "get": lambda compute: compute.get(ZONE, NAME),
    "instances": lambda compute: compute.instances(),
    "preempted": lambda compute: compute.preempted(ZONE, NAME),
    "serial": lambda compute: compute.serial(ZONE, NAME, 5),
    "guest_attributes": lambda compute: compute.guest_attributes(ZONE, NAME),
    "disks": lambda compute: compute.disks(),
    "region_quotas": lambda compute: compute.region_quotas("us-central1"),
    "project_quotas": lambda compute: compute.project_quotas(),
    "get_image": lambda compute: compute.get_image("ubuntu-os-cloud", "ubuntu-2204-lts"),
    "delete": lambda compute: compute.delete(ZONE, NAME),
    "delete_disk": lambda compute: compute.delete_disk(ZONE, "rooflaunch-disk"),
}


def readable(url: str) -> str:
    """The address without what is of the protocol, for every service."""
    return re.sub(r"[?&]\$alt=[^&]*", "", urllib.parse.unquote(url).removeprefix("/compute/v1/projects/"))


def body(content: bytes) -> str:
    return f" {json.dumps(json.loads(content), sort_keys=True)}" if content else ""


def test_requests_are_the_committed_ones(monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]) -> None:
    """The lists once more in an outage, in which zones are asked by themselves."""
    lines: list[str] = []
    with FakeCompute(page_size=1) as fake:
        monkeypatch.setenv(answers.ENDPOINT_VARIABLE, fake.url)
        compute = border.connect(PROJECT)
        fake.add_vm(f"{NAME}-1", "europe-west4-b", project=PROJECT, labels=OURS)
        fake.add_disk("rooflaunch-disk", labels=OURS)

        def ask(name: str, question: Callable[[Compute], Any]) -> None:
            fake.sent.clear()
            question(compute)
            lines.append(name)
            lines.extend(f"  {method} {readable(url)}{body(content)}" for method, url, content in fake.sent)

        for name, question in QUESTIONS.items():
            ask(name, question)
        fake.add_disk("rooflaunch-disk", labels=OURS)
        fake.outage("europe-west4-b", direct=False)
        for name in ("instances", "disks"):
            ask(f"{name} in an outage", QUESTIONS[name])
    golden("requests.txt", "\n".join(lines) + "\n")


def test_no_question_is_left_out() -> None:
    others = {"calls", "counted", "now_s"}  # which ask nothing by themselves, or what another one asks
    assert {name for name in vars(Compute) if not name.startswith("_")} - others == set(QUESTIONS)


@pytest.mark.parametrize("name", PLANS)
def test_no_field_of_an_insert_is_lost_on_its_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's message takes each field of the plan's body, and the wire has each of them again."""
    plan = planned(**PLANS[name])
    zone = plan.zones[0]
    asked = plan.body(zone, request_id=ID)
    with FakeCompute() as fake:
        monkeypatch.setenv(answers.ENDPOINT_VARIABLE, fake.url)
        border.connect(PROJECT).insert(zone, asked, ID)
        [(_, url, _)] = fake.sent
        assert as_numbers(fake.bodies[0]) == as_numbers(asked)
    assert url.startswith(f"/compute/v1/projects/{PROJECT}/zones/{zone}/instances?")
    assert ID in url.replace("-", "")
    # What it is that the VM gets to read, byte by byte.
    items = {item["key"]: item["value"] for item in fake.bodies[0]["metadata"]["items"]}
    for key, program in planning.PROGRAMS.items():
        assert items[key] == program_text(planning.PROGRAM_FOLDER / program)


def as_numbers(document: Any) -> Any:
    """64-bit integers are texts in Google's JSON, and in ours where they are in its documentation."""
    if isinstance(document, dict):
        return {key: as_numbers(value) for key, value in document.items()}
    if isinstance(document, list):
        return [as_numbers(value) for value in document]
    return int(document) if isinstance(document, str) and document.isdigit() else document
