import platform
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pytest
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.images import contents
from launcher.machine import runtime
from launcher.machine.runtime import Choice, choose
from launcher.values import Runtime
from workload.contract.errors import ExitCode, RooflaunchError, ToolError, UsageError
from workload.contract.spec import RunSpec, resolve

COMPILER = "--compile needs a C++ compiler, which the images do not contain"
TOOLKIT = "install the NVIDIA Container Toolkit: docs.nvidia.com/datacenter/cloud-native/container-toolkit"
OLD_GPU = "--runtime process with a torch build that supports the GPU"

LayOut = Callable[..., None]


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


def spec(words: Mapping[str, Any]) -> RunSpec:
    return resolve(words, {}, None).spec


def shown(choice: Choice) -> tuple[str, str, str | None, bool]:
    return choice.runtime, choice.why, choice.image.id if choice.image else None, choice.gpus


@pytest.mark.parametrize(
    ("asked", "machine", "given", "why"),
    [
        (Runtime.PROCESS, {"built": ("cpu",)}, {}, "asked for"),
        (Runtime.AUTO, {"system": "Darwin", "built": ("cpu",)}, {}, "containers run in a virtual machine on Darwin"),
        (Runtime.AUTO, {"built": ("cpu",)}, {"compile": True}, COMPILER),
        (Runtime.AUTO, {}, {}, "no image of flavour cpu is built for this code; to use it: launch build --flavour cpu"),
        (
            Runtime.AUTO,
            {"built": ("cpu",), "gpu": (8, 9), "toolkit": True},
            {},
            "no image of flavour cuda is built for this code; to use it: launch build --flavour cuda",
        ),
        (
            Runtime.AUTO,
            {"built": ("cpu",), "gpu": (8, 9)},
            {},
            f"the Docker engine cannot give containers access to the GPU; to use it: {TOOLKIT}",
        ),
        (
            Runtime.AUTO,
            {"built": ("volta",), "gpu": (5, 2), "toolkit": True},
            {},
            f"no image flavour has code for compute capability 5.2; to use it: {OLD_GPU}",
        ),
        (Runtime.AUTO, {"built": ("cpu",)}, {"device": "mps"}, "a container cannot reach Apple's GPU"),
    ],
)
def test_runs_in_a_process(
    asked: Runtime, machine: dict[str, Any], given: dict[str, Any], why: str, lay_out: LayOut
) -> None:
    lay_out(**machine)
    assert shown(choose(asked, spec(given))) == ("process", why, None, False)


def refuse(*_: object) -> NoReturn:
    raise AssertionError("nobody was to ask")


def test_process_and_a_machine_without_engine_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(docker_engine, "connect", refuse)
    monkeypatch.setattr(runtime, "gpu_capability", refuse)
    monkeypatch.setattr(docker_engine, "socket_exists", lambda: False)
    assert shown(choose(Runtime.AUTO, RunSpec())) == ("process", "no Docker engine here", None, False)
    monkeypatch.setattr(docker_engine, "socket_exists", refuse)
    assert choose(Runtime.PROCESS, RunSpec()).runtime == "process"


@pytest.mark.parametrize("asked", [Runtime.AUTO, Runtime.DOCKER])
@pytest.mark.parametrize(
    ("machine", "given", "flavour", "gpus"),
    [
        ({}, {}, "cpu", False),
        ({}, {"device": "cpu"}, "cpu", False),
        ({"gpu": (8, 9), "toolkit": True}, {"device": "cpu"}, "cpu", False),
        ({"toolkit": True}, {}, "cpu", False),
        ({"gpu": (7, 5), "toolkit": True}, {}, "cuda", True),
        ({"gpu": (12, 0), "toolkit": True}, {"device": "cuda"}, "cuda", True),
        ({"gpu": (7, 0), "toolkit": True}, {}, "volta", True),
        ({"gpu": (6, 0), "toolkit": True}, {}, "volta", True),
        ({"gpu": (7, 0), "toolkit": True}, {"device": "cuda"}, "volta", True),
        # nvidia-smi is missing on the host, the toolkit is not.
        ({"gpu": None, "toolkit": True}, {"device": "cuda"}, "cuda", True),
    ],
)
def test_runs_in_the_container_of_its_flavour(
    asked: Runtime, machine: dict[str, Any], given: dict[str, Any], flavour: str, gpus: bool, lay_out: LayOut
) -> None:
    lay_out(built=("cpu", "cuda", "volta"), **machine)
    choice = choose(asked, spec(given))
    why = f"Docker 28.2.2 has the image for this code, flavour {flavour}"
    assert shown(choice) == ("docker", why, f"sha256:{flavour}", gpus)
    assert choice.engine is not None


@pytest.mark.parametrize(
    ("flavour", "device", "gpus"), [("cpu", "auto", False), ("volta", "auto", True), ("volta", "cpu", False)]
)
def test_flavour_that_was_asked_for(flavour: str, device: str, gpus: bool, lay_out: LayOut) -> None:
    lay_out(built=("cpu", "volta"), gpu=(8, 9), toolkit=True)
    choice = choose(Runtime.AUTO, spec({"device": device}), flavour=flavour)
    assert (choice.image and choice.image.id, choice.gpus) == (f"sha256:{flavour}", gpus)


