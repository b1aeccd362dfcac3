"""The tables of other people's reports, recomputed by our own functions from what they print."""

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.commands import roofline
from analysis.compare import ratios
from analysis.figures import registry
from analysis.kernels import breakdown
from analysis.loading import run_row
from analysis.roofline import points, predictions
from analysis.summary import throughput
from analysis.variance import tables as variance
from docs import published_items
from docs import published_tables as published
from tests.docs import grammar
from workload.contract.bundle import STEP_COLUMNS, TELEMETRY_COLUMNS
from workload.run import complexity_command

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")


@pytest.mark.parametrize(
    ("text", "dividend", "divisor", "scale", "follows"),
    [
        ("10.92", "1615", "147.8", 1, True),  # 10.927: cut off, not rounded
        ("0.9235", "204.8", "215.4", 1, False),  # 0.9508
        ("668.144", "4.928", "7.376", 1000, True),  # 668.11 +- 0.07
        ("668.3", "4.928", "7.376", 1000, False),
    ],
)
def test_rounded_figures_follow_or_not(text: str, dividend: str, divisor: str, scale: float, follows: bool) -> None:
    left, right = published.Printed(text=dividend), published.Printed(text=divisor)
    assert published.Printed(text=text).follows(left, right, scale=scale) is follows


@needs_data
def test_table_a_efficiency_as_published_and_right() -> None:
    rows = published.table_a(DATA)
    reproduced = {(row.gpu, row.batch_size): row for row in rows if row.reproduced is not None}
    assert len(reproduced) == 3
    for row in reproduced.values():
        low, high = row.published.ends
        assert low <= 100 * row.reproduced <= high
    assert f"{published.average(rows, 'RTX 4080 Laptop'):.1f}" == "7.3"
    assert f"{published.average(rows, 'T4'):.1f}" == "21.0"
    # Images over wall time x 24.2991 GFLOP / 20.0 and 33.9 TFLOP/s; x 10.6484 GFLOP / 8.1.
    laptop, spilling, t4 = (reproduced[key] for key in (("RTX 4080 Laptop", 64), ("RTX 4080 Laptop", 128), ("T4", 128)))
    assert (laptop.right_low, laptop.right_high) == pytest.approx((0.2281, 0.3866), abs=1e-4)
    assert spilling.right_high == pytest.approx(0.0266, abs=1e-4)
    assert t4.right_low == t4.right_high == pytest.approx(0.4104, abs=1e-4)
    # The published rates are means of rates.
    for row in reproduced.values():
        low, high = row.images_per_s.ends
        assert low <= row.mean_of_rates <= high
    assert t4.mean_of_rates / t4.wall_images_per_s == pytest.approx(2.08, abs=5e-3)


def test_figures_of_models_are_explained_or_do_not_follow() -> None:
    claims = published.figures()["claim"]
    assert len(claims) == 25
    wrong = [(each["report"], each["model"], each["printed"]) for each in claims if not published.claimed(each)[2]]
    # The first is an estimate without a source, the second rounds to 3.7, the others are slips of a multiplication.
    assert wrong == [
        ("A", "mobilenet_v2", "220"),
        ("C", "resnet34", "3.6"),
        ("C", "resnet18", "7.09"),
        ("C", "resnet18", "28.20"),
    ]


def test_operations_of_the_reports_are_half_of_the_flop() -> None:
    claims = {(each["report"], each["printed"]): published.claimed(each) for each in published.figures()["claim"]}
    # A training step less the first layer's input gradient; modelled bytes of a batch of 32.
    assert claims["A", "12.27"][1] == "24.3"
    assert claims["A", "227"][1] == "29.8 to 96.2"
    assert claims["B", "270"][1] == "1555"


