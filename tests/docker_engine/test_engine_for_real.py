"""The border against an engine of the test's own, which it may kill, and against a real registry."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import docker_engine
from launcher.docker_engine import Container, Engine
from launcher.images import build, contents
from launcher.machine.containers import RUN_LABEL, follow
from tests.docker_engine.commands import docker
from tests.ports import held_port
from tests.waiting import until
from workload.contract.errors import ToolError

pytestmark = [pytest.mark.world, pytest.mark.docker]


def shell(image: str, script: str) -> Container:
    return Container(image=image, entrypoint=("sh", "-c", script), command=(), user="0:0", labels={RUN_LABEL: "test"})


def test_a_silent_container_is_waited_for(base_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "ASK_LIMIT_S", 1)
    lines: list[str] = []
    ended = follow(docker_engine.connect(), shell(base_image, "sleep 3; echo late; exit 5"), on_line=lines.append)
    assert (lines, ended.exit_code, ended.out_of_memory) == (["late"], 5, False)


def test_one_capability_reaches_the_caller_and_no_other(base_image: str) -> None:
    from launcher.machine.containers import for_profile

    timing = Container(image=base_image, command=(), user="12345:12345", labels={RUN_LABEL: "test"})
    locked = for_profile(timing, (), restricted=True)
    assert locked.entrypoint is not None
    show = "id -u; id -g; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status"
    # The same words before the trainer's.
    become = locked.entrypoint[: locked.entrypoint.index("python")]
    lines: list[str] = []
    asked = replace(locked, entrypoint=(*become, "sh", "-c", show))
    assert follow(docker_engine.connect(), asked, on_line=lines.append).exit_code == 0
    sys_admin = f"{1 << 21:016x}"
    assert lines[:2] == ["12345", "12345"]
    assert set(lines[2:]) == {f"CapEff:\t{sys_admin}", f"CapBnd:\t{sys_admin}", "NoNewPrivs:\t1"}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A real registry on the loopback; Docker allows plain HTTP there."""
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.skip("no registry: apt-get install docker-registry")
    with held_port() as port:
        settings = tmp_path / "registry.yml"
        settings.write_text(
            f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {tmp_path}/registry\n"
            f"http:\n  addr: 127.0.0.1:{port}\n"
        )
        words = [program, "serve", str(settings)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def held(connected: Engine, name: str) -> build.Built:
    image = connected.image(name)
    assert image is not None
    return build.Built(
        flavour="cpu", tag="rooflaunch:cpu-0123", image_id=image.id, digest="", base=name, base_digest="",
        size_bytes=0, commit="", seconds=0, cached=True,
    )  # fmt: skip


def test_push_and_pin_agree_on_the_digest(
    base_image: str, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = docker_engine.connect()
    built = held(connected, base_image)
    with socket.socket() as probe:
        host, _, port = registry.partition(":")
        until(lambda: probe.connect_ex((host, int(port))) == 0, "the registry did not come up")
    pushed = build.push(connected, built, f"{registry}/team/trainer")
    try:
        assert pushed.tag == f"{registry}/team/trainer:cpu-0123"
        assert pushed.digest.startswith("sha256:")
        image = connected.image(pushed.tag)
        assert image is not None
        assert (image.id, image.digest) == (built.image_id, pushed.digest), "the content's name stays what it was"
        table = tmp_path / "images.toml"
        table.write_text(f'[cpu]\nbase = "{pushed.tag}"\ndigest = ""\n')
        monkeypatch.setattr(contents, "table_path", lambda: table)
        row = replace(contents.load_flavours(contents._root() / contents.TABLE)["cpu"], base=pushed.tag)
        assert build.pin(connected, row) == pushed.digest
        assert table.read_text() == f'[cpu]\nbase = "{pushed.tag}"\ndigest = "{pushed.digest}"\n'
    finally:
        docker("rmi", pushed.tag)


def test_a_registry_that_does_not_answer(base_image: str) -> None:
    connected = docker_engine.connect()
    with pytest.raises(ToolError, match=r"cannot look up '127\.0\.0\.1:9/x:1': ") as caught:
        connected.registry_digest("127.0.0.1:9/x:1")
    assert caught.value.hint.startswith("log in with `docker login`")
    with pytest.raises(ToolError, match=r"'127\.0\.0\.1:9/x:cpu-0123' was not pushed"):
        build.push(connected, held(connected, base_image), "127.0.0.1:9/x")
    docker("rmi", "127.0.0.1:9/x:cpu-0123")
