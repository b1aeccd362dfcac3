"""`--gpu-index`: which GPU of several, told before torch is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workload import cli
from workload.contract.errors import ExitCode, RooflaunchError, UsageError
from workload.contract.spec import Device, RunSpec
from workload.environment import gpu_index
from workload.environment.gpu_index import ListedGpu

ROOT = Path(__file__).parents[3]
PRINTED = "0, GPU-aaaa, Disabled\n1, GPU-bbbb, [N/A]\n2, GPU-cccc, Enabled\n"
GPUS = (
    ListedGpu(index=0, uuid="GPU-aaaa", is_split=False),
    ListedGpu(index=1, uuid="GPU-bbbb", is_split=False),
    ListedGpu(index=2, uuid="GPU-cccc", is_split=True),
)


@pytest.mark.parametrize(
    ("printed", "gpus"),
    [
        (PRINTED, GPUS),
        ("", ()),
        (None, ()),
        ("No devices were found", ()),
        ("Warning: something\n1, GPU-bbbb, Disabled\n", GPUS[1:2]),
        ("NVIDIA-SMI has failed, because, it cannot\n", ()),
    ],
)
def test_gpus_that_nvidia_smi_lists(printed: str | None, gpus: tuple[ListedGpu, ...]) -> None:
    asked = []

    def tool(*argv: str, limit_s: float) -> str | None:
        asked.append((argv, limit_s))
        return printed

    assert gpu_index.listed(tool) == gpus
    query = ("nvidia-smi", "--query-gpu=index,uuid,mig.mode.current", "--format=csv,noheader")
    assert asked == [(query, 20.0)]


@pytest.mark.parametrize(("text", "index"), [("0", 0), ("11", 11), ("007", 7)])
def test_a_number_is_an_index(text: str, index: int) -> None:
    assert gpu_index.parsed(text) == index


@pytest.mark.parametrize("text", ["-1", "", "one", "1.0", "٣", "GPU-aaaa", "0,1"])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpu_index.parsed(text)
    assert str(caught.value) == f"--gpu-index must be a whole number, from 0 on; got '{text}'"
    assert caught.value.hint == "`launch doctor gpu` lists the GPUs"


@pytest.mark.parametrize("device", [Device.AUTO, Device.CUDA])
def test_an_index_asks_for_cuda(device: Device) -> None:
    assert gpu_index.required(RunSpec(device=device), 1) == RunSpec(device=Device.CUDA)


@pytest.mark.parametrize("device", [Device.CPU, Device.MPS])
def test_an_index_and_another_device(device: Device) -> None:
    with pytest.raises(UsageError) as caught:
        gpu_index.required(RunSpec(device=device), 1)
    assert str(caught.value) == f"--gpu-index chooses an NVIDIA GPU, but the device is {device}; got --gpu-index 1"
    assert caught.value.hint == "leave out --gpu-index, or use --device cuda"


def test_an_index_and_several_devices() -> None:
    with pytest.raises(UsageError) as caught:
        gpu_index.required(RunSpec(devices=2), 1)
    assert str(caught.value) == "--gpu-index chooses one GPU; got --gpu-index 1 --devices 2"
    assert caught.value.hint == "leave out --gpu-index, or choose the GPUs with CUDA_VISIBLE_DEVICES=0,1"


@pytest.mark.parametrize("visible", [None, "1", "0,1", " 1 , 0", "GPU-bbbb", "GPU-b", "GPU-zzzz,GPU-bb"])
def test_a_gpu_that_can_be_used(visible: str | None) -> None:
    gpu_index.require(1, GPUS, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(
    ("index", "gpus", "visible", "code", "message", "hint"),
    [
        (
            *(0, (), None, ExitCode.TOOL),
            "nvidia-smi shows no GPU on this machine; got --gpu-index 0",
            "leave out --gpu-index: without a GPU, runs use the CPU",
        ),
        (
            *(3, GPUS, None, ExitCode.USAGE),
            "--gpu-index must be one of the GPUs of this machine (0, 1, 2); got 3",
            "`launch doctor gpu` lists the GPUs",
        ),
        (
            *(2, GPUS, None, ExitCode.USAGE),
            "GPU 2 is in MIG mode, and its slices have no index; got --gpu-index 2",
            "CUDA_VISIBLE_DEVICES=MIG-UUID instead of --gpu-index; `nvidia-smi -L` lists the slices",
        ),
        *(
            (
                *(1, GPUS, visible, ExitCode.USAGE),
                f"CUDA_VISIBLE_DEVICES is '{visible}', which hides GPU 1; got --gpu-index 1",
                "unset CUDA_VISIBLE_DEVICES",
            )
            for visible in ("0", "", "-1", "10", "GPU-a", "MIG-GPU-bbbb/1/0", "GPU")
        ),
    ],
)
def test_a_gpu_that_cannot_be_used(
    index: int, gpus: tuple[ListedGpu, ...], visible: str | None, code: ExitCode, message: str, hint: str
) -> None:
    with pytest.raises(RooflaunchError) as caught:
        gpu_index.require(index, gpus, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert (caught.value.exit_code, str(caught.value), caught.value.hint) == (code, message, hint)


@pytest.mark.parametrize(
    ("gpus", "visible"), [(GPUS[:2], "1"), (GPUS, "GPU-bbbb")], ids=["alike", "beside a GPU in MIG mode"]
)
def test_this_process_sees_that_gpu_alone(
    gpus: tuple[ListedGpu, ...], visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_index, "listed", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    gpu_index.use(1)
    seen = {name: os.environ[name] for name in gpu_index.VARIABLES}
    assert seen == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}


@pytest.fixture
def with_gpus(tmp_path: Path) -> dict[str, str]:
    """Environment of a machine whose nvidia-smi lists `PRINTED`."""
    tools = tmp_path / "bin"
    tools.mkdir()
    tool = tools / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{PRINTED}END\n")
    tool.chmod(0o755)
    mine = {name: value for name, value in os.environ.items() if name not in gpu_index.VARIABLES}
    return {**mine, "PATH": f"{tools}{os.pathsep}{mine['PATH']}"}


def run(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the trainer's command line in `folder`."""
    command = [sys.executable, "-P", "-m", "rooflaunch", *words]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.world
