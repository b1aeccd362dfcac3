"""Bundles from a bucket: what to fetch, as pure functions of a list of names, and the fetching.

A run lies in `<prefix>/runs/<run_id>/`. Its folder here has no MANIFEST.json until every file in it has been compared
with the manifest, so a fetch that is killed leaves an incomplete bundle, and the next one continues.
"""

import hashlib
import io
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

from workload.contract import bundle
from workload.contract.checksum import crc32c_of
from workload.contract.errors import BundleError, RooflaunchError, ToolError, UsageError
from workload.storage.names import clashes, why_unsafe
from workload.storage.store import ObjectChangedError, Store, StoredObject, TooLongError, UnreachableError

RUNS = "runs"
# Pieces of files that have not come whole, inside the run's folder.
PARTIAL = ".fetch"
# Names that the fetch itself writes; compared without case, as some file systems do.
RESERVED = frozenset({bundle.MANIFEST.casefold(), f"{bundle.MANIFEST}.tmp".casefold()})
# For a manifest or a record, which are read whole. A manifest row is about 200 bytes: this is a bundle of 80,000 files.
MAX_DOCUMENT_BYTES = 16_000_000
ATTEMPTS = 2
BAR_EVERY_S = 0.25
# Workers see a stop within one piece of a file; one that waits for the network longer than this is left behind.
STOP_LIMIT_S = 1.0

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
EXAMPLE = "analyze fetch gs://BUCKET/PREFIX -o results"


class State(StrEnum):
    """What became of one run. `incomplete`: it has no manifest in the bucket, and is fetched only if asked for."""

    FETCHED = "fetched"
    SKIPPED = "skipped"
    INCOMPLETE = "incomplete"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where runs lie: names start with `folder`, `a/b/runs/`; `run_id` where one run alone is meant."""

    bucket: str
    folder: str
    run_id: str | None = None

    @property
    def prefix(self) -> str:
        """What every name of interest starts with."""
        return f"{self.folder}{self.run_id}/" if self.run_id else self.folder

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.prefix}"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """An object that is not written, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RemoteRun:
    """One run in the bucket: its objects by their name inside the run."""

    run_id: str
    objects: Mapping[str, StoredObject]

    @property
    def manifest(self) -> StoredObject | None:
        """The object that makes the run complete."""
        return self.objects.get(bundle.MANIFEST)


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Everything found below a source, in the order of names."""

    runs: tuple[RemoteRun, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One file to have: `sha256` is the manifest's, empty where the run has none."""

    name: str
    remote: StoredObject
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one run: how many files and bytes came over the network, and why not."""

    run_id: str
    state: State
    files: int = 0
    bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of a fetch. `error` ended it before every run was looked at."""

    source: str
    output: Path
    outcomes: tuple[Outcome, ...]
    refused: tuple[Refused, ...]
    error: RooflaunchError | None = None

    def count(self, state: State) -> int:
        """How many runs ended so."""
        return sum(each.state is state for each in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "source": self.source,
            "output": str(self.output),
            "counts": {state: self.count(state) for state in State},
            "bytes": sum(each.bytes for each in self.outcomes),
            "runs": [asdict(each) for each in self.outcomes],
            "refused_names": [asdict(each) for each in self.refused],
            "error": str(self.error) if self.error else None,
        }


@dataclass(kw_only=True)
class Traffic:
    """Shared by the workers: bytes that came so far, and whether to stop."""

    bytes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        """Count bytes that came."""
        with self._lock:
            self.bytes += count


class _StoppedError(Exception):
    """Another worker failed for good, or the user pressed Ctrl-C."""


OnProgress = Callable[[int, int, int], None]


