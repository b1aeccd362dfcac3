import os
import platform
import socket
from types import SimpleNamespace

import psutil
import pytest

from tests.workload.conftest import SILENT, LayOut, WithoutFiles
from workload.environment.host import (
    allowed_cpus,
    apple_gpu_facts,
    caches,
    cpu_facts,
    cpu_model,
    host_facts,
    memory_available_bytes,
    memory_bytes,
    memory_total_bytes,
)
from workload.environment.machine import HostSystem

MEMINFO = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\nHugePages_Total:       3\n"


def test_facts_of_a_laid_out_host(lay_out: LayOut) -> None:
    machine = lay_out(
        {
            "/proc/sys/kernel/hostname": "node7\n",
            "/proc/sys/kernel/osrelease": "6.1.0-x\n",
            "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12"\n',
            "/proc/meminfo": MEMINFO,
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
    facts = host_facts(machine)
    expected = {
        "hostname": "node7",
        "os": "Debian GNU/Linux 12",
        "kernel": "6.1.0-x",
        "cpu_model": "x",
        "cgroup_cpu_limit": 1.5,
        "cgroup_memory_limit_bytes": 4096,
        "memory_total_bytes": 16384 * 1024,
        "memory_available_bytes": 8192 * 1024,
        "numa_nodes": 2,
        "hypervisor": "none",
        "transparent_hugepages": "madvise",
    }
    assert {name: facts[name] for name in expected} == expected


def test_an_empty_host_has_only_unknowns_and_no_facts_of_this_machine(lay_out: LayOut) -> None:
    facts = host_facts(lay_out(tools=SILENT))
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
    assert host_facts(machine)["os"] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("MemTotal", 16384 * 1024), ("HugePages_Total", None), ("MemAbsent", None)],
    ids=["in kB", "a count", "absent"],
)
def test_memory(lay_out: LayOut, name: str, expected: int | None) -> None:
    assert memory_bytes(lay_out({"/proc/meminfo": MEMINFO}), name) == expected


@pytest.mark.parametrize(
    ("system", "expected"), [("Darwin", "macOS 15.1"), ("Windows", "Windows 11")], ids=["macOS", "Windows"]
)
def test_a_host_that_is_no_linux(monkeypatch: pytest.MonkeyPatch, system: str, expected: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.1", ("", "", ""), ""))
    monkeypatch.setattr(platform, "release", lambda: "11")
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6")
    facts = host_facts(WithoutFiles(tool=lambda *_argv: None))
    assert facts["os"] == expected
    assert facts["hostname"] == platform.node()
    assert facts["memory_total_bytes"] == psutil.virtual_memory().total
    assert facts["cgroup_cpu_limit"] is None
    assert facts["hypervisor"] is None


@pytest.mark.world
@pytest.mark.skipif(platform.system() != "Linux", reason="compares with Linux's own tools")
def test_this_host_agrees_with_psutil() -> None:
    facts = host_facts(HostSystem())
    assert facts["hostname"] == socket.gethostname()
    assert facts["kernel"] == platform.release()
    assert facts["logical_cpus"] == psutil.cpu_count()
    assert facts["cpus_allowed"] == len(os.sched_getaffinity(0))
    assert facts["memory_total_bytes"] == psutil.virtual_memory().total
    assert memory_available_bytes(HostSystem()) == pytest.approx(psutil.virtual_memory().available, rel=0.1)


# --- the processor

XEON = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) CPU @ 2.00GHz
stepping\t: 3
microcode\t: 0xffffffff
flags\t\t: fpu sse4_2 avx avx2 avx512f hypervisor amx_bf16_not

