"""`--max-cost` of a whole sweep: every machine's time limit is such that all together cannot cost more.

The limits are kept by the clouds themselves, so that the sum holds whatever becomes of this process.
"""

import threading

from launcher.backends.door import Plan
from workload.contract.errors import UsageError


def highest_usd(plan: Plan) -> float | None:
    """What the machine of a plan costs at most; None where no price is known."""
    own: float | None = getattr(plan, "highest_usd", None)
    if own is not None:
        return own
    request = plan.request
    prices = [request.price(zone) for zone in (*request.zones, "")]
    return max((price.usd(request.limit_s) for price in prices if price is not None), default=None)


class Budget:
    """What may still be spent. Threads share it; without `most_usd` everything may."""

    def __init__(self, most_usd: float | None) -> None:
        self._most_usd = most_usd
        self._lock = threading.Lock()
        self._reserved: dict[str, float] = {}
        self._expected: dict[str, int] = {}

    def expect(self, place: str, machines: int) -> None:
        """So many machines of a place are still to be asked for."""
        with self._lock:
            self._expected[place] = machines

    @property
    def share_usd(self) -> float | None:
        """What each machine that is still to be asked for may cost; None: as much as it likes."""
        if self._most_usd is None:
            return None
        with self._lock:
            return self._left() / max(1, sum(self._expected.values()))

    def reserve(self, plan: Plan) -> None:
        """Count what a machine costs at most; raises `UsageError` where that is more than is left."""
        usd = highest_usd(plan) or 0.0
        with self._lock:
            # A millionth for the rounding of binary fractions.
            if self._most_usd is not None and usd > self._left() + 1e-6:
                raise UsageError(
                    f"a machine that costs {usd:.2f} USD at most is more than is left of --max-cost "
                    f"{self._most_usd:g}: {self._left():.2f} USD",
                    hint="a larger --max-cost, or a shorter max_run_time of the place",
                )
            self._reserved[plan.request.name] = usd

    def spent(self, name: str, usd: float | None) -> None:
        """A machine is gone: what it has cost, where that is known, in place of the most."""
        with self._lock:
            if usd is not None and name in self._reserved:
                self._reserved[name] = usd

    def _left(self) -> float:
        return max(0.0, (self._most_usd or 0.0) - sum(self._reserved.values()))
