"""Fetches bundles from a store, several at a time.

A run lies in `<prefix>/runs/<run_id>/`. Its local folder has no MANIFEST.json until every file has been compared with
the manifest. A killed fetch therefore leaves an incomplete bundle, and the next fetch continues it.
"""

import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from workload.contract import bundle
from workload.contract.errors import BundleError, RooflaunchError
from workload.storage.download import Downloader, LocalState, Traffic, disk_errors, local_state, seal
from workload.storage.inventory import (
    PARTIAL,
    Refused,
    RemoteRun,
    Wanted,
    read_document,
    strays,
    take_stock,
    wanted_files,
)
from workload.storage.names import clashes
from workload.storage.source import FetchSource
from workload.storage.store import Store, StoredObject

# Largest manifest or record, which are read into memory. A manifest row is about 200 bytes: this allows 80,000 files.
MAX_DOCUMENT_BYTES = 16_000_000
# Files that identify a folder as a run: one of them exists.
MARKS = (bundle.MANIFEST, bundle.RECORD)
BAR_EVERY_S = 0.25
# Workers check for a stop with each piece of a file. A worker that waits for the network longer than this is abandoned.
STOP_LIMIT_S = 1.0


class FetchState(StrEnum):
    """Result for one run. `incomplete`: it has no manifest in the store, and is fetched only on request."""

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
        """Plain JSON values."""
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
    traffic = Traffic()
    worker = _Worker(store, output, traffic, incomplete=incomplete, replace=replace)
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
                on_progress(len(outcomes), len(stock.runs), traffic.bytes)
    outcomes.sort(key=lambda outcome: outcome.run_id)
    refused = (*stock.refused, *_strays_of(stock.runs, outcomes, output))
    return FetchReport(source=str(source), output=output, outcomes=tuple(outcomes), refused=refused, error=fatal)


def _listed(store: Store, source: FetchSource) -> Iterator[StoredObject]:
    """Objects of the runs. Beside other things, only a subfolder with a manifest or a record is a run."""
    if source.prefix:
        yield from store.objects(source.prefix)
        return
    for name in store.folders(""):
        if any(listed.name == f"{name}/{file}" for file in MARKS for listed in store.objects(f"{name}/{file}")):
            yield from store.objects(f"{name}/")


def _strays_of(runs: Iterable[RemoteRun], outcomes: Iterable[FetchedRun], output: Path) -> Iterator[Refused]:
    here = {outcome.run_id for outcome in outcomes if outcome.state in (FetchState.FETCHED, FetchState.SKIPPED)}
    for run in runs:
        if run.manifest and run.run_id in here and clashes(run.objects):
            yield from strays(run, {row.name for row in bundle.read(output / run.run_id).files})


def _in_parallel(
    worker: "_Worker", runs: Sequence[RemoteRun], jobs: int
) -> Generator[FetchedRun | RooflaunchError | None, None, None]:
    """Yield the result of each run as it comes, and sometimes None, to show progress; closing it stops the workers."""
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
        worker.traffic.stop.set()
        deadline_s = time.monotonic() + STOP_LIMIT_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


class _Worker:
    """Fetches one run at a time; shared by threads."""

    def __init__(self, store: Store, output: Path, traffic: Traffic, *, incomplete: bool, replace: bool) -> None:
        self.traffic = traffic
        self._store = store
        self._downloader = Downloader(store, traffic)
        self._output = output
        self._incomplete = incomplete
        self._replace = replace

    def work(self, waiting: "SimpleQueue[RemoteRun]", ended: "SimpleQueue[FetchedRun | BaseException]") -> None:
        """Fetch waiting runs until none is left or `stop` is set; an error is put into `ended` like a result."""
        while not self.traffic.stop.is_set():
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
        local = local_state(self._store, folder, run.manifest)
        if local is LocalState.SAME:
            return FetchedRun(run_id=run.run_id, state=FetchState.SKIPPED)
        if local is LocalState.OTHER and not self._replace:
            message = f"'{folder}' is another complete bundle: --replace overwrites it"
            raise BundleError(message, hint="fetch with --replace")
        for name in (bundle.MANIFEST, bundle.RECORD):
            if name in run.objects and run.objects[name].bytes > MAX_DOCUMENT_BYTES:
                raise run.damaged(f"{name} has {run.objects[name].bytes} bytes")
        manifest = self._downloader.manifest(run.manifest)
        wanted = wanted_files(run, manifest)
        folder.mkdir(exist_ok=True)
        (folder / bundle.MANIFEST).unlink(missing_ok=True)
        files, count = self._downloader.download(folder, wanted)
        read_document(run, bundle.RECORD, (folder / bundle.RECORD).read_bytes())
        seal(folder, manifest)
        return FetchedRun(run_id=run.run_id, state=FetchState.FETCHED, files=files + 1, bytes=count + len(manifest))

    def _fetch_incomplete(self, run: RemoteRun) -> FetchedRun:
        folder = self._output / run.run_id
        reason = f"no {bundle.MANIFEST}: it is still running, or was interrupted"
        if not self._incomplete:
            reason += "; --incomplete fetches it"
            return FetchedRun(run_id=run.run_id, state=FetchState.INCOMPLETE, reason=reason)
        if (folder / bundle.MANIFEST).is_file():
            return FetchedRun(
                run_id=run.run_id, state=FetchState.SKIPPED, reason=f"complete here, not in the {run.kind}"
            )
        folder.mkdir(exist_ok=True)
        wanted = [Wanted(name=name, remote=remote) for name, remote in run.objects.items()]
        files, count = self._downloader.download(folder, wanted)
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        return FetchedRun(run_id=run.run_id, state=FetchState.INCOMPLETE, files=files, bytes=count, reason=reason)