def parse_source(text: str) -> Source:
    """`gs://BUCKET[/PREFIX]`, `gs://BUCKET[/PREFIX]/runs` or `gs://BUCKET[/PREFIX]/runs/RUN_ID`; else `UsageError`."""
    scheme, separator, rest = text.partition("://")
    name, _, path = rest.partition("/")
    if scheme != "gs" or not separator or not BUCKET_NAME.fullmatch(name):
        raise UsageError(f"a bucket is written gs://BUCKET/PREFIX; got '{text}'", hint=EXAMPLE)
    parts = [part for part in path.split("/") if part]
    run_id = None
    if parts[-2:-1] == [RUNS]:
        run_id = parts.pop()
    if parts[-1:] != [RUNS]:
        parts.append(RUNS)
    if run_id is not None and (reason := why_unsafe(run_id)):
        raise UsageError(f"'{run_id}' is no run: {reason}", hint=EXAMPLE)
    return Source(bucket=name, folder="/".join(parts) + "/", run_id=run_id)


def take_stock(objects: Iterable[StoredObject], folder: str) -> Inventory:
    """Sort a list of objects below `folder` into runs; names that may not be written are refused, the rest stays."""
    found: dict[str, dict[str, StoredObject]] = {}
    refused: list[Refused] = []
    for each in objects:
        name = each.name.removeprefix(folder)
        # Consoles make empty objects whose name ends in a slash, to show a folder.
        if not name or (name.endswith("/") and not each.bytes and not why_unsafe(name[:-1])):
            continue
        run_id, slash, inner = name.partition("/")
        if reason := why_unsafe(name) or _why_reserved(inner):
            refused.append(Refused(name=each.name, reason=reason))
        elif slash:
            found.setdefault(run_id, {})[inner] = each
    runs = []
    for run_id, inside in sorted(found.items()):
        # Of a complete run nothing is written but what its manifest lists: it decides between names that clash.
        clashing = {} if bundle.MANIFEST in inside else clashes(inside)
        refused += [Refused(name=f"{folder}{run_id}/{name}", reason=reason) for name, reason in clashing.items()]
        kept = {name: each for name, each in inside.items() if name not in clashing}
        runs.append(RemoteRun(run_id=run_id, objects=kept))
    return Inventory(runs=tuple(runs), refused=tuple(refused))


def strays(run: RemoteRun, listed: Collection[str]) -> tuple[Refused, ...]:
    """Objects of a complete run that could not lie beside the files that its manifest lists."""
    return tuple(
        Refused(name=each.name, reason="cannot lie beside the files that the manifest lists")
        for name, each in sorted(run.objects.items())
        if name != bundle.MANIFEST and name not in listed and clashes([*listed, name])
    )


def _why_reserved(inner: str) -> str:
    """Why this name inside a run is ours to write; the manifest in its own spelling is expected there."""
    top = inner.partition("/")[0].casefold()
    if top == PARTIAL or (top in RESERVED and inner != bundle.MANIFEST):
        return "a name that the fetch itself uses"
    return ""


def wanted_files(run: RemoteRun, manifest: bytes) -> tuple[Wanted, ...]:
    """The files that a manifest lists, each with its object; `BundleError` if one is unsafe, missing or another."""
    files = _listed(run, manifest)
    clashing = clashes([row.name for row in files])
    return tuple(_wanted(run, row, clashing) for row in files)


def _listed(run: RemoteRun, manifest: bytes) -> list[bundle.File]:
    document = _document(run, bundle.MANIFEST, manifest)
    try:
        files = [bundle.File(**row) for row in document["files"]]
    except (TypeError, KeyError) as error:
        raise _foreign(run, f"{bundle.MANIFEST} does not list its files") from error
    for row in files:
        if type(row.bytes) is not int or not all(isinstance(text, str) for text in (row.name, row.sha256, row.crc32c)):
            raise _foreign(run, f"{bundle.MANIFEST} does not list its files")
    if bundle.RECORD not in {row.name for row in files}:
        raise _foreign(run, f"{bundle.MANIFEST} lists no {bundle.RECORD}")
    return files


