"""The GPU table: sourced, in agreement with the other tables, and refused where it contradicts itself."""

import copy
import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from launcher import sizes
from launcher.backends import machine_types
from launcher.backends.gcp import gpus
from launcher.backends.gcp.gpus import Driver
from launcher.images import contents
from workload.contract import prices
from workload.contract.errors import ExitCode, ToolError, UsageError

NAMES = ("t4", "l4", "v100", "a100", "a100-80gb", "h100", "h200")
Table = dict[str, Any]


@pytest.fixture
def table() -> Table:
    return tomllib.loads(gpus.TABLE.read_text(encoding="utf-8"))


def test_the_gpus_are_these() -> None:
    assert tuple(gpus.load()) == NAMES


@pytest.mark.parametrize("name", NAMES)
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


def test_every_figure_has_a_source_with_a_date(table: Table) -> None:
    sources = table["source"]
    used = {row[key] for row in table["gpu"].values() for key in ("zones_source", "machine_source")}
    assert used == set(sources)
    assert all(source["title"] and len(source["read"]) == len("2026-11") for source in sources.values())


@pytest.mark.parametrize(
    ("name", "zones", "compact"),
    [
        ("t4", 51, "us-central1-a,b,c,f us-east1-b,c,d us-east4-a,b,c us-west1-a,b us-west2-b,c us-west3-b"),
        ("l4", 44, "us-central1-a,b,c us-east1-b,c,d us-east4-a,c us-west1-a,b,c us-west4-a,c"),
        ("v100", 12, "us-central1-a,b,c,f us-east1-b,c us-west1-a,b europe-west4-a,b,c asia-east1-c"),
        ("a100", 19, "us-central1-a,b,c,f us-east1-b us-west1-b us-west3-b us-west4-b europe-west4-a,b"),
        ("a100-80gb", 7, "us-central1-a,c us-east4-c us-east5-a,b europe-west4-a asia-southeast1-c"),
        ("h100", 25, "us-central1-a,b,c us-east4-a,b,c us-east5-a us-west1-a,b us-west4-a"),
        ("h200", 9, "us-central1-b us-east4-b us-east5-a us-south1-b us-west1-c"),
    ],
)
def test_zones(name: str, zones: int, compact: str) -> None:
    gpu = gpus.require(name)
    assert len(gpu.zones) == zones
    assert machine_types.compact(gpu.zones).startswith(compact)
    assert gpu.regions[0] == "us-central1"


@pytest.mark.parametrize(
    ("name", "accelerator", "default", "driver", "image_project"),
    [
        ("t4", "nvidia-tesla-t4", "n1-standard-4", Driver.PREINSTALLED, "ubuntu-os-accelerator-images"),
        ("l4", None, "g2-standard-4", Driver.PREINSTALLED, "ubuntu-os-accelerator-images"),
        ("v100", "nvidia-tesla-v100", "n1-standard-8", Driver.INSTALL, "ubuntu-os-cloud"),
        ("a100", None, "a2-highgpu-1g", Driver.PREINSTALLED, "ubuntu-os-accelerator-images"),
        ("a100-80gb", None, "a2-ultragpu-1g", Driver.PREINSTALLED, "ubuntu-os-accelerator-images"),
        ("h100", None, "a3-highgpu-1g", Driver.PREINSTALLED, "ubuntu-os-accelerator-images"),
        ("h200", None, "a3-ultragpu-8g", Driver.PREINSTALLED, "ubuntu-os-accelerator-images"),
    ],
)
def test_machines(name: str, accelerator: str | None, default: str, driver: Driver, image_project: str) -> None:
    gpu = gpus.require(name)
    assert (gpu.accelerator, gpu.default_machine_type, gpu.vm_image.driver) == (accelerator, default, driver)
    assert gpu.vm_image.path == f"projects/{image_project}/global/images/family/{gpu.vm_image.name}"
    # A machine type brings one count of GPUs; to one without, some can be attached.
    assert all((len(machine.gpus) == 1) or accelerator for machine in gpu.machine_types.values())


