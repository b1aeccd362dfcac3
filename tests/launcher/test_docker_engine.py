import json
import os
import re
import shlex
import shutil
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import docker.errors
import pytest
import requests
import urllib3
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.docker_engine import Container, ContainerEnd, Image
from tests.launcher.told import Golden, told
from workload.contract.errors import ToolError

FULL = Container(
    image="sha256:ab",
    command=("train", "--model", "resnet18"),
    user="1000:1000",
    entrypoint=("setpriv", "--reuid=1000", "python"),
    environment={"OMP_NUM_THREADS": "2"},
    writable=("/home/me/results",),
    readable=("/home/me/photos", "/data"),
    network="bridge",
    gpus=True,
    capabilities=("SYS_ADMIN", "SETUID"),
    shm_bytes=2147483648,
    memory_bytes=536870912,
    cpus=1.5,
    labels={"rooflaunch.run": "0.1"},
)
MINIMAL = Container(image="rooflaunch:cpu", command=("models",), user="0:0")
ROOT = Path(__file__).parents[2]


def test_what_is_shown_is_what_is_started(golden: Golden) -> None:
    """The options of `docker run`, and the same container as the SDK gets it."""
    texts = []
    for container in (FULL, replace(FULL, gpu_index=1), MINIMAL):
        creation = docker_engine._creation(container)
        texts.append(shlex.join(container.as_words()))
        texts += [f"{name}: {json.dumps(creation[name])}" for name in sorted(creation) if creation[name] is not None]
        texts.append("")
    golden("containers.txt", "\n".join(texts))


def test_failures_of_the_engine_are_ours(golden: Golden) -> None:
    def broken(raised: Exception) -> None:
        with pytest.raises(ToolError) as caught, docker_engine.translated("it broke", "try this"):
            raise raised
        assert caught.value.__cause__ is raised
        raise caught.value

    failures = {
        "of the SDK": docker.errors.DockerException("no such thing"),
        "of the engine": docker.errors.APIError("409 Client Error", explanation="name in use"),
        "of the connection": requests.ConnectionError("Connection refused"),
        "without a word": requests.ConnectionError(),
        "of rights": PermissionError(13, "Permission denied"),
    }
    golden("broken_engine.txt", told({name: partial(broken, raised) for name, raised in failures.items()}))


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without Docker; returns where the socket would be."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(docker_engine, "DEFAULT_SOCKET", tmp_path / "docker.sock")
    return tmp_path / "docker.sock"


