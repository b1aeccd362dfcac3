"""Zones of a plan, and their order."""

import pytest

from launcher.backends.gcp import gpus
from tests.launcher.backends.gcp.gcp_plans import planned, refused, settings_of

pytestmark = pytest.mark.usefixtures("made_up_programs")


def test_a_zone_without_the_gpu_names_those_with_it() -> None:
    those = "us-central1-a,b,c,f us-east1-b,c us-west1-a,b europe-west4-a,b,c asia-east1-c"
    assert refused(gpu="v100", zones=("us-east1-d",)) == (
        f"no V100 16 GB in zone 'us-east1-d'; the zones with one: {those}",
        "--zone us-east1-c",
    )
    assert refused(gpu="v100", zones=("here",))[1] == "--zone us-central1-a"


@pytest.mark.parametrize(
    ("zones", "fallback", "first", "count"),
    [
        ((), True, ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east1-b"], 51),
        (("us-west1-b",), True, ["us-west1-b", "us-west1-a", "us-central1-a", "us-central1-b"], 51),
        (
            ("us-west1-b", "us-east1-c"),
            True,
            ["us-west1-b", "us-east1-c", "us-east1-b", "us-east1-d", "us-west1-a"],
            51,
        ),
        (("us-west1-b", "us-west1-b"), False, ["us-west1-b"], 1),
    ],
)
def test_order_of_the_zones(zones: tuple[str, ...], fallback: bool, first: list[str], count: int) -> None:
    plan = planned(zones=zones, fallback=fallback)
    assert list(plan.zones)[: len(first)] == first
    assert len(set(plan.zones)) == len(plan.zones) == count
    assert plan.request.zones == list(plan.zones)


def test_known_prices_come_first() -> None:
    """The table's order is by region, and no region is split by it."""
    zones = planned("h100", spot=True).zones
    assert zones[:3] == ("us-central1-a", "us-central1-b", "us-central1-c")
    assert zones == gpus.require("h100").zones


def test_fallback_needs_a_named_zone_to_be_switched_off() -> None:
    assert refused(fallback=False) == (
        "--no-fallback allows only the zones that are named with --zone, but none is named",
        "--zone us-central1-a --no-fallback",
    )


def test_a_subnetwork_with_its_region_keeps_the_launch_there() -> None:
    there = settings_of(subnetwork="regions/us-west1/subnetworks/gpu")
    plan = planned(settings=there)
    assert plan.zones == ("us-west1-a", "us-west1-b")
    interface = plan.body("us-west1-a", request_id="")["networkInterfaces"][0]
    assert interface["subnetwork"] == "regions/us-west1/subnetworks/gpu"
    assert "network" not in interface
    assert refused(settings=there, zones=("us-central1-a",)) == (
        "zone 'us-central1-a' is not in the region of subnetwork 'regions/us-west1/subnetworks/gpu'",
        "--zone us-west1-a",
    )
    nowhere = settings_of(subnetwork="regions/us-west4/subnetworks/gpu")
    assert refused(gpu="v100", settings=nowhere)[0].startswith(
        "no V100 16 GB in the region of subnetwork 'regions/us-west4/subnetworks/gpu'; the zones with one: us-central1"
    )
