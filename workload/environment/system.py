"""Facts of the operating system and of the virtual machine, if any. Standard library only."""

import platform
import re

from workload.environment.machine import HostSystem
from workload.environment.virtualization import virtualization_facts


def system_facts(machine: HostSystem) -> dict[str, object]:
    return {
        "hostname": machine.text("/proc/sys/kernel/hostname") or _native(machine, platform.node()),
        "os": os_name(machine),
        "kernel": machine.text("/proc/sys/kernel/osrelease") or _native(machine, platform.release()),
        "architecture": _native(machine, platform.machine()),
        "virtualization": virtualization_facts(machine),
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
