"""Cost of a launch and of its runs: every second of the machine is charged to one run."""

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.agent.home import iso
from launcher.protocol.records import Price
from workload.contract.record import Cost


@dataclass(frozen=True, kw_only=True)
class Share:
    """Share of a run in the machine's time: begin and end in seconds since 1970, and the seconds charged in between."""

    from_s: float
    to_s: float
    seconds: float


class CostShares:
    """Divides the machine's time from `began_s` on among the runs as they end. Safe to share between threads."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self._billed_to_s = began_s
        self._shares: dict[Path, Share] = {}
        self._lock = threading.Lock()

    def charge(self, folder: Path, now_s: float) -> Share:
        """Charge a run for the time since the last charge (at first since `began_s`). Returns its share."""
        with self._lock:
            from_s = self._billed_to_s
            before = self._shares.get(folder, Share(from_s=from_s, to_s=from_s, seconds=0.0))
            share = replace(before, to_s=now_s, seconds=before.seconds + now_s - from_s)
            self._shares[folder], self._billed_to_s = share, now_s
            return share

    def share(self, folder: Path, now_s: float) -> Share:
        """Share of a run in the machine's time; if it was not charged yet, the run is charged up to `now_s`."""
        return self._shares.get(folder) or self.charge(folder, now_s)

    def resume(self, billed_to_s: float) -> None:
        """Continue after a restart of the machine: the time up to `billed_to_s` was charged before."""
        with self._lock:
            self._billed_to_s = max(self._billed_to_s, billed_to_s)

    def usd(self, price: Price | None, now_s: float) -> float | None:
        """Cost of the whole launch, in USD; None if the price is unknown, or the clock was set back since the start."""
        return price.usd(now_s - self.began_s) if price and now_s >= self.began_s else None


def cost(share: Share, price: Price | None) -> Cost:
    """Record `cost` of run.json: the machine's time charged to a run; `usd` is None if the price is unknown.

    `billed_s` is less than the time from `billed_from` to `billed_to` if another run was charged in between.
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
