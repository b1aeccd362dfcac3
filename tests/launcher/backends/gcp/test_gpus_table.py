import csv
import itertools
import json
import re
from typing import Any

import pytest

from launcher.backends.aws import gpus as aws
from launcher.backends.gcp import gpus as gcp
from launcher.backends.gcp import gpus_table
from workload.contract import peaks
from workload.contract.tables import TableFormat

# Columns are two blanks apart here, and aligned in the real table.
TABLE = """\
cloud  GPU  machine  region  USD/h  spot  as of  GB  GB/s  fp32  tf32  amp  bf16
gcp  t4  n1-standard-4  us-central1  0.540  0.255  2026-07  16  320  8.1  -  65  -
gcp  t4  n1-standard-8  us-central1  0.730  0.319  2026-07  16  320  8.1  -  65  -
gcp  t4  n1-standard-8 (2)  us-central1  1.080  0.511  2026-07  16  320  8.1  -  65  -
gcp  t4  n1-standard-16 (4)  us-central1  2.160  1.021  2026-07  16  320  8.1  -  65  -
aws  t4  g4dn.xlarge  us-east-1  0.526  0.216  2026-11  16  320  8.1  -  65  -
aws  t4  g4dn.2xlarge  us-east-1  0.752  0.328  2026-11  16  320  8.1  -  65  -
aws  t4  g4dn.xlarge  us-east-2  unknown  0.149  2026-11  16  320  8.1  -  65  -
aws  t4  g4dn.12xlarge (4)  us-east-1  3.912  1.593  2026-11  16  320  8.1  -  65  -
gcp  l4  g2-standard-4  us-central1  0.707  0.361  2026-07  24  300  30.3  60  121  121
gcp  l4  g2-standard-8  us-central1  0.854  0.436  2026-07  24  300  30.3  60  121  121
gcp  l4  g2-standard-12  us-central1  1.000  0.511  2026-07  24  300  30.3  60  121  121
gcp  l4  g2-standard-24 (2)  us-central1  2.001  1.022  2026-07  24  300  30.3  60  121  121
gcp  l4  g2-standard-48 (4)  us-central1  4.002  2.045  2026-07  24  300  30.3  60  121  121
gcp  l4  g2-standard-96 (8)  us-central1  8.003  4.090  2026-07  24  300  30.3  60  121  121
aws  l4  g6.xlarge  us-east-1  0.805  0.553  2026-11  24  300  30.3  60  121  121
aws  l4  g6.2xlarge  us-east-1  0.978  0.718  2026-11  24  300  30.3  60  121  121
aws  l4  g6.4xlarge  us-east-1  1.323  0.868  2026-11  24  300  30.3  60  121  121
aws  l4  g6.xlarge  us-east-2  unknown  0.232  2026-11  24  300  30.3  60  121  121
aws  l4  g6.12xlarge (4)  us-east-1  4.602  2.732  2026-11  24  300  30.3  60  121  121
gcp  v100  n1-standard-8  us-central1  2.860  1.361  2026-07  16  900  15.7  -  125  -
gcp  v100  n1-standard-16 (2)  us-central1  5.720  2.723  2026-07  16  900  15.7  -  125  -
gcp  v100  n1-standard-32 (4)  us-central1  11.440  5.446  2026-07  16  900  15.7  -  125  -
gcp  v100  n1-standard-64 (8)  us-central1  22.880  10.892  2026-07  16  900  15.7  -  125  -
gcp  a100  a2-highgpu-1g  us-central1  3.673  unknown  2025-03  40  1555  19.5  156  312  312
gcp  a100  a2-highgpu-2g (2)  us-central1  7.347  unknown  2025-03  40  1555  19.5  156  312  312
aws  a100  p4d.24xlarge (8)  us-east-1  21.958  13.990  2026-11  40  1555  19.5  156  312  312
gcp  a100-80gb  a2-ultragpu-1g  unknown  unknown  unknown  -  80  2039  19.5  156  312  312
aws  a100-80gb  p4de.24xlarge (8)  us-east-1  27.447  20.128  2026-11  80  2039  19.5  156  312  312
gcp  h100  a3-highgpu-1g  us-central1  not sold  6.571  2026-09  80  3350  67  494.7  989.4  989.4
aws  h100  p5.4xlarge  us-east-1  6.880  unknown  2026-11  80  3350  67  494.7  989.4  989.4
aws  h100  p5.48xlarge (8)  us-east-1  55.040  55.040  2026-11  80  3350  67  494.7  989.4  989.4
gcp  h200  a3-ultragpu-8g (8)  unknown  unknown  unknown  -  141  4800  67  494.7  989.4  989.4
aws  a10g  g5.xlarge  us-east-1  1.006  0.447  2026-11  24  600  35  35  70  70
aws  a10g  g5.12xlarge (4)  us-east-1  5.672  unknown  2026-11  24  600  35  35  70  70
"""


