"""run.json's definition against real bundles, its JSON Schema, and code that might not use the definition."""

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from analysis.importing import UserFacts, import_file
from benchmarks.synthetic_bundles import make, make_record
from tests import sources
from workload.contract import bundle, record
from workload.contract.errors import BundleError, RunFailedError, UsageError
from workload.contract.fields import encode, unknown
from workload.contract.record import Record, Spec
from workload.contract.record_sections import Environment
from workload.contract.spec import Device, RunSpec
from workload.contract.trainer import Context
from workload.environment.machine import HostSystem
from workload.run import unfinished

ROOT = Path(__file__).parents[3]
REAL = sorted((ROOT / "tests/bundles").glob("*/*/run.json")) + sorted((ROOT / "analysis/example").glob("*/run.json"))
SCHEMA = record.json_schema()
NAMES = [path.parent.name for path in REAL]


def leaves(value: Any, where: str = "") -> dict[str, Any]:
    """Every value that is not None or empty, by its dotted path."""
    if not isinstance(value, dict):
        return {} if value in (None, []) else {where: value}
    return {path: leaf for name, inner in value.items() for path, leaf in leaves(inner, f"{where}.{name}").items()}


def valid(document: Any) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


# --- what is defined


@pytest.mark.parametrize("path", REAL, ids=NAMES)
def test_a_real_bundle_keeps_every_value(path: Path) -> None:
    """Runs in processes and containers, on rented machines, killed and imported ones lose no value."""
    document = json.loads(path.read_text())
    reading = record.read(document)
    assert reading.remarks == []
    written = record.to_json(reading.record)
    valid(written)
    assert leaves(document) == leaves(written)


