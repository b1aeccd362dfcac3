"""Lists mounted file systems, and describes the storage under a path."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from workload.environment.machine import HostSystem

# Fields of a /proc/self/mountinfo line before the optional ones (proc_pid_mountinfo(5)).
FIXED_FIELDS = 6


@dataclass(frozen=True, kw_only=True)
class Mount:
    """Line of /proc/self/mountinfo; `root`: the visible part of the file system."""

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
    """Whether the disk under a mount rotates, as a hard disk does. For a virtual disk, the host's claim is returned."""
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
