"""The places that the contract of `Store` is tested on: two servers of buckets, and folders of three kinds.

A new kind of store adds one `Place` here, and every test of `test_store_contract.py` runs on it.
"""

import os
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests import sshd
from tests.workload.storage import s3_server, strict_s3
from tests.workload.storage.gcs_server import BUCKET
from workload.storage.address import open_store
from workload.storage.store import Store


class Place(Protocol):
    """Where a store is, and what lies there whatever the store says."""

    address: str
    # What a child process runs first, so that it meets the same place.
    preamble: str
    # Whether a listing has checksums and labels.
    lists_all: bool
    # Whether objects with the same content have the same version.
    version_is_content: bool

    def opened(self) -> Store: ...

    def put(self, name: str, content: bytes) -> None:
        """Make or replace an object, not by way of the store."""

    def remove(self, name: str) -> None: ...

    def requests(self) -> Iterator[list[str]]:
        """Within the block: one line for each question that the place is asked."""


class Remote:
    """A prefix of its own in a server's bucket."""

    bucket: str
    preamble = ""
    lists_all, version_is_content = False, True

    def __init__(self, server: Any, prefix: str) -> None:
        self.address = f"{self.bucket}/{prefix}"
        self._server, self._prefix = server, prefix

    def opened(self) -> Store:
        return open_store(self.address, jobs=8)

    def put(self, name: str, content: bytes) -> None:
        self._server.put(f"{self._prefix}/{name}", content)

    def asked(self) -> Sequence[str]:
        """Requests so far."""
        requests: list[str] = self._server.requests()
        return requests

    @contextmanager
    def requests(self) -> Iterator[list[str]]:
        found: list[str] = []
        before = len(self.asked())
        yield found
        found += self.asked()[before:]


class Bucket(Remote):
    """Of fake-gcs-server."""

    bucket = f"gs://{BUCKET}"
    lists_all, version_is_content = True, False

    def remove(self, name: str) -> None:
        self._server._ask("DELETE", f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(f'{self._prefix}/{name}', safe='')}")


class S3Bucket(Remote):
    """Of moto's server."""

    bucket = f"s3://{s3_server.BUCKET}"

    def put(self, name: str, content: bytes) -> None:
        self._server.client.put_object(Bucket=s3_server.BUCKET, Key=f"{self._prefix}/{name}", Body=content)

    def remove(self, name: str) -> None:
        self._server.client.delete_object(Bucket=s3_server.BUCKET, Key=f"{self._prefix}/{name}")


class StrictS3Bucket(Remote):
    """Of our own server."""

    bucket = f"s3://{strict_s3.BUCKET}"

    def remove(self, name: str) -> None:
        del self._server.objects[f"{self._prefix}/{name}"]

    def asked(self) -> Sequence[str]:
        return list(self._server.asked)


class Folder:
    """A folder on this machine's disk."""

    preamble = ""
    lists_all, version_is_content = False, False

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root, self.address = root, str(root)

    def opened(self) -> Store:
        return open_store(self.address)

    def put(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    @contextmanager
    def requests(self) -> Iterator[list[str]]:
        """A folder's questions are the files that it opens: listing opens none."""
        asked: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            open_file = os.open

            def noted(path: str, *rest: Any, **more: Any) -> int:
                asked.append(str(path))
                return open_file(path, *rest, **more)

            patch.setattr(os, "open", noted)
            yield asked


class FolderOverSsh(Folder):
    """A folder of another machine: a real sshd on loopback."""

    def __init__(self, machine: sshd.Machine, name: str) -> None:
        super().__init__(machine.home / name)
        self.address = f"ssh://{machine.host}:{machine.port}/~/{name}"
