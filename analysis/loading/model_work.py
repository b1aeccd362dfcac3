"""Work of a training step of known models, by formula (model_work.csv), for imported runs without counted FLOP.

`python docs/model_work.py` writes the table with the trainer's own counts, and a test compares them. Standard library
only.
"""

import csv
import functools
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workload.contract.record import ComplexityRecord, Spec
from workload.contract.spec import CIFAR10, CIFAR10_IMAGE_SIZE, IMAGENET_IMAGE_SIZE, Precision

# Matches `rtx4080laptop`, `Tesla V100-SXM2-16GB`, `H100_SXM5`, `AMD Instinct MI300X`.
GPU = re.compile(
    r"(?<![a-z0-9])(?:(?:(?:geforce|quadro)[-_ ]*)?(rtx|gtx)[-_ ]*(\d{4})([-_ ]*ti|[-_ ]*super)?"
    r"|(p4|p40|p100|v100|t4|a10|a30|a40|a100|l4|l40|h100|h200|mi\d{2,3}[ax]?))(?![0-9])",
    re.IGNORECASE,
)
LAPTOP = re.compile(r"laptop|mobile", re.IGNORECASE)


# A report asks for the same few names thousands of times.
@functools.lru_cache(maxsize=1024)
def gpus_named(text: str) -> frozenset[str]:
    """Short names of the GPUs in a text: `v100` for `tesla v100-sxm2`; laptop GPUs differ from desktop ones."""
    laptop = " laptop" if LAPTOP.search(text) else ""
    gpus = set()
    for match in GPU.finditer(text.replace("_", " ")):
        family, number, suffix, other = match.groups()
        geforce = f"{family}{number}{(suffix or '').strip('-_ ')}{laptop}"
        gpus.add((other or geforce).lower())
    return frozenset(gpus)


def is_among(gpu: str, known: frozenset[str]) -> bool:
    """Whether a short name means one of the `known` GPUs: `mi300` is the series of `mi300x` and `mi300a`."""
    return gpu in known or any(gpu == one.rstrip("ax") for one in known)


def can_name(label: str, device: str) -> bool:
    """Whether a label can mean the device with this full name, as `v100` for `Tesla V100-SXM2-16GB`."""
    named = gpus_named(label)
    known = gpus_named(device)
    return all(is_among(gpu, known) for gpu in named) if named else folded(label) in folded(device)


def folded(name: str) -> str:
    """Letters and digits of a name, without case: `ResNet-50` and `resnet50` are the same."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


_TABLE = Path(__file__).with_name("model_work.csv")
# Image sizes of models that do not use 224 x 224: Inception's auxiliary head needs 299.
NATIVE_IMAGE_SIZES = {"inception_v3": 299}
# Other libraries' names of the same networks, in lower case and without punctuation.
_ALIASES = {
    "resnet50v15": "resnet50",
    "vitbasepatch16224": "vit_b_16",
    "vitbasepatch32224": "vit_b_32",
    "vitlargepatch16224": "vit_l_16",
    "swintinypatch4window7224": "swin_t",
    "swinsmallpatch4window7224": "swin_s",
    "swinbasepatch4window7224": "swin_b",
    "mobilenetv2100": "mobilenet_v2",
    "mobilenetv3large100": "mobilenet_v3_large",
    "mobilenetv3small100": "mobilenet_v3_small",
    "wideresnet502": "wide_resnet50_2",
}
_FAMILY = re.compile(
    r"(resnet|vgg|densenet|alexnet|googlenet|squeezenet|mobilenet|efficientnet|convnext|vit|swin|inception)[-_]?(\d*)",
    re.IGNORECASE,
)
# Bytes that GradScaler adds: one pass over all gradients, 4 bytes of each parameter read and written.
_SCALER_BYTES_PER_PARAMETER = 8


@dataclass(frozen=True, kw_only=True)
class ByteModel:
    """Linear model of the bytes of a step: `per_step` for weights and optimizer, `per_image` for each image."""

    per_step: int
    per_image: int

    def bytes_per_step(self, images: int) -> int:
        return self.per_step + images * self.per_image


@dataclass(frozen=True, kw_only=True)
class ModelWork:
    """A row of the table: 1000 classes, SGD with momentum, train mode; `*_bytes`: lower and upper bound."""

    model: str
    image_size: int
    parameters: int
    forward_flop_per_image: int
    train_flop_per_image: int
    fp32_bytes: tuple[ByteModel, ByteModel]
    bf16_bytes: tuple[ByteModel, ByteModel]

    def bytes_per_step(self, batch_size: int, precision: str | None) -> tuple[int, int]:
        """Lower and upper bound of the bytes of a step; without a precision, the widest bounds of all precisions."""
        low, high = self.bf16_bytes[0].bytes_per_step(batch_size), self.fp32_bytes[1].bytes_per_step(batch_size)
        match precision:
            case Precision.FP32 | Precision.TF32:
                low = self.fp32_bytes[0].bytes_per_step(batch_size)
            case Precision.BF16:
                high = self.bf16_bytes[1].bytes_per_step(batch_size)
            case Precision.AMP:
                high = self.bf16_bytes[1].bytes_per_step(batch_size) + _SCALER_BYTES_PER_PARAMETER * self.parameters
        return low, high


@functools.cache
def table() -> Mapping[tuple[str, int], ModelWork]:
    """The rows of model_work.csv by model and image size."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        works = [_work(row) for row in csv.DictReader(file)]
    return {(work.model, work.image_size): work for work in works}


