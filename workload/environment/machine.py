"""Access to the machine as a process sees it: files under one root, environment variables, small tools.

No function here raises for something that a machine lacks: an unreadable fact is None.
"""

import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Tools that describe the machine answer in milliseconds, but git on a busy machine or a network disk in seconds, and a
# run without its commit cannot be told from other code. A hanging tool must not delay a run for long.
TOOL_LIMIT_S = 10.0


def run_tool(*argv: str, limit_s: float = TOOL_LIMIT_S) -> str | None:
    """Output of the tool, for any exit status; None if it is absent, too slow or prints nothing."""
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


@dataclass(frozen=True, kw_only=True)
class HostSystem:
    """A machine's files, environment variables and tools; tests and other callers may use another folder as `root`."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    tool: Callable[..., str | None] = run_tool

    @property
    def native(self) -> bool:
        """Whether `root` is this machine's own root: only then do psutil, os and platform describe the same machine."""
        return self.root == Path("/")

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def exists(self, path: str) -> bool:
        try:
            return self.path(path).exists()
        except OSError:
            return False

    def text(self, path: str) -> str | None:
        """Stripped text of a file; None if it is empty or cannot be read."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace").strip() or None
        except OSError:
            return None

    def integer(self, path: str) -> int | None:
        return as_integer(self.text(path))


def as_integer(text: str | None) -> int | None:
    """Integer of a text that is one decimal number, else None."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def fields(text: str | None) -> dict[str, str]:
    """Values by key, from the `key: value` lines of /proc files and lscpu; a repeated key keeps its first value."""
    values: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    return values


def cpu_info(machine: HostSystem) -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo."""
    first, _, _ = (machine.text("/proc/cpuinfo") or "").partition("\n\n")
    return fields(first)


def cpu_list(text: str | None) -> list[int] | None:
    """Members of a kernel list such as `0-3,8`; None for no list or a malformed one."""
    if not text:
        return None
    members: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        start, stop = as_integer(first), as_integer(last if dash else first)
        if start is None or stop is None:
            return None
        members.extend(range(start, stop + 1))
    return members


# --- services that host notebooks


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service. `variable`: environment variable that its machines set; `gpu`: how its user gets a GPU."""

    name: str
    variable: str
    gpu: str


# Kaggle first: its image is made from Colab's, and may keep the variables of that image. Source: Kaggle/docker-python
# 78aaa43, Dockerfile.tmpl and patches/kaggle_module_resolver.py, read 2026-11.
SERVICES = (
    Service(
        name="Kaggle",
        variable="KAGGLE_KERNEL_RUN_TYPE",
        gpu="Settings > Accelerator, or enable_gpu in kernel-metadata.json",
    ),
    Service(name="Colab", variable="COLAB_RELEASE_TAG", gpu="Runtime > Change runtime type > T4 GPU"),
)
# Hint if the GPU's driver refuses to count: users cannot change the settings of the service's driver.
WITHOUT_COUNTERS = "--profile torch, which needs no counters: the driver belongs to the service"


def hosting_service(environ: Mapping[str, str] = os.environ) -> Service | None:
    """The service on which this process runs; None elsewhere."""
    return next((service for service in SERVICES if service.variable in environ), None)


# --- Nsight Compute's programs

# Places where NVIDIA's installers and the CUDA toolkit put ncu, relative to the root of the file system.
NCU_PLACES = (
    "opt/nvidia/nsight-compute/*/ncu",
    "usr/local/NVIDIA-Nsight-Compute*/ncu",
    "usr/local/cuda*/bin/ncu",
    "usr/lib/nsight-compute/ncu",
)


def installed_ncus(environ: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """Every installed ncu: the one on PATH first, then the others, newest first."""
    on_path = [Path(folder) / "ncu" for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    installed = sorted((path for place in NCU_PLACES for path in root.glob(place)), key=_ncu_version, reverse=True)
    programs = [path for path in (*on_path, *installed) if os.access(path, os.X_OK) and path.is_file()]
    unique = {path.resolve(): path for path in reversed(programs)}
    return [path for path in programs if unique[path.resolve()] is path]


def _ncu_version(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", str(path))]


# --- operating system and virtual machine

DMI = "/sys/class/dmi/id"

# Beginning of a DMI text -> hypervisor, from systemd's src/basic/virt.c (v257), with systemd's names.
MAKERS = {
    "KVM": "kvm",
    "OpenStack": "kvm",
    "KubeVirt": "kvm",
    "Amazon EC2": "amazon",
    "Google Compute Engine": "google",
    "QEMU": "qemu",
    "VMware": "vmware",
    "VMW": "vmware",
    "innotek GmbH": "oracle",
    "VirtualBox": "oracle",
    "Xen": "xen",
    "Bochs": "bochs",
    "Parallels": "parallels",
    "BHYVE": "bhyve",
    "Hyper-V": "microsoft",
    "Apple Virtualization": "apple",
}
MAKER_FIELDS = ("product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version")


def system_facts(machine: HostSystem) -> dict[str, object]:
    return {
        "hostname": machine.text("/proc/sys/kernel/hostname") or _native(machine, platform.node()),
        "os": os_name(machine),
        "kernel": machine.text("/proc/sys/kernel/osrelease") or _native(machine, platform.release()),
        "hypervisor": hypervisor(machine),
    }


def _native(machine: HostSystem, value: str) -> str | None:
    return value or None if machine.native else None


def os_name(machine: HostSystem) -> str | None:
    release = machine.text("/etc/os-release") or machine.text("/usr/lib/os-release") or ""
    if match := re.search(r"""^PRETTY_NAME=(["']?)(.*)\1$""", release, re.MULTILINE):
        return match[2]
    if platform.system() == "Darwin":
        return _native(machine, f"macOS {platform.mac_ver()[0]}")
    # Not platform.platform(): it starts a process.
    return _native(machine, f"{platform.system()} {platform.release()}")


def hypervisor(machine: HostSystem) -> str | None:
    """Hypervisor under systemd's names; None if unknown.

    The name is "none" on bare metal, "unknown" for a hypervisor that hides its name. systemd-detect-virt
    gets `--vm`, because without this option the tool names a container if there is one.
    """
    if detected := machine.tool("systemd-detect-virt", "--vm"):
        return detected
    flags = cpu_info(machine).get("flags")
    # Hypervisors set this bit for x86 guests. A cloud's bare-metal machine has the cloud's DMI, but not this bit.
    if flags is not None and "hypervisor" not in flags.split():
        return "none"
    makers = dmi_makers(machine)
    if maker := next((name for start, name in MAKERS.items() if any(text.startswith(start) for text in makers)), None):
        return maker
    if vendor := fields(machine.tool("lscpu")).get("Hypervisor vendor"):
        return vendor.lower()
    return None if flags is None else "unknown"


def dmi_makers(machine: HostSystem) -> list[str]:
    """Makers of the machine according to its firmware; empty if DMI cannot be read."""
    return [text for name in MAKER_FIELDS if (text := machine.text(f"{DMI}/{name}")) is not None]
