"""Facts of hosts that exist only as files and answers of tools, as golden pages; and of this host."""

import json
import os
import platform
import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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
from workload.environment.machine import HostSystem, cpu_list, dmi_makers, fields, hypervisor, run_tool

MEMINFO = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\nHugePages_Total:       3\n"


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


SERVER = {
    "/proc/sys/kernel/hostname": "node7\n",
    "/proc/sys/kernel/osrelease": "6.1.0-x\n",
    "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12"\n',
    "/proc/meminfo": MEMINFO,
    "/proc/self/cgroup": "0::/\n",
    "/proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n27 1 0:1 / / rw - ext4 /dev/vda rw\n",
    "/sys/fs/cgroup/cpu.max": "150000 100000",
    "/sys/fs/cgroup/memory.max": "4096",
    "/sys/devices/system/node/online": "0-1",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/proc/cpuinfo": "model name\t: x\nflags\t: fpu avx2\n",
}
RELEASES = [
    'PRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
    "ID=x\nPRETTY_NAME='Alpine Linux v3.20'\n",
    "PRETTY_NAME=Plain\nID=y\n",
    'NAME="Nameless"\n',
]
CPUS = {
    "x86 server": {
        "/proc/cpuinfo": XEON,
        "/proc/self/status": "Name:\tpython\nCpus_allowed:\t3\nCpus_allowed_list:\t1,3\n",
        "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
        **topology(["0,2", "1,3", "0,2", "1,3"], "core_cpus_list"),
    },
    "older kernel": {"/proc/cpuinfo": XEON, **topology(["0", "1", "2", "3"], "thread_siblings_list")},
    "a CPU without topology": {
        name: text
        for name, text in {"/proc/cpuinfo": XEON, **topology(["0", "1"], "core_cpus_list")}.items()
        if name != f"{TOPOLOGY.format(1)}/core_cpus_list"
    },
    "Arm": {"/proc/cpuinfo": NEOVERSE},
}
LSCPU = ["Architecture: aarch64\nModel name:   Neoverse-V1\n", "Model: 1\n", None]


def known(facts: dict[str, Any]) -> str:
    """Facts that are known, one a line."""
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in facts.items() if value is not None)


def test_facts_of_hosts(lay_out: LayOut, golden: Callable[[str, str], None]) -> None:
    def machine(files: dict[str, str], tools: dict[str, str | None] = SILENT) -> HostSystem:
        return lay_out(files, tools=tools, apart=str(len(sections)))

    sections: dict[str, str] = {}
    sections["a server"] = known(host_facts(machine(SERVER)))
    sections["nothing is told"] = known(host_facts(machine({})))
    for release in RELEASES:
        sections[f"os-release {release!r}"] = known(host_facts(machine({"/usr/lib/os-release": release})))
    for name in ("MemTotal", "HugePages_Total", "MemAbsent"):
        sections[name] = str(memory_bytes(machine({"/proc/meminfo": MEMINFO}), name))
    for name, files in CPUS.items():
        sections[f"CPU, {name}"] = known(cpu_facts(machine(files)))
    for answer in LSCPU:
        tools = {"lscpu": answer}
        sections[f"lscpu says {answer!r}"] = str(cpu_model(machine({"/proc/cpuinfo": NEOVERSE}, tools)))
    golden("hosts.txt", "".join(f"## {title}\n{text}\n\n" for title, text in sections.items()))


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


MAC = {
    ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M2 Pro",
    ("sysctl", "-n", "hw.memsize"): "17179869184",
    ("ioreg", "-rc", "AGXAccelerator"): """+-o AGXAcceleratorG14X  <class AGXAcceleratorG14X, id 0x1>
  |   "model" = "Apple M2 Pro"
  |   "gpu-core-count" = 19
""",
}


def test_facts_of_hosts_that_are_no_linux(monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]) -> None:
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.1", ("", "", ""), ""))
    monkeypatch.setattr(platform, "release", lambda: "11")
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6")
    monkeypatch.setattr(platform, "node", lambda: "laptop")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=4_000, available=3_000))
    monkeypatch.setattr(psutil, "cpu_count", lambda *, logical: {False: 6}[logical])
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    text = ""
    for system in ("Darwin", "Windows", "FreeBSD"):
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        text += f"## {system}\n{known(host_facts(WithoutFiles(tool=lambda *_: None)))}\n\n"
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    for lost in ("nothing", "ioreg", "sysctl"):
        mac = WithoutFiles(tool=lambda *argv, lost=lost: None if argv[0] == lost else MAC[argv])
        text += f"## a Mac that lacks {lost}\n{known(apple_gpu_facts(mac))}\n"
        text += f"CPU {cpu_model(mac)}, {memory_total_bytes(mac)} B\n\n"
    golden("other_hosts.txt", text)


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


@pytest.mark.skipif(platform.system() != "Linux", reason="the scheduler's own answer is Linux's")
def test_allowed_cpus_are_the_schedulers() -> None:
    assert set(allowed_cpus(HostSystem()) or []) == os.sched_getaffinity(0)


