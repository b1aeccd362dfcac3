"""Facts of the host: operating system, processor, memory, limits, storage. A container shows its own view."""

import os
import re
from pathlib import Path

import psutil

from workload.environment import cgroup
from workload.environment.cpu import cpu_facts
from workload.environment.machine import HostSystem, as_integer, cpu_list, fields
from workload.environment.mounts import storage_facts
from workload.environment.system import system_facts

# The kernel's "kB" in /proc/meminfo.
KIB_BYTES = 1024


def host_facts(machine: HostSystem, *, dataset_path: Path | None) -> dict[str, object]:
    limits = cgroup.limits(machine)
    return {
        **system_facts(machine),
        **cpu_facts(machine),
        "cgroup_cpu_limit": limits.cpus,
        "cgroup_memory_limit_bytes": limits.memory_bytes,
        **_memory_facts(machine),
        "numa_nodes": len(cpu_list(machine.text("/sys/devices/system/node/online")) or []) or None,
        "load_average": _load_average(machine),
        "transparent_hugepages": _chosen(machine.text("/sys/kernel/mm/transparent_hugepage/enabled")),
        "dataset_storage": None if dataset_path is None else storage_facts(machine, dataset_path),
    }


def memory_bytes(machine: HostSystem, name: str) -> int | None:
    """Value of one row of /proc/meminfo in bytes; None if absent."""
    value, _, unit = fields(machine.text("/proc/meminfo")).get(name, "").partition(" ")
    number = as_integer(value)
    return number * KIB_BYTES if number is not None and unit == "kB" else None


def memory_available_bytes(machine: HostSystem) -> int | None:
    """Memory that new programs can have without swapping, in bytes; the host's figure even inside a container."""
    available = memory_bytes(machine, "MemAvailable")
    if available is None and machine.native:
        return int(psutil.virtual_memory().available)
    return available


def _memory_facts(machine: HostSystem) -> dict[str, object]:
    total = memory_bytes(machine, "MemTotal")
    if total is None and machine.native:
        total = int(psutil.virtual_memory().total)
    return {"memory_total_bytes": total, "memory_available_bytes": memory_available_bytes(machine)}


def _load_average(machine: HostSystem) -> list[float] | None:
    """Load over 1, 5 and 15 minutes, before the run adds to it."""
    try:
        first_three = [float(value) for value in (machine.text("/proc/loadavg") or "").split()[:3]]
        if not first_three and machine.native and hasattr(os, "getloadavg"):
            first_three = list(os.getloadavg())
    except (OSError, ValueError):
        return None
    return first_three or None


def _chosen(text: str | None) -> str | None:
    """Word in brackets: `madvise` in `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", text or "")
    return match[1] if match else None
