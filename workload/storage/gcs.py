"""Access to Cloud Storage: requests to one bucket, and conversion of the client's errors to ours.

google-cloud-storage is imported only inside functions. `store.py` has the interface of a store; `address.py` opens
stores.
"""

import http
import io
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload.contract.errors import ToolError, UsageError
from workload.storage.buckets import (
    CloudBucket,
    Content,
    Service,
    arrived_damaged,
    causes,
    content_type,
    has_wrong_certificate,
    network_reason,
    sent_damaged,
    throttled,
)
from workload.storage.store import (
    MAX_RECORD_BYTES,
    BoundedSink,
    Patience,
    Sink,
    StoredObject,
    UnreachableError,
    changed,
    within,
)

if TYPE_CHECKING:
    from google.cloud import storage

EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
SERVICE = Service(name="Cloud Storage", public="https://storage.googleapis.com", variables=(EMULATOR_VARIABLE,))
LOG_IN = "gcloud auth application-default login"
# Google's own variable: path of a key file, which is used in place of a login.
CREDENTIALS_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
LISTED_FIELDS = "items(name,size,crc32c,generation,metadata),nextPageToken"
FOLDER_FIELDS = "prefixes,nextPageToken"
# Size of an upload's chunk: held in memory, and sent again if the connection breaks. The client's default is 100 MiB.
CHUNK_BYTES = 8 << 20
ATTEMPTS = 3


# The role that allows each kind of access, by its verb in messages.
READ, WRITE = "read", "write to"
ROLES = {READ: "roles/storage.objectViewer", WRITE: "roles/storage.objectUser"}


