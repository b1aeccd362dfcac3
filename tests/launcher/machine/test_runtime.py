import platform
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.images import contents
from launcher.machine import runtime
from launcher.machine.runtime import Choice, choose
from launcher.values import Runtime
from tests.launcher.told import Golden, told
from workload.contract.errors import ToolError
from workload.contract.spec import RunSpec, resolve

LayOut = Callable[..., None]
IN_DOCKER = {"requested": Runtime.DOCKER}


@pytest.fixture
def lay_out(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> LayOut:
    """`lay_out(built=("cpu",), gpu=(8, 9), toolkit=True)`: a Linux machine with an engine, unless said otherwise."""

    def build(
        *,
        system: str = "Linux",
        engine: bool = True,
        built: tuple[str, ...] = (),
        gpu: tuple[int, int] | None = None,
        toolkit: bool = False,
    ) -> None:
        for name in built:
            hold(docker, name)

        def connect() -> Any:
            if not engine:
                raise ToolError("no Docker engine answers: Connection refused", hint="start Docker")
            return docker.engine(gpus=toolkit)

        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(docker_engine, "socket_exists", lambda: True)
        monkeypatch.setattr(docker_engine, "connect", connect)
        monkeypatch.setattr(runtime, "gpu_capability", lambda _: gpu)

    return build


def hold(docker: FakeDocker, flavour: str, *, inputs: str | None = None, **attributes: Any) -> None:
    """An image of the flavour, for this code unless `inputs` says that it is of other code."""
    told = contents.make_recipe(contents.require_flavour(flavour)).inputs_hash if inputs is None else inputs
    labels = {"rooflaunch.flavour": flavour, "rooflaunch.inputs": told}
    docker.hold(f"sha256:{flavour}{inputs or ''}", labels=labels, **attributes)


CPU_IMAGE = {"built": ("cpu",)}
L4 = {"gpu": (8, 9), "toolkit": True}
ALL = {"built": ("cpu", "cuda", "volta")}
TWO = {"built": ("cpu", "volta"), **L4}
# What the machine has, what is asked for, and the run's options.
CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "process is asked for": (CPU_IMAGE, {"requested": Runtime.PROCESS}, {}),
    "on a Mac": ({"system": "Darwin", **CPU_IMAGE}, {}, {}),
    "compiled": (CPU_IMAGE, {}, {"compile": True}),
    "compiled in a container": (CPU_IMAGE, IN_DOCKER, {"compile": True}),
    "several devices": (CPU_IMAGE, {}, {"device": "cpu", "devices": 2}),
    "on Apple's GPU": (CPU_IMAGE, {}, {"device": "mps"}),
    "on Apple's GPU in a container": (CPU_IMAGE, IN_DOCKER, {"device": "mps"}),
    "no image": ({}, {}, {}),
    "no image, and a container is asked for": ({}, IN_DOCKER, {}),
    "no image for the GPU": ({**CPU_IMAGE, **L4}, {}, {}),
    "no toolkit": ({**CPU_IMAGE, "gpu": (8, 9)}, {}, {}),
    "no toolkit, and a container is asked for": ({"built": ("cuda",), "gpu": (8, 9)}, IN_DOCKER, {"device": "cuda"}),
    "too old a GPU": ({"built": ("volta",), "gpu": (5, 2), "toolkit": True}, {}, {}),
    "too old a GPU for the flavour": ({**ALL, "gpu": (6, 0), "toolkit": True}, {"flavour": "cuda"}, {}),
    "no engine, and a container is asked for": ({"engine": False}, IN_DOCKER, {}),
    "image for the CPU": (ALL, {}, {}),
    "container is asked for": (ALL, IN_DOCKER, {}),
    "CPU of a machine with a GPU": ({**ALL, **L4}, {}, {"device": "cpu"}),
    "toolkit without a GPU": ({**ALL, "toolkit": True}, {}, {}),
    "oldest GPU of cuda": ({**ALL, "gpu": (7, 5), "toolkit": True}, {}, {}),
    "newest GPU": ({**ALL, "gpu": (12, 0), "toolkit": True}, {}, {"device": "cuda"}),
    "newest GPU of volta": ({**ALL, "gpu": (7, 0), "toolkit": True}, {}, {}),
    "older GPU of volta": ({**ALL, "gpu": (6, 0), "toolkit": True}, IN_DOCKER, {"device": "cuda"}),
    "nvidia-smi is missing": ({**ALL, "toolkit": True}, {}, {"device": "cuda"}),
    "flavour of the CPU is asked for": (TWO, {"flavour": "cpu"}, {}),
    "flavour is asked for": (TWO, {"flavour": "volta"}, {}),
    "flavour is asked for on the CPU": (TWO, {"flavour": "volta"}, {"device": "cpu"}),
    "image of any code is named": ({"toolkit": True}, {"image": "mine:1"}, {}),
    "image of any code is named for a GPU": (L4, {"image": "mine:1"}, {}),
    "named image is missing": (CPU_IMAGE, {"image": "yours:1"}, {}),
}


