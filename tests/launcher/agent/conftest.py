from pathlib import Path

import pytest
from agent_machine import IMAGE, Machine
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.agent import agent as agent_module
from launcher.machine import containers


@pytest.fixture
def machine(tmp_path: Path, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> Machine:
    docker.hold("sha256:ab", IMAGE)
    monkeypatch.setattr(docker_engine, "connect", docker.engine)
    outside = {"host": {"kernel": "6.1"}, "cloud": {"provider": "gce", "machine_type": "n1-standard-4"}}
    monkeypatch.setattr(agent_module, "outside_facts", lambda _: outside)
    for name in containers.FORWARDED:
        monkeypatch.delenv(name, raising=False)
    return Machine(tmp_path, docker)
