"""The documents of a launch: written, read back, and refused where they are something else."""

import json
from dataclasses import fields, replace

import pytest

from launcher.protocol import records
from launcher.protocol.records import Heartbeat, LaunchPhase, LeaseRecord, Price, Request, Result
from tests.launcher import rented_vm
from workload.contract.errors import BundleError, ExitCode

AT = "2026-11-21T14:26:00Z"
REQUEST = replace(rented_vm.REQUEST, spec={"model": "resnet18", "dataset": 'it\'s "$(quoted)"\n'})
RESULT = Result(exit_code=0, zone="us-central1-a", runs=["r1"], phases={LaunchPhase.BOOTED: AT}, ended_at=AT, usd=0.02)
HEARTBEAT = Heartbeat(at=AT, zone="us-central1-a", phases={LaunchPhase.BOOTED: AT}, runs=["r1"], last_line="step 3")
LEASE = LeaseRecord(at=AT, host="node-1", boot="0-1", process="pid:[1] 2 3", released=True)


@pytest.mark.parametrize("document", [REQUEST, RESULT, HEARTBEAT, LEASE], ids=lambda each: type(each).__name__)
def test_documents_come_back_as_they_went(document: Request | Result | Heartbeat | LeaseRecord) -> None:
    assert type(document).from_bytes(document.to_bytes()) == document


def test_a_field_of_a_later_minor_version_is_left_out() -> None:
    told = {**json.loads(RESULT.to_bytes()), "new": 1}
    assert Result.from_bytes(json.dumps(told).encode()) == RESULT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "not a readable result of a launch: no JSON ('utf-8' codec can't decode"),
        (b"[]", "not a readable result of a launch: no JSON object"),
        (b'{"schema_version": 1}', "not a readable result of a launch: 'exit_code' is missing"),
        (b"[" * 100_000, "not a readable result of a launch: no JSON (maximum recursion depth"),
        (b'{"schema_version": 2}', "a launch's record has schema 2; this version of rooflaunch reads schema 1"),
    ],
    ids=["bytes", "list", "fields", "deep", "other"],
)
def test_something_else_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        Result.from_bytes(content)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code is ExitCode.BAD_BUNDLE


@pytest.mark.parametrize(
    ("document", "field", "value", "why"),
    [
        (REQUEST, "name", "rooflaunch-a/../b1", "name must be the name of a launch; got 'rooflaunch-a/../b1'"),
        (REQUEST, "launched_at", "soon", "launched_at must be a time in ISO 8601; got 'soon'"),
        (REQUEST, "gpu", "t4\x1b[2J", r"gpu must be one word of letters, digits and ._:@/+-; got 't4\x1b[2J'"),
        (REQUEST, "gpu_count", True, "gpu_count must be a whole number up to 10000; got True"),
        (REQUEST, "limit_s", 0, "limit_s must be seconds from 1 to 10368000; got 0"),
        (REQUEST, "spot", 0, "spot must be true or false; got 0"),
        (REQUEST, "zones", "us-central1-a", "zones must be a list of zones; got 'us-central1-a'"),
        (
            REQUEST,
            "prices",
            {"us-central1": {"usd_per_h": "0.5"}},
            "prices must be an object of prices by region; got {'us-central1': {'usd_per_h': '0.5'}}",
        ),
        (REQUEST, "store", "bucket", "store must be the address of a bucket or a folder; got 'bucket'"),
        (REQUEST, "runtime", "auto", "runtime must be process or docker; got 'auto'"),
        (
            REQUEST,
            "options",
            {"flavour": "cuda\x1b[2J"},
            (
                r"options must be an object of words, whole numbers, flags, and lists of these; "
                r"got {'flavour': 'cuda\x1b[2J'}"
            ),
        ),
        (HEARTBEAT, "phases", {"booted": 3}, "phases must be an object of times in ISO 8601; got {'booted': 3}"),
        (HEARTBEAT, "runs", ["-rf"], "runs must be a list of run ids: letters, digits and ._+-; got ['-rf']"),
        (HEARTBEAT, "last_line", None, "last_line must be a text; got None"),
        (RESULT, "exit_code", "0", "exit_code must be a whole number up to 10000; got '0'"),
        (RESULT, "usd", float("nan"), "usd must be USD from 0 to 1000000, or null; got nan"),
    ],
)
def test_a_field_that_breaks_its_rule_is_named(
    document: Request | Result | Heartbeat, field: str, value: object, why: str
) -> None:
    told = {**json.loads(document.to_bytes()), field: value}
    kind = type(document)
    with pytest.raises(BundleError) as caught:
        kind.from_bytes(json.dumps(told).encode())
    assert str(caught.value) == f"not a readable {kind.__name__.lower()} of a launch: {why}"


@pytest.mark.parametrize("store", ["gs://my-bucket", "gs://my.bucket_1/prefix", "/srv/my results"])
def test_a_store_is_a_bucket_or_a_folder(store: str) -> None:
    assert Request.from_bytes(replace(REQUEST, store=store).to_bytes()).store == store


def test_every_field_has_a_rule() -> None:
    named = {item.name for document in (REQUEST, RESULT, HEARTBEAT, LEASE) for item in fields(document)}
    assert named == set(records.RULES)


@pytest.mark.parametrize("beside", ["0.1", -1, [], True, 1e308])
@pytest.mark.parametrize("name", ["disk_usd_per_h", "address_usd_per_h"])
def test_prices_of_disk_and_address_are_sums(name: str, beside: object) -> None:
    prices = {"us-central1": {**dict(REQUEST.prices)["us-central1"], name: beside}}
    told = {**json.loads(REQUEST.to_bytes()), "prices": prices}
    with pytest.raises(BundleError, match="prices must be an object of prices by region"):
        Request.from_bytes(json.dumps(told).encode())


def test_price_of_a_zone_with_what_it_leaves_out() -> None:
    price = REQUEST.price("us-central1-f")
    assert price == Price(usd_per_h=0.54, source="a list", read="2026-07")
    assert (price.whole_usd_per_h, price.uncounted) == (0.54, "disk, address, traffic and tax")
    whole = replace(price, disk_usd_per_h=0.02, address_usd_per_h=0.0)
    assert (whole.usd(1800), whole.uncounted) == (pytest.approx(0.28), "traffic and tax")
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
    assert records.lease_object("n", 2) == "launches/n/lease-2.json"
    assert records.result_object("n") == "launches/n/result.json"
    assert records.log_object("n") == "launches/n/startup.log"
