"""Containers: their kind, mounts and limits."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.workload.conftest import LayOut, WithoutFiles
from workload.environment import host
from workload.environment.host import Mount, container_facts, mounts, storage_facts
from workload.environment.machine import HostSystem

OVERLAY = "1 0 0:50 / / rw - overlay overlay rw,lowerdir=/x\n"
DISK = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /var/lib/docker/overlay2/m rw - overlay overlay rw\n"

RUNTIMES = {
    "bare host": ({"/proc/1/cgroup": "0::/init.scope\n", "/proc/self/mountinfo": DISK}, {}, None),
    "host with docker installed": ({"/proc/self/cgroup": "0::/system.slice/docker.service\n"}, {}, None),
    "no /proc": ({}, {}, None),
    "docker": ({"/.dockerenv": ""}, {}, "docker"),
    "podman": ({"/run/.containerenv": ""}, {}, "podman"),
    "podman in docker's clothes": ({"/run/.containerenv": "", "/.dockerenv": ""}, {}, "podman"),
    "kubernetes": ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    "kubernetes on docker": ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    "apptainer": ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
    "singularity": ({}, {"SINGULARITY_CONTAINER": "/x.sif"}, "apptainer"),
    "lxc": ({"/proc/1/environ": "PATH=/bin\0container=lxc\0"}, {}, "lxc"),
    "libvirt's lxc": ({"/proc/1/environ": "container=lxc-libvirt\0"}, {}, "lxc"),
    "an unheard-of maker": ({"/proc/1/environ": "container=systemd-nspawn\0"}, {}, "unknown"),
    "own variable": ({}, {"container": "podman"}, "podman"),
    "noted by systemd": ({"/run/systemd/container": "docker\n"}, {}, "docker"),
    "another variable that ends so": ({"/proc/1/environ": "mycontainer=lxc\0"}, {}, None),
    "cgroup v1: docker": ({"/proc/1/cgroup": "4:memory:/docker/abc\n0::/\n"}, {}, "docker"),
    "cgroup v2: docker under systemd": ({"/proc/1/cgroup": "0::/system.slice/docker-abc.scope\n"}, {}, "docker"),
    "cgroup v1: pod": ({"/proc/1/cgroup": "4:memory:/kubepods/docker/abc\n"}, {}, "kubernetes"),
    "cgroup: libpod": ({"/proc/1/cgroup": "0::/machine.slice/libpod-abc.scope\n"}, {}, "podman"),
    "cgroup: lxc": ({"/proc/1/cgroup": "0::/lxc.payload.web\n"}, {}, "lxc"),
    "a group with a maker's name inside": ({"/proc/1/cgroup": "0::/user.slice/rundocker.scope\n"}, {}, None),
    "overlay as root": ({"/proc/1/cgroup": "0::/\n", "/proc/self/mountinfo": OVERLAY}, {}, "unknown"),
}


@pytest.mark.parametrize(("files", "environ", "expected"), RUNTIMES.values(), ids=RUNTIMES.keys())
def test_runtime(lay_out: LayOut, files: dict[str, str], environ: dict[str, str], expected: str | None) -> None:
    facts = container_facts(lay_out(files, environ=environ))
    assert (facts and facts["runtime"]) == expected


def test_what_the_container_was_given(lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = lay_out(
        {"/.dockerenv": "", "/proc/self/mountinfo": "25 24 0:23 / /dev/shm rw - tmpfs shm rw,size=65536k\n"},
        environ={"ROOFLAUNCH_IMAGE_DIGEST": "sha256:abc", "AWS_SECRET_ACCESS_KEY": "hidden"},
    )
    sizes = {machine.path("/dev/shm"): SimpleNamespace(total=64 * 1024**2)}
    monkeypatch.setattr(shutil, "disk_usage", sizes.__getitem__)
    assert container_facts(machine) == {"runtime": "docker", "image_digest": "sha256:abc", "shm_bytes": 64 * 1024**2}


def test_a_container_that_tells_nothing_more(lay_out: LayOut) -> None:
    machine = lay_out({"/.dockerenv": ""}, environ={"ROOFLAUNCH_IMAGE_DIGEST": ""})
    facts = container_facts(machine) or {}
    assert facts.pop("runtime") == "docker"
    assert set(facts.values()) == {None}


def test_shared_memory_that_is_gone(lay_out: LayOut) -> None:
    mount = "25 24 0:23 / /dev/shm rw - tmpfs shm rw\n"
    facts = container_facts(lay_out({"/.dockerenv": "", "/proc/self/mountinfo": mount})) or {}
    assert facts["shm_bytes"] is None


ROOT_LINE = "27 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"


def test_mounts_reads_the_kernels_lines(lay_out: LayOut) -> None:
    text = (
        "36 35 98:0 /part /mnt/my\\040disk rw,noatime shared:1 master:2 - ext3 /dev/my\\134root rw,errors=x\n"
        "25 24 0:23 / /dev/shm rw - tmpfs tmpfs\n"
        "too short - ext4 x y\n"
        "no separator at all in this line\n"
    )
    assert mounts(lay_out({"/proc/self/mountinfo": text})) == [
        Mount(
            number="98:0",
            root="/part",
            point="/mnt/my disk",
            kind="ext3",
            source="/dev/my\\root",
            options=("rw", "errors=x"),
        ),
        Mount(number="0:23", root="/", point="/dev/shm", kind="tmpfs", source="tmpfs", options=("",)),
    ]
    assert mounts(HostSystem(root=Path("/nonexistent"))) == []


@pytest.mark.parametrize(
    ("number", "source", "files", "expected"),
    [
        ("8:0", "/dev/sda", {"/sys/dev/block/8:0/queue/rotational": "1"}, True),
        ("8:0", "/dev/sda", {"/sys/dev/block/8:0/queue/rotational": "0"}, False),
        ("8:1", "/dev/sda1", {"/sys/dev/block/8:1/size": "1", "/sys/dev/block/queue/rotational": "0"}, False),
        ("0:40", "/dev/nvme0n1", {"/sys/class/block/nvme0n1/queue/rotational": "0"}, False),
        ("0:41", "server:/export", {}, None),
    ],
    ids=["disk", "flash", "partition: the disk above", "btrfs: by its source", "network"],
)
def test_rotational(
    lay_out: LayOut, tmp_path: Path, number: str, source: str, files: dict[str, str], expected: bool | None
) -> None:
    machine = lay_out({"/proc/self/mountinfo": f"27 1 {number} / / rw - some {source} rw\n", **files})
    assert storage_facts(machine, tmp_path)["rotational"] is expected


def test_storage_is_the_deepest_mount_that_holds_the_path(lay_out: LayOut, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "train").mkdir(parents=True)
    machine = lay_out(
        {
            "/proc/self/mountinfo": ROOT_LINE
            + f"30 27 0:50 / {data} rw - tmpfs hidden rw\n"
            + f"31 27 0:51 / {data} rw - xfs /dev/top rw\n"
            + f"32 27 0:52 / {data}-other rw - ext4 /dev/other rw\n"
        }
    )
    facts = storage_facts(machine, data / "train" / "not-yet" / "there")
    assert facts == {
        "file_system": "xfs",
        "device": "/dev/top",
        "rotational": None,
        "free_bytes": pytest.approx(shutil.disk_usage(data).free, rel=0.01),
    }
    assert storage_facts(machine, tmp_path)["device"] == "/dev/sda1"


def test_storage_follows_links(lay_out: LayOut, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    machine = lay_out({"/proc/self/mountinfo": ROOT_LINE + f"30 27 0:50 / {tmp_path}/disk rw - xfs /dev/x rw\n"})
    assert storage_facts(machine, tmp_path / "link")["file_system"] == "xfs"


def test_storage_without_a_mount_table(lay_out: LayOut, tmp_path: Path) -> None:
    facts = storage_facts(lay_out(), tmp_path)
    assert facts.pop("free_bytes")
    assert set(facts.values()) == {None}


def test_storage_elsewhere_asks_psutil(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = [
        SimpleNamespace(mountpoint="/", fstype="apfs", device="/dev/disk1"),
        SimpleNamespace(mountpoint=str(tmp_path), fstype="exfat", device="/dev/disk2"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda: parts)
    assert storage_facts(WithoutFiles(), tmp_path)["file_system"] == "exfat"
    assert storage_facts(WithoutFiles(), Path("/"))["device"] == "/dev/disk1"


def test_storage_survives_psutil(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse() -> None:
        raise PermissionError

    monkeypatch.setattr(psutil, "disk_partitions", refuse)
    assert storage_facts(WithoutFiles(), tmp_path)["file_system"] is None


V2 = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
# Docker on version 1, without a namespace for control groups: only the container's own part is mounted.
V1_DOCKER = (
    "32 31 0:29 /docker/c1 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 /docker/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)
V1_OWN = "4:memory:/docker/c1\n2:cpu,cpuacct:/docker/c1\n0::/\n"
V1_CPU, V1_MEMORY, TOP = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"

LIMITS: dict[str, dict[str, str]] = {
    "v2: own group": {
        "mounts": V2, "own": "0::/job\n", f"{TOP}/job/cpu.max": "150000 100000", f"{TOP}/job/memory.max": "1048576"},
    "v2: no limit is named max": {
        "mounts": V2, "own": "0::/job\n", f"{TOP}/job/cpu.max": "max 100000", f"{TOP}/job/memory.max": "max"},
    "v2: the limit of the group above binds": {
        "mounts": V2, "own": "0::/a/b\n", f"{TOP}/a/cpu.max": "200000 100000", f"{TOP}/a/b/cpu.max": "max 100000",
         f"{TOP}/a/memory.max": "4096", f"{TOP}/a/b/memory.max": "8192"},
    "v2: the tighter of two": {
        "mounts": V2, "own": "0::/a/b\n", f"{TOP}/a/cpu.max": "400000 100000", f"{TOP}/a/b/cpu.max": "50000 100000"},
    "v2: in a container's namespace the own group is the top": {
        "mounts": V2, "own": "0::/\n", f"{TOP}/cpu.max": "100000 100000", f"{TOP}/memory.max": "4096"},
    "v2: a group outside the namespace": {
        "mounts": V2, "own": "0::/../other\n", f"{TOP}/cpu.max": "100000 100000", "/sys/fs/other/cpu.max": "1 100000"},
    "v1: own group": {
        "mounts": V1, "own": V1_OWN, f"{V1_CPU}/docker/c1/cpu.cfs_quota_us": "250000",
         f"{V1_CPU}/docker/c1/cpu.cfs_period_us": "100000", f"{V1_MEMORY}/docker/c1/memory.limit_in_bytes": "4096"},
    "v1: no limit is -1 and a huge number": {
        "mounts": V1, "own": V1_OWN, f"{V1_CPU}/docker/c1/cpu.cfs_quota_us": "-1",
         f"{V1_CPU}/docker/c1/cpu.cfs_period_us": "100000",
         f"{V1_MEMORY}/docker/c1/memory.limit_in_bytes": "9223372036854771712"},
    "v1: the container's part mounted at the top": {
        "mounts": V1_DOCKER, "own": V1_OWN, f"{V1_CPU}/cpu.cfs_quota_us": "50000",
         f"{V1_CPU}/cpu.cfs_period_us": "100000", f"{V1_MEMORY}/memory.limit_in_bytes": "4096"},
    "v1: a namespace whose own group is outside the mounted part": {
        "mounts": V1_DOCKER, "own": "2:cpu,cpuacct:/\n", f"{V1_CPU}/cpu.cfs_quota_us": "50000",
         f"{V1_CPU}/cpu.cfs_period_us": "100000"},
    "both: v2 mounted without controllers": {
        "mounts": V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), "own": V1_OWN,
         f"{V1_CPU}/cpu.cfs_quota_us": "300000", f"{V1_CPU}/cpu.cfs_period_us": "100000"},
    "garbage": {
        "mounts": V2, "own": "0::/\n", f"{TOP}/cpu.max": "fast please", f"{TOP}/memory.max": "much"},
    "a period of zero": {"mounts": V2, "own": "0::/\n", f"{TOP}/cpu.max": "100000 0"},
    "none mounted": {"mounts": "", "own": "0::/\n"},
}  # fmt: skip
STATS = {
    "v2 in microseconds": "usage_usec 9000000\nnr_throttled 3\nthrottled_usec 2500000\n",
    "v1 in nanoseconds": "nr_periods 10\nnr_throttled 3\nthrottled_time 2500000000\n",
    "controller off": "usage_usec 9000000\n",
    "no value": "throttled_usec\n",
    "no number": "throttled_usec soon\n",
}


def test_limits_of_control_groups(lay_out: LayOut, golden: Callable[[str, str], None]) -> None:
    names, text = {"mounts": "/proc/self/mountinfo", "own": "/proc/self/cgroup"}, ""
    for title, files in {**LIMITS, "no /proc": {}}.items():
        machine = lay_out({names.get(name, name): content for name, content in files.items()}, apart=title)
        found = host.cgroup_limits(machine)
        text += f"{title}: {found.cpus} CPUs, {found.memory_bytes} B, {found.cpu_folder}\n"
    for title, stat in STATS.items():
        throttled_s = host.throttled_s(lay_out({"/group/cpu.stat": stat}, apart=title), "/group")
        text += f"throttled, {title}: {throttled_s} s\n"
    golden("control_groups.txt", text)


@pytest.mark.parametrize(
    ("shares", "own", "expected"), [(1, None, None), (2, None, "3"), (12, None, "1"), (2, "5", "5")]
)
def test_threads_for_a_share_of_the_cpus(
    monkeypatch: pytest.MonkeyPatch, shares: int, own: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(host, "usable_cpus", lambda: 6.5)
    # Set first, so that pytest restores it.
    monkeypatch.setenv("OMP_NUM_THREADS", own or "")
    if own is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    host.limit_threads(shares)
    assert os.environ.get("OMP_NUM_THREADS") == expected