processor\t: 1
model name\t: another
"""
NEOVERSE = "processor\t: 0\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"


def topology(cores: list[str], name: str) -> dict[str, str]:
    files = {f"{TOPOLOGY.format(cpu)}/{name}": core for cpu, core in enumerate(cores)}
    return {"/sys/devices/system/cpu/online": f"0-{len(cores) - 1}\n", **files}


def test_facts_of_an_x86_server(lay_out: LayOut) -> None:
    machine = lay_out(
        {
            "/proc/cpuinfo": XEON,
            "/proc/self/status": "Name:\tpython\nCpus_allowed:\t3\nCpus_allowed_list:\t1,3\n",
            "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
            **topology(["0,2", "1,3", "0,2", "1,3"], "core_cpus_list"),
        }
    )
    assert cpu_facts(machine) == {
        "cpu_model": "Intel(R) Xeon(R) CPU @ 2.00GHz",
        "cpu_microcode": "0xffffffff",
        "cpu_flags": ["sse4_2", "avx", "avx2", "avx512f"],
        "physical_cores": 2,
        "logical_cpus": 4,
        "cpus_allowed": 2,
        "caches": None,
        "cpu_governor": "performance",
    }


def test_topology_of_an_older_kernel(lay_out: LayOut) -> None:
    files = topology(["0", "1", "2", "3"], "thread_siblings_list")
    facts = cpu_facts(lay_out({"/proc/cpuinfo": XEON, **files}))
    assert (facts["physical_cores"], facts["logical_cpus"]) == (4, 4)


def test_topology_that_one_cpu_hides_is_unknown(lay_out: LayOut) -> None:
    files = topology(["0", "1"], "core_cpus_list")
    del files[f"{TOPOLOGY.format(1)}/core_cpus_list"]
    facts = cpu_facts(lay_out({"/proc/cpuinfo": XEON, **files}))
    assert facts["physical_cores"] is None


@pytest.mark.parametrize(
    ("lscpu", "expected"),
    [("Architecture: aarch64\nModel name:   Neoverse-V1\n", "Neoverse-V1"), ("Model: 1\n", None), (None, None)],
    ids=["named", "unnamed", "not installed"],
)
def test_model_on_arm_is_lscpus(lay_out: LayOut, lscpu: str | None, expected: str | None) -> None:
    machine = lay_out({"/proc/cpuinfo": NEOVERSE}, tools={"lscpu": lscpu})
    assert cpu_model(machine) == expected


def test_flags_on_arm(lay_out: LayOut) -> None:
    facts = cpu_facts(lay_out({"/proc/cpuinfo": NEOVERSE}, tools={"lscpu": None}))
    assert facts["cpu_flags"] == ["asimd", "bf16", "sve"]


def test_caches_of_the_first_allowed_cpu(lay_out: LayOut) -> None:
    files: dict[str, str] = {"/proc/self/status": "Cpus_allowed_list:\t2-3\n"}
    rows = [("1", "Data", "32K", "2"), ("2", "Unified", "1M", "2-3"), ("3", "Unified", "big", "0-3")]
    for index, values in enumerate(rows):
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            files[f"/sys/devices/system/cpu/cpu2/cache/index{index}/{name}"] = value
    assert caches(lay_out(files)) == [
        {"level": 1, "type": "data", "size_bytes": 32 * 1024, "shared_by_cpus": 1},
        {"level": 2, "type": "unified", "size_bytes": 1024**2, "shared_by_cpus": 2},
        {"level": 3, "type": "unified", "size_bytes": None, "shared_by_cpus": 4},
    ]


@pytest.mark.parametrize(
    ("system", "expected"), [("Darwin", "Apple M3"), ("Windows", "Intel64 Family 6"), ("FreeBSD", None)]
)
def test_model_elsewhere(monkeypatch: pytest.MonkeyPatch, system: str, expected: str | None) -> None:
    answers = {("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M3"}
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6")
    assert cpu_model(WithoutFiles(tool=lambda *argv: answers[argv])) == expected


MAC = {
    ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M2 Pro",
    ("sysctl", "-n", "hw.memsize"): "17179869184",
    ("ioreg", "-rc", "AGXAccelerator"): """+-o AGXAcceleratorG14X  <class AGXAcceleratorG14X, id 0x1>
  |   "model" = "Apple M2 Pro"
  |   "gpu-core-count" = 19
""",
}


@pytest.mark.parametrize(
    ("lost", "name", "cores", "memory_bytes"),
    [
        ((), "Apple M2 Pro (19-core GPU)", 19, 17_179_869_184),
        (("ioreg",), "Apple M2 Pro", None, 17_179_869_184),
        (("sysctl",), None, 19, 4_000),
    ],
    ids=["all", "no ioreg", "no sysctl"],
)
def test_the_gpu_of_a_mac(
    monkeypatch: pytest.MonkeyPatch, lost: tuple[str, ...], name: str | None, cores: int | None, memory_bytes: int
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=4_000, available=3_000))
    mac = WithoutFiles(tool=lambda *argv: None if argv[0] in lost else MAC[argv])
    assert apple_gpu_facts(mac) == {"name": name, "sm_count": cores, "memory_total_bytes": memory_bytes}
    assert (cpu_model(mac), memory_total_bytes(mac)) == (None if lost == ("sysctl",) else "Apple M2 Pro", memory_bytes)


def test_counts_elsewhere_are_psutils(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(psutil, "cpu_count", lambda *, logical: {False: 6}[logical])
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    facts = cpu_facts(WithoutFiles(tool=lambda *_argv: None))
    assert (facts["physical_cores"], facts["logical_cpus"], facts["cpus_allowed"]) == (6, 12, None)


@pytest.mark.skipif(platform.system() != "Linux", reason="the scheduler's own answer is Linux's")
def test_allowed_cpus_are_the_schedulers() -> None:
    assert set(allowed_cpus(HostSystem()) or []) == os.sched_getaffinity(0)
