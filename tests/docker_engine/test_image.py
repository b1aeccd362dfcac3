"""What the image is and what it refuses, asked of the image itself."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher import docker_engine
from launcher.images import build, contents
from tests.docker_engine.commands import BUILD, TINY, Launch, docker
from workload import __version__
from workload.contract import bundle
from workload.contract.errors import ExitCode, ToolError

pytestmark = [pytest.mark.world, pytest.mark.docker, pytest.mark.timeout(900)]

CALLER = 12345


def inspected(image: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(docker("image", "inspect", image["image_id"]).stdout)[0]["Config"])


def sh(image: dict[str, Any], script: str) -> str:
    done = docker("run", "--rm", "--entrypoint", "sh", image["image_id"], "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_labels_say_what_it_is(image: dict[str, Any]) -> None:
    config = inspected(image)
    labels = config["Labels"]
    assert labels["rooflaunch.flavour"] == "cpu"
    assert labels["rooflaunch.base"] == "unpinned", "a digest is never made up"
    assert labels["org.opencontainers.image.base.digest"] == ""
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.revision"] == image["commit"]
    assert config["User"] == "1000:1000"
    assert config["Entrypoint"] == ["python", "-m", "workload"]


def test_no_compiler_and_no_caches(image: dict[str, Any]) -> None:
    assert sh(image, "for tool in gcc cc c++ make pip; do command -v $tool; done; true") == ""
    caches = "/root/.cache /var/cache/apt/archives /var/lib/apt/lists /tmp"
    assert sh(image, f"find {caches} -type f 2>/dev/null | head") == ""


def test_no_credentials(image: dict[str, Any]) -> None:
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image["image_id"]).stdout
    said = json.dumps(inspected(image)) + history
    assert not [word for word in ("TOKEN", "SECRET", "PASSWORD", "_KEY=") if word in said.upper()]


@pytest.mark.parametrize(
    "hardening",
    [
        pytest.param([], id="plain"),
        pytest.param(
            ["--read-only", "--cap-drop", "ALL", "--network", "none", "--security-opt", "no-new-privileges"],
            id="read-only root, no capabilities, no network",
        ),
    ],
)
def test_standalone(image: dict[str, Any], tmp_path: Path, hardening: list[str]) -> None:
    os.chown(tmp_path, CALLER, CALLER)
    done = docker(
        *("run", "--rm", "--user", f"{CALLER}:{CALLER}", "--volume", f"{tmp_path}:/out", *hardening),
        *(image["image_id"], "train", "--device", "cpu", *TINY, "--iterations", "3", "-o", "/out"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("/out/")
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    found = bundle.read(folder)
    assert found.document["status"] == "completed"
    assert found.document["environment"]["container"]["runtime"] == "docker"
    assert found.document["environment"]["software"]["commit"] == image["commit"]
    assert {path.stat().st_uid for path in (folder, *folder.iterdir())} == {CALLER}


def test_a_folder_of_somebody_else_is_said(image: dict[str, Any], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    done = docker(
        *("run", "--rm", "--user", f"{CALLER}:{CALLER}", "--volume", f"{tmp_path}:/out"),
        *(image["image_id"], "train", "--device", "cpu", *TINY, "-o", "/out"),
    )
    assert done.returncode == ExitCode.USAGE
    assert "error: output folder '/out' cannot be written: Permission denied" in done.stderr
    assert "in a container: docker run --user $(id -u):$(id -g)" in done.stderr


def test_the_same_inputs_are_not_built_again(image: dict[str, Any], launch: Launch) -> None:
    done = launch("build", *BUILD, "--format", "json")
    again = json.loads(done.stdout)
    assert again["cached"] is True
    assert (again["tag"], again["image_id"]) == (image["tag"], image["image_id"])
    assert "building" not in done.stderr


def test_a_build_that_fails_says_where(base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    row = replace(contents.load_flavours()["cpu"], torch="0.0.1")
    broken = contents.make_recipe(row, base=base_image, index=contents.PIP_DEFAULT)
    with pytest.raises(ToolError, match=r"the build failed at step \d+ of \d+: RUN pip install") as caught:
        build.build(docker_engine.connect(), broken, network="host")
    assert "No matching distribution found for torch==0.0.1" in str(caught.value)
    log = Path(caught.value.hint.removeprefix("the whole log: "))
    assert log.is_relative_to(tmp_path)
    assert "No matching distribution found" in log.read_text()


def test_a_torch_without_code_for_the_gpu_stops_the_build(image: dict[str, Any]) -> None:
    def check(*capabilities: str) -> subprocess.CompletedProcess[str]:
        words = ("run", "--rm", "--entrypoint", "python", image["image_id"])
        return docker(*words, "-m", "workload.environment.gpu_code", *capabilities)

    # PyPI's torch, which this test image holds, is a CUDA build without Volta.
    assert check("7.5", "8.9", "9.0").returncode == 0
    refused = check("7.0", "8.9")
    assert refused.returncode == 1
    assert refused.stdout.startswith("error: torch has no code for compute capability 7.0;")
