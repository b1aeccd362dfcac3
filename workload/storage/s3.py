"""Access to S3: requests to one bucket, and conversion of botocore's errors to ours.

boto3 is imported only inside functions. `store.py` has the interface of a store; `address.py` opens stores.

A listing of S3 has neither checksums nor metadata: a checksum is a request of its own, and labels of bundles are read
from their manifests. The version of an object is its ETag.
"""

import io
import re
import shlex
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from functools import cache, partial
from typing import Any, TypeVar

from workload.contract.errors import RooflaunchError, ToolError
from workload.contract.operating_system import crc32c, crc32c_text
from workload.storage.buckets import (
    CloudBucket,
    Content,
    arrived_damaged,
    content_type,
    repeated,
    sent_damaged,
)
from workload.storage.s3_errors import (
    CONFLICT,
    GONE,
    NOT_AS_EXPECTED,
    NOTHING_DONE,
    SERVICE,
    THROTTLED,
    error_code,
    is_temporary,
    translated,
)
from workload.storage.store import (
    MAX_RECORD_BYTES,
    BoundedSink,
    ChecksumSink,
    CountedSink,
    Patience,
    Sink,
    StoredObject,
    UnreachableError,
    changed,
    not_sealed,
    within,
)

T = TypeVar("T")

# Larger objects are sent in parts of this size: one part is held in memory, and sent again if the connection breaks.
PART_BYTES = 8 << 20
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
MAX_PARTS = 10_000
# Number of attempts to upload an object in parts.
ATTEMPTS = 5
BLOCK_BYTES = 1 << 16
# First digits of HTTP status codes.
REDIRECTION, REFUSAL = 3, 4
# Beginning of an HTML page, for example of a proxy that blocks an address.
PAGE = re.compile(rb"\s*<(!doctype )?html", re.IGNORECASE)


