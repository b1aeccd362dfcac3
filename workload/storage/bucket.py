"""The border to Cloud Storage: what is asked of one bucket, and its failures as our errors.

google-cloud-storage is imported by functions alone. Object names are whole, from the bucket's root; checksums are
CRC-32C, base64 of the big-endian value, as Cloud Storage and a bundle's manifest write them.
"""

import base64
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from workload.errors import BundleError, ToolError, UsageError

if TYPE_CHECKING:
    from google.cloud import storage

T = TypeVar("T")

EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
PUBLIC_ENDPOINT = "https://storage.googleapis.com"
LOG_IN = "gcloud auth application-default login"
LISTED_FIELDS = "items(name,size,crc32c,generation),nextPageToken"
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a bucket, in seconds; the client's own default is two minutes for each question.

    `first_answer_s` bounds the first contact whatever it waits for; `first_retry_s` and `retry_s`: how long a failing
    request is repeated, at the first contact and later; `connect_s` and `read_s` bound one wait of one request.
    """

    first_answer_s: float = 15.0
    first_retry_s: float = 5.0
    retry_s: float = 20.0
    connect_s: float = 5.0
    read_s: float = 8.0


@dataclass(frozen=True, kw_only=True)
class RemoteObject:
    """One object as listed; its generation changes with its content. `crc32c` may be empty."""

    name: str
    bytes: int
    crc32c: str
    generation: int


class UnreachableError(ToolError):
    """The bucket does not answer."""


class ObjectChangedError(BundleError):
    """An object was replaced or deleted after it was listed."""


class Sink(Protocol):
    """What a download is written to."""

    def write(self, data: bytes, /) -> int: ...


class Bucket:
    """One bucket, read only. Threads may share it."""

    def __init__(self, client: "storage.Client", name: str, patience: Patience) -> None:
        self._client = client
        self._patience = patience
        self._timeout_s = (patience.connect_s, patience.read_s)
        self.name = name

    def require_answer(self, prefix: str) -> None:
        """Ask for one name; raises `UsageError` for a missing bucket, `ToolError` for no permission or no answer."""
        with self._translated():
            list(self._list(prefix, retry_s=self._patience.first_retry_s, max_results=1))

    def objects(self, prefix: str) -> Iterator[RemoteObject]:
        """Every object whose name starts with `prefix`, in the order of names."""
        with self._translated():
            for blob in self._list(prefix, retry_s=self._patience.retry_s):
                yield RemoteObject(
                    name=blob.name,
                    bytes=int(blob.size or 0),
                    crc32c=blob.crc32c or "",
                    generation=int(blob.generation or 0),
                )

    def download(self, found: RemoteObject, sink: Sink, *, start: int = 0) -> None:
        """Write the bytes of `found` from `start` on, as stored, in small pieces; `ObjectChangedError` if replaced."""
        from google.api_core import exceptions as api  # noqa: PLC0415 - see the module

        if start >= found.bytes:
            return  # a range of nothing is an error in HTTP
        blob = self._client.bucket(self.name).blob(found.name)
        try:
            with self._translated():
                blob.download_to_file(
                    sink,
                    start=start or None,
                    raw_download=True,
                    checksum=None,  # the whole file's is compared on disk: it holds for resumed downloads too
                    if_generation_match=found.generation,
                    timeout=self._timeout_s,
                    retry=_retry(self._patience.retry_s),
                )
        except ToolError as error:
            if isinstance(error.__cause__, (api.PreconditionFailed, api.RequestRangeNotSatisfiable)):
                raise _changed(found) from error
            raise
        except UsageError as error:
            raise _changed(found) from error  # 404: listed, and gone
        # A server that does not know preconditions still says what it sent.
        if blob.generation not in (None, found.generation):
            raise _changed(found)

    def _list(self, prefix: str, *, retry_s: float, max_results: int | None = None) -> Any:
        return self._client.list_blobs(
            self.name,
            prefix=prefix,
            fields=LISTED_FIELDS,
            max_results=max_results,
            timeout=self._timeout_s,
            retry=_retry(retry_s),
        )

    def _translated(self) -> Any:
        return translated(self.name, self._patience)


def connect(name: str, *, prefix: str, jobs: int = 1, patience: Patience | None = None) -> Bucket:
    """The bucket, once it has answered a question about `prefix`; `jobs` requests may then run at a time.

    Raises `ToolError` (no package, no credentials, no permission, no answer) or `UsageError` (no such bucket).
    """
    limits = patience or Patience()

    def ask() -> Bucket:
        bucket = Bucket(_client(jobs), name, limits)
        bucket.require_answer(prefix)
        return bucket

    try:
        import google.cloud.storage  # noqa: F401, PLC0415 - 0.2 s, for those who use it
    except ModuleNotFoundError as error:
        raise ToolError(
            "the package google-cloud-storage is missing", hint="pip install 'rooflaunch[cloud]'"
        ) from error
    with translated(name, limits):
        return _within(limits.first_answer_s, ask)


def crc32c(content: BinaryIO) -> str:
    """The checksum of the rest of `content`."""
    import google_crc32c  # noqa: PLC0415 - see the module

    make_checksum: Any = google_crc32c.Checksum  # it has no types
    checksum = make_checksum()
    while block := content.read(BLOCK_BYTES):
        checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()


@contextmanager
def translated(bucket: str, patience: Patience) -> Iterator[None]:
    """Turn what the client and its libraries raise into our errors, cause kept; a failing disk's `OSError` passes."""
    import requests  # noqa: PLC0415 - see the module
    import urllib3  # noqa: PLC0415
    from google.api_core import exceptions as api  # noqa: PLC0415
    from google.auth import exceptions as auth  # noqa: PLC0415

    try:
        yield
    except (auth.TransportError, api.RetryError, api.ServerError, api.TooManyRequests) as error:
        raise _unreachable(bucket, error, patience) from error
    except auth.GoogleAuthError as error:
        raise ToolError(f"no usable credentials for Google Cloud: {_first_line(error)}", hint=LOG_IN) from error
    except api.NotFound as error:
        raise UsageError(f"bucket '{bucket}' does not exist", hint=f"gcloud storage ls{_emulator_note()}") from error
    except (api.Forbidden, api.Unauthorized) as error:
        raise ToolError(
            f"no permission to read bucket '{bucket}': {_first_line(error)}",
            hint=f"ask its owner for roles/storage.objectViewer, or change the account: {LOG_IN}",
        ) from error
    except api.GoogleAPICallError as error:
        raise ToolError(f"bucket '{bucket}': {_first_line(error)}", hint="run again; then report it") from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError) as error:
        raise _unreachable(bucket, error, patience) from error


