"""A cloud's clock, read from the dates of its answers."""

from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from workload.contract.errors import ToolError
from workload.storage.buckets import Service


class CloudClock:
    """The cloud's time: the date of its answers, plus the seconds since then by the clock `monotonic`.

    This computer's own date may be hours off, so no decision about a VM uses it.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead_s: float | None = None

    def read_date(self, response: Any, **_: object) -> None:
        """Set the clock by the date of an answer; ignore a page of a proxy. `requests` calls this for each answer."""
        if response.ok and "json" in response.headers.get("Content-Type", ""):
            self.set(response.headers.get("Date"))

    def set(self, date: str | None) -> None:
        """Set the clock by the header `Date` of an answer; ignore a date that is missing or unreadable."""
        with suppress(TypeError, ValueError):
            ahead_s = parsedate_to_datetime(date or "").timestamp() - self._monotonic()
            # Dates are rounded down to seconds and delayed by the network, so the largest `ahead_s` is best.
            self._ahead_s = ahead_s if self._ahead_s is None else max(self._ahead_s, ahead_s)

    def now_s(self, service: Service, items: str, ask: Callable[[], object]) -> float:
        """Seconds since 1970. `ask`: sends any request, in case there was no answer with a date yet.

        Raises `ToolError` if the answers have no date; the error's message names `service` and `items` (such as "VMs").
        """
        if self._ahead_s is None:
            ask()
        if self._ahead_s is None:
            raise ToolError(
                f"{service.name}'s answers have no date, so the age of {items} is unknown",
                hint=f"curl -I {service.public}: perhaps a proxy removes the date",
            )
        return self._monotonic() + self._ahead_s
