import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from workload.environment.host import host_facts, memory_available_bytes, memory_bytes
from workload.environment.machine import HostSystem

LayOut = Callable[..., HostSystem]

SILENT = {"systemd-detect-virt": None, "lscpu": None}
MEMINFO = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\nHugePages_Total:       3\n"


def test_facts_of_a_laid_out_host(lay_out: LayOut, tmp_path: Path) -> None:
    machine = lay_out(
        {
            "/proc/sys/kernel/hostname": "node7\n",
            "/proc/sys/kernel/osrelease": "6.1.0-x\n",
            "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12"\n',
            "/proc/meminfo": MEMINFO,
            "/proc/loadavg": "0.50 1.25 2.00 1/300 4242\n",
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
            "27 1 0:1 / / rw - ext4 /dev/vda rw\n",
            "/sys/fs/cgroup/cpu.max": "150000 100000",
            "/sys/fs/cgroup/memory.max": "4096",
            "/sys/devices/system/node/online": "0-1",
            "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "/proc/cpuinfo": "model name\t: x\nflags\t: fpu avx2\n",
        },
        tools=SILENT,
    )
    facts = host_facts(machine, dataset_path=tmp_path)
    expected = {
        "hostname": "node7",
        "os": "Debian GNU/Linux 12",
        "kernel": "6.1.0-x",
        "architecture": None,
        "cpu_model": "x",
        "cgroup_cpu_limit": 1.5,
        "cgroup_memory_limit_bytes": 4096,
        "memory_total_bytes": 16384 * 1024,
        "memory_available_bytes": 8192 * 1024,
        "numa_nodes": 2,
        "virtualization": {"hypervisor": "none", "source": "cpu flags"},
        "load_average": [0.5, 1.25, 2.0],
        "transparent_hugepages": "madvise",
    }
    assert {name: facts[name] for name in expected} == expected
    storage = facts["dataset_storage"]
    assert isinstance(storage, dict)
    assert storage["file_system"] == "ext4"


def test_an_empty_host_has_only_unknowns(lay_out: LayOut) -> None:
    facts = host_facts(lay_out(tools=SILENT), dataset_path=None)
    assert {name for name, value in facts.items() if value is not None} == set()


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ('PRETTY_NAME="Ubuntu 24.04.1 LTS"\n', "Ubuntu 24.04.1 LTS"),
        ("ID=x\nPRETTY_NAME='Alpine Linux v3.20'\n", "Alpine Linux v3.20"),
        ("PRETTY_NAME=Plain\nID=y\n", "Plain"),
        ('NAME="Nameless"\n', None),
    ],
)
def test_os(lay_out: LayOut, release: str, expected: str | None) -> None:
    machine = lay_out({"/usr/lib/os-release": release}, tools=SILENT)
    assert host_facts(machine, dataset_path=None)["os"] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("MemTotal", 16384 * 1024), ("HugePages_Total", None), ("MemAbsent", None)],
    ids=["in kB", "a count", "absent"],
)
def test_memory(lay_out: LayOut, name: str, expected: int | None) -> None:
    assert memory_bytes(lay_out({"/proc/meminfo": MEMINFO}), name) == expected


@pytest.mark.parametrize("text", ["no numbers here", ""])
def test_a_load_that_is_none(lay_out: LayOut, text: str) -> None:
    machine = lay_out({"/proc/loadavg": text}, tools=SILENT)
    assert host_facts(machine, dataset_path=None)["load_average"] is None


class NoFiles(HostSystem):
    """This machine, as if it were one without /proc, /sys and os-release."""

    def text(self, path: str) -> str | None:
        assert path.startswith(("/proc", "/sys", "/etc", "/usr")), path
        return None

    def exists(self, path: str) -> bool:
        assert path.startswith(("/proc", "/sys")), path
        return False


@pytest.mark.parametrize(
    ("system", "expected"), [("Darwin", "macOS 15.1"), ("Windows", "Windows 11")], ids=["macOS", "Windows"]
)
def test_a_host_that_is_no_linux(monkeypatch: pytest.MonkeyPatch, system: str, expected: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.1", ("", "", ""), ""))
    monkeypatch.setattr(platform, "release", lambda: "11")
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6")
    if system == "Windows":
        monkeypatch.delattr(os, "getloadavg")
    facts = host_facts(NoFiles(tool=lambda *_argv: None), dataset_path=None)
    assert facts["os"] == expected
    assert facts["hostname"] == platform.node()
    assert facts["memory_total_bytes"] == psutil.virtual_memory().total
    assert (facts["load_average"] is None) == (system == "Windows")
    assert facts["cgroup_cpu_limit"] is None
    assert facts["virtualization"] is None


def test_a_load_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", refuse)
    facts = host_facts(NoFiles(tool=lambda *_argv: None), dataset_path=None)
    assert facts["load_average"] is None


@pytest.mark.world
@pytest.mark.skipif(platform.system() != "Linux", reason="compares with Linux's own tools")
def test_this_host_agrees_with_psutil() -> None:
    facts = host_facts(HostSystem(), dataset_path=Path("/"))
    assert facts["hostname"] == socket.gethostname()
    assert facts["kernel"] == platform.release()
    assert facts["logical_cpus"] == psutil.cpu_count()
    assert facts["cpus_allowed"] == len(os.sched_getaffinity(0))
    assert facts["memory_total_bytes"] == psutil.virtual_memory().total
    assert memory_available_bytes(HostSystem()) == pytest.approx(psutil.virtual_memory().available, rel=0.1)
