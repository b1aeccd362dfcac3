"""Traces that torch.profiler writes here, against what the trainer's own counter and torch itself say of the steps."""

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

from analysis.readers import kineto
from analysis.readers.attribution import Attribution, attribute, steps_of
from analysis.readers.operator_work import FORMULAS, Kind, kind_of
from docs.operator_kinds import COLUMNS, TARGET, rows
from workload.model import flop

# Each test trains under torch's profiler, which takes a second to start.
pytestmark = pytest.mark.slow

STEPS = 2


class Attending(nn.Module):
    """Tokens, fused attention, a product in three dimensions and one added up over a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.into = nn.Linear(16, 48)
        self.out = nn.Linear(16, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.into(self.words(tokens)).chunk(3, -1)
        heads = [part.unflatten(-1, (2, 8)).transpose(1, 2) for part in (query, key, value)]
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        seen = torch.baddbmm(seen, seen @ seen.mT, seen) + torch.einsum("bij,bkj->bi", seen, seen).unsqueeze(-1)
        return self.out(functional.layer_norm(seen, (16,)))


class Recurrent(nn.Module):
    """An LSTM over a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(8, 12, num_layers=2, batch_first=True)
        self.out = nn.Linear(12, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.cells(inputs)[0]
        return self.out(outputs[:, -1])


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=2, dilation=2, groups=4), nn.GELU(),
        nn.ConvTranspose2d(16, 8, 3, stride=2, output_padding=1, groups=2), nn.Dropout(0.1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def images() -> Tensor:
    return torch.randn(4, 3, 32, 32)


Case = tuple[Callable[[], nn.Module], Callable[[], Tensor], Callable[[nn.Module], torch.optim.Optimizer]]
CASES: dict[str, Case] = {
    "convolutions": (convolutions, images, lambda module: torch.optim.SGD(module.parameters(), momentum=0.9)),
    "foreach": (
        convolutions,
        images,
        lambda module: torch.optim.AdamW(module.parameters(), foreach=True),
    ),
    "fused": (convolutions, images, lambda module: torch.optim.AdamW(module.parameters(), fused=True)),
    # torch records no shapes of lists of more than 30 tensors.
    "many": (
        lambda: nn.Sequential(*(nn.Linear(16, 16) for _ in range(20))),
        lambda: torch.randn(8, 16),
        lambda module: torch.optim.AdamW(module.parameters(), fused=True),
    ),
    "attention": (
        Attending,
        lambda: torch.randint(0, 50, (3, 7)),
        lambda module: torch.optim.Adam(module.parameters()),
    ),
    "recurrent": (
        Recurrent,
        lambda: torch.randn(3, 5, 8),
        lambda module: torch.optim.SGD(module.parameters(), lr=0.1),
    ),
}


def traced(
    name: str, path: Path, *, record_shapes: bool = True, bf16: bool = False, with_stack: bool = False
) -> tuple[Attribution, flop.Tally, dict[str, tuple[int, float]]]:
    """What we read of a trace of two steps, what the counter says of one, and torch's own table."""
    make, batch, optimize = CASES[name]
    torch.manual_seed(0)
    module, inputs = make(), batch()
    optimizer = optimize(module)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = module(inputs).square().mean()
        loss.backward()
        optimizer.step()

    tables = []
    plan = schedule(wait=1, warmup=1, active=STEPS, repeat=1)

    def export(profiler: profile) -> None:
        profiler.export_chrome_trace(str(path))
        tables.append({row.key: (row.count, row.self_cpu_time_total / 1e6) for row in profiler.key_averages()})

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=record_shapes,
        profile_memory=with_stack,
        with_stack=with_stack,
        on_trace_ready=export,
    ) as profiler:
        for _ in range(2 + STEPS):
            step()
            profiler.step()
    counter = flop.FlopCounter()
    with counter:
        step()
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    trace = kineto.read(text, file=path.name)
    steps = steps_of(trace, None)
    assert steps is not None
    return attribute(trace, steps, device=None), counter.tally(), tables[0]


@pytest.mark.parametrize("name", CASES)
def test_flop_are_those_of_the_dispatched_operations(name: str, tmp_path: Path) -> None:
    found, tally, _ = traced(name, tmp_path / "trace.json")
    assert found.steps.number == STEPS
    assert {kind: number / STEPS for kind, number in found.flop_by_op.items() if number} == {
        kind: number for kind, number in tally.flop_by_op.items() if number
    }
    assert found.flop_by_precision == {"fp32": STEPS * tally.flop}
    # Outputs are not in a trace: their sizes follow from those of the inputs.
    # Workspaces, which oneDNN's LSTM has, are in none.
    assert found.bytes_high / STEPS == pytest.approx(tally.bytes_upper, rel=0.35 if name == "recurrent" else 0.1)
    assert found.bytes_low / STEPS <= found.bytes_high / STEPS
    assert sum(found.unattributed.values()) == 0


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_times_are_those_of_torch_itself(name: str, tmp_path: Path) -> None:
    found, _, table = traced(name, tmp_path / "trace.json.gz", with_stack=True)
    operators = {key: figures for key, figures in table.items() if key in found.listed}
    marks = [key for key in table if key not in found.listed]
    assert all(key.startswith(("ProfilerStep", "Optimizer.", "[memory]")) for key in marks), marks
    assert {key: calls for key, (calls, _) in found.listed.items()} == {
        key: calls for key, (calls, _) in operators.items()
    }
    total_s = sum(seconds for _, seconds in operators.values())
    assert found.total_s == pytest.approx(total_s, rel=0.01)
    assert found.busy_s == pytest.approx(total_s, rel=0.01)
    for key, (_, seconds) in operators.items():
        assert found.listed[key][1] == pytest.approx(seconds, rel=0.01, abs=0.002 * total_s), key


def test_autocast_is_bf16(tmp_path: Path) -> None:
    found, tally, _ = traced("convolutions", tmp_path / "trace.json", bf16=True)
    assert sum(found.flop_by_op.values()) == STEPS * tally.flop
    assert max(found.flop_by_precision, key=lambda name: found.flop_by_precision[name]) == "bf16"


def test_the_table_of_operators_is_the_trainers() -> None:
    with TARGET.open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file))
    assert table == [list(COLUMNS), *map(list, rows())], "run: python docs/operator_kinds.py"


def test_every_product_has_a_formula_here_too() -> None:
    assert set(FORMULAS) == set(flop.FORMULAS)
    assert all(kind_of(f"aten::{name}") in {Kind.PRODUCT, None} for name in FORMULAS)
