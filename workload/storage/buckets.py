"""Parts that the stores in buckets of all clouds share: how an object is written, and errors of the network.

Standard library only; `gcs.py` and `s3.py` have the requests of their clouds.
"""

import http.client
import io
import os
import random
import shlex
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar, TypeVar

from workload.contract.errors import BundleError, ToolError
from workload.contract.operating_system import crc32c_of
from workload.storage.store import ObjectExistsError, Patience, UnreachableError, not_sealed, require_safe

# Pauses between attempts double from the first to the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Service:
    """A cloud's service in messages: its name, its public address, and variables that name another address for it.

    `settings`: end of a hint that names other settings of the address; may be empty.
    """

    name: str
    public: str
    variables: tuple[str, ...]
    settings: str = ""

    def variable(self) -> str:
        """The variable that names another address; empty if none is set."""
        return next((name for name in self.variables if os.environ.get(name)), "")

    @property
    def where(self) -> str:
        """Address that requests go to."""
        return os.environ.get(self.variable()) or self.public

    def note(self) -> str:
        """Text after a command of the cloud's own tool, which may use another address than we did."""
        return f" ({self.variable()} is set)" if self.variable() else ""

    def foreign(self) -> UnreachableError:
        """Error for an answer that this service never gives."""
        return foreign_answer(self.name, self.where)

    def unreachable(self, what: str, why: str, *, where: str = "") -> UnreachableError:
        """Error for a service that does not answer, or whose answer breaks off. `where`: the address, if known."""
        hint = (
            f"start the server at this address, or unset {self.variable()}"
            if self.variable()
            else f"check the network and its proxy (curl -I {self.public}){self.settings}, then run again"
        )
        return UnreachableError(f"{what} cannot be reached at {where or self.where}: {why}", hint=hint)


def foreign_answer(service: str, where: str) -> UnreachableError:
    """Error for an answer that the service never gives: a page of HTML, or another server's certificate."""
    return UnreachableError(
        f"another server than {service} answers at {where}: a log-in page of this network, or a proxy",
        hint="open a page in a browser and log in to the network, or correct HTTPS_PROXY; then run again",
    )


def throttled(bucket: str, code: str) -> UnreachableError:
    """Error for a service that refuses requests because it gets too many; `code`: the service's error code."""
    return UnreachableError(
        f"bucket '{bucket}' answers that it gets too many requests ({code})",
        hint="wait a minute, then run again, with fewer commands at the same time",
    )


