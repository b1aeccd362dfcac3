"""Tables of peaks and prices: devices by name, bandwidths, and tables of one's own."""

import math
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workload.told import told
from workload.contract import peaks, prices
from workload.contract.errors import UsageError
from workload.contract.peaks import own_peaks

# Name as NVML, torch or a user writes it, precision, and memory in bytes.
KNOWN: list[tuple[str, str, float | None]] = [
    ("Tesla T4", "fp32", None),
    ("Tesla T4", "amp", 15360 << 20),
    ("NVIDIA L4", "fp32", 23034 << 20),
    ("NVIDIA L4", "amp", None),
    ("Tesla V100-SXM2-16GB", "fp32", 16928342016),
    ("Tesla V100-PCIE-16GB", "fp32", None),
    ("NVIDIA A100-SXM4-40GB", "tf32", 40960 << 20),
    ("NVIDIA A100 80GB PCIe", "bf16", None),
    ("NVIDIA A100-SXM4-80GB", "fp32", None),
    ("NVIDIA H100 80GB HBM3", "amp", 81559 << 20),
    ("NVIDIA H200", "fp32", 143771 << 20),
    ("NVIDIA GeForce RTX 4080", "fp32", 16376 << 20),
    ("NVIDIA GeForce RTX 4080 Laptop GPU", "fp32", 12282 << 20),
    ("NVIDIA GeForce RTX 4090", "amp", 24564 << 20),
    # Case and blanks vary; a short name is enough where it is unique, the memory tells others apart.
    (" tesla  T4 ", "fp32", None),
    ("A100", "fp32", 40e9),
    # Any memory: that of the host.
    ("Apple M1 Max (32-core GPU)", "fp32", 64 << 30),
    ("Intel(R) Core(TM) i9-14900HX", "fp32", None),
]
UNKNOWN: list[tuple[str | None, str | None, float | None]] = [
    *((name, "fp32", None) for name in (None, "", "Intel(R) Xeon(R) Processor", "NVIDIA GeForce RTX 5070")),
    # Longer or shorter names are other devices.
    *((name, "fp32", None) for name in ("NVIDIA GeForce RTX 4080 SUPER", "Tesla V100")),
    # The CPU of the chip, and a GPU of the chip with fewer cores.
    *((name, "fp32", None) for name in ("Apple M1", "Apple M1 (7-core GPU)", "Apple M4 Max (40-core GPU)")),
    ("Intel(R) Core(TM) i9-14900HX", "bf16", None),
    # No units, nobody said which.
    *(("Tesla T4", precision, None) for precision in ("tf32", "bf16", None, "fp8")),
    ("Tesla V100-SXM2-16GB", "tf32", None),
    # Several devices of one name, and one with another memory: a laptop's 12 GB are no desktop card's.
    *(("A100", "fp32", memory_bytes) for memory_bytes in (None, 80e9)),
    ("RTX 4080", "fp32", 12282 << 20),
    ("Tesla T4", "fp32", 24e9),
]


def test_peaks_of_known_devices(golden: Callable[[str, str], None]) -> None:
    text = ""
    for name, precision, memory_bytes in KNOWN:
        peak = peaks.find(name, precision=precision, memory_bytes=memory_bytes)
        assert peak is not None
        figures = f"{peak.flop_per_s:.6g} FLOP/s, {peak.bytes_per_s:.6g} B/s"
        text += f"{name!r}, {precision}, {memory_bytes}: {figures}; {peak.source}\n"
    golden("peaks.txt", text)


@pytest.mark.parametrize(("name", "precision", "memory_bytes"), UNKNOWN)
def test_unknown_device_is_none_and_never_a_similar_one(
    name: str | None, precision: str | None, memory_bytes: float | None
) -> None:
    assert peaks.find(name, precision=precision, memory_bytes=memory_bytes) is None


def test_laptop_depends_on_its_power_limit() -> None:
    peak = peaks.find("NVIDIA GeForce RTX 4080 Laptop GPU", precision="amp")
    assert (peak.flop_per_s_low, peak.flop_per_s) == (40e12, 67.7e12)
    assert peak.note == "by power limit, 60 to 150 W; a desktop RTX 4080 has 48.7"
    desktop = peaks.find("NVIDIA GeForce RTX 4080", precision="amp")
    assert desktop.flop_per_s_low is None


def test_a_processor_with_two_kinds_of_cores_has_the_sum_of_both() -> None:
    peak = peaks.find("Intel(R) Core(TM) i9-14900HX", precision="fp32")
    at_most, at_base = (8 * 32 * p_ghz + 16 * 16 * e_ghz for p_ghz, e_ghz in ((5.8, 4.1), (2.2, 1.6)))
    assert (peak.flop_per_s, peak.flop_per_s_low) == pytest.approx((at_most * 1e9, at_base * 1e9), rel=0.01)
    # A 64-bit channel of DDR5-5600 moves 8 x 5.6 GB/s.
    assert peak.bytes_per_s == pytest.approx(2 * 8 * 5.6e9)
    others = {gpu.gpu for gpu in peaks.gpus() if gpu.device != "cuda"}
    assert others == {"M1", "M1 Pro", "M1 Max", "M2", "Core i9-14900HX"}


@pytest.mark.parametrize(
    ("name", "clock_mhz", "bits", "gb_per_s"),
    [
        ("Tesla T4", 5001, 256, 320.064),
        ("NVIDIA L4", 6251, 192, 300.048),
        ("Tesla V100-SXM2-16GB", 877, 4096, 898.048),
        ("NVIDIA H200", 3201, 6144, 4916.736),
    ],
)
def test_bandwidth_from_the_device(name: str, clock_mhz: float, bits: float, gb_per_s: float) -> None:
    assert peaks.bandwidth(memory_clock_mhz=clock_mhz, bus_width_bits=bits) == pytest.approx(gb_per_s * 1e9)
    gpu = peaks.find_gpu(name)
    assert peaks.bandwidth_warning(gpu, memory_clock_mhz=clock_mhz, bus_width_bits=bits) is None