def _work(row: Mapping[str, str]) -> ModelWork:
    def interval(width: str) -> tuple[ByteModel, ByteModel]:
        fewest, most = (
            ByteModel(
                per_step=int(row[f"{width}_{end}_bytes_per_step"]), per_image=int(row[f"{width}_{end}_bytes_per_image"])
            )
            for end in ("lower", "upper")
        )
        return fewest, most

    return ModelWork(
        model=row["model"],
        image_size=int(row["image_size"]),
        parameters=int(row["parameters"]),
        forward_flop_per_image=int(row["forward_flop_per_image"]),
        train_flop_per_image=int(row["train_flop_per_image"]),
        fp32_bytes=interval("fp32"),
        bf16_bytes=interval("bf16"),
    )


def known_name(name: str) -> str | None:
    """The table's name for a model that may be written as `ResNet-50` or `ViT-B/16`; None if unknown."""
    plain = folded(name)
    return _names().get(plain) or _ALIASES.get(plain)


@functools.cache
def _names() -> Mapping[str, str]:
    return {folded(model): model for model, _ in table()}


def models_named(text: str) -> set[tuple[str, str]]:
    """Families of models in a text, each with its size or an empty text."""
    return {(family.lower(), size) for family, size in _FAMILY.findall(text)}


def may_be_one_model(first: str, second: str) -> bool:
    """Whether two texts may name the same model: a family without a size matches all sizes, and no name all models."""
    pairs = list(itertools.product(models_named(first), models_named(second)))
    return not pairs or any(a == b or (a[0] == b[0] and "" in {a[1], b[1]}) for a, b in pairs)


def find(model: str, image_size: float | None) -> ModelWork | None:
    """The work of a model on images with this edge in pixels; None if the table lacks the model or the size."""
    name = known_name(model)
    return table().get((name, int(image_size))) if name and image_size and image_size == int(image_size) else None


def at_all_sizes(model: str) -> tuple[ModelWork, ...]:
    """The work of a model at every image size of the table; empty if the model is unknown."""
    name = known_name(model)
    return tuple(work for work in table().values() if work.model == name)


def image_size_of(spec: Spec) -> tuple[int | None, bool]:
    """Edge of a run's images in pixels (None if unknown), and whether the edge was stated.

    An edge that follows from the data set counts as stated; the model's usual edge does not.
    """
    if spec.image_size:
        return int(spec.image_size), True
    if spec.dataset and spec.dataset.casefold().replace("-", "") == CIFAR10:
        return CIFAR10_IMAGE_SIZE, True
    name = known_name(spec.model)
    return (NATIVE_IMAGE_SIZES.get(name, IMAGENET_IMAGE_SIZE) if name else None), False


def known_work(spec: Spec) -> tuple[ComplexityRecord | None, str | None]:
    """The work of a step, from model name, batch size and image size; None if the table lacks them.

    The text is an unstated fact on which the work rests; None if there is none.
    """
    image_size, is_stated = image_size_of(spec)
    work = find(spec.model, image_size)
    if work is None:
        return None, None
    low, high = work.bytes_per_step(spec.batch_size, spec.precision)
    complexity = ComplexityRecord(
        parameters=work.parameters,
        forward_mac_per_image=work.forward_flop_per_image // 2,
        forward_flop_per_image=work.forward_flop_per_image,
        train_flop_per_step=work.train_flop_per_image * spec.batch_size,
        train_flop_per_image=work.train_flop_per_image,
        bytes_per_step_lower=low,
        bytes_per_step_upper=high,
        method=f"by formula of torchvision's {work.model}, {work.image_size} x {work.image_size} pixels, 1000 classes",
    )
    size = f"{work.image_size} x {work.image_size}"
    assumption = (
        None
        if is_stated
        else f"FLOP and bytes are those of {work.model} at {size} pixels, because the size was not given"
    )
    return complexity, assumption
