"""Throughput and cost of each configuration in each place, for `analyze summary` and the report. Pure.

A cost is the price per hour over images per hour. The price is that of the VM with its GPUs alone, as recorded by the
run. For a run without a recorded price, workload/contract/prices.toml gives the list price, if machine type, GPU and
region are listed. Users' own machines have no price.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple, Self

import pandas as pd

from analysis.loading import units
from analysis.loading.cases import Case, after_program
from analysis.loading.configurations import (
    CONFIGURATION,
    DETAILS,
    NAMED_COLUMNS,
    NUMBERS,
    PLACE,
    SOFTWARE,
    Group,
    devices_of,
    group,
    measured,
)
from analysis.loading.tables import Tables, cells, frame, joined
from workload.contract import peaks, prices
from workload.contract.record import Status
from workload.contract.spent import PARTS, RUN_PARTS, SECONDS_PER_H, TOKENS, Amount, Spent
from workload.contract.tables import Column, Role

# Parts of a run's time that every run of our trainer has; the columns of other parts are hidden if no run has them.
USUAL_PARTS = ("steps", "imports", "prepare", "environment", "warmup")

COLUMNS = (
    *NAMED_COLUMNS,
    Column(name="arguments", heading="arguments", optional=True, role=Role.FACT),
    Column(name="images_per_s", heading="{unit}/s"),
    Column(name="images_per_s_low", heading="low"),
    Column(name="images_per_s_high", heading="high"),
    Column(name="all_images_per_s", heading="{unit}/s of all devices", optional=True),
    Column(name="runs", heading="runs"),
    Column(name="step_s", heading="step", unit="s", prefixed=True),
    Column(name="epoch_of", heading="time and cost of", role=Role.FACT),
    Column(name="epoch_s", heading="time", unit="s", prefixed=True, digits=3),
    Column(name="epoch_usd", heading="USD", digits=2, optional=True),
    Column(name="bound", heading="limited by"),
    Column(name="busy", heading="busy", optional=True, role=Role.SENTENCE),
    Column(name="data_wait_fraction", heading="data waits", unit="%", digits=3),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True),
    Column(name="joules_per_image", heading="J per {one}", digits=3, optional=True),
    Column(name="mfu", heading="MFU", unit="%", digits=3, optional=True),
    Column(name="hfu", heading="HFU", unit="%", digits=3, optional=True),
    Column(name="interval", heading="interval", role=Role.NOTE),
    Column(name="mfu_peak", heading="dense peak of MFU", optional=True, role=Role.NOTE),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    Column(name="images_per_s_mean", heading="mean {unit}/s", detail=True),
    Column(name="images_per_s_sd", heading="± SD", digits=2, optional=True, detail=True),
    Column(name="gain", heading="gain over the batch before", unit="%", digits=2, optional=True, detail=True),
    Column(name="wall_s", heading="a run took", unit="s", digits=3, detail=True),
    Column(name="usd_per_run", heading="USD a run", digits=2, optional=True, detail=True),
    Column(
        name="activations_bytes", heading="activations", unit="B", prefixed=True, digits=3, optional=True, detail=True
    ),
    *(
        Column(
            name=f"{part}_share",
            heading=f"time in {PARTS[part]}",
            unit="%",
            digits=2,
            optional=part not in USUAL_PARTS,
            detail=True,
        )
        for part in RUN_PARTS
    ),
    *DETAILS,
)


class Work(NamedTuple):
    """Amount of work for which a table tells time and cost, such as an epoch of 50,000 images.

    `text`: the amount in words. `number`: how many samples of the data it has if `in_samples`, else how many images,
    tokens or other units of throughput. `is_own`: False for the usual amount of each run's unit, such as a million
    images, which is taken if no amount of the user is known.
    """

    text: str
    number: float = 0.0
    in_samples: bool = False
    is_own: bool = True

    @classmethod
    def of(cls, runs: pd.DataFrame, samples: float | None = None) -> Self:
        """The amount for a table of `runs`: `samples`, else the one that all runs have, else a million of the unit.

        Runs have the amount that the user gave them, or one pass over their data. Passes of two runs over the same data
        may differ by less than a batch, which `drop_last` leaves out.
        """
        done = measured(runs)
        # Of runs with different units, each takes its own.
        each = sorted({*done["unit"].fillna(units.IMAGES)}) or [units.IMAGES]
        unit, known = each[0] if len(each) == 1 else "samples", done["epoch_samples"]
        if samples:
            return cls(" or ".join(Amount(samples, unit).text for unit in each), samples)
        # Batches of tokens are measured in sequences, which are the samples of the data.
        per_unit = (known / done["epoch_images"]).where(done["unit"] != TOKENS, 1)
        batches = (done["batch_size"] * done[[*NUMBERS]].prod(axis="columns") * per_unit).fillna(1)
        if done.empty or known.isna().any() or known.max() - known.min() >= batches.max():
            return cls(" or ".join(Amount.usual(unit).text for unit in each), is_own=False)
        if done["samples"].notna().any():
            return cls(Amount(known.max(), unit).text, known.max(), in_samples=True)
        passed = Amount(known.max(), "sequences" if unit == TOKENS else unit)
        return cls(f"an epoch of {passed.text}", known.max(), in_samples=True)

    def cells(self, pool: Group, usd_per_h: float | None) -> dict[str, Any]:
        """Cells of a row: seconds, and cost with its interval, which is that of the rate: the price is exact.

        `usd_per_h`: price of all machines of a run.
        """
        rate, number = pool.rate, self.number if self.is_own else Amount.usual(units.unit_of(pool.facts)).number
        if self.in_samples:
            pairs = zip(pool.numbers("epoch_images"), pool.numbers("epoch_samples"), strict=True)
            number *= median([images / samples for images, samples in pairs if images > 0] or [1.0])
        ends = (rate.interval.high, rate.interval.low) if rate.interval else (None, None)
        # The rate is that of one device.
        number /= devices_of(pool.facts)
        times_s = [number / each if each and each > 0 else None for each in (rate.value, *ends)]
        usd = [time_s * usd_per_h / SECONDS_PER_H if time_s and usd_per_h else None for time_s in times_s]
        told = {"epoch_of": self.text, "epoch_is_own": self.is_own, "epoch_s": times_s[0]}
        return told | dict(zip(("epoch_usd", "epoch_usd_low", "epoch_usd_high"), usd, strict=True))


def summarize(runs: pd.DataFrame, samples: float | None = None) -> pd.DataFrame:
    """A line per configuration and place, columns as in `COLUMNS`; the best throughput per model first.

    `images_per_s`, `step_s`, `flop_per_s`, `mfu`, `hfu` and `data_wait_fraction` are medians over completed runs;
    `step_s` is the median of each run's median step. `mfu_peak`: vendor's peak of `mfu` and `hfu`. `runs` counts the
    completed runs; `note` counts the others by status. `wall_s` and `usd_per_run` are means over completed runs, and
    the shares of a run's parts are shares of the time of all. `images_per_s` and all other figures are those of one
    device, `all_images_per_s` is the sum of all devices; None if no run has several. `images_per_s_mean`,
    `images_per_s_sd`: mean and standard deviation over runs. `gain`: throughput over that of the next smaller batch
    size of an otherwise equal configuration in the same place, minus 1; `analyze compare --by batch_size` has its
    interval. `epoch_s`, `epoch_usd`: time and cost of `epoch_of` on all devices, training steps only, see `Work.of`;
    `samples`: the user's own amount of work.
    """
    work = Work.of(runs, samples)
    lines = [_line(pool, work) for pool in group(runs)]
    _add_gains(lines)
    if not any(devices_of(line) > 1 for line in lines):
        # It would repeat `images_per_s`.
        lines = [line | {"all_images_per_s": None} for line in lines]
    best: dict[str, float] = defaultdict(float)
    for line in lines:
        best[line["model"]] = max(best[line["model"]], line["images_per_s"] or 0.0)
    lines.sort(key=lambda line: (-best[line["model"]], line["model"], -(line["images_per_s"] or 0.0)))
    return pd.DataFrame(lines, columns=[column.name for column in COLUMNS])


def _add_gains(lines: Sequence[dict[str, Any]]) -> None:
    facts = tuple(fact for fact in (*CONFIGURATION, *PLACE, *SOFTWARE) if fact != "batch_size")
    by_others: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        line["gain"] = None
        if line["images_per_s"] and line["batch_size"]:
            by_others[tuple(line[fact] for fact in facts)].append(line)
    for alike in by_others.values():
        for smaller, larger in pairwise(sorted(alike, key=lambda line: line["batch_size"])):
            if larger["batch_size"] > smaller["batch_size"]:
                larger["gain"] = larger["images_per_s"] / smaller["images_per_s"] - 1


def spent(runs: pd.DataFrame) -> Spent:
    """Time of all these runs together, by part, and its cost."""
    rows = cells(runs[[*(f"{part}_s" for part in RUN_PARTS), "usd"]])
    return Spent.total(
        Spent(seconds={part: value for part, value in zip(RUN_PARTS, values, strict=True) if value}, usd=usd, runs=1)
        for *values, usd in rows
    )


def _line(pool: Group, work: Work) -> dict[str, Any]:
    done = pool.only([status == Status.COMPLETED for status in pool.values("status")])
    figures, flop = done.figures(), pool.median("train_flop_per_step")
    time = spent(done.runs)
    spots = {value if isinstance(value, bool) else None for value in done.values("spot")}
    price = _price(done, spots.pop())[0] if len(spots) == 1 else None
    broken = Counter(status for status in pool.texts("status") if status != Status.COMPLETED)
    return {
        **pool.facts,
        "arguments": after_program(pool["script"]),
        **figures,
        "all_images_per_s": done.median("all_images_per_s"),
        "interval": figures["interval"] if done.rate.n else None,
        "flop_per_s": flop / figures["step_s"] if flop and figures["step_s"] else None,
        **{name: done.median(name) for name in ("mfu", "hfu")},
        "mfu_peak": joined(dict.fromkeys(done.texts("mfu_peak"))),
        "wall_s": time.wall_s / time.runs if time.runs else None,
        **work.cells(done, price),
        "activations_bytes": pool.median("activations_bytes"),
        "usd_per_run": None if time.usd is None else time.usd / time.runs,
        **{f"{part}_share": share for part, share in time.shares().items()},
        "note": "; ".join(f"{number} {status.replace('_', ' ')}" for status, number in broken.most_common()) or None,
    }


# Prices within a group that differ by at most this (USD/h) are the same price, rounded differently.
SAME_PRICE = 1e-6

COST_FACTS = ("place", "device_name", "machine_type", "model", "batch_size", "precision", "image_size", "dataset")
COST_COLUMNS = (
    *COST_FACTS,
    *("spot", "runs", "images_per_s", "usd_per_h", "price", "epoch_of", "epoch_is_own", "epoch_s", "epoch_usd"),
    *("epoch_usd_low", "epoch_usd_high", "cheapest", "note"),
)


def costs(results: Tables, work: Work | None = None) -> pd.DataFrame:
    """A row per group of runs and price model (on demand, spot), the cheapest per model first, unpriced ones last.

    `epoch_s` and `epoch_usd`: time and cost of `work`, by default that of `Work.of`, from the median images/s over
    runs. `cheapest` marks the lowest cost of each model, image size and data set. `price`: source of the price, `run`
    or `list of` a date.
    """
    rows, work = [], work or Work.of(results.runs)
    for pool in group(measured(results.runs)):
        # On-demand and spot runs are separate, because they are equally fast and differ in cost.
        spots = [value if isinstance(value, bool) else None for value in pool.values("spot")]
        rows += [_cost_row(pool.only([value is spot for value in spots]), spot, work) for spot in dict.fromkeys(spots)]
    best: dict[tuple[Any, ...], float] = defaultdict(lambda: float("inf"))
    for row in rows:
        if row["epoch_usd"] is not None:
            best[_task(row)] = min(best[_task(row)], row["epoch_usd"])
    for row in rows:
        usd = row["epoch_usd"]
        row["cheapest"] = usd is not None and usd == best[_task(row)]
    rows.sort(
        key=lambda row: (
            row["model"],
            row["epoch_usd"] is None,
            row["epoch_usd"] or 0.0,
            -(row["images_per_s"] or 0),
        )
    )
    return frame(rows, COST_COLUMNS)


def list_price(
    *,
    machine_type: str | None,
    device_name: str | None,
    region: str | None,
    spot: bool | None,
    machines: float | None = 1,
    devices: float | None = 1,
) -> tuple[float, str] | None:
    """USD per hour of all `machines` in prices.toml, and the source in words; None if a fact is not listed or unknown.

    `devices`: GPUs that the run used on each. An N1 machine, to which GPUs are attached, is assumed to have no others.
    """
    gpu = peaks.find_gpu(device_name)
    if gpu is None or spot is None:
        return None
    for row in prices.load().listed:
        figure = row.figure(spot=spot)
        same = (row.machine_type, row.gpu, row.region) == (machine_type, gpu.gpu, region)
        if same and figure is not None and (row.gpus == (devices or 1) or not row.machine_type.startswith("n1-")):
            return figure * (machines or 1), f"list of {row.read}"
    return None


def usd_per_h(runs: Sequence[Case]) -> float | None:
    """Median price of all machines of a run, from the records of these runs or the list; None if none is known."""
    found = []
    for case in runs:
        facts = {name: case[name] for name in (*NUMBERS, "machine_type", "device_name", "region", "spot")}
        listed = None if case["usd_per_h"] else list_price(**facts)
        found.append(listed[0] if listed else case["usd_per_h"])
    known = [usd for usd in found if usd]
    return median(known) if known else None


def _cost_row(pool: Group, spot: bool | None, work: Work) -> dict[str, Any]:
    usd_per_h, source, remark = _price(pool, spot)
    return {name: pool[name] for name in COST_FACTS} | {
        "spot": spot,
        "runs": pool.rate.n,
        "images_per_s": pool.rate.value,
        "usd_per_h": usd_per_h,
        "price": source,
        **work.cells(pool, usd_per_h),
        "note": joined([remark, *pool.apart]),
    }


def _price(pool: Group, spot: bool | None) -> tuple[float | None, str | None, str | None]:
    """USD per hour of a group of runs, its source, and a remark; each is None if unknown or not needed."""
    recorded = pool.known("usd_per_h")
    if recorded:
        spread = max(recorded) - min(recorded)
        remark = (
            f"prices from {min(recorded):g} to {max(recorded):g} USD/h: their median" if spread > SAME_PRICE else None
        )
        return median(recorded), "run", remark
    regions = set(pool.texts("region"))
    listed = list_price(
        machine_type=pool["machine_type"],
        device_name=pool["device_name"],
        region=regions.pop() if len(regions) == 1 else None,
        spot=spot,
        machines=pool["machines"],
        devices=pool["devices"],
    )
    if listed is None:
        return None, None, "no price: the run has none, and no list has one for its machine and region"
    return *listed, None


def _task(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["image_size"], row["dataset"]
