"""Cheats in real scripts: each is refused, and the same script is not."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.duel.referee import judge_work
from tests.workload.script_stage import measured
from workload.contract import bundle
from workload.contract.changes import Effect
from workload.contract.record import Record
from workload.contract.trainer import Context

pytestmark = [
    pytest.mark.world,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "darwin", reason="copies a process that has loaded torch"),
]
SCRIPT = """\
import itertools, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

cheat = sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(256, 32), torch.arange(256) % 10)
loader = DataLoader(data, batch_size=8 if cheat == "half the batch" else 16)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
if cheat == "fewer gradients":
    model[0].requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if cheat == "clock":
    real = time.perf_counter
    time.perf_counter = lambda: real() / 2
kept = None
for epoch in range(8):
    for number, (samples, labels) in enumerate(loader):
        if cheat == "skipped batches" and number % 2:
            continue
        if cheat == "cached batch":
            kept = kept or (samples, labels)
            samples, labels = kept
        if cheat == "counted twice":
            samples, labels = torch.cat([samples, samples]), torch.cat([labels, labels])
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=cheat == "bf16"):
            output = model(samples)
        loss = nn.functional.cross_entropy(output.float(), labels)
        if cheat == "no backward pass" and number % 2:
            loss = loss.detach().requires_grad_()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Record]:
    folder = tmp_path_factory.mktemp("cheats")
    (script := folder / "train.py").write_text(SCRIPT)
    context = Context(keeps_losses=True).to_argument()

    def run(cheat: str) -> Record:
        place: Path = folder / (cheat.replace(" ", "_") or "original")
        place.mkdir(exist_ok=True)
        ran = measured(place, script, cheat, options=("--warmup", "2", "--iterations", "20", "--context", context))
        assert ran.folder, ran.err
        return bundle.read_record(ran.folder)

    return run


@pytest.fixture(scope="module")
def original(run: Callable[[str], Record]) -> Record:
    return run("")


@pytest.mark.parametrize(
    ("cheat", "reason"),
    [
        ("half the batch", "a step is given 8 samples, and 16 samples in the original"),
        ("skipped batches", "the model gets fewer, or is another one"),
        ("cached batch", "samples are trained again: in a few steps, different ones are 25 %"),
        ("counted twice", "samples are trained again: in a few steps, different ones are 50 %"),
        ("fewer gradients", "its backward pass is not whole"),
        ("no backward pass", "losses are not close"),
        ("bf16", "more of the FLOP are computed in bf16 or a lower precision, which is not declared"),
        ("clock", "the script replaced time.perf_counter"),
    ],
)
def test_cheat_is_refused(cheat: str, reason: str, original: Record, run: Callable[[str], Record]) -> None:
    ruling = judge_work([original, original], [run(cheat)], effect=Effect.ROUNDING)

    assert reason in "; ".join(ruling.refusals)


def test_same_script_is_not_refused(original: Record, run: Callable[[str], Record]) -> None:
    ruling = judge_work([original], [run("nothing")], effect=Effect.SAME)

    assert ruling.refusals == ()
    assert ruling.losses.startswith("same to the bit")


def test_samples_that_are_trained_twice_count_once(original: Record, run: Callable[[str], Record]) -> None:
    assert run("counted twice").spec.batch_size == original.spec.batch_size == 16


def test_kept_losses_are_no_memory_that_grows(original: Record) -> None:
    assert original.step_memory
    assert not original.step_memory.growth_bytes
