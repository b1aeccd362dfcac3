"""Checks before a profile starts: each names an obstacle and its cure."""

from dataclasses import dataclass
from pathlib import Path

from workload.contract import hosted
from workload.contract.spec import Device
from workload.environment import ncu_paths
from workload.environment.container import runtime
from workload.environment.machine import HostSystem, fields
from workload.profile import tool
from workload.profile.status import ProfileError, unavailable

# capabilities(7): the bit that lets a process use restricted counters.
CAP_SYS_ADMIN = 21
# Files of the driver, and WSL's device; under WSL there is no /proc/driver/nvidia.
DRIVER_VERSION, DRIVER_PARAMETERS, WSL_DEVICE = "/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/dev/dxg"
UNLOCK_CONTAINER = (
    "docker run --cap-add=SYS_ADMIN … for the profile pass, or the module option NVreg_RestrictProfilingToAdminUsers=0 "
    "on the host"
)
UNLOCK_WSL = (
    "on Windows: NVIDIA Control Panel, Desktop > Enable Developer Settings, Developer > Manage GPU Performance "
    "Counters > Allow access to all users; module options have no effect under WSL"
)
UNLOCK = (
    "sudo for the profile pass, or the module option NVreg_RestrictProfilingToAdminUsers=0: "
    "developer.nvidia.com/ERR_NVGPUCTRPERM"
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Input of the checks. `admin_only`: the driver restricts counters to administrators; None if unknown."""

    device: Device
    driver: bool
    ncus: tuple[Path, ...]
    admin_only: bool | None
    is_admin: bool
    in_container: bool
    wsl: bool = False
    service: hosted.Service | None = None


def gather(device: Device, machine: HostSystem) -> Facts:
    """Collect the facts of this machine, for a spec that ran on `device`."""
    parameters = fields(machine.text(DRIVER_PARAMETERS))
    restricted = parameters.get("RmProfilingAdminOnly")
    return Facts(
        device=device,
        driver=any(machine.exists(path) for path in (DRIVER_VERSION, WSL_DEVICE)),
        ncus=tuple(ncu_paths.find(machine.environ, machine.root)),
        admin_only=None if restricted is None else restricted != "0",
        is_admin=has_capability(machine.text("/proc/self/status"), CAP_SYS_ADMIN),
        in_container=runtime(machine) is not None,
        wsl=machine.exists(WSL_DEVICE),
        service=hosted.service(machine.environ),
    )


def has_capability(status: str | None, bit: int) -> bool:
    """Whether `status`, the text of /proc/self/status, lists the capability number `bit` as effective."""
    try:
        return bool(int(fields(status).get("CapEff", "0"), 16) >> bit & 1)
    except ValueError:
        return False


def obstacle(facts: Facts) -> ProfileError | None:
    """First reason why ncu cannot profile on a machine with these `facts`; None if there is none."""
    if facts.device is not Device.CUDA:
        return unavailable(f"ncu needs an NVIDIA GPU; the run was on {facts.device}", hint="--profile torch")
    if not facts.driver:
        return unavailable(
            "no NVIDIA driver is loaded on this machine",
            hint="profile on the machine of the run; `nvidia-smi` shows the driver",
        )
    if not facts.ncus:
        return tool.no_ncu()
    return restricted(facts) if facts.admin_only and not facts.is_admin else None


def restricted(facts: Facts) -> ProfileError:
    """Error for counters that only administrators may use, found by a check or reported by ncu."""
    if facts.wsl:
        return unavailable("Windows restricts the GPU's counters to administrators (ERR_NVGPUCTRPERM)", hint=UNLOCK_WSL)
    return unavailable(
        "the driver restricts counters to administrators (RmProfilingAdminOnly: 1, ERR_NVGPUCTRPERM)",
        hint=hosted.WITHOUT_COUNTERS if facts.service else UNLOCK_CONTAINER if facts.in_container else UNLOCK,
    )
