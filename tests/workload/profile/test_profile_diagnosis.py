"""Why a profile is impossible: facts of the machine before the pass, and the output of an ncu that failed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workload.conftest import LayOut
from workload.contract.spec import Device
from workload.environment.machine import SERVICES
from workload.profile import diagnosis
from workload.profile.diagnosis import Facts, explain, has_capability, obstacle

READY = Facts(
    device=Device.CUDA, driver=True, ncus=(Path("/opt/ncu"),), admin_only=False, is_admin=False, in_container=False
)
RESTRICTED = replace(READY, admin_only=True)
OBSTACLES = {
    "Apple GPU": replace(READY, device=Device.MPS),
    "no driver": replace(READY, driver=False),
    "no ncu": replace(READY, ncus=()),
    "restricted": RESTRICTED,
    "restricted, in a container": replace(RESTRICTED, in_container=True),
    "restricted, under WSL": replace(RESTRICTED, wsl=True),
    "restricted, on a hosted notebook": replace(RESTRICTED, in_container=True, service=SERVICES[0]),
    # The first in the order of what a user can do about it.
    "everything": replace(RESTRICTED, device=Device.CPU, driver=False, ncus=()),
}
NOTHING = "==WARNING== No kernels were profiled.\n"
FINE = "==PROF== Connected to process 9012 (/usr/bin/python3.12)\n"
PERMISSION = f"""{FINE}==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance \
Counters on the target device 0.
{NOTHING}"""
# What ncu printed: a cause stands before its consequences.
OUTPUTS = {
    "permission": PERMISSION,
    "another tool": "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool "
    f"(like DCGM) is concurrently collecting profiling data.\n{NOTHING}",
    "lock file": "==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock.\n",
    "old driver": f"==ERROR== Cuda driver is not compatible with Nsight Compute.\n{NOTHING}",
    "unknown GPU": "==ERROR== Profiling is not supported on device 0. To find out supported GPUs refer --list-chips.\n",
    "stub of CUDA": "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).\n"
    f"==ERROR== The application returned an error code (1).\n{NOTHING}",
    "no kernel": FINE + NOTHING,
    "no range": "==WARNING== No ranges were profiled.\n",
    "our own errors, the last counts": "error: one\nhint: first\nerror: resnet50 does not fit\nhint: --batch-size 256\n"
    f"==ERROR== The application returned an error code (7).\n{NOTHING}",
    "a traceback of others": "RuntimeError: error: no\n==ERROR== LaunchFailed\n",
}


def test_obstacles_and_failures_are_explained(golden: Callable[[str, str], None]) -> None:
    found = {f"obstacle: {name}": obstacle(facts) for name, facts in OBSTACLES.items()}
    found |= {f"output: {name}": explain(output, READY) for name, output in OUTPUTS.items()}
    found["output: permission, under WSL"] = explain(PERMISSION, replace(READY, wsl=True))
    reports = {name: None if error is None else error.report() for name, error in found.items()}
    golden("diagnosis.txt", "".join(f"## {name}\n{report}\n" for name, report in reports.items()))


@pytest.mark.parametrize(
    "facts",
    [READY, replace(RESTRICTED, is_admin=True), replace(READY, admin_only=None), replace(READY, in_container=True)],
)
def test_nothing_in_the_way(facts: Facts) -> None:
    assert obstacle(facts) is None
    assert explain(f'{FINE}==PROF== Profiling "sgemm" - 0: 0%....50%....100% - 4 passes\n', facts) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("CapEff:\t000001ffffffffff", True),
        ("CapEff:\t0000000000200000", True),
        ("CapEff:\t00000000a80425fb", False),
        ("CapPrm:\t000001ffffffffff", False),
        ("CapEff:\tnonsense", False),
        (None, False),
    ],
)
def test_capability_to_administer(line: str | None, expected: bool) -> None:
    status = line and f"Name:\tpython\n{line}\nSeccomp:\t0"
    assert has_capability(status, diagnosis.CAP_SYS_ADMIN) is expected


def test_facts_of_a_machine(lay_out: LayOut) -> None:
    none = Facts(device=Device.CPU, driver=False, ncus=(), admin_only=None, is_admin=False, in_container=False)
    assert diagnosis.gather(Device.CPU, lay_out()) == none
    files = {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65",
        "/proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n",
        "/proc/self/status": "Name:\tpython\nCapEff:\t00000000a80425fb\n",
        "/.dockerenv": "",
    }
    found = replace(none, device=Device.CUDA, driver=True, admin_only=True, in_container=True)
    assert diagnosis.gather(Device.CUDA, lay_out(files)) == found
    unrestricted = lay_out({"/proc/driver/nvidia/params": "RmProfilingAdminOnly: 0\n"})
    assert diagnosis.gather(Device.CUDA, unrestricted).admin_only is False


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
