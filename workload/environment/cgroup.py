"""CPU and memory limits of the process's control group and of its parents, versions 1 and 2.

Format: docs.kernel.org/admin-guide/cgroup-v2.html, cgroup-v1/memory.html, scheduler/sched-bwc.html.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from workload.environment.container import Mount, mounts
from workload.environment.machine import HostSystem, as_integer

# Version 1 writes "no limit" as the largest multiple of the page size below 2**63.
UNLIMITED_V1_BYTES = 2**60

NS_PER_S = 1e9
US_PER_S = 1e6


@dataclass(frozen=True, kw_only=True)
class CgroupLimits:
    """Limits of CPU and memory. `cpus` may be a fraction.

    `cpu_folder`: folder with the `cpu.stat` of the group that has the tightest CPU limit.
    """

    cpus: float | None
    memory_bytes: int | None
    cpu_folder: str | None


def usable_cpus() -> float:
    """Number of CPUs that this process may use: the smaller of its affinity's CPUs and its control group's limit.

    The limit may be a fraction.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = limits(HostSystem()).cpus
    return allowed if limit is None else min(allowed, limit)


def limit_threads(shares: int) -> None:
    """Limit the threads of this process and its children to one of `shares` equal shares of the CPUs.

    Libraries read OMP_NUM_THREADS when they are loaded. A value that the user has set is kept.
    """
    if shares > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, int(usable_cpus() / shares))))


def limits(machine: HostSystem) -> CgroupLimits:
    """Tightest limits of the process's group and its parents; None if no limit is set."""
    mounted = mounts(machine)
    cpu_folders = list(_folders(machine, mounted, "cpu"))
    quotas = [(quota, folder) for folder in cpu_folders if (quota := _cpus(machine, folder)) is not None]
    memory = [
        limit
        for folder in _folders(machine, mounted, "memory")
        if (limit := _memory_bytes(machine, folder)) is not None
    ]
    cpus, binding = min(quotas, default=(None, next(iter(cpu_folders), None)))
    return CgroupLimits(cpus=cpus, memory_bytes=min(memory, default=None), cpu_folder=binding)


def throttled_s(machine: HostSystem, folder: str) -> float | None:
    """CPU time that the quota has withheld from the control group in `folder`, in seconds since the group was created.

    Summed over CPUs; None if unknown.
    """
    stat = dict(
        line.split(maxsplit=1) for line in (machine.text(f"{folder}/cpu.stat") or "").splitlines() if " " in line
    )
    microseconds, nanoseconds = as_integer(stat.get("throttled_usec")), as_integer(stat.get("throttled_time"))
    if microseconds is not None:
        return microseconds / US_PER_S
    return None if nanoseconds is None else nanoseconds / NS_PER_S


def _folders(machine: HostSystem, mounted: list[Mount], controller: str) -> Iterator[str]:
    """Folders of the process's control group and its parents, in each hierarchy that can hold the controller."""
    groups = _own_groups(machine)
    for mount in mounted:
        if mount.kind == "cgroup2":
            group = groups.get("")
        elif mount.kind == "cgroup" and controller in mount.options:
            group = groups.get(controller)
        else:
            continue
        if group is not None:
            yield from _upwards(mount, group)


def _own_groups(machine: HostSystem) -> dict[str, str]:
    """Path of the process's control group (value) for each controller (key); the key of version 2 is empty."""
    groups: dict[str, str] = {}
    for line in (machine.text("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _upwards(mount: Mount, group: str) -> Iterator[str]:
    """Folders from the group's folder up to the mount point; only the mount point for a group outside of the mount."""
    try:
        inside = PurePosixPath(group).relative_to(mount.root)
    except ValueError:
        inside = PurePosixPath()
    # A process that was moved to a group outside of its namespace sees "/../other", which is not below this mount.
    if ".." in inside.parts:
        inside = PurePosixPath()
    for part in (inside, *inside.parents):
        yield str(PurePosixPath(mount.point) / part)


def _cpus(machine: HostSystem, folder: str) -> float | None:
    quota_us, _, period_us = (machine.text(f"{folder}/cpu.max") or "").partition(" ")
    quota, period = as_integer(quota_us), as_integer(period_us)
    if quota is None:
        quota = machine.integer(f"{folder}/cpu.cfs_quota_us")
        period = machine.integer(f"{folder}/cpu.cfs_period_us")
    # Version 1 writes -1, version 2 "max", for no limit.
    return quota / period if quota is not None and period and quota > 0 else None


def _memory_bytes(machine: HostSystem, folder: str) -> int | None:
    limit = machine.integer(f"{folder}/memory.max")
    if limit is None:
        limit = machine.integer(f"{folder}/memory.limit_in_bytes")
    return limit if limit is not None and limit < UNLIMITED_V1_BYTES else None
