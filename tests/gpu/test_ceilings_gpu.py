"""Measured ceilings of a real GPU against formula peaks of its compute capability and clocks."""

import pytest
import torch

from workload.contract.spec import Device, Precision
from workload.environment.device import GpuSensors
from workload.measure import ceilings
from workload.measure.ceiling_rates import Ceilings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# FLOP per clock and SM: FP32 cores, and FP16 on tensor cores with FP32 accumulation. CUDA programming guide, table
# "Arithmetic Instructions", and NVIDIA's architecture papers; TF32 is half of FP16 from 8.0 on. 8.9 is the L4's.
FLOP_PER_CLOCK = {
    (7, 0): (128, 1024),
    (7, 5): (128, 1024),
    (8, 0): (128, 2048),
    (8, 9): (256, 1024),
    (9, 0): (256, 4096),
}


@pytest.fixture(scope="module")
def measured() -> Ceilings:
    gpu = GpuSensors.open(torch.cuda.current_device())
    return ceilings.measure(Device.CUDA, sample=gpu.sample if gpu else None)


def peak_flop_per_s(precision: Precision) -> float:
    properties = torch.cuda.get_device_properties()
    capability = (properties.major, properties.minor)
    if capability not in FLOP_PER_CLOCK:
        pytest.skip(f"no formula peak for compute capability {capability}")
    cores, tensor = FLOP_PER_CLOCK[capability]
    per_clock = {
        Precision.FP32: cores,
        Precision.TF32: tensor / 2,
        Precision.AMP: tensor,
        Precision.BF16: tensor,
    }[precision]
    return per_clock * properties.multi_processor_count * properties.clock_rate * 1e3  # clock_rate is in kHz


@pytest.mark.parametrize("precision", list(Precision))
def test_a_product_reaches_a_plausible_share_of_the_peak(measured: Ceilings, precision: Precision) -> None:
    if precision in measured.unavailable:
        pytest.skip(measured.unavailable[precision])
    if precision is Precision.BF16 and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("bf16 is emulated below compute capability 8.0")
    rate = measured.flop_per_s[precision]
    assert 0.30 < rate.median / peak_flop_per_s(precision) < 1.05
    assert rate.best / peak_flop_per_s(precision) < 1.05
    assert rate.samples == ceilings.SAMPLES


@pytest.mark.parametrize("name", ["copy", "triad"])
def test_the_bandwidth_is_a_plausible_share_of_the_peak(measured: Ceilings, name: str) -> None:
    properties = torch.cuda.get_device_properties()
    # Two transfers a clock, as NVIDIA's deviceQuery sample computes it; kHz and bits.
    peak = 2 * properties.memory_clock_rate * 1e3 * properties.memory_bus_width / 8
    assert 0.30 < measured.bytes_per_s[name].median / peak < 1.05


def test_tf32_is_faster_than_fp32_where_there_is_tf32(measured: Ceilings) -> None:
    if "tf32" not in measured.flop_per_s:
        pytest.skip(measured.unavailable["tf32"])
    assert measured.flop_per_s["tf32"].median > 1.3 * measured.flop_per_s["fp32"].median


def test_it_ends_in_time_and_gives_the_memory_back(measured: Ceilings) -> None:
    assert measured.elapsed_s < 20
    assert torch.cuda.memory_allocated() < 2**28


def test_the_clocks_under_load_are_beside_the_rate(measured: Ceilings) -> None:
    if GpuSensors.open(torch.cuda.current_device()) is None:
        pytest.skip("NVML is not there")
    conditions = measured.flop_per_s["fp32"].conditions
    assert conditions is not None
    assert {"sm_clock_mhz", "power_w", "temperature_c"} <= set(conditions)


@pytest.mark.parametrize("setting", ["highest", "high"])
def test_the_tf32_switches_are_as_before(setting: str) -> None:
    torch.set_float32_matmul_precision(setting)
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    ceilings.measure(Device.CUDA, precisions=["fp32", "tf32"], bandwidth=False, limit_share=0.1)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    assert torch.get_float32_matmul_precision() == setting
    torch.set_float32_matmul_precision("highest")
