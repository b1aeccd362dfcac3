import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from analysis.loading.run_row import RUN_COLUMNS, row_of
from benchmarks.synthetic_bundles import change, make_record
from tests.analysis.sentence_runs import Golden
from workload.contract.errors import BundleError

STEP_S = [0.1, 0.11, 0.09, 0.1, 0.12]


def record(**changes: Any) -> dict[str, Any]:
    made = make_record(0, STEP_S)
    for where, value in changes.items():
        change(made, where, value)
    return made


def test_facts_keep_their_values() -> None:
    row = row_of(record())
    cells = row.cells
    assert row.remarks == []
    assert set(cells) == set(RUN_COLUMNS)
    assert cells["run_id"] == "20261101T000000Z-gcp-t4-us-central1-a-resnet18-b32-fp32-000000"
    assert (cells["model"], cells["batch_size"], cells["precision"]) == ("resnet18", 32, "fp32")
    assert (cells["device_name"], cells["driver_version"], cells["zone"]) == ("Tesla T4", "580.95.05", "us-central1-a")
    assert (cells["spot"], cells["commit_dirty"], cells["imported"]) == (True, False, False)
    assert cells["started_at"] == datetime(2026, 11, 1, tzinfo=UTC)
    assert (cells["step_median_s"], cells["step_mean_s"], cells["steps"]) == (0.1, pytest.approx(0.104), 5)
    assert (cells["repeat"], cells["repeats"]) == (1, 3)


def test_what_is_derived() -> None:
    cells = row_of(record()).cells
    # 160 images in (0.52 s + 5 x 0.1 ms) x 1.0005.
    assert cells["images_per_s"] == pytest.approx(160 / (0.5205 * 1.0005), rel=1e-12)
    assert cells["region"] == "us-central1"
    assert cells["ceiling_flop_per_s"] == 7.2e12
    assert cells["ceiling_bytes_per_s"] == 2.6e11
    assert json.loads(cells["ceiling_conditions"]) == {"sm_clock_mhz": 1590, "power_w": 69.8, "temperature_c": 61}
    assert cells["peak_memory_bytes"] == 2_400_000_000


@pytest.mark.parametrize(
    ("changes", "column", "value"),
    [
        ({"environment__device__type": "cpu"}, "peak_memory_bytes", 2_900_000_000),
        ({"environment__device__type": "mps"}, "peak_memory_bytes", None),
        ({"status": "failed", "timing__measured_s": None}, "images_per_s", None),
        ({"status": "failed", "timing__images": 0}, "images_per_s", None),
        ({"status": "failed", "timing__step_s": None}, "step_median_s", None),
        ({"imported": {}, "timing__measured_s": None}, "images_per_s", None),
        ({"ceilings": None}, "ceiling_flop_per_s", None),
        ({"spec__precision": "bf16"}, "ceiling_flop_per_s", None),
        ({"spec__precision": None}, "ceiling_flop_per_s", None),
        ({"environment__cloud": None}, "region", None),
        ({"environment__cloud__zone": "nowhere"}, "region", None),
        ({"environment__cloud": {"zone": "use1-az4", "region": "us-east-1"}}, "region", "us-east-1"),
        ({"energy": {"joules": 40.0}}, "joules_per_image", 0.25),
        ({"status": "failed", "energy": {"joules": 40.0}, "timing__images": 0}, "joules_per_image", None),
        ({"energy": {"joules": 0}}, "joules_per_image", None),
        ({"energy": {"joules": 40.0}, "ranks": {"images": 320, "images_per_s": 9.0}}, "joules_per_image", 0.125),
        ({"energy": {"joules": 40.0}, "ranks": {"images": 320}}, "joules_per_image", None),
        ({"notes": ["a", "b"]}, "notes", ["a", "b"]),
        ({"notes": None}, "notes", []),
        ({"imported": {"file": "log.csv", "sha256": "0" * 64}}, "imported", True),
        ({"imported": {"file": "log.csv", "sha256": "0" * 64}}, "imported_file", "log.csv"),
    ],
)
def test_absent_is_none_never_zero(changes: dict[str, Any], column: str, value: Any) -> None:
    made = record()
    for where, changed in changes.items():
        change(made, where, changed)
    row = row_of(made)
    assert row.cells[column] == value
    assert row.remarks == []


def test_content_of_unknown_keys_is_ignored() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert row_of(record(unheard_of=[deep, math.nan, 10**400, "x" * 10_001])).remarks == []
    with pytest.raises(BundleError, match=r"timing\.images must be"):
        row_of(record(timing__images=deep))


# A field, and a value that it cannot have.
WRONG: dict[str, tuple[tuple[str, Any], ...]] = {
    "of a completed run": (
        ("timing__measured_s", None),
        ("timing__images", None),
        ("timing__images", 0),
        ("timing__step_s", None),
    ),
    "of its times": (
        ("timing__measured_s", "fast"),
        ("timing__measured_s", math.nan),
        ("timing__measured_s", -1.0),
        ("timing__images", -3200),
        ("timing__images", 10**400),
        ("timing__step_s__median", -0.1),
        ("timing__data_wait_fraction", -0.1),
        ("timing__setup_s", {"x" * 80: 1}),
    ),
    "of another type": (
        ("complexity__parameters", "many"),
        ("complexity__parameters", -1),
        ("environment__place", 3),
        ("error", "é" * 10_001),
        ("environment__device", "T4"),
        ("environment__cloud__spot", "yes"),
        ("timing__started_at", "2026-11-01T00:00:00"),
        ("timing__started_at", "soon"),
        ("timing__started_at", "0001-01-01T00:00:00+10:00"),
        ("ceilings__flop_per_s__fp32", 7),
        ("ceilings__flop_per_s__fp32__median", -1),
        ("ceilings__flop_per_s__fp32__sustained", "fast"),
        ("notes", ["text", 3]),
    ),
    "that every run has": (
        ("run_id", None),
        ("status", None),
        ("status", "fine"),
        ("spec", None),
        ("spec__batch_size", 0),
        ("spec__batch_size", True),
        ("spec__batch_size", 2**70),
    ),
}


def test_wrong_values_are_left_out_or_refused(golden: Golden) -> None:
    lines: list[str] = []
    for group, fields in WRONG.items():
        lines.append(f"## {group}")
        for where, value in fields:
            try:
                said = row_of(record(**{where: value})).remarks
            except BundleError as error:
                said = error.report().splitlines()
            lines += [f"{where} {str(value)[:40]}", *(f"    {line}" for line in said)]
    golden("run_row.txt", "\n".join([*lines, ""]))


def test_half_a_surrogate_pair_can_be_stored() -> None:
    cells = row_of(record(spec__model=json.loads('"res\\ud800net"'))).cells
    assert cells["model"] == "res\\ud800net"
    cells["model"].encode()


def test_ceilings_are_a_row_each() -> None:
    ceilings = row_of(record()).ceilings
    assert [(each["quantity"], each["name"]) for each in ceilings] == [
        ("flop_per_s", "fp32"),
        ("bytes_per_s", "copy"),
        ("bytes_per_s", "triad"),
    ]
    assert ceilings[0]["median_per_s"] == 7.2e12
    assert ceilings[0]["samples"] == 30
    assert ceilings[1]["conditions"] is None
    assert ceilings[1]["measured_at"] == datetime(2026, 11, 1, tzinfo=UTC)
