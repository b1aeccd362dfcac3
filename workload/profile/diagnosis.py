"""Why a profile is not possible: checks before it starts, and the output of an ncu that failed.

Each names an obstacle and its cure. Texts of ncu are those of Nsight Compute 2024.1.1.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from workload.contract.spec import Device
from workload.contract.text import minutes
from workload.environment.host import runtime
from workload.environment.machine import (
    NCU_PLACES,
    WITHOUT_COUNTERS,
    HostSystem,
    Service,
    fields,
    hosting_service,
    installed_ncus,
    run_tool,
)
from workload.profile.command import End, ProfileError, ProfileStatus, unavailable
from workload.profile.metrics import table

# `--query-metrics` takes 0.2 s, and some seconds the first time on a cold disk.
ANSWER_LIMIT_S = 60.0
INSTALL = (
    "install Nsight Compute (apt install nsight-compute, or developer.nvidia.com/nsight-compute) and put ncu on PATH"
)


def ask(argv: Sequence[str]) -> str | None:
    """Output of the command, for any exit status; None if it does not start, ends too late or prints nothing."""
    return run_tool(*argv, limit_s=ANSWER_LIMIT_S)


@dataclass(frozen=True, kw_only=True)
class Ncu:
    """An installed ncu."""

    path: Path
    ask: Callable[[Sequence[str]], str | None] = ask

    def version(self) -> str | None:
        """Version such as `2024.1.1.0`; None if ncu does not answer."""
        match = re.search(r"^Version (\d[\d.]*)", self._answer("--version"), re.MULTILINE)
        return match[1] if match else None

    def chips(self) -> frozenset[str]:
        """Names of the chips that this ncu can profile, such as `ad104`."""
        return frozenset(re.findall(r"\b[a-z]{2}\d{2}[0-9a-z]\b", self._answer("--list-chips")))

    def has_option(self, option: str) -> bool:
        """Whether `ncu --help` lists the option."""
        return re.search(rf"^\s*{re.escape(option)}(?![\w-])", self._answer("--help"), re.MULTILINE) is not None

    def metrics(self, chip: str | None) -> frozenset[str]:
        """Base names of the metrics of a chip, or of the GPU in this machine; empty if ncu does not answer."""
        of_chip = ("--chip", chip) if chip else ()
        text = self._answer("--query-metrics", *of_chip)
        return frozenset(re.findall(r"^([a-z][a-z0-9_]*__[a-z0-9_]+)\s", text, re.MULTILINE))

    def full_names(self, bases: Collection[str], chip: str | None) -> frozenset[str]:
        """Names with suffixes (`dram__bytes.sum`) of metrics with these base names; empty if ncu does not list them."""
        of_chip = ("--chip", chip) if chip else ()
        words = ("--query-metrics", "--query-metrics-mode", "suffix", *of_chip, "--metrics", ",".join(sorted(bases)))
        text = self._answer(*words) if bases else ""
        return frozenset(re.findall(r"^([a-z][a-z0-9_]*__[a-z0-9_.]+)\s", text, re.MULTILINE))

    def _answer(self, *words: str) -> str:
        return self.ask([str(self.path), *words]) or ""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """An ncu that can profile this GPU. `metrics`: metrics of this GPU or, if unknown, of a similar `chip`."""

    ncu: Ncu
    version: str | None
    chip: str | None
    metrics: frozenset[str]


def choose(candidates: Sequence[Ncu], capability: str) -> Fitting:
    """First ncu that can profile a GPU of this compute capability.

    Raises `ProfileError` with the reason if none can.
    """
    row = table().rows.get(capability)
    for ncu in candidates:
        fitting = _fitting(ncu, row.chips if row else None)
        if fitting:
            return fitting
    if not candidates:
        raise no_ncu()
    raise _unfit(candidates[0], capability)


def no_ncu() -> ProfileError:
    """Error for a machine that has ncu neither on PATH nor in a folder of NVIDIA's installers."""
    places = ", ".join(f"/{place}" for place in NCU_PLACES)
    return unavailable(
        f"no ncu found on PATH or at {places}", hint=f"{INSTALL}; or --profile torch, which does not need ncu"
    )


def _fitting(ncu: Ncu, chips: Sequence[str] | None) -> Fitting | None:
    """`ncu` with its metrics for the GPU; None if `ncu` cannot profile the GPU.

    `chips`: chips of the GPU's kind, None if metrics.toml lists none. Chips of one kind differ, so ncu is asked about
    the GPU in the machine first.
    """
    known = ncu.chips()
    chip = next((chip for chip in chips or () if chip in known), None)
    if chips and chip is None:
        return None
    if own := ncu.metrics(None):
        return Fitting(ncu=ncu, version=ncu.version(), chip=None, metrics=own)
    of_chip = ncu.metrics(chip) if chip else None
    return Fitting(ncu=ncu, version=ncu.version(), chip=chip, metrics=of_chip) if of_chip else None


def _unfit(ncu: Ncu, capability: str) -> ProfileError:
    version, known = ncu.version(), ncu.chips()
    name = f"ncu {version or 'of unknown version'} at {ncu.path}"
    if not known:
        return unavailable(f"{name} does not answer --list-chips", hint=INSTALL)
    served = [_number(row.capability) for row in table().rows.values() if known & set(row.chips)]
    if served and _number(capability) < min(served):
        # docs.nvidia.com/nsight-compute/2020.1/ReleaseNotes: "Removed support for the Pascal SM 6.x GPU architecture"
        cure = "Nsight Compute 2024.3 to 2025.3 profiles a V100; or --profile torch"
        if capability != "7.0":
            cure = "--profile torch: no Nsight Compute since 2020.1 profiles GPUs before the V100"
        return unavailable(f"{name} is too new for compute capability {capability}", hint=cure)
    return unavailable(
        f"{name} is too old for compute capability {capability}", hint=f"a newer Nsight Compute: {INSTALL}"
    )


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


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
        return no_ncu()
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
