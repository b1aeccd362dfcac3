"""Errors of Google's client for Cloud Storage in our words, and the client's credentials."""

import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from tests.workload.storage.fake_gcs import NAME, FakeStorage
from workload.contract.errors import ToolError, UsageError
from workload.storage import gcs as bucket
from workload.storage.buckets import causes
from workload.storage.store import Patience, UnreachableError

RUN = "20261121T142530Z-local-cpu-resnet18-b16-fp32-0000aa"
OTHER_RUN = "20261121T142530Z-local-cpu-resnet18-b16-fp32-0000bb"
FILES = ["MANIFEST.json", "ncu/kernels.csv", "run.json", "steps.csv"]
STEPS = b"step,phase\n0,warmup\n1,measured\n"
Make = Callable[..., Path]


def refused_connection() -> Exception:
    system = ConnectionRefusedError(111, "Connection refused")
    return requests.ConnectionError(OSError("pool", system))


@pytest.mark.parametrize(
    ("error", "kind", "report"),
    [
        (
            api.NotFound("GET https://x: Not Found"),
            UsageError,
            "error: bucket 'bucket' does not exist\nhint: gcloud storage ls",
        ),
        (
            api.Forbidden("GET https://x/b/bucket/o?prefix=runs%2F: me@x does not have storage.objects.list access"),
            ToolError,
            (
                "error: no permission to read bucket 'bucket': me@x does not have storage.objects.list access\n"
                "hint: ask the bucket's owner for roles/storage.objectViewer, or use another account: "
                "gcloud auth application-default login"
            ),
        ),
        (
            api.Unauthorized("Anonymous caller"),
            ToolError,
            (
                "error: no permission to read bucket 'bucket': Anonymous caller\n"
                "hint: ask the bucket's owner for roles/storage.objectViewer, or use another account: "
                "gcloud auth application-default login"
            ),
        ),
        (
            auth.DefaultCredentialsError("Your default credentials were not found.\nmore"),
            ToolError,
            (
                "error: no usable credentials for Google Cloud: Your default credentials were not found.\n"
                "hint: gcloud auth application-default login"
            ),
        ),
        (
            auth.RefreshError("Reauthentication is needed."),
            ToolError,
            (
                "error: no usable credentials for Google Cloud: Reauthentication is needed.\n"
                "hint: gcloud auth application-default login"
            ),
        ),
        (
            api.BadRequest("Invalid bucket name"),
            ToolError,
            "error: bucket 'bucket': Invalid bucket name\nhint: run again; if the error stays, report it as a bug",
        ),
        *(
            (
                error,
                UnreachableError,
                (
                    f"error: bucket 'bucket' cannot be reached at https://storage.googleapis.com: {why}\n"
                    "hint: check the network and its proxy (curl -I https://storage.googleapis.com), then run again"
                ),
            )
            for error, why in [
                (refused_connection(), "Connection refused"),
                (api.RetryError("Timeout of 5 s", refused_connection()), "Connection refused"),
                (auth.TransportError(refused_connection()), "Connection refused"),
                (requests.ReadTimeout("read timed out"), "no answer within 8 s"),
                (requests.ConnectTimeout("timed out"), "no connection within 5 s"),
                (TimeoutError(), "no answer within 15 s"),
                (api.ServiceUnavailable("Backend Error"), "Backend Error"),
            ]
        ),
        *(
            (
                error,
                UnreachableError,
                (
                    "error: another server than Cloud Storage answers at https://storage.googleapis.com: a "
                    "log-in page of this network, or a proxy\nhint: open a page in a browser and log in to "
                    "the network, or correct HTTPS_PROXY; then run again"
                ),
            )
            for error in (
                requests.exceptions.JSONDecodeError("Expecting value", "<html>", 0),
                requests.exceptions.SSLError(ssl.SSLCertVerificationError(1, "certificate verify failed")),
            )
        ),
        (
            api.TooManyRequests("Slow down"),
            UnreachableError,
            (
                "error: bucket 'bucket' answers that it gets too many requests (429)\nhint: wait a minute, "
                "then run again, with fewer commands at the same time"
            ),
        ),
    ],
)
def test_errors_of_the_client_in_our_words(
    storage: FakeStorage, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[ToolError], report: str
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    storage.list_error = error
    monkeypatch.setattr(bucket, "_client", lambda _: storage)
    if isinstance(error, api.RetryError):
        error.__cause__ = error.cause
    with pytest.raises(kind) as caught:
        # With no time left after the first question, nobody is asked again while it gets too many.
        bucket.connect(NAME, prefix="runs/", patience=Patience(first_answer_s=15.0, first_retry_s=7.5))
    assert caught.value.report() == report
    assert error in causes(caught.value)


def test_an_emulator_is_named_where_it_does_not_answer(storage: FakeStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:9023")
    storage.list_error = refused_connection()
    monkeypatch.setattr(bucket, "_client", lambda _: storage)
    with pytest.raises(UnreachableError) as caught:
        bucket.connect(NAME, prefix="runs/")
    assert caught.value.report() == (
        "error: bucket 'bucket' cannot be reached at localhost:9023: Connection refused\n"
        "hint: start the server at this address, or unset STORAGE_EMULATOR_HOST"
    )


def test_a_client_that_never_comes_back_is_given_up(storage: FakeStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(_: int) -> FakeStorage:
        released.wait(60)
        return storage

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(bucket, "_client", hang)
    with pytest.raises(UnreachableError, match=r"no answer within 0\.01 s$"):
        bucket.connect(NAME, prefix="", patience=Patience(first_answer_s=0.01))
    released.set()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(ToolError) as caught:
        bucket.connect(NAME, prefix="")
    assert caught.value.report() == (
        "error: the package google-cloud-storage is missing\nhint: pip install 'rooflaunch[gcp]'"
    )


@pytest.mark.parametrize(
    ("variable", "endpoint"),
    [("http://localhost:9023", "http://localhost:9023"), ("localhost:9023", "http://localhost:9023")],
)
def test_with_an_emulator_credentials_are_anonymous(
    monkeypatch: pytest.MonkeyPatch, variable: str, endpoint: str
) -> None:
    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", variable)
    client = bucket._client(3)
    assert isinstance(client._credentials, AnonymousCredentials)
    assert client.api_endpoint == endpoint


def test_a_variable_that_names_no_file_comes_before_a_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(bucket.CREDENTIALS_VARIABLE, raising=False)
    assert bucket.log_in() == bucket.LOG_IN
    monkeypatch.setenv(bucket.CREDENTIALS_VARIABLE, str(tmp_path / "key.json"))
    assert bucket.log_in() == (
        f"GOOGLE_APPLICATION_CREDENTIALS names '{tmp_path}/key.json', which does not exist: correct it; "
        "or unset it, then gcloud auth application-default login"
    )
    (tmp_path / "key.json").touch()
    assert bucket.log_in() == bucket.LOG_IN
