"""`launch gpus --for`: the screen of a hand-made bundle, whose figures are computed by hand, and what it refuses.

The step keeps 0.4 GB beside 4.7 GB of activations at batch 64, so 9.8 GB at 128, 19.2 GB at 256, 38 GB at 512.
CUDA takes at most 1.10 + 0.0625 GiB beside them, 1.25 GB: a T4 (15.6 GB) has room for 128, an L4 (23.6 GB) for 256.
An epoch of 50,000 images is 781.25 steps: 0.10 s each at 0.707 USD per hour are 0.0153 USD.
"""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.gcp import gpus
from launcher.gpu_choice import refuse_too_large
from workload.contract import allocations, bundle
from workload.contract.allocations import Allocation, Kind
from workload.contract.errors import UsageError
from workload.contract.peaks import Gpu
from workload.contract.spec import RunSpec
from workload.stats import step_times
from workload.stats.step_times import Expected, Step

Launch = Callable[..., int]

MB = 10**6
SAMPLES = 64
MEMORY: dict[str, Any] = {
    "peak_bytes": 5100 * MB,
    "weights_bytes": 100 * MB,
    "gradients_bytes": 100 * MB,
    "optimizer_bytes": 200 * MB,
    "activations_bytes": 4700 * MB,
    "temporaries_bytes": 0,
    "inputs_bytes": 1 * MB,
    "peak_op": "convolution_backward",
    "peak_line": "train.py:41",
    "samples": SAMPLES,
    "bytes_per_sample": 4700 * MB / SAMPLES,
}
DOCUMENT: dict[str, Any] = {
    "status": "completed",
    "spec": {
        "model": "train.py",
        "batch_size": SAMPLES,
        "precision": "fp32",
        "device": "cpu",
        "script": {"argv": ["train.py", "--batch", "64"], "unit": "images", "dataset_samples": 50_000},
    },
    "environment": {"device": {"name": "A CPU", "type": "cpu"}},
    "timing": {"images": 640, "measured_s": 8.0, "images_per_s": 80.0, "step_s": {"n": 10, "median": 0.8}},
    "profile": {"status": "not requested"},
    "step_memory": MEMORY,
}
# By the name of a GPU in peaks.toml.
TIMES = {
    "L4": Expected(roof_s=0.02, value_s=0.10, low_s=0.07, high_s=0.16, why="from train.py measured on L4"),
    "T4": Expected(roof_s=0.06, value_s=0.16, low_s=0.11, high_s=0.25, why="from 40 published steps"),
    "V100 SXM2": Expected(roof_s=0.03, value_s=0.06, low_s=0.03, high_s=0.07, why="from 40 published steps"),
    "A100 40 GB": Expected(roof_s=0.012, why="measured steps differ 3.1 times from each other"),
}
NO_TIME = Expected(why="no run has the FLOP and bytes of its step")


def step(scaled: bool = True, factor: int = 1) -> list[Allocation]:
    """Allocations of the step above; `scaled`: two batches were counted; `factor`: activations that much larger."""
    sizes = ((Kind.WEIGHTS, 100), (Kind.GRADIENTS, 100), (Kind.OPTIMIZER, 200))
    kept = [
        Allocation(kind=kind, size_bytes=size * MB, bytes_per_sample=0.0 if scaled else None, born=index, died=None)
        for index, (kind, size) in enumerate(sizes)
    ]
    each = 100 * MB * factor
    made = [
        Allocation(
            kind=Kind.ACTIVATIONS,
            size_bytes=each,
            bytes_per_sample=each / SAMPLES if scaled else None,
            born=3 + index,
            died=100 + index,
        )
        for index in range(47)
    ]
    return [*kept, *made]


def write(folder: Path, found: list[Allocation] | None = None, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    bundle.write_document(folder, {"run_id": folder.name, **DOCUMENT, **changes})
    if found:
        allocations.write(folder / allocations.FILE, found)
    bundle.seal(folder)
    return folder


@pytest.fixture(autouse=True)
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def expected(_: Step, gpu: Gpu, __: object) -> Expected:
        return TIMES.get(gpu.gpu, NO_TIME)

    monkeypatch.setattr(step_times, "expected", expected)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "20261124T120000Z-train.py-b64", step())


