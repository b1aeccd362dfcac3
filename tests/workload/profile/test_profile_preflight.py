from dataclasses import replace
from pathlib import Path

import pytest

from tests.workload.conftest import LayOut
from workload.contract.spec import Device
from workload.environment import machine
from workload.profile import diagnosis
from workload.profile.command import ProfileStatus
from workload.profile.diagnosis import Facts, has_capability, obstacle

READY = Facts(
    device=Device.CUDA,
    driver=True,
    ncus=(Path("/opt/ncu"),),
    admin_only=False,
    is_admin=False,
    in_container=False,
)


@pytest.mark.parametrize(
    "facts",
    [
        READY,
        replace(READY, admin_only=True, is_admin=True),
        replace(READY, admin_only=None),
        replace(READY, in_container=True),
    ],
)
def test_nothing_in_the_way(facts: Facts) -> None:
    assert obstacle(facts) is None


@pytest.mark.parametrize(
    ("facts", "reason", "hint"),
    [
        (replace(READY, device=Device.CPU), "ncu needs an NVIDIA GPU; the run was on cpu", "--profile torch"),
        (replace(READY, device=Device.MPS), "ncu needs an NVIDIA GPU; the run was on mps", "--profile torch"),
        (replace(READY, driver=False), "no NVIDIA driver is loaded on this machine", "nvidia-smi"),
        (replace(READY, ncus=()), "no ncu found on PATH", "install Nsight Compute"),
        (
            replace(READY, admin_only=True),
            "the driver restricts counters to administrators (RmProfilingAdminOnly: 1, ERR_NVGPUCTRPERM)",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            replace(READY, admin_only=True, in_container=True),
            "the driver restricts counters to administrators",
            "--cap-add=SYS_ADMIN",
        ),
        (
            replace(READY, admin_only=True, wsl=True),
            "Windows restricts the GPU's counters to administrators",
            "NVIDIA Control Panel",
        ),
        (
            replace(READY, admin_only=True, in_container=True, service=machine.SERVICES[0]),
            "the driver restricts counters to administrators",
            "--profile torch, which needs no counters",
        ),
        # The first in the order of what a user can do about it.
        (replace(READY, device=Device.CPU, driver=False, ncus=()), "ncu needs an NVIDIA GPU", "--profile torch"),
    ],
)
def test_obstacles(facts: Facts, reason: str, hint: str) -> None:
    found = obstacle(facts)
    assert found is not None
    assert str(found).startswith(reason)
    assert hint in found.hint
    assert found.status is ProfileStatus.UNAVAILABLE


def test_outside_a_container_nobody_is_told_of_docker() -> None:
    found = obstacle(replace(READY, admin_only=True))
    assert found is not None
    assert "docker" not in found.hint


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("CapEff:\t000001ffffffffff", True),
        ("CapEff:\t0000000000200000", True),
        ("CapEff:\t00000000a80425fb", False),
        ("CapEff:\t0000000000000000", False),
        ("CapPrm:\t000001ffffffffff", False),
        ("CapEff:\tnonsense", False),
        (None, False),
    ],
)
def test_capability_to_administer(line: str | None, expected: bool) -> None:
    status = line and f"Name:\tpython\n{line}\nSeccomp:\t0"
    assert has_capability(status, diagnosis.CAP_SYS_ADMIN) is expected


def test_facts_of_a_machine(lay_out: LayOut) -> None:
    machine = lay_out(
        {
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65",
            "/proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n",
            "/proc/self/status": "Name:\tpython\nCapEff:\t00000000a80425fb\n",
            "/.dockerenv": "",
        }
    )
    assert diagnosis.gather(Device.CUDA, machine) == Facts(
        device=Device.CUDA, driver=True, ncus=(), admin_only=True, is_admin=False, in_container=True
    )


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"COLAB_RELEASE_TAG": "release"}, "Colab"),
        ({"COLAB_RELEASE_TAG": "release", "KAGGLE_KERNEL_RUN_TYPE": "Batch"}, "Kaggle"),
        ({"COLAB_JUPYTER_IP": "1"}, None),
    ],
)
def test_services_that_host_notebooks(lay_out: LayOut, environ: dict[str, str], name: str | None) -> None:
    service = diagnosis.gather(Device.CUDA, lay_out(environ=environ)).service
    assert (service and service.name) == name


def test_facts_of_a_machine_without_a_driver(lay_out: LayOut) -> None:
    facts = diagnosis.gather(Device.CPU, lay_out())
    assert (facts.driver, facts.admin_only, facts.is_admin, facts.in_container) == (False, None, False, False)


def test_unrestricted_driver(lay_out: LayOut) -> None:
    machine = lay_out({"/proc/driver/nvidia/params": "RmProfilingAdminOnly: 0\n"})
    assert diagnosis.gather(Device.CUDA, machine).admin_only is False
