"""Points below roofs, shifts between points, and the command `analyze roofline`, against hand-computed values."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import strategies as st

import analysis
from analysis.loading.configurations import UNNAMED
from analysis.roofline.against_model import model_warning
from analysis.roofline.points import POINT_COLUMNS, WorkSource, shifts
from analysis.roofline.points import points as points_of
from analysis.roofline.roofs import Roof, roofs
from benchmarks.synthetic_bundles import change, make, make_record
from tests.analysis.in_process import Analyze
from workload.contract import record as contract
from workload.contract import verdict
from workload.contract.fields import encode
from workload.contract.verdict import Bound, RoofKind

T4 = Roof(kind=RoofKind.MEASURED, flop_per_s=7.2e12, bytes_per_s=2.6e11)
WRONG = "the roof or the precision's label is wrong, or kernels execute fewer FLOP than modelled (Winograd)"
POSITIVE = st.floats(1e-6, 1e6)


def only(table: pd.DataFrame) -> dict[str, Any]:
    (row,) = table.to_dict("records")
    return {str(name): None if _is_nan(value) else value for name, value in row.items()}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


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


@pytest.mark.parametrize(("ceiling", "bound"), [(1.2, Bound.COMPUTE), (2.1, None)])
def test_a_point_without_a_bandwidth_has_the_limit_of_its_runs(
    tmp_path: Path, ceiling: float, bound: Bound | None
) -> None:
    record = make_record(0, [0.1] * 5)
    flop_per_s = record["complexity"]["train_flop_per_step"] / 0.1
    changes = {
        "timing": record["timing"],
        "environment": {"device": {"type": "cpu", "name": None}},
        "ceilings": {"flop_per_s": {"fp32": {"median": ceiling * flop_per_s}}, "unavailable": {"copy": "disturbed"}},
    }
    row = only(points(tmp_path, changes))
    assert (row["bound"], row["fraction_of_roof"]) == (bound, None)
    assert row["bound_why"].endswith("the bandwidth was not measured: disturbed")


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


def test_the_measured_roof_is_the_sustained_one(tmp_path: Path) -> None:
    """A T4 that falls from 7.6 to 5.1 TFLOP/s at its power limit, beside a bundle of before, which has one figure."""
    slowed = {"ceilings__flop_per_s__fp32__burst": 7.6e12, "ceilings__flop_per_s__fp32__sustained": 5.1e12}
    make(tmp_path, 0, **slowed)
    measured, _ = roofs(analysis.load(tmp_path)).to_dict("records")
    assert (measured["flop_per_s"], measured["note"]) == (5.1e12, "sustained rate; 7.6 TFLOP/s in a burst")
    assert only(points_of(analysis.load(tmp_path)))["roof_flop_per_s"] == 5.1e12
    make(tmp_path, 1)
    measured, _ = roofs(analysis.load(tmp_path)).to_dict("records")
    assert measured["flop_per_s"] == pytest.approx(6.15e12)


def test_a_measurement_that_several_runs_used_counts_once(tmp_path: Path) -> None:
    """Two measurements, the first of them used by three runs: 7.0 and 7.4, not a median of four figures."""
    times = ["2026-11-21T12:00:00+00:00"] * 3 + ["2026-11-21T13:30:00+00:00"]
    for number, (rate, at) in enumerate(zip([7.0e12, 7.0e12, 7.0e12, 7.4e12], times, strict=True)):
        make(tmp_path, number, ceilings__flop_per_s__fp32__median=rate, ceilings__measured_at=at)
    measured, _ = roofs(analysis.load(tmp_path)).to_dict("records")
    assert (measured["measurements"], measured["source"]) == (2, "median of 2 measurements")
    assert measured["flop_per_s"] == pytest.approx(7.2e12)


CPU_RUN = {
    "spec__device": "cpu",
    "environment__device": {"type": "cpu", "name": "A CPU", "threads": 2},
    "ceilings__measured_at": "2026-11-21T12:00:00+00:00",
}


def test_a_ceiling_that_a_run_refutes_is_no_roof_for_any_run_that_used_it(tmp_path: Path) -> None:
    # 340.736 GFLOP in 0.04 s are 8.5 TFLOP/s, 118 % of the 7.2 measured; the slower run shared that measurement.
    table = points(tmp_path, CPU_RUN | {"timing__step_s__median": 0.04}, CPU_RUN | {"spec__model": "vgg16"})
    assert table["bound"].isna().all()
    assert table["roof"].isna().all()
    assert [note.partition(";")[0] for note in table["note"]] == [
        "118 % of the measured roof was reached: it is none"
    ] * 2
    assert "measured" not in set(roofs(analysis.load(tmp_path))["kind"])


@pytest.mark.parametrize(("busy_runs", "share"), [(0, None), (1, None), (2, 0.5)])
def test_limit_of_a_group_is_by_cpu_time_if_most_runs_had_a_busy_machine(
    tmp_path: Path, busy_runs: int, share: float | None
) -> None:
    # 340.736 GFLOP in 0.08 s are 59 % of 7.2 TFLOP/s, and 118 % of it in half of that time.
    step = {"timing__step_s__median": 0.08, "timing__step_s__mean": 0.08}
    waits = {"timing__cpus_used": 1.0, "timing__cpus_waited": 1.0}
    row = only(points(tmp_path, *(CPU_RUN | step | (waits if n < busy_runs else {}) for n in range(3))))
    assert row["bound"] == "compute"
    assert row["bound_why"].startswith("probably, by CPU time on a busy machine: 118 %") == (share is not None)


@pytest.mark.parametrize(("step_s", "roof"), [(0.024, "measured"), (0.023, None)])
def test_ceiling_by_cpu_time_is_refuted_above_twice_its_rate(tmp_path: Path, step_s: float, roof: str | None) -> None:
    # 340.736 GFLOP in 0.0237 s are twice 7.2 TFLOP/s.
    by_cpu_time = {"cpus": 1.0, "cpus_wanted": 2.0}
    rate = make_record(0, [0.1])["ceilings"]["flop_per_s"]["fp32"]
    run = CPU_RUN | {"timing__step_s__median": step_s, "ceilings__flop_per_s": {"fp32": rate | by_cpu_time}}
    assert only(points(tmp_path, run))["roof"] == roof


def test_a_gpu_above_its_ceiling_has_no_bound_and_keeps_its_roof(tmp_path: Path) -> None:
    row = only(points(tmp_path, {"timing__step_s__median": 0.04}))
    assert (row["roof"], row["bound"]) == ("measured", None)


@pytest.mark.parametrize(
    ("is_busy", "words"),
    [
        ([False], None),
        ([True], "on a busy machine: other processes used the CPUs: "),
        ([True, False, True], "2 of 3 runs on a busy machine: other processes used the CPUs: "),
    ],
)
def test_a_busy_machine_is_said_beside_the_limit(tmp_path: Path, is_busy: list[bool], words: str | None) -> None:
    waits = {"timing__cpus_used": 1.0, "timing__cpus_waited": 1.0}
    runs = (CPU_RUN | {"timing__step_s__median": 0.09} | (waits if busy else {}) for busy in is_busy)
    row = only(points(tmp_path, *runs))
    assert row["bound"] == "compute"
    assert (row["busy"] or "").startswith(words or "nothing") is (words is not None)
    assert (row["busy"] or "") in (row["note"] or "")


def test_unknown_device_has_no_vendor_roof(tmp_path: Path) -> None:
    make(tmp_path, 1, environment__device__name="NVIDIA GeForce RTX 5070", environment__device__memory_total_bytes=12e9)
    assert roofs(analysis.load(tmp_path))["kind"].tolist() == ["measured"]


def test_device_that_denies_its_name(tmp_path: Path) -> None:
    device = make_record(0, [0.1, 0.1])["environment"]["device"]
    make(tmp_path, 1, environment__device=device | {"memory_clock_max_mhz": 6251, "memory_bus_width_bits": 256})
    make(tmp_path, 2, environment__place="b", environment__device=device | {"memory_total_bytes": 24e9})
    table = roofs(analysis.load(tmp_path))
    assert table["kind"].tolist() == ["measured", "peak", "measured"]
    assert table["note"].tolist()[1] == (
        "the datasheet rounds to 300 GB/s; memory clock x bus width gives 320.06; the device's memory clock "
        "and bus give 400 GB/s, the table has 320 (+25 %): perhaps it is another device than its name says"
    )
    # 24 GB are no T4's: no peak.
    assert table["place"].tolist()[2] == "b"


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


def test_modelled_bytes_beyond_the_bandwidth_stayed_in_caches(tmp_path: Path) -> None:
    # 26 GB could be moved in 0.1 s; the model says 3.1 to 50.
    row = only(points(tmp_path, {"timing__step_s__median": 0.1, "complexity__bytes_per_step_upper": 50e9}))
    assert row["intensity_flop_per_byte"] == pytest.approx(340.736 / 26)
    assert row["intensity_low"] == pytest.approx(340.736 / 50)
    assert row["fraction_of_roof"] == pytest.approx(1.0)
    # Whether memory is at its roof is unknown, so the model names no limit.
    assert row["bound"] == "neither"
    assert row["note"] == (
        "47 % of the measured compute ceiling, 12 % or more of the bandwidth (modelled): the bytes are not known well"
        f" enough to tell whether memory is the limit; {GAPS}"
    )


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
    ("changes", "note"),
    [
        (
            {"profile__flop_per_step": 40e9, "profile__flop_is_lower_bound": True},
            (
                "FLOP are a lower bound: tensor operations that are not counted; bytes with a cold cache, "
                "per kernel; counted FLOP are 0.117 x the model's: tensor operations or the backward pass "
                "are missing"
            ),
        ),
        (
            {"profile__flop_per_step": 600e9},
            (
                "bytes with a cold cache, per kernel; counted FLOP are 1.76 x the model's: padding, recomputation, or "
                "more steps than were said"
            ),
        ),
        (
            {"profile__checks": {"flop_verified": False, "backward": {"present": False}}},
            (
                "FLOP are a lower bound: no kernels of a backward pass, so a part of a step; bytes with a cold cache, "
                "per kernel"
            ),
        ),
        (
            {"profile__checks": {"flop_verified": False}},
            (
                f"{COUNTED_NEITHER}; bytes with a cold cache, per kernel; FLOP unverified: the product of "
                "the calibration was counted wrongly"
            ),
        ),
        ({"profile__flop_per_step": None}, "bytes with a cold cache, per kernel; FLOP not counted"),
    ],
)
def test_notes_on_counters(tmp_path: Path, changes: Mapping[str, Any], note: str) -> None:
    row = counter_point(tmp_path, **changes)
    assert row["note"] == note


@pytest.mark.parametrize(
    ("ratio", "is_warned"), [(None, False), (0.7, False), (0.699, True), (1.5, False), (1.501, True)]
)
def test_counted_against_model(ratio: float | None, is_warned: bool) -> None:
    assert (model_warning(ratio) is not None) is is_warned


@pytest.mark.parametrize(
    ("step_s", "note"),
    [
        # 340.736 GFLOP at 7.2 TFLOP/s take 0.04732 s, at the vendor's 8.1 0.04207 s.
        (0.0474, None),
        (0.0473, f"100.1 % of the measured roof: {WRONG}"),
        (0.0421, f"112.4 % of the measured roof: {WRONG}"),
        (0.0420, f"112.7 % of the measured roof: {WRONG}; 100.2 % of the vendor's peak: {WRONG}"),
    ],
)
def test_above_a_roof_is_said(tmp_path: Path, step_s: float, note: str | None) -> None:
    assert only(points(tmp_path, {"timing__step_s__median": step_s}))["note"] == note


def test_counters_above_a_roof(tmp_path: Path) -> None:
    # 30 GB in 0.1 s are more than the measured 26.
    row = counter_point(tmp_path, profile__dram_bytes_per_step=30e9)
    assert row["fraction_of_roof"] == pytest.approx(30 / 26)
    assert row["bound"] is None
    assert row["bound_why"].startswith(
        "115 % of the bandwidth was counted, which is impossible: the roof is too low, or"
    )
    assert row["note"] == (
        "bytes with a cold cache, per kernel; 115.4 % of the measured roof: "
        "the roof, the precision's label or the bytes (cold cache) are wrong"
    )


def test_vendor_roof_where_none_was_measured(tmp_path: Path) -> None:
    row = only(points(tmp_path, {"ceilings": None, "bound": None, "timing__step_s__median": 0.08}))
    assert (row["roof"], row["roof_flop_per_s"]) == ("peak", 8.1e12)
    assert row["fraction_of_roof"] == pytest.approx(3.40736 / 8.1 / 0.8)
    assert row["bound"] == "compute"
    assert row["note"] == "the roof is the vendor's: no ceiling was measured"


def test_no_roof_at_all(tmp_path: Path) -> None:
    changes = {"ceilings": None, "bound": None, "environment__device__name": "Some GPU"}
    row = only(points(tmp_path, changes))
    assert (row["roof"], row["roof_flop_per_s"], row["fraction_of_roof"], row["bound"]) == (None, None, None, None)
    assert row["intensity_flop_per_byte"] == pytest.approx(340.736 / 9.8)
    assert row["note"] == "no roof: no ceilings were measured (--no-ceilings), and the device has no known peak"


def test_waiting_for_data_needs_no_roof(tmp_path: Path) -> None:
    changes = {"ceilings": None, "environment__device__name": "Some GPU", "timing__data_wait_fraction": 0.2}
    assert only(points(tmp_path, {**changes, "bound": {"bound": "input"}}))["bound"] == "input"


def test_laptop_peak_is_a_range(tmp_path: Path) -> None:
    device = {
        "environment__device__name": "NVIDIA GeForce RTX 4080 Laptop GPU",
        "environment__device__memory_total_bytes": 12282 << 20,
    }
    row = only(points(tmp_path, {**device, "timing__step_s__median": 0.1}))
    assert row["fraction_of_peak"] == pytest.approx(3.40736 / 33.9)
    assert row["note"] == (
        f"{NEITHER}; peak 20.0 to 33.9 TFLOP/s by power limit, 60 to 150 W; a desktop RTX 4080 has 48.7;"
        " shown is the highest"
    )


def test_profile_without_times(tmp_path: Path) -> None:
    table = points(tmp_path, {**COUNTED, "timing__step_s": None, "complexity": None, "bound": None})
    row = only(table)
    assert (row["source"], row["runs"], row["intensity_flop_per_byte"]) == ("counters", 0, 35.0)
    assert (row["flop_per_s"], row["fraction_of_roof"], row["bound"]) == (None, None, None)
    assert row["note"] == "bytes with a cold cache, per kernel; no rate, because there is no time without a profiler"


def test_runs_of_a_group_that_say_something_else(tmp_path: Path) -> None:
    fast = {"timing__step_s__median": 0.09}
    row = only(points(tmp_path, fast, fast, {"complexity__bytes_per_step_lower": 14e9} | fast))
    assert row["bound"] == "compute"
    assert row["note"] == "1 of 3 runs say memory"


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


# --- the command


def test_command_for_people(tmp_path: Path, analyze: Analyze) -> None:
    make(tmp_path, 1, timing__step_s__median=0.09)
    make(tmp_path, 2, timing__step_s__median=0.09, spec__batch_size=64)
    code, out, err = analyze("roofline", tmp_path)
    assert (code, err) == (0, "")
    roofs, steps, shifts = out.split("\n\n")
    assert roofs.splitlines()[0] == "roofs"
    assert "NVIDIA T4 datasheet" in roofs
    assert "https" not in roofs
    title, shared, *_, first, second = steps.splitlines()
    assert (title, shared) == (
        "steps",
        "place gcp-t4-us-central1-a; device Tesla T4; model resnet18; precision fp32; source modelled; roof",
    )
    assert [row.split()[:3] for row in (first, second)] == [["32", "3.786", "compute"], ["64", "3.786", "compute"]]
    assert shifts.splitlines()[0] == "shifts"


def test_command_for_programs(tmp_path: Path, analyze: Analyze) -> None:
    make(tmp_path, 1)
    header, row = analyze("roofline", tmp_path, "--format", "csv")[1].splitlines()
    assert header == ",".join((*POINT_COLUMNS, *UNNAMED))
    assert row.startswith("gcp-t4-us-central1-a,Tesla T4,resnet18,32,fp32,224.0,modelled,1,")


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


def test_the_mean_share_of_the_peak_of_a_place_and_a_precision(tmp_path: Path) -> None:
    steps = ((8, "fp32", 0.1), (16, "fp32", 0.4), (8, "amp", 0.1))
    runs = [
        {"spec__batch_size": size, "spec__precision": precision, "timing__step_s__median": step_s}
        for size, precision, step_s in steps
    ]
    table = points(tmp_path, *runs)
    for precision, number in (("fp32", 2), ("amp", 1)):
        known = table[(table["precision"] == precision) & table["fraction_of_peak"].notna()]
        assert len(known) == number
        assert list(known["place_fraction_of_peak"]) == pytest.approx([known["fraction_of_peak"].mean()] * number)
