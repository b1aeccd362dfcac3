"""Bundles of measured scripts: ceilings of the GPU that a script uses, notes, and steps that replay a CUDA graph."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workload import fake_cuda
from tests.workload.script_stage import as_a_user_does, measured
from workload.contract.record import ComplexityRecord, Spec
from workload.contract.spec import Device
from workload.run import script
from workload.run.script import ScriptRun
from workload.steps.step_work import GRAPH


@pytest.mark.parametrize(
    ("visible", "index", "expected"), [(None, 1, "1"), ("", 0, "0"), ("2,3", 1, "3"), ("GPU-a, GPU-b", 1, "GPU-b")]
)
def test_ceilings_are_those_of_the_gpu_of_the_steps_with_all_of_its_free_memory(
    visible: str | None, index: int, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = fake_cuda.replaced(monkeypatch)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    seen: list[Any] = []

    def child(*_: Any, env: dict[str, str], **__: Any) -> Any:
        seen.append((env["CUDA_VISIBLE_DEVICES"], cuda.freed))
        return SimpleNamespace(stdout="{}")

    monkeypatch.setattr(subprocess, "run", child)
    made: Any = ScriptRun.__new__(ScriptRun)
    record = SimpleNamespace(environment=SimpleNamespace(device=SimpleNamespace(index=float(index))))
    made._device, made._run, made._notes = Device.CUDA, SimpleNamespace(record=record), []
    made._output, made._cwd = tmp_path, tmp_path
    made._request = SimpleNamespace(spec=SimpleNamespace(fresh_ceilings=False))
    made._measure_ceilings("fp32")
    assert seen == [(expected, 1)]


@pytest.mark.parametrize(
    ("device", "work", "notes"),
    [
        (
            "cpu",
            {"unattributed_share": 0.06, "unattributed": {"sort": 0.06}},
            ["unattributed: 6 % of the operations' time, in sort"],
        ),
        (
            "cuda",
            {"unattributed_share": 0.06, "unattributed": {"sort": 0.06}},
            [
                (
                    "unattributed: 6 % of the operations' time, in sort; on a GPU that is mostly the host's time to"
                    " start small kernels"
                )
            ],
        ),
        ("cuda", {"uncounted": [GRAPH]}, [f"FLOP and bytes are unknown: no hook sees {GRAPH} that a step replays"]),
        ("cuda", {"uncounted": ["cholesky"]}, ["FLOP are a lower bound: no formula for cholesky"]),
    ],
)
def test_notes_on_operations_without_flop(device: str, work: dict[str, Any], notes: list[str]) -> None:
    assert (
        list(script._notes_on_work(ComplexityRecord(**work), Spec(model="t.py", batch_size=4, device=device))) == notes
    )


SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
mark = sys.argv[1] == "marked"
if mark: import rooflaunch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step(x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
batches = iter(DataLoader(TensorDataset(torch.ones(400, 4)), 4))
for _ in range(3): step(next(batches)[0])
graph = torch.cuda.CUDAGraph()
graph.capture_begin()
step(torch.ones(4, 4))
graph.capture_end()
for (x,) in batches:
    if mark:
        with rooflaunch.step(): graph.replay()
    else: graph.replay()
"""


def _with_fake_graphs(words: list[str]) -> int:
    torch.cuda.CUDAGraph = fake_cuda.FakeGraph  # type: ignore[misc,assignment]
    return as_a_user_does(words)


@pytest.mark.world
@pytest.mark.parametrize("way", ["marked", "unmarked"])
def test_script_that_captures_its_whole_step(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr("tests.workload.script_stage.as_a_user_does", _with_fake_graphs)
    ran = measured(tmp_path / "run", path, way, options=("--warmup", "1", "--iterations", "5"))
    if way == "unmarked":
        assert ran.record is None
        assert "error: the script captures its optimizer's step in a CUDA graph, and hooks do not see" in ran.err
        assert "hint: `import rooflaunch`, and `with rooflaunch.step():` around each replay" in ran.err
        return
    assert ran.record is not None, ran.err
    assert (ran.record["status"], ran.record["timing"]["step_s"]["n"]) == ("completed", 5)
    assert ran.record["timing"]["images"] == 20
    assert f"FLOP and bytes are unknown: no hook sees {GRAPH} that a step replays" in ran.record["notes"]
    assert not ran.record["complexity"]["train_flop_per_step"]
