"""A fixed slice of `benchmarks/fuzz.py`: mutated bundles and logs through every reader. More: `--cases 10000`."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.loading.run_row import RUN_COLUMNS, row_of
from analysis.loading.series import LAYOUTS, parse, refusals
from benchmarks import fuzz
from workload.contract import bundle
from workload.contract.errors import BundleError
from workload.contract.fields import RANGES

SEED = 2026


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuzz.bundles(tmp_path_factory.mktemp("fuzz") / "base")


# 7 is a file to import; 0 makes a report too.
@pytest.mark.parametrize(
    "number", [*range(4), *(pytest.param(number, marks=pytest.mark.slow) for number in range(4, 12))]
)
def test_readers_hold(base: Path, tmp_path: Path, number: int) -> None:
    assert fuzz.run_case(base, tmp_path / "case", seed=SEED, number=number)


def bundles_of_the_project() -> list[Path]:
    return sorted(path.parent for path in fuzz.REAL.glob(f"*/{bundle.MANIFEST}"))


@pytest.mark.parametrize("folder", bundles_of_the_project(), ids=["first", "second"])
def test_real_bundles_are_whole_and_say_nothing_of_a_machine(folder: Path) -> None:
    assert bundle.read(folder).document["status"] == "completed"
    text = "".join(path.read_text() for path in folder.iterdir())
    assert not any(word in text for word in ("/home/", "/root", "/work", "/tmp"))


def test_any_run_json_is_a_row_within_its_ranges_or_refused() -> None:
    """300 of the mutations of the fuzzer at the border itself, which takes a millisecond each."""
    text = (bundles_of_the_project()[0] / bundle.RECORD).read_bytes()
    refused = remarks = 0
    for number in range(300):
        done: list[str] = []
        try:
            document = json.loads(fuzz.mutate_json(text, random.Random(f"{SEED}-{number}"), done))
        except (ValueError, RecursionError):
            continue
        if not isinstance(document, dict):
            continue
        try:
            row = row_of(document)
        except BundleError:
            refused += 1
            continue
        remarks += bool(row.remarks)
        for name, kind in RUN_COLUMNS.items():
            value: Any = row.cells[name]
            if kind in RANGES and value and name != "images_per_s":
                low, high, _ = RANGES[kind]
                assert low <= value <= high, (name, done)
    # Both sides are met often, else this test would say nothing.
    assert refused > 5
    assert remarks > 5


def test_any_steps_are_rows_that_can_be_or_refused() -> None:
    text = (bundles_of_the_project()[0] / bundle.STEPS).read_bytes()
    refused = 0
    for number in range(300):
        mutated = fuzz.mutate_csv(text, random.Random(f"{SEED}-{number}"), [])
        series = parse(LAYOUTS["steps"], [mutated])
        reason = refusals(series.lists, imported=[False])[0]
        refused += bool(reason or series.remarks[0])
        if not reason:
            rows = series.lists[0].as_py()
            assert all(row["step_s"] > 0 and row["images"] >= 1 for row in rows)
            assert all(earlier["step"] < later["step"] for earlier, later in pairwise(rows))
    assert refused > 100
