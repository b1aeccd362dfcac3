from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.importing import UserFacts, import_file
from analysis.readers import ncu
from tests.analysis.readers.ncu.foreign_profiles import NSYS, NSYS_HEADER, PRINTED
from tests.analysis.readers.ncu.ncu_files import (
    COUNTS,
    DETAILS,
    DRAM,
    FADD,
    FFMA,
    ROW,
    TIME,
    line,
    long,
    save,
    who,
    wide,
)
from workload.contract import bundle
from workload.contract.errors import UsageError


def imported(tmp_path: Path, text: str | bytes) -> dict[str, Any]:
    options = UserFacts(model="resnet18", batch_size=4, profile_steps=1)
    (folder,) = import_file(save(tmp_path, text, "profile.txt"), options, output=tmp_path / "out")
    return dict(bundle.read(folder).document)


def test_printed_text_of_ncu_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no table of Nsight Compute: it is ncu's text output, written without"):
        imported(tmp_path, PRINTED)


# --- Nsight Systems


@pytest.mark.parametrize(
    ("header", "factor"),
    [
        (NSYS_HEADER, 1e-9),
        (NSYS_HEADER.replace("(ns)", "(nsec)"), 1e-9),
        (NSYS_HEADER.replace("(ns)", "(us)"), 1e-6),
    ],
)
def test_nsys_gpu_trace(tmp_path: Path, header: str, factor: float) -> None:
    profile = ncu.read(save(tmp_path, NSYS.replace(NSYS_HEADER, header)))
    kernels = profile.kernels
    assert kernels["name"].tolist() == ["void volta_sgemm<float, 128>(float *)", "vectorized_elementwise"]
    assert kernels["duration_s"].tolist() == pytest.approx([10_000 * factor, 2_500 * factor])
    assert kernels["grid"].tolist() == ["(64, 2, 1)", "(1, 1, 1)"]
    assert kernels["device"].tolist() == ["NVIDIA A100-SXM4-80GB"] * 2
    assert kernels["flop"].isna().all()
    assert profile.losses == ()
    assert "a trace of Nsight Systems: times of kernels, no counters" in profile.warnings
    assert (
        "==WARNING== 1 copies and memsets of the trace are left out, because they are not kernels" in profile.warnings
    )


def test_broken_rows_of_a_trace_are_a_loss(tmp_path: Path) -> None:
    loss = "==WARNING== 1 broken rows left out: the file is cut off or damaged"
    assert ncu.read(save(tmp_path, NSYS + "40000,25")).losses == (loss,)


@pytest.mark.parametrize("text", [NSYS * 2, NSYS + NSYS.split("\n", 1)[1]], ids=["the file", "its rows"])
def test_kernels_of_nsys_count_once(text: str, tmp_path: Path) -> None:
    found = ncu.read(save(tmp_path, text))
    assert len(found.kernels) == 2
    assert any("in the file twice" in loss for loss in found.losses)


def test_nsys_gpu_trace_is_imported(tmp_path: Path) -> None:
    record = imported(tmp_path, NSYS)
    assert record["environment"]["device"]["name"] == "NVIDIA A100-SXM4-80GB"
    assert record["profile"]["kernel_time_s_per_step"] == pytest.approx(12.5e-6)
    assert record["profile"].get("flop_per_step") is None
    assert len(analysis.load(tmp_path / "out").kernels) == 2


# --- what is twice in a file, or not at all


