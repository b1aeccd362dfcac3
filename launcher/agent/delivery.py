"""Uploads bundles from the machine to the store, each once, after adding costs and other facts of the agent."""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher.agent.home import Home, full_disk_reported, iso
from launcher.agent.lease import Stop, Why
from launcher.machine.task import FINAL
from launcher.protocol.records import Price, Request, epoch_s
from workload.contract import bundle
from workload.contract.errors import BundleError, RooflaunchError
from workload.contract.record import Cost, Status
from workload.contract.record_sections import CloudFacts
from workload.storage.inventory import sealed_runs, upload
from workload.storage.store import ObjectExistsError, Store


class CostShares:
    """Divides the machine's time from `began_s` on among the runs as they end. Safe to share between threads."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self._billed_to_s = began_s
        # By bundle folder: begin and end of the run's charged time, and the seconds charged in between.
        self._shares: dict[Path, tuple[float, float, float]] = {}
        self._lock = threading.Lock()

    def charge(self, folder: Path, now_s: float) -> None:
        """Charge a run for the time since the previous charge of any run; for the first charge, since costs began."""
        with self._lock:
            charged_s = now_s - self._billed_to_s
            from_s, _, seconds = self._shares.get(folder, (self._billed_to_s, 0.0, 0.0))
            self._shares[folder], self._billed_to_s = (from_s, now_s, seconds + charged_s), now_s

    def resume(self, billed_to_s: float) -> None:
        """Continue after a restart of the machine: the time up to `billed_to_s` was charged before."""
        with self._lock:
            self._billed_to_s = max(self._billed_to_s, billed_to_s)

    def usd(self, price: Price | None, now_s: float) -> float | None:
        """Cost of the whole launch, in USD; None if the price is unknown, or the clock was set back since the start."""
        return price.usd(now_s - self.began_s) if price and now_s >= self.began_s else None

    def cost(self, folder: Path, price: Price | None, now_s: float) -> Cost:
        """Cost of a run, for its run.json. A run that was not charged before is charged now.

        In the returned `Cost`, `usd` is None if the price is unknown. `billed_s` is less than the time from
        `billed_from` to `billed_to` if another run was charged in between.
        """
        if folder not in self._shares:
            self.charge(folder, now_s)
        from_s, to_s, seconds = self._shares[folder]
        billed_s = max(0.0, seconds)
        return Cost(
            usd_per_h=price.usd_per_h if price else None,
            disk_usd_per_h=price.disk_usd_per_h if price else None,
            address_usd_per_h=price.address_usd_per_h if price else None,
            price_date=price.read if price else None,
            billed_from=iso(from_s),
            billed_to=iso(to_s),
            billed_s=round(billed_s, 3),
            usd=price.usd(billed_s) if price else None,
        )


class Delivery:
    """Bundles of one launch: `folders`, in the order in which they were begun. Safe to share between threads."""

    def __init__(
        self,
        request: Request,
        zone: str,
        *,
        home: Home,
        store: Store,
        costs: CostShares,
        stop: Stop,
        now: Callable[[], float],
    ) -> None:
        self.folders: list[Path] = []
        self._price = request.price(zone)
        self._home, self._store, self._costs, self._stop, self._now = home, store, costs, stop, now
        self._sending = threading.Lock()
        # Bundles uploaded by this agent, or by an earlier agent here. Kept in memory, because an agent on another
        # machine may share the folder and upload a bundle that is still being written here.
        self._sent = set[str]()

    @property
    def is_complete(self) -> bool:
        """Whether every bundle is complete in the store."""
        return {folder.name for folder in self.folders} <= set(self._home.uploaded())

    def take_up(self) -> None:
        """Add the bundles that the launch made on this machine before a restart to `folders`."""
        self._sent |= set(self._home.uploaded())
        self.folders += self._home.bundles()
        for folder in self.folders:
            with suppress(BundleError):
                charged = bundle.read(folder).record.cost
                self._costs.resume(epoch_s(charged.billed_to if charged else None) or 0.0)

    def deliver_all(self, why_ended: str) -> RooflaunchError | None:
        """Upload all bundles that are not in the store yet. Returns the last error; None if there was none."""
        failed: RooflaunchError | None = None
        for folder in self.folders:
            try:
                self.deliver(folder, why_ended)
            except RooflaunchError as failure:
                failed = failure
        return failed

    def deliver(self, folder: Path, why_ended: str = "") -> None:
        """Close a bundle and upload it, once.

        `why_ended`: error for run.json if the trainer left the bundle open, or if the run was the machine's last and a
        preemption or the time limit ended it.
        """
        # At the end, the upload of an earlier run's bundle may still be under way.
        with self._sending:
            if folder.name in self._sent:
                return
            try:
                with full_disk_reported(folder):
                    self._close(folder, why_ended)
                try:
                    sent = upload(self._store, folder)
                except ObjectExistsError:
                    folder = self._renamed(folder)
                    sent = upload(self._store, folder)
            except RooflaunchError as failure:
                print(failure.report(), file=sys.stderr, flush=True)
                raise
            self._sent.add(folder.name)
            self._home.note_uploaded(folder.name)
            print(f"uploaded {sent.run_id}: {sent.files} files, {sent.bytes} bytes", flush=True)

    def _renamed(self, folder: Path) -> Path:
        """Rename a complete bundle if the store has a broken one of the same name; returns the new folder.

        Raises `ObjectExistsError` if the run in the store is complete, or the run in `folder` is not.
        """
        stored = next(sealed_runs(self._store, run_id=folder.name), None)
        if stored is None or stored.status in FINAL or bundle.read(folder).record.status not in FINAL:
            raise ObjectExistsError(
                f"another bundle of '{folder.name}' is in {self._store}", hint=f"its files are in '{folder}'"
            )
        renamed = bundle.rename(folder)
        self.folders[self.folders.index(folder)] = renamed
        print(f"{folder.name} is in the store as an incomplete run: the complete one is {renamed.name}", flush=True)
        return renamed

    def _close(self, folder: Path, why_ended: str) -> None:
        """Add the agent's facts to a bundle and seal it; only once, so that a second upload sends the same bytes."""
        cost = self._costs.cost(folder, self._price, self._now())
        with suppress(BundleError):  # a bundle without a record cannot be closed; reading it below raises the error
            bundle.seal_unfinished(folder, Status.FAILED, why_ended or "the trainer was killed")
        run = bundle.read(folder).record
        cloud = run.environment.cloud or CloudFacts()
        if cloud.phases is not None:  # only this function sets phases, so the bundle is closed already
            return
        cloud = replace(cloud, phases=self._home.phases(), preempted=self._stop.why is Why.PREEMPTED)
        run = replace(run, environment=replace(run.environment, cloud=cloud), cost=cost)
        statuses = {Why.PREEMPTED: Status.PREEMPTED, Why.TIMED_OUT: Status.TIMED_OUT}
        is_last = folder == self.folders[-1]  # a stop affects only the last run: the other runs had ended before
        if is_last and self._stop.why in statuses and run.status in (Status.INTERRUPTED, Status.FAILED):
            run = replace(run, status=statuses[self._stop.why], error=why_ended or run.error)
        bundle.reseal(folder, run)
