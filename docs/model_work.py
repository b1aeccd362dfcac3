"""Writes analysis/loading/model_work.csv, classifiers' work by formula: `python docs/model_work.py`.

Twenty minutes of one core. `analysis` loads no torch, and a log from elsewhere brings no count of its own.
"""

import csv
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from workload.contract.errors import UsageError
from workload.contract.spec import IMAGENET_IMAGE_SIZE, Precision
from workload.model import models
from workload.steps import complexity

TARGET = Path(__file__).parents[1] / "analysis" / "loading" / "model_work.csv"
# CIFAR, Tiny ImageNet, STL-10, the smaller ImageNette, ImageNet in training and evaluation, Inception, fine-tuning.
IMAGE_SIZES = (32, 64, 96, 128, 160, 192, 224, 256, 288, 299, 384)
# What people train on images of other sizes than ImageNet's; counting the others takes hours.
OF_MANY_SIZES = (
    "alexnet", "densenet121", "efficientnet_b0", "googlenet", "inception", "mobilenet", "resnet", "shufflenet",
    "squeezenet", "vgg", "vit_b_16", "wide_resnet50",
)  # fmt: skip
CLASSES = 1000
# Two batches tell what a step moves anyhow, and what each image adds; one image is too few for batch normalisation.
BATCH_SIZES = (2, 3)
COLUMNS = (
    "model",
    "image_size",
    "parameters",
    "forward_flop_per_image",
    "train_flop_per_image",
    *(
        f"{width}_{end}_{part}"
        for width, end, part in product(("fp32", "bf16"), ("lower", "upper"), ("bytes_per_step", "bytes_per_image"))
    ),
)


def row(model: str, image_size: int) -> list[object] | None:
    """The line of one model at one image size; None where it cannot train on such images."""
    cells: list[object] = [model, image_size]
    for precision in (Precision.FP32, Precision.BF16):
        try:
            small, large = (
                complexity.count(
                    model, num_classes=CLASSES, image_size=image_size, batch_size=size, precision=precision
                )
                for size in BATCH_SIZES
            )
        except UsageError:
            return None
        if precision is Precision.FP32:
            cells += [small.parameters, small.forward_flop_per_image, small.train_flop_per_image]
        for end in ("lower", "upper"):
            few, more = (getattr(counted, f"bytes_per_step_{end}") for counted in (small, large))
            cells += [few - BATCH_SIZES[0] * (more - few), more - few]
    return cells


def main() -> None:
    """Count everything, and write the table."""
    asked = [
        (model, size)
        for model, size in product(models.names(), IMAGE_SIZES)
        if size == IMAGENET_IMAGE_SIZE or model.startswith(OF_MANY_SIZES)
    ]
    with ProcessPoolExecutor() as pool:
        rows = [cells for cells in pool.map(row, *zip(*asked, strict=True)) if cells]
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
