"""A report on real bundles of the same GPU in two clouds."""

from pathlib import Path

import pytest

from analysis import api
from analysis.report import answer
from analysis.report.evidence import gather
from benchmarks.synthetic_bundles import make
from workload.contract import prices

CLOUDS = {
    "gcp": ("n1-standard-4", "us-central1-a", "us-central1", "580.95.05", "ubuntu-2204-580"),
    "aws": ("g4dn.xlarge", "use1-az4", "us-east-1", "595.71.05", "ami-0123456789abcdef0"),
}


def _bundles(folder: Path, *, blocks: int, **changes: object) -> None:
    for block in range(blocks):
        for cloud, (machine, zone, region, driver, vm_image) in CLOUDS.items():
            facts = {"provider": cloud, "zone": zone, "region": region, "machine_type": machine, "vm_image": vm_image}
            make(
                folder,
                2 * block + (cloud == "aws"),
                environment__place=f"{cloud}-t4",
                environment__backend=cloud,
                environment__device__driver_version=driver,
                environment__host__hostname=f"{cloud}-{block}",
                environment__cloud={**facts, "spot": False},
                job={"name": "twins", "block": block, "position": 0},
                cost=None,
                **changes,
            )


def test_a_t4_in_two_clouds_with_list_prices_and_vm_images(tmp_path: Path) -> None:
    _bundles(tmp_path, blocks=3)
    first = answer.sentences(gather(api.load(tmp_path)))[0]
    assert first.startswith("Is a T4 a T4? resnet18 (batch 32, fp32): ")
    assert "; 0.526 USD/h on aws, 0.540 USD/h on gcp; also different: driver 595.71.05 and 580.95.05, " in first
    assert first.endswith("VM image ami-0123456789abcdef0 and ubuntu-2204-580.")


def test_two_t4s_have_the_price_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLOUDS, "gcp", ("n1-standard-8", *CLOUDS["gcp"][1:]))
    _bundles(tmp_path, blocks=3, spec__devices=2)
    [usd] = [row.usd_per_h for row in prices.load().listed if (row.machine_type, row.gpus) == ("n1-standard-8", 2)]
    assert f"{usd:.3f} USD/h on gcp" in answer.sentences(gather(api.load(tmp_path)))[0]


def test_an_error_of_many_parts_has_one_part_in_the_answer(tmp_path: Path) -> None:
    variables = {"CUDA_LAUNCH_BLOCKING": "1", "ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"}
    _bundles(tmp_path, blocks=1, environment__software__variables=variables)
    first = answer.sentences(gather(api.load(tmp_path)))[0]
    assert first.count("=1: ") == 1
    assert ", and 2 more (2" in first
