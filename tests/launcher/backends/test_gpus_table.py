"""`launch gpus`: the table for people against a golden file, and its data against the tables of the clouds."""

import csv
import json
from collections.abc import Callable
from typing import Any

import pytest

from launcher.backends.aws import gpus as aws
from launcher.backends.gcp import gpus as gcp
from launcher.cli.gpus import gpus_text
from workload.contract import peaks
from workload.contract.tables import TableFormat


def test_table_for_people_on_a_wide_and_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    wide = gpus_text(TableFormat.TABLE, wide=True)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = gpus_text(TableFormat.TABLE).partition("\n\n")[0]
    assert max(map(len, narrow.splitlines())) <= 80
    golden("gpus.txt", f"{wide}\n\n## 80 columns\n\n{narrow}\n")


@pytest.mark.parametrize(("cloud", "table"), [("gcp", gcp), ("aws", aws)])
def test_every_gpu_is_there_with_its_own_peaks(cloud: str, table: Any) -> None:
    rows = [row for row in json.loads(gpus_text(TableFormat.JSON)) if row["provider"] == cloud]
    assert {row["gpu"] for row in rows} == set(table.load())
    for row in rows:
        gpu = table.require(row["gpu"])
        assert row["zones"] == list(gpu.zones)
        device = {peak.gpu: peak for peak in peaks.gpus()}[gpu.device]
        assert row["bytes_per_s"] == device.bytes_per_s
        assert row["memory_gb"] in device.memory_gb


def test_unknown_figures_are_absent_in_data() -> None:
    a100 = next(row for row in json.loads(gpus_text(TableFormat.JSON)) if row["gpu"] == "a100")
    assert (a100["usd_per_h"], a100["usd_per_h_spot"], a100["read"]) == (3.673385, None, "2025-03")
    h200 = list(csv.DictReader(gpus_text(TableFormat.CSV).splitlines()))[-3]
    assert (h200["gpu"], h200["region"], h200["usd_per_h"], h200["source"]) == ("h200", "", "", "")
    h100 = next(row for row in json.loads(gpus_text(TableFormat.JSON)) if row["gpu"] == "h100")
    assert (h100["sold_on_demand"], h100["usd_per_h"], h100["usd_per_h_spot"]) == (False, None, 6.571)
