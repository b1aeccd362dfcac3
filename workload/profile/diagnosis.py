"""Why a profile is not possible: checks before it starts, and the output of an ncu that failed.

Each names an obstacle and its cure. Texts of ncu are those of Nsight Compute 2024.1.1.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from workload.contract.spec import Device
from workload.contract.text import minutes
from workload.environment.container import runtime
from workload.environment.machine import WITHOUT_COUNTERS, HostSystem, Service, fields, hosting_service, installed_ncus
from workload.profile import tool
from workload.profile.status import ProfileError, ProfileStatus, unavailable
from workload.profile.supervise import End

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
    service: Service | None = None


def gather(device: Device, machine: HostSystem) -> Facts:
    """Collect the facts of this machine, for a spec that ran on `device`."""
    parameters = fields(machine.text(DRIVER_PARAMETERS))
    restricted = parameters.get("RmProfilingAdminOnly")
    return Facts(
        device=device,
        driver=any(machine.exists(path) for path in (DRIVER_VERSION, WSL_DEVICE)),
        ncus=tuple(installed_ncus(machine.environ, machine.root)),
        admin_only=None if restricted is None else restricted != "0",
        is_admin=has_capability(machine.text("/proc/self/status"), CAP_SYS_ADMIN),
        in_container=runtime(machine) is not None,
        wsl=machine.exists(WSL_DEVICE),
        service=hosting_service(machine.environ),
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
        hint=WITHOUT_COUNTERS if facts.service else UNLOCK_CONTAINER if facts.in_container else UNLOCK,
    )


# --- the output of a failed ncu

# Prefix of ncu's own lines.
ERROR = "==ERROR=="
LOOK = "ncu/ncu.log in the bundle has the output of ncu"
AGAIN = "python -m workload profile BUNDLE"
NOTHING_PROFILED = ("No kernels were profiled", "No ranges were profiled")

# Rows: text that ncu prints, reason, hint. The text of a cause stands before the texts of its consequences. Any other
# error of ncu is passed on as it is.
KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "driver resource was unavailable",
        "another tool uses the GPU's counters: DCGM, or a second profiler",
        "dcgmi profile --pause (afterwards --resume), or end the other profiler, and profile again",
    ),
    (
        "Failed to open/create lock file",
        "the lock file of another user's ncu blocks this one",
        "TMPDIR=$HOME python -m workload profile BUNDLE",
    ),
    (
        "driver is not compatible with Nsight Compute",
        "this ncu needs a newer NVIDIA driver",
        "upgrade the driver, or put an older ncu on PATH",
    ),
    (
        "Profiling is not supported on device",
        "this ncu does not support this GPU",
        "`ncu --list-chips` lists supported GPUs; use another Nsight Compute, or --profile torch",
    ),
    (
        "failed to connect to the CUDA driver",
        "ncu finds no CUDA driver",
        "`nvidia-smi` shows whether a driver is loaded; no stub libcuda.so may come before the driver's",
    ),
)


def explain(output: str, facts: Facts) -> ProfileError | None:
    """Reason why ncu failed, from the `output` of ncu and of the profiled process; None if the output does not tell."""
    if "ERR_NVGPUCTRPERM" in output:
        return restricted(facts)
    for text, reason, hint in KNOWN:
        if text in output:
            return unavailable(reason, hint=hint)
    return own_error(output) or _unknown(output)


def cut_off(end: End, limit_s: float, when: str) -> ProfileError | None:
    """Error for a process that was interrupted or reached its time limit, else None. `when`: progress, in words."""
    if end.interrupted:
        return ProfileError(ProfileStatus.INTERRUPTED, f"interrupted {when}", hint=AGAIN)
    if end.timed_out:
        reason = f"the time limit of {minutes(limit_s)} ended the profile {when}"
        return ProfileError(ProfileStatus.TIMED_OUT, reason, hint="fewer --profile-steps, or a smaller model")
    return None


def own_error(output: str) -> ProfileError | None:
    """Last error, a pair of lines, that the profiled process of our trainer printed; None if there is none."""
    errors = re.findall(r"^error: (.+)\nhint: (.+)$", output, re.MULTILINE)
    if not errors:
        return None
    reason, hint = errors[-1]
    return ProfileError(ProfileStatus.FAILED, f"the profiled process: {reason}", hint=hint)


def _unknown(output: str) -> ProfileError | None:
    if any(text in output for text in NOTHING_PROFILED):
        return ProfileError(
            ProfileStatus.FAILED,
            "ncu profiled no kernel",
            hint=f"{LOOK}; --profile torch shows whether any kernels run",
        )
    errors = [line.removeprefix(ERROR).strip() for line in output.splitlines() if line.startswith(ERROR)]
    return ProfileError(ProfileStatus.FAILED, f"ncu reports: {errors[0]}", hint=LOOK) if errors else None
