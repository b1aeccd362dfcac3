"""Uploads by the real client to a server that is as strict as Cloud Storage, with its faults."""

import gzip
import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workload.storage.bundles import STEPS, content_of, file_of, make_bundle
from tests.workload.storage.strict_gcs import BUCKET, GRAIN_BYTES, StrictGcs, _Handler
from workload.contract import bundle
from workload.contract.errors import BundleError, ToolError
from workload.storage import gcs as bucket
from workload.storage import inventory
from workload.storage.buckets import Content
from workload.storage.gcs import Bucket
from workload.storage.store import Patience, TooLongError, UnreachableError

pytestmark = pytest.mark.world

RUN = "20261121T142530Z-gcp-t4-resnet18-b16-fp32-0000aa"
FILES = ["run.json", "log.txt", "ncu/kernels.csv", "steps.csv", "MANIFEST.json"]
LARGE_BYTES = 1 << 20


@pytest.fixture(scope="module")
def _connected() -> Iterator[tuple[StrictGcs, Bucket]]:
    with StrictGcs() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server, bucket.connect(BUCKET, prefix="", jobs=8, patience=Patience(first_retry_s=1))


@pytest.fixture
def gcs(_connected: tuple[StrictGcs, Bucket], monkeypatch: pytest.MonkeyPatch) -> StrictGcs:
    """One server for all tests of this file, empty; a failed request is repeated at once, and 1 MiB is large."""
    from google.cloud.storage import blob, retry

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", _connected[0].url)
    monkeypatch.setattr(retry, "DEFAULT_RETRY", retry.DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02))
    monkeypatch.setattr(blob, "_MAX_MULTIPART_SIZE", GRAIN_BYTES)
    monkeypatch.setattr(bucket, "CHUNK_BYTES", 2 * GRAIN_BYTES)
    _connected[0].reset()
    return _connected[0]


