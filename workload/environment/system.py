"""Facts of the operating system and of the virtual machine, if any. Standard library only."""

import platform
import re

from workload.environment.machine import HostSystem, cpu_info, fields

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
