"""Changes in real scripts: each is made, nothing else changes, and the losses change as the table says."""

import json
import os
import random
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.workload.script_stage import Ran, measured
from workload.contract.changes import Effect, Likeness, changes_of, compare_losses, distance_of_seeds, parse
from workload.contract.errors import ExitCode, UsageError
from workload.steps.changes import ALREADY, Changes, Made, _change_arguments

pytestmark = [
    pytest.mark.world,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "darwin", reason="copies a process that has loaded torch"),
]
ROOT = Path(__file__).parents[3]
# Writes in its second step what the step really does. Its shuffle and weights have a seed.
SCRIPT = """\
import json, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils._python_dispatch import TorchDispatchMode

class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.add(operation._schema.name.removeprefix("aten::"))
        return operation(*args, **(kwargs or {}))

class Data(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        return torch.randn(3, 8, 8, generator=random), index % 10, os.getpid()

torch.manual_seed(0)
torch.set_num_threads(1)
loader = DataLoader(Data(), batch_size=8, shuffle=True)
convolution = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
model = nn.Sequential(*convolution, nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 36, 10))
optimizer = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=1e-3)
dtypes = []
model[-1].register_forward_hook(lambda module, inputs, output: dtypes.append(str(output.dtype)))
steps = 0
for epoch in range(4):
    for images, labels, processes in loader:
        optimizer.zero_grad()
        output = model(images)
        nn.functional.cross_entropy(output, labels).backward()
        steps += 1
        if steps == 2:
            with Operations() as seen:
                optimizer.step()
            optimizer.zero_grad()
            found = {
                "workers": set(processes.tolist()) != {os.getpid()},
                "prefetch": loader.prefetch_factor,
                "persistent": loader.persistent_workers,
                "update": sorted(name for name in seen.names if "fused" in name or name in ("_foreach_sqrt", "sqrt")),
                "gradients": model[0].weight.grad is not None,
                "strides": model[0].weight.stride(),
                "dtypes": [dtypes[-1], str(output.dtype)],
                "threads": torch.get_num_threads(),
                "flush": float(torch.tensor([1e-40]) * 1) == 0,
                "compiled": model._compiled_call_impl is not None,
                "variables": [name for name in os.environ if name.startswith("MALLOC_")],
                "random": torch.rand(1).item(),
            }
            json.dump(found, open("found.json", "w"))
        else:
            optimizer.step()
"""


