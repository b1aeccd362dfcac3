"""The packages of a script: a layer on the image, built once for the same file and the same image."""

import io
import sys
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_docker import FakeDocker

from launcher.__main__ import main
from launcher.images import build
from launcher.machine import local
from launcher.machine.containers import ContainerLimits
from launcher.machine.runtime import Choice, Workplace
from launcher.script import local_script
from launcher.script.local_script import choice_of, require_gpu, require_visible
from launcher.script.options import HereOptions, LocalOptions
from launcher.values import Runtime
from tests.launcher.told import Golden, told
from workload.contract.errors import ExitCode
from workload.contract.spec import Device, RunSpec, resolve

BASE = "sha256:ba5e"
GOOD = [{"stream": "Step 5/7 : RUN python -m ensurepip > /dev/null\n"}, {"aux": {"ID": "sha256:1a7e"}}]


@pytest.fixture
def held(docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """An engine with the image for this code, pushed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    labels = {"rooflaunch.inputs": "c0de", "rooflaunch.flavour": "cpu"}
    docker.hold(BASE, "rooflaunch:cpu-c0de", labels=labels, RepoDigests=["host/trainer@sha256:di6e57"])
    docker.build_messages = [*GOOD]
    return docker


def test_a_layer_is_built_once_for_the_same_image_and_file(
    held: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = held.engine()
    base = engine.image(BASE)
    assert base is not None
    made = build.layered(engine, base, b"timm==1.0\n")
    [asked] = held.builds
    assert made.id == "sha256:1a7e"
    assert asked["args"] == {"BASE_IMAGE": BASE}
    assert asked["network"] == "host"
    assert asked["tag"] in made.tags
    # Who asks for an image for this code does not get this one.
    assert asked["labels"]["rooflaunch.inputs"].startswith("c0de+")
    with tarfile.open(fileobj=io.BytesIO(asked["context"])) as archive:
        assert archive.getnames() == ["Dockerfile", "requirements.txt"]
        packages = archive.extractfile("requirements.txt")
        assert packages is not None
        assert packages.read() == b"timm==1.0\n"
    assert capsys.readouterr().err.splitlines()[1:] == ["step 5 of 7: the script's packages"]
    assert build.layered(engine, base, b"timm==1.0\n") == made
    assert len(held.builds) == 1
    held.build_messages = [{"aux": {"ID": "sha256:07e4"}}]
    assert build.layered(engine, base, b"timm==1.1\n").id == "sha256:07e4"
    held.build_messages = [{"aux": {"ID": "sha256:0b5e"}}]
    assert build.layered(engine, made, b"timm==1.0\n").id == "sha256:0b5e"


def test_a_layer_goes_to_the_images_repository(held: FakeDocker) -> None:
    held.push_messages = [{"aux": {"Digest": "sha256:9a5ed"}}]
    held.images.get = lambda name, get=held.images.get: get(BASE if "@" in name else name)  # type: ignore[method-assign, misc]
    reference = build.pushed(held.engine(), "host/trainer@sha256:di6e57", b"timm\n")
    assert reference == "host/trainer@sha256:9a5ed"
    [pushed] = held.pushed
    assert pushed.startswith("host/trainer:script-")


def test_packages_are_added_to_the_image_unless_nothing_runs(
    held: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements.txt").write_text("timm\n")
    engine, asked = held.engine(), []
    choice = Choice(runtime=Runtime.DOCKER, why="an image was named", engine=engine, image=engine.image(BASE))

    def choose(runtime: Runtime, *_: Any, **__: Any) -> Choice:
        asked.append(runtime)
        return choice

    monkeypatch.setattr(local_script, "choose", choose)
    options = HereOptions(requirements=str(tmp_path / "requirements.txt"))
    dry = choice_of(RunSpec(), LocalOptions(), options, tmp_path, is_dry=True)
    assert (held.builds, dry.image) == ([], choice.image)
    assert dry.why == f"an image was named, with the packages of {tmp_path}/requirements.txt"
    assert choice_of(RunSpec(), LocalOptions(), options, tmp_path).image == engine.image("sha256:1a7e")
    assert choice_of(RunSpec(), LocalOptions(), HereOptions(), tmp_path) is choice
    assert asked == [Runtime.DOCKER, Runtime.DOCKER, Runtime.AUTO]


def test_what_a_container_cannot_have(golden: Golden, held: FakeDocker, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "train.py").write_text("")
    (tmp_path / "large.txt").write_bytes(b"#" * (build.MOST_BYTES + 1))
    on_process, packages = LocalOptions(runtime=Runtime.PROCESS), HereOptions(requirements="my reqs.txt")
    # Without its GPU the script would take the CPU, and its figures would be those of another machine.
    on_gpu = RunSpec(script=("train.py",), device=Device.CUDA)
    cases = {
        "an image that the engine lacks": partial(build.pushed, held.engine(), "host/other@sha256:00", b"timm\n"),
        "packages of a process": partial(choice_of, RunSpec(), on_process, packages, Path()),
        "a script here": partial(require_visible, ("train.py",), tmp_path),
        "a module": partial(require_visible, ("-m", "anything"), tmp_path),
        "a script elsewhere": partial(require_visible, ("../train.py",), tmp_path / "runs"),
        "a GPU that is there": partial(require_gpu, on_gpu, capability=lambda: (8, 9)),
        "no GPU, and none is asked for": partial(require_gpu, RunSpec(script=("train.py",)), capability=lambda: None),
        "no GPU": partial(require_gpu, on_gpu, capability=lambda: None),
        "no list of packages": partial(build.read, str(tmp_path / "none.txt")),
        "too large a list of packages": partial(build.read, str(tmp_path / "large.txt")),
    }
    golden("no_layer.txt", told(cases).replace(str(tmp_path), "HERE").replace(sys.executable, "PYTHON"))


@pytest.mark.world
def test_a_machine_with_its_own_python_builds_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "requirements.txt").write_text("timm\n")
    monkeypatch.chdir(tmp_path)
    words = ["--include", "*.py", "--requirements", "requirements.txt", "--dry-run", "--", "train.py"]
    monkeypatch.setattr(sys, "argv", ["launch", "ssh", "--host", "me@box", *words])
    assert main() == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "error: --requirements is for an image that is built here, but 'ssh' uses what is installed "
        "there\nhint: install them into the Python that --python names, or into the image that --image "
        "names\n"
    )


def test_the_container_of_a_script(held: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user's folder is its own to write to, data is not, and its variables are shown by name alone."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    engine = held.engine()
    choice = Choice(runtime=Runtime.DOCKER, why="asked for", engine=engine, image=engine.image(BASE))
    place = Workplace(folder=tmp_path, data="/data", variables={"HF_TOKEN": "hf_1"})
    resolved = resolve({"device": "cpu"}, {}, None, script=["train.py", "{data}", "--token", "abc"])
    plan = local.make_plan(resolved, choice, output=tmp_path / "out", limits=ContainerLimits(), workplace=place)
    container = plan.container
    assert container is not None
    assert container.entrypoint == ("python", "-P", "-m", "rooflaunch")
    assert container.command[:3] == ("script", "--data", "/data")
    assert container.command[-5:] == ("--", "train.py", "{data}", "--token", "abc")
    assert container.folder == str(tmp_path)
    assert (container.writable, container.readable) == ((str(tmp_path / "out"), str(tmp_path)), ("/data",))
    assert (container.variables, container.environment["CUDA_VISIBLE_DEVICES"]) == ({"HF_TOKEN": "hf_1"}, "")
    assert container.network == "bridge"
    shown = plan.text()
    assert " --env HF_TOKEN --workdir " in shown
    assert shown.endswith(" -- train.py '{data}' --token '[redacted]'")
    assert "hf_1" not in shown + repr(plan)
    with engine.started(container):
        [created] = held.containers.created
    assert created.arguments["environment"]["HF_TOKEN"] == "hf_1"
    assert created.arguments["working_dir"] == str(tmp_path)
