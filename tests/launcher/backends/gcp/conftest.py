from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.backends.gcp.canned_cloud import Clouds, clouds_on
from tests.workload.storage.gcs_server import GcsServer, running


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """One bucket for all; launches have names of their own."""
    with running(tmp_path_factory.mktemp("gcs") / "gcs.log") as found:
        yield found


@pytest.fixture
def clouds(gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clouds:
    """Worlds to launch in, each a context manager."""
    return clouds_on(gcs, tmp_path, monkeypatch)
