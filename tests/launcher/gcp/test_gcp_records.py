"""The documents of a launch: written, read back, and refused where they are something else."""

import json

import pytest

from launcher.gcp import records
from launcher.gcp.records import Heartbeat, Phase, Price, Request, Result
from workload.errors import BundleError, ExitCode

REQUEST = Request(
    name="rooflaunch-t4-20261121-142530-a1b2c3",
    launched_at="2026-11-21T14:25:30Z",
    project="p",
    bucket="b",
    gpu="t4",
    gpu_count=1,
    machine_type="n1-standard-4",
    spot=False,
    zones=["us-central1-a"],
    image="host/name@sha256:00",
    flavour="cuda",
    vm_image="projects/i/global/images/family/f",
    limit_s=3600,
    spec={"model": "resnet18", "dataset": 'it\'s "$(quoted)"\n'},
    prices={"us-central1": {"usd_per_h": 0.54, "source": "list", "read": "2026-07"}},
)
RESULT = Result(exit_code=0, zone="us-central1-a", runs=["r1"], phases={Phase.BOOTED: "t"}, ended_at="t", usd=0.02)
HEARTBEAT = Heartbeat(at="t", zone="us-central1-a", phases={Phase.BOOTED: "t"}, runs=["r1"], last_line="step 3")


@pytest.mark.parametrize("document", [REQUEST, RESULT, HEARTBEAT], ids=lambda each: type(each).__name__)
def test_documents_come_back_as_they_went(document: Request | Result | Heartbeat) -> None:
    assert type(document).from_bytes(document.to_bytes()) == document


def test_a_field_of_a_later_minor_version_is_left_out() -> None:
    told = {**json.loads(RESULT.to_bytes()), "new": 1}
    assert Result.from_bytes(json.dumps(told).encode()) == RESULT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "no readable result of a launch: "),
        (b"[]", "no readable result of a launch: list indices must be integers or slices, not str"),
        (b"{}", "no readable result of a launch: 'schema_version'"),
        (b'{"schema_version": 1}', "no readable result of a launch: Result.__init__() missing 5 required"),
        (b'{"schema_version": "1"}', "no readable result of a launch: '<=' not supported"),
        (b"[" * 100_000, "no readable result of a launch: maximum recursion depth"),
        (b'{"schema_version": 2}', "a launch's record has schema 2; this version reads up to 1"),
    ],
    ids=["bytes", "list", "empty", "fields", "version", "deep", "newer"],
)
def test_something_else_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        Result.from_bytes(content)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code is ExitCode.BAD_BUNDLE


def test_the_price_is_that_of_the_zone() -> None:
    assert REQUEST.price("us-central1-f") == Price(usd_per_h=0.54, source="list", read="2026-07")
    assert REQUEST.price("us-central2-a") is None


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        (REQUEST.name, True),
        ("rooflaunch-" + "a" * 52, True),
        ("rooflaunch-" + "a" * 53, False),
        ("rooflaunch-a-", False),
        ("rooflaunch-A1", False),
        ("other-a1", False),
        ("rooflaunch-a/../b1", False),
    ],
)
def test_names(name: str, allowed: bool) -> None:
    assert bool(records.NAME.fullmatch(name)) is allowed


def test_object_names() -> None:
    assert records.request_object("n") == "launches/n/request.json"
    assert records.status_object("n") == "launches/n/status.json"
    assert records.result_object("n") == "launches/n/result.json"
    assert records.log_object("n") == "launches/n/startup.log"