def test_intensity_of_table_a_is_one_of_parameters() -> None:
    """The figures of its public file, to its last digits."""
    found = [published.claimed(each)[0] for each in published.figures()["claim"] if each["from"] == "intensity"]
    in_file = [227.11903098091497, 234.0014258591245, 237.60144779541875, 229.83169367286084, 132.39833332660277]
    assert found == pytest.approx(in_file, rel=1e-14)


def test_table_b_intensity() -> None:
    rows = published.table_b()
    assert len(rows) == 9
    # In two cells, the values that the report prints for the L4 do not follow from its own figures.
    assert {(row.model, row.gpu) for row in rows if not row.agrees} == {("ResNet50", "L4"), ("MobileNet", "L4")}


def test_table_b_misses_tensor_operations_on_the_l4() -> None:
    rows = {(row.model, row.gpu): row for row in published.table_b()}
    flagged = {key: row.warning for key, row in rows.items() if row.warning}
    assert flagged == {
        ("ResNet50", "L4"): "counted FLOP are 0.12 x the model's: tensor operations or the backward pass are missing",
        ("MobileNet", "L4"): (
            "counted FLOP are 2.84 x the model's: padding, recomputation, or more steps than were said"
        ),
    }
    l4 = rows["ResNet50", "L4"]
    assert l4.counted_flop == pytest.approx(204.8e9 * 0.9508)
    # 64 images of 24.2991 GFLOP; the T4 and the V100 count 0.79 of them.
    step = published.train_flop("resnet50", batch_size=64)
    assert step == pytest.approx(1555.1e9, rel=1e-4)
    assert l4.counted_flop / step == pytest.approx(0.125, abs=5e-4)
    for gpu in ("T4", "V100"):
        assert rows["ResNet50", gpu].counted_flop / step == pytest.approx(0.788, abs=1e-3)


def test_table_b_seconds_are_milliseconds() -> None:
    for row in published.table_b():
        low, high = row.estimate.ends
        assert low <= 1000 * row.estimate_s <= high
    resnet50 = next(row for row in published.table_b() if (row.model, row.gpu) == ("ResNet50", "T4"))
    assert resnet50.estimate_s == pytest.approx(0.03333, abs=5e-6)


def test_table_c_rates_and_intensities() -> None:
    rows = published.table_c()
    assert [row.id for row in rows] == ["A-1", "A-2", "B-1", "B-2", "C-2"]
    assert all(row.rate_agrees and row.intensity_agrees for row in rows)
    # A profile of forward passes called training steps.
    for row in rows:
        assert 1.0 <= row.over_forward <= 1.3
        assert 0.3 <= row.over_step <= 0.45
        assert "the backward pass are missing" in row.warning


@needs_data
def test_table_c_to_the_printed_digits_from_its_file() -> None:
    exact = published.row_a1(DATA)
    assert f"{exact.gflop_per_s:.3f}" == "668.144"
    assert f"{exact.binary_intensity:.6f}" == "6.623475"
    assert f"{exact.intensity:.3f}" == "6.942"
    assert f"{exact.joined_dram_percent:.3f}" == "23.164"
    assert f"{exact.joined_sm_percent:.3f}" == "13.647"
    assert f"{exact.dram_percent:.2f}" == "32.14"
    assert exact.backward_kernels == 0


@needs_data
def test_page_is_what_the_script_writes() -> None:
    page = (ROOT / "docs" / "published-tables.md").read_text(encoding="utf-8")
    assert page == published.page(DATA) + "\n"


# --- everything in the reports

TABLES = {
    "summary": {column.name for column in throughput.COLUMNS},
    "points": set(points.POINT_COLUMNS),
    "roofs": {column.name for column in roofline.ROOFS},
    "compare": {column.name for column in ratios.COLUMNS},
    "within": {column.name for column in variance.WITHIN_COLUMNS},
    "kernels": set(breakdown.COLUMNS),
    "predict": set(predictions.COLUMNS),
    "complexity": {column.name for column in complexity_command.FILE},
    "runs": set(run_row.RUN_COLUMNS),
    "steps": set(STEP_COLUMNS),
    "telemetry": set(TELEMETRY_COLUMNS),
}
ITEMS = [(letter, row) for letter, rows in published_items.items().items() for row in rows]
# Reports in ../shared/reports by letter; A has a README of its own.
REPORTS = {"A": ("000", "001"), "B": ("002",), "C": ("004",), "D": ("003",)}
FILE_NAME = re.compile(r"[\w<>-]+\.(?:py|csv|png|json|txt|ipynb|md|zip)\b")


