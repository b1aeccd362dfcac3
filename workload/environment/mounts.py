"""What is mounted where, and the storage under a path."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from workload.environment.machine import HostSystem

# Fields of a /proc/self/mountinfo line before the optional ones (proc_pid_mountinfo(5)).
FIXED_FIELDS = 6


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One line of /proc/self/mountinfo; `root` is the part of the file system that is visible."""

    number: str
    root: str
    point: str
    kind: str
    source: str
    options: tuple[str, ...]


def mounts(machine: HostSystem) -> list[Mount]:
    """In the order of mounting; empty where the kernel does not say."""
    lines = (machine.text("/proc/self/mountinfo") or "").splitlines()
    return [mount for line in lines if (mount := _parse(line)) is not None]


def storage_facts(machine: HostSystem, path: Path) -> dict[str, object]:
    """Where the data lies. A path that does not exist yet is described by the folder that will hold it."""
    path = Path(path).absolute()
    present = next((folder for folder in (path, *path.parents) if folder.exists()), path).resolve()
    mount = _mount_of(present, mounts(machine)) or _portable_mount_of(machine, present)
    return {
        "mount_point": mount.point if mount else None,
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
    """The kernel writes a space, tab, newline and backslash in a path as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _mount_of(path: Path, mounted: list[Mount]) -> Mount | None:
    holding = [mount for mount in mounted if path.is_relative_to(PurePosixPath(mount.point))]
    # Of two at the same point the later one hides the earlier.
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)


def _portable_mount_of(machine: HostSystem, path: Path) -> Mount | None:
    if not machine.native:
        return None
    try:
        partitions = psutil.disk_partitions()
    except (OSError, psutil.Error):
        return None
    known = [
        Mount(number="", root="/", point=part.mountpoint, kind=part.fstype, source=part.device, options=())
        for part in partitions
    ]
    return max(
        (mount for mount in known if path.is_relative_to(mount.point)),
        key=lambda mount: len(mount.point),
        default=None,
    )


def _rotational(machine: HostSystem, mount: Mount) -> bool | None:
    """Of the disk, or of the disk that the partition is on; a virtual disk repeats what its host claims."""
    # overlay and btrfs number their mounts 0:N, which no block device has: the source's name then helps.
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