def _client(jobs: int) -> "storage.Client":
    import requests  # noqa: PLC0415 - see the module
    from google.cloud import storage  # noqa: PLC0415

    emulator = os.environ.get(EMULATOR_VARIABLE, "")
    # Others of Google's clients take the variable without a scheme; this one would not.
    options = {"api_endpoint": f"http://{emulator}"} if emulator and "://" not in emulator else None
    # Reading needs no project. With an emulator the client takes anonymous credentials by itself.
    client = storage.Client(project=None, client_options=options)
    for scheme in ("http://", "https://"):
        # A smaller pool warns and reconnects; the client itself asks for the bucket's location, in a thread of its own.
        client._http.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=jobs + 1))  # noqa: SLF001 - no public way
    return client


def _retry(limit_s: float) -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY  # noqa: PLC0415 - see the module

    return DEFAULT_RETRY.with_timeout(limit_s)


def _within(limit_s: float, work: Callable[[], T]) -> T:
    """`work()`, or `TimeoutError`: neither resolving a name nor renewing a token can be given a limit."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(timeout=limit_s)


def _unreachable(bucket: str, error: BaseException, patience: Patience) -> UnreachableError:
    emulator = os.environ.get(EMULATOR_VARIABLE)
    hint = (
        f"start that server, or unset {EMULATOR_VARIABLE}"
        if emulator
        else f"check the network and its proxy (curl -I {PUBLIC_ENDPOINT}), then run again"
    )
    where = emulator or PUBLIC_ENDPOINT
    return UnreachableError(f"bucket '{bucket}' cannot be reached at {where}: {_why(error, patience)}", hint=hint)


def _why(error: BaseException, patience: Patience) -> str:
    """The innermost reason that says something: what the system said, or how long there was no answer."""
    import requests  # noqa: PLC0415 - see the module

    chain = list(_causes(error))
    for each in reversed(chain):
        if isinstance(each, OSError) and each.strerror:
            return each.strerror
    if any(isinstance(each, requests.ConnectTimeout) for each in chain):
        return f"no connection within {patience.connect_s:g} s"
    if any(isinstance(each, requests.Timeout) for each in chain):
        return f"no answer within {patience.read_s:g} s"
    if type(error) is TimeoutError:
        return f"no answer within {patience.first_answer_s:g} s"
    return _first_line(chain[-1])


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what led to it, as its libraries chain it: as cause, as context, as argument."""
    while error is not None:
        yield error
        inside = (each for each in (getattr(error, "reason", None), *error.args) if isinstance(each, BaseException))
        error = error.__cause__ or next(inside, None) or error.__context__


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", "") or error).strip()
    # The client puts the whole request in front of what the server said.
    said = re.sub(r"^[A-Z]+ https?://\S+: ", "", text)
    return said.splitlines()[0][:300] if said else type(error).__name__


def _emulator_note() -> str:
    return f" ({EMULATOR_VARIABLE} is set)" if os.environ.get(EMULATOR_VARIABLE) else ""


def _changed(found: RemoteObject) -> ObjectChangedError:
    return ObjectChangedError(f"'{found.name}' changed in the bucket meanwhile", hint="fetch again")
