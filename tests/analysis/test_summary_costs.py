import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis
from analysis import summary
from benchmarks.synthetic_bundles import make

FAST = {"timing__measured_s": 1.0, "timing__images": 200}
SLOW = {"timing__measured_s": 1.0, "timing__images": 100}


def table(tmp_path: Path, *runs: Mapping[str, Any]) -> pd.DataFrame:
    for number, changes in enumerate(runs):
        make(tmp_path, number, **changes)
    return summary.costs(analysis.load(tmp_path))


def test_recorded_price(tmp_path: Path) -> None:
    (row,) = table(tmp_path, {**SLOW, "cost": {"usd_per_h": 0.36}}).to_dict("records")
    assert (row["usd_per_h"], row["price"]) == (0.36, "run")
    assert row["epoch_usd"] == pytest.approx(1.0)
    assert (row["epoch_of"], row["epoch_s"]) == ("1 million images", 10_000)
    assert math.isnan(row["epoch_usd_low"])
    assert row["cheapest"] is True
    assert row["spot"] is True


def test_list_price_where_the_run_has_none(tmp_path: Path) -> None:
    rows = table(tmp_path, SLOW, {**SLOW, "environment__cloud__spot": False}).to_dict("records")
    # n1-standard-4 with a T4 in us-central1: 0.255 as spot, 0.540 on demand.
    assert [(row["spot"], row["usd_per_h"], row["price"]) for row in rows] == [
        (True, 0.255, "list of 2026-07"),
        (False, 0.540, "list of 2026-07"),
    ]
    assert rows[0]["epoch_usd"] == pytest.approx(0.255 / 3600 / 100 * 1e6)
    assert table(tmp_path / "two", {**SLOW, "spec__machines": 2})["usd_per_h"].tolist() == [0.510]
    assert [row["cheapest"] for row in rows] == [True, False]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("environment__cloud__machine_type", "n1-standard-16"),
        ("environment__cloud__zone", "europe-west4-a"),
        ("environment__device__name", "NVIDIA L4"),
        ("environment__cloud__spot", None),
        ("environment__cloud", None),
    ],
)
def test_unlisted_is_unpriced_never_a_similar_one(tmp_path: Path, field: str, value: Any) -> None:
    (row,) = table(tmp_path, {**SLOW, field: value}).to_dict("records")
    for name in ("usd_per_h", "epoch_usd", "epoch_usd_low"):
        assert math.isnan(row[name])
    assert row["cheapest"] is False
    assert row["note"] == "no price: the run has none, and no list has one for its machine and region"
    assert row["images_per_s"] == 100.0


def test_interval_is_that_of_the_rate(tmp_path: Path) -> None:
    runs = [
        {"timing__measured_s": 1.0, "timing__images": images, "cost": {"usd_per_h": 0.36}} for images in (98, 100, 102)
    ]
    (row,) = table(tmp_path, *runs).to_dict("records")
    assert row["runs"] == 3
    assert row["epoch_usd"] == pytest.approx(1.0)
    logs = [math.log(images) for images in (98, 100, 102)]
    centre = sum(logs) / 3
    reach = 4.302653 * math.sqrt(sum((each - centre) ** 2 for each in logs) / 2 / 3)
    # The fastest is the cheapest.
    assert row["epoch_usd_low"] == pytest.approx(100 / math.exp(centre + reach), rel=1e-6)
    assert row["epoch_usd_high"] == pytest.approx(100 / math.exp(centre - reach), rel=1e-6)


def test_cheapest_of_each_task(tmp_path: Path) -> None:
    price = {"cost": {"usd_per_h": 0.36}}
    found = table(
        tmp_path,
        {**SLOW, **price},
        {**FAST, **price, "spec__batch_size": 64},
        {**FAST, "environment__cloud__spot": False, "spec__batch_size": 128},
        # Smaller images are another task.
        {**SLOW, **price, "spec__image_size": 32},
        {**SLOW, "environment__cloud": None, "spec__model": "vgg16"},
    )
    cheapest = [tuple(row) for row in found[found["cheapest"]][["model", "image_size", "batch_size"]].to_numpy()]
    assert cheapest == [("resnet18", 224, 64), ("resnet18", 32, 32)]
    # Per model the cheapest first, the unpriced last.
    assert found["batch_size"].tolist() == [64, 128, 32, 32, 32]


def test_prices_that_differ_within_a_group(tmp_path: Path) -> None:
    runs = [{**SLOW, "cost": {"usd_per_h": usd}} for usd in (0.2, 0.3, 0.36)]
    (row,) = table(tmp_path, *runs).to_dict("records")
    assert row["usd_per_h"] == 0.3
    assert row["note"] == "prices from 0.2 to 0.36 USD/h: their median"


@pytest.mark.parametrize(("spot", "price"), [(False, (3.673385, "list of 2025-03")), (True, None)])
def test_a_list_that_has_one_of_two_prices(spot: bool, price: tuple[float, str] | None) -> None:
    where = {"machine_type": "a2-highgpu-1g", "device_name": "NVIDIA A100-SXM4-40GB", "region": "us-central1"}
    listed = summary.list_price(**where, spot=spot)
    assert listed == price


