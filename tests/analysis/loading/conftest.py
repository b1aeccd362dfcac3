"""Fixtures of tests of the files in `.analysis/`: a folder with three bundles."""

from pathlib import Path

import pytest

from analysis.loading import index
from benchmarks.synthetic_bundles import make


@pytest.fixture
def of_few_bundles_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of three bundles is read and written as one of thousands is."""
    monkeypatch.setattr(index, "FEWEST", 1)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for number in range(3):
        make(tmp_path / "results", number)
    return tmp_path / "results"