@pytest.mark.parametrize(("letter", "row"), ITEMS, ids=[f"{letter}-{row['item'][:40]}" for letter, row in ITEMS])
def test_each_item_has_a_command_that_exists_or_a_reason(letter: str, row: Mapping[str, Any]) -> None:
    assert set(row) <= {"item", "command", "figure", "columns", "note", "place", "page"}
    assert "command" in row or row["note"].startswith(("not yet", "not needed")), letter
    assert (ROOT / "docs" / row.get("page", "gcp.md")).is_file()
    if "command" in row:
        grammar.check(row["command"])
    assert row.get("figure", "cost") in registry.REGISTRY
    for name in row.get("columns", ()):
        table, _, column = name.partition(".")
        assert column in TABLES[table], name


def test_items_without_a_command_are_what_is_not_needed() -> None:
    without = {row["item"] for _, row in ITEMS if "command" not in row}
    assert without == {
        "download_pytorch_example.py",
        "setup_project_structure.py",
    }


# Words that name a place in the reports: services, clusters, systems, machine types and devices.
PLACE = re.compile(
    r"\b(?:Colab|Kaggle|Windows|Linux|macOS|Mac|MPS|Greene|Burst|laptop|bare.metal|GCP|CPU|i9-\w+|RTX \d{4}"
    r"|[TL]4|[VA]100|n1s8-\w+-\d|g2-standard-\d+)\b",
    re.IGNORECASE,
)
needs_reports = pytest.mark.skipif(not (ROOT.parent / "shared" / "reports").is_dir(), reason="needs ../shared/reports")


@needs_reports
@pytest.mark.parametrize(("letter", "count"), [("A", 6), ("B", 3), ("C", 3), ("D", 4)])
def test_every_place_that_a_report_names_is_in_the_table_of_places(letter: str, count: int) -> None:
    folder = ROOT.parent / "shared" / "reports"
    text = "\n".join(next(folder.glob(f"{number}_*")).read_text(encoding="utf-8") for number in REPORTS[letter])

    def places(of: str) -> set[str]:
        return {re.sub(r"\W", " ", name.lower()) for name in PLACE.findall(of)}

    rows = [row for of, row in ITEMS if of == letter and row.get("place")]
    assert places(text) - places("\n".join(row["item"] for row in rows)) == set()
    assert len(rows) == count
    assert all(places(row["item"]) for row in rows)


@needs_reports
@pytest.mark.parametrize("letter", REPORTS)
def test_every_file_and_column_that_a_report_names_is_an_item(letter: str) -> None:
    folder = ROOT.parent / "shared" / "reports"
    text = "\n".join(next(folder.glob(f"{number}_*")).read_text(encoding="utf-8") for number in REPORTS[letter])
    items = "\n".join(row["item"] for of, row in ITEMS if of == letter)
    named = {name for name in FILE_NAME.findall(text) if name not in items}
    lines = text.splitlines()
    headings = {
        cell.strip()
        for line, rule in pairwise(lines)
        if re.fullmatch(r"\|[\s|-]+\|\s*", rule)
        for cell in line.strip().strip("|").split("|")
    } | {
        cell.strip()
        for line in lines
        if line.startswith(("Model\t", "ID\t", "Architecture\t"))
        for cell in line.split("\t")
    }
    assert (named, {heading for heading in headings if heading not in items}) == (set(), set())