@pytest.fixture
def opened(gcs: StrictGcs, _connected: tuple[StrictGcs, Bucket]) -> Bucket:
    assert gcs is _connected[0]
    return _connected[1]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A complete bundle."""
    files = {"steps.csv": STEPS, "log.txt": b"\r\nline\r\n" * 20, "ncu/kernels.csv": b"ID\n" * 60}
    return make_bundle(tmp_path, RUN, files)


def held(gcs: StrictGcs) -> dict[str, bytes]:
    return {name.removeprefix(f"runs/{RUN}/"): each.content for name, each in gcs.objects.items()}


# Bundles


def test_an_incomplete_run_of_the_same_name_gives_way(gcs: StrictGcs, opened: Bucket, made: Path) -> None:
    inventory.upload(opened, made)
    del gcs.objects[f"runs/{RUN}/MANIFEST.json"]
    bundle.write_document(made, {"run_id": RUN, "status": "preempted"})
    bundle.seal(made)
    assert inventory.upload(opened, made).files == 2, "the record and the manifest"
    assert held(gcs) == content_of(made)


@pytest.mark.parametrize("name", ["MANIFEST.json", "steps.csv"])
def test_what_is_no_complete_bundle_here_is_not_sent(name: str, gcs: StrictGcs, opened: Bucket, made: Path) -> None:
    (made / name).unlink()
    with pytest.raises(BundleError):
        inventory.upload(opened, made)
    assert gcs.calls == {}


def test_a_file_that_changes_during_the_upload(gcs: StrictGcs, opened: Bucket, made: Path) -> None:
    with pytest.raises(BundleError) as caught:
        inventory.upload(opened, made, on_file=lambda _: (made / "steps.csv").write_text("other"))
    assert caught.value.report() == (
        f"error: 'runs/{RUN}/steps.csv' differs from its checksum: it was changed after the run\nhint: run again"
    )
    assert "MANIFEST.json" not in held(gcs)


# Objects


def test_commands_for_people(opened: Bucket) -> None:
    assert opened.removal("runs/x") == f"gcloud storage rm gs://{BUCKET}/runs/x"
    assert opened.removal("runs/x/") == f"gcloud storage rm -r gs://{BUCKET}/runs/x"


@pytest.mark.parametrize("size", [20, LARGE_BYTES])
def test_the_server_refuses_what_is_not_as_it_was_sealed(
    size: int, gcs: StrictGcs, opened: Bucket, tmp_path: Path
) -> None:
    path, _ = file_of(tmp_path, size)
    with pytest.raises(BundleError, match=r"^'x' differs from its checksum: it was changed after the run$"):
        opened.upload("x", path, crc32c="AAAAAA==")
    assert gcs.objects == {}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 408])
@pytest.mark.parametrize("step", ["multipart", "start", "chunk"])
def test_a_burst_of_failures_goes_unnoticed(
    status: int, step: str, gcs: StrictGcs, opened: Bucket, tmp_path: Path
) -> None:
    path, crc = file_of(tmp_path, 20 if step == "multipart" else LARGE_BYTES)
    gcs.fail[step] = [status] * 4
    assert opened.upload("x", path, crc32c=crc) is True
    assert gcs.objects["x"].content == path.read_bytes()
    assert gcs.fail[step] == []


@pytest.mark.parametrize("step", ["multipart", "chunk"])
@pytest.mark.parametrize("breaks", [1, 2])
def test_a_lost_answer_goes_unnoticed(breaks: int, step: str, gcs: StrictGcs, opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, 20 if step == "multipart" else LARGE_BYTES)
    gcs.fail[step] = [0] * breaks
    opened.upload("x", path, crc32c=crc)
    assert gcs.objects["x"].content == path.read_bytes()
    assert gcs.objects["x"].generation == 1001, "stored once"


@pytest.mark.parametrize("kept", [0, GRAIN_BYTES])
def test_a_server_that_keeps_a_part_of_a_chunk(kept: int, gcs: StrictGcs, opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    gcs.keep_bytes = kept
    assert opened.upload("x", path, crc32c=crc) is True
    assert gcs.objects["x"].content == path.read_bytes()


@pytest.mark.parametrize("status", [404, 410])
def test_an_upload_that_the_server_forgot_begins_again(
    status: int, gcs: StrictGcs, opened: Bucket, tmp_path: Path
) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    gcs.fail["chunk"] = [status]
    assert opened.upload("x", path, crc32c=crc) is True
    assert gcs.calls["start"] == 2
    assert gcs.objects["x"].content == path.read_bytes()


def test_no_permission_to_write(gcs: StrictGcs, opened: Bucket) -> None:
    gcs.fail["multipart"] = [403]
    with pytest.raises(ToolError) as caught:
        opened.write("x", b"1")
    assert caught.value.report() == (
        f"error: no permission to write to bucket '{BUCKET}': as the test wants\n"
        "hint: ask the bucket's owner for roles/storage.objectUser, or use another account: "
        "gcloud auth application-default login"
    )


@pytest.mark.parametrize("breaks", [1, 2])
def test_who_wrote_it_knows_so_after_a_lost_answer(breaks: int, gcs: StrictGcs, opened: Bucket) -> None:
    gcs.fail["multipart"] = [0] * breaks
    assert opened.write("x", b"mine", if_absent=True) is True
    gcs.fail["multipart"] = [503]
    assert opened.write("x", b"yours", if_absent=True) is False
    assert gcs.objects["x"].content == b"mine"


def test_what_arrives_is_compared_with_its_checksum(gcs: StrictGcs, opened: Bucket) -> None:
    opened.write("x", b"content")
    gcs.fail["media"] = [1]
    with pytest.raises(ToolError, match=rf"^bucket '{BUCKET}' sent damaged data$"):
        opened.read("x")
    assert opened.read("x") == b"content"


def test_what_is_read_is_neither_unpacked_nor_without_bound(gcs: StrictGcs, opened: Bucket) -> None:
    """A status.json of 100 MB, packed: the pack is what is there, and it is read as that."""
    packed = gzip.compress(b" " * 100_000_000)
    gcs.store({"name": "x", "contentEncoding": "gzip"}, packed)
    tracemalloc.start()
    assert opened.read("x") == packed
    with pytest.raises(TooLongError, match=rf"^'x' in bucket '{BUCKET}' has more than 1000 bytes$"):
        opened.read("x", most_bytes=1000)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5_000_000
    gcs.calls.clear()
    opened.write("y", b"." * 1000)
    assert opened.read("y", most_bytes=1000) == b"." * 1000
    assert gcs.calls["get"] == 0, "the size is watched as it comes, without a question more"


def test_a_bucket_that_is_busy_at_first_contact_is_asked_again(gcs: StrictGcs, opened: Bucket) -> None:
    gcs.fail["list"] = [429] * 5
    patience = Patience(first_answer_s=60.0, first_retry_s=0.02)
    opened.with_patience(patience).require_answer("")
    assert gcs.calls["list"] == 6
    gcs.fail["list"] = [429] * 10_000
    with pytest.raises(UnreachableError, match=r"too many requests \(429\)$"):
        opened.with_patience(Patience(first_answer_s=0.1, first_retry_s=0.02)).require_answer("")


def test_a_log_in_page_of_the_network(opened: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "_list", lambda self, _: self._send(200, b"<html>Welcome</html>"))
    with pytest.raises(UnreachableError, match=r"^another server than Cloud Storage answers at http://127"):
        opened.require_answer("")


def test_what_is_permitted(gcs: StrictGcs, opened: Bucket) -> None:
    assert opened.permitted(["storage.objects.get"]) == frozenset()
    gcs.permissions = {"storage.objects.get", "storage.objects.list"}
    asked = ["storage.objects.get", "storage.objects.create"]
    assert opened.permitted(asked) == {"storage.objects.get"}


def test_a_failing_disk_is_no_network_error(opened: Bucket) -> None:
    class Failing(io.BytesIO):
        def read(self, _: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    wanted = Content(name="x", source=Failing(), bytes=1, crc32c="", replaces=None)
    with pytest.raises(OSError, match="Input/output error"):
        opened._put(wanted)
