"""Mounted file systems, the storage under a path, and whether this process runs in a container, in which kind."""

import re
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from workload.environment.machine import HostSystem

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
    """Mount that holds `path`, the deepest of several."""
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
