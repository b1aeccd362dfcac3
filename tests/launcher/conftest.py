import shutil
import sys
from collections.abc import Callable

import pytest
from fake_docker import FakeDocker

from launcher.__main__ import main


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """An engine without images on a machine without the NVIDIA toolkit, whatever machine this is."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    return FakeDocker()


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`launch(*words)` in this process; returns the exit code."""

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["launch", *words])
        return main()

    return run