class Stream(torch.utils.data.IterableDataset[int]):
    """Data without an index."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


USUAL = {
    "workers": False, "prefetch": None, "persistent": False, "update": ["sqrt"], "gradients": False,
    "strides": [27, 9, 3, 1], "dtypes": ["torch.float32"] * 2, "threads": 1, "flush": False, "compiled": False,
    "variables": [],
}  # fmt: skip
FEW = ("--warmup", "1", "--iterations", "12")


def run(folder: Path, change: str = "", *, optimizer: str = "Adam") -> Ran:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    options = (*FEW, "--change", change) if change else FEW
    return measured(folder, folder / "train.py", optimizer, options=options)


def found_in(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "found.json").read_text()))


def losses_of(ran: Ran) -> list[str]:
    assert ran.record
    return list(ran.record["spec"]["script"]["losses"])


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """What the script does, and its losses, with a change of a variable of glibc: nothing else in it changes."""
    folder = tmp_path_factory.mktemp("usual")
    (folder / "train.py").write_text(SCRIPT)
    change = "MALLOC_MMAP_MAX_=0"
    words = ["-P", "-m", "rooflaunch", "script", *FEW, "--no-ceilings", "--change", change, "--", "train.py", "Adam"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_MMAP_MAX_": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(next(folder.glob("results/*/run.json")).read_text())
    found = found_in(folder)
    assert found.pop("variables") == ["MALLOC_MMAP_MAX_"]
    return {**found, "variables": []}, record["spec"]["script"]["losses"]


BF16 = {"dtypes": ["torch.bfloat16", "torch.float32"]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            "DataLoader(num_workers=1, prefetch_factor=3); zero_grad(set_to_none=False)",
            {"workers": True, "prefetch": 3, "gradients": True},
        ),
        (
            "optimizer(fused=True); channels_last; torch.set_num_threads(2); torch.set_flush_denormal(True)",
            {"update": ["_fused_adam_"], "strides": [27, 1, 9, 3], "threads": 2, "flush": True},
        ),
        # What the script gets is fp32, as its loss would be inside autocast.
        ("optimizer(foreach=True); autocast(bfloat16)", {"update": ["_foreach_sqrt"], **BF16}),
        pytest.param("torch.compile", {"compiled": True}, marks=pytest.mark.night(part="scripts")),
    ],
)
def test_change_is_made_and_nothing_else(
    change: str, expected: dict[str, Any], usual: tuple[dict[str, Any], list[str]], tmp_path: Path
) -> None:
    ran = run(tmp_path, change)
    assert ran.code == 0, ran.err
    found, random = found_in(tmp_path), usual[0]["random"]
    assert found == {**USUAL, **expected, "random": random}
    compared = compare_losses([losses_of(ran)], [usual[1]])
    effects = {each.row.effect for each in changes_of(ran.record and ran.record["spec"]["change"])}
    allowed = [Likeness.SAME] if effects == {Effect.SAME} else [Likeness.SAME, Likeness.CLOSE]
    assert compared.likeness in allowed, compared.text
    assert compared.number == len(losses_of(ran)) >= 13


def test_seeds_are_shifted_and_nothing_else(usual: tuple[dict[str, Any], list[str]], tmp_path: Path) -> None:
    ran = run(tmp_path, "seeds(shift=5)")
    (tmp_path / "other").mkdir()
    (script := tmp_path / "other" / "train.py").write_text(SCRIPT.replace("manual_seed(0)", "manual_seed(5)"))
    written = measured(tmp_path / "other", script, "Adam", options=(*FEW, "--change", "torch.set_flush_denormal(True)"))

    found = found_in(tmp_path)
    assert {**found, "random": 0.0} == {**USUAL, "random": 0.0}
    assert found["random"] == found_in(tmp_path / "other")["random"] != usual[0]["random"]
    assert losses_of(ran) == losses_of(written)
    seeds = distance_of_seeds(usual[1], [losses_of(ran)])
    assert seeds
    assert seeds.largest > 0.01


def test_seeds_of_every_library_are_shifted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    draws: dict[str, Callable[[], float]] = {
        "torch": lambda: torch.manual_seed(seed) and torch.rand(1).item(),
        "random": lambda: random.seed(a=seed) or random.random(),
        "numpy": lambda: np.random.seed(seed=seed) or np.random.rand(),  # noqa: NPY002
        "generator": lambda: np.random.default_rng(seed).random(),
    }
    seed = 7
    expected = {name: draw() for name, draw in draws.items()}
    for owner, name in (
        (torch, "manual_seed"),
        (random, "seed"),
        (np.random, "seed"),
        (np.random, "default_rng"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, getattr(torch.cuda, name))
    changed = Changes("seeds(shift=3)", tmp_path)
    changed._shift_seeds(changes_of("seeds(shift=3)")[0])
    random.seed()  # no seed of the script's own
    with pytest.raises(UsageError, match="'seeds\\(shift=3\\)' has no effect: the script sets no seed"):
        changed.settle(set())
    seed = 4

    assert {name: draw() for name, draw in draws.items()} == expected
    assert changed.settle(set()) == []


def test_losses_and_constructors_are_recorded(usual: tuple[dict[str, Any], list[str]], tmp_path: Path) -> None:
    assert usual[0] == {**USUAL, "random": usual[0]["random"]}
    ran = run(tmp_path, "optimizer(fused=True)")
    assert ran.record
    script = ran.record["spec"]["script"]
    lines = SCRIPT.splitlines()
    at = {name: next(n for n, line in enumerate(lines, 1) if line.startswith(name)) for name in ("loader", "optimizer")}
    assert script["constructors"] == [
        {
            "name": "DataLoader", "line": f"train.py:{at['loader']}", "is_in_step": True, "num_workers": 0,
            "persistent_workers": False, "pin_memory": False,
        },
        {"name": "Adam", "line": f"train.py:{at['optimizer']}", "is_in_step": True, "fused": True},
    ]  # fmt: skip
    assert script["settings"]["torch.set_num_threads({})"] == "1"
    # The first loss of ten classes, before any update, is near log(10) = 2.30.
    assert 1.8 < float.fromhex(script["losses"][0]) < 3.0
    unchanged = run(tmp_path / "unchanged", optimizer="RMSprop").record
    assert unchanged is not None
    assert "losses" not in unchanged["spec"]["script"]
    other = unchanged["spec"]["script"]["constructors"][1]
    assert (other["name"], other["lacks"]) == ("RMSprop", ["fused"])


@pytest.mark.parametrize(
    ("change", "arguments", "expected", "why"),
    [
        ("DataLoader(num_workers=2)", {"num_workers": 2}, {}, ALREADY),
        (
            "DataLoader(num_workers=2)",
            {"dataset": Stream()},
            {},
            "its data set is iterable, and each worker would repeat",
        ),
        ("DataLoader(num_workers=4)", {"dataset": Stream(), "num_workers": 2}, {"num_workers": 4}, ""),
        (
            "DataLoader(num_workers=0)",
            {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True},
            {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False},
            "",
        ),
        ("DataLoader(prefetch_factor=4)", {}, {}, "it has no workers: DataLoader(num_workers=2)"),
        ("DataLoader(prefetch_factor=2)", {"num_workers": 1}, {}, ALREADY),
        ("DataLoader(persistent_workers=True)", {}, {}, "it has no workers"),
        ("DataLoader(pin_memory=True)", {}, {}, "there is no NVIDIA GPU"),
        ("optimizer(fused=True)", {"foreach": True, "fused": None}, {"fused": True, "foreach": None}, ""),
        ("optimizer(foreach=True)", {"foreach": None}, {"foreach": True}, ""),
        ("optimizer(fused=True)", {"foreach": None}, {}, "Kind has no argument fused"),
    ],
)
def test_arguments_of_constructors(
    change: str, arguments: dict[str, Any], expected: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    usual = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "pin_memory": False}
    given = {**(usual if change.startswith("DataLoader") else {}), **arguments}
    changed, made = dict(given), Made(reference=weakref.ref(Stream()), line="train.py:1")
    [parsed] = changes_of(parse(change))
    _change_arguments(changed, made, [parsed], "Kind")
    assert changed == {**given, **expected}
    assert made.refused.get(parsed, "").startswith(why)
    assert bool(made.refused) == bool(why)


@pytest.mark.parametrize(
    ("change", "words", "why"),
    [
        ("optimizer(fused=True)", ("RMSprop",), "RMSprop has no argument fused"),
        ("zero_grad(set_to_none=True)", ("Adam",), "the script does it already"),
    ],
)
def test_change_without_effect_fails(change: str, words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    ran = run(tmp_path, change, optimizer=words[0])
    assert ran.code == ExitCode.USAGE
    assert f"error: --change '{change}' has no effect: " in ran.err
    assert f": {why}\n" in ran.err
    assert ran.record is None


LOADER = "DataLoader(data, 8)"
OTHER = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4))
used = {used}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{then}
for step in range(30):
    for (batch,) in used:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("change", "used", "then", "why"),
    [
        # Only a loader of the validation would change.
        ("DataLoader(num_workers=2)", "[(torch.ones(8, 4),)]", "other = DataLoader(data)", "uses no DataLoader"),
        ("optimizer(foreach=True)", LOADER, "optimizer.param_groups[0]['foreach'] = None", "sets it to False"),
        ("torch.set_num_threads(2)", LOADER, "torch.set_num_threads(1)", "the script sets it to 1 afterwards"),
        ("channels_last", LOADER, "", "the model has no parameter of four dimensions"),
        ("torch.set_flush_denormal(True)", LOADER, "torch.set_flush_denormal(True)", "the script does it already"),
    ],
)  # fmt: skip
def test_change_that_misses_the_step_fails(change: str, used: str, then: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OTHER.format(used=used, then=then))
    ran = measured(tmp_path, tmp_path / "train.py", options=(*FEW, "--change", change))
    assert ran.code == ExitCode.USAGE, ran.err
    assert why in ran.err