def repeated(
    call: Callable[[], T],
    limit_s: float,
    is_temporary: Callable[[Exception], bool],
    *,
    sleep: Callable[[float], None],
    monotonic: Callable[[], float],
) -> T:
    """Result of `call()`, repeated for up to `limit_s` seconds while the service is busy or does not answer.

    `is_temporary`: whether the call may succeed later. The clouds' own libraries take no clock, and some raise an error
    of their own at their limit.
    """
    end_s = monotonic() + limit_s
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return call()
        except Exception as error:
            # Half of the pause is random, so that 100 launches do not retry at the same moment.
            wanted_s = pause_s * (0.5 + random.random())  # noqa: S311 - no secret
            if not is_temporary(error) or monotonic() + wanted_s > end_s:
                raise
        sleep(wanted_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content of an object to write. `replaces`: the version to replace; empty: the object must be new; None: any."""

    name: str
    source: BinaryIO
    bytes: int
    crc32c: str
    replaces: str | None
    metadata: Mapping[str, str] = field(default_factory=dict)


class CloudBucket(ABC):
    """Base of a `Store` in a bucket, or in the part of it below `prefix` (empty, or with a slash at its end)."""

    kind = "bucket"
    scheme: ClassVar[str]

    def __init__(self, name: str, patience: Patience, prefix: str = "") -> None:
        self.name = name
        self._patience = patience
        self._prefix = prefix

    def __str__(self) -> str:
        return f"bucket '{self.name}'"

    def locate(self, name: str) -> str:
        return f"{self.scheme}://{self.name}/{self._prefix}{name}"

    def write(self, name: str, content: bytes, *, if_absent: bool = False, is_private: bool = False) -> bool:
        del is_private  # the bucket's own access rules hold for all of its objects
        wanted = Content(
            name=self._prefix + name,
            source=io.BytesIO(content),
            bytes=len(content),
            crc32c=crc32c_of(io.BytesIO(content)),
            replaces="" if if_absent else None,
        )
        unclear: list[Exception] = []
        try:
            self._put(wanted, unclear=unclear)
        except ObjectExistsError:
            # An earlier attempt may have succeeded although its answer was lost.
            return bool(unclear) and self.checksum(name) == wanted.crc32c
        return True

    def upload(
        self, name: str, path: Path, *, crc32c: str, replaces: str = "", metadata: Mapping[str, str] | None = None
    ) -> bool:
        with path.open("rb") as source:
            wanted = Content(
                name=self._prefix + name,
                source=source,
                bytes=os.fstat(source.fileno()).st_size,
                crc32c=crc32c,
                replaces=replaces,
                metadata=metadata or {},
            )
            try:
                self._put(wanted)
            except ObjectExistsError:
                if self.checksum(name) != crc32c:
                    raise
                return False
        return True

    def _put(self, wanted: Content, *, unclear: list[Exception] | None = None) -> None:
        """Store an object; append to `unclear` the failures after which it was sent again."""
        require_safe(wanted.name, self)
        try:
            self._send(wanted, unclear)
        except (ToolError, BundleError, ValueError) as error:
            if self._is_conflict(error):
                raise ObjectExistsError(
                    f"another '{wanted.name}' is in {self} already",
                    hint=self._details(shlex.quote(f"{self.scheme}://{self.name}/{wanted.name}")),
                ) from error
            wanted.source.seek(0)
            if isinstance(error, UnreachableError) or crc32c_of(wanted.source) == wanted.crc32c:
                raise
            raise not_sealed(wanted.name) from error

    @abstractmethod
    def checksum(self, name: str) -> str | None:
        """Current CRC-32C of an object; None if it does not exist."""

    @abstractmethod
    def _send(self, wanted: Content, unclear: list[Exception] | None) -> None:
        """Send an object, again if the network fails. Raises `BundleError` if it arrived damaged."""

    @abstractmethod
    def _is_conflict(self, error: Exception) -> bool:
        """Whether the server refused the object because of the version that it has."""

    @abstractmethod
    def _details(self, address: str) -> str:
        """Command of the cloud's own tool that shows an object."""


def arrived_damaged(name: str, bucket: str) -> BundleError:
    """Error for an object that the server has stored with another checksum."""
    return BundleError(f"'{name}' arrived damaged in bucket '{bucket}'", hint="upload it again")


def sent_damaged(bucket: str) -> ToolError:
    """Error for an object whose bytes differ from the checksum that the server has sent with it."""
    return ToolError(f"bucket '{bucket}' sent damaged data", hint="run again")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors that led to it, which the libraries chain as cause, context, `reason` or argument."""
    while error is not None:
        yield error
        inside = (part for part in (getattr(error, "reason", None), *error.args) if isinstance(part, BaseException))
        error = error.__cause__ or next(inside, None) or error.__context__


def has_wrong_certificate(error: BaseException) -> bool:
    """Whether the server showed a certificate that is not the service's."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error))


Errors = tuple[type[BaseException], ...]


def network_reason(error: BaseException, patience: Patience, *, no_connection: Errors, no_data: Errors) -> str:
    """Innermost useful reason of a network error: the system's message, or the time without an answer; else empty.

    `no_connection`, `no_data`: the client's errors after `connect_s` and `read_s` of `patience`.
    """
    chain = list(causes(error))
    for cause in reversed(chain):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    if any(isinstance(cause, http.client.IncompleteRead) for cause in chain):
        return "the server's answer was cut off"
    if any(isinstance(cause, no_connection) for cause in chain):
        return f"no connection within {patience.connect_s:g} s"
    if any(isinstance(cause, no_data) for cause in chain):
        return f"no answer within {patience.read_s:g} s"
    if type(error) is TimeoutError:
        return f"no answer within {patience.first_answer_s:g} s"
    return ""


def content_type(name: str) -> str:
    """Media type for an object of this name, chosen so that a browser shows text instead of downloading it."""
    suffix = name.rpartition(".")[2]
    types = {"json": "application/json", "csv": "text/csv", "txt": "text/plain", "log": "text/plain"}
    return types.get(suffix, "application/octet-stream")