@pytest.mark.world
def test_bundles_of_today_are_valid(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("iteration,step_time_ms,loss\n0,120,6.9\n1,100,6.8\n2,101,6.7\n")
    folders = [
        make(tmp_path, 1),
        *import_file(log, UserFacts(model="resnet18", batch_size=4), output=tmp_path / "imported"),
        unfinished.write_new(tmp_path, RunSpec(device=Device.CPU), Context(), RunFailedError("killed", hint="again")),
    ]
    for folder in folders:
        document = bundle.read(folder).document
        assert document["schema_version"] == record.SCHEMA_VERSION
        valid(document)
        assert list(unknown(Record, {name: part for name, part in document.items() if name != "schema_version"})) == []


def test_the_schema_refuses_what_the_reader_leaves_out() -> None:
    document = record.to_json(record.read(make_record(0, [0.1] * 5)).record)
    valid(document)
    for change in ({"status": "fine"}, {"spec": {"model": "m"}}, {"timing": {"measured_s": 0}}, {"error": 3}):
        with pytest.raises(jsonschema.ValidationError):
            valid({**document, **change})


@pytest.mark.world
def test_what_the_trainer_collects_has_a_field() -> None:
    """A fact without a field would be dropped without a remark."""
    from workload.environment import collect, device

    machine = HostSystem()
    facts = collect.collect(device=device.device_facts(machine, "cpu"), dataset_path=ROOT, machine=machine)
    assert list(unknown(Environment, facts)) == []


def test_the_spec_of_a_record_is_every_option_and_gives_it_back() -> None:
    # The length of the data is no option: our trainer counts it.
    names = [field.name for field in dataclasses.fields(Spec) if field.name != "dataset_images"]
    assert names == [field.name for field in dataclasses.fields(RunSpec)]
    spec = RunSpec(model="vgg11", grad_accumulation=2, min_seconds=0.5).filled(Device.CPU, cpus=2)
    assert Spec.from_run_spec(spec).run_spec() == spec
    assert RunSpec.from_json(spec.to_json()) == spec
    assert RunSpec.from_json({"model": "vgg11", "an option of a later version": 1, "subset": None}).model == "vgg11"
    with pytest.raises(UsageError, match="batch size must be a positive integer; got '0'"):
        RunSpec.from_json({"batch_size": 0})


# --- reading other documents


def test_keys_of_a_later_version_are_kept_out() -> None:
    known = record.read(make_record(0, [0.1] * 5))
    more = make_record(0, [0.1] * 5)
    more["moon"] = {"phase": "full"}
    more["timing"]["phase_of_the_moon"] = "full"
    more["ceilings"]["flop_per_s"]["fp32"]["moon"] = 1
    reading = record.read(more)
    assert (reading.record, reading.remarks) == (known.record, [])


def test_a_broken_part_takes_no_other_with_it() -> None:
    odd = make_record(0, [0.1] * 5)
    odd["environment"]["host"]["caches"] = [{"level": 3}, 7, {"level": "three"}]
    odd["complexity"]["flop_by_op"] = {"convolution": 5, "matmul": "many"}
    odd["profile"] = {"status": "completed", "top": {}, "checks": {"backward": {"present": True}}}
    reading = record.read(odd)
    assert [cache.level for cache in reading.record.environment.host.caches or ()] == [3, None]
    assert reading.record.complexity.flop_by_op == {"convolution": 5, "matmul": None}
    assert [remark.removeprefix("run.json: ") for remark in reading.remarks] == [
        "environment.host.caches.1 is not an object; left out",
        "environment.host.caches.2.level is not a number from 0 to 1e+30; left out",
        "complexity.flop_by_op.matmul is not a number from 0 to 1e+30; left out",
        "profile.top is not a list; left out",
    ]


def test_a_record_that_is_none_names_its_folder(tmp_path: Path) -> None:
    bundle.write_document(tmp_path, {"run_id": "a"})
    bundle.seal(tmp_path)
    with pytest.raises(BundleError) as caught:
        _ = bundle.read(tmp_path).record
    assert str(caught.value) == f"'{tmp_path}' cannot be used: run.json has no usable status"


def test_numbers_keep_their_digits() -> None:
    document = record.to_json(record.read(make_record(3, [0.1] * 5)).record)
    assert document["environment"]["software"]["cudnn"] == 92600
    assert isinstance(document["complexity"]["parameters"], int)
    assert encode(record.read(document).record) == {
        name: value for name, value in document.items() if name != "schema_version"
    }


# --- nobody goes around it

SECTIONS = {"environment", "timing", "complexity", "ceilings", "spec_origin", "usage", "cost", "run_key"}
# What reads or writes other documents that have a key of such a name.
OTHER_DOCUMENTS = {
    "workload/measure/ceilings.py": "a file of its own",
    "launcher/backends/ssh/keeper.py": "the variables of a process",
    "workload/contract/record.py": "the reader itself",
    "workload/measure/timing.py": "when each phase of the timeline began",
}
PATH = tuple(f"{section}." for section in SECTIONS | {"spec", "bound", "imported"})


def bare_keys(path: Path) -> list[str]:
    """`x["timing"]`, `x.get("timing")` and "timing.step_s.median", each with its line."""
    named: list[tuple[int, str]] = []
    for node in ast.walk(sources.tree(path)):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            named += [(node.lineno, str(node.slice.value))] if node.slice.value in SECTIONS else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            words = [word.value for word in node.args[:1] if isinstance(word, ast.Constant)]
            named += [(node.lineno, str(word)) for word in words if word in SECTIONS]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_path = node.value.startswith(PATH) and node.value.replace(".", "").replace("_", "").isalpha()
            named += [(node.lineno, node.value)] if is_path else []
    return [f"{path.relative_to(ROOT)}:{line} {name}" for line, name in named]


def test_run_json_is_read_and_written_through_the_record_alone() -> None:
    around = [
        found
        for path in sources.modules()
        if path.relative_to(ROOT).as_posix() not in OTHER_DOCUMENTS
        for found in bare_keys(path)
    ]
    assert around == []
    assert all(bare_keys(ROOT / name) for name in OTHER_DOCUMENTS), "an exception that is none any more"
