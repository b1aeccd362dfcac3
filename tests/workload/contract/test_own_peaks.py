from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workload.contract import peaks
from workload.contract.errors import ExitCode, UsageError
from workload.contract.peaks import own_peaks

OWN = """
[source.mine]
title = "measured by the lab"
read = 2026-11-20

[[gpu]]
gpu = "L4"
names = ["NVIDIA L4"]
gb_per_s = 290
source = "mine"
peak = [{ precision = "fp32", tflop_per_s = 25, source = "mine" }]

[[gpu]]
gpu = "Xeon of the lab"
names = ["Intel(R) Xeon(R) Processor"]
memory_gb = [64]
gb_per_s = 40.5
source = "mine"
note = "4 cores"
peak = [{ precision = "fp32", dense = true, tflop_per_s = 0.2, source = "mine" }]
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    peaks.use(None)


def written(text: str, name: str = "peaks.toml") -> Path:
    Path(name).write_text(text)
    return Path(name)


def test_rows_are_added_and_replaced_and_name_their_file() -> None:
    assert own_peaks(None) is None
    before = peaks.digest()
    written(OWN)
    peaks.use(own_peaks(None))
    l4 = peaks.find("nvidia l4", precision="fp32", memory_bytes=23034 << 20)
    assert (l4.flop_per_s, l4.bytes_per_s) == (25e12, 290e9)
    assert l4.source == "measured by the lab, read 2026-11-20, from peaks.toml, in the working folder"
    assert peaks.find("NVIDIA L4", precision="amp") is None
    cpu = peaks.find("Intel(R)  Xeon(R) Processor", precision="fp32")
    assert (cpu.gpu, cpu.flop_per_s, cpu.note) == ("Xeon of the lab", 0.2e12, "4 cores")
    assert peaks.find("Intel(R) Xeon(R) Processor", precision="fp32", memory_bytes=16e9) is None
    # Other rows stay, and each device is there once.
    assert peaks.find("Tesla T4", precision="amp").source == "NVIDIA T4 datasheet, read 2026-11"
    assert len(peaks.gpus()) == len(peaks.vendors()) + 1
    assert peaks.digest() != before
    peaks.use(None)
    assert peaks.digest() == before


def test_named_file_wins_over_the_working_folder() -> None:
    written("broken [")
    own = own_peaks(written(OWN.replace("25", "26"), "lab.toml"))
    assert own.origin == "lab.toml"
    assert own.gpus[0].peaks[0].source.endswith(", from lab.toml")


def test_own_device_wins_where_it_shares_a_name_with_ours() -> None:
    peaks.use(own_peaks(written(OWN.replace('gpu = "L4"', 'gpu = "our L4"'))))
    assert peaks.find("NVIDIA L4", precision="fp32").gpu == "our L4"
    assert peaks.find("L4", precision="fp32").gpu == "L4"


L4, RATE = "gpu L4", "gpu L4, peak fp32"


@pytest.mark.parametrize(
    ("was", "becomes", "problem"),
    [
        ("gb_per_s = 290", "gb = 290", "there is no key gpu.gb; a number's key ends in its unit"),
        ("tflop_per_s = 25", "tflop = 25", "there is no key gpu.peak.tflop; a number's key ends in its unit"),
        ("gb_per_s = 290", 'gb_per_s = 290\ndevice = "gpu"', f"{L4}: device must be one of cuda, mps, cpu; got 'gpu'"),
        ("gb_per_s = 290", 'gb_per_s = "290 GB/s"', "gpu.0.gb_per_s is not a positive number"),
        ("gb_per_s = 290\n", "", "gpu.0.gb_per_s is missing"),
        ("gb_per_s = 290", "gb_per_s = nan", "gpu.0.gb_per_s is not a positive number"),
        ("gb_per_s = 290", "gb_per_s = 290e9", f"{L4}: gb_per_s must be a number from 0.1 to 100000; got 2.9e+11"),
        (
            "tflop_per_s = 25",
            "tflop_per_s = 25, tflop_per_s_low = 25",
            f"{RATE}: tflop_per_s_low must be below tflop_per_s (25)",
        ),
        (
            "tflop_per_s = 25",
            "tflop_per_s = 303, flop_per_clock_per_sm = 256, clock_mhz = 2040",
            f"{RATE}: tflop_per_s must be within 2% of sms x flop_per_clock_per_sm x clock (30.3); got 303",
        ),
        ('"fp32", tflop', '"fp64", tflop', f"{L4}, peak fp64: precision must be one of fp32, tf32, amp, bf16"),
        (
            "tflop_per_s = 25",
            "dense = false, tflop_per_s = 25",
            f"{RATE}: dense must be true: no training step reaches a rate with sparsity",
        ),
        (', source = "mine" }]', "}]", "gpu.0.peak.0.source is missing"),
        (
            'source = "mine"\npeak',
            'source = "l4"\npeak',
            f"{L4}: source must be the name of a [source.NAME] of this file; got 'l4'",
        ),
        ("read = 2026-11-20", "", "source.mine.read is missing"),
        ('names = ["NVIDIA L4"]', "names = []", f"{L4}: names and peak must each have at least one item"),
        ('names = ["NVIDIA L4"]', "names = [4]", "gpu.0.names is not a list of texts"),
        ('"Xeon of the lab"', '"L4"', "L4 is there twice"),
        ("memory_gb = [64]", 'memory_gb = "64"', "gpu.1.memory_gb is not a list of numbers from 0 to 1e+30"),
        (
            'peak = [{ precision = "fp32", tflop',
            'peak = [{ precision = "fp32", tflop_per_s = 1, source = "mine" }, { precision = "fp32", tflop',
            "L4, fp32 is there twice",
        ),
        ("peak = [{", "peak = 3 # [{", "gpu.0.peak is not a list"),
        ("gb_per_s = 290", "gb_per_s = ", "Invalid value (at line 9, column 12)"),
    ],
)
def test_wrong_file_is_one_line(was: str, becomes: str, problem: str) -> None:
    text = OWN.replace("[[gpu]]", "[[gpu]]\nsms = 58") if "clock_mhz" in becomes else OWN
    assert was in text
    written(text.replace(was, becomes, 1))
    with pytest.raises(UsageError) as caught:
        own_peaks(None)
    between = "is not valid TOML" if problem.startswith("Invalid") else ""
    assert str(caught.value) == f"'peaks.toml'{' ' * bool(between)}{between}: {problem}"
    assert caught.value.hint
    assert "\n" not in caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.mkdir(), "'peaks.toml' cannot be read: Is a directory"),
        (lambda path: path.symlink_to("nowhere"), "'peaks.toml' cannot be read: No such file or directory"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "'peaks.toml' is not a text file in UTF-8"),
        (lambda path: path.write_bytes(b""), "'peaks.toml': there is no row [[gpu]]"),
        (lambda path: path.write_text("gpu = 3"), "'peaks.toml': gpu is not a list"),
        (lambda path: path.write_text("gpu = [3]"), "'peaks.toml': gpu.0 is not an object"),
        (lambda path: path.write_text("source = 3"), "'peaks.toml': source is not an object"),
    ],
)
def test_unreadable_file(change: Callable[[Path], object], reason: str) -> None:
    change(Path("peaks.toml"))
    with pytest.raises(UsageError) as caught:
        own_peaks(None)
    assert str(caught.value) == reason


def test_file_that_is_named_must_exist() -> None:
    with pytest.raises(UsageError, match=r"'lab\.toml' cannot be read: No such file or directory"):
        own_peaks(Path("lab.toml"))


def test_same_name_and_memory_in_two_rows() -> None:
    both = OWN.replace("Intel(R) Xeon(R) Processor", "nvidia  L4")
    for text in (both, both.replace("[[gpu]]", "[[gpu]]\nmemory_gb = [24, 64]", 1)):
        written(text)
        with pytest.raises(UsageError, match=r"'L4' and 'Xeon of the lab' have the name 'nvidia l4'"):
            own_peaks(None)
    peaks.use(own_peaks(written(both.replace("[[gpu]]", "[[gpu]]\nmemory_gb = [24]", 1))))
    assert [peaks.find_gpu("NVIDIA L4", memory_bytes=size * 1e9).gpu for size in (24, 64)] == ["L4", "Xeon of the lab"]


def test_hints_name_the_nearest_key() -> None:
    written(OWN.replace("gb_per_s = 290", "gb_per_sec = 290"))
    with pytest.raises(UsageError) as caught:
        own_peaks(None)
    assert caught.value.hint.startswith("did you mean gb_per_s? the keys are gpu, device, names, memory_gb")
