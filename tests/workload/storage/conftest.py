from collections.abc import Iterator
from typing import Any

import pytest

from tests.workload.storage import s3_server
from tests.workload.storage.gcs_server import GcsServer, running
from tests.workload.storage.s3_server import S3Server
from tests.workload.storage.strict_gcs import GRAIN_BYTES, StrictGcs
from tests.workload.storage.strict_s3 import BUCKET, PART_BYTES, StrictS3
from workload.storage import buckets, gcs, s3
from workload.storage.store import Patience


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """The real fake-gcs-server, shared by the tests of a file."""
    with running(tmp_path_factory.mktemp("gcs") / "log") as found:
        yield found


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server of moto, shared by the tests of a file."""
    with s3_server.running(tmp_path_factory.mktemp("s3") / "log") as found:
        yield found


@pytest.fixture(scope="module")
def gcs_connected() -> Iterator[tuple[StrictGcs, gcs.Bucket]]:
    """Our own server of Cloud Storage, and our store there, shared by the tests of a file."""
    with StrictGcs() as running_server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", running_server.url)
        yield running_server, gcs.connect("strict-test", prefix="", jobs=8, patience=Patience(first_retry_s=1))


@pytest.fixture
def strict_gcs(gcs_connected: tuple[StrictGcs, gcs.Bucket], monkeypatch: pytest.MonkeyPatch) -> StrictGcs:
    """The server, empty; a failed request is repeated at once, and 1 MiB is large."""
    from google.cloud.storage import blob, retry

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_connected[0].url)
    monkeypatch.setattr(retry, "DEFAULT_RETRY", retry.DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02))
    monkeypatch.setattr(blob, "_MAX_MULTIPART_SIZE", GRAIN_BYTES)
    monkeypatch.setattr(gcs, "CHUNK_BYTES", 2 * GRAIN_BYTES)
    gcs_connected[0].reset()
    return gcs_connected[0]


@pytest.fixture
def gcs_store(strict_gcs: StrictGcs, gcs_connected: tuple[StrictGcs, gcs.Bucket]) -> gcs.Bucket:
    assert strict_gcs is gcs_connected[0]
    return gcs_connected[1]


@pytest.fixture(scope="session")
def strict_session() -> Any:
    return s3_server.make_session()


@pytest.fixture(scope="module")
def strict_server() -> Iterator[StrictS3]:
    """Our own server, shared by the tests of a file."""
    with StrictS3() as running_server:
        yield running_server


@pytest.fixture
def strict(strict_server: StrictS3, strict_session: Any, monkeypatch: pytest.MonkeyPatch) -> StrictS3:
    """Our own server, empty, to which the store is led."""
    strict_server.reset()
    s3_server.meet(strict_server.url, strict_session, monkeypatch)
    return strict_server


@pytest.fixture
def small_parts(strict: StrictS3, monkeypatch: pytest.MonkeyPatch) -> StrictS3:
    """A failed request is repeated at once, and 250 kB are large."""
    monkeypatch.setattr(buckets, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(buckets, "LONGEST_PAUSE_S", 0.002)
    monkeypatch.setattr(s3, "PART_BYTES", PART_BYTES)
    strict.least_part_bytes = PART_BYTES
    return strict


@pytest.fixture
def opened(small_parts: StrictS3) -> s3.Bucket:
    """The bucket of our own server."""
    found = s3.connect(BUCKET, prefix="", jobs=4)
    small_parts.calls.clear()
    return found
