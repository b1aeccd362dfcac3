"""Amounts, changes, rates and cells as a report writes them."""

import math
from typing import Any

import pytest

from analysis.report import content
from workload.contract.tables import Column, Role
from workload.contract.text import percent, plain, seconds, si


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7.92e10, "FLOP/s", "79.2 GFLOP/s"),
        (999.0, "B", "999 B"),
        (1e3, "B", "1.00 kB"),
        (0.5, "FLOP", "0.500 FLOP"),
        (None, "B", content.ABSENT),
        (math.nan, "B", content.ABSENT),
    ],
)
def test_amounts_have_decimal_prefixes(value: float | None, unit: str, text: str) -> None:
    assert content.si(value, unit) == text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            {"images_per_s": 123.4, "images_per_s_low": 120.0, "images_per_s_high": 126.0, "runs": 3},
            "123.4 images/s (95 % interval 120.0 to 126.0, 3 runs)",
        ),
        (
            {"images_per_s": 123.4, "images_per_s_low": None, "runs": 1, "interval": "one run: no interval"},
            "123.4 images/s (one run: no interval)",
        ),
        ({"images_per_s": 123.4, "runs": 1}, "123.4 images/s (no interval)"),
    ],
)
def test_a_rate_comes_with_its_interval(row: dict[str, Any], text: str) -> None:
    assert content.rate_with_interval(row) == text


def test_columns_without_content_are_left_out_and_long_tables_folded() -> None:
    columns = [Column(name="a", heading="A", role=Role.FACT), Column(name="b", heading="B")]
    table = content.table("c", columns, [{"a": "x", "b": None}] * 25)
    assert [heading.text for heading in table.headings] == ["A"]
    assert table.folded
    assert not content.table("c", columns, [{"a": "x"}] * 24).folded


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        (Column(name="x", heading="batch", digits=0), 16.0, "16"),
        (Column(name="x", heading="ratio", digits=3), 1.0, "1.00"),
        (Column(name="x", heading="share", unit="%", digits=2), 0.123, "12 %"),
        (Column(name="x", heading="step", unit="s", prefixed=True), 0.0123, "12.3 ms"),
        (Column(name="x", heading="rate", unit="FLOP/s", prefixed=True, digits=3), 7.92e10, "79.2 GFLOP/s"),
        (Column(name="x", heading="parameters", prefixed=True, digits=3), 11_689_512, "11.7 M"),
        (Column(name="x", heading="interval"), "1 to 2", "1 to 2"),
        (Column(name="x", heading="fault", role=Role.FACT), True, "yes"),
        (Column(name="x", heading="ratio"), None, content.ABSENT),
    ],
)
def test_a_cell_has_the_unit_and_the_digits_of_its_column(column: Column, value: Any, shown: str) -> None:
    assert content.cell(column, value) == shown


def test_no_printed_number_has_more_than_twelve_digits() -> None:
    shown = [si(1e40, "FLOP/s"), seconds(4.6e20), plain(1e13, 3), percent(1e14), plain(123456789012.0, 3)]
    assert shown == ["1e+25 PFLOP/s", "4.6e+20 s", "1e+13", "1e+16 %", "123456789012"]
