"""S3's side of our requests, as its documentation has it, where moto 5.2.5 is more lenient.

moto stores an object whose CRC-32C differs from the one that was sent, and knows no conflict (409), no overload (503),
no wrong clock, no missing right and no bucket in another region. This server knows those, and the requests that our
store sends. Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html,
API_CompleteMultipartUpload.html, API_ListObjectsV2.html, ErrorResponses.html.
"""

import base64
import hashlib
import itertools
import re
import socket
import threading
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import google_crc32c

from tests.ports import Answering, Fake

BUCKET = "strict-test"
LEAST_PART_BYTES = 5 << 20
# For tests that send objects in parts: size of a part, and of an object with three.
PART_BYTES, LARGE_BYTES = 100_000, 250_000
PAGE = b"<!DOCTYPE html><html><title>Log in to this network</title></html>"
# Settings of `fail` that are no refusal: the connection breaks after the work, or a page of the network answers.
BREAK, LOG_IN_PAGE = "break", "page"
# A refusal that comes after the answer has begun has the status 200.
LATE_REFUSAL = (200, "InternalError")
# How an object is sent: half of it, then the end of the connection; or with another last byte.
CUT, DAMAGED = "cut", "damaged"
Refusal = tuple[int, str] | tuple[int, str, str]


def crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()


@dataclass
class Stored:
    content: bytes
    etag: str
    headers: dict[str, str]
    has_checksum: bool = True


@dataclass
class Upload:
    """An upload in parts. `parts`: content by number."""

    name: str
    headers: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str = "as the test wants", **more: str) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.more = status, code, message, more


