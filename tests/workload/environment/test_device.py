import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from workload.contract.errors import UsageError
from workload.contract.spec import Device
from workload.environment import device
from workload.environment.machine import HostSystem

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


OBSTACLES = {
    "old driver": (
        "13.2",
        {"loaded": PROPRIETARY},
        "torch 2.15.0 for CUDA 13.2 needs NVIDIA driver 580 or newer, but this machine has 550.90.07",
        "upgrade the driver, or install a torch built for an older CUDA; --cpu runs without a GPU",
        True,
    ),
    "old driver, WSL": (
        "13.2",
        {"windows": "552.22"},
        "torch 2.15.0 for CUDA 13.2 needs NVIDIA driver 580 or newer, but this machine has 552.22",
        "upgrade the driver, or install a torch built for an older CUDA; --cpu runs without a GPU",
        True,
    ),
    "no driver, WSL": (
        "13.2",
        {"windows": ""},
        "torch 2.15.0 finds no NVIDIA driver",
        (
            "install NVIDIA's driver on Windows, not inside WSL, if there is a GPU (`nvidia-smi` shows "
            "it); --cpu runs without a GPU"
        ),
        True,
    ),
    "no driver": (
        "13.2",
        {},
        "torch 2.15.0 finds no NVIDIA driver",
        ("install NVIDIA's driver here, if there is a GPU (`nvidia-smi` shows it); --cpu runs without a GPU"),
        False,
    ),
    "CPU build": (
        None,
        {"loaded": OPEN},
        "torch 2.15.0 is a build without CUDA, although NVIDIA driver 580.65.06 is loaded",
        "install a torch built for CUDA; --cpu runs without a GPU",
        True,
    ),
    "CPU build, no driver seen": (
        None,
        {},
        "torch 2.15.0 is a build without CUDA",
        "install a torch built for CUDA, if there is an NVIDIA GPU; --cpu runs without a GPU",
        False,
    ),
    "hidden": (
        "13.2",
        {"loaded": OPEN, "hidden": ""},
        "torch 2.15.0 sees no GPU: CUDA_VISIBLE_DEVICES is ''",
        "unset CUDA_VISIBLE_DEVICES",
        True,
    ),
    "no device": (
        "12.6",
        {"loaded": PROPRIETARY},
        "torch 2.15.0 for CUDA 12.6 sees no GPU, although NVIDIA driver 550.90.07 is loaded",
        ("`nvidia-smi` shows the GPUs of the driver; in a container use --gpus all; --cpu runs without a GPU"),
        True,
    ),
}


@pytest.mark.parametrize(
    ("built_for", "here", "reason", "hint", "gpu_is_there"), OBSTACLES.values(), ids=OBSTACLES.keys()
)
def test_what_is_in_the_way(
    built_for: str | None,
    here: dict[str, Any],
    reason: str,
    hint: str,
    gpu_is_there: bool,
    torch_for: TorchFor,
    tmp_path: Path,
) -> None:
    torch_for(built_for)
    expected = device.Obstacle(reason=reason, hint=hint, gpu_is_there=gpu_is_there)
    assert device.cuda_obstacle(machine(tmp_path, **here)) == expected


def test_a_notebook_on_a_runtime_without_a_gpu(torch_for: TorchFor, tmp_path: Path) -> None:
    torch_for("13.2")
    colab = HostSystem(root=tmp_path, environ={"COLAB_RELEASE_TAG": "release"}, tool=lambda *_: None)
    obstacle = device.cuda_obstacle(colab)
    assert obstacle is not None
    assert obstacle.reason == "torch 2.15.0 finds no NVIDIA driver"
    assert obstacle.hint == "Runtime > Change runtime type > T4 GPU; --cpu runs without a GPU"


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
