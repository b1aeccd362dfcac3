"""Sorts a store's list of objects into runs, and decides which files may be written.

`sealed_runs` also reads objects of the store, and `sealed_in` manifests in a folder. All other functions are pure.

Names from a store are not trusted: a name that could leave its folder is refused. A manifest is accepted only if every
file that it lists exists as an object, as listed.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from workload.contract import bundle, record
from workload.contract.errors import BundleError
from workload.contract.operating_system import crc32c_of
from workload.contract.record import SCHEMA_VERSION
from workload.storage.store import ObjectExistsError, Patience, Store, StoredObject, checksum_of, why_unsafe

RUNS = "runs"
# Key of a manifest's metadata: a digest of the files that it lists, so that a listing alone shows if all are stored.
FILES_LABEL = "files"
SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?")
# Folder inside the run's folder for partial files.
PARTIAL = ".fetch"
# Names that the fetch itself writes; compared without case, because some file systems ignore case.
RESERVED = frozenset({bundle.MANIFEST.casefold(), f"{bundle.MANIFEST}.tmp".casefold()})


@dataclass(frozen=True, kw_only=True)
class Refused:
    """An object that is not written, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RemoteRun:
    """A run in a store: its objects by their name inside the run. `kind`: the store's kind, for messages."""

    run_id: str
    objects: Mapping[str, StoredObject]
    kind: str = "bucket"

    @property
    def manifest(self) -> StoredObject | None:
        """Object that makes the run complete; None for an incomplete run."""
        return self.objects.get(bundle.MANIFEST)

    def damaged(self, why: str) -> BundleError:
        """Error for a run that cannot be fetched in its present state."""
        return BundleError(f"damaged in the {self.kind}: {why}", hint=f"upload run '{self.run_id}' again, or remove it")


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """All runs below a folder of a store, in the order of names, and the refused objects."""

    runs: tuple[RemoteRun, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to download; `sha256`: from the manifest, empty if the run has none."""

    name: str
    remote: StoredObject
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class SealedRun:
    """A complete run. `run_key`, `job`: key of the run in its sweep, and the sweep's name; empty without a sweep.

    `seconds`: duration of the run's process; None if its labels lack it. `damage`: how its files differ from its
    manifest; empty if they agree or were not compared.
    """

    run_id: str
    status: str
    run_key: str
    job: str = ""
    seconds: float | None = None
    damage: str = ""

    @classmethod
    def labelled(cls, run_id: str, labels: Mapping[str, str]) -> Self:
        """Run from the labels of its manifest."""
        names = (record.STATUS_LABEL, record.KEY_LABEL, record.JOB_LABEL, record.SECONDS_LABEL)
        texts = (labels.get(name, "") for name in names)
        status, run_key, job, took = (text if isinstance(text, str) else "" for text in texts)
        seconds = float(took) if SECONDS.fullmatch(took) else None
        return cls(run_id=run_id, status=status, run_key=run_key, job=job, seconds=seconds)


def take_stock(objects: Iterable[StoredObject], folder: str, kind: str = "bucket") -> Inventory:
    """Sort a list of objects below `folder` into runs; unsafe names are refused, the others kept."""
    objects_by_run: dict[str, dict[str, StoredObject]] = {}
    refused: list[Refused] = []
    for listed in objects:
        name = listed.name.removeprefix(folder)
        # Web consoles create empty objects whose name ends in a slash, to show a folder.
        if not name or (name.endswith("/") and not listed.bytes and not why_unsafe(name[:-1])):
            continue
        run_id, slash, inner = name.partition("/")
        if reason := listed.problem or why_unsafe(name) or _why_reserved(inner):
            refused.append(Refused(name=listed.name, reason=reason))
        elif slash:
            objects_by_run.setdefault(run_id, {})[inner] = listed
    runs = (RemoteRun(run_id=run_id, objects=inside, kind=kind) for run_id, inside in sorted(objects_by_run.items()))
    return Inventory(runs=tuple(runs), refused=tuple(refused))


def wanted_files(run: RemoteRun, manifest: bytes) -> tuple[Wanted, ...]:
    """Files that a manifest lists, each with its object.

    Raises `BundleError` if a file's name is unsafe, or its object is missing or different.
    """
    return tuple(_wanted(run, row) for row in _rows_of(run, manifest))


def read_document(run: RemoteRun, name: str, content: bytes) -> dict[str, Any]:
    """Parse a JSON object of a schema that we read. Raises `BundleError` for anything else."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise run.damaged(f"{name} is not readable JSON") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if type(version) is not int or version < 1:
        raise run.damaged(f"{name} has no schema_version")
    if version != SCHEMA_VERSION:
        raise bundle.other_schema(name, version)
    assert isinstance(document, dict)
    return document


def sealed_runs(
    store: Store,
    folder: str = f"{RUNS}/",
    *,
    run_id: str = "",
    compared: Callable[[SealedRun], bool] = lambda _: False,
    by_content: bool = False,
) -> Iterator[SealedRun]:
    """All complete runs: from one listing if the store keeps labels, else from their manifests.

    A run that cannot be read has an empty status: it exists, and `fetch` reports its problem. `run_id`: only this run.
    `compared`: whether to compare a run's files with its manifest, by size and by the checksums of the listing;
    `by_content`: read the files whose checksums the listing lacks, and compare the labels with run.json.
    """
    prefix = f"{folder}{run_id}/" if run_id else folder
    for run in take_stock(store.objects(prefix), folder, store.kind).runs:
        if run.manifest is None:
            continue
        labels = run.manifest.metadata
        if record.STATUS_LABEL not in labels:
            labels = {}
            with suppress(BundleError):
                content = store.read(f"{folder}{run.run_id}/{bundle.MANIFEST}") or b""
                found = read_document(run, bundle.MANIFEST, content).get(bundle.LABELS)
                labels = found if isinstance(found, dict) else {}
        sealed = SealedRun.labelled(run.run_id, labels)
        if compared(sealed):
            sealed = replace(sealed, damage=_damage(store, folder, run, labels, by_content=by_content))
        yield sealed


def files_label(files: Iterable[tuple[str, int, str]]) -> str:
    """Digest of the name, size in bytes and CRC-32C of each file; a manifest's metadata has it under `FILES_LABEL`."""
    lines = "\n".join(f"{name} {size} {crc32c}" for name, size, crc32c in sorted(files))
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()[:32]


def _damage(store: Store, folder: str, run: RemoteRun, labels: Mapping[str, str], *, by_content: bool) -> str:
    """Text on how a run's objects differ from its manifest, or its `labels` from run.json; empty if they agree.

    An equal digest (`files_label`) proves that the objects agree.
    """
    assert run.manifest is not None
    if by_content:
        try:
            document = read_document(run, bundle.RECORD, store.read(f"{folder}{run.run_id}/{bundle.RECORD}") or b"")
        except BundleError:
            document = {}
        if document and (why := record.why_other_labels(labels, document)):
            return why
    objects = ((name, listed.bytes, listed.crc32c) for name, listed in run.objects.items() if name != bundle.MANIFEST)
    if run.manifest.metadata.get(FILES_LABEL) == files_label(objects):
        return ""
    try:
        manifest = store.read(f"{folder}{run.run_id}/{bundle.MANIFEST}") or b""
        wanted = wanted_files(run, manifest)
        sums = {row.name: row.crc32c for row in _rows_of(run, manifest)} if by_content else {}
        for file in wanted:
            if by_content and not file.remote.crc32c and store.checksum(file.remote.name) != sums[file.name]:
                raise run.damaged(f"{file.name} was changed after the run: its crc32c differs")
    except BundleError as error:
        return str(error).removeprefix(f"damaged in the {run.kind}: ")
    return ""


def sealed_in(results: Path) -> Iterator[SealedRun]:
    """All complete runs in a folder of results, in order; only manifests are read. Empty if the folder is absent."""
    try:
        with os.scandir(results) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError:
        return
    for name in names:
        try:
            # There may be ten thousand runs: making a Path for each would take as long as reading the file.
            with open(f"{results}/{name}/{bundle.MANIFEST}", "rb", buffering=0) as manifest:  # noqa: PTH123
                document = json.loads(manifest.read())
        except (OSError, ValueError, RecursionError):
            continue
        labels = document.get(bundle.LABELS) if isinstance(document, dict) else None
        if isinstance(document, dict):
            yield SealedRun.labelled(name, labels if isinstance(labels, dict) else {})


def _why_reserved(inner: str) -> str:
    """Reason why the fetch reserves the name `inner` inside a run, else empty. The manifest's exact name is allowed."""
    top = inner.partition("/")[0].casefold()
    if top == PARTIAL or (top in RESERVED and inner != bundle.MANIFEST):
        return "a name that the fetch itself uses"
    return ""


def _rows_of(run: RemoteRun, manifest: bytes) -> list[bundle.File]:
    document = read_document(run, bundle.MANIFEST, manifest)
    try:
        rows = [bundle.File(**row) for row in document["files"]]
    except (TypeError, KeyError) as error:
        raise run.damaged(f"{bundle.MANIFEST} does not list its files") from error
    for row in rows:
        if type(row.bytes) is not int or not all(isinstance(text, str) for text in (row.name, row.sha256, row.crc32c)):
            raise run.damaged(f"{bundle.MANIFEST} does not list its files")
    if bundle.RECORD not in {row.name for row in rows}:
        raise run.damaged(f"{bundle.MANIFEST} lists no {bundle.RECORD}")
    return rows


def _wanted(run: RemoteRun, row: bundle.File) -> Wanted:
    reserved = "a name that the fetch itself uses" if row.name == bundle.MANIFEST else _why_reserved(row.name)
    if reason := why_unsafe(row.name) or reserved:
        raise run.damaged(f"{bundle.MANIFEST} names {row.name!r}: {reason}")
    remote = run.objects.get(row.name)
    if remote is None:
        raise run.damaged(f"{row.name} is missing")
    if remote.bytes != row.bytes:
        raise run.damaged(f"{row.name} has {remote.bytes} bytes, the manifest says {row.bytes}")
    if remote.crc32c and remote.crc32c != row.crc32c:
        raise run.damaged(f"{row.name} was changed after the run: its crc32c differs")
    return Wanted(name=row.name, remote=remote, sha256=row.sha256)


# --- upload

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
