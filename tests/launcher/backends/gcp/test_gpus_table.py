import csv
import itertools
import json
import re
from typing import Any

import pytest

from launcher.backends.aws import gpus as aws
from launcher.backends.gcp import gpus as gcp
from launcher.cli import launches
from workload.contract import peaks
from workload.contract.tables import TableFormat

# Columns are two blanks apart here, and aligned in the real table.
LINES = """\
cloud  GPU  machine  region  USD/h  spot  as of  GB  GB/s  fp32  tf32  amp  bf16
gcp  t4  n1-standard-4  us-central1  0.540  0.255  2026-07  16  320  8.1  -  65  -
gcp  t4  n1-standard-8 (2)  us-central1  1.080  0.511  2026-07  16  320  8.1  -  65  -
aws  t4  g4dn.xlarge  us-east-2  unknown  0.149  2026-11  16  320  8.1  -  65  -
gcp  a100  a2-highgpu-1g  us-central1  3.673  unknown  2025-03  40  1555  19.5  156  312  312
gcp  a100-80gb  a2-ultragpu-1g  unknown  unknown  unknown  -  80  2039  19.5  156  312  312
gcp  h100  a3-highgpu-1g  us-central1  not sold  6.571  2026-09  80  3350  67  494.7  989.4  989.4
aws  a10g  g5.xlarge  us-east-1  1.006  0.447  2026-11  24  600  35  35  70  70
""".splitlines()


def test_the_table_for_people() -> None:
    text = launches.gpus_text(TableFormat.TABLE, wide=True)
    rows = re.sub(" {2,}", "  ", text).splitlines()
    assert [row for row in rows if row in LINES] == LINES
    assert len({line.index("  20") for line in text.splitlines()[1:4]}) == 1, "aligned"
    assert text.endswith("\n".join(launches.GPU_NOTES))


def test_every_source_is_named_with_its_date() -> None:
    text = launches.gpus_text(TableFormat.TABLE, wide=True)
    lines = text.splitlines()
    first = lines.index("as of 2026-07: Google Cloud's public catalog of mid-2026")
    assert lines[first + 1] == "as of 2026-11: SkyPilot's catalog v9 of AWS, of 2026"
    assert lines[first + 2] == f"{lines[first]}: a G2 machine by its vCPUs, and an L4"
    assert lines[first + 3].startswith("as of 2025-03: Cyclenerd/")


def test_on_a_narrow_terminal_the_price_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = launches.gpus_text(TableFormat.TABLE).splitlines()
    assert lines[0].split()[:6] == ["cloud", "GPU", "machine", "region", "USD/h", "spot"]
    assert any(
        line.startswith("not shown  ") and line.endswith("fp32, tf32, amp, bf16; --wide shows all") for line in lines
    )
    assert max(map(len, lines[: lines.index("")])) <= 80


@pytest.mark.parametrize(("cloud", "table"), [("gcp", gcp), ("aws", aws)])
def test_every_gpu_is_there_with_its_own_peaks(cloud: str, table: Any) -> None:
    rows = [row for row in json.loads(launches.gpus_text(TableFormat.JSON)) if row["provider"] == cloud]
    assert {row["gpu"] for row in rows} == set(table.load())
    for row in rows:
        gpu = table.require(row["gpu"])
        assert row["zones"] == list(gpu.zones)
        device = {peak.gpu: peak for peak in peaks.gpus()}[gpu.device]
        assert row["bytes_per_s"] == device.bytes_per_s
        assert row["memory_gb"] in device.memory_gb


def test_rows_of_a_gpu_follow_each_other_with_the_prices_of_both_clouds() -> None:
    rows = json.loads(launches.gpus_text(TableFormat.JSON))
    names = [row["gpu"] for row in rows]
    assert [name for name, _ in itertools.groupby(names)] == list(dict.fromkeys(names))
    one = {
        row["provider"]: row["usd_per_h"]
        for row in rows
        if row["machine_type"] in ("n1-standard-4", "g4dn.xlarge")
        if row["usd_per_h"]
    }
    assert one == {"gcp": 0.54, "aws": 0.526}


def test_what_aws_does_not_offer_is_named_with_the_reason() -> None:
    text = launches.gpus_text(TableFormat.TABLE, wide=True)
    assert "\nnot offered: g6f.*, which is a slice of an L4" in text
    assert "\nnot offered: p3.*, which is gone" in text


def test_what_is_unknown_is_absent_in_data_and_said_to_people() -> None:
    a100 = next(row for row in json.loads(launches.gpus_text(TableFormat.JSON)) if row["gpu"] == "a100")
    assert (a100["usd_per_h"], a100["usd_per_h_spot"], a100["read"]) == (3.673385, None, "2025-03")
    assert a100["source"].startswith("Cyclenerd/google-cloud-pricing-cost-calculator")
    h200 = list(csv.DictReader(launches.gpus_text(TableFormat.CSV).splitlines()))[-3]
    assert (h200["gpu"], h200["region"], h200["usd_per_h"], h200["source"]) == ("h200", "", "", "")
    h100 = next(row for row in json.loads(launches.gpus_text(TableFormat.JSON)) if row["gpu"] == "h100")
    assert (h100["sold_on_demand"], h100["usd_per_h"], h100["usd_per_h_spot"]) == (False, None, 6.571)
