"""Our store in S3 against a server as strict as S3, with its refusals and its faults."""

import base64
import io
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from launcher.script import files
from tests.workload.storage import s3_server
from tests.workload.storage.bundles import content_of, file_of, make_bundle, report_of
from tests.workload.storage.s3_server import SETTINGS, S3Server
from tests.workload.storage.strict_s3 import (
    BREAK,
    BUCKET,
    CUT,
    DAMAGED,
    HANG,
    LARGE_BYTES,
    LATE_REFUSAL,
    PART_BYTES,
    Answer,
    Refusal,
    StrictS3,
    _Handler,
)
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode, ToolError
from workload.contract.operating_system import crc32c_of
from workload.storage import inventory, s3
from workload.storage.address import open_store, parse_source
from workload.storage.fetch import FetchState, fetch
from workload.storage.s3 import Bucket
from workload.storage.store import (
    ObjectChangedError,
    ObjectExistsError,
    Patience,
    TooLongError,
    UnreachableError,
)

pytestmark = pytest.mark.world

ROOT = Path(__file__).parents[3]
RUN = "20261121T142530Z-aws-t4-resnet18-b16-fp32-0000aa"
SLOW_DOWN: Refusal = (503, "SlowDown")
CONFLICT: Refusal = (409, "ConditionalRequestConflict")


# Objects


