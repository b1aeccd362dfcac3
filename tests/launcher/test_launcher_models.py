from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from launcher.machine import runtime
from tests.launcher.told import Golden, told
from workload.contract import vocabulary
from workload.contract.errors import ExitCode, UsageError
from workload.contract.spec import Device, Profile, RunSpec


def no_listing() -> list[str]:
    pytest.fail("torchvision is not asked")


@pytest.mark.parametrize("version", [None, vocabulary.TORCHVISION], ids=["no torch", "the listed version"])
def test_a_slip_is_told_at_once(version: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        runtime.require_model("ResNet18x", version=lambda: version, installed=no_listing)
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(caught.value) == "unknown model 'ResNet18x': it must be a torchvision classifier"
    assert caught.value.hint.startswith("did you mean resnet18 or ")
    assert caught.value.hint.endswith("? `python -m workload models` lists all")


def test_another_torchvision_may_have_more_models() -> None:
    runtime.require_model("newnet_tiny", version=lambda: "9.9.0", installed=lambda: ["newnet_tiny"])
    with pytest.raises(UsageError, match="unknown model 'newnet_tin'") as caught:
        runtime.require_model("newnet_tin", version=lambda: "9.9.0", installed=lambda: ["newnet_tiny"])
    assert caught.value.hint == "did you mean newnet_tiny? `python -m workload models` lists all"


# A data set, and whether the runs are on this machine.
DATA = {
    "a known one": ("imagenette", True),
    "a folder": ("HERE", True),
    "a misspelt one": ("imagnette", True),
    "no folder": ("HERE/none", True),
    "a full path there": ("/data/photos", False),
    "a path in the home there": ("~/photos", False),
    "a misspelt one there": ("cifar-10", False),
}
# A profile, a device, and this machine's GPU (None: no GPU).
PROFILES = {
    "on a GPU": (Profile.NCU, Device.CUDA, (7, 5)),
    "on the best device": (Profile.NCU, Device.AUTO, (7, 5)),
    "without a GPU": (Profile.NCU, Device.AUTO, None),
    "on a CPU": (Profile.NCU, Device.CPU, (7, 5)),
    "a trace": (Profile.TORCH, Device.CPU, None),
    "none": (Profile.NONE, Device.AUTO, None),
}


def test_what_can_be_asked_for(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: dict[str, Callable[[], object]] = {}
    for name, (dataset, is_here) in DATA.items():
        spec = RunSpec(dataset=dataset.replace("HERE", str(tmp_path)))
        cases[f"data: {name}"] = partial(runtime.require_data, spec, is_here=is_here)
    for name, (profile, device, capability) in PROFILES.items():
        spec = RunSpec(profile=profile, device=device)
        cases[f"profile: {name}"] = partial(runtime.require_profile, spec, lambda capability=capability: capability)
    for machines in (1, 2):
        spec = RunSpec(machines=machines, devices=2)
        cases[f"machines: {machines}"] = partial(runtime.require_one_machine, spec, "gcp")
    (tmp_path / "file").touch()
    (tmp_path / "others").mkdir()
    # As for a user who is not root.
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != tmp_path / "others")
    for folder in ("", "new/er", "file", "file/below", "others", "others/new/er"):
        cases[f"folder: {folder or 'there'}"] = partial(runtime.require_folder, tmp_path / folder)
    golden("models.txt", told(cases).replace(str(tmp_path), "HERE"))
    assert not (tmp_path / "new").exists()
