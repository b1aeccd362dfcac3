"""Detects whether this process runs in a container, and in which kind."""

import shutil
from enum import StrEnum

from workload.environment.machine import HostSystem
from workload.environment.mounts import mounts


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
