"""Energy of a real GPU: its counter and its sampled power agree."""

import time
from pathlib import Path

import pytest
import torch

from workload.contract.spec import Device
from workload.environment.device import GpuSensors
from workload.measure.energy import EnergyMeter, of_steps
from workload.measure.telemetry import Telemetry

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.world,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_counter_and_samples_of_ten_seconds_agree(tmp_path: Path) -> None:
    gpu = GpuSensors.open(torch.cuda.current_device())
    if gpu is None or gpu.energy_j() is None:
        pytest.skip("NVML does not count this GPU's energy")
    factor = torch.randn(4096, 4096, device="cuda")
    with Telemetry(tmp_path / "telemetry.csv", device="cuda", origin_s=0.0) as telemetry:
        meter, began_s = EnergyMeter.of(Device.CUDA), time.perf_counter()
        while time.perf_counter() < began_s + 11.0:
            torch.mm(factor, factor)
            torch.cuda.synchronize()
        metered, span = meter.end(), (began_s, time.perf_counter())
    counted = of_steps(metered, [], steps_s=span[1] - span[0], span=span, pauses=[])
    sampled = of_steps(None, telemetry.powers, steps_s=span[1] - span[0], span=span, pauses=[])
    assert counted
    assert counted.source == "nvml counter"
    assert sampled
    assert sampled.joules == pytest.approx(counted.joules, rel=0.1)