class Bucket(CloudBucket):
    """A `Store` in a bucket of S3. `client_for`: returns botocore's client with given time limits.

    `region`: the bucket's, as S3 names it in lists; empty before the first list, and if the server does not name it.
    """

    scheme = "s3"
    region = ""

    def __init__(self, client_for: Callable[[Patience], Any], name: str, patience: Patience, prefix: str = "") -> None:
        super().__init__(name, patience, prefix)
        self._client_for, self._client = client_for, client_for(patience)

    def removal(self, name: str) -> str:
        return f"aws s3 rm {'--recursive ' if name.endswith('/') else ''}{shlex.quote(self.locate(name))}"

    def with_patience(self, patience: Patience) -> "Bucket":
        return Bucket(self._client_for, self.name, patience, self._prefix)

    def require_answer(self, prefix: str) -> None:
        """Request the name of one object, to learn whether the bucket answers.

        Raises `UsageError` if the bucket does not exist or is in another region, `ToolError` without permission or an
        answer. The request is repeated for longer if the server is overloaded than if it does not answer.
        """
        limits = self._patience
        with self._translated():
            repeated(
                lambda: self._ask(partial(self._page, prefix, MaxKeys=1), limit_s=limits.first_retry_s),
                limits.first_answer_s - 2 * limits.first_retry_s,
                lambda error: error_code(error) in THROTTLED,
                sleep=time.sleep,
                monotonic=time.monotonic,
            )

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        for page in self._pages(prefix):
            for row in page.get("Contents", ()):
                name = str(_required(row, "Key")).removeprefix(self._prefix)
                yield StoredObject(name=name, bytes=int(_required(row, "Size")), crc32c="", version=_version(row))

    def folders(self, prefix: str) -> list[str]:
        whole = self._prefix + prefix
        found = (
            _required(row, "Prefix")
            for page in self._pages(prefix, Delimiter="/")
            for row in page.get("CommonPrefixes", ())
        )
        return sorted(str(name).removeprefix(whole).rstrip("/") for name in found)

    def read(self, name: str, *, most_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
        """Content of a small object as stored, compared with its checksum; None if it does not exist.

        Raises `TooLongError` if the object has more than `most_bytes`; at most `most_bytes` are held in memory.
        """

        def attempt() -> tuple[bytes, Any]:
            content = io.BytesIO()
            answer = self._client.get_object(Bucket=self.name, Key=self._prefix + name, ChecksumMode="ENABLED")
            _pass_on(answer, BoundedSink(content, most_bytes, what=f"'{self._prefix}{name}' in {self}"))
            return content.getvalue(), answer

        with self._translated():
            try:
                content, answer = self._ask(attempt)
            except Exception as error:
                if error_code(error) in GONE:
                    return None
                raise
            if _checksum(answer) not in (None, crc32c_text(crc32c(content))):
                raise sent_damaged(self.name)
            return content

    def checksum(self, name: str) -> str | None:
        """Current CRC-32C of an object; None if it does not exist.

        The server knows it for objects that we stored. Others are read to the end.
        """
        with self._translated():
            try:
                answer = self._ask(
                    lambda: self._client.head_object(Bucket=self.name, Key=self._prefix + name, ChecksumMode="ENABLED")
                )
            except Exception as error:
                if error_code(error) in GONE:
                    return None
                raise
        if (known := _checksum(answer)) is not None:
            return known
        sink = ChecksumSink()
        size = int(_required(answer, "ContentLength"))
        self.download(StoredObject(name=name, bytes=size, crc32c="", version=_version(answer)), sink)
        return crc32c_text(sink.crc)

    def download(self, listed: StoredObject, sink: Sink) -> None:
        counted = CountedSink(BoundedSink(sink, listed.bytes, what=f"'{listed.name}'"))

        def attempt() -> None:
            answer = self._client.get_object(
                Bucket=self.name,
                Key=self._prefix + listed.name,
                IfMatch=_etag(listed.version),
                **({"Range": f"bytes={counted.bytes}-"} if counted.bytes else {}),
            )
            if _version(answer) != listed.version:
                raise changed(listed)
            _pass_on(answer, counted)

        while counted.bytes < listed.bytes:  # an empty range is an error in HTTP
            before = counted.bytes
            try:
                with self._translated():
                    self._ask(attempt)
            except UnreachableError:
                if counted.bytes == before:
                    raise
            except RooflaunchError as error:
                if error_code(error.__cause__) in {*GONE, *NOT_AS_EXPECTED, "InvalidRange", "416"}:
                    raise changed(listed) from error
                raise
            else:
                break

    def write(self, name: str, content: bytes, *, if_absent: bool = False, is_private: bool = False) -> bool:
        is_written = super().write(name, content, if_absent=if_absent)
        if is_private and is_written:
            self._delete_older_versions(self._prefix + name)
        return is_written

    def _delete_older_versions(self, key: str) -> None:
        """Delete versions of an object that a bucket with versions keeps; stop if S3 refuses, for example a right."""
        with self._translated():
            try:
                page = self._ask(lambda: self._client.list_object_versions(Bucket=self.name, Prefix=key))
                for row in page.get("Versions", ()):
                    if row["Key"] == key and not row["IsLatest"]:
                        older = {"Bucket": self.name, "Key": key, "VersionId": row["VersionId"]}
                        self._ask(partial(self._client.delete_object, **older))
            except Exception as error:
                if not error_code(error):
                    raise

    def _is_conflict(self, error: Exception) -> bool:
        # S3 answers 404 if the object to replace is gone.
        return error_code(error.__cause__) in {*NOT_AS_EXPECTED, "NoSuchKey"}

    def _details(self, address: str) -> str:
        return f"aws s3 ls {address}"

    def _send(self, wanted: Content, unclear: list[Exception] | None) -> None:
        """Send an object, in parts if it is large; start again if the server has lost or refused the parts."""
        # S3 compares every part with the checksum that comes with it; we compare their sum with the sealed one.
        condition: dict[str, str] = {}
        if wanted.replaces is not None:
            condition = {"IfMatch": _etag(wanted.replaces)} if wanted.replaces else {"IfNoneMatch": "*"}
        with self._translated():
            if wanted.bytes <= PART_BYTES:
                self._send_whole(wanted, condition, unclear)
                return
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._send_in_parts(wanted, condition)
                except Exception as error:
                    if error_code(error) not in {"NoSuchUpload", *CONFLICT} or attempt == ATTEMPTS:
                        raise
                else:
                    return

    def _send_whole(self, wanted: Content, condition: dict[str, str], unclear: list[Exception] | None) -> None:
        wanted.source.seek(0)
        content = wanted.source.read(wanted.bytes)
        if crc32c_text(crc32c(content)) != wanted.crc32c:
            raise not_sealed(wanted.name)
        stored = self._ask(
            lambda: self._client.put_object(
                Bucket=self.name,
                Key=wanted.name,
                Body=content,
                ContentType=content_type(wanted.name),
                ChecksumAlgorithm="CRC32C",
                ChecksumCRC32C=wanted.crc32c,
                **condition,
            ),
            unclear=unclear,
        )
        self._require_stored(wanted, stored)

    def _send_in_parts(self, wanted: Content, condition: dict[str, str]) -> None:
        where = {"Bucket": self.name, "Key": wanted.name}
        kind = {"ChecksumAlgorithm": "CRC32C", "ChecksumType": "FULL_OBJECT"}
        begun = self._ask(
            lambda: self._client.create_multipart_upload(**where, **kind, ContentType=content_type(wanted.name))
        )
        where["UploadId"] = _required(begun, "UploadId")
        unclear: list[Exception] = []
        try:
            parts = self._send_parts(wanted, where)
            stored = self._ask(
                lambda: self._client.complete_multipart_upload(
                    **where,
                    MultipartUpload={"Parts": parts},
                    ChecksumCRC32C=wanted.crc32c,
                    ChecksumType=kind["ChecksumType"],
                    **condition,
                ),
                unclear=unclear,
                # API_CompleteMultipartUpload.html: after a conflict the parts must be sent again.
                lasting=CONFLICT,
            )
        except BaseException as error:
            # The answer to an earlier attempt was lost: that attempt has stored the object.
            name, ended = wanted.name.removeprefix(self._prefix), {"NoSuchUpload", *NOT_AS_EXPECTED}
            if unclear and error_code(error) in ended and self.checksum(name) == wanted.crc32c:
                return
            # Parts of a broken upload cost money until they are removed. A rule of the bucket removes what stays here.
            with suppress(Exception):
                self._client.abort_multipart_upload(**where)
            raise
        self._require_stored(wanted, stored)

    def _send_parts(self, wanted: Content, where: dict[str, Any]) -> list[dict[str, Any]]:
        """Send the parts; return their numbers, tags and checksums. Raises `BundleError` if the file has changed."""
        wanted.source.seek(0)
        size, whole = max(PART_BYTES, -(-wanted.bytes // MAX_PARTS)), 0
        parts: list[dict[str, Any]] = []
        for start in range(0, wanted.bytes, size):
            block = wanted.source.read(min(size, wanted.bytes - start))
            whole = crc32c(block, whole)
            part = {"PartNumber": len(parts) + 1, "ChecksumCRC32C": crc32c_text(crc32c(block))}
            send = partial(self._client.upload_part, **where, **part, Body=block, ChecksumAlgorithm="CRC32C")
            parts.append(part | {"ETag": _required(self._ask(send), "ETag")})
        if crc32c_text(whole) != wanted.crc32c:
            raise not_sealed(wanted.name)
        return parts

    def _require_stored(self, wanted: Content, answer: Any) -> None:
        _required(answer, "ETag")
        if _checksum(answer) not in (None, wanted.crc32c):
            raise arrived_damaged(wanted.name, self.name)

    def _pages(self, prefix: str, **options: Any) -> Iterator[Any]:
        token: dict[str, str] = {}
        with self._translated():
            while True:
                page = self._ask(partial(self._page, prefix, **options, **token))
                yield page
                if not page.get("IsTruncated"):
                    return
                following = {"ContinuationToken": page.get("NextContinuationToken", "")}
                if following == token:
                    raise SERVICE.foreign()  # it would repeat this page for ever
                token = following

    def _page(self, prefix: str, **options: Any) -> Any:
        page = self._client.list_objects_v2(Bucket=self.name, Prefix=self._prefix + prefix, **options)
        _required(page, "Name")
        self.region = str(page["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region", ""))
        return page

    def _ask(
        self,
        work: Callable[[], T],
        *,
        limit_s: float | None = None,
        unclear: list[Exception] | None = None,
        lasting: Collection[str] = (),
    ) -> T:
        """Return `work()`, repeated after temporary errors for `limit_s` seconds.

        `unclear`: gets the errors after which the server may have done the work. `lasting`: codes of errors that are
        not temporary for this work.
        """

        def passes(error: Exception) -> bool:
            code = error_code(error)
            if code in lasting or not is_temporary(error):
                return False
            if unclear is not None and code not in NOTHING_DONE:
                unclear.append(error)
            return True

        limit_s = self._patience.retry_s if limit_s is None else limit_s
        return repeated(work, limit_s, passes, sleep=time.sleep, monotonic=time.monotonic)

    def _translated(self) -> Any:
        return translated(self.name, self._patience)


def connect(name: str, *, prefix: str, root: str = "", jobs: int = 1, patience: Patience | None = None) -> Bucket:
    """Open the part of a bucket below `root`, after it has answered a request for names that start with `prefix`.

    `jobs`: number of requests that may run at a time. Raises `ToolError` (no package, no credentials, no permission, no
    answer) or `UsageError` (no such bucket, or another region).
    """
    limits = patience or Patience()

    def ask() -> Bucket:
        bucket = Bucket(clients(jobs), name, limits, root)
        bucket.require_answer(prefix)
        return bucket

    try:
        import boto3  # noqa: F401, PLC0415 - takes 0.2 s
    except ModuleNotFoundError as error:
        raise ToolError("the package boto3 is missing", hint="pip install 'rooflaunch[aws]'") from error
    with translated(name, limits):
        return within(limits.first_answer_s, ask)


def clients(jobs: int) -> Callable[[Patience], Any]:
    """Function that returns the client with given time limits; it is made once, with the credentials of one session.

    `jobs`: number of connections that are kept open.
    """
    import boto3  # noqa: PLC0415 - see the module
    from botocore.config import Config  # noqa: PLC0415

    session = boto3.session.Session()

    @cache
    def client(connect_s: float, read_s: float) -> Any:
        made = session.client(
            "s3",
            config=Config(
                connect_timeout=connect_s,
                read_timeout=read_s,
                max_pool_connections=jobs,
                # `Bucket` repeats requests itself, because it has a time limit and no number of attempts.
                retries={"mode": "standard", "total_max_attempts": 1},
                response_checksum_validation="when_required",
            ),
        )
        _refuse_pages(made._endpoint.http_session)  # noqa: SLF001 - no public way
        return made

    return lambda patience: client(patience.connect_s, patience.read_s)


def _refuse_pages(session: Any) -> None:
    """Have `session` refuse pages of HTML, and redirections, that do not come from S3.

    botocore would take such a page for a refusal of S3, and would ask for the bucket's region without end.
    """
    send = session.send

    def checked_send(request: Any) -> Any:
        answer = send(request)
        kind, headers = answer.status_code // 100, answer.headers
        is_foreign = not {"x-amz-bucket-region", "x-amz-request-id"} & {name.lower() for name in headers}
        if (kind == REDIRECTION and is_foreign) or (kind == REFUSAL and PAGE.match(answer.content)):
            raise SERVICE.foreign()
        return answer

    session.send = checked_send


def _pass_on(answer: Any, sink: Sink) -> None:
    with closing(answer["Body"]) as body:
        _required(answer, "ETag")
        for block in body.iter_chunks(BLOCK_BYTES):
            sink.write(block)


def _required(answer: Any, name: str) -> Any:
    """Field `name`, which every answer of S3 has. A network's log-in page, which may be valid XML, lacks it."""
    if name not in answer:
        raise SERVICE.foreign()
    return answer[name]


def _version(row: Any) -> str:
    """Version of an object: its ETag without quotes, as text that may be a part of a file's name."""
    return urllib.parse.quote(str(row.get("ETag", "")).strip('"'), safe="")


def _etag(version: str) -> str:
    return f'"{urllib.parse.unquote(version)}"'


def _checksum(answer: Any) -> str | None:
    """CRC-32C of an object's content; None if the answer has none, or the checksum of its parts' checksums (`x-3`)."""
    found = answer.get("ChecksumCRC32C")
    is_whole = answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
    return str(found) if found and is_whole and "-" not in found else None
