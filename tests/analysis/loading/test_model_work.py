"""The work of known models, for runs that bring no count of their own."""

import pytest

from analysis.loading import model_work
from workload.contract.record import Spec
from workload.contract.spec import Precision
from workload.contract.vocabulary import MODELS

SIZES = {"vit_b_16": 224, "resnet18": 32, "mobilenet_v2": 224}


@pytest.mark.world
@pytest.mark.night(part="trainer")
@pytest.mark.parametrize("model", SIZES)
@pytest.mark.parametrize("precision", list(Precision))
def test_the_table_says_what_the_trainer_counts(model: str, precision: Precision) -> None:
    from workload.steps import complexity

    counted = complexity.count(
        model, num_classes=1000, image_size=SIZES[model], batch_size=5, precision=precision, optimizer="sgd"
    )
    spec = Spec(model=model, batch_size=5, precision=precision, image_size=SIZES[model])
    known, _ = model_work.known_work(spec)
    names = (
        "parameters",
        "forward_mac_per_image",
        "forward_flop_per_image",
        "train_flop_per_step",
        "train_flop_per_image",
        "bytes_per_step_lower",
        "bytes_per_step_upper",
    )
    assert {name: getattr(known, name) for name in names} == {name: getattr(counted, name) for name in names}


def test_the_table_has_every_model_and_no_other() -> None:
    assert {model for model, _ in model_work.table()} == set(MODELS)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("resnet50", "resnet50"),
        ("ResNet-50", "resnet50"),
        ("ResNet50 v1.5", "resnet50"),
        ("ViT-B/16", "vit_b_16"),
        ("vit_base_patch16_224", "vit_b_16"),
        ("MobileNetV2", "mobilenet_v2"),
        # Not guessed: v1 is another network, and a name may only begin alike.
        ("mobilenet", None),
        ("resnet50_my_version", None),
        ("", None),
    ],
)
def test_names(name: str, model: str | None) -> None:
    assert model_work.known_name(name) == model


@pytest.mark.parametrize(
    ("facts", "size", "assumption"),
    [
        ({}, 224, "FLOP and bytes are those of resnet18 at 224 x 224 pixels, because the size was not given"),
        ({"image_size": 64}, 64, None),
        ({"dataset": "CIFAR-10"}, 32, None),
        (
            {"dataset": "imagenette"},
            224,
            "FLOP and bytes are those of resnet18 at 224 x 224 pixels, because the size was not given",
        ),
    ],
)
def test_the_size_of_the_images(facts: dict[str, object], size: int, assumption: str | None) -> None:
    known, assumed = model_work.known_work(Spec(model="resnet18", batch_size=2, **facts))  # type: ignore[arg-type]
    assert known is not None
    assert known.train_flop_per_image == model_work.table()["resnet18", size].train_flop_per_image
    assert assumed == assumption


@pytest.mark.parametrize("facts", [{"model": "my_net"}, {"image_size": 33}, {"image_size": 0.5}])
def test_what_is_not_in_the_table_has_no_figure(facts: dict[str, object]) -> None:
    spec = Spec(**{"model": "resnet18", "batch_size": 2, **facts})  # type: ignore[arg-type]
    assert model_work.known_work(spec) == (None, None)


def test_without_a_precision_the_bytes_are_those_of_any() -> None:
    work = model_work.table()["resnet18", 224]
    low, high = work.bytes_per_step(8, None)
    assert low == work.bytes_per_step(8, "bf16")[0] < work.bytes_per_step(8, "fp32")[0]
    assert high == work.bytes_per_step(8, "tf32")[1] > work.bytes_per_step(8, "amp")[1]
    assert work.bytes_per_step(8, "amp")[1] == work.bytes_per_step(8, "bf16")[1] + 8 * work.parameters
