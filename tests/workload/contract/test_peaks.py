import pytest

from workload.contract import peaks


@pytest.mark.parametrize(
    ("name", "precision", "memory_bytes", "flop_per_s", "bytes_per_s"),
    [
        # As NVML and torch write them.
        ("Tesla T4", "fp32", None, 8.1e12, 320e9),
        ("Tesla T4", "amp", 15360 << 20, 65e12, 320e9),
        ("NVIDIA L4", "fp32", 23034 << 20, 30.3e12, 300e9),
        ("NVIDIA L4", "amp", None, 121e12, 300e9),
        ("Tesla V100-SXM2-16GB", "fp32", 16928342016, 15.7e12, 900e9),
        ("Tesla V100-PCIE-16GB", "fp32", None, 14.0e12, 900e9),
        ("NVIDIA A100-SXM4-40GB", "tf32", 40960 << 20, 156e12, 1555e9),
        ("NVIDIA A100 80GB PCIe", "bf16", None, 312e12, 1935e9),
        ("NVIDIA A100-SXM4-80GB", "fp32", None, 19.5e12, 2039e9),
        ("NVIDIA H100 80GB HBM3", "amp", 81559 << 20, 989.4e12, 3350e9),
        ("NVIDIA H200", "fp32", 143771 << 20, 67e12, 4800e9),
        ("NVIDIA GeForce RTX 4080", "fp32", 16376 << 20, 48.7e12, 716.8e9),
        ("NVIDIA GeForce RTX 4080 Laptop GPU", "fp32", 12282 << 20, 33.9e12, 432e9),
        ("NVIDIA GeForce RTX 4090", "amp", 24564 << 20, 165.2e12, 1008e9),
        # Case and blanks vary; a short name is enough where it is unique, the memory tells others apart.
        (" tesla  T4 ", "fp32", None, 8.1e12, 320e9),
        ("A100", "fp32", 40e9, 19.5e12, 1555e9),
        # Any memory: that of the host.
        ("Apple M1 Max (32-core GPU)", "fp32", 64 << 30, 10.4e12, 400e9),
        ("Intel(R) Core(TM) i9-14900HX", "fp32", None, 2.53e12, 89.6e9),
    ],
)
def test_known_devices(
    name: str, precision: str, memory_bytes: float | None, flop_per_s: float, bytes_per_s: float
) -> None:
    peak = peaks.find(name, precision=precision, memory_bytes=memory_bytes)
    assert (peak.flop_per_s, peak.bytes_per_s) == pytest.approx((flop_per_s, bytes_per_s), rel=1e-12)
    assert ", read 2026-" in peak.source
    assert peak.source.endswith("read 2026-11")


@pytest.mark.parametrize(
    ("name", "precision", "memory_bytes"),
    [
        (None, "fp32", None),
        ("", "fp32", None),
        ("Intel(R) Xeon(R) Processor", "fp32", None),
        ("NVIDIA GeForce RTX 5070", "fp32", None),
        # Longer or shorter names are other devices.
        ("NVIDIA GeForce RTX 4080 SUPER", "fp32", None),
        ("Tesla V100", "fp32", None),
        # The CPU of the chip, and a GPU of the chip with fewer cores.
        ("Apple M1", "fp32", None),
        ("Apple M1 (7-core GPU)", "fp32", None),
        ("Apple M4 Max (40-core GPU)", "fp32", None),
        ("Intel(R) Core(TM) i9-14900HX", "bf16", None),
        # No units, nobody said which.
        ("Tesla T4", "tf32", None),
        ("Tesla T4", "bf16", None),
        ("Tesla V100-SXM2-16GB", "tf32", None),
        ("Tesla T4", None, None),
        ("Tesla T4", "fp8", None),
        # Several devices of one name, and one with another memory: a laptop's 12 GB are no desktop card's.
        ("A100", "fp32", None),
        ("A100", "fp32", 80e9),
        ("RTX 4080", "fp32", 12282 << 20),
        ("Tesla T4", "fp32", 24e9),
    ],
)
def test_unknown_is_none_never_a_similar_one(
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