def screen(launch: Launch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert launch("gpus", "--for", *map(str, words)) == 0
    return capsys.readouterr().out


def test_the_screen_at_80_and_120_columns_and_wide(
    run: Path,
    launch: Launch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = {}
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        shown[width] = screen(launch, capsys, run)
    shown["--wide"] = screen(launch, capsys, run, "--wide")
    golden("gpu_choice.txt", "\n".join(f"## {name}\n\n{text}" for name, text in shown.items()))
    for heading in ("GB", "fits at", "a step, about", "USD per", "largest"):
        assert heading in shown["80"], "the answer fits a small terminal"


def test_the_figures_in_json_and_csv(run: Path, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(screen(launch, capsys, run, "--format", "json"))
    assert (content["batch"], content["number"], content["unit"]) == (64, 50_000, "images")
    rows = {(row["gpu"], row["provider"]): row for row in content["gpus"]}
    l4 = rows["l4", "gcp"]
    assert l4["usd"] == pytest.approx(781.25 * 0.10 * 0.707 / 3600)
    assert l4["usd_spot_high"] == pytest.approx(781.25 * 0.16 * 0.361 / 3600)
    assert (l4["largest_batch"], l4["too_large_batch"], l4["fits"]) == (256, 512, "fits")
    assert l4["needed_low_bytes"] == pytest.approx(5100 * MB + 0.10 * 2**30, rel=1e-5)
    a100 = rows["a100", "gcp"]
    assert (a100["usd"], a100["usd_least"]) == (None, pytest.approx(781.25 * 0.012 * 3.673385 / 3600))
    assert rows["a100-80gb", "gcp"]["usd_per_h"] is None
    assert [row["gpu"] for row in content["gpus"] if row["is_fastest"]] == ["v100"]
    assert len(list(csv.DictReader(screen(launch, capsys, run, "--format", "csv").splitlines()))) == len(rows)


def test_gpus_that_are_too_small_come_last_without_time_and_cost(
    tmp_path: Path, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    # 18.8 GB of activations at batch 64: more than a T4 and a V100 have.
    large = write(tmp_path / "large", step(factor=4), step_memory=MEMORY | {"peak_bytes": 19_200 * MB})
    rows = json.loads(screen(launch, capsys, large, "--format", "json"))["gpus"]
    small = [row for row in rows if row["fits"] == "does not fit"]
    assert rows[-3:] == small
    assert {row["gpu"] for row in small} == {"t4", "v100"}
    assert {row["usd"] for row in small} == {None}
    assert [row["gpu"] for row in rows if row["is_fastest"]] == ["l4", "l4"]
    assert {(row["largest_batch"], row["too_large_batch"]) for row in small} == {(32, 64)}
    assert "16 no 123 % - - 32 -" in " ".join(screen(launch, capsys, large).split())
    # 14.5 GB of tensors, and 0.1 to 1.25 GB beside them, in the 15.63 GB of a T4.
    close = write(tmp_path / "close", step(factor=3), step_memory=MEMORY | {"peak_bytes": 14_500 * MB})
    assert "t4 aws 16 close 101 % 160 ms (110-250) 0.018 32-64" in " ".join(screen(launch, capsys, close).split())


# What is unusual about a run, with what the screen says on it.
UNUSUAL: dict[str, tuple[dict[str, Any], bool, tuple[str, ...]]] = {
    "a lower bound": (
        {"step_memory": MEMORY | {"lower_bound": ["the kernels of flash_attn are not counted"]}},
        True,
        ("keeps at least 5.1 GB", "from 33 %", "up to 128", "lower bound: the kernels of flash_attn are"),
    ),
    "a leak": (
        {"step_memory": MEMORY | {"growth_bytes": 12 * MB}},
        True,
        ("every step keeps 12 MB more than the one before", "from 33 %"),
    ),
    "one batch size": ({}, False, ("unknown", "the memory of one batch size only was counted")),
    "several devices": (
        {"spec": DOCUMENT["spec"] | {"devices": 4}},
        True,
        ("training steps at batch 64 on one GPU; the run used 4",),
    ),
    "no length of the data": (
        {"spec": DOCUMENT["spec"] | {"script": {"argv": ["train.py"], "unit": "tokens"}}},
        True,
        ("USD for 1 billion tokens;",),
    ),
    "no batch": (
        {"step_memory": MEMORY | {"samples": None, "bytes_per_sample": None}},
        False,
        ("train.py (fp32) keeps", "yes 27 % 100 ms (70-160) 0.015 unknown", "time and USD: training steps, without"),
    ),
    "no timed step": ({"timing": {}}, True, ("100 ms (70-160)   unknown",)),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_what_is_unusual_about_a_run_is_said(
    case: str, tmp_path: Path, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, scaled, said = UNUSUAL[case]
    shown = " ".join(screen(launch, capsys, write(tmp_path / "run", step(scaled), **changes)).split())
    assert [text for text in said if " ".join(text.split()) not in shown] == []


def test_the_newest_usable_run_of_a_folder_and_an_amount_of_ones_own(
    run: Path, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run.with_name("20261125T120000Z-later"), step_memory=None)
    content = json.loads(screen(launch, capsys, run.parent, "--samples", "1.28M", "--format", "json"))
    assert content["bundle"] == str(run)
    assert content["gpus"][0]["usd"] == pytest.approx(20_000 * 0.10 * 0.707 / 3600)
    assert "for 1,280,000 images" in " ".join(screen(launch, capsys, run, "--samples", "1280000", "--wide").split())


# Bad input: the words after `launch gpus`, the exit code, and the text of the error.
BAD: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no folder": (("--for", "nowhere"), 2, "--for needs a bundle or a folder of bundles; 'nowhere' does not exist"),
    "a file": (("--for", "file"), 2, "'file' is a file"),
    "no bundle": (("--for", "empty"), 3, "no bundle in 'empty'"),
    "imported": (("--for", "imported"), 3, "'imported' has no memory of a step: it is imported"),
    "not counted": (("--for", "failed"), 3, "'failed' has no memory of a step: the run ended as failed"),
    "only uncounted": (("--for", "."), 3, "has no memory of a step"),
    "lost allocations": (("--for", "lost"), 8, "'lost' is damaged: allocations.csv"),
    "samples": (("--for", "empty", "--samples", "abc"), 2, "samples must be a whole number"),
    "samples alone": (("--samples", "5"), 2, "--samples needs --for"),
    "format": (("--for", "empty", "--format", "xml"), 2, "xml"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_a_sentence(
    case: str, tmp_path: Path, launch: Launch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("empty").mkdir()
    write(Path("imported"), step_memory=None, imported={"kind": "ncu"})
    write(Path("failed"), step_memory=None, status="failed")
    if case == "lost allocations":
        write(Path("lost"))
    words, code, message = BAD[case]
    assert launch("gpus", *words) == code
    said = capsys.readouterr().err
    assert message in " ".join(said.split())
    assert "hint:" in said


@pytest.mark.parametrize(
    "place", [("gcp",), ("aws",), ("batch", "--region", "us-central1")], ids=lambda place: place[0]
)
def test_a_step_of_our_trainer_that_cannot_fit_is_refused_unless_anyway(
    place: tuple[str, ...], launch: Launch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def counted(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "complexity" not in command:
            return subprocess.CompletedProcess(command, 1, stdout="", stderr="")
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout=allocations.as_text(step(factor=4)), stderr="")

    monkeypatch.setattr(subprocess, "run", counted)
    words = (*place, "--gpu", "t4", "--dry-run", "--model", "resnet50", "--batch-size", "64", "--precision", "amp")
    assert launch(*words) == 2
    said = capsys.readouterr().err
    assert "error: a step of resnet50, batch 64, amp needs at least 19.3 GB; a T4 16 GB has 15.8 GB for it" in said
    assert "hint: --batch-size 32 or a larger GPU (launch gpus) or --anyway" in said
    assert {"--model=resnet50", "--batch-size=64", "--image-size=224", "--precision=amp"} < set(asked[0])
    assert launch(*words, "--anyway") == 0
    assert launch(*place, "--gpu", "t4", "--dry-run") == 0
    assert len(asked) == 1, "the default configuration fits every GPU"


def test_a_script_is_refused_by_what_its_newest_counted_run_needs(tmp_path: Path) -> None:
    write(tmp_path / "20261124T1-other", step(factor=4), spec=DOCUMENT["spec"] | {"script": {"argv": ["train.py"]}})
    spec, t4 = RunSpec(script=("train.py", "--batch", "64")), gpus.require("t4")
    refuse_too_large(spec, t4, tmp_path)
    write(tmp_path / "20261125T1-same", step(factor=4))
    with pytest.raises(UsageError, match=r"train\.py --batch 64 needs at least 19\.3 GB") as refused:
        refuse_too_large(spec, t4, tmp_path)
    assert refused.value.hint.startswith("a batch of 32 or a larger GPU")
    refuse_too_large(spec, gpus.require("l4"), tmp_path)
    write(tmp_path / "20261126T1-smaller-and-close", step(factor=3))
    refuse_too_large(spec, t4, tmp_path)


@pytest.mark.slow
@pytest.mark.world
def test_a_run_of_our_trainer_answers_and_its_dry_run_counts_the_same(tmp_path: Path) -> None:
    def launched(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "launcher", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    options = ("--model", "squeezenet1_1", "--image-size", "64")
    steps = ("--warmup", "0", "--iterations", "1", "--no-ceilings", "--batch-size", "2")
    assert launched("local", "--cpu", "--runtime", "process", *steps, *options).returncode == 0
    rows = json.loads(launched("gpus", "--for", "results", "--samples", "1k", "--format", "json").stdout)["gpus"]
    t4 = next(row for row in rows if row["gpu"] == "t4")
    assert t4["fits"] == "fits"
    assert t4["usd_least"] > 0
    refused = launched("gcp", "--gpu", "t4", "--dry-run", *options, "--batch-size", str(t4["too_large_batch"]))
    assert refused.returncode == 2
    assert f"--batch-size {t4['largest_batch']} or" in refused.stderr
