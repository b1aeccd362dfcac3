"""Fetches bundles from a store, several at a time.

A run lies in `<prefix>/runs/<run_id>/`. Its local folder has no MANIFEST.json until every file has been compared with
the manifest. A killed fetch therefore leaves an incomplete bundle, and the next fetch continues it.
"""

import hashlib
import io
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

from workload.contract import bundle
from workload.contract.errors import BundleError, RooflaunchError, ToolError
from workload.contract.operating_system import crc32c_of, replacing
from workload.storage.address import FetchSource
from workload.storage.inventory import (
    PARTIAL,
    Refused,
    RemoteRun,
    Wanted,
    read_document,
    take_stock,
    wanted_files,
)
from workload.storage.store import Store, StoredObject, TooLongError, UnreachableError, checksum_of

# Largest size of a manifest or record, which are read into memory. A row of a manifest has about 200 bytes: this limit
# allows 80,000 files.
MAX_DOCUMENT_BYTES = 16_000_000
# Files that identify a folder as a run; one of the files is enough.
MARKS = (bundle.MANIFEST, bundle.RECORD)
BAR_EVERY_S = 0.25
# Workers check for a stop with each piece of a file. A worker that waits for the network longer than this is abandoned.
STOP_LIMIT_S = 1.0
# Attempts to download a file, if its checksum differs.
ATTEMPTS = 2


