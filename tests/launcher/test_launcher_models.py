import pytest

from launcher import models
from workload.contract import classifiers
from workload.contract.errors import ExitCode, UsageError


def no_listing() -> list[str]:
    pytest.fail("torchvision is not asked")


def test_a_listed_model_asks_nobody() -> None:
    models.require("resnet18", version=lambda: pytest.fail("not asked"), installed=no_listing)


@pytest.mark.parametrize("version", [None, classifiers.VERSION], ids=["no torch", "the listed version"])
def test_a_slip_is_told_at_once(version: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        models.require("ResNet18x", version=lambda: version, installed=no_listing)
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(caught.value) == "unknown model 'ResNet18x': it must be a torchvision classifier"
    assert caught.value.hint.startswith("did you mean resnet18 or ")
    assert caught.value.hint.endswith("? `python -m workload models` lists all")


def test_another_torchvision_may_have_more_models() -> None:
    models.require("newnet_tiny", version=lambda: "9.9.0", installed=lambda: ["newnet_tiny"])
    with pytest.raises(UsageError, match="unknown model 'newnet_tin'") as caught:
        models.require("newnet_tin", version=lambda: "9.9.0", installed=lambda: ["newnet_tiny"])
    assert caught.value.hint == "did you mean newnet_tiny? `python -m workload models` lists all"


def test_a_torchvision_that_cannot_be_imported_adds_nothing() -> None:
    with pytest.raises(UsageError, match="unknown model 'resnet81'"):
        models.require("resnet81", version=lambda: "9.9.0", installed=list)