@pytest.mark.parametrize(
    ("clock_mhz", "figures"),
    [
        # 320 GB/s is 5000 MHz x 256 bit; 7 % more is 5350, 7 % less 4650.
        (5349, None),
        (5351, "give 342 GB/s, the table has 320 (+7.0 %)"),
        (4651, None),
        (4649, "give 298 GB/s, the table has 320 (-7.0 %)"),
        (None, None),
        (0, None),
    ],
)
def test_another_bandwidth_is_said(clock_mhz: float | None, figures: str | None) -> None:
    warning = f"the device's memory clock and bus {figures}: perhaps it is another device than its name says"
    printed = peaks.bandwidth_warning(peaks.find_gpu("Tesla T4"), memory_clock_mhz=clock_mhz, bus_width_bits=256)
    assert printed == (warning if figures else None)


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


# A part of the file, and what stands in its place.
WRONG = [
    ("gb_per_s = 290", "gb = 290"),
    ("gb_per_s = 290", "gb_per_sec = 290"),
    ("tflop_per_s = 25", "tflop = 25"),
    ("gb_per_s = 290", 'gb_per_s = 290\ndevice = "gpu"'),
    ("gb_per_s = 290", 'gb_per_s = "290 GB/s"'),
    ("gb_per_s = 290\n", ""),
    ("gb_per_s = 290", "gb_per_s = nan"),
    ("gb_per_s = 290", "gb_per_s = 290e9"),
    ("tflop_per_s = 25", "tflop_per_s = 25, tflop_per_s_low = 25"),
    ("tflop_per_s = 25", "tflop_per_s = 303, flop_per_clock_per_sm = 256, clock_mhz = 2040"),
    ('"fp32", tflop', '"fp64", tflop'),
    ("tflop_per_s = 25", "dense = false, tflop_per_s = 25"),
    (', source = "mine" }]', "}]"),
    ('source = "mine"\npeak', 'source = "l4"\npeak'),
    ("read = 2026-11-20", ""),
    ('names = ["NVIDIA L4"]', "names = []"),
    ('names = ["NVIDIA L4"]', "names = [4]"),
    ('"Xeon of the lab"', '"L4"'),
    ("memory_gb = [64]", 'memory_gb = "64"'),
    ("peak = [{", 'peak = [{ precision = "fp32", tflop_per_s = 1, source = "mine" }, {'),
    ("peak = [{", "peak = 3 # [{"),
    ("gb_per_s = 290", "gb_per_s = "),
]
UNREADABLE = [b"\xff\xfe", b"", b"gpu = 3", b"gpu = [3]", b"source = 3"]


def test_wrong_files_in_words(golden: Callable[[str, str], None]) -> None:
    texts = []
    for was, becomes in WRONG:
        text = OWN.replace("[[gpu]]", "[[gpu]]\nsms = 58") if "clock_mhz" in becomes else OWN
        assert was in text
        written(text.replace(was, becomes, 1))
        texts.append(told(f"{was!r} is {becomes!r}", lambda: own_peaks(None)))
    for content in UNREADABLE:
        Path("peaks.toml").write_bytes(content)
        texts.append(told(content, lambda: own_peaks(None)))
    Path("peaks.toml").unlink()
    Path("peaks.toml").symlink_to("nowhere")
    texts.append(told("a link to nowhere", lambda: own_peaks(None)))
    golden("own_peaks.txt", "".join(texts))


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


Table = dict[str, Any]
NO_FIGURE = "n1-standard-4 with 1 T4 in us-central1 has a price without a positive figure"


@pytest.fixture
def table() -> Table:
    return tomllib.loads(prices.TABLE.read_text(encoding="utf-8"))


def test_every_figure_has_a_source_with_a_date(table: Table) -> None:
    rows = [*table["price"], *table["disk"], table["address"], table["aws_address"]]
    assert {row["source"] for row in rows} == set(table["source"])
    assert all(source["title"] and len(source["read"]) == len("2026-11") for source in table["source"].values())


def test_every_gpu_has_peaks() -> None:
    assert {row.gpu for row in prices.load().listed} <= {gpu.gpu for gpu in peaks.gpus()}


def test_a_disk_by_hand() -> None:
    # 100 GB at 0.10 USD a month are 10 USD in 672 hours of February.
    usd_per_gb_month = prices.load().disk_usd_per_gb_month("pd-balanced", "us-central1")
    assert usd_per_gb_month == 0.10
    assert prices.disk_usd_per_h(usd_per_gb_month, 100) == pytest.approx(0.0148810, abs=1e-7)
    assert prices.load().disk_usd_per_gb_month("pd-balanced", "europe-west4") is None
    assert prices.load().disk_usd_per_gb_month("hyperdisk-balanced", "us-central1") is None


def test_prices_are_positive_and_each_is_listed_once() -> None:
    rows = prices.load().listed
    for row in rows:
        figures = [usd for usd in (row.usd_per_h, row.usd_per_h_spot) if usd is not None]
        assert figures
        assert all(0 < usd < math.inf for usd in figures), row
        # A spot price may equal the price on demand, and pass it by rounding (27.433 and 27.43298 USD).
        assert figures[-1] <= figures[0] * 1.0001, row
    assert len({(row.machine_type, row.gpu, row.gpus, row.region) for row in rows}) == len(rows)
