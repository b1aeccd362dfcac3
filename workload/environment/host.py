"""Facts of the host: operating system, processor, memory, limits, storage. Facts are read as this process sees them."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from workload.environment.machine import HostSystem, as_integer, cpu_info, cpu_list, fields, system_facts

CPUS = "/sys/devices/system/cpu"

# Flags by which oneDNN, MKL and ATen choose their kernels: x86 first, then 64-bit Arm.
FLAGS_THAT_MATTER = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512dq", "avx512bw", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "avx10",
    "neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svebf16", "sme",
)  # fmt: skip

SIZE_BYTES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
# The kernel's "kB" in /proc/meminfo.
KIB_BYTES = 1024


def host_facts(machine: HostSystem) -> dict[str, object]:
    limits = cgroup_limits(machine)
    # `always [madvise] never`
    chosen = re.search(r"\[(\w+)\]", machine.text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    return {
        **system_facts(machine),
        **cpu_facts(machine),
        "cgroup_cpu_limit": limits.cpus,
        "cgroup_memory_limit_bytes": limits.memory_bytes,
        "memory_total_bytes": memory_total_bytes(machine),
        "memory_available_bytes": memory_available_bytes(machine),
        "numa_nodes": len(cpu_list(machine.text("/sys/devices/system/node/online")) or []) or None,
        "transparent_hugepages": chosen[1] if chosen else None,
    }


def memory_bytes(machine: HostSystem, name: str) -> int | None:
    """Value of the row `name` of /proc/meminfo, in bytes; None if there is no such row."""
    value, _, unit = fields(machine.text("/proc/meminfo")).get(name, "").partition(" ")
    number = as_integer(value)
    return number * KIB_BYTES if number is not None and unit == "kB" else None


def memory_total_bytes(machine: HostSystem) -> int | None:
    """Memory of the host in bytes, even inside a container."""
    total = memory_bytes(machine, "MemTotal")
    if total is None and machine.native and platform.system() == "Darwin":
        total = as_integer(machine.tool("sysctl", "-n", "hw.memsize"))
    return _psutil().virtual_memory().total if total is None and machine.native else total


def memory_available_bytes(machine: HostSystem) -> int | None:
    """Memory that new programs can have without swapping, in bytes; the host's figure even inside a container."""
    available = memory_bytes(machine, "MemAvailable")
    return _psutil().virtual_memory().available if available is None and machine.native else available


def _psutil() -> Any:
    """The library, which takes time to import and which Linux, with /proc, does not need."""
    import psutil  # noqa: PLC0415 - see above

    return psutil


def cpu_facts(machine: HostSystem) -> dict[str, object]:
    info, online = cpu_info(machine), cpu_list(machine.text(f"{CPUS}/online"))
    flags = info.get("flags") or info.get("Features")
    return {
        "cpu_model": cpu_model(machine),
        "cpu_microcode": info.get("microcode"),
        # x86 lists them as `flags`, Arm as `Features`.
        "cpu_flags": None if flags is None else [flag for flag in FLAGS_THAT_MATTER if flag in flags.split()],
        "physical_cores": _physical_cores(machine, online)
        or (_psutil().cpu_count(logical=False) if machine.native else None),
        "logical_cpus": len(online) if online else (os.cpu_count() if machine.native else None),
        "cpus_allowed": len(allowed_cpus(machine) or []) or None,
        "caches": caches(machine),
        "cpu_governor": machine.text(f"{CPUS}/cpu{_first_cpu(machine)}/cpufreq/scaling_governor"),
    }


def cpu_model(machine: HostSystem) -> str | None:
    """Name of the processor. Arm kernels give part numbers instead, which lscpu translates."""
    name = cpu_info(machine).get("model name")
    if name is None and machine.exists("/proc/cpuinfo"):
        name = fields(machine.tool("lscpu")).get("Model name")
    if name is None and machine.native and platform.system() == "Darwin":
        name = machine.tool("sysctl", "-n", "machdep.cpu.brand_string")
    if name is None and machine.native and platform.system() == "Windows":
        name = platform.processor()
    return name or None


def apple_gpu_facts(machine: HostSystem) -> dict[str, object]:
    """Facts of the GPU of Apple's chip, which shares the memory of the host.

    Apple sells one chip with different numbers of GPU cores, so the number is a part of the name: without it, nobody
    could tell which peak applies. The name of the chip alone is that of its CPU.
    """
    chip = cpu_model(machine)
    count = re.search(r'"gpu-core-count" = (\d+)', machine.tool("ioreg", "-rc", "AGXAccelerator") or "")
    cores = None if count is None else int(count[1])
    return {
        "name": chip if cores is None or chip is None else f"{chip} ({cores}-core GPU)",
        "sm_count": cores,
        "memory_total_bytes": memory_total_bytes(machine),
    }


