"""`--gpu-index`: which GPU of several, told before torch is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.workload.told import told
from workload import cli
from workload.contract.errors import ExitCode
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


@pytest.mark.parametrize("device", [Device.AUTO, Device.CUDA])
def test_an_index_asks_for_cuda(device: Device) -> None:
    assert gpu_index.required(RunSpec(device=device), 1) == RunSpec(device=Device.CUDA)


@pytest.mark.parametrize("visible", [None, "1", "0,1", " 1 , 0", "GPU-bbbb", "GPU-b", "GPU-zzzz,GPU-bb"])
def test_a_gpu_that_can_be_used(visible: str | None) -> None:
    gpu_index.require(1, GPUS, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})


def test_wrong_indexes_in_words(golden: Callable[[str, str], None]) -> None:
    def require(index: int, gpus: tuple[ListedGpu, ...], visible: str | None) -> None:
        gpu_index.require(index, gpus, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})

    texts = [
        *(told(text, partial(gpu_index.parsed, text)) for text in ("-1", "", "one", "1.0", "٣", "GPU-aaaa", "0,1")),
        *(
            told(spec.device, partial(gpu_index.required, spec, 1))
            for spec in (RunSpec(device=Device.CPU), RunSpec(device=Device.MPS), RunSpec(devices=2))
        ),
        told("no GPU", partial(require, 0, (), None)),
        told("no such GPU", partial(require, 3, GPUS, None)),
        told("MIG mode", partial(require, 2, GPUS, None)),
        *(
            told(f"hidden by {visible!r}", partial(require, 1, GPUS, visible))
            for visible in ("0", "", "-1", "10", "GPU-a", "MIG-GPU-bbbb/1/0", "GPU")
        ),
    ]
    golden("gpu_index.txt", "".join(texts))


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


REFUSED = [
    "train --gpu-index 7",
    "train --gpu-index 1 --cpu",
    "ceilings --gpu-index 1 --device cpu",
    "profile nothing --gpu-index 2",
    "script --gpu-index x -- train.py",
]


def test_every_command_refuses_an_index_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    monkeypatch.setattr(gpu_index, "listed", lambda: GPUS)
    for name in gpu_index.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    text = ""
    for words in REFUSED:
        assert cli.main(words.split()) == ExitCode.USAGE
        text += f"## {words}\n{capsys.readouterr().err}\n"
    golden("gpu_index_commands.txt", text)


@pytest.mark.world
def test_an_index_that_cannot_be_is_refused_before_torch_is_imported(with_gpus: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    done = run(["train", "--gpu-index", "7"], {**with_gpus, "PYTHONPATH": str(tmp_path)}, tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "--gpu-index must be one of the GPUs of this machine (0, 1, 2); got 7" in done.stderr
