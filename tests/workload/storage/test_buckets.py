"""What the stores of both clouds promise where requests fail, against servers as strict as the clouds' own."""

import io
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.workload.storage import strict_gcs, strict_s3
from tests.workload.storage.bundles import file_of
from tests.workload.storage.strict_gcs import StrictGcs
from tests.workload.storage.strict_s3 import BREAK, DAMAGED, StrictS3
from workload.contract.errors import BundleError, ToolError
from workload.storage.buckets import CloudBucket, Content
from workload.storage.store import Patience, StoredObject, TooLongError, UnreachableError

pytestmark = pytest.mark.world

# Kinds of requests by their step in an upload, as the servers call them; an object is small or sent in pieces.
SENDING = [
    ("gcs", "multipart", False),
    ("gcs", "start", True),
    ("gcs", "chunk", True),
    ("s3", "PutObject", False),
    ("s3", "CreateMultipartUpload", True),
    ("s3", "UploadPart", True),
    ("s3", "CompleteMultipartUpload", True),
]
STORING = [row for row in SENDING if row[1] not in ("start", "CreateMultipartUpload")]
# Those after which the object is there.
ENDING = [row for row in STORING if row[1] not in ("chunk", "UploadPart")]


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """A server, empty, and our store there. `large_bytes`: size of an object that is sent in pieces.

    `passing`: refusals that another attempt cures, `busy` one of them; `broken`: the answer is lost, `damaged`: a byte
    is another. `forgotten`: what a piece of an unknown upload meets. The rest: kinds of requests.
    """

    server: Any
    store: CloudBucket
    large_bytes: int
    passing: tuple[Any, ...]
    busy: Any
    broken: Any
    damaged: Any
    forgotten: tuple[Any, ...]
    getting: str
    listing: str
    starting: str
    piece: str

    def put(self, name: str, content: bytes) -> StoredObject:
        """Store an object, past our store; how it is listed."""
        if isinstance(self.server, StrictGcs):
            self.server.store({"name": name}, content)
        else:
            self.server.put(name, content)
        (listed,) = self.store.objects(name)
        return listed

    def held(self, name: str) -> bytes:
        return bytes(self.server.objects[name].content)

    def is_clean(self) -> bool:
        """Whether no pieces are left that cost money."""
        return isinstance(self.server, StrictGcs) or not self.server.uploads

    def size(self, is_large: bool) -> int:
        return self.large_bytes if is_large else 20


