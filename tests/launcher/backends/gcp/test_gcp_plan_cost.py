"""Prices of a plan, its expected time and cost, and --max-cost."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from launcher.backends.gcp import gpus
from launcher.protocol.records import Price
from tests.launcher.backends.gcp.gcp_plans import planned
from workload.contract import prices
from workload.contract.errors import UsageError

pytestmark = pytest.mark.usefixtures("made_up_programs")


@pytest.mark.parametrize(
    ("options", "limit_s"),
    [
        # By hand: 0.54 USD per hour, 100 GB x 0.10 / 672 h = 0.01488 and 0.005 are 0.55988; 0.27 USD buy 1736 s,
        # of which 180 s go before the VM's start, 30 s for a late cloud and 90 s to shut down.
        ({"max_cost_usd": 0.27}, 1436),
        # Without an address 0.55488: 1751 s. As spot 0.255 + 0.01488 + 0.0025 = 0.27238: 3568 s.
        ({"max_cost_usd": 0.27, "external_ip": False}, 1451),
        ({"max_cost_usd": 0.27, "spot": True}, 3268),
        # 1000 GB are 0.14881 and not 0.01488: 0.69381.
        ({"max_cost_usd": 0.27, "disk_gb": 1000}, 1100),
        ({"max_cost_usd": 100.0}, 3600),
        # One's own figure is of it all.
        ({"max_cost_usd": 0.27, "usd_per_h": 0.27}, 3300),
        ({"max_cost_usd": 0.27, "spot": True, "rerun_preempted": 2, "usd_per_h": 0.18}, 1500),
    ],
)
def test_max_cost_lowers_the_limit(options: dict[str, Any], limit_s: int) -> None:
    plan = planned(**options)
    assert plan.request.limit_s == limit_s
    most = plan.max_usd(plan.zones[0])
    assert most is not None
    assert most * (plan.options.rerun_preempted + 1) <= options["max_cost_usd"] + 1e-9


def test_max_cost_keeps_to_zones_with_a_price() -> None:
    assert planned(max_cost_usd=1.0).zones == ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")
    assert len(planned(max_cost_usd=1.0, usd_per_h=0.5).zones) == 51


def test_max_cost_counts_the_dearest_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region with a price of the VM, and none of its disk, has no price."""
    t4, table = gpus.require("t4"), prices.load()
    there = [replace(t4.prices[0], region=region, usd_per_h=1.08) for region in ("us-east1", "us-west1")]
    disk = replace(table.disks[0], region="us-east1", usd_per_gb_month=0.20)
    monkeypatch.setattr(gpus, "load", lambda: {"t4": replace(t4, prices=(*t4.prices, *there))})
    monkeypatch.setattr(prices, "load", lambda: replace(table, disks=(*table.disks, disk)))
    plan = planned(max_cost_usd=0.54)
    # 1.08 + 100 x 0.20 / 672 + 0.005 = 1.114762 USD per hour: 1743.87 s, of which 300 around the limit.
    assert plan.request.limit_s == 1443
    usd_per_h = [plan.usd_per_h(zone) for zone in ("us-central1-a", "us-east1-b", "us-west1-a")]
    assert usd_per_h == [pytest.approx(0.559881, abs=1e-6), pytest.approx(1.114762, abs=1e-6), None]
    assert plan.highest_usd == pytest.approx(1.114762 * 1743 / 3600, abs=1e-6)


@drawn(
    usd_per_h=st.floats(0.01, 500),
    max_cost_usd=st.floats(0.01, 1000),
    reruns=st.integers(0, 20),
    hours=st.integers(1, 48),
)
def test_no_plan_costs_more_than_allowed(usd_per_h: float, max_cost_usd: float, reruns: int, hours: int) -> None:
    options: dict[str, Any] = {"usd_per_h": usd_per_h, "spot": True, "rerun_preempted": reruns}
    try:
        plan = planned(max_cost_usd=max_cost_usd, max_run_time_s=hours * 3600, **options)
    except UsageError as error:
        # Its hint is a sum that works.
        enough = float(error.hint.removeprefix("--max-cost "))
        plan = planned(max_cost_usd=enough, max_run_time_s=hours * 3600, **options)
        max_cost_usd = enough
    most = plan.max_usd(plan.zones[0])
    assert most is not None
    assert most * (reruns + 1) <= max_cost_usd * (1 + 1e-9)
    assert 600 <= plan.request.limit_s <= hours * 3600


def test_ones_own_price_counts_everywhere() -> None:
    plan = planned("a100", usd_per_h=1.5, zones=("us-west4-b",))
    price = Price(usd_per_h=1.5, source="--usd-per-h", read="2026-11-21", disk_usd_per_h=0.0, address_usd_per_h=0.0)
    assert plan.price("us-west4-b") == plan.price("asia-southeast1-a") == price
    assert (
        plan.text().splitlines()[11]
        == "price      1.500 USD per hour in us-west4, all in all; read 2026-11-21: --usd-per-h"
    )
    assert plan.request.prices["us-west4"] == asdict(price)


@pytest.mark.parametrize(
    ("run", "seconds"),
    [
        # Set-up 215 + 120 s, then 60 s per run and 0.3 s per step.
        ({}, 335 + 60 + 110 * 0.3),
        ({"repeats": "3"}, 335 + 3 * (60 + 110 * 0.3)),
        ({"iterations": "1000", "warmup": "0", "grad_accumulation": "2"}, 335 + 60 + 2000 * 0.3),
        ({"profile": "torch", "repeats": "3"}, 335 + 3 * (60 + 110 * 0.3) + 180),
        ({"dataset": "imagenette"}, 335 + 60 + 110 * 0.3 + 60),
        ({"iterations": "100000"}, 3600),
    ],
)
def test_expected_time(run: dict[str, object], seconds: float) -> None:
    assert planned(run=run).expected_s == pytest.approx(seconds)


def test_at_most_is_that_of_the_dearest_zone() -> None:
    listed = {
        region: {"usd_per_h": usd, "source": "a test", "read": "2026-11"}
        for region, usd in (("us-central1", 0.5), ("us-east1", 0.9))
    }
    plan = planned(zones=("us-central1-a", "us-east1-b"), fallback=False)
    dear = replace(plan, request=replace(plan.request, prices=listed))
    [most] = [line for line in dear.text().splitlines() if line.startswith("at most")]
    assert ", 0.98 USD, in any zone that may be tried; " in most
    one = replace(plan, request=replace(plan.request, prices={"us-central1": listed["us-central1"]}))
    [most] = [line for line in one.text().splitlines() if line.startswith("at most")]
    assert ", 0.55 USD, in us-central1; unknown in the other 1 region that may be tried (--max-cost " in most
