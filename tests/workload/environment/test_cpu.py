import os
import platform
from collections.abc import Callable

import psutil
import pytest

from workload.environment.cpu import allowed_cpus, caches, cpu_facts, cpu_model
from workload.environment.machine import HostSystem

LayOut = Callable[..., HostSystem]

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


def topology(*, cores: list[str], packages: list[str], names: tuple[str, str]) -> dict[str, str]:
    files = {"/sys/devices/system/cpu/online": f"0-{len(cores) - 1}\n"}
    for cpu, (core, package) in enumerate(zip(cores, packages, strict=True)):
        files[f"{TOPOLOGY.format(cpu)}/{names[0]}"] = core
        files[f"{TOPOLOGY.format(cpu)}/{names[1]}"] = package
    return files


def test_facts_of_an_x86_server(lay_out: LayOut) -> None:
    machine = lay_out(
        {
            "/proc/cpuinfo": XEON,
            "/proc/self/status": "Name:\tpython\nCpus_allowed:\t3\nCpus_allowed_list:\t1,3\n",
            "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
            **topology(
                cores=["0,2", "1,3", "0,2", "1,3"],
                packages=["0-3"] * 4,
                names=("core_cpus_list", "package_cpus_list"),
            ),
        }
    )
    assert cpu_facts(machine) == {
        "cpu_model": "Intel(R) Xeon(R) CPU @ 2.00GHz",
        "cpu_family": 6,
        "cpu_model_number": 85,
        "cpu_stepping": 3,
        "cpu_microcode": "0xffffffff",
        "cpu_flags": ["sse4_2", "avx", "avx2", "avx512f"],
        "sockets": 1,
        "physical_cores": 2,
        "logical_cpus": 4,
        "cpus_allowed": 2,
        "cpus_allowed_list": "1,3",
        "caches": None,
        "cpu_governor": "performance",
    }


def test_topology_of_an_older_kernel_with_two_sockets(lay_out: LayOut) -> None:
    files = topology(
        cores=["0", "1", "2", "3"],
        packages=["0-1", "0-1", "2-3", "2-3"],
        names=("thread_siblings_list", "core_siblings_list"),
    )
    facts = cpu_facts(lay_out({"/proc/cpuinfo": XEON, **files}))
    assert (facts["sockets"], facts["physical_cores"], facts["logical_cpus"]) == (2, 4, 4)


def test_topology_that_one_cpu_hides_is_unknown(lay_out: LayOut) -> None:
    files = topology(cores=["0", "1"], packages=["0-1"] * 2, names=("core_cpus_list", "package_cpus_list"))
    del files[f"{TOPOLOGY.format(1)}/core_cpus_list"]
    facts = cpu_facts(lay_out({"/proc/cpuinfo": XEON, **files}))
    assert (facts["sockets"], facts["physical_cores"]) == (1, None)


def test_everything_absent_is_none_and_not_this_machines(lay_out: LayOut) -> None:
    assert set(cpu_facts(lay_out()).values()) == {None}


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
    assert (facts["cpu_family"], facts["cpu_stepping"]) == (None, None)


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


class NoProc(HostSystem):
    """This machine, as if it had neither /proc nor /sys."""

    def text(self, path: str) -> str | None:
        assert path.startswith(("/proc", "/sys")), path
        return None

    def exists(self, path: str) -> bool:
        assert path.startswith(("/proc", "/sys")), path
        return False


@pytest.mark.parametrize(
    ("system", "expected"), [("Darwin", "Apple M3"), ("Windows", "Intel64 Family 6"), ("FreeBSD", None)]
)
def test_model_elsewhere(monkeypatch: pytest.MonkeyPatch, system: str, expected: str | None) -> None:
    answers = {("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M3"}
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6")
    assert cpu_model(NoProc(tool=lambda *argv: answers[argv])) == expected


def test_counts_elsewhere_are_psutils(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(psutil, "cpu_count", lambda *, logical: {False: 6}[logical])
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    facts = cpu_facts(NoProc(tool=lambda *_argv: None))
    assert (facts["physical_cores"], facts["logical_cpus"], facts["cpus_allowed"]) == (6, 12, None)


@pytest.mark.skipif(platform.system() != "Linux", reason="the scheduler's own answer is Linux's")
def test_allowed_cpus_are_the_schedulers() -> None:
    assert set(allowed_cpus(HostSystem()) or []) == os.sched_getaffinity(0)
