"""Rules on labels, versions and prices, each on both sides."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from analysis.audit import audit
from analysis.audit.provenance import gpus_named
from tests.analysis.by_hand import results, run

VGG = "the file 'vgg11_b64.csv'"


def figures(*runs: dict[str, Any], rule: str, folder: Path | None = None) -> list[str]:
    return [finding.figure for finding in audit(results(*runs, folder=folder)) if finding.rule == rule]


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


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({"imported_file": "l4_resnet18_b32.csv"}, [], id="all agree"),
        pytest.param(
            {"imported_file": "resnet18-v100.csv"},
            ["the file 'resnet18-v100.csv' names v100, the device is 'NVIDIA L4'"],
            id="another device",
        ),
        pytest.param(
            {"imported_file": "t4.csv", "device_name": None},
            ["the file 't4.csv' names t4, compute capability 7.5; the device has 8.9"],
            id="another compute capability",
        ),
        pytest.param({"imported_file": "l4.csv", "device_name": None}, [], id="the right compute capability"),
        pytest.param(
            {"device_name": "Tesla T4"},
            ["the device 'Tesla T4' names t4, compute capability 7.5; the device has 8.9"],
            id="a device that contradicts itself",
        ),
        pytest.param(
            {"imported_file": "vgg11_b64.csv"},
            [f"{VGG} names vgg11, the run is of 'resnet18'; {VGG} names batch size 64, the run has 32"],
            id="another model and batch size",
        ),
        pytest.param({"imported_file": "resnet.csv"}, [], id="a family alone"),
        pytest.param({"imported_file": "resnet18.csv", "model": "resnet"}, [], id="a model of the family"),
        pytest.param(
            {"imported_file": "resnet50.csv"},
            ["the file 'resnet50.csv' names resnet50, the run is of 'resnet18'"],
            id="another size",
        ),
        pytest.param({"place": "gcp-v100"}, ["the place 'gcp-v100' names v100, the device is 'NVIDIA L4'"], id="place"),
    ],
)
def test_labels_disagree(facts: dict[str, Any], expected: list[str]) -> None:
    assert figures(imported(**facts), rule="labels disagree") == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"given": {"gpu": "NVIDIA L4"}}, []),
        ({"given": {"gpu": "T4"}}, ["--gpu 'T4' names t4, the device is 'NVIDIA L4'"]),
        ({"labels": {"device_name": "T4"}}, ["the file's label 'T4' names t4, the device is 'NVIDIA L4'"]),
    ],
)
def test_what_was_said_of_the_device(tmp_path: Path, said: dict[str, Any], expected: list[str]) -> None:
    assert figures(imported(record={"imported": said}), rule="labels disagree", folder=tmp_path) == expected


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


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(run(driver_version=None), [], id="ours"),
        pytest.param(imported(), [], id="imported with all"),
        pytest.param(
            imported(driver_version=None, precision=None),
            ["the file does not say: precision, driver"],
            id="without two",
        ),
    ],
)
def test_imported_without_facts(case: dict[str, Any], expected: list[str]) -> None:
    assert figures(case, rule="imported without facts") == expected


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [(False, []), (None, []), (True, ["commit 0123456789ab and changes on top of it"])],
)
def test_uncommitted_changes(*, dirty: bool | None, expected: list[str]) -> None:
    assert figures(run(commit_dirty=dirty), rule="uncommitted changes") == expected


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        pytest.param({"price_date": "2026-08-23"}, [], id="90 days"),
        pytest.param({"price_date": "2026-08-22"}, ["0.71 USD/h as of 2026-08-22, 91 days before the run"], id="91"),
        pytest.param({"price_date": "2026-11-20T10:00:00+00:00"}, [], id="a time stamp"),
        pytest.param({}, ["0.71 USD/h without the date of the price"], id="undated"),
        pytest.param({"price_date": "last week"}, ["0.71 USD/h without the date of the price"], id="no date"),
    ],
)
def test_price_out_of_date(tmp_path: Path, cost: dict[str, Any], expected: list[str]) -> None:
    started_at = datetime(2026, 11, 21, tzinfo=UTC)
    case = run(usd_per_h=0.71, started_at=started_at, record={"cost": cost})

    assert figures(case, rule="price out of date", folder=tmp_path) == expected


ON_GCP = {"machine_type": "g2-standard-4", "region": "us-central1", "spot": False}


@pytest.mark.parametrize(
    ("facts", "started_at", "expected"),
    [
        pytest.param({}, datetime(2026, 11, 21, tzinfo=UTC), [], id="a machine of one's own"),
        pytest.param(ON_GCP, datetime(2026, 9, 29, tzinfo=UTC), [], id="a list of 90 days before"),
        pytest.param(
            ON_GCP,
            datetime(2026, 9, 30, tzinfo=UTC),
            ["0.707 USD/h as of 2026-07-01, 91 days before the run"],
            id="a list of 91 days before",
        ),
    ],
)
def test_a_listed_price(facts: dict[str, Any], started_at: datetime, expected: list[str]) -> None:
    assert figures(run(started_at=started_at, **facts), rule="price out of date") == expected
