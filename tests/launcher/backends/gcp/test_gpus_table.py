import csv
import json

import pytest

from launcher.backends.gcp import gpus, gpus_table
from tests.launcher.backends.gcp.canned_prices import TODAY
from workload.contract import peaks
from workload.contract.tables import TableFormat

TABLE = """\
GPU        machine         region       USD/h     spot     as of     GB  GB/s  fp32  tf32   amp    bf16
t4         n1-standard-4   us-central1  0.540     0.255    2026-07   16   320  8.1   -      65     -
t4         n1-standard-8   us-central1  0.730     0.319    2026-07   16   320  8.1   -      65     -
l4         g2-standard-4   us-central1  0.707     0.361    2026-07   24   300  30.3  60     121    121
l4         g2-standard-8   us-central1  0.854     0.436    2026-07   24   300  30.3  60     121    121
v100       n1-standard-8   us-central1  2.860     1.361    2026-07   16   900  15.7  -      125    -
a100       a2-highgpu-1g   us-central1  3.673     unknown  2025-03   40  1555  19.5  156    312    312
a100-80gb  a2-ultragpu-1g  unknown      unknown   unknown  -         80  2039  19.5  156    312    312
h100       a3-highgpu-1g   us-central1  not sold  6.571    2026-09   80  3350  67    494.7  989.4  989.4
h200       a3-ultragpu-8g  unknown      unknown   unknown  -        141  4800  67    494.7  989.4  989.4
"""


def test_the_table_for_people() -> None:
    text = gpus_table.render(TableFormat.TABLE, wide=True)
    assert text.startswith(TABLE)
    assert text.endswith("\n".join(gpus_table.NOTES))


def test_todays_list_replaces_what_it_has_of_the_table() -> None:
    document = json.loads(gpus_table.render(TableFormat.JSON, price_list=TODAY))
    rows = [row for row in document if row["gpu"] in ("t4", "l4")]
    told = [(row["machine_type"], row["usd_per_h"], row["usd_per_h_spot"], row["read"]) for row in rows]
    assert told == [
        ("n1-standard-4", pytest.approx(0.539999), pytest.approx(0.273), "2026-11-21"),
        ("n1-standard-8", pytest.approx(0.729998), pytest.approx(0.336), "2026-11-21"),
        ("g2-standard-4", 0.707, 0.361, "2026-07"),
        ("g2-standard-8", 0.854, 0.436, "2026-07"),
    ]
    assert "\nas of 2026-11-21: Google's price list\n" in gpus_table.render(
        TableFormat.TABLE, wide=True, price_list=TODAY
    )


def test_every_source_is_named_with_its_date() -> None:
    text = gpus_table.render(TableFormat.TABLE, wide=True)
    assert "\nas of 2026-07: Google Cloud's public catalog of mid-2026\nas of 2025-03: Cyclenerd/" in text


def test_on_a_narrow_terminal_the_price_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = gpus_table.render(TableFormat.TABLE).splitlines()
    assert lines[0].split()[:5] == ["GPU", "machine", "region", "USD/h", "spot"]
    assert "not shown  fp32, tf32, amp, bf16; --wide shows all" in lines
    assert max(map(len, lines[: lines.index("")])) <= 80


def test_every_gpu_is_there_with_its_own_peaks() -> None:
    rows = json.loads(gpus_table.render(TableFormat.JSON))
    assert list(dict.fromkeys(row["gpu"] for row in rows)) == list(gpus.load())
    for row in rows:
        device = peaks.named(gpus.require(row["gpu"]).device)
        assert row["memory_gb"] in device.memory_gb
        assert row["bytes_per_s"] == device.bytes_per_s
        assert row["zones"] == list(gpus.require(row["gpu"]).zones)


def test_what_is_unknown_is_absent_in_data_and_said_to_people() -> None:
    a100 = next(row for row in json.loads(gpus_table.render(TableFormat.JSON)) if row["gpu"] == "a100")
    assert (a100["usd_per_h"], a100["usd_per_h_spot"], a100["read"]) == (3.673385, None, "2025-03")
    assert a100["source"].startswith("Cyclenerd/google-cloud-pricing-cost-calculator")
    h200 = list(csv.DictReader(gpus_table.render(TableFormat.CSV).splitlines()))[-1]
    assert (h200["gpu"], h200["region"], h200["usd_per_h"], h200["source"]) == ("h200", "", "", "")
    h100 = next(row for row in json.loads(gpus_table.render(TableFormat.JSON)) if row["gpu"] == "h100")
    assert (h100["sold_on_demand"], h100["usd_per_h"], h100["usd_per_h_spot"]) == (False, None, 6.571)