class StrictS3(Fake):
    """`fail[operation]`: what the next requests of that operation meet; operations have the names of botocore.

    `calls`: number of requests by operation; `signed_by`: keys and session tokens of the requests; `refused`: codes of
    refusals. `ignores_conditions`: as servers that only resemble S3. `region`: where the bucket is, if another region
    than that of the signature; `least_part_bytes`: of all parts but the last.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        super().__init__(_Handler)
        self.reset()

    def reset(self) -> None:
        """As new."""
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.fail: dict[str, list[Refusal | str]] = {}
        self.calls: Counter[str] = Counter()
        self.asked: list[str] = []
        self.signed_by: set[tuple[str, str | None]] = set()
        self.region = ""
        self.page_rows = 1000
        self.refused: list[str] = []
        self.ignores_conditions = False
        self.least_part_bytes = LEAST_PART_BYTES
        self._numbers = itertools.count()

    def put(self, name: str, content: bytes) -> None:
        """Store an object, as another program does that sends no CRC-32C."""
        self.store(name, content, {}, f'"{hashlib.md5(content).hexdigest()}"', has_checksum=False)

    def store(self, name: str, content: bytes, headers: dict[str, str], etag: str, *, has_checksum: bool) -> Stored:
        self.objects[name] = Stored(content, etag, headers, has_checksum)
        return self.objects[name]

    def require(self, name: str, headers: Any) -> None:
        """Refuse a request whose precondition does not hold."""
        if self.ignores_conditions:
            return
        held = self.objects.get(name)
        if headers["If-None-Match"] == "*" and held:
            raise RefusedError(412, "PreconditionFailed", "At least one of the pre-conditions did not hold")
        if wanted := headers["If-Match"]:
            if held is None:
                raise RefusedError(404, "NoSuchKey", "The specified key does not exist.")
            if held.etag != wanted:
                raise RefusedError(412, "PreconditionFailed", "At least one of the pre-conditions did not hold")

    def next_upload(self) -> str:
        return f"upload-{next(self._numbers)}"


@dataclass(kw_only=True)
class Answer:
    status: int = 200
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class _Handler(Answering):
    fake: StrictS3
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        _, bucket, *rest = parts.path.split("/", 2)
        self.key = urllib.parse.unquote("".join(rest))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        operation = self._operation()
        with self.fake.lock:
            self.fake.calls[operation] += 1
            self.fake.asked.append(f"{self.command} {self.path}")
            faults = self.fake.fail.get(operation, [])
            fault = faults.pop(0) if faults else None
            try:
                self._require_bucket(bucket, fault)
                answer: Answer = getattr(self, f"_{operation}")()
            except RefusedError as error:
                answer = self._refusal(error)
        if fault == LOG_IN_PAGE:
            answer = Answer(content=PAGE, headers={"Content-Type": "text/html"})
        if fault == DAMAGED:
            answer.content = answer.content[:-1] + b"?"
        if fault == BREAK:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._send(answer, cut=fault == CUT)

    def handle_expect_100(self) -> bool:
        done = super().handle_expect_100()
        self.wfile.flush()  # botocore would wait a second for it
        return done

    def _operation(self) -> str:
        names = {
            "GET": "GetObject" if self.key else "ListObjectsV2",
            "HEAD": "HeadObject" if self.key else "HeadBucket",
            "PUT": "UploadPart" if "partNumber" in self.query else "PutObject",
            "POST": "CreateMultipartUpload" if "uploads" in self.query else "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
        }
        return names[self.command]

    def _require_bucket(self, bucket: str, fault: Refusal | str | None) -> None:
        if isinstance(fault, tuple):
            if fault[0] == 409:  # the parts are lost
                self.fake.uploads.pop(self.query.get("uploadId", ""), None)
            raise RefusedError(*fault)
        if bucket != BUCKET:
            raise RefusedError(404, "NoSuchBucket", "The specified bucket does not exist")
        signed = re.search(r"Credential=([^/]+)/\d+/([^/]+)/s3/", self.headers["Authorization"] or "")
        assert signed, "a signature of version 4"
        self.fake.signed_by.add((signed[1], self.headers["X-Amz-Security-Token"]))
        if self.fake.region and signed[2] != self.fake.region:
            raise RefusedError(301, "PermanentRedirect", "Use another endpoint", Region=self.fake.region)

    def _refusal(self, error: RefusedError) -> Answer:
        self.fake.refused.append(error.code)
        more = "".join(f"<{name}>{value}</{name}>" for name, value in error.more.items())
        text = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message>{more}</Error>"
        headers = {"Content-Type": "application/xml", "x-amz-request-id": "1"}
        if region := error.more.get("Region"):
            headers["x-amz-bucket-region"] = region
        return Answer(status=error.status, content=text.encode(), headers=headers)

    def _send(self, answer: Answer, *, cut: bool) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content[: len(answer.content) // 2] if cut else answer.content)
        self.close_connection = self.close_connection or cut

    def _HeadBucket(self) -> Answer:  # noqa: N802 - named as in botocore
        return Answer(headers={"x-amz-bucket-region": self.fake.region})

    def _ListObjectsV2(self) -> Answer:  # noqa: N802
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        assert self.query["encoding-type"] == "url", "names may have characters that XML cannot have"
        after = bytes.fromhex(self.query.get("continuation-token", ""))
        found: dict[str, str] = {}
        for name in sorted(self.fake.objects, key=str.encode):
            if name.startswith(prefix):
                inner, slash, _ = name.removeprefix(prefix).partition(delimiter) if delimiter else (name, "", "")
                row = prefix + inner + slash if slash else name
                if row.encode() > after:
                    found[row] = "folder" if slash else "object"
        most = min(self.fake.page_rows, int(self.query.get("max-keys", 1000)))
        rows = list(found.items())
        shown = "".join(self._row(name, kind) for name, kind in rows[:most])
        is_cut = "true" if len(rows) > most else "false"
        token = rows[most - 1][0].encode().hex() if len(rows) > most else ""
        last = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        text = f"<Name>{BUCKET}</Name><IsTruncated>{is_cut}</IsTruncated>{last}<EncodingType>url</EncodingType>{shown}"
        answer = self._document("ListBucketResult", text)
        if self.fake.region:
            answer.headers["x-amz-bucket-region"] = self.fake.region
        return answer

    def _row(self, name: str, kind: str) -> str:
        quoted = urllib.parse.quote(name, safe="/")
        if kind == "folder":
            return f"<CommonPrefixes><Prefix>{quoted}</Prefix></CommonPrefixes>"
        held = self.fake.objects[name]
        size = f"<Size>{len(held.content)}</Size>"
        return f"<Contents><Key>{quoted}</Key><ETag>{escape(held.etag)}</ETag>{size}</Contents>"

    def _document(self, root: str, text: str) -> Answer:
        return Answer(content=f"<{root}>{text}</{root}>".encode(), headers={"Content-Type": "application/xml"})

    def _HeadObject(self) -> Answer:  # noqa: N802
        held = self._held()
        headers = {"ETag": held.etag, "Content-Length": str(len(held.content))} | held.headers
        if self.headers["x-amz-checksum-mode"] == "ENABLED" and held.has_checksum:
            headers |= {"x-amz-checksum-crc32c": crc32c(held.content), "x-amz-checksum-type": "FULL_OBJECT"}
        return Answer(headers=headers)

    def _GetObject(self) -> Answer:  # noqa: N802
        answer, content = self._HeadObject(), self._held().content
        if first := re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or ""):
            if int(first[1]) >= len(content):
                raise RefusedError(416, "InvalidRange")
            answer.status, content = 206, content[int(first[1]) :]
            answer.headers.pop("x-amz-checksum-crc32c", None)
        answer.headers["Content-Length"] = str(len(content))
        answer.content = content
        return answer

    def _held(self) -> Stored:
        if self.key not in self.fake.objects:
            raise RefusedError(404, "NoSuchKey", "The specified key does not exist.")
        self.fake.require(self.key, {"If-None-Match": None, "If-Match": self.headers["If-Match"]})
        return self.fake.objects[self.key]

    def _PutObject(self) -> Answer:  # noqa: N802
        self.fake.require(self.key, self.headers)
        found = self._require_checksum(self.body)
        kept = {"Content-Type": self.headers["Content-Type"]}
        etag = f'"{hashlib.md5(self.body).hexdigest()}"'
        self.fake.store(self.key, self.body, kept, etag, has_checksum=bool(found))
        return Answer(headers={"ETag": etag} | ({"x-amz-checksum-crc32c": found} if found else {}))

    def _require_checksum(self, content: bytes) -> str:
        sent = self.headers["x-amz-checksum-crc32c"] or ""
        if sent and sent != crc32c(content):
            raise RefusedError(400, "BadDigest", "The CRC32C you specified did not match the calculated checksum.")
        return sent

    def _CreateMultipartUpload(self) -> Answer:  # noqa: N802
        assert self.headers["x-amz-checksum-algorithm"] == "CRC32C"
        assert self.headers["x-amz-checksum-type"] == "FULL_OBJECT"
        upload_id = self.fake.next_upload()
        self.fake.uploads[upload_id] = Upload(self.key, {"Content-Type": self.headers["Content-Type"]})
        return self._document("InitiateMultipartUploadResult", f"<UploadId>{upload_id}</UploadId>")

    def _upload(self) -> Upload:
        found = self.fake.uploads.get(self.query["uploadId"])
        if found is None:
            raise RefusedError(404, "NoSuchUpload", "The specified upload does not exist.")
        assert found.name == self.key
        return found

    def _UploadPart(self) -> Answer:  # noqa: N802
        upload = self._upload()
        found = self._require_checksum(self.body)
        assert found, "an upload with a checksum's algorithm has one in each part"
        upload.parts[int(self.query["partNumber"])] = self.body
        return Answer(headers={"ETag": f'"{hashlib.md5(self.body).hexdigest()}"', "x-amz-checksum-crc32c": found})

    def _CompleteMultipartUpload(self) -> Answer:  # noqa: N802
        self.fake.require(self.key, self.headers)
        upload = self._upload()
        rows = list(ET.fromstring(self.body))
        numbers = [int(row.findtext("{*}PartNumber") or 0) for row in rows]
        contents: Sequence[bytes] = [upload.parts[number] for number in numbers]
        for row, part in zip(rows, contents, strict=True):
            known = (row.findtext("{*}ETag"), row.findtext("{*}ChecksumCRC32C"))
            if known != (f'"{hashlib.md5(part).hexdigest()}"', crc32c(part)):
                raise RefusedError(400, "InvalidPart", "One or more of the specified parts could not be found.")
        if any(len(each) < self.fake.least_part_bytes for each in contents[:-1]):
            raise RefusedError(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
        whole = b"".join(contents)
        assert self.headers["x-amz-checksum-type"] == "FULL_OBJECT"
        assert self._require_checksum(whole)
        sums = b"".join(hashlib.md5(each).digest() for each in contents)
        etag = f'"{hashlib.md5(sums).hexdigest()}-{len(numbers)}"'
        self.fake.store(self.key, whole, upload.headers, etag, has_checksum=True)
        del self.fake.uploads[self.query["uploadId"]]
        return self._document("CompleteMultipartUploadResult", f"<ETag>{escape(etag)}</ETag>")

    def _AbortMultipartUpload(self) -> Answer:  # noqa: N802
        self._upload()
        del self.fake.uploads[self.query["uploadId"]]
        return Answer(status=204)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve
