from collections.abc import Iterator

import pytest

from tests.workload.storage.fake_gcs import FakeStorage
from tests.workload.storage.gcs_server import GcsServer, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """The real fake-gcs-server, shared by the tests of a file."""
    with running(tmp_path_factory.mktemp("gcs") / "log") as found:
        yield found


@pytest.fixture
def storage() -> FakeStorage:
    return FakeStorage()
