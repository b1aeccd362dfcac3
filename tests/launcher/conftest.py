import shutil

import pytest
from fake_docker import FakeDocker


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """An engine without images on a machine without the NVIDIA toolkit, whatever machine this is."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    return FakeDocker()