@pytest.fixture(params=["gcs", "s3"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    if request.param == "gcs":
        gcs: StrictGcs = request.getfixturevalue("strict_gcs")
        return Cloud(
            server=gcs,
            store=request.getfixturevalue("gcs_store"),
            large_bytes=strict_gcs.LARGE_BYTES,
            passing=(429, 500, 502, 503, 504, 408),
            busy=429,
            broken=0,
            damaged=1,
            forgotten=(404, 410),
            getting="media",
            listing="list",
            starting="start",
            piece="chunk",
        )
    s3: StrictS3 = request.getfixturevalue("small_parts")
    busy, conflict = (503, "SlowDown"), (409, "ConditionalRequestConflict")
    return Cloud(
        server=s3,
        store=request.getfixturevalue("opened"),
        large_bytes=strict_s3.LARGE_BYTES,
        passing=(busy, (500, "InternalError"), (502, "502"), (400, "RequestTimeout"), conflict),
        busy=busy,
        broken=BREAK,
        damaged=DAMAGED,
        forgotten=((404, "NoSuchUpload"),),
        getting="GetObject",
        listing="ListObjectsV2",
        starting="CreateMultipartUpload",
        piece="UploadPart",
    )


class Broken(io.BytesIO):
    """A file on a disk that fails."""

    def read(self, _: int | None = -1) -> bytes:
        raise OSError(5, "Input/output error")

    def write(self, _: Any) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("cloud", "step", "is_large"), SENDING, indirect=["cloud"])
def test_burst_of_failures_goes_unnoticed(cloud: Cloud, step: str, is_large: bool, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, cloud.size(is_large))
    for number, fault in enumerate(cloud.passing):
        cloud.server.fail[step] = [fault] * 3
        assert cloud.store.upload(f"x{number}", path, crc32c=crc) is True
        assert cloud.held(f"x{number}") == path.read_bytes()
        assert cloud.server.fail[step] == []
    assert cloud.is_clean()


@pytest.mark.parametrize("breaks", [1, 2])
@pytest.mark.parametrize(("cloud", "step", "is_large"), STORING, indirect=["cloud"])
def test_lost_answer_goes_unnoticed(cloud: Cloud, step: str, is_large: bool, breaks: int, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, cloud.size(is_large))
    cloud.server.fail[step] = [cloud.broken] * breaks
    cloud.store.upload("x", path, crc32c=crc)
    assert cloud.held("x") == path.read_bytes()
    assert cloud.is_clean()


@pytest.mark.parametrize("breaks", [1, 2])
@pytest.mark.parametrize(("cloud", "step", "is_large"), ENDING, indirect=["cloud"])
def test_writer_knows_after_a_lost_answer_that_it_was_first(
    cloud: Cloud, step: str, is_large: bool, breaks: int
) -> None:
    size = cloud.size(is_large)
    cloud.server.fail[step] = [cloud.broken] * breaks
    assert cloud.store.write("x", b"m" * size, if_absent=True) is True
    cloud.server.fail[step] = [cloud.passing[1]]
    assert cloud.store.write("x", b"y" * size, if_absent=True) is False
    assert cloud.held("x") == b"m" * size
    assert cloud.is_clean()


def test_upload_that_the_server_forgot_begins_again(cloud: Cloud, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, cloud.large_bytes)
    for number, fault in enumerate(cloud.forgotten):
        cloud.server.calls.clear()
        cloud.server.fail[cloud.piece] = [fault]
        assert cloud.store.upload(f"x{number}", path, crc32c=crc) is True
        assert cloud.server.calls[cloud.starting] == 2
        assert cloud.held(f"x{number}") == path.read_bytes()
    assert cloud.is_clean()


@pytest.mark.parametrize("is_large", [False, True])
def test_file_that_was_changed_is_not_stored(cloud: Cloud, is_large: bool, tmp_path: Path) -> None:
    path, _ = file_of(tmp_path, cloud.size(is_large))
    with pytest.raises(BundleError, match=r"^'x' differs from its checksum: it was changed after the run$"):
        cloud.store.upload("x", path, crc32c="AAAAAA==")
    assert cloud.server.objects == {}
    assert cloud.is_clean()


def test_damage_on_the_way_is_noticed_by_the_checksum(cloud: Cloud) -> None:
    cloud.store.write("x", b"content")
    cloud.server.fail[cloud.getting] = [cloud.damaged]
    with pytest.raises(ToolError, match=r"^bucket 'strict-test' sent damaged data$"):
        cloud.store.read("x")
    assert cloud.store.read("x") == b"content"


def test_object_that_is_too_long_is_not_held_in_memory(cloud: Cloud) -> None:
    cloud.put("x", b" " * 50_000_000)
    tracemalloc.start()
    with pytest.raises(TooLongError, match=r"^'x' in bucket 'strict-test' has more than 1000 bytes$"):
        cloud.store.read("x", most_bytes=1000)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5_000_000


def test_bucket_that_is_busy_at_first_contact_is_asked_again(cloud: Cloud) -> None:
    cloud.server.fail[cloud.listing] = [cloud.busy] * 5
    cloud.store.with_patience(Patience(first_answer_s=60.0, first_retry_s=0.02)).require_answer("")
    assert cloud.server.fail[cloud.listing] == []
    cloud.server.fail[cloud.listing] = [cloud.busy] * 10_000
    with pytest.raises(UnreachableError, match=r"answers that it gets too many requests"):
        cloud.store.with_patience(Patience(first_answer_s=0.1, first_retry_s=0.02)).require_answer("")


def test_failing_disk_is_no_network_error(cloud: Cloud) -> None:
    listed = cloud.put("x", b"content")
    cloud.server.calls.clear()
    with pytest.raises(OSError, match="No space left"):
        cloud.store.download(listed, Broken())
    assert cloud.server.calls[cloud.getting] == 1
    with pytest.raises(OSError, match="Input/output error"):
        cloud.store._put(Content(name="x", source=Broken(), bytes=1, crc32c="", replaces=None))


@pytest.mark.parametrize(
    ("cloud", "name", "command"),
    [
        ("gcs", "runs/x", "gcloud storage rm gs://strict-test/runs/x"),
        ("gcs", "runs/x/", "gcloud storage rm -r gs://strict-test/runs/x"),
        ("s3", "runs/x", "aws s3 rm s3://strict-test/runs/x"),
        ("s3", "my runs/", "aws s3 rm --recursive 's3://strict-test/my runs/'"),
    ],
    indirect=["cloud"],
)
def test_command_that_removes_objects_is_for_a_shell(cloud: Cloud, name: str, command: str) -> None:
    assert cloud.store.removal(name) == command
