"""Addresses of stores, and of runs in them: parses an address, and opens the store there.

`open_store("gs://BUCKET/PREFIX")` opens a bucket of Cloud Storage, `open_store("s3://BUCKET/PREFIX")` one of S3,
`open_store("FOLDER")` a folder of this machine or of a shared file system, `open_store("ssh://USER@HOST/FOLDER")` a
folder of another machine. This module imports only the standard library until a bucket is opened.
"""

import os
import re
import shlex
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from workload.contract import bundle
from workload.contract.errors import UsageError
from workload.storage import folder, gcs, s3, ssh
from workload.storage.inventory import RUNS
from workload.storage.store import Patience, Store, why_unsafe


@dataclass(frozen=True, kw_only=True)
class BucketAddress:
    """Parts of `SCHEME://BUCKET/PATH`, where the scheme is `gs` or `s3`; the path has no slash at its ends."""

    scheme: str
    bucket: str
    path: str


@dataclass(frozen=True, kw_only=True)
class SshAddress:
    """Parts of `ssh://LOGIN/PATH`; `login` may end in a port, the path has no slash at its ends."""

    login: str
    path: str


# Names of buckets by scheme: https://cloud.google.com/storage/docs/buckets#naming and
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
BUCKET_NAMES = {
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "s3": re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
}
# A scheme has at least two letters, because `C:/results` is a folder of Windows. `gs:/x` is a typing error, no folder.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
EXAMPLE = "analyze fetch gs://BUCKET/PREFIX -o results"
EXAMPLES = {"gs": EXAMPLE, "s3": "analyze fetch s3://BUCKET/PREFIX -o results"}


def is_bucket(text: str) -> bool:
    """Whether an address is meant to be a bucket; its name may still be invalid."""
    return text.startswith(tuple(f"{scheme}://" for scheme in BUCKET_NAMES))


def parse_address(text: str) -> BucketAddress | SshAddress | Path:
    """Parse an address: a bucket, a folder of another machine, or a local folder. Raises `UsageError` for others."""
    scheme = SCHEME.match(text)
    if scheme is None and text:
        return Path(text)
    if scheme and (valid := BUCKET_NAMES.get(scheme[1])):
        name, _, path = text.removeprefix(f"{scheme[1]}://").partition("/")
        if not is_bucket(text) or not valid.fullmatch(name):
            raise UsageError(f"a bucket is written {scheme[1]}://BUCKET/PREFIX; got '{text}'", hint=EXAMPLES[scheme[1]])
        return BucketAddress(scheme=scheme[1], bucket=name, path=_joined(path))
    if scheme and scheme[1] == "ssh" and text.startswith("ssh://"):
        login, _, path = text.removeprefix("ssh://").partition("/")
        return SshAddress(login=login, path=_joined(path))
    if scheme and scheme[1] == "file":
        path = urllib.parse.unquote(text.removeprefix("file://"))
        if not text.startswith("file:///"):
            raise UsageError(f"a folder is written file:///FOLDER, or FOLDER; got '{text}'", hint=EXAMPLE)
        return Path(path)
    raise UsageError(
        "a place for bundles is written gs://BUCKET/PREFIX, s3://BUCKET/PREFIX, ssh://USER@HOST/FOLDER, FOLDER or "
        f"file:///FOLDER; got '{text}'",
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
    connect = s3.connect if place.scheme == s3.Bucket.scheme else gcs.connect
    return connect(place.bucket, root=root, prefix=probe, jobs=jobs, patience=limits)


@dataclass(frozen=True, kw_only=True)
class FetchSource:
    """Place of runs in the store at `address`.

    `folder`: prefix of the runs' names, `a/b/runs/`; empty for a folder that holds bundles and other files. `run_id`:
    the run to fetch, None for all.
    """

    address: str
    folder: str
    run_id: str | None = None

    @property
    def prefix(self) -> str:
        """Prefix of all names to fetch."""
        return f"{self.folder}{self.run_id}/" if self.run_id else self.folder

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix}"

    def search(self) -> str:
        """Command that finds complete runs anywhere in the store."""
        place = parse_address(self.address)
        if isinstance(place, BucketAddress):
            if place.scheme == s3.Bucket.scheme:
                return f"aws s3 ls --recursive {self.address}/ | grep {bundle.MANIFEST}"
            return f"gcloud storage ls '{self.address}/**/{bundle.MANIFEST}'"
        if isinstance(place, SshAddress):
            login = re.sub(r"(.*?):(\d+)$", r"-p \2 \1", place.login)
            # ~ must not be quoted, because the other machine's shell expands it.
            tilde, path = ("~/", place.path[2:]) if place.path.startswith("~/") else ("", f"/{place.path}")
            remote = f"find {tilde}{shlex.quote(path)} -name {bundle.MANIFEST}"
            return f"ssh {login} {shlex.quote(remote)}"
        return f"find {shlex.quote(self.address)} -name {bundle.MANIFEST}"

    def require_apart(self, output: Path) -> None:
        """Raise `UsageError` if the output folder lies in the source."""
        if isinstance(parse_address(self.address), Path):
            runs = Path(self.address, self.folder).resolve()
            if output.resolve().is_relative_to(runs):
                raise UsageError(
                    f"the output '{output}' is the source '{self}', or a folder in it", hint="-o ANOTHER_FOLDER"
                )


def parse_source(text: str) -> FetchSource:
    """Parse `PLACE`, `PLACE/runs` or `PLACE/runs/RUN_ID`, where PLACE is an address that `open_store` takes.

    A folder without `runs` may hold bundles, or be a bundle itself. Raises `UsageError` for any other text.
    """
    place = parse_address(text)
    if isinstance(place, BucketAddress):
        prefix, run_id = _parted(place.path)
        source = FetchSource(address=f"{place.scheme}://{place.bucket}", folder=f"{prefix}{RUNS}/", run_id=run_id)
    elif isinstance(place, SshAddress):
        prefix, run_id = _parted(place.path)
        source = FetchSource(address=f"ssh://{place.login}/{prefix}".rstrip("/"), folder=f"{RUNS}/", run_id=run_id)
    else:
        source = _in_folder(place)
    if source.run_id is not None and (reason := why_unsafe(source.run_id)):
        raise UsageError(f"'{source.run_id}' is not a run: {reason}", hint=EXAMPLE)
    return source


def _parted(path: str) -> tuple[str, str | None]:
    """Split a path: `a/b/runs/RUN_ID` -> `a/b/` and `RUN_ID`."""
    parts = path.split("/") if path else []
    run_id = parts.pop() if parts[-2:-1] == [RUNS] else None
    if parts[-1:] == [RUNS]:
        parts.pop()
    return "".join(f"{part}/" for part in parts), run_id


def _in_folder(path: Path) -> FetchSource:
    if path.name in ("", ".."):
        path = Path(os.path.abspath(path))  # noqa: PTH100 - `resolve` would show where links lead
    if path.parent.name == RUNS:
        return FetchSource(address=str(path.parent.parent), folder=f"{RUNS}/", run_id=path.name)
    if path.name == RUNS:
        return FetchSource(address=str(path.parent), folder=f"{RUNS}/")
    if any((path / name).is_file() for name in (bundle.MANIFEST, bundle.RECORD)):
        return FetchSource(address=str(path.parent), folder="", run_id=path.name)
    return FetchSource(address=str(path), folder=f"{RUNS}/" if (path / RUNS).is_dir() else "")
