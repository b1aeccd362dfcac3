from pathlib import Path

import pytest

from launcher.machine import runtime
from workload.contract import vocabulary
from workload.contract.errors import ExitCode, RooflaunchError, UsageError
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


KNOWN = "synthetic, cifar10, imagenette"
DATA = {
    # name: data set, is_here, what is wrong with it, hint
    "a known one": ("imagenette", True, "", ""),
    "a folder": ("HERE", True, "", ""),
    "a misspelt one": ("imagnette", True, "a folder", "--dataset imagenette"),
    "no folder": ("HERE/none", True, "a folder", "--dataset FOLDER, with images in FOLDER/<class>/<image>.jpg"),
    "a full path there": ("/data/photos", False, "", ""),
    "a path in the home there": ("~/photos", False, "", ""),
    "a misspelt one there": ("cifar-10", False, "an absolute path", "--dataset cifar10"),
}


@pytest.mark.parametrize("name", DATA)
def test_a_data_set_is_known_or_a_folder(name: str, tmp_path: Path) -> None:
    dataset, is_here, wrong, hint = DATA[name]
    spec = RunSpec(dataset=dataset.replace("HERE", str(tmp_path)))
    if not wrong:
        runtime.require_data(spec, is_here=is_here)
        return
    with pytest.raises(UsageError) as caught:
        runtime.require_data(spec, is_here=is_here)
    assert (
        caught.value.report() == f"error: data set '{spec.dataset}' is neither {wrong} nor one of {KNOWN}\nhint: {hint}"
    )


PROFILES = {
    # name: profile, device, what this machine's GPU is (None: no GPU), exit code, message
    "on a GPU": (Profile.NCU, Device.CUDA, (7, 5), 0, ""),
    "on the best device": (Profile.NCU, Device.AUTO, (7, 5), 0, ""),
    "without a GPU": (Profile.NCU, Device.AUTO, None, 4, "nvidia-smi shows no GPU here; got --profile ncu"),
    "on a CPU": (Profile.NCU, Device.CPU, (7, 5), 2, "--profile ncu needs an NVIDIA GPU; the device is 'cpu'"),
    "a trace": (Profile.TORCH, Device.CPU, None, 0, ""),
    "none": (Profile.NONE, Device.AUTO, None, 0, ""),
}


@pytest.mark.parametrize("name", PROFILES)
def test_counters_need_a_gpu(name: str) -> None:
    profile, device, capability, code, message = PROFILES[name]
    spec = RunSpec(profile=profile, device=device)
    if not code:
        runtime.require_profile(spec, lambda: capability)
        return
    with pytest.raises(RooflaunchError) as caught:
        runtime.require_profile(spec, lambda: capability)
    assert (caught.value.exit_code, str(caught.value)) == (code, message)
    assert caught.value.hint.startswith("--profile torch, which traces on any device")


def test_a_folder_for_bundles(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for fine in (tmp_path, tmp_path / "new" / "er"):
        assert runtime.require_folder(fine) == fine
    assert not (tmp_path / "new").exists()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError) as caught:
            runtime.require_folder(wrong)
        expected = f"error: output folder '{wrong}' cannot be written: '{tmp_path}/file' is a file\nhint: -o FOLDER"
        assert caught.value.report() == expected


def test_a_folder_that_one_may_not_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who is not root."""
    (tmp_path / "others").mkdir()
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != tmp_path / "others")
    assert runtime.require_folder(tmp_path / "mine") == tmp_path / "mine"
    for wrong in (tmp_path / "others", tmp_path / "others" / "new" / "er"):
        with pytest.raises(UsageError) as caught:
            runtime.require_folder(wrong)
        said = f"output folder '{wrong}' cannot be written: you may not write to '{tmp_path / 'others'}'"
        assert caught.value.report() == f"error: {said}\nhint: -o FOLDER, with a folder that you may write"
