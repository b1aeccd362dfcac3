"""Cloud Storage's side of an upload, as its documentation has it, where fake-gcs-server 1.54 is more lenient.

fake-gcs-server stores an object whose crc32c differs from the one that was sent, does not look at ifGenerationMatch of
a resumable upload, and does not know testIamPermissions. This server knows those, and the
few requests around them; anything else answers 501. Sources: https://cloud.google.com/storage/docs/resumable-uploads,
/docs/performing-resumable-uploads, /docs/request-preconditions, /docs/json_api/v1/objects/insert.
"""

import base64
import email.parser
import email.policy
import json
import re
import socket
import threading
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from tests.ports import Answering, Fake

BUCKET = "strict-test"
# Cloud Storage keeps whole pieces of this size of a chunk whose connection broke.
GRAIN_BYTES = 256 * 1024
# An object that is sent in chunks, as tests set them.
LARGE_BYTES = 4 * GRAIN_BYTES


@dataclass
class Stored:
    content: bytes
    generation: int
    metadata: dict[str, Any]


@dataclass
class Session:
    """One resumable upload."""

    metadata: dict[str, Any]
    if_generation: str | None
    content: bytearray = field(default_factory=bytearray)
    result: dict[str, Any] | None = None


class StrictGcs(Fake):
    """`fail[step]`: statuses that the next requests of that step get instead of an answer, 0: the connection breaks
    after the work is done. Steps: multipart, start, chunk, list, get, media. `keep_bytes`: how much of the next whole
    chunk is kept. `calls` counts steps.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        super().__init__(_Handler)
        self.reset()

    def reset(self) -> None:
        """As new."""
        self.objects: dict[str, Stored] = {}
        self.sessions: dict[str, Session] = {}
        self.fail: dict[str, list[int]] = {}
        self.keep_bytes: int | None = None
        self.calls: Counter[str] = Counter()
        self.permissions: set[str] = set()
        self._generation = 1000

    def why_not(self, name: str, if_generation: str | None) -> int | None:
        """412 where the precondition does not hold."""
        held = self.objects.get(name)
        generation = held.generation if held else 0
        return 412 if if_generation is not None and int(if_generation) != generation else None

    def store(self, metadata: dict[str, Any], content: bytes) -> dict[str, Any] | int:
        """The object's metadata, or 400 where its checksum differs."""
        found = base64.b64encode(google_crc32c.Checksum(content).digest()).decode()
        if metadata.get("crc32c", found) != found:
            return 400
        self._generation += 1
        self.objects[metadata["name"]] = Stored(content, self._generation, metadata)
        return self.describe(metadata["name"])

    def describe(self, name: str) -> dict[str, Any]:
        held = self.objects[name]
        crc = base64.b64encode(google_crc32c.Checksum(held.content).digest()).decode()
        generation = str(held.generation)
        return {"kind": "storage#object", "bucket": BUCKET, "crc32c": crc, "generation": generation} | {
            "name": name,
            "size": str(len(held.content)),
            "contentType": held.metadata.get("contentType", ""),
        }


