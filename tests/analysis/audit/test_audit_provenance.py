"""Rules on labels and versions, each on both sides."""

from pathlib import Path
from typing import Any

import pytest

from analysis.audit.provenance import gpus_named
from tests.analysis.audit.rules import Cases, printed
from tests.analysis.by_hand import run
from tests.analysis.sentence_runs import Golden


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


T4 = {"device_name": "Tesla T4", "compute_capability": "7.5"}
UNNAMED = {"device_name": None, "compute_capability": None}
CASES: Cases = {
    "labels disagree": {
        "all agree": imported(imported_file="l4_resnet18_b32.csv"),
        "another device": imported(imported_file="resnet18-v100.csv"),
        "another compute capability": imported(imported_file="t4.csv", device_name=None),
        "the right compute capability": imported(imported_file="l4.csv", device_name=None),
        "a device that contradicts itself": imported(device_name="Tesla T4"),
        "another model and batch size": imported(imported_file="vgg11_b64.csv"),
        "a family alone": imported(imported_file="resnet.csv"),
        "a model of the family": imported(imported_file="resnet18.csv", model="resnet"),
        "another size": imported(imported_file="resnet50.csv"),
        "a series of GPUs": imported(
            imported_file="mi300__bert.json", device_name="AMD Instinct MI300X", compute_capability=None
        ),
        "another series": imported(
            imported_file="mi250.json", device_name="AMD Instinct MI300X", compute_capability=None
        ),
        "L4 is no series of L40": imported(imported_file="l4.json", device_name="NVIDIA L40", compute_capability="8.9"),
        "place": imported(place="gcp-v100"),
        "the right --gpu": imported(record={"imported": {"given": {"gpu": "NVIDIA L4"}}}),
        "another --gpu": imported(record={"imported": {"given": {"gpu": "T4"}}}),
        "another label in the file": imported(record={"imported": {"labels": {"device_name": "T4"}}}),
        "one place for two devices": [run("a"), run("b", **T4)],
        "two places": [run("a"), run("b", place="colab", **T4)],
        "files that tell devices that nobody named": [
            imported(file[0], imported_file=f"{file}_resnet18.csv", place=place, **UNNAMED)
            for file, place in (("t4", "envA"), ("rtx4080laptop", "envA"), ("v100", "imported"), ("l4", "imported"))
        ],
    },
    "imported without facts": {
        "ours": run(driver_version=None),
        "imported with all": imported(),
        "without two": imported(driver_version=None, precision=None),
    },
    "uncommitted changes": {
        "clean": run(commit_dirty=False),
        "unknown": run(commit_dirty=None),
        "dirty": run(commit_dirty=True),
    },
}


def test_findings_on_both_sides_of_each_threshold(tmp_path: Path, golden: Golden) -> None:
    golden("provenance.txt", printed(CASES, tmp_path))
