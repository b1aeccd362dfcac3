"""Finds out why torch cannot compute on this machine's NVIDIA GPU, and names the cure."""

import re
from dataclasses import dataclass

import torch

from workload.environment import gpu_code
from workload.environment.machine import HostSystem

# Oldest driver branch for each major version of CUDA: docs.nvidia.com/cuda/cuda-toolkit-release-notes, "Minimum
# Required Driver Version for CUDA Minor Version Compatibility", read 2026-11.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
DRIVER_VERSION, WSL_DEVICE = "/proc/driver/nvidia/version", "/dev/dxg"
QUERY = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
# PyPI's torch for CUDA 13 begins at compute capability 7.5.
VOLTA = "7.0"
VOLTA_CURE = "launch build --flavour volta, then --flavour volta; or a torch up to 2.14 built for CUDA 12.6"
WITHOUT = "--cpu runs without a GPU"


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Reason why the GPU cannot be used, and the cure.

    `gpu_is_there`: there is a GPU, and only the software is wrong.
    """

    reason: str
    hint: str
    gpu_is_there: bool = True


def obstacle(machine: HostSystem | None = None) -> Obstacle | None:
    """First reason why torch cannot compute on the GPU; None if it can."""
    if torch.cuda.is_available():
        return _without_code()
    machine = machine or HostSystem()
    torch_build, driver = f"torch {torch.__version__}", driver_version(machine)
    hidden = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if driver is None:
        place = "on Windows, not inside WSL" if machine.exists(WSL_DEVICE) else "here"
        return Obstacle(
            reason=f"{torch_build} finds no NVIDIA driver",
            hint=f"install NVIDIA's driver {place}, if there is a GPU (`nvidia-smi` shows it); {WITHOUT}",
            gpu_is_there=machine.exists(WSL_DEVICE),
        )
    if torch.version.cuda is None:
        return Obstacle(
            reason=f"{torch_build} is a build without CUDA, although NVIDIA driver {driver} is loaded",
            hint=f"install a torch built for CUDA; {WITHOUT}",
        )
    oldest = OLDEST_DRIVER.get(int(torch.version.cuda.partition(".")[0]))
    if oldest and int(driver.partition(".")[0]) < oldest:
        return Obstacle(
            reason=f"{torch_build} for CUDA {torch.version.cuda} needs NVIDIA driver {oldest} or newer, but this "
            f"machine has {driver}",
            hint=f"upgrade the driver, or install a torch built for an older CUDA; {WITHOUT}",
        )
    if hidden is not None:
        return Obstacle(
            reason=f"{torch_build} sees no GPU: CUDA_VISIBLE_DEVICES is '{hidden}'", hint="unset CUDA_VISIBLE_DEVICES"
        )
    return Obstacle(
        reason=f"{torch_build} for CUDA {torch.version.cuda} sees no GPU, although NVIDIA driver {driver} is loaded",
        hint=f"`nvidia-smi` shows the GPUs of the driver; in a container use --gpus all; {WITHOUT}",
    )


def driver_version(machine: HostSystem) -> str | None:
    """Version of the driver, `580.65.06`; None if no driver is loaded. Under WSL nvidia-smi reports Windows' driver."""
    text = machine.text(DRIVER_VERSION) or (machine.tool(*QUERY) if machine.exists(WSL_DEVICE) else None)
    version = re.search(r"\b\d{3}\.\d{2,3}(?:\.\d{2,3})?\b", text or "")
    return version[0] if version else None


def _without_code() -> Obstacle | None:
    """Obstacle if the wheel has no code for the GPU, which is older or much newer: every kernel would fail."""
    major, minor = torch.cuda.get_device_capability()
    capability, built = f"{major}.{minor}", torch.cuda.get_arch_list()
    # PTX of an older capability is compiled for the newer one at the first start.
    has_ptx = any(int(target.removeprefix("compute_")) <= 10 * major + minor for target in built if "compute" in target)
    if has_ptx or not gpu_code.missing([capability], built):
        return None
    cure = VOLTA_CURE if capability == VOLTA else "install a torch that was built for this GPU"
    return Obstacle(
        reason=f"torch {torch.__version__} has no code for {torch.cuda.get_device_name()}, compute capability "
        f"{capability}: it was built for {' '.join(built)}",
        hint=f"{cure}; {WITHOUT}",
    )