class _Handler(Answering):
    fake: StrictGcs
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        path, query = self._asked()
        body = self._body()
        if path != f"/upload/storage/v1/b/{BUCKET}/o":
            self._send(404 if path.startswith("/upload/storage/v1/b/") else 501, {"error": {"message": "not here"}})
            return
        with self.fake.lock:
            match query.get("uploadType"):
                case "multipart":
                    self._answer("multipart", lambda: self._multipart(query, body))
                case "resumable":
                    self._answer("start", lambda: self._start(query, body))
                case other:
                    self._send(501, {"what": other})

    def do_PUT(self) -> None:
        _, query = self._asked()
        body = self._body()
        with self.fake.lock:
            self._answer("chunk", lambda: self._chunk(query, body))

    def do_GET(self) -> None:
        path, query = self._asked()
        objects = f"/storage/v1/b/{BUCKET}/o"
        with self.fake.lock:
            if path == objects:
                self._answer("list", lambda: self._list(query))
            elif path.startswith(f"{objects}/"):
                name = urllib.parse.unquote(path.removeprefix(f"{objects}/"))
                self._answer("get", lambda: self.fake.describe(name) if name in self.fake.objects else 404)
            elif path.startswith(f"/download{objects}/"):
                self._media(urllib.parse.unquote(path.removeprefix(f"/download{objects}/")))
            elif path == f"/storage/v1/b/{BUCKET}/iam/testPermissions":
                asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["permissions"]
                held = [each for each in asked if each in self.fake.permissions]
                self._answer("permissions", lambda: {"permissions": held} if held else {})
            else:
                self._send(404 if path.startswith("/storage/v1/b/") else 501, {})

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urllib.parse.urlsplit(self.path)
        return parts.path, dict(urllib.parse.parse_qsl(parts.query))

    def _body(self) -> bytes:
        """What came: less than was announced where the connection broke."""
        left, pieces = int(self.headers.get("Content-Length") or 0), []
        while left and (piece := self.rfile.read1(min(left, 65536))):  # type: ignore[attr-defined]
            pieces.append(piece)
            left -= len(piece)
        self.close_connection = left > 0
        return b"".join(pieces)

    def _answer(self, step: str, work: Any) -> None:
        """The next fault of this step, or what `work` gives: a document, or a status."""
        self.fake.calls[step] += 1
        faults = self.fake.fail.get(step, [])
        fault = faults.pop(0) if faults else None
        if fault:
            self._send(fault, {"error": {"code": fault, "message": "as the test wants"}})
            return
        found = work()
        if fault == 0:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif found is not None:
            status, document = (200, found) if isinstance(found, dict) else (found, {"error": {"message": "no"}})
            self._send(status, document)

    def _send(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in (
            {"Content-Type": "application/json", "Content-Length": str(len(content))} | (headers or {})
        ).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _multipart(self, query: dict[str, str], body: bytes) -> dict[str, Any] | int:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        parts = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
        first, second = parts.iter_parts()  # type: ignore[attr-defined]
        metadata = json.loads(first.get_content()) | {"contentType": second.get_content_type()}
        # Not through the parser: it changes line ends.
        boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])
        assert boundary
        last = body.split(b"--" + boundary[1].encode())[2]
        content = last.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
        if refused := self.fake.why_not(metadata["name"], query.get("ifGenerationMatch")):
            return refused
        return self.fake.store(metadata, content)

    def _start(self, query: dict[str, str], body: bytes) -> dict[str, Any] | int | None:
        metadata = json.loads(body) | {"contentType": self.headers["x-upload-content-type"]}
        session = Session(metadata, query.get("ifGenerationMatch"))
        if refused := self.fake.why_not(session.metadata["name"], session.if_generation):
            return refused
        upload_id = f"session-{len(self.fake.sessions)}"
        self.fake.sessions[upload_id] = session
        self._send(
            200,
            b"",
            {"Location": f"{self.fake.url}/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&upload_id={upload_id}"},
        )
        return None

    def _chunk(self, query: dict[str, str], body: bytes) -> dict[str, Any] | int | None:
        session = self.fake.sessions.get(query["upload_id"])
        if session is None:
            return 410
        if session.result:
            return session.result
        found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers["Content-Range"])
        assert found, self.headers["Content-Range"]
        if found[1]:
            self._keep(session, int(found[1]), int(found[2]) + 1, body)
        if found[3] == "*" or len(session.content) < int(found[3]):
            headers = {"Range": f"bytes=0-{len(session.content) - 1}"} if session.content else {}
            self._send(308, b"", headers)
            return None
        if refused := self.fake.why_not(session.metadata["name"], session.if_generation):
            return refused
        stored = self.fake.store(session.metadata, bytes(session.content))
        if isinstance(stored, dict):
            session.result = stored
        return stored

    def _keep(self, session: Session, start: int, end: int, body: bytes) -> None:
        """Bytes that are there already are not taken again; of a broken chunk whole grains are kept."""
        held = len(session.content)
        assert start <= held, "a hole"
        kept = body
        if start + len(body) < end:
            kept = body[: len(body) // GRAIN_BYTES * GRAIN_BYTES]
        elif self.fake.keep_bytes is not None:
            kept, self.fake.keep_bytes = body[: self.fake.keep_bytes], None
        session.content += kept[held - start :]

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        names = sorted(name for name in self.fake.objects if name.startswith(prefix))
        folders = {
            prefix + inner.partition(delimiter)[0] + delimiter
            for name in names
            if delimiter and delimiter in (inner := name.removeprefix(prefix))
        }
        items = [self.fake.describe(name) for name in names if not any(name.startswith(each) for each in folders)]
        return {"items": items, "prefixes": sorted(folders)}

    def _media(self, name: str) -> None:
        self.fake.calls["media"] += 1
        if name not in self.fake.objects:
            self._send(404, b"No such object")
            return
        found = self.fake.describe(name)
        content = self.fake.objects[name].content
        if self.fake.fail.get("media"):
            self.fake.fail["media"].pop()
            content = content[:-1] + b"?"
        headers = {"Content-Type": "application/octet-stream", "x-goog-hash": f"crc32c={found['crc32c']}"}
        if encoding := self.fake.objects[name].metadata.get("contentEncoding"):
            headers["Content-Encoding"] = encoding
        self._send(200, content, headers | {"x-goog-generation": found["generation"]})