@pytest.mark.parametrize(("gpu", "gpus"), [(None, False), ((8, 9), True)])
def test_image_that_was_named_may_be_of_any_code(
    gpu: tuple[int, int] | None, gpus: bool, docker: FakeDocker, lay_out: LayOut
) -> None:
    docker.hold("sha256:mine", "mine:1")
    lay_out(gpu=gpu, toolkit=True)
    choice = choose(Runtime.AUTO, RunSpec(), image="mine:1")
    assert shown(choice) == ("docker", "an image was named", "sha256:mine", gpus)


def test_newest_image_for_this_code_wins(docker: FakeDocker, lay_out: LayOut) -> None:
    lay_out(built=("cpu",))
    labels = docker.held["sha256:cpu"].attrs["Config"]["Labels"]
    docker.hold("sha256:newer", labels=labels, Created="2026-11-22T10:00:00Z")
    hold(docker, "cpu", inputs="other code", Created="2026-11-23T10:00:00Z")
    docker.hold("sha256:for-a-vm", labels=labels, Created="2026-11-24T10:00:00Z", Architecture="arm64")
    assert shown(choose(Runtime.DOCKER, RunSpec()))[2] == "sha256:newer"


@pytest.mark.parametrize(
    ("asked", "machine", "given", "options", "error", "message", "hint"),
    [
        (
            Runtime.DOCKER,
            {"engine": False},
            {},
            {},
            ToolError,
            "no Docker engine answers: Connection refused",
            "start Docker",
        ),
        (
            Runtime.DOCKER,
            {},
            {},
            {},
            ToolError,
            "no image of flavour cpu is built for this code",
            "launch build --flavour cpu",
        ),
        (
            Runtime.DOCKER,
            {"built": ("cuda",), "gpu": (8, 9)},
            {"device": "cuda"},
            {},
            ToolError,
            "the Docker engine cannot give containers access to the GPU",
            TOOLKIT,
        ),
        (
            Runtime.AUTO,
            {"built": ("cpu",)},
            {},
            {"image": "mine:1"},
            ToolError,
            "the engine has no image 'mine:1'",
            "docker pull mine:1, or launch build",
        ),
        (
            Runtime.AUTO,
            {"built": ("cuda",), "gpu": (6, 0), "toolkit": True},
            {},
            {"flavour": "cuda"},
            UsageError,
            "flavour cuda has code for compute capability 7.5 and later; this machine's GPU has 6.0",
            "--flavour volta",
        ),
        (
            Runtime.DOCKER,
            {"built": ("cpu",)},
            {"device": "mps"},
            {},
            UsageError,
            "a container cannot reach Apple's GPU; got --mps",
            "--runtime process",
        ),
        (
            Runtime.DOCKER,
            {"built": ("cpu",)},
            {"compile": True},
            {},
            UsageError,
            f"{COMPILER}; a container was requested",
            "--runtime process",
        ),
    ],
)
def test_container_that_cannot_be_had(
    asked: Runtime,
    machine: dict[str, Any],
    given: dict[str, Any],
    options: dict[str, str],
    error: type[RooflaunchError],
    message: str,
    hint: str,
    lay_out: LayOut,
) -> None:
    lay_out(**machine)
    with pytest.raises(error) as caught:
        choose(asked, spec(given), **options)
    assert (str(caught.value), caught.value.hint) == (message, hint)
    assert caught.value.exit_code is (ExitCode.USAGE if error is UsageError else ExitCode.TOOL)


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("8.9\n", (8, 9)),
        ("7.0\n8.9\n", (7, 0)),
        ("12.0\n", (12, 0)),
        ("", None),
        ("NVIDIA-SMI has failed\n", None),
        ("[N/A]\n", None),
    ],
)
def test_capability_of_the_first_gpu(
    printed: str, found: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def smi(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[0] == "nvidia-smi"
        return subprocess.CompletedProcess(command, returncode=0, stdout=printed)

    monkeypatch.setattr(subprocess, "run", smi)
    assert runtime.gpu_capability() == found


def test_capability_of_the_gpu_with_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def smi(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        printed = {"--id=1": "7.0\n"}.get(command[-1], "8.9\n7.0\n")
        return subprocess.CompletedProcess(command, returncode=0, stdout=printed)

    monkeypatch.setattr(subprocess, "run", smi)
    assert [runtime.gpu_capability(index) for index in (None, 1)] == [(8, 9), (7, 0)]


@pytest.mark.parametrize("raised", [FileNotFoundError("nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 10)])
def test_no_driver_has_no_capability(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def smi(*_: Any, **__: Any) -> NoReturn:
        raise raised

    monkeypatch.setattr(subprocess, "run", smi)
    assert runtime.gpu_capability() is None
