"""A VM's price out of Google's list: totals by hand, and nothing that only looks alike."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from launcher.backends.gcp import gpus
from launcher.backends.gcp.price_list import Sku
from launcher.protocol.records import Price
from tests.launcher.backends.gcp.canned_prices import ADDRESS, CORE, DISK, GPU, GPU_SPOT, RAM, SKUS, price_list_of, sku

T4 = gpus.require("t4")
MACHINE = T4.machine_types["n1-standard-4"]
HERE, THERE = "us-central1", "europe-west4"


def price(documents: Any, *, region: str = HERE, spot: bool = False, count: int = 1, **beside: Any) -> Price | None:
    beside = {"disk_gb": 100, "external_ip": True, **beside}
    return price_list_of(documents).price(T4, MACHINE, count, region, spot=spot, **beside)


@pytest.mark.parametrize(
    ("asked", "vm", "disk", "address"),
    [
        # 0.35 + 4 x 0.031611 + 15 x 0.004237; 100 x 0.10 / 672; the free hours are not counted on.
        ({}, 0.539999, 0.0148810, 0.005),
        ({"count": 2}, 0.889999, 0.0148810, 0.005),
        ({"disk_gb": 200, "external_ip": False}, 0.539999, 0.0297619, 0.0),
        # 0.21 + 4 x 0.0105 + 15 x 0.0014.
        ({"spot": True}, 0.273, 0.0148810, 0.0025),
        # 0.48 + 4 x 0.0348 + 15 x 0.00466; 100 x 0.11 / 672.
        ({"region": THERE}, 0.6891, 0.0163690, 0.005),
    ],
    ids=["on demand", "two GPUs", "no address", "spot", "another region"],
)
def test_a_price_by_hand(asked: dict[str, Any], vm: float, disk: float, address: float) -> None:
    found = price(SKUS, **asked)
    assert found is not None
    assert (found.usd_per_h, found.disk_usd_per_h, found.address_usd_per_h) == (
        pytest.approx(vm, abs=1e-9),
        pytest.approx(disk, abs=1e-7),
        address,
    )
    assert (found.source, found.read) == ("Google's price list", "2026-11-21")


@pytest.mark.parametrize("part", [GPU, CORE, RAM, DISK, ADDRESS], ids=lambda part: part["description"])
def test_a_part_that_is_missing_makes_the_price_unknown(part: dict[str, Any]) -> None:
    assert price([each for each in SKUS if each is not part]) is None


@pytest.mark.parametrize("part", [GPU, CORE, RAM, DISK, ADDRESS], ids=lambda part: part["description"])
def test_a_part_that_is_there_with_two_prices_makes_it_unknown(part: dict[str, Any]) -> None:
    again = copy.deepcopy(part)
    again["skuId"] = "FFFF"
    assert price([*SKUS, again]) == price(SKUS), "the same price twice is one"
    again["pricingInfo"][-1]["pricingExpression"]["tieredRates"][-1]["unitPrice"]["nanos"] += 1000
    assert price([*SKUS, again]) is None


def test_a_region_that_the_list_lacks_is_unknown() -> None:
    assert price(SKUS, region="asia-east1") is None
    assert price(SKUS, region=THERE, spot=True) is None


def test_a_spot_price_above_the_usual_one_is_bad_data() -> None:
    dear = copy.deepcopy(GPU_SPOT)
    dear["pricingInfo"][-1]["pricingExpression"]["tieredRates"][0]["unitPrice"]["nanos"] = 476999000
    documents = [*(each for each in SKUS if each is not GPU_SPOT), dear]
    assert price(documents, spot=True) is not None, "0.476999 + 0.063 is the usual price to the digit"
    dear["pricingInfo"][-1]["pricingExpression"]["tieredRates"][0]["unitPrice"]["nanos"] += 1000
    assert price(documents, spot=True) is None


def test_what_is_not_made_of_skus_here_has_no_price() -> None:
    """Machines with local disks of their own, and the 80 GB A100, whose name has that of the other in it."""
    there = sku("0020", "Nvidia Tesla A100 80GB GPU running in Americas", 3.9, group="GPU")
    found = price_list_of([*SKUS, there])
    for name in ("a100-80gb", "h100", "h200"):
        gpu = gpus.require(name)
        machine = gpu.machine_types[gpu.default_machine_type]
        assert found.listed(gpu, machine, machine.gpus[0], HERE) is None
    assert "0020" not in {each.sku_id for each in found.skus}


def test_a_row_has_both_prices_or_the_one_that_is_known() -> None:
    here, there = (price_list_of(SKUS).listed(T4, MACHINE, 1, region) for region in (HERE, THERE))
    assert here is not None
    assert there is not None
    assert (here.usd_per_h, here.usd_per_h_spot) == (pytest.approx(0.539999), pytest.approx(0.273))
    assert (there.usd_per_h, there.usd_per_h_spot) == (pytest.approx(0.6891), None)


def in_yen(document: dict[str, Any]) -> None:
    for tier in document["pricingInfo"][-1]["pricingExpression"]["tieredRates"]:
        tier["unitPrice"]["currencyCode"] = "JPY"


def by_the_month(document: dict[str, Any]) -> None:
    document["pricingInfo"][-1]["pricingExpression"]["usageUnit"] = "mo"


def free(document: dict[str, Any]) -> None:
    for tier in document["pricingInfo"][-1]["pricingExpression"]["tieredRates"]:
        tier["unitPrice"] |= {"units": "0", "nanos": 0}


def no_price(document: dict[str, Any]) -> None:
    document["pricingInfo"] = []


def no_category(document: dict[str, Any]) -> None:
    del document["category"]


def words(document: dict[str, Any]) -> None:
    document["pricingInfo"][-1]["pricingExpression"]["tieredRates"][0]["unitPrice"]["nanos"] = "many"


def numbers(document: dict[str, Any]) -> None:
    document["serviceRegions"] = [1]


@pytest.mark.parametrize("spoil", [in_yen, by_the_month, free, no_price, no_category, words, numbers])
def test_a_sku_of_another_form_is_passed_over(spoil: Callable[[dict[str, Any]], None]) -> None:
    spoilt = copy.deepcopy(GPU)
    spoil(spoilt)
    assert price([*(each for each in SKUS if each is not GPU), spoilt]) is None


@pytest.mark.parametrize("document", [None, [], "x", 1, {}, {"category": []}, {"pricingInfo": {}}])
def test_what_is_no_sku_is_passed_over(document: Any) -> None:
    assert price([document, *SKUS]) == price(SKUS)


def test_of_a_timeline_the_last_price_counts() -> None:
    changed = copy.deepcopy(GPU)
    newer = copy.deepcopy(changed["pricingInfo"][0])
    newer["pricingExpression"]["tieredRates"][0]["unitPrice"] |= {"units": "1", "nanos": 0}
    changed["pricingInfo"].append(newer)
    found = price([*(each for each in SKUS if each is not GPU), changed])
    assert found is not None
    assert found.usd_per_h == pytest.approx(1.189999)


def test_only_what_is_a_part_of_a_price_is_kept() -> None:
    kept = price_list_of(SKUS).skus
    assert all(isinstance(each, Sku) for each in kept)
    assert {each.sku_id for each in kept}.isdisjoint(f"00{number}" for number in range(10, 19))
    assert len(kept) == 14