@pytest.mark.parametrize(
    ("text", "launches", "flop", "loss"),
    [
        pytest.param(
            wide(COUNTS, [ROW, ROW]) + wide(COUNTS, [ROW, ROW]).split("\n", 2)[2],
            2,
            46,
            "2 launches are twice in the file (same process and ID): only the first is counted",
            id="rows twice",
        ),
        pytest.param(
            wide(COUNTS, [ROW]) + wide(COUNTS, [["1000", "1", "2", "99", "64"]]),
            1,
            23,
            "1 launch is twice in the file (same process and ID): only the first is counted",
            id="other figures",
        ),
        pytest.param(
            long([(number % 2, metric, unit, cell) for number in range(4) for (metric, unit), cell in
                  zip(COUNTS.items(), ROW, strict=True)]),
            2,
            46,
            "2 of the file's launches are in the file twice (same process and ID): each is counted once",
            id="long, twice",
        ),
        pytest.param(
            "".join(
                row for number, row in enumerate(wide(COUNTS, [ROW] * 10).splitlines(keepends=True))
                if number not in {4, 5, 8}
            ),
            7,
            7 * 23,
            "3 launches are missing, of 10 (IDs 2 to 3, 6): sums cover only the others",
            id="missing",
        ),
        pytest.param(
            wide(COUNTS, [ROW, ["1000", "1", "2", "n/a", "64"]]),
            2,
            None,
            (
                f"{FFMA} has no value for 1 of 2 launches (n/a, or in an unknown unit): sums of it are "
                    "unavailable"
            ),
            id="n/a",
        ),
        pytest.param(
            wide(COUNTS | {FFMA: "MB"}, [ROW]),
            1,
            None,
            f"{FFMA} is unavailable: its unit 'MB' is no known unit of count",
            id="unknown unit",
        ),
        pytest.param(
            wide(COUNTS, [ROW]) + wide(COUNTS, [ROW]).replace('"11"', '"12"'),
            2,
            46,
            "launches of 2 processes are added up",
            id="two processes",
        ),
    ],
)  # fmt: skip
def test_silent_damage_is_told(tmp_path: Path, text: str, launches: int, flop: float | None, loss: str) -> None:
    record = imported(tmp_path, text)
    profile = record["profile"]
    assert profile["kernels_profiled"] == launches
    # 1 + 2 + 2 x 10 of each launch.
    assert profile.get("flop_per_step") == flop
    assert record["imported"]["losses"] == [loss]
    assert f"ncu: {loss}" in record["notes"]
    assert profile["status"] == ("partial" if "missing" in loss else "completed")
    audit = analysis.load(tmp_path / "out").audit()
    assert audit.loc[audit["rule"] == "lost at import", "figure"].tolist() == [loss]


def test_a_whole_file_has_no_losses(tmp_path: Path) -> None:
    record = imported(tmp_path, wide(COUNTS, [ROW] * 5))
    assert record["imported"].get("losses") is None
    assert "lost at import" not in analysis.load(tmp_path / "out").audit()["rule"].tolist()


def test_processes_that_share_one_count_of_ids_miss_none(tmp_path: Path) -> None:
    lines = wide(COUNTS, [ROW] * 4).splitlines(keepends=True)
    text = "".join(line.replace('"11"', '"12"') if number in {3, 5} else line for number, line in enumerate(lines))
    assert ncu.read(save(tmp_path, text)).losses == ("launches of 2 processes are added up",)


def test_two_gpus_are_no_run(tmp_path: Path) -> None:
    text = wide(COUNTS, [ROW]) + wide(COUNTS, [ROW]).replace('"11"', '"12"').replace(',"0","8.0"', ',"1","8.0"')
    path = save(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        import_file(path, UserFacts(model="m", batch_size=1), output=tmp_path / "out")
    assert caught.value.report() == (
        f"error: '{path}' holds the launches of 2 GPUs, but a run has one (compute capability 8.0 (device "
        "0): 1, compute capability 8.0 (device 1): 1)\nhint: keep only the rows of one GPU (column Device), "
        "or profile with CUDA_VISIBLE_DEVICES=0"
    )
    losses = ncu.read(path).losses
    assert (
        "launches of 2 GPUs are added up (compute capability 8.0 (device 0): 1, compute capability 8.0 (device 1): 1)"
        in losses
    )


# --- a details page: its rows of metrics end before the columns of rules


def details(*, broken: str = "") -> str:
    rule = ("SOLBottleneck", "OPT", "Some advice, with a comma")
    text = line(DETAILS)
    for launch in range(3):
        for metric, unit, cell in ((TIME, "us", "1,000.50"), (FADD, "inst", "1,001"), (DRAM, "Kbyte", "2.25")):
            text += line([*who(launch, name='k<"a", b>'), "Speed Of Light", metric, unit, cell])
        text += line([*who(launch, name='k<"a", b>'), "Speed Of Light", "", "", "", *rule])
    return text + broken


@pytest.mark.parametrize(
    ("broken", "loss"),
    [
        ("", None),
        ("==PROF== Disconnected from process 11\n", None),
        # Neither a row nor a message: the page is read row by row.
        ("done, in 3 s\n", None),
        ('"3","11","k","(256, 1, 1)","(5\n', "1 broken row left out: the file is cut off or damaged"),
    ],
)
def test_a_details_page_is_read_row_by_row(tmp_path: Path, broken: str, loss: str | None) -> None:
    profile = ncu.read(save(tmp_path, details(broken=broken)))
    kernels = profile.kernels
    assert kernels["name"].tolist() == ['k<"a", b>'] * 3
    assert kernels["duration_s"].tolist() == pytest.approx([1000.5e-6] * 3)
    assert kernels["dram_bytes"].tolist() == [2250] * 3
    assert profile.losses == ((loss,) if loss else ())
