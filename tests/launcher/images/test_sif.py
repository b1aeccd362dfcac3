from pathlib import Path

import pytest

from launcher.images import sif
from workload.contract.errors import RooflaunchError, ToolError


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("it.img", "--sif makes a file whose name ends in .sif; got 'it.img'", "--sif rooflaunch.sif"),
        ("no/it.sif", "--sif: there is no folder 'no'", "make it, or name another folder"),
        (
            "it.sif",
            "apptainer, which makes a .sif file of the image, is not installed",
            "install Apptainer here; or push the image (--push), so that the cluster's Apptainer can pull it",
        ),
    ],
)
def test_what_is_missing_is_told_before_the_build(
    name: str, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(RooflaunchError) as raised:
        sif.require_tool(Path(name))
    assert (str(raised.value), raised.value.hint) == (message, hint)


@pytest.mark.world
@pytest.mark.parametrize("code", [0, 1])
def test_the_command_line(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Apptainer itself is in no package that this project uses: this is what it would be asked."""
    tool = tmp_path / "apptainer"
    tool.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\nexit {code}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    path = tmp_path / "it.sif"
    assert sif.require_tool(path) == str(tool)
    if code:
        with pytest.raises(ToolError, match="apptainer ended with exit code 1"):
            sif.write(str(tool), "rooflaunch:cpu-1", path)
    else:
        sif.write(str(tool), "rooflaunch:cpu-1", path)
    assert (tmp_path / "asked").read_text() == f"build --force {path} docker-daemon:rooflaunch:cpu-1\n"
    assert capfd.readouterr().err.startswith(f"{tool} build --force {path} docker-daemon:rooflaunch:cpu-1\n")