def shown(choice: Choice) -> str:
    image = f"; {choice.image.id}{', with GPUs' if choice.gpus else ''}" if choice.image else ""
    return f"{choice.runtime}: {choice.why}{image}"


def test_process_or_container_is_chosen_with_a_reason(golden: Golden, docker: FakeDocker, lay_out: LayOut) -> None:
    def chosen(machine: dict[str, Any], asked: dict[str, Any], given: dict[str, Any]) -> str:
        docker.held.clear()
        docker.hold("sha256:mine", "mine:1")
        lay_out(**machine)
        return shown(choose(**{"requested": Runtime.AUTO, **asked}, spec=resolve(given, {}, None).spec))

    golden("runtime.txt", told({name: partial(chosen, *case) for name, case in CHOICES.items()}))


def refuse(*_: object) -> NoReturn:
    raise AssertionError("nobody was to ask")


def test_process_and_a_machine_without_engine_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(docker_engine, "connect", refuse)
    monkeypatch.setattr(runtime, "gpu_capability", refuse)
    monkeypatch.setattr(docker_engine, "socket_exists", lambda: False)
    assert shown(choose(Runtime.AUTO, RunSpec())) == "process: no Docker engine here"
    monkeypatch.setattr(docker_engine, "socket_exists", refuse)
    assert choose(Runtime.PROCESS, RunSpec()).runtime == "process"


def test_newest_image_for_this_code_wins(docker: FakeDocker, lay_out: LayOut) -> None:
    lay_out(**CPU_IMAGE)
    labels = docker.held["sha256:cpu"].attrs["Config"]["Labels"]
    docker.hold("sha256:newer", labels=labels, Created="2026-11-22T10:00:00Z")
    hold(docker, "cpu", inputs="other code", Created="2026-11-23T10:00:00Z")
    docker.hold("sha256:for-a-vm", labels=labels, Created="2026-11-24T10:00:00Z", Architecture="arm64")
    assert shown(choose(Runtime.DOCKER, RunSpec())).endswith("; sha256:newer")


def test_capability_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def capability(printed: str | Exception, *asked: int) -> tuple[int, int] | None:
        def smi(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            assert (command[0], [*command[3:]]) == ("nvidia-smi", [f"--id={index}" for index in asked])
            if isinstance(printed, Exception):
                raise printed
            return subprocess.CompletedProcess(command, returncode=0, stdout=printed)

        monkeypatch.setattr(subprocess, "run", smi)
        return runtime.gpu_capability(*asked)

    assert [capability("8.9\n"), capability("7.0\n8.9\n"), capability("12.0\n", 1)] == [(8, 9), (7, 0), (12, 0)]
    failures = (FileNotFoundError("nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 10))
    for printed in ("", "NVIDIA-SMI has failed\n", "[N/A]\n", *failures):
        assert capability(printed) is None
