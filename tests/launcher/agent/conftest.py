import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_machine import IMAGE, Machine
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.agent import agent as agent_module
from launcher.machine import containers


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Machine]:
    """`machines(NAME)`: a new machine with a folder of this name; the engine that is met is that of the newest."""
    outside = {"host": {"kernel": "6.1"}, "cloud": {"provider": "gce", "machine_type": "n1-standard-4"}}
    monkeypatch.setattr(agent_module, "outside_facts", lambda _: outside)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for name in containers.FORWARDED:
        monkeypatch.delenv(name, raising=False)

    def build(name: str) -> Machine:
        docker = FakeDocker()
        docker.hold("sha256:ab", IMAGE)
        monkeypatch.setattr(docker_engine, "connect", docker.engine)
        (tmp_path / name).mkdir()
        return Machine(tmp_path / name, docker)

    return build


@pytest.fixture
def machine(machines: Callable[[str], Machine]) -> Machine:
    return machines("home")
