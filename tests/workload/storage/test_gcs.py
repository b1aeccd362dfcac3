"""Errors of Google's client for Cloud Storage in our words, and the client's credentials."""

import gzip
import io
import os
import signal
import ssl
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from tests.workload.storage.bundles import STEPS, file_of, make_bundle
from tests.workload.storage.strict_gcs import GRAIN_BYTES, LARGE_BYTES, StrictGcs, _Handler
from tests.workload.told import report_of, told
from workload.contract.errors import BundleError, ExitCode, ToolError
from workload.storage import gcs as bucket
from workload.storage.inventory import upload
from workload.storage.store import Patience, StoredObject, UnreachableError

ROOT = Path(__file__).parents[3]
NAME = "bucket"
LOG_IN = "gcloud auth application-default login"


class Failing:
    """Google's client, whose lists raise this error, or are empty."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def list_blobs(self, _: str, *, fields: str, timeout: Any, retry: Any, **__: Any) -> list[Any]:
        assert fields == "items(name,size,crc32c,generation,metadata),nextPageToken"
        assert timeout == (5.0, 8.0), "the client's default waits for a minute"
        assert retry._timeout <= 20
        if self._error:
            raise self._error
        return []


def refused_connection() -> Exception:
    return requests.ConnectionError(OSError("pool", ConnectionRefusedError(111, "Connection refused")))


def retried(error: Exception) -> Exception:
    found = api.RetryError("Timeout of 5 s", error)
    found.__cause__ = error
    return found


ERRORS: list[Exception] = [
    api.NotFound("GET https://x: Not Found"),
    api.Forbidden("GET https://x/b/bucket/o?prefix=runs%2F: me@x does not have storage.objects.list access"),
    api.Unauthorized("Anonymous caller"),
    auth.DefaultCredentialsError("Your default credentials were not found.\nmore"),
    auth.RefreshError("Reauthentication is needed."),
    api.BadRequest("Invalid bucket name"),
    refused_connection(),
    retried(refused_connection()),
    auth.TransportError(refused_connection()),
    requests.ReadTimeout("read timed out"),
    requests.ConnectTimeout("timed out"),
    TimeoutError(),
    api.ServiceUnavailable("Backend Error"),
    requests.exceptions.JSONDecodeError("Expecting value", "<html>", 0),
    requests.exceptions.SSLError(ssl.SSLCertVerificationError(1, "certificate verify failed")),
    api.TooManyRequests("Slow down"),
]


def test_errors_of_the_client_in_our_words(monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    # With no time left after the first question, nobody is asked again while it gets too many.
    patience = Patience(first_answer_s=15.0, first_retry_s=7.5)
    texts = []
    for error in ERRORS:
        monkeypatch.setattr(bucket, "_client", lambda _, error=error: Failing(error))
        texts.append(told(repr(error), lambda: bucket.connect(NAME, prefix="runs/", patience=patience)))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:9023")
    monkeypatch.setattr(bucket, "_client", lambda _: Failing(refused_connection()))
    texts.append(told("an emulator that does not answer", lambda: bucket.connect(NAME, prefix="runs/")))
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    texts.append(told("the package is missing", lambda: bucket.connect(NAME, prefix="")))
    golden("gcs_errors.txt", "".join(texts))


def test_client_that_never_comes_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(bucket, "_client", lambda _: released.wait(60))
    with pytest.raises(UnreachableError, match=r"no answer within 0\.01 s$"):
        bucket.connect(NAME, prefix="", patience=Patience(first_answer_s=0.01))
    released.set()


@pytest.mark.parametrize("variable", ["http://localhost:9023", "localhost:9023"])
def test_credentials_are_anonymous_with_an_emulator(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", variable)
    client = bucket._client(3)
    assert isinstance(client._credentials, AnonymousCredentials)
    assert client.api_endpoint == "http://localhost:9023"


def test_variable_that_names_no_file_comes_before_a_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(bucket.CREDENTIALS_VARIABLE, raising=False)
    assert bucket.log_in() == LOG_IN
    monkeypatch.setenv(bucket.CREDENTIALS_VARIABLE, str(tmp_path / "key.json"))
    assert bucket.log_in() == (
        f"GOOGLE_APPLICATION_CREDENTIALS names '{tmp_path}/key.json', which does not exist: correct it; "
        f"or unset it, then {LOG_IN}"
    )
    (tmp_path / "key.json").touch()
    assert bucket.log_in() == LOG_IN


def test_server_without_preconditions_is_not_trusted() -> None:
    """The object that it sends may be newer than the listed one: it says so in the generation."""

    class Newer:
        generation = 7

        def download_to_file(
            self, _: Any, *, raw_download: bool, checksum: None, if_generation_match: int, timeout: Any, retry: Any
        ) -> None:
            assert raw_download
            assert checksum is None
            assert (if_generation_match, timeout, retry._timeout) == (6, (5.0, 8.0), 20)

    client: Any = types.SimpleNamespace(bucket=lambda _: types.SimpleNamespace(blob=lambda _: Newer()))
    listed = StoredObject(name="runs/a/x", bytes=3, crc32c="", version="6")
    with pytest.raises(BundleError, match=r"^'runs/a/x' changed while it was copied$"):
        bucket.Bucket(client, NAME, Patience()).download(listed, io.BytesIO())


# Against a server that is as strict as Cloud Storage


@pytest.mark.world
@pytest.mark.parametrize("kept", [0, GRAIN_BYTES])
def test_chunk_of_which_the_server_keeps_a_part_is_continued(
    kept: int, strict_gcs: StrictGcs, gcs_store: bucket.Bucket, tmp_path: Path
) -> None:
    path, crc = file_of(tmp_path, LARGE_BYTES)
    strict_gcs.keep_bytes = kept
    assert gcs_store.upload("x", path, crc32c=crc) is True
    assert strict_gcs.objects["x"].content == path.read_bytes()


@pytest.mark.world
def test_missing_permission_to_write_is_named(strict_gcs: StrictGcs, gcs_store: bucket.Bucket) -> None:
    strict_gcs.fail["multipart"] = [403]
    assert report_of(lambda: gcs_store.write("x", b"1"), ToolError, ExitCode.TOOL) == (
        "error: no permission to write to bucket 'strict-test': as the test wants\n"
        f"hint: ask the bucket's owner for roles/storage.objectUser, or use another account: {LOG_IN}"
    )


@pytest.mark.world
def test_packed_object_is_read_as_it_is_stored(strict_gcs: StrictGcs, gcs_store: bucket.Bucket) -> None:
    """A few kB may be the pack of a gigabyte."""
    packed = gzip.compress(b" " * 1_000_000)
    strict_gcs.store({"name": "x", "contentEncoding": "gzip"}, packed)
    assert gcs_store.read("x", most_bytes=10_000) == packed
    assert strict_gcs.calls["get"] == 0, "the size is watched as it comes, without a question more"


@pytest.mark.world
def test_log_in_page_of_the_network_is_another_server(
    gcs_store: bucket.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "_list", lambda self, _: self._send(200, b"<html>Welcome</html>"))
    with pytest.raises(UnreachableError, match=r"^another server than Cloud Storage answers at http://127"):
        gcs_store.require_answer("")


@pytest.mark.world
def test_permissions_that_we_have_are_listed(strict_gcs: StrictGcs, gcs_store: bucket.Bucket) -> None:
    assert gcs_store.permitted(["storage.objects.get"]) == frozenset()
    strict_gcs.permissions = {"storage.objects.get", "storage.objects.list"}
    assert gcs_store.permitted(["storage.objects.get", "storage.objects.create"]) == {"storage.objects.get"}


@pytest.mark.world
@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_network(
    strict_gcs: StrictGcs, gcs_store: bucket.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(gcs_store, make_bundle(tmp_path / "made", "run-1", {"steps.csv": STEPS}))
    reached, is_over = threading.Event(), threading.Event()
    command = [sys.executable, "-m", "analysis", "fetch", "gs://strict-test", "-o", str(tmp_path / "results")]
    environment = os.environ | {"STORAGE_EMULATOR_HOST": strict_gcs.url}
    with monkeypatch.context() as patch:
        patch.setattr(_Handler, "_media", lambda *_: reached.set() or is_over.wait(60))  # type: ignore[func-returns-value]
        with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=-1, stderr=-1) as stopped:
            assert reached.wait(60)
            stopped.send_signal(signal.SIGINT)
            out, err = stopped.communicate()
        is_over.set()
    assert (stopped.returncode, out) == (ExitCode.INTERRUPTED, "")
    assert err.splitlines()[:2] == ["error: interrupted by Ctrl-C", "hint: the same command continues where it stopped"]
    assert subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True).returncode == 0