LONG, SHORTER = {"spec__dataset_images": 50_000}, {"spec__dataset_images": 49_984}
BATCH_128, TWO_DEVICES = {"spec__dataset_images": 49_920, "spec__batch_size": 128}, {"number": 2, "images_per_s": 200.0}
SCRIPT = {"spec__script": {"argv": ["train.py"], "command": "train.py", "unit": "images", "dataset_samples": 50_000}}
# Runs of 100 images/s at batch 32 and 0.36 USD per hour; `--samples`; what is told, and its seconds for the first run.
AMOUNTS: dict[str, tuple[list[dict[str, Any]], int | None, str, float]] = {
    "no length is known": ([{}], None, "1 million images", 10_000),
    "our trainer's data": ([LONG], None, "an epoch of 50,000 images", 500),
    "a script's data": ([SCRIPT], None, "an epoch of 50,000 images", 500),
    "an amount of the run": ([LONG | {"spec__samples": 1000}], None, "1,000 images", 10),
    "an amount of the table": ([LONG | {"spec__samples": 1000}], 1_280_000, "1,280,000 images", 12_800),
    "two data sets": ([LONG, {"spec__dataset_images": 49_000}], None, "1 million images", 10_000),
    "one of two is known": ([LONG, {}], None, "1 million images", 10_000),
    "a run that failed is not compared": ([LONG, {"status": "failed"}], None, "an epoch of 50,000 images", 500),
    # drop_last leaves out other numbers of images.
    "a batch apart": ([SHORTER, BATCH_128], None, "an epoch of 49,984 images", 499.84),
    "more than a batch apart": ([LONG, {"spec__dataset_images": 49_967}], None, "1 million images", 10_000),
    "two amounts": ([{"spec__samples": 1000}, {"spec__samples": 2000}], None, "1 million images", 10_000),
    "two devices": ([LONG | {"spec__devices": 2, "ranks": TWO_DEVICES}], None, "an epoch of 50,000 images", 250),
    "two machines": ([LONG | {"spec__machines": 2, "ranks": TWO_DEVICES}], None, "an epoch of 50,000 images", 250),
}


@pytest.mark.parametrize(("changes", "samples", "told", "seconds"), AMOUNTS.values(), ids=AMOUNTS)
def test_amount_of_work_whose_cost_is_told(
    changes: list[dict[str, Any]], samples: int | None, told: str, seconds: float, tmp_path: Path
) -> None:
    for number, each in enumerate(changes):
        make(tmp_path, number, **{**SLOW, "cost": {"usd_per_h": 0.36}, **each})
    runs = analysis.load(tmp_path).runs
    rows = summary.summarize(runs, samples).to_dict("records")
    row = next(row for row in rows if row["batch_size"] == 32)
    assert row["epoch_of"] == told
    assert row["epoch_s"] == pytest.approx(seconds)
    # The recorded price is that of all machines of a run.
    assert row["epoch_usd"] == pytest.approx(0.36 * seconds / 3600)


def test_usual_amount_of_each_unit(tmp_path: Path) -> None:
    script = {"argv": ["t.py"], "command": "t.py", "unit": "tokens"}
    both = "1 million images or 1 billion tokens"
    for folder, others, told in ((tmp_path / "a", [0], both), (tmp_path / "b", [], "1 billion tokens")):
        make(folder, 1, **SLOW, spec__script=script, spec__model="t.py")
        for number in others:
            make(folder, number, **SLOW)
        table = summary.summarize(analysis.load(folder).runs)
        assert set(table["epoch_of"]) == {told}
        # Both runs have the same rate: a billion takes a thousand times as long as a million.
        assert sorted(table["epoch_s"]) == [10_000] * len(others) + [10_000_000]


def test_an_epoch_of_sequences_takes_their_tokens(tmp_path: Path) -> None:
    """Two runs over the same data, whose measured sequences were not equally long."""
    script = {"argv": ["t.py"], "command": "t.py", "unit": "tokens", "dataset_samples": 5000}
    for number, length in enumerate((50, 60)):
        make(
            tmp_path, number, timing__measured_s=1.0, timing__images=2 * length, timing__samples=2, spec__script=script
        )
    [row] = summary.summarize(analysis.load(tmp_path).runs).to_dict("records")
    assert row["epoch_of"] == "an epoch of 5,000 sequences"
    assert row["epoch_s"] == pytest.approx(5000 * 55 / 110, rel=0.01)


def test_spot_and_on_demand_runs_of_one_row_have_no_common_cost(tmp_path: Path) -> None:
    make(tmp_path, 0, **SLOW)
    make(tmp_path, 1, **SLOW, environment__cloud__spot=False)
    [row] = summary.summarize(analysis.load(tmp_path).runs).to_dict("records")
    assert row["epoch_s"] == 10_000
    assert math.isnan(row["epoch_usd"] if row["epoch_usd"] is not None else math.nan)
