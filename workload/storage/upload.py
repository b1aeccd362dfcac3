"""Bundles into a bucket, each complete or absent.

A run's MANIFEST.json is stored last, when every file that it lists is there: an upload that is cut off leaves a run
that `fetch` takes for incomplete, and repeating it stores what is missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workload.contract import bundle
from workload.contract.errors import BundleError
from workload.storage.gcs import Bucket, Patience, RemoteObject, crc32c

RUNS = "runs/"
# For results that exist nowhere else: a network that is away for minutes must not cost them.
PATIENCE = Patience(first_answer_s=120, first_retry_s=100, retry_s=300, connect_s=10, read_s=30)

OnFile = Callable[[bundle.File], None]


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """A run that is complete in the bucket; `files` and `bytes` are what this upload stored, 0 where all was there."""

    run_id: str
    files: int
    bytes: int


def upload(bucket: Bucket, folder: Path, *, on_file: OnFile | None = None) -> Uploaded:
    """Store a complete bundle as `runs/<run_id>/`; `on_file` is told each file that was stored.

    Raises `BundleError` for a bundle that is incomplete or damaged, or where another complete run has its name.
    """
    found = bundle.read(folder)
    manifest = _manifest(folder)
    prefix = f"{RUNS}{folder.name}/"
    there = {each.name.removeprefix(prefix): each for each in bucket.objects(prefix)}
    _require_same_manifest(manifest, there, bucket.name)
    stored: list[bundle.File] = []
    # The small ones first: of an upload that is cut off, the record and the steps are there.
    for file in (*sorted(found.files, key=lambda each: (each.bytes, each.name)), manifest):
        if _store(bucket, folder, prefix, file, there):
            stored.append(file)
            if on_file:
                on_file(file)
    return Uploaded(run_id=folder.name, files=len(stored), bytes=sum(each.bytes for each in stored))


def _store(bucket: Bucket, folder: Path, prefix: str, file: bundle.File, there: Mapping[str, RemoteObject]) -> bool:
    """Whether a file had to be sent. Of a run without manifest whatever differs is replaced: it counts as absent."""
    remote = there.get(file.name)
    if remote and remote.bytes == file.bytes and remote.crc32c == file.crc32c:
        return False
    if remote and bundle.MANIFEST in there:
        raise BundleError(
            f"'{prefix}{file.name}' in bucket '{bucket.name}' is damaged: it differs from its manifest",
            hint=f"gcloud storage rm gs://{bucket.name}/{prefix}{file.name}, then upload again",
        )
    generation = remote.generation if remote else 0
    return bucket.upload(f"{prefix}{file.name}", folder / file.name, crc32c=file.crc32c, generation=generation)


def _manifest(folder: Path) -> bundle.File:
    path = folder / bundle.MANIFEST
    with path.open("rb") as content:
        checksum = crc32c(content)
    return bundle.File(name=bundle.MANIFEST, bytes=path.stat().st_size, sha256="", crc32c=checksum)


def _require_same_manifest(manifest: bundle.File, there: Mapping[str, RemoteObject], bucket: str) -> None:
    remote = there.get(bundle.MANIFEST)
    if remote and remote.crc32c != manifest.crc32c:
        raise BundleError(
            f"another complete run is in bucket '{bucket}' as '{remote.name}'",
            hint=f"to replace it: gcloud storage rm -r gs://{bucket}/{remote.name.rpartition('/')[0]}",
        )
