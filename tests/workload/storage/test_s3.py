"""Our store in S3 against a server as strict as S3, with its refusals and its faults."""

import base64
import io
import os
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from launcher.script import files
from tests.workload.environment.imds_server import SESSION, ImdsServer
from tests.workload.storage import s3_server
from tests.workload.storage.bundles import content_of, file_of
from tests.workload.storage.s3_server import SETTINGS, S3Server
from tests.workload.storage.strict_s3 import (
    BREAK,
    BUCKET,
    CUT,
    DAMAGED,
    LARGE_BYTES,
    LATE_REFUSAL,
    LOG_IN_PAGE,
    PAGE,
    PART_BYTES,
    Answer,
    Refusal,
    StrictS3,
    _Handler,
)
from tests.workload.told import report_of, told
from workload.contract.errors import BundleError, ExitCode, ToolError
from workload.contract.operating_system import crc32c_of
from workload.storage import s3, s3_errors
from workload.storage.address import open_store
from workload.storage.s3 import Bucket
from workload.storage.store import ObjectChangedError, ObjectExistsError, Patience, UnreachableError

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
        opened.with_patience(Patience(retry_s=0.05)).write("x", b"{}", is_private=True)


def test_an_object_that_the_server_stores_otherwise(
    small_parts: StrictS3, opened: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Answer(headers={"ETag": '"1"', "x-amz-checksum-crc32c": "AAAAAA=="})
    monkeypatch.setattr(_Handler, "_PutObject", lambda _: stored)
    assert report_of(lambda: opened.write("x", b"content"), BundleError, ExitCode.BAD_BUNDLE) == (
        f"error: 'x' arrived damaged in bucket '{BUCKET}'\nhint: upload it again"
    )
    assert small_parts.calls["PutObject"] == 1


def test_a_file_that_shrinks_on_the_way(opened: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    send = opened._client.upload_part

    def shrink(**words: Any) -> Any:
        os.truncate(path, PART_BYTES)
        return send(**words)

    monkeypatch.setattr(opened._client, "upload_part", shrink)
    with pytest.raises(BundleError, match="differs from its checksum"):
        opened.upload("x", path, crc32c=crc)


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


@pytest.mark.parametrize("fault", [CONFLICT, SLOW_DOWN])
def test_a_refusal_is_no_lost_answer(fault: Refusal, small_parts: StrictS3, opened: Bucket) -> None:
    """Another writer has stored the same text: it was first, and we are told so."""
    small_parts.put("x", b"same")
    small_parts.fail["PutObject"] = [fault]
    assert opened.write("x", b"same", if_absent=True) is False


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
    sink = io.BytesIO()
    opened.download(listed, sink)
    assert sink.getvalue() == b"conten?", "a fetch compares the file, and repeats the download"


def test_object_that_the_server_receives_damaged_is_sent_again(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.fail["PutObject"] = [(400, "BadDigest", "Differs.")]
    assert opened.write("x", b"content")
    small_parts.fail["PutObject"] = [(400, "BadDigest", "Differs.")] * 10_000
    impatient = opened.with_patience(Patience(retry_s=0.05))
    with pytest.raises(ToolError, match=rf"^bucket '{BUCKET}' received damaged data: Differs\.$"):
        impatient.write("x", b"content")


@pytest.mark.parametrize("size", [0, PART_BYTES, LARGE_BYTES])
def test_object_has_its_type_and_a_checksum_that_the_server_knows(
    size: int, small_parts: StrictS3, opened: Bucket, tmp_path: Path
) -> None:
    path, crc = file_of(tmp_path, size)
    with pytest.raises(ObjectExistsError):
        opened.upload("x.json", path, crc32c=crc, replaces="abc")
    assert opened.upload("x.json", path, crc32c=crc) is True
    assert small_parts.objects["x.json"].headers["Content-Type"] == "application/json"
    assert opened.checksum("x.json") == crc
    assert small_parts.calls["GetObject"] == 0
    small_parts.put("x.json", b"other")
    assert report_of(lambda: opened.upload("x.json", path, crc32c=crc), ObjectExistsError, ExitCode.BAD_BUNDLE) == (
        f"error: another 'x.json' is in bucket '{BUCKET}' already\nhint: aws s3 ls s3://{BUCKET}/x.json"
    )


@pytest.mark.parametrize(
    ("text", "kind"), [("", ""), ("AAAAAA==-3", "COMPOSITE"), ("AAAAAA==", "COMPOSITE"), ("AAAAAA==-3", "FULL_OBJECT")]
)
def test_object_of_another_program_is_read_for_its_checksum(
    text: str, kind: str, small_parts: StrictS3, opened: Bucket
) -> None:
    """It has none, or that of the checksums of its parts."""
    content = b"content" * 1000
    small_parts.put("x", content)
    if text:
        small_parts.objects["x"].headers |= {"x-amz-checksum-crc32c": text, "x-amz-checksum-type": kind}
    assert opened.checksum("x") == crc32c_of(io.BytesIO(content))
    assert (small_parts.calls["HeadObject"], small_parts.calls["GetObject"]) == (1, 1)
    assert opened.read("x") == content


# Downloads


@pytest.mark.parametrize("fault", [CUT, BREAK, SLOW_DOWN])
@pytest.mark.parametrize("times", [1, 5])
def test_a_download_goes_on_where_it_broke(
    fault: str | Refusal, times: int, small_parts: StrictS3, opened: Bucket
) -> None:
    content = os.urandom(200_000)
    small_parts.put("x", content)
    (listed,) = opened.objects("")
    small_parts.fail["GetObject"] = [fault] * times
    sink = io.BytesIO()
    opened.download(listed, sink)
    assert sink.getvalue() == content
    assert small_parts.fail["GetObject"] == []


def test_a_download_of_what_was_replaced(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.put("x", b"old")
    (listed,) = opened.objects("")
    small_parts.put("x", b"new")
    with pytest.raises(ObjectChangedError):
        opened.download(listed, io.BytesIO())
    assert small_parts.refused == ["PreconditionFailed"], "before the content was sent"
    small_parts.ignores_conditions = True
    with pytest.raises(ObjectChangedError):
        opened.download(listed, io.BytesIO())
    small_parts.put("x", b"old")
    sink = io.BytesIO()
    opened.download(listed, sink)
    assert sink.getvalue() == b"old", "the same content has the same version"


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
    sink = io.BytesIO()
    opened.download(listed, sink)
    assert sink.getvalue() == b"{}"


LOG_IN = "aws sso login, or aws configure"
FULL_REASON = "User: arn:aws:iam::1:user/me is not authorized to perform: s3:ListBucket on resource: x"
REFUSALS: list[tuple[int, str, str]] = [
    (404, "NoSuchBucket", "-"),
    (403, "AccessDenied", FULL_REASON),
    (403, "AccessDenied", "Access Denied"),
    (400, "ExpiredToken", "It was."),
    (403, "InvalidAccessKeyId", "Unknown."),
    (403, "SignatureDoesNotMatch", "Wrong."),
    (403, "RequestTimeTooSkewed", "the difference is too large"),
    (400, "AuthorizationHeaderMalformed", "-"),
    (403, "InvalidObjectState", "It is frozen."),
]


def raise_translated(error: Exception) -> None:
    with s3_errors.translated("b", Patience()):
        raise error


def test_refusals_in_words(
    small_parts: StrictS3,
    opened: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str, str], None],
) -> None:
    from botocore.exceptions import EndpointConnectionError

    texts = []
    for refusal in REFUSALS:
        small_parts.calls.clear()
        small_parts.fail["ListObjectsV2"] = [refusal] * 3
        texts.append(told(refusal, lambda: s3.connect(BUCKET, prefix="")))
        assert small_parts.calls["ListObjectsV2"] == 1, "another attempt would not help"
    path, crc = file_of(tmp_path, LARGE_BYTES)
    impatient = opened.with_patience(Patience(retry_s=0.1))
    denied, broken = (403, "AccessDenied"), (500, "InternalError", "We encountered an internal error.")
    work: list[tuple[str, Refusal, Callable[[], object]]] = [
        ("GetObject", denied, lambda: opened.read("x")),
        ("HeadObject", denied, lambda: opened.checksum("x")),
        ("PutObject", denied, lambda: opened.write("x", b"1")),
        ("UploadPart", denied, lambda: opened.upload("x", path, crc32c=crc)),
        # Answers to HEAD have no reason.
        ("HeadObject", (400, "ExpiredToken"), lambda: opened.checksum("x")),
        ("PutObject", SLOW_DOWN, lambda: impatient.write("x", b"1")),
        ("PutObject", broken, lambda: impatient.write("x", b"1")),
    ]
    for operation, refusal, ask in work:
        small_parts.fail[operation] = [refusal] * 10_000
        texts.append(told(f"{operation}: {refusal}", ask))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    hasty = Patience(first_retry_s=0.01)
    texts.append(told("nobody answers", lambda: s3.connect(BUCKET, prefix="", patience=hasty)))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    # The address that was asked is in the message: it has the region.
    unknown = EndpointConnectionError(endpoint_url="https://b.s3.us-esat-1.amazonaws.com/?list-type=2", error="x")
    unknown.__cause__ = OSError(-2, "Name or service not known")
    texts.append(told("a region that does not exist", lambda: raise_translated(unknown)))
    monkeypatch.setitem(sys.modules, "boto3", None)
    texts.append(told("the package is missing", lambda: s3.connect(BUCKET, prefix="")))
    golden("s3_refusals.txt", "".join(texts).replace(small_parts.url, "URL"))


def test_log_in_page_of_the_network_is_another_server(small_parts: StrictS3, opened: Bucket, tmp_path: Path) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    small_parts.put("x", b"1")
    work: list[tuple[str, Callable[[], object]]] = [
        ("ListObjectsV2", lambda: list(opened.objects(""))),
        ("ListObjectsV2", lambda: opened.folders("")),
        ("GetObject", lambda: opened.read("x")),
        ("PutObject", lambda: opened.write("x", b"1")),
        *(
            (step, lambda: opened.upload("y", path, crc32c=crc))
            for step in ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
        ),
    ]
    for operation, ask in work:
        small_parts.fail[operation] = [LOG_IN_PAGE]
        with pytest.raises(UnreachableError, match=r"^another server than S3 answers at http://127"):
            ask()


@pytest.mark.parametrize("status", [400, 403, 404, 407])
def test_a_proxy_that_forbids_the_address(status: int, opened: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(status=status, content=b"\n<HTML><body>Blocked by policy<br></body></HTML>")
    monkeypatch.setattr(_Handler, "_ListObjectsV2", lambda _: answer)
    with pytest.raises(UnreachableError, match=r"^another server than S3 answers at http://127"):
        list(opened.objects(""))


def test_a_network_that_redirects_every_request(opened: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore 1.44 asks for the bucket's region, is redirected again, and so on until the stack is full."""
    for name in ("_ListObjectsV2", "_HeadBucket"):
        answer = Answer(status=302, content=PAGE, headers={"Location": "/log-in", "Content-Type": "text/html"})
        monkeypatch.setattr(_Handler, name, lambda _, answer=answer: answer)
    with pytest.raises(UnreachableError, match=r"^another server than S3 answers at http://127"):
        list(opened.objects(""))


def test_a_bucket_in_another_region_is_followed(small_parts: StrictS3) -> None:
    """botocore asks again, with a signature for the region that the refusal names."""
    small_parts.region = "eu-west-1"
    opened = s3.connect(BUCKET, prefix="")
    assert opened.write("x", b"1")
    assert opened.read("x") == b"1"


# Credentials and settings: in a session of boto3 of its own


@pytest.fixture
def own_session(small_parts: StrictS3, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """boto3 reads the variables again, and nothing of this machine."""
    monkeypatch.undo()
    for name, value in {**SETTINGS, "AWS_ENDPOINT_URL": small_parts.url}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


SETTINGS_IN_WORDS: dict[str, dict[str, str]] = {
    "none": {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
    "half": {"AWS_SECRET_ACCESS_KEY": ""},
    "profile": {"AWS_PROFILE": "absent"},
    "region": {"AWS_DEFAULT_REGION": "no region"},
    "endpoint": {"AWS_ENDPOINT_URL": "nonsense"},
}


def test_settings_in_words(own_session: pytest.MonkeyPatch, golden: Callable[[str, str], None]) -> None:
    texts = []
    for name, variables in SETTINGS_IN_WORDS.items():
        with own_session.context() as patch:
            for variable, value in variables.items():
                patch.setenv(variable, value)
            texts.append(told(name, lambda: s3.connect(BUCKET, prefix="")))
    golden("s3_settings.txt", "".join(texts))


def test_a_machine_uses_its_role(small_parts: StrictS3, own_session: pytest.MonkeyPatch) -> None:
    """The key of the role comes from the instance's metadata server, and lies in no file."""
    with ImdsServer() as imds:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
            own_session.delenv(name)
        own_session.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.url)
        assert s3.connect(BUCKET, prefix="").write("x", b"1")
    assert small_parts.signed_by == {("ASIAEXAMPLE", SESSION)}


def test_another_servers_certificate() -> None:
    from botocore.exceptions import SSLError

    wrong = SSLError(endpoint_url="https://b.s3.amazonaws.com", error="x")
    wrong.__cause__ = ssl.SSLCertVerificationError("hostname mismatch")
    assert not s3_errors.is_temporary(wrong)
    with pytest.raises(UnreachableError, match=r"^another server than S3 answers"):
        raise_translated(wrong)
