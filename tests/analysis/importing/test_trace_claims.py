"""Claims about a trace against its own shapes: in the bundle, and in the audit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import analysis
from analysis.audit import audit
from analysis.importing import UserFacts, import_file
from tests.analysis.readers.traces.kineto_traces import V100, document, operator, product_step
from tests.analysis.readers.traces.real_traces import on_gpu, trace, trainer
from workload.contract import bundle
from workload.contract.record import Record

MI300X = {"id": 0, "name": "AMD Instinct MI300X"}
RIGHT = UserFacts(model="resnet18", batch_size=512, precision="bf16", gpu="MI300X", profile_steps=1, image_size=224)


class Bert(nn.Module):
    """Tokens, positions, two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 64), nn.Embedding(128, 64)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
        self.out = nn.Linear(64, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.layers(self.places(torch.arange(tokens.shape[1])) + self.words(tokens)))
        return outputs


class Lstm(nn.Module):
    """Tokens through a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cells, self.out = nn.Embedding(50, 16), nn.LSTM(16, 24, 2, batch_first=True), nn.Linear(24, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.cells(self.words(tokens))[0])
        return outputs


def resnet18(classes: int = 1000, dtype: torch.dtype = torch.float32) -> torchvision.models.ResNet:
    """On no device: only shapes are computed."""
    return torchvision.models.resnet18(num_classes=classes).to("meta", dtype)


def images(batch: int, size: int = 64, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(batch, 3, size, size, device="meta", dtype=dtype)


def tokens(batch: int) -> Tensor:
    return torch.randint(0, 50, (batch, 12))


def made(folder: Path, text: str, given: UserFacts) -> tuple[Record, list[str]]:
    """The imported record, and what the audit repeats of it."""
    (folder / "t.json").write_text(text)
    (path,) = import_file(folder / "t.json", given, output=folder / "results")
    findings = audit(analysis.load(folder / "results"))
    return bundle.read_record(path), [found.figure for found in findings if found.rule == "labels disagree"]


@pytest.fixture(scope="module")
def resnet_on_gpu(tmp_path_factory: pytest.TempPathFactory) -> str:
    dtype = torch.bfloat16
    step = trainer(resnet18(dtype=dtype), images(512, 224, dtype))
    return on_gpu(trace(step, tmp_path_factory.mktemp("trace")), MI300X)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, []),
        ({"gpu": None, "precision": None, "image_size": None, "profile_steps": None}, []),
        ({"batch_size": 8}, ["the trace says batch size 512 (512 x 3 x 224 x 224 into the first convolution), but "]),
        ({"precision": "fp32"}, ["the trace says precision 'bf16', but the import was given 'fp32'"]),
        ({"gpu": "A100"}, ["the trace says device 'AMD Instinct MI300X', but the import was given 'A100'"]),
        ({"profile_steps": 10}, ["the trace has 1 step by Optimizer.step#SGD.step, but the import was given 10"]),
        ({"image_size": 32}, ["the trace says image size 224 (512 x 3 x 224 x 224 into the first convolution), but"]),
        (
            {"model": "resnet50"},
            ["the trace's 11689512 parameters are those of resnet18, but the import was given model"],
        ),
        ({"model": "mine"}, []),
    ],
    ids=["right", "nobody says", "batch", "precision", "device", "steps", "image size", "model", "unknown model"],
)
def test_each_claim_against_the_trace(
    stated: dict[str, Any], expected: list[str], resnet_on_gpu: str, tmp_path: Path
) -> None:
    record, repeated = made(tmp_path, resnet_on_gpu, replace(RIGHT, **stated))
    assert record.imported is not None
    contradictions = list(record.imported.contradictions or ())
    assert [text[: len(start)] for text, start in zip(contradictions, expected, strict=True)] == expected
    assert repeated == contradictions
    assert set(contradictions) <= set(record.notes or ())
    assert not any("likely" in note for note in record.notes or ())


def checkpointed(model: torchvision.models.ResNet) -> Callable[[Tensor], Tensor]:
    def forward(batch: Tensor) -> Tensor:
        seen = model.maxpool(model.relu(model.bn1(model.conv1(batch))))
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
            seen = checkpoint(layer, seen, use_reentrant=False)
        outputs: Tensor = model.fc(torch.flatten(model.avgpool(seen), 1))
        return outputs

    return forward


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "model", "expected"),
    [
        (1000, "resnet18", []),
        (10, "ResNet-18", []),
        (10, "resnet34", ["the trace's 11181642 parameters are those of resnet18, but the import was given model"]),
    ],
    ids=["as published", "other classes", "another model"],
)
def test_the_weights_tell_the_model(classes: int, model: str, expected: list[str], tmp_path: Path) -> None:
    text = trace(trainer(resnet18(classes), images(8)), tmp_path)
    _, repeated = made(tmp_path, text, UserFacts(model=model, batch_size=8))
    assert [text[: len(start)] for text, start in zip(repeated, expected, strict=True)] == expected


@pytest.mark.slow
def test_activation_checkpointing_explains_the_forward_pass_that_counts_twice(tmp_path: Path) -> None:
    model = resnet18()
    once, _ = made(tmp_path, trace(trainer(model, images(8)), tmp_path), UserFacts(model="resnet18"))
    (again := tmp_path / "again").mkdir()
    text = trace(trainer(model, images(8), forward=checkpointed(model)), again)
    twice, repeated = made(again, text, UserFacts(model="resnet18"))
    assert once.complexity is not None
    assert twice.complexity is not None
    assert once.complexity.train_flop_per_step is not None
    assert (twice.complexity.train_flop_per_step or 0) > 1.25 * once.complexity.train_flop_per_step
    remark = "gradient checkpointing computes a part of the forward pass again: 24 % of the FLOP"
    assert remark in (twice.notes or ())
    assert not any("checkpointing" in note for note in once.notes or ())
    assert repeated == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "expected"), [(2, []), (10, ["the trace has 2 forward passes, but the import was given 10 steps"])]
)
def test_forward_passes_count_the_steps_that_no_optimizer_ends(steps: int, expected: list[str], tmp_path: Path) -> None:
    model, batch = resnet18(), images(8)
    text = trace(lambda: model(batch), tmp_path, steps=2)
    _, repeated = made(tmp_path, text, UserFacts(model="resnet18", profile_steps=steps))
    assert repeated == expected


def test_bert_is_no_resnet(tmp_path: Path) -> None:
    text = trace(trainer(Bert(), tokens(6)), tmp_path)
    record, repeated = made(tmp_path, text, UserFacts(model="resnet50"))
    assert record.spec.batch_size == 6
    assert repeated == ["the trace embeds tokens and has no convolution, but the import was given model 'resnet50'"]


@pytest.mark.parametrize("module", [Lstm, Bert], ids=["lstm", "attention"])
def test_a_cpu_trace_of_recurrent_layers_is_read(module: Callable[[], nn.Module], tmp_path: Path) -> None:
    record, repeated = made(tmp_path, trace(trainer(module(), tokens(4)), tmp_path), UserFacts(model="mine"))
    assert (record.environment.device.type, record.spec.batch_size, repeated) == ("cpu", 4, [])
    assert record.complexity is not None
    assert (record.complexity.train_flop_per_step or 0) > 0
    assert record.complexity.unattributed_share == 0


def test_a_cpu_trace_is_of_no_gpu(tmp_path: Path) -> None:
    text = trace(trainer(Lstm(), tokens(4)), tmp_path)
    record, repeated = made(tmp_path, text, UserFacts(model="mine", gpu="A100"))
    assert record.environment.device.name is None
    assert repeated == ["the trace has no kernels and is from a CPU, but the import was given device 'A100'"]
    (other := tmp_path / "other").mkdir()
    record, repeated = made(other, text, UserFacts(model="mine", gpu="Xeon 8481C"))
    assert (record.environment.device.name, repeated) == ("Xeon 8481C", [])


@pytest.mark.parametrize(
    ("gpu", "is_contradicted"),
    [("V100", False), ("tesla v100-sxm2", False), ("Tesla V100-SXM2-16GB", False), ("T4", True), ("A100", True)],
)
def test_a_short_name_of_the_device_is_no_contradiction(gpu: str, is_contradicted: bool, tmp_path: Path) -> None:
    text = document(product_step(), deviceProperties=[V100])
    _, repeated = made(tmp_path, text, UserFacts(model="small", batch_size=4, gpu=gpu))
    assert bool(repeated) is is_contradicted


def test_operators_of_a_gpu_without_its_kernels_are_still_refused(tmp_path: Path) -> None:
    events = [*product_step()[:2], operator("aten::cudnn_convolution", 50, 5)]
    with pytest.raises(Exception, match="its operators ran on a GPU"):
        made(tmp_path, document(events), UserFacts(model="small", batch_size=4))