def test_a_script_sees_only_that_gpu_before_it_imports_torch(with_gpus: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import json, os, pathlib, sys\n"
        f"seen = {{name: os.environ.get(name) for name in {sorted(gpu_index.VARIABLES)}}}\n"
        "pathlib.Path('seen.json').write_text(json.dumps([seen, 'torch' in sys.modules]))\n"
    )
    done = run(["script", "--gpu-index", "1", "--", "train.py"], with_gpus, tmp_path)
    assert "ended without importing torch" in done.stderr
    seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-bbbb"}
    assert json.loads((tmp_path / "seen.json").read_text()) == [seen, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --gpu-index 7", "--gpu-index must be one of the GPUs of this machine (0, 1, 2); got 7"),
        ("train --gpu-index 1 --cpu", "--gpu-index chooses an NVIDIA GPU, but the device is cpu; got --gpu-index 1"),
        (
            "ceilings --gpu-index 1 --device cpu",
            "--gpu-index chooses an NVIDIA GPU, but the device is cpu; got --gpu-index 1",
        ),
        ("profile nothing --gpu-index 2", "GPU 2 is in MIG mode, and its slices have no index; got --gpu-index 2"),
        ("script --gpu-index x -- train.py", "--gpu-index must be a whole number, from 0 on; got 'x'"),
    ],
)
def test_an_index_that_cannot_be_is_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_index, "listed", lambda: GPUS)
    for name in gpu_index.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert cli.main(words.split()) == ExitCode.USAGE
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: {message}"
    assert hint.startswith("hint: ")


@pytest.mark.world
def test_an_index_that_cannot_be_is_refused_before_torch_is_imported(with_gpus: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    done = run(["train", "--gpu-index", "7"], {**with_gpus, "PYTHONPATH": str(tmp_path)}, tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "--gpu-index must be one of the GPUs of this machine (0, 1, 2); got 7" in done.stderr
