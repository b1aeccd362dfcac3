"""The table of prices has sources, and does not contradict itself."""

import math
import tomllib
from typing import Any

import pytest

from workload.contract import peaks, prices

Table = dict[str, Any]
NO_FIGURE = "n1-standard-4 with 1 T4 in us-central1 has a price without a positive figure"


@pytest.fixture
def table() -> Table:
    return tomllib.loads(prices.TABLE.read_text(encoding="utf-8"))


def test_every_figure_has_a_source_with_a_date(table: Table) -> None:
    rows = [*table["price"], *table["disk"], table["address"], table["aws_address"]]
    assert {row["source"] for row in rows} == set(table["source"])
    assert all(source["title"] and len(source["read"]) == len("2026-11") for source in table["source"].values())


def test_every_gpu_has_peaks() -> None:
    assert {row.gpu for row in prices.load().listed} <= {gpu.gpu for gpu in peaks.gpus()}


def test_a_disk_by_hand() -> None:
    # 100 GB at 0.10 USD a month are 10 USD in 672 hours of February.
    usd_per_gb_month = prices.load().disk_usd_per_gb_month("pd-balanced", "us-central1")
    assert usd_per_gb_month == 0.10
    assert prices.disk_usd_per_h(usd_per_gb_month, 100) == pytest.approx(0.0148810, abs=1e-7)
    assert prices.load().disk_usd_per_gb_month("pd-balanced", "europe-west4") is None
    assert prices.load().disk_usd_per_gb_month("hyperdisk-balanced", "us-central1") is None


def test_prices_are_positive_and_each_is_listed_once() -> None:
    rows = prices.load().listed
    for row in rows:
        figures = [usd for usd in (row.usd_per_h, row.usd_per_h_spot) if usd is not None]
        assert figures
        assert all(0 < usd < math.inf for usd in figures), row
        # A spot price may equal the price on demand, and pass it by rounding (27.433 and 27.43298 USD).
        assert figures[-1] <= figures[0] * 1.0001, row
    assert len({(row.machine_type, row.gpu, row.gpus, row.region) for row in rows}) == len(rows)
