"""Names as figures show them, colours, axes and bars."""

import math
import re
from typing import Any

import pandas as pd
import pytest

from analysis.figures import labels, style

# Background colours of the page, light and dark: report/page.css.
GROUNDS = ("#ffffff", "#14181d")


# --- names


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("mobilenet_v2", "mobilenet_v2"),
        ("Tesla T4 (2 threads)", "Tesla-T4-2-threads"),
        ("../../etc/passwd", "etc-passwd"),
        ("\u202e\x1b[31m", "31m"),
        ("größe", "groe"),
        ("a" * 300, "a" * 100),
    ],
)
def test_file_stems_are_names_anywhere(name: str, stem: str) -> None:
    assert labels.file_stem(name) == stem


def test_two_names_never_share_a_file() -> None:
    found = labels.distinct(["a/b", "a b", "A-B", "a/b"])
    assert found == {"a/b": "a-b", "a b": "a-b-2", "A-B": "A-B-3"}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("resnet18", "resnet18"),
        (" a\nb\u202e ", "a\\nb\\u202e"),
        ("x" * 48, "x" * 48),
        ("a" * 30 + "b" * 30, "a" * 23 + "…" + "b" * 23),
    ],
)
def test_shown_names_are_short_and_on_one_line(name: str, shown: str) -> None:
    assert labels.shown(name) == shown


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ([("vm", "L4", None), ("vm", "L4", None)], ["vm", "vm"]),
        ([("vm", "L4", None), ("vm", "T4", None)], ["vm (L4)", "vm (T4)"]),
        ([("cpu", "Xeon", 2.0), ("cpu", "Xeon", 4.0)], ["cpu (2 threads)", "cpu (4 threads)"]),
        ([("cpu", "Xeon", 1.0), ("cpu", "Xeon", 2.0)], ["cpu (1 thread)", "cpu (2 threads)"]),
        ([("cpu", "Xeon", 2.0), ("cpu", "Xeon", None)], ["cpu", "cpu"]),
        ([("cpu", "Xeon", 2.0), ("cpu", "Xeon", 4.0), ("cpu", "Xeon", None)], None),
        ([(None, "L4", None)], ["unknown place"]),
    ],
)
def test_environments_say_what_tells_them_apart(facts: list[tuple[Any, ...]], names: list[str] | None) -> None:
    rows = [dict(zip(("place", "device_name", "threads"), each, strict=True)) for each in facts]
    expected = names or ["cpu (2 threads)", "cpu (4 threads)", "cpu (threads unknown)"]
    assert labels.environments(rows) == expected


def test_the_task_names_what_makes_other_images() -> None:
    rows = [{"model": "vgg11", "image_size": size, "dataset": "synthetic"} for size in (64.0, 224.0, None)]
    assert labels.tasks(rows) == ["vgg11 (64 px)", "vgg11 (224 px)", "vgg11 (image size unknown)"]


# --- looks


def contrast(one: str, other: str) -> float:
    """WCAG 2.2: of relative luminances."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", style.COLOURS)
@pytest.mark.parametrize("ground", GROUNDS)
def test_colours_stand_out_on_light_and_dark(colour: str, ground: str) -> None:
    assert contrast(colour, ground) >= 3.0


def test_rows_are_json_without_surprises() -> None:
    frame = pd.DataFrame({"x": [1.23456789, math.nan, math.inf], "name": ["a", None, "b\x1b\u202e"]})
    assert style.records(frame) == [
        {"x": 1.2346, "name": "a"},
        {"x": None, "name": None},
        {"x": None, "name": "b\\x1b\\u202e"},
    ]


def test_one_long_bar_does_not_press_the_rest_against_zero_and_says_that_it_is_cut() -> None:
    table = pd.DataFrame({"rate": [10.0, 5.0], "rate_low": [0.1, 4.0], "rate_high": [1000.0, 6.0]})
    assert (style.bottom(table, "rate"), style.reach(table, "rate")) == (pytest.approx(5 / 3), 30.0)
    rows = style.with_bars(table, "rate")
    assert rows[["bar_low", "bar_high"]].to_numpy().tolist() == [[pytest.approx(5 / 3), 30.0], [4.0, 6.0]]
    assert rows["cut_high"].tolist() == [30.0, pytest.approx(math.nan, nan_ok=True)]
    assert style.is_cut(table, "rate")
    whole = table.assign(rate_low=[9.0, 4.0], rate_high=[11.0, 6.0])
    assert style.reach(whole, "rate") == 11.0
    assert not style.is_cut(whole, "rate")


def shown(axis: Any) -> list[str]:
    """The texts of an axis' ticks, as d3 writes them."""
    axis = axis.to_dict()
    values, text = axis["values"], axis.get("labelExpr", "")
    factor = float((re.search(r"datum\.value / ([0-9.e+]+)", text) or ["", "1"])[1])
    factor = 0.01 if "100 *" in text else factor
    form = axis.get("format") or re.search(r"'([^']*)'\)( |$|\))", text)[1]  # type: ignore[index]
    digits, sign = int(re.search(r"\.(\d+)~f", form)[1]), "+" if "+" in form else ""  # type: ignore[index]
    texts = [f"{value / factor:{sign}.{digits}f}" for value in values]
    texts = [text.rstrip("0").rstrip(".") if "." in text else text for text in texts]
    return ["0" if float(text) == 0 else text for text in texts]


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (style.linear_axis(0, 0.8)[1], ["0", "0.2", "0.4", "0.6", "0.8"]),
        (style.linear_axis(0, 1050)[1], ["0", "200", "400", "600", "800", "1000"]),
        (style.linear_axis(0, 2.3)[1], ["0", "0.5", "1", "1.5", "2"]),
        (style.linear_axis(-0.012, 0.013, percent="+")[1], ["-1", "-0.5", "0", "+0.5", "+1"]),
        (style.linear_axis(0, 1, percent="")[1], ["0", "20", "40", "60", "80", "100"]),
        (style.log_axis(0.05, 3)[1], ["0.05", "0.1", "0.2", "0.5", "1", "2", "5"]),
        (style.log_axis(90, 900)[1], ["50", "100", "200", "500", "1000"]),
        (style.log_axis(2e9, 3e12, unit="FLOP/s")[1], ["10", "100", "1000"]),
        (style.log_axis(6e8, 4e9, unit="FLOP/s")[1], ["0.5", "1", "2", "5"]),
    ],
)
def test_numbers_of_an_axis_are_whole_and_each_reads_differently(axis: Any, expected: list[str]) -> None:
    assert shown(axis) == expected
