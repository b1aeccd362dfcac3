"""`analyze variance`, `compare` and `audit` from the command line's side: formats, exit codes, messages."""

import csv
import io
import json
from typing import Any

import pytest

from analysis.api import Results
from tests.analysis.by_hand import noisy, results, run
from tests.analysis.in_process import Analyze

PLACES = ("here", "there")


@pytest.fixture
def analyze(monkeypatch: pytest.MonkeyPatch, analyze: Analyze) -> Analyze:
    """Run a command on results made by hand."""

    def call(*words: str, on: Results | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("analysis.load", lambda *_, **__: on)
        return analyze(*words)

    return call


def two_places(**facts: Any) -> Results:
    runs = [
        run(f"{place}{number}", place=place, steps=noisy(seed=number, step_s=0.1 + 0.001 * number), **facts)
        for place in PLACES
        for number in range(3)
    ]
    return results(*runs)


# --- variance


@pytest.mark.parametrize(("part", "length"), [("between", 2), ("within", 6), ("causes", 6)])
def test_variance_as_data(analyze: Analyze, part: str, length: int) -> None:
    made = two_places(data_wait_fraction=0.3)
    _, whole, _ = analyze("variance", "results", "--format", "json", on=made)
    _, one, _ = analyze("variance", "results", "--part", part, "--format", "json", on=made)
    _, lines, _ = analyze("variance", "results", "--part", part, "--format", "csv", on=made)
    assert len(json.loads(one)) == length
    assert json.loads(whole)[part] == json.loads(one)
    assert len(list(csv.DictReader(io.StringIO(lines)))) == length


# --- audit


def test_an_audit_as_data(analyze: Analyze) -> None:
    made = two_places(commit_dirty=True)
    _, text, _ = analyze("audit", "results", "--format", "json", on=made)
    _, lines, _ = analyze("audit", "results", "--format", "csv", on=made)
    findings, rows = json.loads(text), list(csv.DictReader(io.StringIO(lines)))
    assert len(findings) == len(rows) == 1
    assert findings[0]["rule"] == rows[0]["rule"] == "uncommitted changes"
    assert (
        findings[0]["subject"]
        == rows[0]["subject"].split()
        == [f"{place}{number}" for place in PLACES for number in range(3)]
    )
    assert set(findings[0]) == {"rule", "severity", "subject", "figure", "threshold", "why", "cure"}