def allowed_cpus(machine: HostSystem) -> list[int] | None:
    """CPUs that the process may run on, by affinity and cpuset."""
    return cpu_list(fields(machine.text("/proc/self/status")).get("Cpus_allowed_list"))


def caches(machine: HostSystem) -> list[dict[str, object]] | None:
    """Caches of the first CPU that the process may use, `size_bytes` for one instance; None if unknown."""
    rows: list[dict[str, object]] = []
    first_cpu = _first_cpu(machine)
    while True:
        folder = f"{CPUS}/cpu{first_cpu}/cache/index{len(rows)}"
        level, sharing = machine.integer(f"{folder}/level"), cpu_list(machine.text(f"{folder}/shared_cpu_list"))
        if level is None:
            return rows or None
        text = machine.text(f"{folder}/size")
        match = re.fullmatch(r"(\d+)([KMG]?)", text or "")
        rows.append(
            {
                "level": level,
                "type": (machine.text(f"{folder}/type") or "").lower() or None,
                "size_bytes": (int(match[1]) * SIZE_BYTES[match[2]] if match else None),
                "shared_by_cpus": len(sharing) if sharing else None,
            }
        )


def _first_cpu(machine: HostSystem) -> int:
    return min(allowed_cpus(machine) or [0])


def _physical_cores(machine: HostSystem, cpus: list[int] | None) -> int | None:
    """Number of cores of the online `cpus`; None if a CPU does not tell which others share its core."""
    folders = [f"{CPUS}/cpu{cpu}/topology" for cpu in cpus or []]
    # The second name is that before Linux 5.x.
    sets = {machine.text(f"{name}/core_cpus_list") or machine.text(f"{name}/thread_siblings_list") for name in folders}
    return len(sets) if sets and None not in sets else None


# --- mounts and containers

# Fields of a /proc/self/mountinfo line before the optional ones (proc_pid_mountinfo(5)).
FIXED_FIELDS = 6


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A mounted file system, as a line of /proc/self/mountinfo describes it.

    `root`: the folder of the file system that is visible at `point`.
    """

    number: str
    root: str
    point: str
    kind: str
    source: str
    options: tuple[str, ...]


def mounts(machine: HostSystem) -> list[Mount]:
    """Mounts in the order of mounting; empty if the kernel does not list them."""
    lines = (machine.text("/proc/self/mountinfo") or "").splitlines()
    return [mount for line in lines if (mount := _parse(line)) is not None]


def storage_facts(machine: HostSystem, path: Path) -> dict[str, object]:
    """Facts of the storage under `path`. If the path does not exist yet, the nearest existing folder is used."""
    path = Path(path).absolute()
    present = next((folder for folder in (path, *path.parents) if folder.exists()), path).resolve()
    mount = _deepest(present, mounts(machine)) or _deepest(present, _psutil_mounts(machine))
    return {
        "file_system": mount.kind if mount else None,
        "device": mount.source if mount else None,
        "rotational": _rotational(machine, mount) if mount else None,
        "free_bytes": _free_bytes(present),
    }


def _parse(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    fixed, file_system = before.split(" "), after.split(" ")
    if not separator or len(fixed) < FIXED_FIELDS:
        return None
    kind, source, options = (*file_system, "", "", "")[:3]
    return Mount(
        number=fixed[2],
        root=_unescaped(fixed[3]),
        point=_unescaped(fixed[4]),
        kind=kind,
        source=_unescaped(source),
        options=tuple(options.split(",")),
    )


def _unescaped(text: str) -> str:
    """Path without the kernel's escapes: three octal digits for a space, tab, newline or backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _deepest(path: Path, mounted: list[Mount]) -> Mount | None:
    holding = [mount for mount in mounted if path.is_relative_to(mount.point)]
    # If two mounts have the same point, the later mount hides the earlier one.
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)


def _psutil_mounts(machine: HostSystem) -> list[Mount]:
    """Mounts of this machine on a system without /proc; empty if psutil cannot list them."""
    import psutil  # noqa: PLC0415 - absent where only the launcher is installed, which needs the CPU limits beside this

    try:
        partitions = psutil.disk_partitions() if machine.native else []
    except (OSError, psutil.Error):
        return []
    return [
        Mount(number="", root="/", point=part.mountpoint, kind=part.fstype, source=part.device, options=())
        for part in partitions
    ]