@pytest.mark.world
def test_no_engine(golden: Golden, no_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connected(which: str | None) -> None:
        monkeypatch.setattr(docker_engine.shutil, "which", {"docker": which}.get)
        docker_engine.connect()

    monkeypatch.chdir(ROOT)
    with monkeypatch.context() as patch:
        # Without a socket the SDK is not needed.
        patch.setitem(sys.modules, "docker", None)  # type: ignore[arg-type]
        text = told({"not started": partial(connected, "/usr/bin/docker"), "not installed": partial(connected, None)})
        no_engine.touch()
        text += "\n" + told({"no SDK": partial(connected, None)})
    no_engine.unlink()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{no_engine}")
    silent = told({"no answer": partial(connected, None)})
    assert "No such file or directory" in silent
    golden("no_engine.txt", re.sub("answers: .*", "answers: …", f"{text}\n{silent}".replace(str(no_engine), "SOCKET")))


@pytest.mark.parametrize(
    ("host", "context", "asked"),
    [
        (None, None, "the environment's"),
        (None, "unix:///home/me/desktop.sock", "unix:///home/me/desktop.sock"),
        ("tcp://10.0.0.1:2376", "unix:///home/me/desktop.sock", "the environment's"),
    ],
)
def test_the_engine_is_the_one_that_docker_would_use(
    host: str | None, context: str | None, asked: str, no_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import docker.context

    def client(address: str) -> Any:
        return SimpleNamespace(info=lambda: {"DockerRootDir": address}, version=lambda: {"Version": "28.2.2"})

    no_engine.touch()
    if host:
        monkeypatch.setenv("DOCKER_HOST", host)
    chosen = SimpleNamespace(Host=context) if context else None
    monkeypatch.setattr(docker.context.ContextAPI, "get_current_context", lambda: chosen)
    monkeypatch.setattr(docker, "DockerClient", lambda *, base_url, timeout: timeout and client(base_url))
    monkeypatch.setattr(docker, "from_env", lambda: client("the environment's"))
    found = docker_engine.connect()
    assert (found.root_folder, found.version) == (asked, "28.2.2")


def test_whether_an_engine_could_be_there(no_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert docker_engine.socket_exists() is False
    config = no_engine.parent / ".docker/config.json"
    config.parent.mkdir()
    for content, found in ((b'{"currentContext": "desktop-linux"}', True), (b'{"auths": {}}', False), (b"\xff", False)):
        config.write_bytes(content)
        assert docker_engine.socket_exists() is found
    no_engine.touch()
    assert docker_engine.socket_exists() is True
    no_engine.unlink()
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2376")
    assert docker_engine.socket_exists() is True


def test_names_of_an_image() -> None:
    tags, reference = ("rooflaunch:cpu", "rooflaunch:cpu-0123456789ab"), "host:5005/n@sha256:cd"
    plain = Image(id="sha256:ab", tags=tags, reference="", size_bytes=1, created="", labels={})
    assert (plain.name, plain.digest) == (tags[1], "")
    assert replace(plain, tags=("a:1", "host/a:1", "host:5005/a/b:cpu-01")).name == "a:1"
    assert replace(plain, tags=()).name == "sha256:ab"
    assert (replace(plain, reference=reference).name, replace(plain, reference=reference).digest) == (
        tags[1],
        "sha256:cd",
    )
    assert replace(plain, tags=(), reference=reference).name == reference


def test_engine_with_gpus(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    for runtimes, found in (({"runc": {}}, False), (None, False), ({"runc": {}, "nvidia": {}}, True)):
        assert docker.engine(Runtimes=runtimes).has_gpus is found
    monkeypatch.setattr(shutil, "which", {"nvidia-container-runtime-hook": "/usr/bin/hook"}.__getitem__)
    assert docker.engine(Runtimes={"runc": {}}).has_gpus is True


def test_files_in_a_mounted_folder_are_the_callers(docker: FakeDocker) -> None:
    ours = f"{os.getuid()}:{os.getgid()}"
    for options, caller in ((["name=seccomp,profile=default"], ours), (["name=rootless"], "0:0"), (None, ours)):
        assert docker.engine(SecurityOptions=options).caller == caller


def test_image_by_id_or_tag(docker: FakeDocker) -> None:
    docker.hold(
        "sha256:ab", "rooflaunch:cpu", labels={"a": "1"}, RepoDigests=["host/name@sha256:cd"], Size=7, Created="2026"
    )
    found = Image(
        id="sha256:ab",
        tags=("rooflaunch:cpu",),
        reference="host/name@sha256:cd",
        size_bytes=7,
        created="2026",
        labels={"a": "1"},
        architecture="amd64",
    )
    assert docker.engine().image("sha256:ab") == docker.engine().image("rooflaunch:cpu") == found
    assert docker.engine().image("rooflaunch:cuda") is None
    docker.hold("sha256:ef")
    assert docker.engine().image("sha256:ef") == replace(
        found, id="sha256:ef", tags=(), reference="", size_bytes=193_000_000, created="2026-11-21T10:00:00Z", labels={}
    )


def test_what_a_registry_has_an_image_for(docker: FakeDocker) -> None:
    docker.registry["debian:12-slim"] = "sha256:ab"
    arm = {"architecture": "arm64", "os": "linux", "variant": "v8"}
    several: list[dict[str, str]] = [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "unknown", "os": "unknown"},
    ]
    for listed, platforms in ((None, set()), ([], set()), ([arm], {"linux/arm64"}), ([*several, {}], {"linux/amd64"})):
        docker.platforms["debian:12-slim"] = listed
        assert docker.engine().registry_platforms("debian:12-slim") == platforms
    assert docker.engine().registry_digest("debian:12-slim") == "sha256:ab"
    for ask in (docker.engine().registry_platforms, docker.engine().registry_digest):
        with pytest.raises(ToolError, match=r"^cannot look up 'debian:13': dial tcp: no route to host$") as caught:
            ask("debian:13")
        assert caught.value.hint == "log in with `docker login`, or try from a machine with a network"


def run(docker: FakeDocker) -> tuple[ContainerEnd, list[str], list[str]]:
    out: list[str] = []
    err: list[str] = []
    with docker.engine().started(FULL) as running:
        ended = running.follow(on_stdout=out.append, on_stderr=err.append)
    return ended, out, err


def test_container_is_followed_and_removed(docker: FakeDocker) -> None:
    docker.containers.pieces = [(b"results/a\nres", b"warm"), (None, b"up\n"), (b"ults/b", None), (None, b"end")]
    docker.containers.exit_code, docker.containers.out_of_memory = 7, True
    assert run(docker) == (ContainerEnd(exit_code=7, out_of_memory=True), ["results/a", "results/b"], ["warmup", "end"])
    (container,) = docker.containers.created
    tied = {"stdin_open": True, "environment": {**FULL.environment, "ROOFLAUNCH_LIFELINE": "stdin"}}
    assert container.arguments == docker_engine._creation(FULL) | tied
    assert container.lifeline.closed
    assert docker.containers.there == {}


def test_container_that_does_not_start_is_removed(docker: FakeDocker) -> None:
    docker.containers.absent = docker_error = requests.ConnectionError("could not select device driver")
    with pytest.raises(ToolError) as caught, docker.engine().started(FULL):
        pytest.fail("it did not start")
    assert str(caught.value) == "a container of 'sha256:ab' did not start: could not select device driver"
    assert caught.value.__cause__ is docker_error
    assert docker.containers.there == {}


def test_engine_that_goes_away_keeps_what_came(docker: FakeDocker) -> None:
    def vanish() -> NoReturn:
        raise urllib3.exceptions.ProtocolError("Connection broken")

    docker.containers.pieces = [(b"results/a\n", None), vanish]
    out: list[str] = []
    with pytest.raises(ToolError) as caught, docker.engine().started(FULL) as running:
        running.follow(on_stdout=out.append, on_stderr=out.append)
    assert str(caught.value) == "the Docker engine stopped while container fake_0 ran: Connection broken"
    assert caught.value.hint == "start Docker (`sudo systemctl start docker`, or Docker Desktop)"
    assert out == ["results/a"]
    assert docker.containers.there == {}


def test_signal_to_a_container_that_has_ended_is_nothing(docker: FakeDocker) -> None:
    with docker.engine().started(FULL) as running:
        running.send_signal(signal.SIGTERM)
        docker.containers.created[0].wait()
        running.send_signal(signal.SIGKILL)
    assert docker.containers.created[0].signals == ["SIGTERM"]
