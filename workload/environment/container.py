"""Detects whether this process runs in a container, and in which kind."""

import shutil
from enum import StrEnum

from workload.environment import cgroup
from workload.environment.machine import HostSystem
from workload.environment.mounts import mounts
from workload.environment.system import os_name


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
    """Facts of the container in which this process runs; None outside of containers.

    The limits of CPU and memory are the same as in the host section: the process is in one control group.
    """
    container = runtime(machine)
    if container is None:
        return None
    limits = cgroup.limits(machine)
    return {
        "runtime": container.value,
        "os": os_name(machine),
        "cgroup_cpu_limit": limits.cpus,
        "cgroup_memory_limit_bytes": limits.memory_bytes,
        "image_digest": machine.environ.get("ROOFLAUNCH_IMAGE_DIGEST") or None,
        "shm_bytes": _shm_bytes(machine),
    }


def runtime(machine: HostSystem) -> ContainerRuntime | None:
    """Runtime of the container. The most specific sign decides, because a pod also has signs of its node's runtime."""
    signs = (_from_variables, _from_files, _from_first_process, _from_groups, _from_root)
    return next((container for sign in signs if (container := sign(machine)) is not None), None)


def _from_variables(machine: HostSystem) -> ContainerRuntime | None:
    if "APPTAINER_CONTAINER" in machine.environ or "SINGULARITY_CONTAINER" in machine.environ:
        return ContainerRuntime.APPTAINER
    return ContainerRuntime.KUBERNETES if "KUBERNETES_SERVICE_HOST" in machine.environ else None


def _from_files(machine: HostSystem) -> ContainerRuntime | None:
    if machine.exists("/run/.containerenv"):
        return ContainerRuntime.PODMAN
    return ContainerRuntime.DOCKER if machine.exists("/.dockerenv") else None


def _from_first_process(machine: HostSystem) -> ContainerRuntime | None:
    """Runtime named by the interface systemd.io/CONTAINER_INTERFACE, which Podman and LXC follow too."""
    variables = (machine.text("/proc/1/environ") or "").split("\0")
    named = next((text.removeprefix("container=") for text in variables if text.startswith("container=")), None)
    name = named or machine.environ.get("container") or machine.text("/run/systemd/container")
    if name is None:
        return None
    return NAMES.get(name) or (ContainerRuntime(name) if name in set(ContainerRuntime) else ContainerRuntime.UNKNOWN)


def _from_groups(machine: HostSystem) -> ContainerRuntime | None:
    paths = [line.split(":", 2)[-1] for line in (machine.text("/proc/1/cgroup") or "").splitlines()]
    return next((name for mark, name in GROUP_MARKS.items() if any(f"/{mark}" in path for path in paths)), None)


def _from_root(machine: HostSystem) -> ContainerRuntime | None:
    """Runtime `unknown` if the root file system is an overlay, as containers have; None for any other file system."""
    overlay = any(mount.point == "/" and mount.kind == "overlay" for mount in mounts(machine))
    return ContainerRuntime.UNKNOWN if overlay else None


def _shm_bytes(machine: HostSystem) -> int | None:
    """Size of /dev/shm, through which data workers pass batches; Docker's default of 64 MB is too small for that."""
    if all(mount.point != SHM for mount in mounts(machine)):
        return None
    try:
        return shutil.disk_usage(machine.path(SHM)).total
    except OSError:
        return None
