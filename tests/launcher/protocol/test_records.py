"""The documents of a launch and its task: written, read back, and refused where they are something else."""

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest

from launcher.protocol import records
from launcher.protocol.records import Heartbeat, LaunchPhase, LeaseRecord, Price, Request, Result, Task, TaskRun
from tests.launcher import rented_vm
from tests.launcher.told import Golden, told
from workload.contract.errors import BundleError
from workload.contract.spec import Precision, RunSpec

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


# Fields of a record, and values that break the field's rule.
BROKEN: list[tuple[Request | Result | Heartbeat, str, object]] = [
    (REQUEST, "name", "rooflaunch-a/../b1"),
    (REQUEST, "launched_at", "soon"),
    (REQUEST, "gpu", "t4\x1b[2J"),
    (REQUEST, "gpu_count", True),
    (REQUEST, "limit_s", 0),
    (REQUEST, "spot", 0),
    (REQUEST, "zones", "us-central1-a"),
    (REQUEST, "prices", {"us-central1": {"usd_per_h": "0.5"}}),
    (REQUEST, "store", "bucket"),
    (REQUEST, "runtime", "auto"),
    (REQUEST, "options", {"flavour": "cuda\x1b[2J"}),
    (HEARTBEAT, "phases", {"booted": 3}),
    (HEARTBEAT, "runs", ["-rf"]),
    (HEARTBEAT, "last_line", None),
    (RESULT, "exit_code", "0"),
    (RESULT, "usd", float("nan")),
]


def test_what_is_no_record(golden: Golden) -> None:
    texts = {"bytes": b"\xff", "list": b"[]", "no fields": b'{"schema_version": 1}', "deep": b"[" * 100_000}
    texts["another schema"] = b'{"schema_version": 2}'
    cases: dict[str, Callable[[], object]] = {name: partial(Result.from_bytes, text) for name, text in texts.items()}
    for document, field, value in BROKEN:
        kind, told_of = type(document), {**json.loads(document.to_bytes()), field: value}
        cases[f"{field} of a {kind.__name__.lower()}"] = partial(kind.from_bytes, json.dumps(told_of).encode())
    # The words in brackets are those of Python's decoder.
    golden("no_records.txt", re.sub(r"no JSON \(.*\)", "no JSON (…)", told(cases)))


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


def test_names() -> None:
    for name in (REQUEST.name, "rooflaunch-" + "a" * 52):
        assert records.NAME.fullmatch(name)
    for name in ("rooflaunch-" + "a" * 53, "rooflaunch-a-", "rooflaunch-A1", "other-a1", "rooflaunch-a/../b1"):
        assert not records.NAME.fullmatch(name)


def test_object_names() -> None:
    assert records.request_object("n") == "launches/n/request.json"
    assert records.status_object("n") == "launches/n/status.json"
    assert records.lease_object("n", 2) == "launches/n/lease-2.json"
    assert records.result_object("n") == "launches/n/result.json"
    assert records.log_object("n") == "launches/n/startup.log"


BASE = RunSpec(model="resnet50", batch_size=32)


def test_repeats_are_blocks_of_one_run() -> None:
    task = Task.of_repeats(RunSpec(model="resnet50", repeats=3))
    assert [(run.block, run.position, run.spec.repeats, run.run_key) for run in task.runs] == [
        (1, 1, 1, ""),
        (2, 1, 1, ""),
        (3, 1, 1, ""),
    ]
    assert (task.blocks, task.job, task.devices) == (3, "", 1)
    assert Task.of_repeats(RunSpec(devices=2)).devices == 2


def test_a_run_is_written_as_its_difference_from_the_base() -> None:
    runs = (
        TaskRun(spec=BASE, block=2, position=1, run_key="00ff"),
        TaskRun(spec=RunSpec(model="resnet50", precision=Precision.BF16), block=2, position=2, run_key="11ee"),
    )
    task = Task(job="night", number=4, runs=runs)
    values = task.to_json(BASE)
    assert [run["spec"] for run in values["runs"]] == [{}, {"batch_size": None, "precision": "bf16"}]
    assert Task.from_json(values, BASE) == task
    assert "devices" not in values
    several = replace(task, devices=2)
    assert Task.from_json(several.to_json(BASE), BASE) == several


def test_a_task_says_what_it_is() -> None:
    runs = tuple(TaskRun(spec=BASE, block=block) for block in (1, 1, 2))
    assert str(Task(job="night", number=4, runs=runs)) == "3 runs in 2 blocks, task 4 of 'night'"
    assert str(Task.of_repeats(BASE)) == "1 run in 1 block, task 1"


def test_what_is_no_task(golden: Golden) -> None:
    run = {"block": 1, "position": 1, "key": "", "spec": {"batch_size": 0}}
    values: dict[str, dict[str, Any]] = {"empty": {}, "no list": {"runs": 3}, "no block": {"runs": [{"spec": {}}]}}
    values["a spec that breaks a rule"] = {"runs": [run]}
    head = {"job": "a", "number": 1}
    cases = {name: partial(Task.from_json, {**head, **value}, BASE) for name, value in values.items()}
    golden("no_tasks.txt", told(cases))
