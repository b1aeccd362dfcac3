"""Points below roofs, shifts between points, and the command `analyze roofline`, against hand-computed values."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis
from analysis.loading.configurations import UNNAMED
from analysis.roofline.against_model import model_warning
from analysis.roofline.points import POINT_COLUMNS, WorkSource, shifts
from analysis.roofline.points import points as points_of
from analysis.roofline.roofs import Roof, roofs
from benchmarks.synthetic_bundles import change, make, make_record
from tests.analysis.in_process import Analyze
from tests.analysis.roofline.points_told import known, told
from tests.analysis.sentence_runs import Golden
from workload.contract import record as contract
from workload.contract import verdict
from workload.contract.fields import encode
from workload.contract.verdict import RoofKind

T4 = Roof(kind=RoofKind.MEASURED, flop_per_s=7.2e12, bytes_per_s=2.6e11)


def only(table: pd.DataFrame) -> dict[str, Any]:
    (row,) = known(table)
    return row


def points(tmp_path: Path, *runs: Mapping[str, Any]) -> pd.DataFrame:
    for number, changes in enumerate(runs):
        make(tmp_path, number, **changes)
    return points_of(analysis.load(tmp_path))


# --- the rule of workload/contract/verdict.py


@pytest.mark.parametrize(
    ("step_s", "bytes_", "waits"),
    [
        (0.01, (3.1e9, 9.8e9), 0.01),
        (0.05, (3.1e9, 9.8e9), 0.01),
        (0.1, (3.1e9, 9.8e9), 0.01),
        (0.1, (2e10, 5e10), 0.01),
        (0.1, (3e10, 5e10), 0.01),
        (0.3, (1e9, 2e9), 0.01),
        (0.3, (3.1e9, 2e10), 0.01),
        (0.3, (3.1e9, 2e10), 0.2),
    ],
)
def test_points_agree_with_the_recorded_bound(
    tmp_path: Path, step_s: float, bytes_: tuple[float, float], waits: float
) -> None:
    record = make_record(0, [step_s] * 5)
    record["timing"]["data_wait_fraction"] = waits
    record["complexity"]["bytes_per_step_lower"], record["complexity"]["bytes_per_step_upper"] = bytes_
    read = contract.read(record).record
    recorded = verdict.from_record(read)
    assert recorded is not None
    changes = {
        "timing": record["timing"],
        "complexity": record["complexity"],
        "bound": encode(recorded),
    }
    row = only(points(tmp_path, changes))
    assert row["bound"] == recorded.bound
    assert "runs say" not in (row["note"] or "")
    # Above the measured ceiling there is no bound, and the fraction stays.
    compute, high = verdict.share_of_ceiling(read), min(recorded.memory_fraction_high or 0, 1.0)
    fractions = [compute, recorded.memory_fraction_low, high]
    assert row["fraction_of_roof"] == pytest.approx(max(each for each in fractions if each is not None))


# --- roofs


def test_measured_and_vendor_roofs(tmp_path: Path) -> None:
    for number, rate in enumerate([7.0e12, 7.1e12, 7.4e12]):
        make(tmp_path, number, ceilings__flop_per_s__fp32__median=rate)
    table = roofs(analysis.load(tmp_path))
    measured, peak = table.to_dict("records")
    assert measured["place"] == peak["place"] == "gcp-t4-us-central1-a"
    assert (measured["kind"], measured["precision"], measured["measurements"]) == ("measured", "fp32", 3)
    assert (measured["flop_per_s"], measured["bytes_per_s"]) == (7.1e12, 2.6e11)
    assert measured["source"] == "median of 3 measurements"
    assert (peak["kind"], peak["flop_per_s"], peak["bytes_per_s"]) == ("peak", 8.1e12, 320e9)
    assert peak["source"].startswith("NVIDIA T4 datasheet, read ")


# --- steps


GAPS = "gaps between kernels are unknown (--profile torch times them)"
NEITHER = (
    f"47 % of the measured compute ceiling, 12 % to 38 % of the bandwidth (modelled), less than half of each; {GAPS}"
)


def test_modelled_point_by_hand(tmp_path: Path) -> None:
    # 340.736 GFLOP in 0.1 s; 3.1 to 9.8 GB, of which 2.6e11 x 0.1 s = 26 GB could have been moved.
    row = only(points(tmp_path, {"timing__step_s__median": 0.1}))
    assert {name: row.pop(name) for name in POINT_COLUMNS} == {
        "place": "gcp-t4-us-central1-a",
        "device_name": "Tesla T4",
        "model": "resnet18",
        "batch_size": 32,
        "precision": "fp32",
        "image_size": 224,
        "source": "modelled",
        "runs": 1,
        "intensity_flop_per_byte": pytest.approx(340.736 / 9.8),
        "intensity_low": pytest.approx(340.736 / 9.8),
        "intensity_high": pytest.approx(340.736 / 3.1),
        "flop_per_s": pytest.approx(3.40736e12),
        "flop_per_s_low": None,
        "flop_per_s_high": None,
        "interval": "one run: no interval",
        "bound": "neither",
        "bound_why": NEITHER,
        "busy": None,
        "device_busy_share": None,
        "roof": "measured",
        # Right of the ridge at 27.7.
        "roof_flop_per_s": 7.2e12,
        "fraction_of_roof": pytest.approx(3.40736 / 7.2),
        "fraction_of_peak": pytest.approx(3.40736 / 8.1),
        "peak_source": "NVIDIA T4 datasheet, read 2026-11",
        "flop_per_step": 340_736_000_000,
        "counted_over_model": None,
        "flop_is_lower_bound": False,
        "note": NEITHER,
        "step_s": 0.1,
        "theoretical_flop_per_step": 340_736_000_000,
        **dict.fromkeys(("dram_bytes_per_step", "dram_bytes_per_s", "sm_percent", "dram_percent")),
        "place_fraction_of_peak": pytest.approx(3.40736 / 8.1),
    }
    # What is left are the other facts by which runs are told apart.
    assert set(row) == set(UNNAMED)
    assert (row["dataset"], row["driver_version"], row["torch"]) == ("synthetic", "580.95.05", "2.15.0+cu132")


def test_interval_is_over_runs(tmp_path: Path) -> None:
    row = only(points(tmp_path, *({"timing__step_s__median": step_s} for step_s in (0.10, 0.11, 0.12))))
    assert row["runs"] == 3
    assert row["flop_per_s"] == pytest.approx(340.736e9 / 0.11)
    # ln of 10, 100/11, 100/12 (per s): mean 2.2092722, standard deviation 0.0911954; t(2, 97.5 %) = 4.302653.
    rates = [math.log(340.736e9 / step_s) for step_s in (0.10, 0.11, 0.12)]
    centre = sum(rates) / 3
    reach = 4.302653 * math.sqrt(sum((rate - centre) ** 2 for rate in rates) / 2 / 3)
    assert row["flop_per_s_low"] == pytest.approx(math.exp(centre - reach), rel=1e-6)
    assert row["flop_per_s_high"] == pytest.approx(math.exp(centre + reach), rel=1e-6)
    assert row["interval"] == "95 %, Student t over runs (about 90 % in place of 95 % if runs fall into two modes)"


COUNTED = {
    "profile": {
        "status": "completed",
        "flop_per_step": 350e9,
        "tensor_flop_per_step": 0.0,
        "dram_bytes_per_step": 10e9,
        "l2_bytes_per_step": 30e9,
        "flop_is_lower_bound": False,
        "checks": {"flop_verified": True, "backward": {"present": True}},
    },
    "timing__step_s__median": 0.1,
}


def counter_point(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"profile": dict(COUNTED["profile"])}  # type: ignore[call-overload]
    for where, value in changes.items():
        change(made, where, value)
    table = points(tmp_path, {**COUNTED, **made})
    return only(table[table["source"] == WorkSource.COUNTERS])


COUNTED_NEITHER = f"49 % of the measured compute ceiling, 38 % of the bandwidth, less than half of each; {GAPS}"


def test_counter_point_by_hand(tmp_path: Path) -> None:
    row = counter_point(tmp_path)
    assert row["intensity_flop_per_byte"] == 35.0
    assert (row["intensity_low"], row["intensity_high"]) == (None, None)
    # The time is that of the run without a profiler.
    assert row["flop_per_s"] == pytest.approx(3.5e12)
    assert row["fraction_of_roof"] == pytest.approx(3.5 / 7.2)
    assert row["counted_over_model"] == pytest.approx(350 / 340.736)
    assert row["bound"] == "neither"
    assert row["note"] == f"{COUNTED_NEITHER}; bytes with a cold cache, per kernel"


@pytest.mark.parametrize(
    ("ratio", "is_warned"), [(None, False), (0.7, False), (0.699, True), (1.5, False), (1.501, True)]
)
def test_counted_against_model(ratio: float | None, is_warned: bool) -> None:
    assert (model_warning(ratio) is not None) is is_warned


# --- limits and notes


CPU_RUN = {
    "spec__device": "cpu",
    "environment__device": {"type": "cpu", "name": "A CPU", "threads": 2},
    "ceilings__measured_at": "2026-11-21T12:00:00+00:00",
}


# 340.736 GFLOP in 0.08 s are 59 % of 7.2 TFLOP/s, and 118 % of it in half of that time.
HALF = CPU_RUN | {"timing__step_s__median": 0.08, "timing__step_s__mean": 0.08}
WAITS = {"timing__cpus_used": 1.0, "timing__cpus_waited": 1.0}
BUSY, QUIET = (CPU_RUN | {"timing__step_s__median": 0.09} | more for more in (WAITS, {}))
DEVICE = make_record(0, [0.1, 0.1])["environment"]["device"]
FP32 = make_record(0, [0.1])["ceilings"]["flop_per_s"]["fp32"] | {"cpus": 1.0, "cpus_wanted": 2.0}
FAST = {"timing__step_s__median": 0.09}
UNKNOWN = {"ceilings": None, "bound": None, "environment__device__name": "Some GPU"}


def of_ceiling(times: float) -> dict[str, Any]:
    """A CPU whose bandwidth could not be measured, with this ceiling for its 3.4 TFLOP/s."""
    flop_per_s = make_record(0, [0.1] * 5)["complexity"]["train_flop_per_step"] / 0.1
    rate = {"fp32": {"median": times * flop_per_s}}
    return {
        "timing__step_s__median": 0.1,
        "environment": {"device": {"type": "cpu", "name": None}},
        "ceilings": {"flop_per_s": rate, "unavailable": {"copy": "disturbed"}},
    }


def counting(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"profile": dict(COUNTED["profile"])}  # type: ignore[call-overload]
    for where, value in changes.items():
        change(made, f"profile__{where}", value)
    return {**COUNTED, **made}


CASES: dict[str, list[dict[str, Any]]] = {
    "no bandwidth, below the ceiling": [of_ceiling(1.2)],
    "no bandwidth, far below the ceiling": [of_ceiling(2.1)],
    # 340.736 GFLOP in 0.04 s are 8.5 TFLOP/s, 118 % of the 7.2 measured; the slower run shared that measurement.
    "a ceiling that a run refutes": [CPU_RUN | {"timing__step_s__median": 0.04}, CPU_RUN | {"spec__model": "vgg16"}],
    "a GPU above its ceiling": [{"timing__step_s__median": 0.04}],
    "no run on a busy machine": [HALF, HALF, HALF],
    "one of three runs on a busy machine": [HALF | WAITS, HALF, HALF],
    "two of three runs on a busy machine": [HALF | WAITS, HALF | WAITS, HALF],
    # 340.736 GFLOP in 0.0237 s are twice 7.2 TFLOP/s.
    "a ceiling by CPU time, below twice": [
        CPU_RUN | {"timing__step_s__median": 0.024, "ceilings__flop_per_s": {"fp32": FP32}}
    ],
    "a ceiling by CPU time, above twice": [
        CPU_RUN | {"timing__step_s__median": 0.023, "ceilings__flop_per_s": {"fp32": FP32}}
    ],
    "a busy machine": [BUSY],
    "a busy machine for two of three": [BUSY, QUIET, BUSY],
    # 26 GB could be moved in 0.1 s; the model says 3.1 to 50.
    "modelled bytes beyond the bandwidth": [{"timing__step_s__median": 0.1, "complexity__bytes_per_step_upper": 50e9}],
    "few FLOP counted": [counting(flop_per_step=40e9, flop_is_lower_bound=True)],
    "many FLOP counted": [counting(flop_per_step=600e9)],
    "no backward pass counted": [counting(checks={"flop_verified": False, "backward": {"present": False}})],
    "FLOP unverified": [counting(checks={"flop_verified": False})],
    "FLOP not counted": [counting(flop_per_step=None)],
    # 30 GB in 0.1 s are more than the measured 26.
    "counted bytes above a roof": [counting(dram_bytes_per_step=30e9)],
    # 340.736 GFLOP at 7.2 TFLOP/s take 0.04732 s, at the vendor's 8.1 0.04207 s.
    "below the measured roof": [{"timing__step_s__median": 0.0474}],
    "above the measured roof": [{"timing__step_s__median": 0.0473}],
    "below the vendor's peak": [{"timing__step_s__median": 0.0421}],
    "above the vendor's peak": [{"timing__step_s__median": 0.0420}],
    "no ceiling": [{"ceilings": None, "bound": None, "timing__step_s__median": 0.08}],
    "no ceiling and no peak": [UNKNOWN],
    "waiting for data needs no roof": [UNKNOWN | {"timing__data_wait_fraction": 0.2, "bound": {"bound": "input"}}],
    "a laptop": [
        {
            "environment__device__name": "NVIDIA GeForce RTX 4080 Laptop GPU",
            "environment__device__memory_total_bytes": 12282 << 20,
            "timing__step_s__median": 0.1,
        }
    ],
    "a profile without times": [{**COUNTED, "timing__step_s": None, "complexity": None, "bound": None}],
    "one run of three says something else": [FAST, FAST, {"complexity__bytes_per_step_lower": 14e9} | FAST],
    # A T4 that falls from 7.6 to 5.1 TFLOP/s at its power limit.
    "a sustained rate": [
        {"ceilings__flop_per_s__fp32__burst": 7.6e12, "ceilings__flop_per_s__fp32__sustained": 5.1e12}
    ],
    "a measurement that three runs used": [
        {"ceilings__flop_per_s__fp32__median": rate, "ceilings__measured_at": f"2026-11-21T{hour}:00:00+00:00"}
        for rate, hour in ((7.0e12, 12), (7.0e12, 12), (7.0e12, 12), (7.4e12, 13))
    ],
    "a device that its memory denies": [
        {"environment__device": DEVICE | {"memory_clock_max_mhz": 6251, "memory_bus_width_bits": 256}}
    ],
    # 24 GB are no T4's.
    "a device that its size denies": [{"environment__device": DEVICE | {"memory_total_bytes": 24e9}}],
}


def test_roofs_limits_and_notes(golden: Golden, tmp_path: Path) -> None:
    lines: list[str] = []
    for number, (name, runs) in enumerate(CASES.items()):
        for seed, changes in enumerate(runs):
            make(tmp_path / str(number), seed, **changes)
        lines += [f"## {name}", *told(analysis.load(tmp_path / str(number)))]
    golden("points.txt", "\n".join([*lines, ""]))


def test_run_without_work_is_no_point(tmp_path: Path, analyze: Analyze) -> None:
    make(tmp_path, 1, complexity=None, bound=None)
    make(tmp_path, 2, status="failed")
    table = points_of(analysis.load(tmp_path))
    assert table.empty
    assert list(table.columns) == [*POINT_COLUMNS, *UNNAMED]
    code, out, err = analyze("roofline", tmp_path)
    assert code == 0
    assert "note       1 run without FLOP and bytes: no point on a roofline" in err
    assert "note       1 run did not complete: no point on a roofline" in err
    assert out.startswith("roofs\n")


# --- shifts


def test_batch_and_precision_shift_the_intensity(tmp_path: Path) -> None:
    flop = {"complexity__train_flop_per_step": 600e9, "complexity__bytes_per_step_upper": 12e9}
    make(tmp_path, 1, timing__step_s__median=0.1)
    make(tmp_path, 2, timing__step_s__median=0.15, spec__batch_size=64, **flop)
    make(tmp_path, 3, timing__step_s__median=0.05, spec__precision="amp", ceilings=None, bound=None)
    make(tmp_path, 4, timing__step_s__median=0.1, spec__batch_size=64, spec__optimizer="adam")
    batch, precision = shifts(points_of(analysis.load(tmp_path))).to_dict("records")
    assert (batch["changed"], batch["left"], batch["right"], batch["at"]) == ("batch size", "32", "64", "fp32")
    assert batch["intensity_left"] == pytest.approx(340.736 / 9.8)
    assert batch["intensity_right"] == pytest.approx(50.0)
    assert batch["intensity_ratio"] == pytest.approx(50 * 9.8 / 340.736)
    assert batch["flop_per_s_ratio"] == pytest.approx(4e12 / 3.40736e12)
    assert (precision["changed"], precision["left"], precision["right"]) == ("precision", "fp32", "amp")
    assert precision["at"] == "32"
    assert precision["flop_per_s_ratio"] == pytest.approx(2.0)


# --- columns of published tables

DATA = Path(__file__).parents[4] / "shared" / "data" / "ncu"


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")
def test_the_row_of_a_public_profile(tmp_path: Path, analyze: Analyze) -> None:
    """A report's row A-1: 4.928 GFLOP, 0.744 GB, 13.647 and 23.164 %; bytes and percentages were wrong there."""
    facts = ("--model", "resnet18", "--batch-size", "64", "--profile-steps", "1", "--image-size", "32")
    assert analyze("import", DATA / "l4_resnet18_long_nvtx.csv", *facts, "-o", tmp_path / "results")[0] == 0
    row = only(points_of(analysis.load(tmp_path / "results")))
    assert row["flop_per_step"] == 4_928_393_620
    assert row["dram_bytes_per_step"] == 607_558_840 + 102_390_000
    assert row["step_s"] == pytest.approx(7.376250e-3)
    assert row["dram_bytes_per_s"] == pytest.approx(709_948_840 / 7.376250e-3)
    assert row["sm_percent"] == pytest.approx(13.705, abs=5e-4)
    assert row["dram_percent"] == pytest.approx(32.14, abs=5e-3)
    # Forward, backward and update of 64 CIFAR-10 images with the classes of ImageNet; the profile has no backward pass.
    assert row["counted_over_model"] == pytest.approx(row["flop_per_step"] / row["theoretical_flop_per_step"])
    assert row["counted_over_model"] == pytest.approx(0.35, abs=0.01)
    assert row["fraction_of_peak"] is None
