"""Names, construction and loss of the models. Imports torch and torchvision only when called."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from workload.contract.errors import UsageError
from workload.contract.spec import IMAGENET_IMAGE_SIZE
from workload.contract.vocabulary import unknown_model

if TYPE_CHECKING:
    import torch
    from torch import nn

# Models whose own initialisation draws a truncated normal for every weight, which takes seconds and is deprecated.
# Training speed does not depend on it.
SLOW_INITIALISATION = ("googlenet", "inception_v3")
# Auxiliary heads weigh 0.3 each in GoogLeNet (Szegedy et al. 2014, section 5, https://arxiv.org/abs/1409.4842)
# and 0.4 in the fine-tuning recipe for Inception v3 (https://docs.pytorch.org/tutorials/beginner/finetuning_torchvision_models_tutorial.html).
GOOGLENET_AUX_WEIGHT = 0.3
INCEPTION_AUX_WEIGHT = 0.4
# Image sizes other than 224: Inception's auxiliary head needs 5x5 positions (torchvision/models/inception.py).
NATIVE_IMAGE_SIZES = {"inception_v3": 299}


def names() -> list[str]:
    """Names of all torchvision classification models, in alphabetical order."""
    from torchvision import models  # noqa: PLC0415 - seconds to import, and `--help` needs no model

    return sorted(models.list_models(module=models))


def require(name: str) -> str:
    """Return `name`. Raises `UsageError` with the nearest names if there is no such model."""
    known = names()
    if name not in known:
        raise unknown_model(name, known)
    return name


def build(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    """Build an untrained model on the current default device.

    Raises `UsageError` for an unknown name or an `image_size` (edge in pixels) that the model cannot be built for.
    """
    from torchvision import models  # noqa: PLC0415 - see `names`

    options = _options(require(name), image_size)
    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **options)
    except (AssertionError, ValueError) as error:
        raise rejection(name, image_size, error) from error
    return model


def layer_kinds(model: nn.Module) -> dict[str, int]:
    """Number of the model's layers with weights by kind, in the words of `workload/contract/big_o.toml`."""
    from torch import nn  # noqa: PLC0415 - see `names`

    kinds = Counter[str]()
    for module in model.modules():
        match module:
            case nn.Conv2d(groups=groups, in_channels=channels) if groups == channels > 1:
                kinds["depthwise convolution (G = C)"] += 1
            case nn.Conv2d():
                kinds["convolution"] += 1
            case nn.Linear():
                kinds["linear (matrix product)"] += 1
            case nn.BatchNorm2d() | nn.LayerNorm():
                kinds["batch or layer normalisation"] += 1
            case _ if "Attention" in type(module).__name__:
                kinds["attention"] += 1
            case _:
                pass
    return dict(kinds)


def rejection(name: str, image_size: int, reason: Exception) -> UsageError:
    """Error for images of a size that the model `name` cannot process; `reason`: the model's own error."""
    text = str(reason).strip()
    first_line = text.splitlines()[0] if text else type(reason).__name__
    native_size = NATIVE_IMAGE_SIZES.get(name, IMAGENET_IMAGE_SIZE)
    return UsageError(
        f"{name} cannot train on {image_size}x{image_size} images: {first_line}", hint=f"--image-size {native_size}"
    )


def _options(name: str, image_size: int) -> dict[str, Any]:
    if name.startswith("vit_"):
        return {"image_size": image_size}
    if name.startswith("maxvit"):
        return {"input_size": (image_size, image_size)}
    if name in SLOW_INITIALISATION:
        return {"init_weights": False}
    return {}


def loss(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy (scalar) of logits (N, classes) and labels (N); auxiliary heads weighted as in their papers.

    GoogLeNet: 0.3 for each of two, https://arxiv.org/abs/1409.4842 section 5. Inception v3: 0.4, PyTorch's fine-tuning
    tutorial.
    """
    from torch.nn.functional import cross_entropy  # noqa: PLC0415 - see `names`

    heads = _weighted_heads(output)
    total = cross_entropy(heads[0][1], labels)
    for weight, logits in heads[1:]:
        total = total + weight * cross_entropy(logits, labels)
    return total


def _weighted_heads(output: Any) -> list[tuple[float, torch.Tensor]]:
    """Weight and logits of each head, the main one first; heads that are switched off are left out."""
    match type(output).__name__:
        case "GoogLeNetOutputs":
            auxiliary = [(GOOGLENET_AUX_WEIGHT, output.aux_logits1), (GOOGLENET_AUX_WEIGHT, output.aux_logits2)]
            heads = [(1.0, output.logits), *auxiliary]
        case "InceptionOutputs":
            heads = [(1.0, output.logits), (INCEPTION_AUX_WEIGHT, output.aux_logits)]
        case _:
            heads = [(1.0, output)]
    return [(weight, logits) for weight, logits in heads if logits is not None]
