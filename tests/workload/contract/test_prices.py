"""The table of prices has sources, and is refused if it contradicts itself."""

import copy
import math
import tomllib
from typing import Any

import pytest

from workload.contract import peaks, prices
from workload.contract.errors import ExitCode, ToolError

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


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"usd_per_h_spot": 0.55},
            "n1-standard-4 with 1 T4 in us-central1 costs more as spot (0.55) than on demand (0.54)",
        ),
        ({"usd_per_h": None, "usd_per_h_spot": None}, NO_FIGURE),
        ({"usd_per_h": 0.0}, NO_FIGURE),
        ({"usd_per_h": math.nan}, NO_FIGURE),
        ({"machine_type": "n1-standard-8"}, "n1-standard-8 with 1 T4 in us-central1 is listed twice"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(table: Table, changes: Table, problem: str) -> None:
    assert prices.parse(copy.deepcopy(table)) == prices.load()
    table["price"][0] |= changes
    with pytest.raises(ToolError) as caught:
        prices.parse(table)
    assert str(caught.value) == f"prices.toml: {problem}"
    assert caught.value.exit_code == ExitCode.TOOL


def test_spot_may_cost_as_much_as_on_demand(table: Table) -> None:
    table["price"][0]["usd_per_h_spot"] = table["price"][0]["usd_per_h"]
    prices.parse(table)
