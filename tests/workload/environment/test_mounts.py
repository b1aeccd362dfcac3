import shutil
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.workload.conftest import LayOut, WithoutFiles
from workload.environment.host import Mount, mounts, storage_facts
from workload.environment.machine import HostSystem

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
