import pytest

from tests.workload.conftest import SILENT, LayOut
from workload.environment.machine import HostSystem, dmi_makers, hypervisor

GUEST = {"/proc/cpuinfo": "model name\t: x\nflags\t: fpu hypervisor\n"}
METAL = {"/proc/cpuinfo": "model name\t: x\nflags\t: fpu\n"}
ARM = {"/proc/cpuinfo": "Features\t: asimd\n"}
DMI = "/sys/class/dmi/id"

CASES = {
    "systemd first": (
        {**GUEST, f"{DMI}/sys_vendor": "QEMU"},
        {"systemd-detect-virt": "google"},
        "google",
    ),
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
