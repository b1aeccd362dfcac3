"""The table of EC2's GPUs: its rows, what is refused by name, and tables that contradict themselves."""

import tomllib
from typing import Any

import pytest

from launcher.backends.aws import gpus
from launcher.images import contents
from launcher.protocol.records import region_of


@pytest.fixture
def document() -> dict[str, Any]:
    return tomllib.loads(gpus.TABLE.read_text(encoding="utf-8"))


def test_flavour_and_driver_are_those_of_the_image() -> None:
    for gpu in gpus.load().values():
        flavour = contents.require_flavour(gpu.flavour)
        assert gpu.minimum_driver == flavour.driver
        assert ".".join(map(str, gpu.capability)) in flavour.capabilities


@pytest.mark.parametrize(
    ("region", "code"),
    [
        ("us-east-1", "use1"),
        ("ap-northeast-2", "apne2"),
        ("ap-southeast-5", "apse5"),
        ("il-central-1", "ilc1"),
        ("eu-south-2", "eus2"),
        ("ca-west-1", "caw1"),
    ],
)
def test_the_first_part_of_a_zone_id(region: str, code: str) -> None:
    assert gpus.region_code(region) == code
    assert gpus.region_names()[code] == region


def test_zones_of_the_pairs_with_gcp_in_us_east_1() -> None:
    zones = ("use1-az1", "use1-az2", "use1-az4", "use1-az5", "use1-az6")
    assert gpus.require("t4").zones_in("us-east-1") == gpus.require("l4").zones_in("us-east-1") == zones
    assert gpus.require("l4").zones_in("us-west-1") == ()
    for region in ("us-gov-west-1", "us-iso-east-1", "eu-isoe-west-1", "cn-north-1", "us-moon-1"):
        assert gpus.require("t4").zones_in(region) == (), "not those of a region with a similar name"
    assert all(region_of(zone) in gpus.region_names() for gpu in gpus.load().values() for zone in gpu.zones)


def test_table_agrees_with_itself_and_with_its_prices() -> None:
    for gpu in gpus.load().values():
        assert gpu.default_machine_type in gpu.machine_types
        assert len(set(gpu.zones)) == len(gpu.zones)
        for price in gpu.prices:
            assert price.gpus in gpu.machine_types[price.machine_type].gpus
            assert price.region in gpu.regions