@pytest.mark.parametrize(
    ("name", "most_vcpus"), [("t4", {1: 48, 2: 48, 4: 96}), ("v100", {1: 12, 2: 24, 4: 48, 8: 96})]
)
def test_vcpus_of_attached_gpus_keep_within_googles_limits(name: str, most_vcpus: dict[int, int]) -> None:
    machines = gpus.require(name).machine_types.values()
    assert {count for machine in machines for count in machine.gpus} == set(most_vcpus)
    assert all(machine.vcpus <= most_vcpus[count] for machine in machines for count in machine.gpus)
    assert all(machine.name == f"n1-standard-{machine.vcpus}" for machine in machines)


def test_only_the_small_h100_machines_are_spot_only() -> None:
    found = [
        machine.name for gpu in gpus.load().values() for machine in gpu.machine_types.values() if machine.spot_only
    ]
    assert found == ["a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"]


def test_quota_metrics() -> None:
    t4, a100, week_s = gpus.require("t4"), gpus.require("a100-80gb"), 7 * 86400
    assert t4.quota_metrics(spot=False, limit_s=week_s) == ("PREEMPTIBLE_NVIDIA_T4_GPUS", "NVIDIA_T4_GPUS")
    assert t4.quota_metrics(spot=False, limit_s=week_s + 1) == ("NVIDIA_T4_GPUS",)
    assert a100.quota_metrics(spot=True, limit_s=week_s + 1) == (
        "PREEMPTIBLE_NVIDIA_A100_80GB_GPUS",
        "NVIDIA_A100_80GB_GPUS",
    )


@pytest.mark.parametrize(
    ("name", "shown", "hint"),
    [
        ("v10", "v10", "--gpu v100"),
        ("A100-80", "A100-80", "--gpu a100-80gb"),
        ("$(reboot)\n'", "$(reboot)\\n'", "--gpu t4"),
        ("x" * 4096, "x" * 77 + "...", "--gpu t4"),
    ],
    ids=["v10", "capitals", "shell", "long"],
)
def test_an_unknown_gpu_is_told_the_known_ones(name: str, shown: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpus.require(name)
    assert str(caught.value) == f"gpu must be one of t4, l4, v100, a100, a100-80gb, h100, h200; got '{shown}'"
    assert (caught.value.hint, caught.value.exit_code) == (hint, ExitCode.USAGE)


@pytest.mark.parametrize(("text", "shown"), [("x" * 80, "x" * 80), ("x" * 81, "x" * 77 + "..."), ("a\tb", "a\\tb")])
def test_text_as_a_message_quotes_it(text: str, shown: str) -> None:
    assert sizes.shown(text) == shown


def zone_twice(t4: Table) -> None:
    t4["zones"] += " us-central1-a"


def no_default(t4: Table) -> None:
    t4["default_machine_type"] = "n1-standard-1"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (zone_twice, "a zone is listed twice"),
        (no_default, "no machine type n1-standard-1"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(table: Table, spoil: Callable[[Table], None], problem: str) -> None:
    listed = prices.load().listed
    assert gpus.parse(copy.deepcopy(table), listed) == gpus.load()
    spoil(table["gpu"]["t4"])
    with pytest.raises(ToolError) as caught:
        gpus.parse(table, listed)
    assert str(caught.value) == f"gpus.toml: t4: {problem}"
    assert caught.value.exit_code == ExitCode.TOOL


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"machine_type": "g2-standard-4"}, "a price for g2-standard-4 in us-central1 with 1 GPUs"),
        ({"region": "europe-north1"}, "a price for n1-standard-4 in europe-north1 with 1 GPUs"),
        ({"gpus": 8}, "a price for n1-standard-4 in us-central1 with 8 GPUs"),
    ],
    ids=["machine", "region", "count"],
)
def test_a_price_of_what_is_not_offered_is_refused(table: Table, changes: dict[str, Any], problem: str) -> None:
    row = replace(prices.load().listed[0], **changes)
    with pytest.raises(ToolError) as caught:
        gpus.parse(table, [row])
    assert str(caught.value) == f"gpus.toml: t4: {problem}, which is not offered"


def test_every_price_belongs_to_a_gpu() -> None:
    devices = {gpu.device for gpu in gpus.load().values()}
    assert {row.gpu for row in prices.load().listed if row.provider == prices.GCP} <= devices
