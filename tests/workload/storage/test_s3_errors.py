"""Refusals of S3, of networks on the way and of boto3's settings, each in one line of ours."""

import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workload.environment.imds_server import SESSION, ImdsServer
from tests.workload.storage.bundles import file_of, report_of
from tests.workload.storage.s3_server import SETTINGS
from tests.workload.storage.strict_s3 import (
    BUCKET,
    LARGE_BYTES,
    LOG_IN_PAGE,
    PAGE,
    Answer,
    Refusal,
    StrictS3,
    _Handler,
)
from workload.contract.errors import ExitCode, RooflaunchError, ToolError
from workload.storage import s3, s3_errors
from workload.storage.s3 import Bucket
from workload.storage.store import (
    Patience,
    UnreachableError,
)

pytestmark = pytest.mark.world

SLOW_DOWN: Refusal = (503, "SlowDown")


AGAIN = "wait a minute, then run again, with fewer commands at the same time"
LOG_IN = "aws sso login, or aws configure"
NOT_LISTED = f"no permission for s3:ListBucket in bucket '{BUCKET}': "
ASK = f"ask the bucket's owner for s3:ListBucket, or use other credentials: {LOG_IN}"
CLOCK = "the clock of this machine is wrong, so S3 refuses its requests: the difference is too large"
SET_CLOCK = "set the clock, for example with sudo timedatectl set-ntp true; then run again"
WHERE = f"set AWS_DEFAULT_REGION to the region that is shown by aws s3api get-bucket-location --bucket {BUCKET}"
FULL_REASON = "User: arn:aws:iam::1:user/me is not authorized to perform: s3:ListBucket on resource: x"
NO_BUG = "run again; if the error stays, report it as a bug"
REFUSALS: list[tuple[int, str, str, ExitCode, str, str]] = [
    (
        404,
        "NoSuchBucket",
        "-",
        ExitCode.USAGE,
        f"bucket '{BUCKET}' does not exist",
        "aws s3 ls (AWS_ENDPOINT_URL is set)",
    ),
    (403, "AccessDenied", FULL_REASON, ExitCode.TOOL, NOT_LISTED + FULL_REASON, ASK),
    (403, "AccessDenied", "Access Denied", ExitCode.TOOL, f"{NOT_LISTED}Access Denied", ASK),
    (400, "ExpiredToken", "It was.", ExitCode.TOOL, "the credentials for AWS have expired: It was.", LOG_IN),
    (403, "InvalidAccessKeyId", "Unknown.", ExitCode.TOOL, "no usable credentials for AWS: Unknown.", LOG_IN),
    (403, "SignatureDoesNotMatch", "Wrong.", ExitCode.TOOL, "no usable credentials for AWS: Wrong.", LOG_IN),
    (403, "RequestTimeTooSkewed", "the difference is too large", ExitCode.TOOL, CLOCK, SET_CLOCK),
    (400, "AuthorizationHeaderMalformed", "-", ExitCode.USAGE, f"bucket '{BUCKET}' is in another region", WHERE),
    (403, "InvalidObjectState", "It is frozen.", ExitCode.TOOL, f"bucket '{BUCKET}': It is frozen.", NO_BUG),
]


@pytest.mark.parametrize(
    ("status", "word", "reason", "code", "error", "hint"), REFUSALS, ids=[row[1] for row in REFUSALS]
)
def test_refusals_in_words(
    status: int, word: str, reason: str, code: ExitCode, error: str, hint: str, small_parts: StrictS3
) -> None:
    small_parts.fail["ListObjectsV2"] = [(status, word, reason)] * 3
    assert report_of(lambda: s3.connect(BUCKET, prefix=""), RooflaunchError, code) == f"error: {error}\nhint: {hint}"
    assert small_parts.calls["ListObjectsV2"] == 1, "another attempt would not help"


@pytest.mark.parametrize(
    ("operation", "work", "action"),
    [
        ("GetObject", lambda bucket, _: bucket.read("x"), "s3:GetObject"),
        ("HeadObject", lambda bucket, _: bucket.checksum("x"), "s3:GetObject"),
        ("PutObject", lambda bucket, _: bucket.write("x", b"1"), "s3:PutObject"),
        ("UploadPart", lambda bucket, file: bucket.upload("x", file[0], crc32c=file[1]), "s3:PutObject"),
    ],
)
def test_the_missing_right_is_named(
    operation: str,
    work: Callable[[Bucket, Any], Any],
    action: str,
    small_parts: StrictS3,
    opened: Bucket,
    tmp_path: Path,
) -> None:
    small_parts.fail[operation] = [(403, "AccessDenied")] * 3
    with pytest.raises(ToolError, match=rf"^no permission for {action} in bucket '{BUCKET}': "):
        work(opened, file_of(tmp_path, LARGE_BYTES))


