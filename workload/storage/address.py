"""Addresses of stores: parses an address, and opens the store there.

`open_store("gs://BUCKET/PREFIX")` opens a bucket of Cloud Storage, `open_store("FOLDER")` a folder of this machine or
of a shared file system, `open_store("ssh://USER@HOST/FOLDER")` a folder of another machine. This module imports only
the standard library until a bucket is opened.
"""

import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from workload.contract.errors import UsageError
from workload.storage import folder, gcs, ssh
from workload.storage.store import Patience, Store


@dataclass(frozen=True, kw_only=True)
class BucketAddress:
    """Parts of `gs://BUCKET/PATH`; the path has no slash at its ends."""

    bucket: str
    path: str


@dataclass(frozen=True, kw_only=True)
class SshAddress:
    """Parts of `ssh://LOGIN/PATH`; `login` may end in a port, the path has no slash at its ends."""

    login: str
    path: str


BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
# A scheme has at least two letters, because `C:/results` is a folder of Windows. `gs:/x` is a typing error, no folder.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
EXAMPLE = "analyze fetch gs://BUCKET/PREFIX -o results"


def is_bucket(text: str) -> bool:
    """Whether an address is meant to be a bucket; its name may still be invalid."""
    return text.startswith("gs://")


def parse_address(text: str) -> BucketAddress | SshAddress | Path:
    """Parse an address: a bucket, a folder of another machine, or a local folder. Raises `UsageError` for others."""
    scheme = SCHEME.match(text)
    if scheme is None and text:
        return Path(text)
    if scheme and scheme[1] == "gs":
        name, _, path = text.removeprefix("gs://").partition("/")
        if not is_bucket(text) or not BUCKET_NAME.fullmatch(name):
            raise UsageError(f"a bucket is written gs://BUCKET/PREFIX; got '{text}'", hint=EXAMPLE)
        return BucketAddress(bucket=name, path=_joined(path))
    if scheme and scheme[1] == "ssh" and text.startswith("ssh://"):
        login, _, path = text.removeprefix("ssh://").partition("/")
        return SshAddress(login=login, path=_joined(path))
    if scheme and scheme[1] == "file":
        path = urllib.parse.unquote(text.removeprefix("file://"))
        if not text.startswith("file:///"):
            raise UsageError(f"a folder is written file:///FOLDER, or FOLDER; got '{text}'", hint=EXAMPLE)
        return Path(path)
    raise UsageError(
        "a place for bundles is written gs://BUCKET/PREFIX, ssh://USER@HOST/FOLDER, FOLDER or file:///FOLDER; "
        f"got '{text}'",
        hint=EXAMPLE,
    )


def _joined(path: str) -> str:
    return "/".join(part for part in path.split("/") if part)


def open_store(address: str, *, probe: str = "", jobs: int = 1, patience: Patience | None = None) -> Store:
    """Open the store at this address. A bucket must first answer a request for names that start with `probe`.

    `jobs`: number of requests that may run at a time. Raises `UsageError` (no such bucket or folder, an unknown kind of
    address) or `ToolError` (a package is missing; no credentials, permission or answer).
    """
    limits = patience or Patience()
    place = parse_address(address)
    if isinstance(place, SshAddress):
        return ssh.connect(address)
    if isinstance(place, Path):
        return folder.connect(address, place, limit_s=limits.first_answer_s)
    root = f"{place.path}/" if place.path else ""
    return gcs.connect(place.bucket, root=root, prefix=probe, jobs=jobs, patience=limits)