GUEST = {"/proc/cpuinfo": "model name\t: x\nflags\t: fpu hypervisor\n"}
METAL = {"/proc/cpuinfo": "model name\t: x\nflags\t: fpu\n"}
ARM = {"/proc/cpuinfo": "Features\t: asimd\n"}
DMI = "/sys/class/dmi/id"

CASES = {
    "systemd first": ({**GUEST, f"{DMI}/sys_vendor": "QEMU"}, {"systemd-detect-virt": "google"}, "google"),
    "systemd on bare metal": (METAL, {"systemd-detect-virt": "none"}, "none"),
    "firmware": ({**GUEST, f"{DMI}/product_name": "Google Compute Engine"}, SILENT, "google"),
    "firmware, second field": (
        {**GUEST, f"{DMI}/product_name": "c5.large", f"{DMI}/sys_vendor": "Amazon EC2"},
        SILENT,
        "amazon",
    ),
    "firmware on Arm": ({**ARM, f"{DMI}/sys_vendor": "Amazon EC2"}, SILENT, "amazon"),
    "a cloud's bare metal": ({**METAL, f"{DMI}/sys_vendor": "Amazon EC2"}, SILENT, "none"),
    "firmware of a PC maker, guest all the same": (
        {**GUEST, f"{DMI}/sys_vendor": "Dell Inc."},
        {**SILENT, "lscpu": "Hypervisor vendor:   KVM\n"},
        "kvm",
    ),
    "no firmware": (GUEST, {**SILENT, "lscpu": "Hypervisor vendor: Microsoft\n"}, "microsoft"),
    "nothing but the flag": (GUEST, SILENT, "unknown"),
    "no flag": (METAL, SILENT, "none"),
}


@pytest.mark.parametrize(("files", "tools", "expected"), CASES.values(), ids=CASES.keys())
def test_virtualization(lay_out: LayOut, files: dict[str, str], tools: dict[str, str | None], expected: str) -> None:
    assert hypervisor(lay_out(files, tools=tools)) == expected


@pytest.mark.parametrize("files", [{}, ARM], ids=["no /proc", "Arm without firmware tables"])
def test_virtualization_that_nothing_tells(lay_out: LayOut, files: dict[str, str]) -> None:
    assert hypervisor(lay_out(files, tools=SILENT)) is None


def test_the_vm_is_asked_for_not_the_container(lay_out: LayOut) -> None:
    asked: list[tuple[str, ...]] = []
    machine = lay_out(GUEST)
    hypervisor(HostSystem(root=machine.root, tool=lambda *argv: asked.append(argv) or "kvm"))
    assert asked == [("systemd-detect-virt", "--vm")]


def test_makers_are_those_that_can_be_read(lay_out: LayOut) -> None:
    assert dmi_makers(lay_out()) == []
    machine = lay_out({f"{DMI}/sys_vendor": "Google\n", f"{DMI}/board_serial": "secret"})
    assert dmi_makers(machine) == ["Google"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-1,8,10-11", [0, 1, 8, 10, 11]),
        ("", None),
        (None, None),
        ("0-", None),
        ("a-b", None),
        ("0,x", None),
    ],
)
def test_cpu_list(text: str | None, expected: list[int] | None) -> None:
    assert cpu_list(text) == expected


def test_fields_keeps_the_first_of_a_repeated_key_and_skips_other_lines() -> None:
    assert fields("model name\t: A\nno colon\nmodel name\t: B\naddress : a:b\n") == {
        "model name": "A",
        "address": "a:b",
    }
    assert fields(None) == {}


def test_text_of_a_file_and_of_what_is_not_one(lay_out: LayOut) -> None:
    machine = lay_out({"/a/full": " 12\n", "/a/empty": "\n"})
    assert machine.text("/a/full") == "12"
    assert machine.integer("/a/full") == 12
    assert [machine.text(path) for path in ("/a/empty", "/a/absent", "/a", "/a/full/below")] == [None] * 4
    assert machine.exists("/a/full")
    assert not machine.exists("/a/absent")


def test_bytes_that_are_no_text_do_not_raise(lay_out: LayOut) -> None:
    machine = lay_out()
    machine.path("/binary").write_bytes(b"\xff\xfe1")
    assert machine.text("/binary") is not None
    assert machine.integer("/binary") is None


@pytest.mark.world
@pytest.mark.parametrize(
    ("code", "limit_s", "expected"),
    [
        ("print(' out ')", 60, "out"),
        ("import sys; print('none'); sys.exit(1)", 60, "none"),
        ("import sys; print('x', file=sys.stderr)", 60, None),
        ("import sys; sys.stdout.buffer.write(bytes([255]))", 60, "\ufffd"),
        ("import time; print('late', flush=True); time.sleep(600)", 0.5, None),
    ],
    ids=["prints", "prints and fails", "silent", "no text", "hangs"],
)
def test_run_tool(code: str, limit_s: float, expected: str | None) -> None:
    assert run_tool(sys.executable, "-c", code, limit_s=limit_s) == expected


@pytest.mark.world
def test_run_tool_that_is_not_installed() -> None:
    assert run_tool("rooflaunch-no-such-tool") is None
