"""Between our storage code and a server of buckets: passes every request on, and spoils the ones it is told to."""

import http.client
import json
import re
import socket
import struct
import threading
import time
import urllib.parse
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tests.ports import Answering, Fake

PAGE = b"<!DOCTYPE html><html><title>Log in to this network</title></html>"
LOG_IN = "/log-in"
PIECES = 8
DRIP_S = 0.02
# Of the other end's connection: no wait for what was not sent, but a reset.
RESETS = struct.pack("ii", 1, 0)


class Fault(StrEnum):
    """What happens to a request. Before the server has it, or to its answer."""

    BUSY = "503"
    THROTTLED = "429 with Retry-After"
    BREAKS_ON_THE_WAY = "the connection is reset in the middle of the request"
    REFUSED = "412"
    REDIRECTED = "redirected to a page of HTML"
    LOG_IN_PAGE = "a page of HTML with 200"
    REPLY_LOST = "done, and the answer never comes"
    REPLY_BREAKS = "the connection is reset in the middle of the answer"
    REPLY_CUT = "the answer ends early"
    REPLY_SHORT = "the answer has half of its bytes, and says so"
    REPLY_DRIPS = "the answer comes in pieces, slowly"
    WRONG_BYTES = "a byte of the content, or its checksum, is another"


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A request as it came."""

    method: str
    query: dict[str, str]


class Server(Protocol):
    """What the proxy needs of a server: its address."""

    url: str


class FaultyProxy(Fake):
    """`spoil(fault, at)`: the request of this number, from 0, counted from there; `for_ever` each one after it too."""

    def __init__(self, server: Server) -> None:
        self._upstream = urllib.parse.urlsplit(server.url)
        self._lock = threading.Lock()
        self.served: list[Sent] = []
        self.spoiled = 0
        self._fault: Fault | None = None
        self._at, self._for_ever = 0, False
        super().__init__(_Handler)

    def spoil(self, fault: Fault | None, at: int = 0, *, for_ever: bool = False) -> None:
        with self._lock:
            self._fault, self._at, self._for_ever = fault, at, for_ever
            self.served.clear()
            self.spoiled = 0

    def next_fault(self, sent: Sent) -> Fault | None:
        """Of a request that has just come."""
        with self._lock:
            number = len(self.served)
            self.served.append(sent)
            hit = number >= self._at if self._for_ever else number == self._at
            self.spoiled += bool(hit and self._fault)
            return self._fault if hit else None

    def ask(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The server's own answer, with this proxy's address in place of the server's."""
        upstream = http.client.HTTPConnection(self._upstream.netloc, timeout=20)
        try:
            upstream.request(method, target, body=body, headers=headers | {"Host": self._upstream.netloc})
            answer = upstream.getresponse()
            content, theirs = answer.read(), f"http://{self._upstream.netloc}"
            kept = {name: value.replace(theirs, self.url) for name, value in answer.getheaders()}
            if "json" in kept.get("Content-Type", "") and "alt=media" not in target:
                content = content.replace(theirs.encode(), self.url.encode())
            return answer.status, kept, content
        finally:
            upstream.close()


class _Handler(Answering):
    fake: FaultyProxy
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        if parts.path == LOG_IN:
            self._send(200, {"Content-Type": "text/html"}, PAGE)
            return
        size = int(self.headers.get("Content-Length") or 0)
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        fault = self.fake.next_fault(Sent(method=self.command, query=query))
        if fault is Fault.BREAKS_ON_THE_WAY:
            self.rfile.read(size // 2)
            self._reset()
            return
        body = self.rfile.read(size)
        if not self._refused(fault):
            self._spoiled(fault, *self.fake.ask(self.command, self.path, dict(self.headers.items()), body))

    def _refused(self, fault: Fault | None) -> bool:
        """Whether it was answered in the server's place, which has not seen it."""
        match fault:
            case Fault.BUSY:
                self._send(503, {}, b'{"error": {"code": 503, "message": "busy"}}')
            case Fault.THROTTLED:
                self._send(429, {"Retry-After": "1"}, b'{"error": {"code": 429, "message": "slow down"}}')
            case Fault.REFUSED:
                self._send(412, {}, b'{"error": {"code": 412, "message": "conditionNotMet"}}')
            case Fault.REDIRECTED:
                self._send(302, {"Location": self.fake.url + LOG_IN}, b"")
            case Fault.LOG_IN_PAGE:
                self._send(200, {"Content-Type": "text/html"}, PAGE)
            case _:
                return False
        return True

    def _spoiled(self, fault: Fault | None, status: int, headers: dict[str, str], content: bytes) -> None:
        match fault:
            case Fault.REPLY_LOST:
                self._reset()
            case Fault.REPLY_BREAKS | Fault.REPLY_CUT:
                self._send(status, headers, content, upto=len(content) // 2)
                self.close_connection = True
                if fault is Fault.REPLY_BREAKS:
                    self._reset()
            case Fault.REPLY_SHORT:
                self._send(status, headers, content[: len(content) // 2])
            case Fault.REPLY_DRIPS:
                self._send(status, headers, content, drip_s=DRIP_S)
            case Fault.WRONG_BYTES:
                self._send(status, _without_checksum(headers), wrong(content))
            case _:
                self._send(status, headers, content)

    def _send(
        self, status: int, headers: dict[str, str], content: bytes, *, upto: int | None = None, drip_s: float = 0.0
    ) -> None:
        self.send_response_only(status)
        size = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        ours = ("content-length", "transfer-encoding", "connection")
        for name, value in ({"Content-Type": "application/json"} | headers).items():
            if name.lower() not in ours:
                self.send_header(name, value)
        self.send_header("Content-Length", size)
        self.end_headers()
        step = max(1, len(content) // PIECES) if drip_s else max(1, len(content))
        for start in range(0, len(content) if upto is None else upto, step):
            self.wfile.write(content[start : start + step][: None if upto is None else upto - start])
            if drip_s:
                self.wfile.flush()
                time.sleep(drip_s)
        self.wfile.flush()

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)

    def handle_expect_100(self) -> bool:
        done = super().handle_expect_100()
        self.wfile.flush()  # a client of S3 would wait a second for it
        return done

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _serve


def wrong(content: bytes) -> bytes:
    """Another byte in an object's content; in a document the checksum of an object."""
    try:
        json.loads(content)
    except ValueError:
        return content[:-1] + bytes([content[-1] ^ 1]) if content else content
    return re.sub(rb'"crc32c": ?"....', b'"crc32c":"AAAA', content)


def _without_checksum(headers: dict[str, str]) -> dict[str, str]:
    """The client would compare the content with it, and refuse what we want to see refused."""
    return {name: value for name, value in headers.items() if name.lower() != "x-goog-hash"}