class Bucket(CloudBucket):
    """A `Store` in a bucket of Cloud Storage."""

    scheme = "gs"

    def __init__(self, client: "storage.Client", name: str, patience: Patience, prefix: str = "") -> None:
        super().__init__(name, patience, prefix)
        self._client = client
        self._timeout_s = (patience.connect_s, patience.read_s)

    def removal(self, name: str) -> str:
        return f"gcloud storage rm {'-r ' if name.endswith('/') else ''}{shlex.quote(self.locate(name).rstrip('/'))}"

    def with_patience(self, patience: Patience) -> "Bucket":
        return Bucket(self._client, self.name, patience, self._prefix)

    def require_answer(self, prefix: str) -> None:
        """Request the name of one object, to learn whether the bucket answers.

        Raises `UsageError` if the bucket does not exist, `ToolError` without permission or an answer. The request is
        repeated for longer if the server is overloaded (429) than if it does not answer.
        """
        limit_s = self._patience.first_answer_s - 2 * self._patience.first_retry_s
        while_throttled = _retry(limit_s).with_predicate(_is_throttled)
        with self._translated():
            while_throttled(lambda: list(self._list(prefix, retry_s=self._patience.first_retry_s, max_results=1)))()

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        with self._translated():
            for blob in self._list(prefix, retry_s=self._patience.retry_s):
                yield StoredObject(
                    name=blob.name.removeprefix(self._prefix),
                    bytes=int(blob.size or 0),
                    crc32c=blob.crc32c or "",
                    version=str(blob.generation or 0),
                    metadata=dict(blob.metadata or {}),
                )

    def folders(self, prefix: str) -> list[str]:
        with self._translated():
            listed = self._list(prefix, retry_s=self._patience.retry_s, fields=FOLDER_FIELDS, delimiter="/")
            for _ in listed.pages:
                pass  # iterating collects the prefixes of each page in `listed.prefixes`
            return sorted(name.removeprefix(self._prefix + prefix).rstrip("/") for name in listed.prefixes)

    def read(self, name: str, *, most_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
        """Content of a small object as stored, compared with its checksum; None if it does not exist.

        Raises `TooLongError` if the object has more than `most_bytes`; at most `most_bytes` are held in memory.
        """
        blob = self._client.bucket(self.name).blob(self._prefix + name)
        content = io.BytesIO()
        try:
            with self._translated():
                blob.download_to_file(
                    BoundedSink(content, most_bytes, what=f"'{self._prefix}{name}' in {self}"),
                    # A few kB of gzip may unpack to gigabytes.
                    raw_download=True,
                    checksum="crc32c",
                    timeout=self._timeout_s,
                    retry=_retry(self._patience.retry_s),
                )
        except UsageError:
            return None  # 404 of the object: the bucket exists, as the first contact has shown
        return content.getvalue()

    def checksum(self, name: str) -> str | None:
        with self._translated():
            blob = self._client.bucket(self.name).get_blob(
                self._prefix + name, timeout=self._timeout_s, retry=_retry(self._patience.retry_s)
            )
            return str(blob.crc32c) if blob else None

    def permitted(self, permissions: Collection[str]) -> frozenset[str]:
        """Members of `permissions` that we have on this bucket."""
        with self._translated():
            bucket = self._client.bucket(self.name)
            held = bucket.test_iam_permissions(
                sorted(permissions), timeout=self._timeout_s, retry=_retry(self._patience.first_retry_s)
            )
            return frozenset(held)

    def download(self, listed: StoredObject, sink: Sink) -> None:
        from google.api_core import exceptions as api  # noqa: PLC0415 - see the module

        blob = self._client.bucket(self.name).blob(self._prefix + listed.name)
        try:
            with self._translated():
                blob.download_to_file(
                    BoundedSink(sink, listed.bytes, what=f"'{listed.name}'"),
                    raw_download=True,
                    checksum=None,  # the whole file is compared on disk
                    if_generation_match=int(listed.version),
                    timeout=self._timeout_s,
                    retry=_retry(self._patience.retry_s),
                )
        except ToolError as error:
            if isinstance(error.__cause__, (api.PreconditionFailed, api.RequestRangeNotSatisfiable)):
                raise changed(listed) from error
            raise
        except UsageError as error:
            raise changed(listed) from error  # 404: deleted after it was listed
        # A server that ignores preconditions still reports the generation that it sent.
        if blob.generation is not None and str(blob.generation) != listed.version:
            raise changed(listed)

    def _is_conflict(self, error: Exception) -> bool:
        from google.api_core import exceptions as api  # noqa: PLC0415 - see the module

        return isinstance(error.__cause__, api.PreconditionFailed)

    def _details(self, address: str) -> str:
        return f"gcloud storage ls -L {address}"

    def _send(self, wanted: Content, unclear: list[Exception] | None) -> None:
        """Send an object; start again if the server has lost the upload.

        https://cloud.google.com/storage/docs/resumable-uploads#handling_errors: 404 and 410 mean a lost upload. The
        client also cannot continue if the server has stored only a part of a chunk (`ValueError`), or nothing (308).
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                # Send an object once; return its CRC-32C in the store. The server rejects content that differs from
                # ours.
                blob = self._client.bucket(self.name).blob(wanted.name, chunk_size=CHUNK_BYTES)
                blob.crc32c = wanted.crc32c
                if wanted.metadata:
                    blob.metadata = dict(wanted.metadata)
                wanted.source.seek(0)
                with self._translated(WRITE):
                    blob.upload_from_file(
                        wanted.source,
                        size=wanted.bytes,
                        content_type=content_type(wanted.name),
                        if_generation_match=None if wanted.replaces is None else int(wanted.replaces or 0),
                        checksum=None,  # the client's own check deletes a wrong object, which we may not do
                        timeout=self._timeout_s,
                        retry=_retry(self._patience.retry_s, unclear),
                    )
                stored = str(blob.crc32c)
            except (ValueError, ToolError, UsageError) as error:
                is_lost = isinstance(error, ValueError) or getattr(error.__cause__, "code", 0) in (308, 404, 410)
                if not is_lost or attempt == ATTEMPTS:
                    raise
            else:
                if stored != wanted.crc32c:
                    raise arrived_damaged(wanted.name, self.name)
                return

    def _list(
        self,
        prefix: str,
        *,
        retry_s: float,
        fields: str = LISTED_FIELDS,
        max_results: int | None = None,
        **options: str,
    ) -> Any:
        return self._client.list_blobs(
            self.name,
            prefix=self._prefix + prefix,
            fields=fields,
            max_results=max_results,
            timeout=self._timeout_s,
            retry=_retry(retry_s),
            **options,
        )

    def _translated(self, need: str = READ) -> Any:
        return translated(self.name, self._patience, need)


def connect(name: str, *, prefix: str, root: str = "", jobs: int = 1, patience: Patience | None = None) -> Bucket:
    """Open the part of a bucket below `root`, after it has answered a request for names that start with `prefix`.

    `jobs`: number of requests that may run at a time. Raises `ToolError` (no package, no credentials, no permission, no
    answer) or `UsageError` (no such bucket).
    """
    limits = patience or Patience()

    def ask() -> Bucket:
        bucket = Bucket(_client(jobs), name, limits, root)
        bucket.require_answer(prefix)
        return bucket

    try:
        import google.cloud.storage  # noqa: F401, PLC0415 - takes 0.2 s
    except ModuleNotFoundError as error:
        raise ToolError("the package google-cloud-storage is missing", hint="pip install 'rooflaunch[gcp]'") from error
    with translated(name, limits):
        return within(limits.first_answer_s, ask)


def log_in() -> str:
    """Hint for missing credentials: log in, or correct GOOGLE_APPLICATION_CREDENTIALS if it names a missing file."""
    named = os.environ.get(CREDENTIALS_VARIABLE)
    if named and not Path(named).is_file():
        return f"{CREDENTIALS_VARIABLE} names '{named}', which does not exist: correct it; or unset it, then {LOG_IN}"
    return LOG_IN


@contextmanager
def translated(bucket: str, patience: Patience, need: str = READ) -> Iterator[None]:
    """Convert errors of the client and its libraries to ours, with their cause; an `OSError` of the disk passes."""
    import requests  # noqa: PLC0415 - see the module
    import urllib3  # noqa: PLC0415
    from google.api_core import exceptions as api  # noqa: PLC0415
    from google.auth import exceptions as auth  # noqa: PLC0415
    from google.cloud.storage import exceptions as client  # noqa: PLC0415

    try:
        yield
    except (auth.TransportError, api.RetryError, api.ServerError, api.TooManyRequests) as error:
        raise _unreachable(bucket, error, patience) from error
    except auth.GoogleAuthError as error:
        raise ToolError(f"no usable credentials for Google Cloud: {_first_line(error)}", hint=log_in()) from error
    except api.NotFound as error:
        raise UsageError(f"bucket '{bucket}' does not exist", hint=f"gcloud storage ls{SERVICE.note()}") from error
    except (api.Forbidden, api.Unauthorized) as error:
        raise ToolError(
            f"no permission to {need} bucket '{bucket}': {_first_line(error)}",
            hint=f"ask the bucket's owner for {ROLES[need]}, or use another account: {LOG_IN}",
        ) from error
    except api.GoogleAPICallError as error:
        # Whether a page of HTML came with a success status; pages of Google's own servers have 502 and the like.
        answers = [answer for cause in causes(error) if (answer := getattr(cause, "response", None)) is not None]
        if any(answer.ok and "html" in answer.headers.get("Content-Type", "") for answer in answers):
            raise SERVICE.foreign() from error
        raise ToolError(
            f"bucket '{bucket}': {_first_line(error)}", hint="run again; if the error stays, report it as a bug"
        ) from error
    except client.DataCorruption as error:
        raise sent_damaged(bucket) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError) as error:
        raise _unreachable(bucket, error, patience) from error


def _client(jobs: int) -> "storage.Client":
    import requests  # noqa: PLC0415 - see the module
    from google.cloud import storage  # noqa: PLC0415

    emulator = os.environ.get(EMULATOR_VARIABLE, "")
    # Google's other clients accept STORAGE_EMULATOR_HOST without `http://`; this client does not.
    options = {"api_endpoint": f"http://{emulator}"} if emulator and "://" not in emulator else None
    # Reading needs no project. With an emulator the client takes anonymous credentials by itself.
    client = storage.Client(project=None, client_options=options)
    # The client would request the bucket's location for its traces, in a thread that outlives the request.
    client._bucket_metadata_cache = None  # noqa: SLF001 - no public way
    for scheme in ("http://", "https://"):
        # With fewer connections than jobs, the pool would log warnings and reconnect.
        client._http.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=jobs))  # noqa: SLF001 - no public way
    return client


def _retry(limit_s: float, failures: list[Exception] | None = None) -> Any:
    """The client's default retry policy, for `limit_s` seconds. Errors of failed attempts go to `failures`."""
    from google.cloud.storage.retry import DEFAULT_RETRY  # noqa: PLC0415 - see the module

    retry = DEFAULT_RETRY.with_timeout(limit_s)
    return retry if failures is None else partial(retry, on_error=failures.append)


def _unreachable(bucket: str, error: BaseException, patience: Patience) -> UnreachableError:
    import requests  # noqa: PLC0415 - see the module

    if _is_throttled(error):
        return throttled(bucket, "429")
    if has_wrong_certificate(error) or any(isinstance(cause, json.JSONDecodeError) for cause in causes(error)):
        return SERVICE.foreign()
    why = network_reason(error, patience, no_connection=(requests.ConnectTimeout,), no_data=(requests.Timeout,))
    return SERVICE.unreachable(f"bucket '{bucket}'", why or _first_line(list(causes(error))[-1]))


def _is_throttled(error: BaseException) -> bool:
    too_many = http.HTTPStatus.TOO_MANY_REQUESTS
    # Errors of an upload's steps have no `code`, only the response.
    return any(
        too_many in (getattr(cause, "code", None), getattr(getattr(cause, "response", None), "status_code", None))
        for cause in causes(error)
    )


def _first_line(error: BaseException) -> str:
    text = (_answer(error) or str(getattr(error, "message", "") or error)).strip()
    # The client puts the whole request before the server's message.
    answer = re.sub(r"^[A-Z]+ https?://\S+: ", "", text)
    return answer.splitlines()[0][:300] if answer else type(error).__name__


def _answer(error: BaseException) -> str:
    """The server's error message, from the answer's JSON or else its text; empty if there was no answer."""
    response = getattr(error, "response", None)
    try:
        return str(response.json()["error"]["message"]) if response is not None else ""
    except (ValueError, LookupError, TypeError):
        return str(response.text) if response is not None else ""
