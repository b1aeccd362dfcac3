"""Rules on labels and versions, each on both sides."""

from pathlib import Path
from typing import Any

import pytest

from analysis.audit.provenance import gpus_named
from tests.analysis.audit.rules import Cases, figures, rows
from tests.analysis.by_hand import run

VGG = "the file 'vgg11_b64.csv'"


def imported(run_id: str = "a", **facts: Any) -> dict[str, Any]:
    return run(run_id, imported=True, **facts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tesla V100-SXM2-16GB", {"v100"}),
        ("NVIDIA L4", {"l4"}),
        ("l4_resnet18_long_nvtx.csv", {"l4"}),
        ("NVIDIA H100 80GB HBM3", {"h100"}),
        ("H100_SXM5", {"h100"}),
        ("NVIDIA A100-SXM4-80GB", {"a100"}),
        ("rtx4080laptop_resnet50_b64.csv", {"rtx4080 laptop"}),
        ("NVIDIA GeForce RTX 4080 Laptop GPU", {"rtx4080 laptop"}),
        ("NVIDIA GeForce RTX 4070 Ti", {"rtx4070ti"}),
        ("resnet18-v100 and T4", {"v100", "t4"}),
        ("vit_l_16 at b100, model4", set()),
        ("Intel(R) Xeon(R) Processor", set()),
    ],
)
def test_gpus_named(text: str, expected: set[str]) -> None:
    assert gpus_named(text) == expected


def test_one_place_for_two_devices() -> None:
    t4 = {"device_name": "Tesla T4", "compute_capability": "7.5"}

    assert figures(run("a"), run("b", **t4), rule="labels disagree") == [
        "the place 'local-cuda' stands for 2 devices: l4 (1), t4 (1)"
    ]
    assert figures(run("a"), run("b", place="colab", **t4), rule="labels disagree") == []


def test_files_tell_devices_that_nobody_named() -> None:
    unnamed = {"device_name": None, "compute_capability": None}
    logs = [
        imported("a", imported_file="t4_resnet18.csv", place="envA", **unnamed),
        imported("b", imported_file="rtx4080laptop_resnet18.csv", place="envA", **unnamed),
        imported("c", imported_file="v100_resnet18.csv", place="imported", **unnamed),
        imported("d", imported_file="l4_resnet18.csv", place="imported", **unnamed),
    ]

    assert figures(*logs, rule="labels disagree") == [
        "the place 'envA' stands for 2 devices: rtx4080 laptop (1), t4 (1)"
    ]


CASES: Cases = {
    "labels disagree": {
        "all agree": (imported(imported_file="l4_resnet18_b32.csv"), []),
        "another device": (
            imported(imported_file="resnet18-v100.csv"),
            ["the file 'resnet18-v100.csv' names v100, the device is 'NVIDIA L4'"],
        ),
        "another compute capability": (
            imported(imported_file="t4.csv", device_name=None),
            ["the file 't4.csv' names t4, compute capability 7.5; the device has 8.9"],
        ),
        "the right compute capability": (imported(imported_file="l4.csv", device_name=None), []),
        "a device that contradicts itself": (
            imported(device_name="Tesla T4"),
            ["the device 'Tesla T4' names t4, compute capability 7.5; the device has 8.9"],
        ),
        "another model and batch size": (
            imported(imported_file="vgg11_b64.csv"),
            [f"{VGG} names vgg11, the run is of 'resnet18'; {VGG} names batch size 64, the run has 32"],
        ),
        "a family alone": (imported(imported_file="resnet.csv"), []),
        "a model of the family": (imported(imported_file="resnet18.csv", model="resnet"), []),
        "another size": (
            imported(imported_file="resnet50.csv"),
            ["the file 'resnet50.csv' names resnet50, the run is of 'resnet18'"],
        ),
        "a series of GPUs": (
            imported(imported_file="mi300__bert.json", device_name="AMD Instinct MI300X", compute_capability=None),
            [],
        ),
        "another series": (
            imported(imported_file="mi250.json", device_name="AMD Instinct MI300X", compute_capability=None),
            ["the file 'mi250.json' names mi250, the device is 'AMD Instinct MI300X'"],
        ),
        "L4 is no series of L40": (
            imported(imported_file="l4.json", device_name="NVIDIA L40", compute_capability="8.9"),
            ["the file 'l4.json' names l4, the device is 'NVIDIA L40'"],
        ),
        "place": (imported(place="gcp-v100"), ["the place 'gcp-v100' names v100, the device is 'NVIDIA L4'"]),
        "the right --gpu": (imported(record={"imported": {"given": {"gpu": "NVIDIA L4"}}}), []),
        "another --gpu": (
            imported(record={"imported": {"given": {"gpu": "T4"}}}),
            ["--gpu 'T4' names t4, the device is 'NVIDIA L4'"],
        ),
        "another label in the file": (
            imported(record={"imported": {"labels": {"device_name": "T4"}}}),
            ["the file's label 'T4' names t4, the device is 'NVIDIA L4'"],
        ),
    },
    "imported without facts": {
        "ours": (run(driver_version=None), []),
        "imported with all": (imported(), []),
        "without two": (imported(driver_version=None, precision=None), ["the file does not say: precision, driver"]),
    },
    "uncommitted changes": {
        "clean": (run(commit_dirty=False), []),
        "unknown": (run(commit_dirty=None), []),
        "dirty": (run(commit_dirty=True), ["commit 0123456789ab and changes on top of it"]),
    },
}


@pytest.mark.parametrize(("rule", "runs", "expected"), rows(CASES))
def test_rules(tmp_path: Path, rule: str, runs: list[dict[str, Any]], expected: list[str]) -> None:
    assert figures(*runs, rule=rule, folder=tmp_path) == expected