def _document(run: RemoteRun, name: str, content: bytes) -> dict[str, Any]:
    """A JSON object of a schema that we read; else `BundleError`."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _foreign(run, f"{name} is no readable JSON") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if type(version) is not int or version < 1:
        raise _foreign(run, f"{name} has no schema_version")
    if version > bundle.SCHEMA_VERSION:
        raise BundleError(
            f"{name} has bundle schema {version}; this version reads up to schema {bundle.SCHEMA_VERSION}",
            hint="upgrade rooflaunch to the version that wrote it, or a newer one",
        )
    assert isinstance(document, dict)
    return document


def _wanted(run: RemoteRun, row: bundle.File, clashing: Mapping[str, str]) -> Wanted:
    reserved = "a name that the fetch itself uses" if row.name == bundle.MANIFEST else _why_reserved(row.name)
    if reason := why_unsafe(row.name) or reserved or clashing.get(row.name):
        raise _foreign(run, f"{bundle.MANIFEST} names {row.name!r}: {reason}")
    remote = run.objects.get(row.name)
    if remote is None:
        raise _foreign(run, f"{row.name} is missing")
    if remote.bytes != row.bytes:
        raise _foreign(run, f"{row.name} has {remote.bytes} bytes, the manifest says {row.bytes}")
    if remote.crc32c and remote.crc32c != row.crc32c:
        raise _foreign(run, f"{row.name} was changed after the run: its crc32c differs")
    return Wanted(name=row.name, remote=remote, sha256=row.sha256)


def _foreign(run: RemoteRun, why: str) -> BundleError:
    return BundleError(f"damaged in the bucket: {why}", hint=f"upload run '{run.run_id}' again, or remove it")


def fetch(
    bucket: Store,
    source: Source,
    output: Path,
    *,
    incomplete: bool = False,
    replace: bool = False,
    jobs: int = 8,
    on_progress: OnProgress | None = None,
) -> Report:
    """Bring every run of `source` into `output`, `jobs` at a time.

    `incomplete` brings runs without a manifest too; `replace` overwrites a complete bundle that is another one here.
    `on_progress(runs done, runs, bytes so far)` is called with zeros first, before the bucket is listed.
    """
    if on_progress:
        on_progress(0, 0, 0)
    stock = take_stock(bucket.objects(source.prefix), source.folder)
    if stock.runs:
        bundle.make_output(output)
    traffic = Traffic()
    worker = _Worker(bucket, output, traffic, incomplete=incomplete, replace=replace)
    outcomes: list[Outcome] = []
    fatal: RooflaunchError | None = None
    with closing(_in_parallel(worker, stock.runs, jobs)) as ended:
        for outcome in ended:
            if isinstance(outcome, RooflaunchError):
                fatal = outcome
                break
            if outcome is not None:
                outcomes.append(outcome)
            if on_progress:
                on_progress(len(outcomes), len(stock.runs), traffic.bytes)
    outcomes.sort(key=lambda each: each.run_id)
    refused = (*stock.refused, *_strays_of(stock.runs, outcomes, output))
    return Report(source=str(source), output=output, outcomes=tuple(outcomes), refused=refused, error=fatal)


def _strays_of(runs: Iterable[RemoteRun], outcomes: Iterable[Outcome], output: Path) -> Iterator[Refused]:
    here = {each.run_id for each in outcomes if each.state in (State.FETCHED, State.SKIPPED)}
    for run in runs:
        if run.manifest and run.run_id in here and clashes(run.objects):
            yield from strays(run, {row.name for row in bundle.read(output / run.run_id).files})


def _in_parallel(
    worker: "_Worker", runs: Sequence[RemoteRun], jobs: int
) -> Generator[Outcome | RooflaunchError | None, None, None]:
    """What became of each run as it comes, and None now and then, to show progress; closing it stops the workers."""
    waiting: SimpleQueue[RemoteRun] = SimpleQueue()
    ended: SimpleQueue[Outcome | BaseException] = SimpleQueue()
    for run in runs:
        waiting.put(run)
    # Daemons, not a pool: nobody waits for the network after Ctrl-C, and what a worker does may be cut off anywhere.
    threads = [
        threading.Thread(target=worker.work, args=(waiting, ended), daemon=True) for _ in range(min(jobs, len(runs)))
    ]
    for thread in threads:
        thread.start()
    try:
        awaited = len(runs)
        while awaited:
            try:
                found = ended.get(timeout=BAR_EVERY_S)
            except Empty:
                yield None
                continue
            awaited -= 1
            if not isinstance(found, Outcome | RooflaunchError):
                raise found
            yield found
    finally:
        worker.traffic.stop.set()
        deadline_s = time.monotonic() + STOP_LIMIT_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


class _Worker:
    """Brings one run at a time; threads share it."""

    def __init__(self, bucket: Store, output: Path, traffic: Traffic, *, incomplete: bool, replace: bool) -> None:
        self.traffic = traffic
        self._bucket = bucket
        self._output = output
        self._incomplete = incomplete
        self._replace = replace

    def work(self, waiting: "SimpleQueue[RemoteRun]", ended: "SimpleQueue[Outcome | BaseException]") -> None:
        """Fetch what waits, until nothing does or `stop` is set; an error is handed over like an outcome."""
        while not self.traffic.stop.is_set():
            try:
                run = waiting.get_nowait()
            except Empty:
                return
            try:
                ended.put(self.fetch(run))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                ended.put(error)

    def fetch(self, run: RemoteRun) -> Outcome:
        """What became of the run; raises only what concerns every other run too."""
        try:
            with _disk_errors(self._output / run.run_id):
                return self._fetch_complete(run) if run.manifest else self._fetch_incomplete(run)
        except BundleError as error:
            return Outcome(run_id=run.run_id, state=State.REFUSED, reason=str(error))

    def _fetch_complete(self, run: RemoteRun) -> Outcome:
        folder = self._output / run.run_id
        assert run.manifest is not None
        local = _local_state(folder, run.manifest)
        if local is _Local.SAME:
            return Outcome(run_id=run.run_id, state=State.SKIPPED)
        if local is _Local.OTHER and not self._replace:
            message = f"'{folder}' is complete and another bundle: --replace overwrites it"
            raise BundleError(message, hint="fetch with --replace")
        for name in (bundle.MANIFEST, bundle.RECORD):
            if name in run.objects and run.objects[name].bytes > MAX_DOCUMENT_BYTES:
                raise _foreign(run, f"{name} has {run.objects[name].bytes} bytes")
        manifest = self._download_manifest(run.manifest)
        wanted = wanted_files(run, manifest)
        folder.mkdir(exist_ok=True)
        (folder / bundle.MANIFEST).unlink(missing_ok=True)
        files, count = self._bring(folder, wanted)
        _document(run, bundle.RECORD, (folder / bundle.RECORD).read_bytes())
        _seal(folder, manifest)
        return Outcome(run_id=run.run_id, state=State.FETCHED, files=files + 1, bytes=count + len(manifest))

    def _fetch_incomplete(self, run: RemoteRun) -> Outcome:
        folder = self._output / run.run_id
        reason = f"no {bundle.MANIFEST}: it still runs, or was cut off"
        if not self._incomplete:
            reason += "; --incomplete fetches it"
            return Outcome(run_id=run.run_id, state=State.INCOMPLETE, reason=reason)
        if (folder / bundle.MANIFEST).is_file():
            return Outcome(run_id=run.run_id, state=State.SKIPPED, reason="complete here, not in the bucket")
        folder.mkdir(exist_ok=True)
        files, count = self._bring(folder, [Wanted(name=name, remote=each) for name, each in run.objects.items()])
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        return Outcome(run_id=run.run_id, state=State.INCOMPLETE, files=files, bytes=count, reason=reason)

    def _download_manifest(self, found: StoredObject) -> bytes:
        """The manifest, as it was listed; one that arrives as another is asked for once more."""
        for _ in range(ATTEMPTS):
            content = io.BytesIO()
            with suppress(TooLongError):
                self._bucket.download(found, _Counted(content, self.traffic))
            arrived = content.getvalue()
            if len(arrived) == found.bytes and found.crc32c in ("", crc32c_of(io.BytesIO(arrived))):
                return arrived
        raise BundleError(f"{bundle.MANIFEST} arrived damaged {ATTEMPTS} times", hint="fetch again")

    def _bring(self, folder: Path, wanted: Iterable[Wanted]) -> tuple[int, int]:
        """Have every wanted file in `folder`; returns how many came over the network, and their bytes."""
        files = count = 0
        for each in wanted:
            if not _is_as_wanted(folder / each.name, each):
                count += self._bring_file(folder, each)
                files += 1
        return files, count

    def _bring_file(self, folder: Path, wanted: Wanted) -> int:
        """Download into a partial file, compare, put into place; returns the bytes that came."""
        token = hashlib.sha256(wanted.name.encode()).hexdigest()[:16]
        # With the version in its name, a piece is continued only with the same content.
        partial = folder / PARTIAL / f"{token}-{wanted.remote.version}"
        partial.parent.mkdir(exist_ok=True)
        count = 0
        for _ in range(ATTEMPTS):
            count += self._download(partial, wanted.remote)
            if _is_as_wanted(partial, wanted):
                target = folder / wanted.name
                target.parent.mkdir(parents=True, exist_ok=True)
                partial.replace(target)
                return count
            # A piece of an earlier fetch may have been damaged: once more, from the start.
            partial.unlink()
        raise BundleError(f"{wanted.name} arrived damaged {ATTEMPTS} times", hint="fetch again")

    def _download(self, partial: Path, found: StoredObject) -> int:
        """Continue the partial file up to its full size, over broken connections as long as something comes."""
        before = _size(partial)
        if before > found.bytes:
            partial.unlink()
            before = 0
        partial.touch()
        start = before
        while start < found.bytes:
            try:
                # With a byte too many it is another file, as its comparison says.
                with suppress(TooLongError), partial.open("ab") as content:
                    self._bucket.download(found, _Counted(content, self.traffic), start=start)
            except UnreachableError:
                if _size(partial) == start:
                    raise
            except ObjectChangedError:
                partial.unlink()
                raise
            else:
                break
            start = _size(partial)
        return _size(partial) - before


class _Counted:
    """Counts what is written, and stops a worker that is no longer needed."""

    def __init__(self, stream: BinaryIO, traffic: Traffic) -> None:
        self._stream = stream
        self._traffic = traffic

    def write(self, data: bytes, /) -> int:
        if self._traffic.stop.is_set():
            raise _StoppedError
        self._traffic.add(len(data))
        return self._stream.write(data)


class _Local(StrEnum):
    """What is here where a complete run shall come; `other`: a complete bundle with other content."""

    ABSENT = "absent"
    SAME = "same"
    OTHER = "other"


def _local_state(folder: Path, manifest: StoredObject) -> _Local:
    path = folder / bundle.MANIFEST
    try:
        same = _size(path) == manifest.bytes and _crc32c_of(path) == manifest.crc32c
        bundle.read(folder)
    except (BundleError, FileNotFoundError):
        return _Local.ABSENT
    return _Local.SAME if same else _Local.OTHER


def _is_as_wanted(path: Path, wanted: Wanted) -> bool:
    """Whether the file is there with the size and checksum of the manifest, or of the object where there is none."""
    if not path.is_file() or _size(path) != wanted.remote.bytes:
        return False
    if not wanted.sha256:
        return wanted.remote.crc32c in ("", _crc32c_of(path))
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == wanted.sha256


def _crc32c_of(path: Path) -> str:
    with path.open("rb") as content:
        return crc32c_of(content)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _seal(folder: Path, manifest: bytes) -> None:
    """Put the manifest into place, at once and last: from here on the bundle is complete."""
    shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    temporary = folder / f"{bundle.MANIFEST}.tmp"
    with temporary.open("wb") as content:
        content.write(manifest)
        content.flush()
        os.fsync(content.fileno())
    temporary.replace(folder / bundle.MANIFEST)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """A disk that takes nothing more ends the fetch; what is wrong with one folder refuses that run alone."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if bundle.is_write_failure(error) and not isinstance(error, FileNotFoundError):
            raise ToolError(
                f"{error.strerror} while writing '{where}'",
                hint="free some space, or -o FOLDER on another disk; the same command continues",
            ) from error
        raise BundleError(f"'{where}' cannot be written: {error.strerror or error}", hint="move it away") from error
