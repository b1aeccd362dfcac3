from dataclasses import replace
from pathlib import Path

import pytest

from workload.contract.spec import Device
from workload.profile.command import ProfileStatus
from workload.profile.diagnosis import Facts, explain, own_error

HOST = Facts(
    device=Device.CUDA, driver=True, ncus=(Path("/opt/ncu"),), admin_only=False, is_admin=False, in_container=False
)

PERMISSION = """==PROF== Connected to process 9012 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 9012
==WARNING== No kernels were profiled.
"""
DCGM = """==ERROR== An error was reported by the driver:
==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is \
concurrently collecting profiling data.
==WARNING== No kernels were profiled.
"""
LOCK = """==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock. Please check that this process has write \
permissions on this file.
"""
TOO_LARGE = """error: resnet50 at batch size 512 in fp32 does not fit into the cuda's memory
hint: --batch-size 256
==ERROR== The application returned an error code (7).
==WARNING== No kernels were profiled.
"""


@pytest.mark.parametrize(
    ("output", "status", "reason", "hint"),
    [
        (PERMISSION, "unavailable", "the driver restricts counters to administrators", "NVreg_Restrict"),
        (DCGM, "unavailable", "another tool uses the GPU's counters", "dcgmi profile --pause"),
        (LOCK, "unavailable", "the lock file of another user's ncu", "TMPDIR=$HOME"),
        (
            "==ERROR== Cuda driver is not compatible with Nsight Compute.\n==WARNING== No kernels were profiled.\n",
            "unavailable",
            "this ncu needs a newer NVIDIA driver",
            "upgrade the driver",
        ),
        (
            "==ERROR== Profiling is not supported on device 0. To find out supported GPUs refer --list-chips option.\n",
            "unavailable",
            "this ncu does not support this GPU",
            "--list-chips",
        ),
        (
            (
                "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).\n"
                "==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\n"
            ),
            "unavailable",
            "ncu finds no CUDA driver",
            "nvidia-smi",
        ),
        (
            "==PROF== Connected to process 1 (/usr/bin/python3.11)\n==WARNING== No kernels were profiled.\n",
            "failed",
            "ncu profiled no kernel",
            "ncu/ncu.log",
        ),
        ("==WARNING== No ranges were profiled.\n", "failed", "ncu profiled no kernel", "ncu/ncu.log"),
        (
            TOO_LARGE,
            "failed",
            "the profiled process: resnet50 at batch size 512 in fp32 does not fit",
            "--batch-size 256",
        ),
        ("==ERROR== LaunchFailed\n", "failed", "ncu reports: LaunchFailed", "ncu/ncu.log"),
    ],
)
def test_cause_is_named_before_its_consequences(output: str, status: str, reason: str, hint: str) -> None:
    found = explain(output, HOST)
    assert found is not None
    assert found.status == ProfileStatus(status)
    assert str(found).startswith(reason)
    assert hint in found.hint


def test_in_a_container_the_capability_is_the_cure() -> None:
    found = explain(PERMISSION, replace(HOST, in_container=True))
    assert found is not None
    assert "--cap-add=SYS_ADMIN" in found.hint


def test_under_wsl_windows_has_the_switch() -> None:
    found = explain(PERMISSION, replace(HOST, wsl=True))
    assert found is not None
    assert str(found) == "Windows restricts the GPU's counters to administrators (ERR_NVGPUCTRPERM)"
    assert "NVIDIA Control Panel" in found.hint
    assert "NVreg" not in found.hint


def test_good_output_needs_no_explanation() -> None:
    fine = '==PROF== Connected to process 1\n==PROF== Profiling "sgemm" - 0: 0%....50%....100% - 4 passes\n'
    assert explain(fine, HOST) is None


def test_only_the_last_of_our_own_errors_with_its_hint() -> None:
    found = own_error("error: one\nhint: first\nerror: two\nhint: second\n")
    assert found is not None
    assert (str(found), found.hint) == ("the profiled process: two", "second")
    assert own_error("RuntimeError: error: no\n") is None