def test_the_table_for_people() -> None:
    text = gpus_table.render(TableFormat.TABLE, wide=True)
    assert re.sub(" {2,}", "  ", text).startswith(TABLE)
    assert len({line.index("  20") for line in text.splitlines()[1:4]}) == 1, "aligned"
    assert text.endswith("\n".join(gpus_table.NOTES))


def test_every_source_is_named_with_its_date() -> None:
    text = gpus_table.render(TableFormat.TABLE, wide=True)
    lines = text.splitlines()
    first = lines.index("as of 2026-07: Google Cloud's public catalog of mid-2026")
    assert lines[first + 1] == "as of 2026-11: SkyPilot's catalog v9 of AWS, of 2026"
    assert lines[first + 2] == f"{lines[first]}: a G2 machine by its vCPUs, and an L4"
    assert lines[first + 3].startswith("as of 2025-03: Cyclenerd/")


def test_on_a_narrow_terminal_the_price_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = gpus_table.render(TableFormat.TABLE).splitlines()
    assert lines[0].split()[:6] == ["cloud", "GPU", "machine", "region", "USD/h", "spot"]
    assert any(
        line.startswith("not shown  ") and line.endswith("fp32, tf32, amp, bf16; --wide shows all") for line in lines
    )
    assert max(map(len, lines[: lines.index("")])) <= 80


@pytest.mark.parametrize(("cloud", "table"), [("gcp", gcp), ("aws", aws)])
def test_every_gpu_is_there_with_its_own_peaks(cloud: str, table: Any) -> None:
    rows = [row for row in json.loads(gpus_table.render(TableFormat.JSON)) if row["provider"] == cloud]
    assert {row["gpu"] for row in rows} == set(table.load())
    for row in rows:
        gpu = table.require(row["gpu"])
        assert row["zones"] == list(gpu.zones)
        device = {peak.gpu: peak for peak in peaks.gpus()}[gpu.device]
        assert row["bytes_per_s"] == device.bytes_per_s
        assert row["memory_gb"] in device.memory_gb


def test_rows_of_a_gpu_follow_each_other_with_the_prices_of_both_clouds() -> None:
    rows = json.loads(gpus_table.render(TableFormat.JSON))
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
    text = gpus_table.render(TableFormat.TABLE, wide=True)
    assert "\nnot offered: g6f.*, which is a slice of an L4" in text
    assert "\nnot offered: p3.*, which is gone" in text


def test_what_is_unknown_is_absent_in_data_and_said_to_people() -> None:
    a100 = next(row for row in json.loads(gpus_table.render(TableFormat.JSON)) if row["gpu"] == "a100")
    assert (a100["usd_per_h"], a100["usd_per_h_spot"], a100["read"]) == (3.673385, None, "2025-03")
    assert a100["source"].startswith("Cyclenerd/google-cloud-pricing-cost-calculator")
    h200 = list(csv.DictReader(gpus_table.render(TableFormat.CSV).splitlines()))[-3]
    assert (h200["gpu"], h200["region"], h200["usd_per_h"], h200["source"]) == ("h200", "", "", "")
    h100 = next(row for row in json.loads(gpus_table.render(TableFormat.JSON)) if row["gpu"] == "h100")
    assert (h100["sold_on_demand"], h100["usd_per_h"], h100["usd_per_h_spot"]) == (False, None, 6.571)
