import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from analysis.loading.run_row import RUN_COLUMNS, row_of
from benchmarks.synthetic_bundles import change, make_record
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


def test_the_roofs_are_what_the_device_sustains() -> None:
    slowed = {
        "ceilings__flop_per_s__fp32__burst": 7.6e12,
        "ceilings__flop_per_s__fp32__sustained": 5.1e12,
        "ceilings__bytes_per_s__copy__burst": 2.8e11,
        "ceilings__bytes_per_s__copy__sustained": 2.1e11,
    }
    row = row_of(record(**slowed))
    assert (row.cells["ceiling_flop_per_s"], row.cells["ceiling_bytes_per_s"]) == (5.1e12, 2.1e11)
    product = row.ceilings[0]
    columns = ("roof_per_s", "median_per_s", "burst_per_s", "sustained_per_s")
    assert [product[column] for column in columns] == [5.1e12, 7.2e12, 7.6e12, 5.1e12]
    before = row_of(record()).ceilings[0]
    assert [before[column] for column in columns] == [7.2e12, 7.2e12, None, None]


def test_a_sustained_rate_that_is_none_is_remarked_and_left_out() -> None:
    row = row_of(record(ceilings__flop_per_s__fp32__sustained="fast"))
    assert row.remarks == ["run.json: ceilings.flop_per_s.fp32.sustained is not a positive number; left out"]
    assert row.cells["ceiling_flop_per_s"] == 7.2e12


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


@pytest.mark.parametrize(
    ("where", "value", "field"),
    [
        ("timing__measured_s", None, "timing.measured_s"),
        ("timing__images", None, "timing.images"),
        ("timing__images", 0, "timing.images"),
        ("timing__step_s", None, "timing.step_s.median"),
    ],
)
def test_completed_run_of_ours_without_its_figures_is_said(where: str, value: Any, field: str) -> None:
    expected = [f"run.json: {field} is missing or 0, although the run completed"]
    assert row_of(record(**{where: value})).remarks == expected


NUMBER, SECONDS = "a number from 0 to 1e+30", "seconds from 1e-12 to 1e+12"


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("timing__measured_s", "fast", f'timing.measured_s must be {SECONDS}; got "fast"'),
        ("timing__measured_s", math.nan, f"timing.measured_s must be {SECONDS}; got NaN"),
        ("timing__measured_s", -1.0, f"timing.measured_s must be {SECONDS}; got -1.0"),
        ("timing__images", -3200, f"timing.images must be {NUMBER}; got -3200"),
        ("timing__images", 10**400, f"timing.images must be {NUMBER}; got 1{'0' * 59}…"),
        ("timing__step_s__median", -0.1, f"timing.step_s.median must be {SECONDS}; got -0.1"),
        ("timing__data_wait_fraction", -0.1, "timing.data_wait_fraction must be a share from 0 to 10000; got -0.1"),
        ("timing__setup_s", {"x" * 80: 1}, f'timing.setup_s must be {NUMBER}; got {{"{"x" * 58}…'),
    ],
)
def test_timing_that_cannot_be_is_refused(where: str, value: Any, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        row_of(record(**{where: value}))
    assert str(caught.value) == f"run.json: {message}"
    assert caught.value.hint == "copy the bundle again from the machine that made it, or run again"


def test_content_of_unknown_keys_is_ignored() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert row_of(record(unheard_of=[deep, math.nan, 10**400, "x" * 10_001])).remarks == []
    with pytest.raises(BundleError, match=r"timing\.images must be"):
        row_of(record(timing__images=deep))


TEXT = "text of at most 10000 characters"
ZONED, FP32 = "timing.started_at is not a time stamp with its zone", "ceilings.flop_per_s.fp32"


@pytest.mark.parametrize(
    ("where", "value", "column", "remark"),
    [
        ("complexity__parameters", "many", "parameters", f"complexity.parameters is not {NUMBER}"),
        ("complexity__parameters", -1, "parameters", f"complexity.parameters is not {NUMBER}"),
        ("environment__place", 3, "place", f"environment.place is not {TEXT}"),
        ("error", "é" * 10_001, "error", f"error is not {TEXT}"),
        ("environment__device", "T4", "device_name", "environment.device is not an object"),
        ("environment__cloud__spot", "yes", "spot", "environment.cloud.spot is not true or false"),
        ("timing__started_at", "2026-11-01T00:00:00", "started_at", ZONED),
        ("timing__started_at", "soon", "started_at", ZONED),
        ("timing__started_at", "0001-01-01T00:00:00+10:00", "started_at", ZONED),
        ("ceilings__flop_per_s__fp32", 7, "ceiling_flop_per_s", f"{FP32} is not an object"),
        ("ceilings__flop_per_s__fp32__median", -1, "ceiling_flop_per_s", f"{FP32}.median is not a positive number"),
        ("notes", ["text", 3], "notes", "notes is not a list of texts"),
    ],
)
def test_wrong_type_is_left_out_and_said(where: str, value: Any, column: str, remark: str) -> None:
    row = row_of(record(**{where: value}))
    assert row.cells[column] in (None, [])
    assert row.remarks == [f"run.json: {remark}; left out"]


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("run_id", None, "run.json has no usable run_id"),
        ("status", None, "run.json has no usable status"),
        ("status", "fine", "run.json has the unknown status 'fine'"),
        ("spec", None, "run.json has no usable spec.model"),
        ("spec__batch_size", 0, "run.json has no usable spec.batch_size"),
        ("spec__batch_size", True, "run.json has no usable spec.batch_size"),
        ("spec__batch_size", 2**70, "run.json has no usable spec.batch_size"),
    ],
)
def test_run_without_what_every_run_has_is_refused(where: str, value: Any, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        row_of(record(**{where: value}))
    assert str(caught.value) == message
    assert caught.value.hint == "this folder is not a run of rooflaunch; move it away"


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
