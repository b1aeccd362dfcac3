"""`--gpu-index` on real GPUs: the process sees the one that nvidia-smi lists under this index, and no other."""

import json
import os
import subprocess
import sys

import pytest

from workload.environment import gpu_index

GPUS = [gpu for gpu in gpu_index.listed() if not gpu.is_split]
pytestmark = [pytest.mark.gpu, pytest.mark.world, pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU")]

CODE = """
import json, sys
from workload.environment import gpu_index
gpu_index.use(int(sys.argv[1]))
import torch
from workload.environment.device import device_facts
from workload.environment.machine import HostSystem
print(json.dumps([torch.cuda.device_count(), device_facts(HostSystem(), "cuda")]))
"""


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: f"GPU {gpu.index}")
def test_the_process_sees_that_gpu_alone_and_records_it(gpu: gpu_index.ListedGpu) -> None:
    mine = {name: value for name, value in os.environ.items() if name not in gpu_index.VARIABLES}
    command = [sys.executable, "-c", CODE, str(gpu.index)]
    done = subprocess.run(command, env=mine, capture_output=True, text=True, check=True)
    count, device = json.loads(done.stdout.splitlines()[-1])
    assert (count, device["index"]) == (1, 0)
    assert (device["gpu_index"], device["uuid"]) == (gpu.index, gpu.uuid)
