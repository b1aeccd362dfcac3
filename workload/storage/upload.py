"""Uploads bundles to a store, so that each is complete or absent.

A run's MANIFEST.json is stored last, when every file that it lists is stored. If an upload is cut off, `fetch` treats
the run as incomplete, and repeating the upload stores the missing files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workload.contract import bundle, record
from workload.contract.errors import BundleError
from workload.contract.operating_system import crc32c_of
from workload.storage.inventory import FILES_LABEL, RUNS, files_label
from workload.storage.store import ObjectExistsError, Patience, Store, StoredObject, checksum_of

# The results exist nowhere else: a network failure of minutes must not lose them.
PATIENCE = Patience(first_answer_s=120, first_retry_s=100, retry_s=300, connect_s=10, read_s=30)

OnFile = Callable[[bundle.File], None]


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """A run that is complete in the store; `files` and `bytes`: stored by this upload, 0 if all were stored already."""

    run_id: str
    files: int
    bytes: int


def upload(store: Store, folder: Path, *, on_file: OnFile | None = None) -> Uploaded:
    """Store a complete bundle as `runs/<run_id>/`; `on_file` is called with each file that was stored.

    Raises `BundleError` if the bundle is incomplete or damaged, or if another complete run has its name.
    """
    complete = bundle.read(folder)
    path = folder / bundle.MANIFEST
    with path.open("rb") as content:
        checksum = crc32c_of(content)
    manifest = bundle.File(name=bundle.MANIFEST, bytes=path.stat().st_size, sha256="", crc32c=checksum)
    prefix = f"{RUNS}/{folder.name}/"
    there = {listed.name.removeprefix(prefix): listed for listed in store.objects(prefix)}
    remote = there.get(bundle.MANIFEST)
    if remote and checksum_of(store, remote) != checksum:
        raise ObjectExistsError(
            f"another complete run is in {store} as '{remote.name}'", hint=f"to replace it: {store.removal(prefix)}"
        )
    files = files_label((file.name, file.bytes, file.crc32c) for file in complete.files)
    labels = {**record.labels_of(complete.document), FILES_LABEL: files}
    stored: list[bundle.File] = []
    # Small files first, so that an upload that is cut off has at least the record and the steps.
    for file in (*sorted(complete.files, key=lambda file: (file.bytes, file.name)), manifest):
        if _send(store, folder, prefix, file, there, labels if file is manifest else {}):
            stored.append(file)
            if on_file:
                on_file(file)
    return Uploaded(run_id=folder.name, files=len(stored), bytes=sum(file.bytes for file in stored))


def _send(
    store: Store,
    folder: Path,
    prefix: str,
    file: bundle.File,
    there: Mapping[str, StoredObject],
    labels: Mapping[str, str],
) -> bool:
    """Send a file if needed; return whether it was sent. In a run without manifest, a file that differs is replaced."""
    remote = there.get(file.name)
    if remote and remote.bytes == file.bytes and checksum_of(store, remote) == file.crc32c:
        return False
    name = f"{prefix}{file.name}"
    if remote and bundle.MANIFEST in there:
        raise BundleError(
            f"'{name}' in {store} is damaged: it differs from its manifest",
            hint=f"{store.removal(name)}, then upload again",
        )
    version = remote.version if remote else ""
    return store.upload(name, folder / file.name, crc32c=file.crc32c, replaces=version, metadata=labels)