@pytest.mark.slow
def test_private_object_leaves_no_older_version_in_a_bucket_with_versions(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto.meet(monkeypatch)
    versioned = {"Bucket": s3_server.BUCKET, "VersioningConfiguration": {"Status": "Enabled"}}
    moto.client.put_bucket_versioning(**versioned)
    store = open_store(f"s3://{s3_server.BUCKET}/place")
    for content in (b"token", b"token", b"{}"):
        store.write("launches/variables/x.json", content, is_private=True)
        store.write("launches/variables/x.json.other", content)
    kept = moto.client.list_object_versions(Bucket=s3_server.BUCKET)["Versions"]
    names = [row["Key"].removeprefix("place/launches/variables/") for row in kept]
    assert sorted(names) == ["x.json", "x.json.other", "x.json.other", "x.json.other"]
    assert store.read("launches/variables/x.json") == b"{}"


def test_private_object_is_written_although_versions_may_not_be_deleted(small_parts: StrictS3, opened: Bucket) -> None:
    # The strict server knows no versions: it takes the request for them for a list of objects.
    small_parts.fail["ListObjectsV2"] = [(403, "AccessDenied")]
    assert opened.write("x", b"{}", is_private=True)
    assert small_parts.objects["x"].content == b"{}"
    small_parts.fail["ListObjectsV2"] = [BREAK] * 10**5
    with pytest.raises(UnreachableError):
        opened.write("x", b"{}", is_private=True)


@pytest.mark.parametrize("size", [0, 20, PART_BYTES, LARGE_BYTES])
def test_an_object_is_made_once(size: int, small_parts: StrictS3, opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, size)
    assert opened.upload("x.json", path, crc32c=crc) is True
    held = small_parts.objects["x.json"]
    assert (held.content, held.headers["Content-Type"]) == (path.read_bytes(), "application/json")
    assert opened.checksum("x.json") == crc
    assert opened.upload("x.json", path, crc32c=crc) is False
    small_parts.put("x.json", b"other")
    assert report_of(lambda: opened.upload("x.json", path, crc32c=crc), ObjectExistsError, ExitCode.BAD_BUNDLE) == (
        f"error: another 'x.json' is in bucket '{BUCKET}' already\nhint: aws s3 ls s3://{BUCKET}/x.json"
    )
    (listed,) = opened.objects("")
    assert opened.upload("x.json", path, crc32c=crc, replaces=listed.version) is True
    assert small_parts.objects["x.json"].content == path.read_bytes()
    assert small_parts.uploads == {}, "no parts are left"


def test_an_object_that_the_server_stores_otherwise(
    small_parts: StrictS3, opened: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Answer(headers={"ETag": '"1"', "x-amz-checksum-crc32c": "AAAAAA=="})
    monkeypatch.setattr(_Handler, "_PutObject", lambda _: stored)
    assert report_of(lambda: opened.write("x", b"content"), BundleError, ExitCode.BAD_BUNDLE) == (
        f"error: 'x' arrived damaged in bucket '{BUCKET}'\nhint: upload it again"
    )
    assert small_parts.calls["PutObject"] == 1


def test_an_object_to_replace_that_is_gone(opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, 20)
    with pytest.raises(ObjectExistsError):
        opened.upload("x", path, crc32c=crc, replaces="abc")


@pytest.mark.parametrize("size", [20, LARGE_BYTES])
def test_a_file_that_was_changed_is_not_stored(
    size: int, small_parts: StrictS3, opened: Bucket, tmp_path: Path
) -> None:
    path, _ = file_of(tmp_path, size)
    with pytest.raises(BundleError, match=r"^'x' differs from its checksum: it was changed after the run$"):
        opened.upload("x", path, crc32c="AAAAAA==")
    assert (small_parts.objects, small_parts.uploads) == ({}, {})
    assert small_parts.calls["PutObject"] == small_parts.calls["CompleteMultipartUpload"] == 0, (
        "no server has to notice it"
    )


def test_a_file_that_shrinks_on_the_way(opened: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    send = opened._client.upload_part

    def shrink(**words: Any) -> Any:
        os.truncate(path, PART_BYTES)
        return send(**words)

    monkeypatch.setattr(opened._client, "upload_part", shrink)
    with pytest.raises(BundleError, match="differs from its checksum"):
        opened.upload("x", path, crc32c=crc)


@pytest.mark.parametrize("fault", [SLOW_DOWN, (500, "InternalError"), (502, "502"), (400, "RequestTimeout"), CONFLICT])
@pytest.mark.parametrize(
    ("operation", "size"),
    [
        ("PutObject", 20),
        ("CreateMultipartUpload", LARGE_BYTES),
        ("UploadPart", LARGE_BYTES),
        ("CompleteMultipartUpload", LARGE_BYTES),
    ],
)
def test_a_burst_of_failures_goes_unnoticed(
    fault: Refusal, operation: str, size: int, small_parts: StrictS3, opened: Bucket, tmp_path: Path
) -> None:
    path, crc = file_of(tmp_path, size)
    small_parts.fail[operation] = [fault] * 3
    assert opened.upload("x", path, crc32c=crc) is True
    assert small_parts.objects["x"].content == path.read_bytes()
    assert small_parts.fail[operation] == []
    assert small_parts.uploads == {}


@pytest.mark.parametrize("breaks", [1, 2])
@pytest.mark.parametrize(
    ("operation", "size"),
    [("PutObject", 20), ("UploadPart", LARGE_BYTES), ("CompleteMultipartUpload", LARGE_BYTES)],
)
def test_a_lost_answer_goes_unnoticed(
    breaks: int, operation: str, size: int, small_parts: StrictS3, opened: Bucket, tmp_path: Path
) -> None:
    path, crc = file_of(tmp_path, size)
    small_parts.fail[operation] = [BREAK] * breaks
    opened.upload("x", path, crc32c=crc)
    assert small_parts.objects["x"].content == path.read_bytes()
    assert small_parts.uploads == {}


def test_a_refusal_after_the_answer_has_begun(small_parts: StrictS3, opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    small_parts.fail["CompleteMultipartUpload"] = [LATE_REFUSAL]
    assert opened.upload("x", path, crc32c=crc) is True
    assert small_parts.objects["x"].content == path.read_bytes()


def test_a_conflict_begins_an_upload_in_parts_again(small_parts: StrictS3, opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    small_parts.fail["CompleteMultipartUpload"] = [CONFLICT] * 100
    with pytest.raises(ToolError, match=rf"^bucket '{BUCKET}': as the test wants$"):
        opened.upload("x", path, crc32c=crc)
    assert small_parts.calls["CreateMultipartUpload"] == small_parts.calls["CompleteMultipartUpload"] == s3.ATTEMPTS


def test_an_upload_that_the_server_forgot_begins_again(small_parts: StrictS3, opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    small_parts.fail["UploadPart"] = [(404, "NoSuchUpload")]
    assert opened.upload("x", path, crc32c=crc) is True
    assert small_parts.calls["CreateMultipartUpload"] == 2
    assert small_parts.uploads == {}


def test_of_two_large_uploads_the_first_stays(small_parts: StrictS3, opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    complete = opened._client.complete_multipart_upload

    def late(**words: Any) -> Any:
        small_parts.put("x", b"mine")
        return complete(**words)

    opened._client.complete_multipart_upload = late
    with pytest.raises(ObjectExistsError):
        opened.upload("x", path, crc32c=crc)
    assert small_parts.objects["x"].content == b"mine"
    assert small_parts.uploads == {}


def test_many_parts(small_parts: StrictS3, opened: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file with more parts than S3 takes, the parts are larger."""
    monkeypatch.setattr(s3, "MAX_PARTS", 2)
    small_parts.least_part_bytes = LARGE_BYTES // 2
    path, crc = file_of(tmp_path, LARGE_BYTES + 1)
    assert opened.upload("x", path, crc32c=crc) is True
    assert small_parts.calls["UploadPart"] == 2


@pytest.mark.parametrize("breaks", [1, 2])
@pytest.mark.parametrize(("operation", "size"), [("PutObject", 4), ("CompleteMultipartUpload", LARGE_BYTES)])
def test_who_wrote_it_knows_so_after_a_lost_answer(
    operation: str, size: int, breaks: int, small_parts: StrictS3, opened: Bucket
) -> None:
    small_parts.fail[operation] = [BREAK] * breaks
    assert opened.write("x", b"m" * size, if_absent=True) is True
    small_parts.fail[operation] = [(500, "InternalError")]
    assert opened.write("x", b"y" * size, if_absent=True) is False
    assert small_parts.objects["x"].content == b"m" * size
    assert small_parts.uploads == {}


@pytest.mark.parametrize("fault", [CONFLICT, SLOW_DOWN])
def test_a_refusal_is_no_lost_answer(fault: Refusal, small_parts: StrictS3, opened: Bucket) -> None:
    """Another writer has stored the same text: it was first, and we are told so."""
    small_parts.put("x", b"same")
    small_parts.fail["PutObject"] = [fault]
    assert opened.write("x", b"same", if_absent=True) is False


def test_what_the_server_damages_is_noticed(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.fail["PutObject"] = [(400, "BadDigest", "Differs.")]
    assert opened.write("x", b"content")
    small_parts.fail["PutObject"] = [(400, "BadDigest", "Differs.")] * 10_000
    impatient = opened.with_patience(Patience(retry_s=0.05))
    with pytest.raises(ToolError, match=rf"^bucket '{BUCKET}' received damaged data: Differs\.$"):
        impatient.write("x", b"content")
    small_parts.fail["GetObject"] = [DAMAGED]
    with pytest.raises(ToolError, match=rf"^bucket '{BUCKET}' sent damaged data$"):
        opened.read("x")
    assert opened.read("x") == b"content"


def test_a_checksum_of_another_kind(small_parts: StrictS3, opened: Bucket) -> None:
    """botocore compares it by itself, and has an error of its own."""
    small_parts.put("x", b"content")
    small_parts.objects["x"].headers["x-amz-checksum-crc32"] = base64.b64encode(
        crc32(b"content").to_bytes(4, "big")
    ).decode()
    assert opened.read("x") == b"content"
    small_parts.fail["GetObject"] = [DAMAGED]
    with pytest.raises(ToolError, match=rf"^bucket '{BUCKET}' sent damaged data$"):
        opened.read("x")
    (listed,) = opened.objects("")
    small_parts.fail["GetObject"] = [DAMAGED]
    sink = Pieces()
    opened.download(listed, sink)
    assert sink.getvalue() == b"conten?", "a fetch compares the file, and repeats the download"


def test_objects_of_other_programs_have_a_checksum_too(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.put("x", b"content" * 1000)
    assert opened.checksum("x") == crc32c_of(io.BytesIO(b"content" * 1000))
    assert (small_parts.calls["HeadObject"], small_parts.calls["GetObject"]) == (1, 1)
    opened.write("y", b"1")
    assert opened.checksum("y") == crc32c_of(io.BytesIO(b"1"))
    assert small_parts.calls["GetObject"] == 1, "the server knows that of ours"


@pytest.mark.parametrize(
    ("text", "kind"), [("AAAAAA==-3", "COMPOSITE"), ("AAAAAA==", "COMPOSITE"), ("AAAAAA==-3", "FULL_OBJECT")]
)
def test_a_checksum_of_the_parts_is_not_that_of_the_object(
    text: str, kind: str, small_parts: StrictS3, opened: Bucket
) -> None:
    """Other programs upload in parts whose checksums S3 sums up."""
    small_parts.put("x", b"content")
    small_parts.objects["x"].headers |= {"x-amz-checksum-crc32c": text, "x-amz-checksum-type": kind}
    assert opened.checksum("x") == crc32c_of(io.BytesIO(b"content"))
    assert opened.read("x") == b"content"


def test_commands_for_people_are_words_of_a_shell(opened: Bucket) -> None:
    assert opened.removal("runs/x") == f"aws s3 rm s3://{BUCKET}/runs/x"
    assert opened.removal("my runs/") == f"aws s3 rm --recursive 's3://{BUCKET}/my runs/'"


# Downloads


class Pieces(io.BytesIO):
    """Where a download goes."""


@pytest.mark.parametrize("fault", [CUT, BREAK, SLOW_DOWN])
@pytest.mark.parametrize("times", [1, 5])
def test_a_download_goes_on_where_it_broke(
    fault: str | Refusal, times: int, small_parts: StrictS3, opened: Bucket
) -> None:
    content = os.urandom(200_000)
    small_parts.put("x", content)
    (listed,) = opened.objects("")
    small_parts.fail["GetObject"] = [fault] * times
    sink = Pieces()
    opened.download(listed, sink)
    assert sink.getvalue() == content
    assert small_parts.fail["GetObject"] == []


def test_a_download_of_what_was_replaced(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.put("x", b"old")
    (listed,) = opened.objects("")
    small_parts.put("x", b"new")
    with pytest.raises(ObjectChangedError):
        opened.download(listed, Pieces())
    assert small_parts.refused == ["PreconditionFailed"], "before the content was sent"
    small_parts.ignores_conditions = True
    with pytest.raises(ObjectChangedError):
        opened.download(listed, Pieces())
    small_parts.put("x", b"old")
    sink = Pieces()
    opened.download(listed, sink)
    assert sink.getvalue() == b"old", "the same content has the same version"


def test_a_failing_disk_is_no_network_error(small_parts: StrictS3, opened: Bucket) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    small_parts.put("x", b"content")
    (listed,) = opened.objects("")
    with pytest.raises(OSError, match="No space left"):
        opened.download(listed, Full())
    assert small_parts.calls["GetObject"] == 1


def test_what_is_read_is_bounded(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.put("x", b" " * 50_000_000)
    tracemalloc.start()
    with pytest.raises(TooLongError, match=rf"^'x' in bucket '{BUCKET}' has more than 1000 bytes$"):
        opened.read("x", most_bytes=1000)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5_000_000


# Lists


def test_pages(small_parts: StrictS3, opened: Bucket) -> None:
    names = [f"runs/{index:02}/x" for index in range(25)] + ["runs/a b\n+%é\x1b", "top"]
    for name in names:
        small_parts.put(name, name.encode())
    small_parts.page_rows = 4
    small_parts.calls.clear()
    assert [each.name for each in opened.objects("")] == sorted(names, key=str.encode)
    assert small_parts.calls["ListObjectsV2"] == 7
    assert opened.folders("runs/") == [f"{index:02}" for index in range(25)]


def test_a_server_that_repeats_a_page_is_left(opened: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"<Name>{BUCKET}</Name><IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken>"
    monkeypatch.setattr(_Handler, "_ListObjectsV2", lambda self: self._document("ListBucketResult", text))
    with pytest.raises(UnreachableError, match=r"^another server than S3"):
        list(opened.objects(""))


def test_a_heartbeat_makes_no_client_of_its_own(opened: Bucket) -> None:
    """Another client takes a tenth of a second, beside a measurement."""
    short = Patience(read_s=1.0)
    first = opened.with_patience(short)
    assert first._client is opened.with_patience(short)._client
    assert first._client is not opened._client
    assert (first._client.meta.config.max_pool_connections, first._client.meta.config.read_timeout) == (4, 1.0)


# Bundles


def test_a_bundle_travels_there_and_back(small_parts: StrictS3, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "made", RUN, {"log.txt": os.urandom(LARGE_BYTES), "empty.txt": b""})
    store = open_store(f"s3://{BUCKET}/a/b")
    assert inventory.upload(store, made).files == 4
    assert list(small_parts.objects)[-1] == f"a/b/runs/{RUN}/{bundle.MANIFEST}"
    assert inventory.upload(store, made).files == 0
    source = parse_source(f"s3://{BUCKET}/a/b")
    report = fetch(open_store(source.address), source, tmp_path / "results", jobs=2)
    assert [run.state for run in report.outcomes] == [FetchState.FETCHED]
    assert content_of(tmp_path / "results" / RUN) == content_of(made)


def test_data_of_a_script_is_copied(small_parts: StrictS3, tmp_path: Path) -> None:
    """As the agent copies `--data`; a web console makes objects for folders."""
    photos = {"cats/1.jpg": os.urandom(LARGE_BYTES), "labels é.csv": b"1,cat", "empty": b""}
    for name, content in photos.items():
        small_parts.put(f"photos/{name}", content)
    small_parts.put("photos/cats/", b"")
    small_parts.fail["GetObject"] = [CUT]
    files.fetch_data(f"s3://{BUCKET}/photos", tmp_path / "data", is_over=lambda: False)
    assert content_of(tmp_path / "data") == photos


def test_a_version_may_be_any_text(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.store("runs/x/run.json", b"{}", {}, '"../../evil="', has_checksum=False)
    (listed,) = opened.objects("")
    assert "/" not in listed.version
    sink = Pieces()
    opened.download(listed, sink)
    assert sink.getvalue() == b"{}"


UPLOADING = """
import pathlib, re, sys
from workload.contract.operating_system import crc32c_of
from workload.storage.address import open_store
path = pathlib.Path(sys.argv[2])
open_store(sys.argv[1]).upload("x", path, crc32c=crc32c_of(path.open("rb")))
print(re.search("VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""


def uploading(small_parts: StrictS3, path: Path) -> subprocess.Popen[str]:
    """A process that uploads a file in parts of 8 MiB; at the end it prints its largest memory in kB."""
    environment = os.environ | SETTINGS | {"AWS_ENDPOINT_URL": small_parts.url}
    command = [sys.executable, "-c", UPLOADING, f"s3://{BUCKET}", str(path)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE)


@pytest.mark.slow
def test_an_upload_in_parts_that_is_killed(small_parts: StrictS3, opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, 3 * 8 << 20)
    small_parts.fail["UploadPart"] = ["", HANG]
    with uploading(small_parts, path) as process:
        assert small_parts.hangs.wait(60)
        process.kill()
    assert list(opened.objects("")) == []
    assert len(small_parts.uploads) == 1, "a rule of the bucket removes these parts"
    assert opened.upload("x", path, crc32c=crc) is True
    assert small_parts.objects["x"].content == path.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells a process's largest memory")
def test_memory_stays_flat(small_parts: StrictS3, tmp_path: Path) -> None:
    peak_kb = []
    for size in (20, 64 << 20):
        path, _ = file_of(tmp_path, size)
        small_parts.objects.clear()
        with uploading(small_parts, path) as process:
            peak_kb.append(int(process.communicate()[0]))
    # One part of 8 MiB, and what the layers below hold of it.
    assert peak_kb[1] - peak_kb[0] < 30_000, peak_kb
