"""The GPU table: sourced, in agreement with the other tables, and refused where it contradicts itself."""

import tomllib
from typing import Any

import pytest

from launcher.backends.gcp import gpus
from launcher.backends.gcp.gpus import Driver
from launcher.images import contents
from workload.contract import prices

Table = dict[str, Any]


@pytest.fixture
def table() -> Table:
    return tomllib.loads(gpus.TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", gpus.load())
def test_image_flavour_and_driver_are_those_of_the_images(name: str) -> None:
    gpu = gpus.require(name)
    flavour = contents.flavour_for(gpu.capability)
    assert flavour is not None
    assert (gpu.flavour, gpu.minimum_driver, gpu.driver_below) == (flavour.name, flavour.driver, flavour.driver_below)


def test_a_price_is_of_exactly_that_or_unknown() -> None:
    t4, a100, h100 = map(gpus.require, ("t4", "a100", "h100"))
    assert t4.price("n1-standard-4", gpus=2, region="us-central1", spot=False) is None
    assert t4.price("n1-standard-4", gpus=1, region="us-east1", spot=False) is None
    assert t4.price("n1-standard-16", gpus=1, region="us-central1", spot=False) is None
    assert a100.price("a2-highgpu-1g", gpus=1, region="us-central1", spot=True) is None
    assert h100.price("a3-highgpu-1g", gpus=1, region="us-central1", spot=False) is None


@pytest.mark.parametrize(
    ("name", "most_vcpus"), [("t4", {1: 48, 2: 48, 4: 96}), ("v100", {1: 12, 2: 24, 4: 48, 8: 96})]
)
def test_vcpus_of_attached_gpus_keep_within_googles_limits(name: str, most_vcpus: dict[int, int]) -> None:
    machines = gpus.require(name).machine_types.values()
    assert {count for machine in machines for count in machine.gpus} == set(most_vcpus)
    assert all(machine.vcpus <= most_vcpus[count] for machine in machines for count in machine.gpus)
    assert all(machine.name == f"n1-standard-{machine.vcpus}" for machine in machines)


MACHINES = {
    "t4": ("n1-standard-4", Driver.PREINSTALLED, 51),
    "l4": ("g2-standard-4", Driver.PREINSTALLED, 44),
    "v100": ("n1-standard-8", Driver.INSTALL, 12),
    "a100": ("a2-highgpu-1g", Driver.PREINSTALLED, 19),
    "a100-80gb": ("a2-ultragpu-1g", Driver.PREINSTALLED, 7),
    "h100": ("a3-highgpu-1g", Driver.PREINSTALLED, 25),
    "h200": ("a3-ultragpu-8g", Driver.PREINSTALLED, 9),
}


def test_gpus_with_machine_driver_and_zones() -> None:
    found = {name: (gpu.default_machine_type, gpu.vm_image.driver, len(gpu.zones)) for name, gpu in gpus.load().items()}
    assert found == MACHINES
    assert {gpu.regions[0] for gpu in gpus.load().values()} == {"us-central1"}
    # A machine type brings one count of GPUs; to one without, some can be attached.
    for gpu in gpus.load().values():
        assert all((len(machine.gpus) == 1) or gpu.accelerator for machine in gpu.machine_types.values())


def test_quota_metrics() -> None:
    t4, a100, week_s = gpus.require("t4"), gpus.require("a100-80gb"), 7 * 86400
    assert t4.quota_metrics(spot=False, limit_s=week_s) == ("PREEMPTIBLE_NVIDIA_T4_GPUS", "NVIDIA_T4_GPUS")
    assert t4.quota_metrics(spot=False, limit_s=week_s + 1) == ("NVIDIA_T4_GPUS",)
    assert a100.quota_metrics(spot=True, limit_s=week_s + 1) == (
        "PREEMPTIBLE_NVIDIA_A100_80GB_GPUS",
        "NVIDIA_A100_80GB_GPUS",
    )


def test_table_agrees_with_itself_and_with_its_prices() -> None:
    for gpu in gpus.load().values():
        assert gpu.default_machine_type in gpu.machine_types
        assert len(set(gpu.zones)) == len(gpu.zones)
        for price in gpu.prices:
            assert price.gpus in gpu.machine_types[price.machine_type].gpus
            assert price.region in gpu.regions


def test_every_price_belongs_to_a_gpu() -> None:
    devices = {gpu.device for gpu in gpus.load().values()}
    assert {row.gpu for row in prices.load().listed if row.provider == prices.GCP} <= devices
