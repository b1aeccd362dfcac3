from pathlib import Path

import pytest
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.images import contents
from launcher.machine import containers


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The caller's folder and environment."""
    monkeypatch.chdir(tmp_path)
    for name in containers.FORWARDED:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def command(docker: FakeDocker, caller: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """`launch local` on a machine with an engine that holds the image for this code."""
    inputs = contents.make_recipe(contents.require_flavour("cpu")).inputs_hash
    docker.hold("sha256:ab", "rooflaunch:cpu", labels={"rooflaunch.flavour": "cpu", "rooflaunch.inputs": inputs})
    monkeypatch.setattr(docker_engine, "socket_exists", lambda: True)
    monkeypatch.setattr(docker_engine, "connect", docker.engine)
    monkeypatch.setattr("workload.environment.cloud.outside_facts", lambda: {"host": {"kernel": str(caller)}})
    return docker
