from collections.abc import Iterator

import pytest

from tests.launcher.backends.aws.aws_world import World, aws_world


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A fake AWS whose clock passes only while somebody sleeps."""
    with aws_world(monkeypatch) as made:
        yield made
