"""The quirks of public logs and profiles, in files of our own; the `shared` tests look at the public ones too."""

import csv
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis.api import Results
from analysis.audit import Finding, audit
from analysis.importing import Given, import_file
from analysis.readers import ncu
from analysis.readers.ncu import Failure, Layout, NcuFileError, families
from analysis.statistics.autocorrelation import effective_n
from analysis.statistics.describe import summarize
from analysis.statistics.periods import period_scan
from analysis.statistics.samples import Floats
from analysis.statistics.stalls import outliers
from analysis.statistics.steady import steady_state
from tests.analysis.importing import like_public
from tests.analysis.importing.like_public import (
    BOM_CRLF,
    CORRELATED,
    LOGS,
    LONG_NVTX,
    NO_HEADER,
    NO_KERNELS,
    OUTSIDE,
    RAGGED,
    SPILLING,
    STEADY,
    UNSYNCHRONISED,
    WIDE,
)
from tests.analysis.in_process import Analyze

ByRuleAndFile = dict[tuple[str, str], list[Finding]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return like_public.make(tmp_path_factory.mktemp("public"))


@pytest.fixture(scope="module")
def runs(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("imported")
    for name in LOGS:
        import_file(files / "iterations" / name, Given(), output=folder)
    for name, batch_size in ((WIDE, 1), (LONG_NVTX, 64), (BOM_CRLF, 2)):
        given = Given(model="resnet18", batch_size=batch_size, precision="fp32", profile_steps=1)
        import_file(files / "ncu" / name, given, output=folder)
    return analysis.load(folder)


@pytest.fixture(scope="module")
def findings(runs: Results) -> ByRuleAndFile:
    names = dict(zip(runs.runs["run_id"], runs.runs["imported_file"], strict=True))
    by_file: ByRuleAndFile = defaultdict(list)
    for finding in audit(runs):
        for run_id in finding.subject:
            by_file[finding.rule, names[run_id]].append(finding)
    return by_file


# --- logs: what an audit finds


@pytest.mark.parametrize(
    ("rule", "file", "figure"),
    [
        (
            "unsynchronised timing",
            UNSYNCHRONISED,
            "every 10th step from 1 on: 40 % of the other steps' time by the timer, 100 % by the time stamps",
        ),
        # By hand: 0.9 x 320 + 0.1 x 800 without the first row's 320, against 64 images in 0.202 s.
        (
            "mean of rates",
            UNSYNCHRONISED,
            "368.5 images/s by the log's rates, 316.8 by images over wall time: 1.16 x",
        ),
        # The mean of 128 / 0.15 s and 128 / 0.3 s without the first row's; 63 steps of 0.25 and 0.5 s.
        ("mean of rates", OUTSIDE, "643.4 images/s by the log's rates, 343.1 by images over wall time: 1.87 x"),
        (
            "wall time not explained",
            OUTSIDE,
            "steps and waits add up to 60 % of the wall time: 40 % are outside of the timed parts",
        ),
        ("spill cliff", SPILLING, "18.07 images/s at batch size 128, 316.8 at 64: 0.06 x"),
        (
            "scattered steps",
            SPILLING,
            "the middle 90 % of steps take 2.34 to 12 s: 5.1 x (1.59 to 12.3 s in all; 1.11 to 8.63 s by the timer)",
        ),
        ("labels disagree", OUTSIDE, "the place 'labC' stands for 2 devices: rtx3090 (2), t4 (1)"),
        ("no backward kernels", LONG_NVTX, "3 launches, but no kernel that occurs only in a backward pass"),
        ("counters unavailable", BOM_CRLF, "FLOP are unavailable: they were not counted"),
        (
            "imported without facts",
            OUTSIDE,
            "the file does not say: device, precision, driver, torch, data set, image size",
        ),
    ],
)
def test_an_audit_finds(rule: str, file: str, figure: str, findings: ByRuleAndFile) -> None:
    assert [finding.figure for finding in findings[rule, file]] == [figure]


@pytest.mark.parametrize(
    ("rule", "of"),
    [
        ("unsynchronised timing", {UNSYNCHRONISED}),
        ("spill cliff", {SPILLING}),
        ("throttling", set()),
        # Of its batch size it is the only log.
        ("incomplete series", set()),
        ("labels disagree", {UNSYNCHRONISED, SPILLING, OUTSIDE}),
        ("no backward kernels", {LONG_NVTX, BOM_CRLF}),
        ("counters unavailable", {BOM_CRLF}),
        ("too few runs", set(LOGS)),
    ],
)
def test_an_audit_accuses_no_other_file(rule: str, of: set[str], findings: ByRuleAndFile) -> None:
    assert {file for name, file in findings if name == rule} == of


def test_a_file_name_against_the_devices_own_attribute(files: Path, tmp_path: Path) -> None:
    copied = tmp_path / "resnet50-a100.csv"
    copied.write_bytes((files / "ncu" / WIDE).read_bytes())
    import_file(copied, Given(model="resnet50", batch_size=1), output=tmp_path / "results")
    (finding,) = [each for each in audit(analysis.load(tmp_path / "results")) if each.rule == "labels disagree"]
    assert finding.figure == "the file 'resnet50-a100.csv' names a100, the device is 'Tesla V100-SXM2-16GB'"


@pytest.mark.parametrize(
    ("file", "batch_size", "precision", "rows", "wall", "claimed"),
    [
        (UNSYNCHRONISED, 64, None, 100, 316.83, 368.0),
        (SPILLING, 128, None, 39, 18.068, 37.362),
        (OUTSIDE, 128, None, 64, 343.15, 640.0),
        (CORRELATED, 1024, "amp", 190, 2226, 2216.6),
        (STEADY, 256, "fp32", 190, 825.75, 821.91),
    ],
)
def test_imported_logs(
    file: str, batch_size: int, precision: str | None, rows: int, wall: float, claimed: float, runs: Results
) -> None:
    run = runs.runs.set_index("imported_file").loc[file]
    assert run["batch_size"] == batch_size
    assert (run["precision"] if isinstance(run["precision"], str) else None) == precision
    assert (runs.steps["run_id"] == run["run_id"]).sum() == rows
    assert run["images_per_s"] == pytest.approx(wall, rel=1e-3)
    assert run["claimed_images_per_s"] == pytest.approx(claimed, rel=1e-3)


# --- logs: statistics


def milliseconds(files: Path, name: str) -> Floats:
    with (files / "iterations" / name).open() as log:
        return np.array([float(row["iter_time_ms"]) for row in csv.DictReader(log)])


def test_a_missing_synchronisation_is_a_period(files: Path) -> None:
    steps = milliseconds(files, UNSYNCHRONISED)
    period = period_scan(steps)
    assert (period.found, period.period, period.phase) == (True, 10, 1)
    assert (period.ratio, period.consistency) == (pytest.approx(0.40), 1.0)
    fast = outliers(steps) & (steps < np.median(steps))
    assert np.flatnonzero(fast).tolist() == list(range(1, 100, 10))


@pytest.mark.parametrize("name", [SPILLING, CORRELATED, STEADY])
def test_no_period_in_the_others(name: str, files: Path) -> None:
    assert not period_scan(milliseconds(files, name)).found


def test_steps_like_the_one_before_are_worth_few(files: Path) -> None:
    steps = milliseconds(files, CORRELATED)
    state = steady_state(steps)
    assert (state.steady, state.warmup_steps) == (True, 1)
    assert effective_n(steps[2:], robust=False).lag1 == pytest.approx(0.83, abs=0.01)
    assert effective_n(steps[2:]).effective == pytest.approx(13.8, abs=0.1)
    assert effective_n(milliseconds(files, STEADY)[2:]).effective == 188


@pytest.mark.parametrize("name", [CORRELATED, STEADY])
def test_one_slow_step_does_not_move_the_robust_variation(name: str, files: Path) -> None:
    figures = summarize(milliseconds(files, name))
    assert figures.robust_cov is not None
    assert figures.cov is not None
    assert figures.robust_cov < 0.001
    assert figures.cov > 0.5


def test_what_a_spilling_memory_hides(files: Path) -> None:
    state = steady_state(milliseconds(files, SPILLING))
    assert state.unseen == "a change of less than 265 % over a fifth of the run cannot be seen in 39 steps"


# --- profiles


@pytest.mark.parametrize(
    ("file", "layout", "launches", "time_s", "read", "written", "flop"),
    [
        # 1 + … + 5 = 15 times 1 us, 3 kB, 1 kB and 10 + 20 + 2 x 100 FLOP.
        (WIDE, Layout.WIDE, 5, 15e-6, 45_000, 15_000, 15 * 230),
        (LONG_NVTX, Layout.LONG, 3, 15e-6, 1_500_000 + 1_024_250 + 250, 0, 2 * 2_433_500),
        (BOM_CRLF, Layout.LONG, 1, 10.5e-3, 53_250_000, 3_500_000, None),
    ],
)
def test_totals(
    file: str, layout: Layout, launches: int, time_s: float, read: int, written: int, flop: float | None, files: Path
) -> None:
    profile = ncu.read(files / "ncu" / file)
    assert (profile.layout, profile.warnings, profile.is_partial) == (layout, (), False)
    assert len(profile.kernels) == launches
    assert profile.kernels["duration_s"].sum() == pytest.approx(time_s)
    assert (profile.kernels["dram_read_bytes"].sum(), profile.kernels["dram_write_bytes"].sum()) == (read, written)
    assert profile.kernels["flop"].sum(min_count=1) == pytest.approx(
        float("nan") if flop is None else flop, nan_ok=True
    )


@pytest.mark.parametrize(
    ("file", "launches", "flop"), [(WIDE, 5, 3450), (LONG_NVTX, 3, 4_867_000), (BOM_CRLF, 1, None)]
)
def test_totals_of_the_command(file: str, launches: int, flop: float | None, files: Path, analyze: Analyze) -> None:
    whole = json.loads(analyze("kernels", files / "ncu" / file, "--format", "json")[1])[-1]
    assert (whole["family"], whole["launches"], whole["flop"]) == ("all", launches, flop)


@pytest.mark.parametrize(
    ("file", "device", "flop", "dram_bytes"),
    [
        # The file's own word beats what the user says.
        (WIDE, "Tesla V100-SXM2-16GB", 3450, 60_000),
        (LONG_NVTX, "NVIDIA L4", 4_867_000, 2_524_500),
        (BOM_CRLF, "NVIDIA L4", None, 56_750_000),
    ],
)
def test_imported_profiles(
    file: str, device: str, flop: float | None, dram_bytes: int, files: Path, tmp_path: Path
) -> None:
    given = Given(model="m", batch_size=1, gpu="NVIDIA L4", profile_steps=1)
    [folder] = import_file(files / "ncu" / file, given, output=tmp_path)
    record = json.loads((folder / "run.json").read_text())
    assert record["environment"]["device"]["name"] == device
    assert record["profile"].get("flop_per_step") == flop
    assert record["profile"]["dram_bytes_per_step"] == pytest.approx(dram_bytes)


def test_a_wide_page_tells_device_and_families(files: Path) -> None:
    profile = ncu.read(files / "ncu" / WIDE)
    assert set(profile.kernels["device"]) == {"Tesla V100-SXM2-16GB"}
    assert set(profile.kernels["compute_capability"]) == {"7.0"}
    assert profile.attributes["device__attribute_multiprocessor_count"] == "80"
    assert [families.is_backward(name) for name in profile.kernels["name"]] == [False, False, False, True, False]
    assert profile.kernels["family"].tolist() == ["batch norm", "convolution", "GEMM", "convolution", "convolution"]


def test_a_long_page_has_units_by_row_and_ranges_without_the_backward_pass(files: Path) -> None:
    profile = ncu.read(files / "ncu" / LONG_NVTX)
    assert set(profile.units["dram__bytes_read.sum"]) == {"byte", "Kbyte", "Mbyte"}
    assert list(profile.kernels["range"]) == [f"train_step/{part}" for part in ("forward", "loss", "optimizer_step")]
    assert not any(families.is_backward(name) for name in profile.kernels["name"])
    assert profile.kernels["family"].tolist() == ["convolution", "softmax/attention", "optimizer"]


def test_a_details_page_with_rules(files: Path) -> None:
    profile = ncu.read(files / "ncu" / RAGGED)
    assert profile.layout is Layout.DETAILS
    (kernel,) = profile.kernels.to_dict("records")
    assert kernel["duration_s"] == pytest.approx(21.5e-3)
    assert (kernel["cycles"], kernel["dram_percent"]) == (12_319_469, 61.84)
    assert kernel["compute_capability"] == "7.5"


@pytest.mark.parametrize(
    ("name", "failure"), [(NO_KERNELS, Failure.NO_KERNELS), (NO_HEADER, Failure.APPLICATION_ERROR)]
)
def test_profiles_that_failed(name: str, failure: Failure, files: Path) -> None:
    with pytest.raises(NcuFileError) as caught:
        ncu.read(files / "ncu" / name)
    assert caught.value.failure is failure
