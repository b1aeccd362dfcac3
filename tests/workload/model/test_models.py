"""Names, construction, rejections and losses of torchvision's classifiers."""

import math
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.workload.told import told
from workload.contract import vocabulary
from workload.model import models

ROOT = Path(__file__).parents[3]


class GoogLeNetOutputs(NamedTuple):
    logits: torch.Tensor
    aux_logits2: torch.Tensor | None
    aux_logits1: torch.Tensor | None


class InceptionOutputs(NamedTuple):
    logits: torch.Tensor
    aux_logits: torch.Tensor | None


LABELS = torch.tensor([0, 1])
EVEN = torch.zeros(2, 4)  # cross entropy of even logits over 4 classes: ln 4


def test_names_are_the_classifiers_alone_in_order() -> None:
    names = models.names()
    assert {"resnet18", "vit_b_16", "inception_v3", "maxvit_t"} <= set(names)
    assert len(names) >= 80
    assert names == sorted(names)
    others = ("quantized", "fcn", "deeplab", "rcnn", "retinanet", "raft", "r3d", "mvit", "ssd", "lraspp", "s3d")
    assert [name for name in names if any(other in name for other in others)] == []


def test_a_known_model_is_itself() -> None:
    assert models.require("resnet18") == "resnet18"


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16", "googlenet", "inception_v3", "maxvit_t"])
def test_a_model_has_the_classes_asked_for(name: str) -> None:
    with torch.device("meta"):
        model = models.build(name, num_classes=7, image_size=models.NATIVE_IMAGE_SIZES.get(name, 224))
        size = models.NATIVE_IMAGE_SIZES.get(name, 224)
        assert model.eval()(torch.empty(2, 3, size, size)).shape == (2, 7)


def test_a_vit_is_built_for_the_image_size() -> None:
    with torch.device("meta"):
        model = models.build("vit_b_16", num_classes=10, image_size=64)
    assert model.get_parameter("encoder.pos_embedding").shape == (1, 4 * 4 + 1, 768)


def test_refused_models_in_words(golden: Callable[[str, str], None]) -> None:
    texts = [told(name, partial(models.require, name)) for name in ("resnet81", "VGG16", "zzz")]
    with torch.device("meta"):
        for name in ("vit_b_16", "maxvit_t"):
            build = partial(models.build, name, num_classes=10, image_size=100)
            texts.append(told(f"{name} for images of 100", build))
    rejection = models.rejection("inception_v3", 64, ValueError())
    golden("models.txt", "".join([*texts, f"## a rejection without words\n{rejection.report()}\n"]))


def test_the_list_for_launchers_is_that_of_torchvision() -> None:
    assert models.names() == vocabulary.MODELS
    # The newest that a VM runs.
    flavours = tomllib.loads((ROOT / "docker" / "images.toml").read_text())
    assert flavours["cuda"]["torchvision"] == vocabulary.TORCHVISION


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (EVEN, 1.0),
        (GoogLeNetOutputs(EVEN, EVEN, EVEN), 1.6),
        (GoogLeNetOutputs(EVEN, None, None), 1.0),
        (InceptionOutputs(EVEN, EVEN), 1.4),
        (InceptionOutputs(EVEN, None), 1.0),
    ],
)
def test_the_loss_weighs_auxiliary_heads(output: object, expected: float) -> None:
    assert models.loss(output, LABELS).item() == pytest.approx(expected * math.log(4))


def test_the_main_head_has_the_full_weight() -> None:
    sure = torch.tensor([[50.0, 0, 0, 0], [0, 50.0, 0, 0]])
    assert models.loss(InceptionOutputs(sure, EVEN), LABELS).item() == pytest.approx(0.4 * math.log(4))
    assert models.loss(InceptionOutputs(EVEN, sure), LABELS).item() == pytest.approx(math.log(4))


@pytest.mark.world
def test_importing_the_module_loads_no_torch() -> None:
    code = "import sys, workload.model.models; sys.exit('torch' in sys.modules or 'torchvision' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
