"""Launches of a rented place, whose bundles are fetched into the folder of results as they are sealed."""

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.jobs.liveness import TO_BE_REMOVED
from launcher.jobs.run import SELF_DELETION_S, fetched
from launcher.jobs.watch import WatchedLaunch
from launcher.machine.task import FINAL
from launcher.protocol.backend import Machine
from launcher.protocol.records import RUNS
from launcher.protocol.task import Task
from launcher.sweep.shared import Progress, Workers
from launcher.sweep.work import PlaceWork, progress_text, rate_text
from workload.contract import bundle
from workload.contract.bundle import Bundle
from workload.contract.errors import BundleError, RooflaunchError
from workload.contract.record import KEY_LABEL, STATUS_LABEL, Status, why_other_labels
from workload.storage.inventory import SealedRun, sealed_runs
from workload.storage.store import Store

# How often to try fetching a bundle that its machine has announced.
FETCH_TRIES = 3


@dataclass(kw_only=True)
class TaskLaunch(WatchedLaunch):
    """Launch of a task. `is_over`: nothing runs or costs any more; `is_settled`: its runs' outcome has been handled."""

    task: Task
    submitting: Future[Any] | None = None
    ended_s: float | None = None
    fetching: list[Future[None]] = field(default_factory=list)
    # Bundles that are fetched, being fetched, or given up.
    fetched: set[str] = field(default_factory=set)
    is_over: bool = False
    is_settled: bool = False
    usd: float | None = None

    def set_machine(self, machine: Machine) -> None:
        """Record the machine that was requested for the launch; its boot time is counted from the next poll on."""
        self.machine, self.zones, self.boots_from_s = machine, (machine.zone,), None

    def must_be_removed(self, now_s: float) -> bool:
        """Whether to remove the machine: it does no work any more, or still exists long after its result."""
        if self.machine is None or self.is_gone:
            return False
        if self.result is not None:
            return now_s - (self.ended_s or now_s) > SELF_DELETION_S
        return self.liveness in TO_BE_REMOVED


class Collector:
    """Fetcher of bundles from the store into the folder of results; `workers` are its threads."""

    def __init__(self, work: PlaceWork, store: Store, output: Path, progress: Progress, workers: Workers) -> None:
        self._work, self._store, self._output, self._progress, self._workers = work, store, output, progress, workers
        self._tries: dict[str, int] = {}
        # Runs in the store whose labels contradict their run.json.
        self._mislabelled: set[str] = set()

    def fetch_announced(self, launch: TaskLaunch) -> None:
        """Start fetching the bundles that the launch's machine has announced, each once."""
        for run_id in launch.announced_runs:
            if run_id not in launch.fetched:
                launch.fetched.add(run_id)
                launch.fetching.append(self._workers.submit(self._fetch_one, launch, run_id))

    def is_collected(self, launch: TaskLaunch) -> bool:
        """Whether every announced bundle of the launch is in the folder of results, or was given up."""
        if not all(future.done() for future in launch.fetching):
            return False
        while launch.fetching:
            launch.fetching.pop().result()  # raises unexpected exceptions of the thread
        return set(launch.announced_runs) <= launch.fetched

    def fetch_sealed(self, keys: Collection[str] | None = None) -> None:
        """Fetch sealed runs of the place that are in the store and not in the folder of results; lists the store once.

        `keys`: fetch only these runs; None: all.
        """
        waiting: list[Future[None]] = []
        damaged: list[SealedRun] = []
        for sealed in sealed_runs(self._store, compared=lambda run: run.status in FINAL and self._is_missing(run)):
            is_wanted = self._work.has(sealed.run_key) and (keys is None or sealed.run_key in keys)
            if not is_wanted or sealed.run_id in self._mislabelled:
                continue
            if sealed.damage:
                damaged.append(sealed)
                continue
            is_new = sealed.status in FINAL and self._work.status(sealed.run_key) is None
            if is_new:
                self._work.settle(sealed.run_key, Status(sealed.status))
            if is_new or (sealed.status in (*FINAL, Status.FAILED) and self._is_missing(sealed)):
                waiting.append(self._workers.submit(self._fetch_stored, sealed))
        for future in waiting:
            future.result()
        for sealed in damaged:
            if self._work.status(sealed.run_key) is None:
                self._say_damaged(sealed.run_id, sealed.damage)

    def _is_missing(self, sealed: SealedRun) -> bool:
        """Whether a run belongs to the place and its bundle is not in the folder of results."""
        is_here = (self._output / sealed.run_id / bundle.MANIFEST).is_file()
        return self._work.has(sealed.run_key) and not is_here

    def _say_damaged(self, run_id: str, why: str) -> None:
        address = self._store.locate(f"{RUNS}{run_id}")
        self._progress.say(self._work.name, f"{address} is damaged, so its run is repeated: {why}")

    def _fetch_one(self, launch: TaskLaunch, run_id: str) -> None:
        try:
            sealed = self._fetched(run_id)
        except RooflaunchError as error:
            tries = self._tries[run_id] = self._tries.get(run_id, 0) + 1
            if tries < FETCH_TRIES:
                launch.fetched.discard(run_id)
            else:
                self._progress.say(self._work.name, f"{run_id} could not be collected: {error}")
        else:
            self._note_arrival(sealed)

    def _fetch_stored(self, stored: SealedRun) -> None:
        """Fetch a bundle that is in the store already.

        Failed runs stay missing, and so do runs whose bundle is damaged, or is labelled as another run.
        """
        try:
            sealed = self._fetched(stored.run_id)
            why = why_other_labels({STATUS_LABEL: stored.status, KEY_LABEL: stored.run_key}, sealed.document)
            if why:
                self._mislabelled.add(stored.run_id)
            elif sealed.record.status in FINAL:
                self._work.take(sealed.record, sealed.path)
        except BundleError as error:
            why = str(error)
        except RooflaunchError as error:
            self._progress.say(self._work.name, f"{stored.run_id} could not be collected: {error}")
            return
        if why:
            self._work.lose(stored.run_key)
            self._say_damaged(stored.run_id, why)

    def _fetched(self, run_id: str) -> Bundle:
        """Fetch a bundle unless the folder has it, and read its record. Raises `RooflaunchError` if either fails."""
        is_here = (self._output / run_id / bundle.MANIFEST).is_file()
        sealed = bundle.read(self._output / run_id) if is_here else fetched(self._store, run_id, self._output, jobs=1)
        _ = sealed.record
        return sealed

    def _note_arrival(self, sealed: Bundle) -> None:
        record = sealed.record
        is_new = self._work.status(record.run_key or "") is None
        run = self._work.take(record, sealed.path)
        if run is None or not is_new:
            return
        rate = record.timing.images_per_s if record.timing else None
        is_completed = record.status is Status.COMPLETED
        result = rate_text(record) if is_completed and rate else record.status.replace("_", " ")
        why = f": {record.error}" if record.error and record.status is Status.FAILED else ""
        self._progress.say(self._work.name, progress_text(self._work, run, f"{result}{why}"))
        if is_completed:
            self._progress.update(self._work.name, images_per_s=rate)
