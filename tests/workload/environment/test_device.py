"""Which device is used, why a GPU is not, and what is a shortage of memory."""

import errno
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from workload.contract.errors import UsageError, explain_shortage
from workload.contract.spec import Device
from workload.environment import device, gpu_code
from workload.environment.machine import HostSystem, installed_ncus

PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U16)"

TorchFor = Callable[..., None]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def torch_for(monkeypatch: pytest.MonkeyPatch) -> TorchFor:
    """A torch 2.15.0 for a CUDA version, which sees a V100-like GPU of a capability, or none."""

    def lay_out(built_for: str | None, *, capability: tuple[int, int] | None = None, targets: str = "sm_75") -> None:
        monkeypatch.setattr(torch, "__version__", "2.15.0")
        monkeypatch.setattr(torch.version, "cuda", built_for)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100-SXM2-16GB")
        monkeypatch.setattr(torch.cuda, "get_arch_list", targets.split)

    return lay_out


def machine(root: Path, *, loaded: str = "", windows: str | None = None, hidden: str | None = None) -> HostSystem:
    """`loaded`: what the kernel module says; `windows`: under WSL, what nvidia-smi prints, if it is there at all."""
    if loaded:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/version").write_text(loaded)
    if windows is not None:
        (root / "dev").mkdir()
        (root / "dev/dxg").touch()
    environ = {} if hidden is None else {"CUDA_VISIBLE_DEVICES": hidden}
    return HostSystem(root=root, environ=environ, tool=lambda *_: windows or None)


# CUDA version of torch, and what the machine shows.
OBSTACLES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "old driver": ("13.2", {"loaded": PROPRIETARY}),
    "old driver, WSL": ("13.2", {"windows": "552.22"}),
    "no driver, WSL": ("13.2", {"windows": ""}),
    "no driver": ("13.2", {}),
    "CPU build": (None, {"loaded": OPEN}),
    "CPU build, no driver seen": (None, {}),
    "hidden": ("13.2", {"loaded": OPEN, "hidden": ""}),
    "no device": ("12.6", {"loaded": PROPRIETARY}),
}


def test_what_is_in_the_way(torch_for: TorchFor, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    text = ""
    for number, (name, (built_for, here)) in enumerate(OBSTACLES.items()):
        torch_for(built_for)
        (tmp_path / str(number)).mkdir()
        found = device.cuda_obstacle(machine(tmp_path / str(number), **here))
        assert found is not None
        text += f"## {name}\n{found.reason}\n{found.hint}\na GPU is there: {found.gpu_is_there}\n\n"
    torch_for("13.2")
    colab = HostSystem(root=tmp_path, environ={"COLAB_RELEASE_TAG": "release"}, tool=lambda *_: None)
    found = device.cuda_obstacle(colab)
    assert found is not None
    golden("cuda_obstacles.txt", f"{text}## a notebook on a runtime without a GPU\n{found.reason}\n{found.hint}\n")


@pytest.mark.parametrize(
    ("is_built", "why"), [(True, "finds no Apple GPU"), (False, "is built without MPS")], ids=["no GPU", "no MPS"]
)
def test_a_mac_without_mps(is_built: bool, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: is_built)
    with pytest.raises(UsageError) as caught:
        device.choose(Device.MPS)
    assert str(caught.value) == f"no MPS device: torch {torch.__version__} {why}"
    assert caught.value.hint == "--cpu"


def test_a_mac_with_mps_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (device.choose(Device.MPS), device.choose(Device.AUTO)) == (Device.MPS, Device.MPS)


@pytest.mark.parametrize(
    ("capability", "targets", "is_refused"),
    [
        ((7, 0), "sm_75 sm_80 sm_90 compute_120", True),
        ((12, 1), "sm_75 sm_90", True),
        ((12, 1), "sm_75 compute_90", False),
        ((12, 1), "sm_75 compute_90a", True),
        ((9, 0), "sm_75 sm_90a compute_90a", False),
    ],
)
def test_a_gpu_without_code_in_the_wheel_is_refused(
    capability: tuple[int, int], targets: str, is_refused: bool, torch_for: TorchFor
) -> None:
    torch_for("13.2", capability=capability, targets=targets)
    assert (device.cuda_obstacle() is not None) is is_refused


def test_a_v100_is_told_its_flavour_before_the_run(torch_for: TorchFor) -> None:
    torch_for("13.2", capability=(7, 0), targets="sm_75 sm_80")
    with pytest.raises(UsageError) as refused:
        device.choose(Device.CUDA)
    assert str(refused.value) == (
        "no CUDA device: torch 2.15.0 has no code for Tesla V100-SXM2-16GB, compute capability 7.0: "
        "it was built for sm_75 sm_80"
    )
    assert "--flavour volta" in refused.value.hint


@pytest.mark.parametrize(
    ("capability", "knows_a_build"), [((6, 0), True), ((6, 1), True), ((7, 0), True), ((5, 2), False), ((13, 0), False)]
)
def test_a_gpu_before_turing_is_told_the_last_build_for_it(
    capability: tuple[int, int], knows_a_build: bool, torch_for: TorchFor
) -> None:
    torch_for("13.2", capability=capability, targets="sm_75 sm_80")
    obstacle = device.cuda_obstacle()
    assert obstacle
    assert (device.LAST_BUILD in obstacle.hint) is knows_a_build
    flavour = tomllib.loads((ROOT / "docker" / "images.toml").read_text(encoding="utf-8"))["volta"]
    assert (
        f"torch=={flavour['torch']} torchvision=={flavour['torchvision']} --index-url {flavour['index']}"
    ) == device.LAST_BUILD


def test_auto_does_not_pass_over_a_gpu_in_silence(torch_for: TorchFor) -> None:
    torch_for("13.2", capability=(7, 0), targets="sm_75 sm_80")
    chosen = device.choose(Device.AUTO)
    assert chosen is not Device.CUDA
    (note,) = device.unused_gpu_note(Device.AUTO, chosen)
    assert note.startswith("the NVIDIA GPU is not used: torch 2.15.0 has no code for Tesla V100-SXM2-16GB")
    assert device.unused_gpu_note(Device.CPU, Device.CPU) == [], "who asks for the CPU gets it"


@pytest.mark.parametrize(
    ("text", "free_bytes", "expected"),
    [
        ("FIND was unable to find an engine to execute this computation", 200_000_000, True),
        ("GET was unable to find an engine to execute this computation", 200_000_000, True),
        ("Unable to find a valid cuDNN algorithm to run convolution", 200_000_000, True),
        # With memory left cuDNN has no such algorithm: a fault, not a shortage.
        ("GET was unable to find an engine to execute this computation", 9_000_000_000, False),
        ("CUDNN_STATUS_ALLOC_FAILED", 9_000_000_000, True),
        ("mat1 and mat2 shapes cannot be multiplied", 200_000_000, False),
    ],
)
def test_what_cudnn_says_for_want_of_memory(
    text: str, free_bytes: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_bytes, 24_000_000_000))
    assert device.is_out_of_memory(RuntimeError(text)) is expected