def _rotational(machine: HostSystem, mount: Mount) -> bool | None:
    """Whether the disk under a mount is a rotating hard disk; None if unknown. A virtual disk is what the host says."""
    # overlay and btrfs number their mounts 0:N, which is no block device: the source's name is used instead.
    name = Path(mount.source).resolve().name if mount.source.startswith("/dev/") else ""
    for folder in (f"/sys/dev/block/{mount.number}", f"/sys/class/block/{name}"):
        for queue in ("queue", "../queue"):
            value = machine.integer(f"{folder}/{queue}/rotational")
            if value is not None:
                return bool(value)
    return None


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


# --- containers


class ContainerRuntime(StrEnum):
    """Runtime that made the container; `unknown`: certainly a container, but of no known runtime."""

    DOCKER = "docker"
    PODMAN = "podman"
    KUBERNETES = "kubernetes"
    APPTAINER = "apptainer"
    LXC = "lxc"
    UNKNOWN = "unknown"


# Runtimes by their name in the variable `container`, if that differs from the name in `ContainerRuntime`.
NAMES = {
    "oci": ContainerRuntime.UNKNOWN,
    "singularity": ContainerRuntime.APPTAINER,
    "lxc-libvirt": ContainerRuntime.LXC,
}

# Prefixes of a folder's name in a control group's path. On cgroup v2 a container usually sees only "/".
GROUP_MARKS = {
    "kubepods": ContainerRuntime.KUBERNETES,
    "libpod": ContainerRuntime.PODMAN,
    "docker": ContainerRuntime.DOCKER,
    "lxc": ContainerRuntime.LXC,
}

SHM = "/dev/shm"  # noqa: S108 - its size is read; nothing is written there


def container_facts(machine: HostSystem) -> dict[str, object] | None:
    """Facts of the container in which this process runs; None outside of containers."""
    container = runtime(machine)
    if container is None:
        return None
    return {
        "runtime": container.value,
        "image_digest": machine.environ.get("ROOFLAUNCH_IMAGE_DIGEST") or None,
        "shm_bytes": _shm_bytes(machine),
    }


def runtime(machine: HostSystem) -> ContainerRuntime | None:
    """Runtime of the container. The most specific sign decides, because a pod also has signs of its node's runtime."""
    environ = machine.environ
    # The interface systemd.io/CONTAINER_INTERFACE, which Podman and LXC follow too.
    variables = (machine.text("/proc/1/environ") or "").split("\0")
    noted = next((text.removeprefix("container=") for text in variables if text.startswith("container=")), None)
    name = noted or environ.get("container") or machine.text("/run/systemd/container") or ""
    named = ContainerRuntime(name) if name in set(ContainerRuntime) else ContainerRuntime.UNKNOWN
    groups = [line.split(":", 2)[-1] for line in (machine.text("/proc/1/cgroup") or "").splitlines()]
    # Containers have an overlay as their root file system.
    is_overlay = any(mount.point == "/" and mount.kind == "overlay" for mount in mounts(machine))
    signs = (
        ("APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ, ContainerRuntime.APPTAINER),
        ("KUBERNETES_SERVICE_HOST" in environ, ContainerRuntime.KUBERNETES),
        (machine.exists("/run/.containerenv"), ContainerRuntime.PODMAN),
        (machine.exists("/.dockerenv"), ContainerRuntime.DOCKER),
        (bool(name), NAMES.get(name, named)),
        *((any(f"/{mark}" in path for path in groups), runtime) for mark, runtime in GROUP_MARKS.items()),
        (is_overlay, ContainerRuntime.UNKNOWN),
    )
    return next((runtime for is_there, runtime in signs if is_there), None)


def _shm_bytes(machine: HostSystem) -> int | None:
    """Size of /dev/shm, through which data workers pass batches; Docker's default of 64 MB is too small for that."""
    if all(mount.point != SHM for mount in mounts(machine)):
        return None
    try:
        return shutil.disk_usage(machine.path(SHM)).total
    except OSError:
        return None


# --- CPU and memory limits of the process's control group and of its parents, versions 1 and 2
# Format: docs.kernel.org/admin-guide/cgroup-v2.html, cgroup-v1/memory.html, scheduler/sched-bwc.html.

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
    limit = cgroup_limits(HostSystem()).cpus
    return allowed if limit is None else min(allowed, limit)


def limit_threads(shares: int) -> None:
    """Limit the threads of this process and its children to one of `shares` equal shares of the CPUs.

    Libraries read OMP_NUM_THREADS when they are loaded. A value that the user has set is kept.
    """
    if shares > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, int(usable_cpus() / shares))))


def cgroup_limits(machine: HostSystem) -> CgroupLimits:
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
    """Folders of this process's control group and of its parent groups, wherever `controller` may set limits."""
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
