"""Known features of public logs of real trainings; skipped without these logs."""

import csv
from pathlib import Path

import numpy as np
import pytest

from analysis.statistics.autocorrelation import effective_n
from analysis.statistics.describe import summarize
from analysis.statistics.periods import period_scan
from analysis.statistics.samples import Floats
from analysis.statistics.stalls import outliers
from analysis.statistics.steady import steady_state
from analysis.statistics.trend import drift

LOGS = Path(__file__).parents[3].parent / "shared" / "data" / "iterations"
pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason="../shared/data is not here")


def milliseconds(name: str) -> Floats:
    with (LOGS / f"{name}.csv").open() as file:
        return np.array([float(row["iter_time_ms"]) for row in csv.DictReader(file)])


def test_a_missing_synchronisation_at_print_frequency_10() -> None:
    steps = milliseconds("rtx4080laptop_resnet50_b64")
    found = period_scan(steps)
    assert (found.found, found.period, found.phase) == (True, 10, 1)
    assert found.ratio == pytest.approx(0.40, abs=0.005)
    assert found.consistency == 1.0
    fast = outliers(steps) & (steps < np.median(steps))
    assert np.flatnonzero(fast).tolist() == list(range(1, 100, 10))


@pytest.mark.parametrize(
    "name", ["rtx4080laptop_resnet50_b128", "t4_resnet18_b128", "h100_resnet50_amp_b1280", "rtx4090_resnet50_fp32_b224"]
)
def test_no_period_in_the_others(name: str) -> None:
    assert not period_scan(milliseconds(name)).found


def test_188_steps_of_an_h100_are_worth_four() -> None:
    steps = milliseconds("h100_resnet50_amp_b1280")
    state = steady_state(steps)
    assert (state.steady, state.warmup_steps) == (True, 1)
    rest = steps[2:]
    assert effective_n(rest, robust=False).lag1 == pytest.approx(0.918, abs=0.001)
    assert effective_n(rest).effective == pytest.approx(3.5, abs=0.1)
    found = drift(rest)
    assert found.certain
    assert found.change == pytest.approx(-0.0023, abs=0.0001)


@pytest.mark.parametrize(
    ("name", "robust_cov", "cov"),
    [
        ("h100_resnet50_amp_b1280", 0.00102, 0.553),
        ("rtx4090_resnet50_fp32_b224", 0.000283, 0.607),
        ("rtx4080laptop_resnet50_b64", 0.00289, 0.191),
        ("t4_resnet18_b128", 0.586, 0.424),
    ],
)
def test_robust_cov(name: str, robust_cov: float, cov: float) -> None:
    found = summarize(milliseconds(name))
    assert found.robust_cov == pytest.approx(robust_cov, rel=0.01)
    assert found.cov == pytest.approx(cov, rel=0.01)


def test_what_a_spilling_memory_hides() -> None:
    """39 steps from 0.9 to 8.6 s: `scattered steps` is what is certain of them."""
    found = steady_state(milliseconds("rtx4080laptop_resnet50_b128"))
    assert found.unseen == "a change of less than 140 % over a fifth of the run cannot be seen in 39 steps"
