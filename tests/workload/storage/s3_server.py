"""The real server of moto on a loopback port, and what tests ask of it without our store."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.ports import await_server, held_port

ROOT = Path(__file__).parents[3]
BUCKET = "rooflaunch-test"
# Nothing of the machine that runs the tests: neither its keys, nor a metadata server.
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
# moto computes CRC-32 in place of CRC-32C where the package crc32c is missing: it gets our own in that name. It answers
# one request at a time, because between its check of If-None-Match and its writing another request may write.
PROGRAM = """
import sys, threading
from workload.contract import operating_system
sys.modules["crc32c"] = operating_system
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main
turn, answer = threading.Lock(), DomainDispatcherApplication.__call__
def in_turn(*request):
    with turn:
        return answer(*request)
DomainDispatcherApplication.__call__ = in_turn
main()
"""


class S3Server:
    """A running server; what it holds lives in its memory."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    def requests(self) -> list[str]:
        """Every request so far: its method and path."""
        return re.findall(r"([A-Z]+ /\S*) HTTP/1\.1", self._log.read_text())

    @cached_property
    def session(self) -> Any:
        return make_session()

    @cached_property
    def client(self) -> Any:
        """A client as boto3 makes it, which knows nothing of ours."""
        return self.session.client("s3", endpoint_url=self.url)

    def meet(self, patch: pytest.MonkeyPatch) -> None:
        """Lead our store to this server."""
        meet(self.url, self.session, patch)


def make_session() -> Any:
    """Session of boto3 with the keys above, which has made a client: the first one of a session takes 0.1 s."""
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        session = boto3.session.Session()
        session.client("s3")
    return session


def meet(url: str, session: Any, patch: pytest.MonkeyPatch) -> None:
    """Lead our store to the server at `url`, with a session that exists."""
    import boto3

    for name, value in {**SETTINGS, "AWS_ENDPOINT_URL": url}.items():
        patch.setenv(name, value)
    patch.setattr(boto3.session, "Session", lambda: session)


@contextmanager
def running(log: Path) -> Iterator[S3Server]:
    """A server with one empty bucket. Each request is a line in `log`."""
    with held_port() as port, log.open("wb") as lines:
        command = [sys.executable, "-c", PROGRAM, "-H", "127.0.0.1", "-p", str(port)]
        with subprocess.Popen(command, stdout=lines, stderr=lines, env=os.environ | SETTINGS, cwd=ROOT) as process:
            try:
                server = S3Server(f"http://127.0.0.1:{port}", log)
                await_server(process, port, log)
                server.client.create_bucket(Bucket=BUCKET)
                yield server
            finally:
                process.kill()
