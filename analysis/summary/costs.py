"""Cost of images: price per hour over images per hour, and the cheapest way to train each model. Pure.

The price is that of the VM with its GPUs alone, as recorded by the run. For a run without a recorded price,
workload/contract/prices.toml gives the list price, if machine type, GPU and region are listed. Users' own machines have
no price.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd

from analysis.loading.configurations import Group, group, measured
from analysis.loading.rows import frame, joined
from analysis.loading.tables import Tables
from workload.contract import peaks, prices

SECONDS_PER_H = 3600
MILLION = 1e6
# ILSVRC 2012, training set: Russakovsky et al., IJCV 115 (2015), table 2.
IMAGENET_IMAGES = 1_281_167
# Prices within a group that differ by at most this (USD/h) are the same price, rounded differently.
SAME_PRICE = 1e-6

COLUMNS = (
    "place",
    "device_name",
    "machine_type",
    "spot",
    "model",
    "batch_size",
    "precision",
    "image_size",
    "dataset",
    "runs",
    "images_per_s",
    "usd_per_h",
    "price",
    "usd_per_million_images",
    "usd_per_million_images_low",
    "usd_per_million_images_high",
    "usd_per_epoch",
    "cheapest",
    "note",
)
NAMED = ("place", "device_name", "machine_type", "model", "batch_size", "precision", "image_size", "dataset")


@dataclass(frozen=True, kw_only=True)
class HourlyPrice:
    """USD per hour, and the source: the run itself, or a list with its date."""

    usd_per_h: float
    source: str


def usd_per_images(*, usd_per_h: float, images_per_s: float, images: float) -> float:
    """Cost in USD of training on this number of images at this rate."""
    return usd_per_h / SECONDS_PER_H / images_per_s * images


def costs(results: Tables) -> pd.DataFrame:
    """A row per group of runs and price model (on demand, spot), the cheapest per model first, unpriced ones last.

    `usd_per_million_images` follows from the median images/s over runs, and its interval from that of the rate: the
    price is taken as exact. `usd_per_epoch` is one pass over ImageNet's 1,281,167 training images. `cheapest` marks the
    lowest price per image of each model, image size and data set. `price`: source of the price, `run` or `list of` a
    date.
    """
    rows = [row for pool in group(measured(results.runs)) for row in _rows(pool)]
    best: dict[tuple[Any, ...], float] = defaultdict(lambda: float("inf"))
    for row in rows:
        if row["usd_per_million_images"] is not None:
            best[_task(row)] = min(best[_task(row)], row["usd_per_million_images"])
    for row in rows:
        usd = row["usd_per_million_images"]
        row["cheapest"] = usd is not None and usd == best[_task(row)]
    rows.sort(
        key=lambda row: (
            row["model"],
            row["usd_per_million_images"] is None,
            row["usd_per_million_images"] or 0.0,
            -(row["images_per_s"] or 0),
        )
    )
    return frame(rows, COLUMNS)


def list_price(
    *, machine_type: str | None, device_name: str | None, region: str | None, spot: bool | None, devices: float = 1
) -> HourlyPrice | None:
    """The price in prices.toml; None if it is not listed, or if `spot` is unknown.

    `devices`: GPUs that the run used. An N1 machine, to which GPUs are attached, is assumed to have no others.
    """
    gpu = peaks.find_gpu(device_name)
    if gpu is None or spot is None:
        return None
    for row in prices.load().listed:
        figure = row.figure(spot=spot)
        same = (row.machine_type, row.gpu, row.region) == (machine_type, gpu.gpu, region)
        if same and figure is not None and (row.gpus == devices or not row.machine_type.startswith("n1-")):
            return HourlyPrice(usd_per_h=figure, source=f"list of {row.read}")
    return None


def _rows(pool: Group) -> Iterator[dict[str, Any]]:
    """Rows of a group; on-demand and spot runs are separate, because they are equally fast and differ in cost."""
    spots = [value if isinstance(value, bool) else None for value in pool.values("spot")]
    for spot in dict.fromkeys(spots):
        yield _row(pool.only([value is spot for value in spots]), spot)


def _row(pool: Group, spot: bool | None) -> dict[str, Any]:
    rate, devices = pool.rate, pool["devices"] or 1
    price, remark = _price(pool, spot)
    usd = low = high = epoch = None
    if price and rate.value:
        # The price is that of all devices, and the rate that of one.
        usd = usd_per_images(usd_per_h=price.usd_per_h, images_per_s=devices * rate.value, images=MILLION)
        epoch = usd * IMAGENET_IMAGES / MILLION
        if rate.interval and rate.interval.low > 0:
            # Ends are swapped: the highest rate gives the lowest cost.
            high, low = (
                usd_per_images(usd_per_h=price.usd_per_h, images_per_s=devices * end, images=MILLION)
                for end in (rate.interval.low, rate.interval.high)
            )
    return {name: pool[name] for name in NAMED} | {
        "spot": spot,
        "runs": rate.n,
        "images_per_s": rate.value,
        "usd_per_h": price.usd_per_h if price else None,
        "price": price.source if price else None,
        "usd_per_million_images": usd,
        "usd_per_million_images_low": low,
        "usd_per_million_images_high": high,
        "usd_per_epoch": epoch,
        "note": joined([remark, *pool.apart]),
    }


def _price(pool: Group, spot: bool | None) -> tuple[HourlyPrice | None, str | None]:
    """The price of a group of runs (None if unknown), and a remark on the price (None if not needed)."""
    recorded = pool.known("usd_per_h")
    if recorded:
        spread = max(recorded) - min(recorded)
        remark = (
            f"prices from {min(recorded):g} to {max(recorded):g} USD/h: their median" if spread > SAME_PRICE else None
        )
        return HourlyPrice(usd_per_h=median(recorded), source="run"), remark
    regions = set(pool.texts("region"))
    listed = list_price(
        machine_type=pool["machine_type"],
        device_name=pool["device_name"],
        region=regions.pop() if len(regions) == 1 else None,
        spot=spot,
        devices=pool["devices"] or 1,
    )
    return listed, None if listed else "no price: the run has none, and no list has one for its machine and region"


def _task(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["image_size"], row["dataset"]
