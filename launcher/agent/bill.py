"""What a launch and each of its runs cost: every second of the machine belongs to one run."""

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.agent.home import iso
from launcher.jobs.records import Price
from workload.contract.record import Cost


@dataclass(frozen=True, kw_only=True)
class Share:
    """A run's share of the machine's time: its ends in seconds since 1970, and how much between them is its own."""

    from_s: float
    to_s: float
    seconds: float


class Bill:
    """Divides the machine's time, from `began_s` on, among the runs as they are closed. Threads may share it."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self._billed_to_s = began_s
        self._shares: dict[Path, Share] = {}
        self._lock = threading.Lock()

    def charge(self, folder: Path, now_s: float) -> Share:
        """Give a run the time since the machine was asked for, or since the last run was charged; returns its share."""
        with self._lock:
            from_s = self._billed_to_s
            before = self._shares.get(folder, Share(from_s=from_s, to_s=from_s, seconds=0.0))
            share = replace(before, to_s=now_s, seconds=before.seconds + now_s - from_s)
            self._shares[folder], self._billed_to_s = share, now_s
            return share

    def share(self, folder: Path, now_s: float) -> Share:
        """What a run was charged; one that was not charged yet is charged now."""
        return self._shares.get(folder) or self.charge(folder, now_s)

    def resume(self, billed_to_s: float) -> None:
        """Before the machine started again, runs were charged until then."""
        with self._lock:
            self._billed_to_s = max(self._billed_to_s, billed_to_s)

    def usd(self, price: Price | None, now_s: float) -> float | None:
        """Of the whole launch; None where the price is unknown, or the clock was set back since the start."""
        return price.usd(now_s - self.began_s) if price and now_s >= self.began_s else None


def cost(share: Share, price: Price | None) -> Cost:
    """`cost` of run.json: the machine's time that a run took; `usd` is None where the price is unknown.

    `billed_s` is less than the time between its ends where another run was closed meanwhile.
    """
    billed_s = max(0.0, share.seconds)
    return Cost(
        usd_per_h=price.usd_per_h if price else None,
        disk_usd_per_h=price.disk_usd_per_h if price else None,
        address_usd_per_h=price.address_usd_per_h if price else None,
        price_date=price.read if price else None,
        price_source=price.source if price else None,
        billed_from=iso(share.from_s),
        billed_to=iso(share.to_s),
        billed_s=round(billed_s, 3),
        usd=price.usd(billed_s) if price else None,
    )