class FetchState(StrEnum):
    """Result for one run. `incomplete`: the run has no manifest in the store; such a run is fetched only on request."""

    FETCHED = "fetched"
    SKIPPED = "skipped"
    INCOMPLETE = "incomplete"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class FetchedRun:
    """Result for one run: numbers of files and bytes received, and the reason if it was not fetched."""

    run_id: str
    state: FetchState
    files: int = 0
    bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class FetchReport:
    """Result of a fetch. `error`: reason why it ended before every run was handled."""

    source: str
    output: Path
    outcomes: tuple[FetchedRun, ...]
    refused: tuple[Refused, ...]
    error: RooflaunchError | None = None

    def count(self, state: FetchState) -> int:
        """Number of runs in this state."""
        return sum(outcome.state is state for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """Content of this report, as values that JSON can hold."""
        return {
            "source": self.source,
            "output": str(self.output),
            "counts": {state: self.count(state) for state in FetchState},
            "bytes": sum(outcome.bytes for outcome in self.outcomes),
            "runs": [asdict(outcome) for outcome in self.outcomes],
            "refused_names": [asdict(refused) for refused in self.refused],
            "error": str(self.error) if self.error else None,
        }


OnProgress = Callable[[int, int, int], None]


def fetch(
    store: Store,
    source: FetchSource,
    output: Path,
    *,
    incomplete: bool = False,
    replace: bool = False,
    jobs: int = 8,
    on_progress: OnProgress | None = None,
) -> FetchReport:
    """Fetch every run of `source` into `output`, `jobs` at a time.

    `incomplete`: fetch runs without a manifest too; `replace`: overwrite a local bundle that is complete and different.
    `on_progress(runs done, runs, bytes so far)` is called with zeros first, before the store is listed.
    """
    if on_progress:
        on_progress(0, 0, 0)
    source.require_apart(output)
    stock = take_stock(_listed(store, source), source.folder, store.kind)
    if stock.runs:
        bundle.make_output(output)
    worker = _Worker(store, output, incomplete=incomplete, replace=replace)
    outcomes: list[FetchedRun] = []
    fatal: RooflaunchError | None = None
    with closing(_in_parallel(worker, stock.runs, jobs)) as ended:
        for outcome in ended:
            if isinstance(outcome, RooflaunchError):
                fatal = outcome
                break
            if outcome is not None:
                outcomes.append(outcome)
            if on_progress:
                on_progress(len(outcomes), len(stock.runs), worker.bytes)
    outcomes.sort(key=lambda outcome: outcome.run_id)
    return FetchReport(source=str(source), output=output, outcomes=tuple(outcomes), refused=stock.refused, error=fatal)


def _listed(store: Store, source: FetchSource) -> Iterator[StoredObject]:
    """Objects of all runs at `source`.

    Without a prefix the store may hold other files too: then only subfolders with a manifest or a run.json are runs.
    """
    if source.prefix:
        yield from store.objects(source.prefix)
        return
    for name in store.folders(""):
        if any(listed.name == f"{name}/{file}" for file in MARKS for listed in store.objects(f"{name}/{file}")):
            yield from store.objects(f"{name}/")


def _in_parallel(
    worker: "_Worker", runs: Sequence[RemoteRun], jobs: int
) -> Generator[FetchedRun | RooflaunchError | None, None, None]:
    """Yield each run's result, and None now and then for progress; closing the generator stops the workers."""
    waiting: SimpleQueue[RemoteRun] = SimpleQueue()
    ended: SimpleQueue[FetchedRun | BaseException] = SimpleQueue()
    for run in runs:
        waiting.put(run)
    # Daemon threads, not a pool: Ctrl-C must not wait for the network, and a worker may be cut off at any point.
    threads = [
        threading.Thread(target=worker.work, args=(waiting, ended), daemon=True) for _ in range(min(jobs, len(runs)))
    ]
    for thread in threads:
        thread.start()
    try:
        awaited = len(runs)
        while awaited:
            try:
                outcome = ended.get(timeout=BAR_EVERY_S)
            except Empty:
                yield None
                continue
            awaited -= 1
            if not isinstance(outcome, FetchedRun | RooflaunchError):
                raise outcome
            yield outcome
    finally:
        worker.stop.set()
        deadline_s = time.monotonic() + STOP_LIMIT_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


class _Worker:
    """Fetches one run at a time; shared by threads. `bytes`: received so far; `stop`: set to end the threads."""

    def __init__(self, store: Store, output: Path, *, incomplete: bool, replace: bool) -> None:
        self.bytes, self.stop = 0, threading.Event()
        self._store, self._output = store, output
        self._incomplete, self._replace = incomplete, replace
        self._lock = threading.Lock()

    def work(self, waiting: "SimpleQueue[RemoteRun]", ended: "SimpleQueue[FetchedRun | BaseException]") -> None:
        """Fetch waiting runs until none is left or `stop` is set; an error is put into `ended` like a result."""
        while not self.stop.is_set():
            try:
                run = waiting.get_nowait()
            except Empty:
                return
            try:
                ended.put(self.fetch(run))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                ended.put(error)

    def fetch(self, run: RemoteRun) -> FetchedRun:
        """Fetch a run and return its result. Raises only errors that concern every other run too."""
        try:
            with disk_errors(self._output / run.run_id):
                return self._fetch_complete(run) if run.manifest else self._fetch_incomplete(run)
        except BundleError as error:
            return FetchedRun(run_id=run.run_id, state=FetchState.REFUSED, reason=str(error))

    def _fetch_complete(self, run: RemoteRun) -> FetchedRun:
        folder = self._output / run.run_id
        assert run.manifest is not None
        is_same = self._has_same(folder, run.manifest)
        if is_same:
            return FetchedRun(run_id=run.run_id, state=FetchState.SKIPPED)
        if is_same is False and not self._replace:
            message = f"'{folder}' is another complete bundle: --replace overwrites it"
            raise BundleError(message, hint="fetch with --replace")
        for name in (bundle.MANIFEST, bundle.RECORD):
            if name in run.objects and run.objects[name].bytes > MAX_DOCUMENT_BYTES:
                raise run.damaged(f"{name} has {run.objects[name].bytes} bytes")
        manifest = self._manifest(run.manifest)
        wanted = wanted_files(run, manifest)
        folder.mkdir(exist_ok=True)
        (folder / bundle.MANIFEST).unlink(missing_ok=True)
        files, count = self._download(folder, wanted)
        read_document(run, bundle.RECORD, (folder / bundle.RECORD).read_bytes())
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        # The manifest makes the bundle complete: atomically, and last.
        with replacing(folder / bundle.MANIFEST) as file:
            file.write(manifest)
        return FetchedRun(run_id=run.run_id, state=FetchState.FETCHED, files=files + 1, bytes=count + len(manifest))

    def _has_same(self, folder: Path, manifest: StoredObject) -> bool | None:
        """Whether the local folder has the bundle of this manifest, or another; None if it has no complete one."""
        path = folder / bundle.MANIFEST
        try:
            is_same = _size(path) == manifest.bytes and _crc32c_of(path) == checksum_of(self._store, manifest)
            bundle.read(folder)
        except (BundleError, FileNotFoundError):
            return None
        return is_same

    def _fetch_incomplete(self, run: RemoteRun) -> FetchedRun:
        folder = self._output / run.run_id
        reason = f"no {bundle.MANIFEST}: the run is still going on, or was interrupted"
        if not self._incomplete:
            reason += "; --incomplete fetches it"
            return FetchedRun(run_id=run.run_id, state=FetchState.INCOMPLETE, reason=reason)
        if (folder / bundle.MANIFEST).is_file():
            return FetchedRun(
                run_id=run.run_id, state=FetchState.SKIPPED, reason=f"complete on this machine, not in the {run.kind}"
            )
        folder.mkdir(exist_ok=True)
        wanted = [Wanted(name=name, remote=remote) for name, remote in run.objects.items()]
        files, count = self._download(folder, wanted)
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        return FetchedRun(run_id=run.run_id, state=FetchState.INCOMPLETE, files=files, bytes=count, reason=reason)

    def _manifest(self, listed: StoredObject) -> bytes:
        """Download the manifest and compare it with its listing; repeat once if it differs. Raises `BundleError`."""
        for attempt in range(1, ATTEMPTS + 1):
            content = io.BytesIO()
            try:
                with suppress(TooLongError):
                    self._store.download(listed, _Counted(content, self))
            except UnreachableError:
                if attempt == ATTEMPTS:
                    raise
            arrived = content.getvalue()
            if len(arrived) == listed.bytes and crc32c_of(io.BytesIO(arrived)) == checksum_of(self._store, listed):
                return arrived
        raise BundleError(f"{bundle.MANIFEST} arrived damaged {ATTEMPTS} times", hint="fetch again")

    def _download(self, folder: Path, wanted: Iterable[Wanted]) -> tuple[int, int]:
        files = count = 0
        for file in wanted:
            if not self._is_as_wanted(folder / file.name, file):
                count += self._download_file(folder, file)
                files += 1
        return files, count

    def _download_file(self, folder: Path, wanted: Wanted) -> int:
        """Download a file under a temporary name, check its content, rename it; return the number of bytes received.

        A file is downloaded again, from its beginning, if it arrives damaged or if the connection breaks.
        """
        partial = folder / PARTIAL / hashlib.sha256(wanted.name.encode()).hexdigest()[:16]
        partial.parent.mkdir(exist_ok=True)
        count = 0
        for attempt in range(1, ATTEMPTS + 1):
            try:
                # `_is_as_wanted` rejects a file that is too long.
                with suppress(TooLongError), partial.open("wb") as content:
                    self._store.download(wanted.remote, _Counted(content, self))
            except UnreachableError:
                if attempt == ATTEMPTS:
                    raise
            count += _size(partial)
            if self._is_as_wanted(partial, wanted):
                target = folder / wanted.name
                target.parent.mkdir(parents=True, exist_ok=True)
                partial.replace(target)
                return count
        raise BundleError(f"{wanted.name} arrived damaged {ATTEMPTS} times", hint="fetch again")

    def _is_as_wanted(self, path: Path, wanted: Wanted) -> bool:
        """Whether the file has the size and checksum that the manifest lists or, without a manifest, the object's."""
        if not path.is_file() or _size(path) != wanted.remote.bytes:
            return False
        if not wanted.sha256:
            return checksum_of(self._store, wanted.remote) == _crc32c_of(path)
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == wanted.sha256

    def received(self, count: int) -> None:
        """Count received bytes. Raises `StoppedError` when the threads must end."""
        if self.stop.is_set():
            raise StoppedError
        with self._lock:
            self.bytes += count


class StoppedError(Exception):
    """The fetch is stopping: another thread failed for good, or the user pressed Ctrl-C."""


class _Counted:
    """Stream that reports the bytes written to it to a worker."""

    def __init__(self, stream: BinaryIO, worker: _Worker) -> None:
        self._stream, self._worker = stream, worker

    def write(self, data: bytes, /) -> int:
        self._worker.received(len(data))
        return self._stream.write(data)


def _crc32c_of(path: Path) -> str:
    with path.open("rb") as content:
        return crc32c_of(content)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Convert disk errors: `ToolError`, which ends the fetch, if the disk fails; else `BundleError`, for this run."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if bundle.is_write_failure(error) and not isinstance(error, FileNotFoundError):
            raise ToolError(
                f"{error.strerror} while writing '{where}'",
                hint="free some space, or use -o FOLDER on another disk; the same command continues",
            ) from error
        raise BundleError(
            f"'{where}' cannot be written: {error.strerror or error}", hint="move that file or folder away"
        ) from error
