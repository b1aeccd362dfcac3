"""Bundles of measured scripts: ceilings of the GPU that a script uses, notes, and steps that replay a CUDA graph."""

import subprocess
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workload.fake_cuda import FakeCuda, FakeGraph
from tests.workload.script_stage import as_a_user_does, measured
from workload.contract.record import ComplexityRecord, Record, Spec, Status, Timing
from workload.contract.record_sections import DeviceFacts, Environment
from workload.contract.trainer import Context
from workload.measure.timing import Timeline
from workload.run import script
from workload.run.life import Life
from workload.steps.step_work import GRAPH


@pytest.mark.parametrize(
    ("visible", "index", "expected"), [("", 1, "1"), ("2,3", 1, "3"), ("GPU-a, GPU-b", 1, "GPU-b")]
)
def test_ceilings_are_those_of_the_gpu_of_the_steps_with_all_of_its_free_memory(
    visible: str, index: int, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda, seen = FakeCuda(monkeypatch), list[Any]()

    def child(*_: Any, env: dict[str, str], **__: Any) -> Any:
        seen.append((env["CUDA_VISIBLE_DEVICES"], cuda.freed))
        return SimpleNamespace(stdout='{"flop_per_s": {"fp32": {"median": 1e9}}}')

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(subprocess, "run", child)
    record = Record(
        run_id="run-1",
        status=Status.RUNNING,
        spec=Spec(model="t.py", batch_size=4, precision="fp32", device="cuda", ceilings=True),
        environment=Environment(device=DeviceFacts(index=index)),
        timing=Timing(),
    )
    with closing(Life(tmp_path, record, Timeline(), Context(), apart=tmp_path)) as life:
        life.prepare()
        # Steps of another kind need ceilings only for another precision.
        life.begin_again(record)
        life.prepare()
    assert seen == [(expected, 1)]


@pytest.mark.parametrize(
    ("device", "more"), [("cpu", ""), ("cuda", "; on a GPU that is mostly the host's time to start")]
)
def test_unattributed_time_on_a_gpu_is_that_of_the_host(device: str, more: str) -> None:
    work = ComplexityRecord(unattributed_share=0.06, unattributed={"sort": 0.06})
    [note] = script._notes_on_work(work, Spec(model="t.py", batch_size=4, device=device))
    assert note.startswith(f"unattributed: 6 % of the operations' time, in sort{more}")
    assert note.endswith("kernels" if more else "sort")


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
batches = iter(DataLoader(TensorDataset(torch.ones(int(sys.argv[2]), 4)), 4))
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
    torch.cuda.CUDAGraph = FakeGraph  # type: ignore[misc,assignment]
    return as_a_user_does(words)


@pytest.mark.world
@pytest.mark.parametrize("words", [("marked", "400"), ("unmarked", "400"), ("unmarked", "40000")])
def test_script_that_captures_its_whole_step(
    words: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr("tests.workload.script_stage.as_a_user_does", _with_fake_graphs)
    ran = measured(tmp_path / "run", path, *words, options=("--warmup", "1", "--iterations", "5"))
    if words[0] == "unmarked":
        assert (ran.code, ran.record) == (2, None)
        assert "error: the script captures its optimizer's step in a CUDA graph, and hooks do not see" in ran.err
        assert "hint: `import rooflaunch`, and `with rooflaunch.step():` around each replay" in ran.err
        return
    assert ran.record is not None, ran.err
    assert (ran.record["status"], ran.record["timing"]["step_s"]["n"]) == ("completed", 5)
    assert (ran.record["timing"]["images"], ran.record["complexity"]["train_flop_per_step"]) == (20, 0)
    assert f"FLOP and bytes are unknown: no hook sees {GRAPH} that a step replays" in ran.record["notes"]


def _with_page_faults(words: list[str]) -> int:
    script.verdict.faults_note = lambda _: ["page faults take 9 %"]
    return as_a_user_does(words)


@pytest.mark.world
def test_a_note_on_page_faults_stands_once_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.partition("graph = ")[0] + "for (x,) in batches: step(x)\n")
    monkeypatch.setattr("tests.workload.script_stage.as_a_user_does", _with_page_faults)
    ran = measured(tmp_path / "run", path, "unmarked", "400", options=("--warmup", "1", "--iterations", "5"))
    assert ran.record is not None, ran.err
    assert ran.record["notes"][-1] == "page faults take 9 %"
    assert f"{ran.out}{ran.err}".count("page faults") == 1
    assert "\n  note          page faults take 9 %\n  bundle" in f"{ran.out}{ran.err}"
