"""Client for Cloud Billing: today's price list, if the project allows it, kept for a day in the cache folder.

Prices never delay a launch: after a few seconds the launch goes on without them, and the answer serves the next launch.
Any user of a project with the Cloud Billing API may read the list; no role is needed. google.auth and requests are
imported inside functions only.
"""

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.backends.gcp import gpus, refusals, services, skus
from launcher.backends.gcp.services import Services
from launcher.backends.gcp.skus import PriceList, Sku
from workload.contract.errors import RooflaunchError
from workload.contract.files import replace_text

ENDPOINT_VARIABLE = "ROOFLAUNCH_BILLING_ENDPOINT"
# Longest wait of a launch. The whole list has some 40,000 SKUs, 5,000 to a page.
WAIT_S = 4.0
MAX_AGE_S = 24 * 3600.0
CACHE_SCHEMA = 1
MAX_CACHE_BYTES = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Current:
    """Today's price list; or `why` there is none, and a `hint`."""

    prices: PriceList | None = None
    why: str = ""
    hint: str = ""


def cached(now_s: float) -> Current:
    """Price list that was read within a day, without any request; empty if there is none."""
    with suppress(OSError, ValueError, TypeError, LookupError):
        path = _cache_file()
        if path.stat().st_size <= MAX_CACHE_BYTES:
            document = json.loads(path.read_bytes())
            age_s = now_s - float(document["read_s"])
            if document["schema"] == CACHE_SCHEMA and 0 <= age_s <= MAX_AGE_S:
                return Current(prices=_price_list([_kept(row) for row in document["skus"]], document["read_s"]))
    return Current()


def current(
    project: str,
    *,
    now_s: float,
    wait_s: float = WAIT_S,
    connect: Callable[[str], Services] | None = None,
) -> Current:
    """Today's list: cached, or requested and waited for up to `wait_s` seconds.

    A later answer is kept for the next launch.
    """
    known = cached(now_s)
    if known.prices:
        return known
    answers: list[Current] = []
    asking = threading.Thread(
        target=lambda: answers.append(_ask(project, now_s, connect or connected)), daemon=True, name="prices"
    )
    asking.start()
    asking.join(wait_s)
    return answers[0] if answers else Current(why=f"Google's price list did not arrive within {wait_s:g} s")


def connected(project: str) -> Services:
    """Connection to Google's own service, or without credentials to the address in the variable."""
    if not os.environ.get(ENDPOINT_VARIABLE):
        return services.connect(project)
    import requests  # noqa: PLC0415 - see the module

    session: Any = requests.Session()
    return Services(project, session)


def _ask(project: str, now_s: float, connect: Callable[[str], Services]) -> Current:
    endpoint = os.environ.get(ENDPOINT_VARIABLE)
    if not endpoint and os.environ.get(refusals.ENDPOINT_VARIABLE):
        return Current(why=f"{refusals.ENDPOINT_VARIABLE} is set, so Google's price list is not used")
    try:
        documents = connect(project).compute_skus(endpoint or services.BILLING)
        found = list(skus.wanted(documents, skus.all_parts(gpus.load().values())))
    except RooflaunchError as error:
        return Current(why=str(error), hint=error.hint)
    if not found:
        return Current(why="Google's price list has no SKU of the kinds that are known here")
    _keep(found, now_s)
    return Current(prices=_price_list(found, now_s))


def _price_list(listed: list[Sku], read_s: float) -> PriceList:
    return PriceList(skus=tuple(listed), read=f"{datetime.fromtimestamp(read_s, UTC):%Y-%m-%d}")


def _cache_file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "rooflaunch" / "gcp-prices.json"


def _keep(listed: list[Sku], now_s: float) -> None:
    """Write the list to the cache, as a whole or not at all. A folder that cannot be written is no error."""
    content = json.dumps({"schema": CACHE_SCHEMA, "read_s": now_s, "skus": [asdict(sku) for sku in listed]})
    with suppress(OSError, RuntimeError):
        path = _cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, content, shared=True, durable=False)


def _kept(row: dict[str, Any]) -> Sku:
    texts = {item.name: str(row[item.name]) for item in fields(Sku) if item.name not in ("regions", "usd")}
    return Sku(**texts, regions=tuple(map(str, row["regions"])), usd=float(row["usd"]))