PEAKS = """
import torch
from workload.contract.spec import Device
from workload.environment import device
from workload.measure.timing import process_usage
torch.ones(100_000_000).sum()
print(process_usage(0.0, 1.0).max_rss_bytes)
device.reset_peak_memory(Device.CPU)
print(process_usage(0.0, 1.0).max_rss_bytes)
"""


@pytest.mark.world
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux resets the peak of a process")
def test_memory_of_the_ceilings_is_not_the_runs() -> None:
    """The peak falls once a large buffer is freed and the peak is reset, in a process without freed memory to reuse.

    A small process starts it: Linux counts the memory of the process that starts another as memory of that one.
    """
    small = [sys.executable, "-I", "-S", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"]
    done = subprocess.run([*small, sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before - 300_000_000


def test_memory_is_that_of_the_gpu_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda index=None: index)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda index=None: {"num_alloc_retries": index})
    found = device.memory(Device.CUDA, 1)
    assert {found.peak_allocated_bytes, found.peak_reserved_bytes, found.allocator_retries} == {1}


# Capabilities of GPUs, and targets of a build.
CODE = [
    *(("7.5 8.9", "sm_75 sm_86"), ("8.9", "sm_89"), ("8.0", "sm_86"), ("9.0", "sm_89"), ("7.0 7.5", "sm_75")),
    *(("12.0 10.0", "sm_100"), ("9.0", "sm_90a"), ("12.1 12.0", "sm_120")),
    # PTX is no code: it would be compiled at the first start.
    *(("9.0", "compute_90"), ("9.0 8.0", ""), ("", "sm_75"), ("", "")),
]


def test_code_runs_on_its_own_and_later_minor_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    text = ""
    for capabilities, targets in CODE:
        missing = gpu_code.missing(capabilities.split(), targets.split())
        text += f"{targets or 'nothing'} on {capabilities or 'nothing'} lacks {' '.join(missing) or 'nothing'}\n"
    monkeypatch.setattr(torch._C, "_cuda_getArchFlags", lambda: "sm_75 sm_80 compute_80", raising=False)
    for capabilities in ("7.5 8.9", "", "7.0 8.9 9.0"):
        code = gpu_code.main(capabilities.split())
        text += f"\n{capabilities}: exit code {code}\n{capsys.readouterr().out}"
    golden("gpu_code.txt", text)


def test_build_for_the_cpu_has_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getArchFlags", lambda: None, raising=False)
    assert gpu_code.built_targets() == []
    monkeypatch.delattr(torch._C, "_cuda_getArchFlags")
    assert gpu_code.built_targets() == []
    assert gpu_code.main(["8.9"]) == 1


SHORTAGES: list[Exception] = [
    MemoryError(),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 4 bytes"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("FIND was unable to find an engine to execute this computation"),
    RuntimeError("can't start new thread"),
    BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ValueError("out of memory"),
    ImportError("No module named 'torch'"),
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
]


def test_shortages_in_words(golden: Callable[[str, str], None]) -> None:
    text = ""
    for error in SHORTAGES:
        found = explain_shortage(error, "before its first step")
        said = getattr(error, "strerror", None) or error
        why = f"{type(found).__name__}: {found}\n{found.hint}" if found else "no shortage"
        text += f"## {type(error).__name__}: {said}\n{why}\n\n"
    golden("shortages.txt", text)


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_path_comes_first_then_the_newest(tmp_path: Path) -> None:
    old = executable(tmp_path / "opt/nvidia/nsight-compute/2022.3.0/ncu")
    newer = executable(tmp_path / "opt/nvidia/nsight-compute/2024.1.1/ncu")
    newest = executable(tmp_path / "opt/nvidia/nsight-compute/2024.10.0/ncu")
    mine = executable(tmp_path / "bin/ncu")
    (tmp_path / "usr/local/cuda/bin").mkdir(parents=True)
    (tmp_path / "usr/local/cuda/bin/ncu").symlink_to(newer)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/ncu").write_text("not executable")
    programs = installed_ncus({"PATH": f"{tmp_path}/elsewhere:{tmp_path}/bin:"}, tmp_path)
    assert programs == [mine, newest, newer, old]


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert installed_ncus({}, tmp_path) == []
