"""Clients of the clouds' metadata servers, for a run's facts and for a VM's agent. Standard library only.

Keys: cloud.google.com/compute/docs/metadata/predefined-metadata-keys and
docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html, read 2026-11.
"""

import http.client
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

HOST_VARIABLE = "GCE_METADATA_HOST"
# An address, because a look-up of the server's name could take seconds outside of the cloud, and the name may be
# unknown in a container.
METADATA_ADDRESS = ("169.254.169.254", 80)
FLAVOR = "Google"
# Variable with the URL of EC2's metadata server; boto3 reads it too.
EC2_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
# Without a metadata server, a connection attempt gets no answer and waits this long.
CONNECT_LIMIT_S = 0.3
# Google limits a value to 256 KB: https://cloud.google.com/compute/docs/metadata/overview
MOST_BYTES = 512 * 1024


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of a metadata server; `tag`, which only Google's server sends, changes with the value."""

    status: int
    text: str
    tag: str


@dataclass(frozen=True, kw_only=True)
class LocalServer:
    """Client of the HTTP server that a cloud runs for a VM; no request starts after `deadline_s` on `clock`."""

    address: tuple[str, int]
    deadline_s: float
    clock: Callable[[], float] = time.monotonic
    connect_limit_s: float = CONNECT_LIMIT_S
    most_bytes: int = MOST_BYTES

    def exchange(self, words: str, headers: Mapping[str, str], content: bytes | None = None) -> Answer:
        """Send a request and return the answer. `words`: method and path.

        Raises `OSError` if no readable answer comes in time.
        """
        method, _, path = words.partition(" ")
        connection = http.client.HTTPConnection(*self.address, timeout=min(self.connect_limit_s, self._left_s()))
        try:
            connection.connect()
            connection.sock.settimeout(self._left_s())
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            self.check(response)
            read = response.read(self.most_bytes + 1)
            if len(read) > self.most_bytes:
                raise OSError("longer than any metadata value")
            return Answer(status=response.status, text=read.decode(), tag=response.getheader("ETag") or "")
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"unreadable answer: {error}") from error
        finally:
            connection.close()

    def check(self, response: http.client.HTTPResponse) -> None:
        """Raise `OSError` if the head of the answer shows that it is from another server."""

    def _left_s(self) -> float:
        """Seconds to the deadline. Raises `TimeoutError` after it."""
        left_s = self.deadline_s - self.clock()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


class MetadataServer(LocalServer):
    """Compute Engine's metadata server."""

    def ask(self, key: str, *, put: str | None = None) -> Answer:
        """Request a key's value, or with `put` store a value; return the answer.

        Raises `OSError` if no answer comes in time, or if it is not from Google's metadata server.
        """
        method, content = ("GET", None) if put is None else ("PUT", put.encode())
        return self.exchange(f"{method} /computeMetadata/v1/{key}", {"Metadata-Flavor": FLAVOR}, content)

    def check(self, response: http.client.HTTPResponse) -> None:
        """Raise `OSError` for an answer without Google's header."""
        if response.getheader("Metadata-Flavor") != FLAVOR:
            raise OSError("the answer is not from Google's metadata server")


class InstanceMetadata(LocalServer):
    """EC2's metadata server, version 2: it answers only requests with a token that it has issued."""

    def ask(self, key: str) -> str | None:
        """Value of a key below `/latest/`; None if the server lacks the key.

        Raises `OSError` if no answer comes in time, or for any other status.
        """
        token = self.exchange("PUT /latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, b"")
        answer = self.exchange(f"GET /latest/{key}", {"X-aws-ec2-metadata-token": _accepted(token).text})
        return None if answer.status == HTTPStatus.NOT_FOUND else _accepted(answer).text.strip()


def _accepted(answer: Answer) -> Answer:
    if answer.status != HTTPStatus.OK:
        raise OSError(f"HTTP {answer.status}")
    return answer


def named_address(environ: Mapping[str, str], variable: str = HOST_VARIABLE) -> tuple[str, int] | None:
    """Host and port from a variable; `METADATA_ADDRESS` if the variable is not set, None if it is malformed."""
    named = environ.get(variable)
    if not named:
        return METADATA_ADDRESS
    try:
        parts = urlsplit(named if "://" in named else f"//{named}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host, port or METADATA_ADDRESS[1]) if host else None
