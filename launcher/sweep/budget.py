"""Limit of `--max-cost` for a whole sweep: the machines' time limits add up to no more than this cost.

The clouds themselves enforce the time limits, so the cost stays below the limit even if this process dies.
"""

import math
import threading

from launcher.protocol.backend import Plan
from workload.contract.errors import UsageError


def require_positive_usd(usd: float | None) -> float | None:
    """Check `--max-cost`, in USD. Raises `UsageError` unless the sum is positive and finite."""
    if usd is not None and not (math.isfinite(usd) and usd > 0):
        raise UsageError(f"--max-cost must be a positive sum in USD; got '{usd:g}'", hint="--max-cost 5")
    return usd


def highest_usd(plan: Plan) -> float | None:
    """Highest cost of a plan's machine, in USD; None if no price is known."""
    own: float | None = getattr(plan, "highest_usd", None)
    if own is not None:
        return own
    request = plan.request
    prices = [request.price(zone) for zone in (*request.zones, "")]
    return max((price.usd(request.limit_s) for price in prices if price is not None), default=None)


class Budget:
    """Money that may still be spent; unlimited if `most_usd` is None. Safe to share between threads."""

    def __init__(self, most_usd: float | None) -> None:
        self._most_usd = most_usd
        self._lock = threading.Lock()
        self._reserved: dict[str, float] = {}
        self._expected: dict[str, int] = {}

    def expect(self, place: str, machines: int) -> None:
        """Set how many machines a place will still request."""
        with self._lock:
            self._expected[place] = machines

    @property
    def share_usd(self) -> float | None:
        """Highest cost of each machine still to be requested, in USD; None: unlimited."""
        if self._most_usd is None:
            return None
        with self._lock:
            return self._remaining_usd() / max(1, sum(self._expected.values()))

    def reserve(self, plan: Plan) -> None:
        """Reserve a machine's highest cost. Raises `UsageError` if this cost exceeds the remaining money.

        A machine without a known price, such as a host of the user's own, reserves nothing: a cloud with `--max-cost`
        refuses a plan without a price.
        """
        usd = highest_usd(plan) or 0.0
        with self._lock:
            # The tolerance of a millionth covers rounding errors of floating point.
            if self._most_usd is not None and usd > self._remaining_usd() + 1e-6:
                raise UsageError(
                    f"a machine may cost {usd:.2f} USD, which is more than is left of --max-cost "
                    f"{self._most_usd:g}: {self._remaining_usd():.2f} USD",
                    hint="a larger --max-cost, or a shorter max_run_time of the place",
                )
            self._reserved[plan.request.name] = usd

    def spent(self, name: str, usd: float | None) -> None:
        """Replace the reserved cost of a machine that has ended by its real cost, if known."""
        with self._lock:
            if usd is not None and name in self._reserved:
                self._reserved[name] = usd

    def _remaining_usd(self) -> float:
        return max(0.0, (self._most_usd or 0.0) - sum(self._reserved.values()))