def test_a_refusal_of_head_has_no_reason(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.fail["HeadObject"] = [(400, "ExpiredToken")] * 9
    error = "S3 refuses a request without a reason, as it does with expired credentials: Bad Request"
    assert report_of(lambda: opened.checksum("x"), ToolError, ExitCode.TOOL) == f"error: {error}\nhint: {LOG_IN}"


def test_a_server_that_stays_busy(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.fail["PutObject"] = [SLOW_DOWN] * 10_000
    impatient = opened.with_patience(Patience(retry_s=0.1))
    assert report_of(lambda: impatient.write("x", b"1"), UnreachableError, ExitCode.TOOL) == (
        f"error: bucket '{BUCKET}' answers that it gets too many requests (SlowDown)\nhint: {AGAIN}"
    )
    small_parts.fail["PutObject"] = [(500, "InternalError", "We encountered an internal error.")] * 10_000
    assert report_of(lambda: impatient.write("x", b"1"), UnreachableError, ExitCode.TOOL) == (
        f"error: bucket '{BUCKET}' cannot be reached at {small_parts.url}: We encountered an internal error.\n"
        "hint: start the server at this address, or unset AWS_ENDPOINT_URL"
    )


def test_a_bucket_that_is_busy_at_first_contact_is_asked_again(small_parts: StrictS3, opened: Bucket) -> None:
    small_parts.fail["ListObjectsV2"] = [SLOW_DOWN] * 5
    opened.with_patience(Patience(first_answer_s=5.0, first_retry_s=0.0)).require_answer("")
    assert small_parts.fail["ListObjectsV2"] == []


@pytest.mark.usefixtures("small_parts")
def test_a_region_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that was asked is in the message: it has the region."""
    from botocore.exceptions import EndpointConnectionError

    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    unknown = EndpointConnectionError(endpoint_url="https://b.s3.us-esat-1.amazonaws.com/?list-type=2", error="x")
    unknown.__cause__ = OSError(-2, "Name or service not known")
    with pytest.raises(UnreachableError) as caught, s3_errors.translated("b", Patience()):
        raise unknown
    assert caught.value.report() == (
        "error: bucket 'b' cannot be reached at https://b.s3.us-esat-1.amazonaws.com: Name or service not known\n"
        "hint: check the network and its proxy (curl -I https://s3.amazonaws.com), and the region in "
        "AWS_DEFAULT_REGION, then run again"
    )


@pytest.mark.usefixtures("small_parts")
def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    patience = Patience(first_retry_s=0.01)
    assert report_of(lambda: s3.connect(BUCKET, prefix="", patience=patience), UnreachableError, ExitCode.TOOL) == (
        f"error: bucket '{BUCKET}' cannot be reached at http://127.0.0.1:9: Connection refused\n"
        "hint: start the server at this address, or unset AWS_ENDPOINT_URL"
    )


@pytest.mark.parametrize(
    ("operation", "work"),
    [
        ("ListObjectsV2", lambda bucket, _: list(bucket.objects(""))),
        ("ListObjectsV2", lambda bucket, _: bucket.folders("")),
        ("GetObject", lambda bucket, _: bucket.read("x")),
        ("PutObject", lambda bucket, _: bucket.write("x", b"1")),
        ("CreateMultipartUpload", lambda bucket, file: bucket.upload("y", file[0], crc32c=file[1])),
        ("UploadPart", lambda bucket, file: bucket.upload("y", file[0], crc32c=file[1])),
        ("CompleteMultipartUpload", lambda bucket, file: bucket.upload("y", file[0], crc32c=file[1])),
    ],
)
def test_a_log_in_page_of_the_network(
    operation: str, work: Callable[[Bucket, Any], Any], small_parts: StrictS3, opened: Bucket, tmp_path: Path
) -> None:
    small_parts.put("x", b"1")
    small_parts.fail[operation] = [LOG_IN_PAGE]
    with pytest.raises(UnreachableError, match=r"^another server than S3 answers at http://127"):
        work(opened, file_of(tmp_path, LARGE_BYTES))


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


NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
NO_USE = "no usable credentials for AWS: "
NO_REGION = "Provided region_name 'no region' doesn't match a supported format."
CORRECT = "correct the bucket's name, or the region in AWS_DEFAULT_REGION"
SETTINGS_IN_WORDS: dict[str, tuple[dict[str, str], ExitCode, str, str]] = {
    "none": (NO_KEYS, ExitCode.TOOL, f"{NO_USE}Unable to locate credentials", LOG_IN),
    "half": (
        {"AWS_SECRET_ACCESS_KEY": ""},
        ExitCode.TOOL,
        f"{NO_USE}Partial credentials found in env, missing: AWS_SECRET_ACCESS_KEY",
        LOG_IN,
    ),
    "profile": (
        {"AWS_PROFILE": "absent"},
        ExitCode.TOOL,
        f"{NO_USE}The config profile (absent) could not be found",
        LOG_IN,
    ),
    "region": (
        {"AWS_DEFAULT_REGION": "no region"},
        ExitCode.USAGE,
        f"bucket '{BUCKET}' cannot be asked: {NO_REGION}",
        CORRECT,
    ),
    "endpoint": (
        {"AWS_ENDPOINT_URL": "nonsense"},
        ExitCode.USAGE,
        "AWS_ENDPOINT_URL must be an address as http://HOST:PORT; got 'nonsense'",
        "correct it, or unset AWS_ENDPOINT_URL",
    ),
}


@pytest.mark.parametrize("name", SETTINGS_IN_WORDS)
def test_settings_in_words(name: str, own_session: pytest.MonkeyPatch) -> None:
    variables, code, error, hint = SETTINGS_IN_WORDS[name]
    for variable, value in variables.items():
        own_session.setenv(variable, value)
    assert report_of(lambda: s3.connect(BUCKET, prefix=""), RooflaunchError, code) == f"error: {error}\nhint: {hint}"


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
    with (
        pytest.raises(UnreachableError, match=r"^another server than S3 answers"),
        s3_errors.translated("b", Patience()),
    ):
        raise wrong


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert report_of(lambda: s3.connect(BUCKET, prefix=""), ToolError, ExitCode.TOOL) == (
        "error: the package boto3 is missing\nhint: pip install 'rooflaunch[aws]'"
    )
