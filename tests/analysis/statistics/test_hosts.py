"""Variances between runs and hosts: textbook numbers and written answers."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.components import PlacedRun, machine_split


def grid(figures: np.ndarray) -> list[PlacedRun]:
    """Rows are hosts, columns are configurations."""
    return [
        PlacedRun(figure=float(figure), configuration=column, host=row)
        for row, line in enumerate(figures)
        for column, figure in enumerate(line)
    ]


def test_a_full_grid_as_textbooks_have_it() -> None:
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(4, 3)) + np.array([0.0, 1.0, 5.0])
    split = machine_split(grid(np.exp(logs)))
    by_host = 3 * logs.mean(axis=1).var(ddof=1)
    rest = logs - logs.mean(axis=0) - logs.mean(axis=1)[:, None] + logs.mean()
    by_run = float((rest**2).sum() / 6)
    assert (split.runs, split.hosts) == (12, 4)
    assert split.between_runs.value == pytest.approx(math.sqrt(by_run))
    assert split.between_runs.reason == "includes the noise of steps within runs"
    assert split.between_hosts.value == pytest.approx(math.sqrt(max(0.0, by_host - by_run) / 3))
    interval = split.between_hosts.interval
    assert interval is not None
    limit = (3 * by_host - 3 * by_run * stats.f.ppf(0.025, 3, 6)) / stats.chi2.ppf(0.025, 3) / 3
    assert interval.high == pytest.approx(math.sqrt(limit))


def test_the_noise_of_steps_is_taken_off() -> None:
    logs = 0.01 * np.random.default_rng(2).normal(size=(2, 5))
    bare = [
        PlacedRun(figure=float(np.exp(one)), configuration=0, host=row) for row, line in enumerate(logs) for one in line
    ]
    noisy = [PlacedRun(**{**vars(run), "noise": 0.00002, "noise_degrees": 10.0}) for run in bare]
    plain, split = machine_split(bare), machine_split(noisy)
    assert plain.between_runs.value is not None
    assert split.between_runs.value == pytest.approx(math.sqrt(plain.between_runs.value**2 - 0.00002))
    assert split.between_runs.reason is None
    assert machine_split([PlacedRun(**{**vars(run), "noise": 1.0}) for run in noisy]).between_runs.reason == (
        "runs differ no more than the steps within them explain"
    )


def one_configuration(*hosts: str | None) -> list[PlacedRun]:
    return [PlacedRun(figure=100.0 + number, configuration="a", host=host) for number, host in enumerate(hosts)]


@pytest.mark.parametrize(
    ("runs", "between_runs", "between_hosts"),
    [
        ([], "no run with a known machine", "unknown: 0 machines"),
        (
            one_configuration(None, None),
            "no run with a known machine; 2 runs without a known machine left out",
            "unknown: 0 machines",
        ),
        (one_configuration("a", "a", "a"), "includes the noise of steps within runs", "unknown: 1 machine"),
        (
            one_configuration("a", "b", "c"),
            "no machine has run a configuration twice, nor two configurations",
            "unknown: one run on each machine; machines and runs together vary by 0.99 %",
        ),
        (
            [PlacedRun(figure=100.0 + run, configuration=name, host=name) for name in "ab" for run in range(3)],
            "includes the noise of steps within runs",
            "unknown: machines and configurations coincide",
        ),
    ],
)
def test_unknown_variance_has_a_reason(runs: list[PlacedRun], between_runs: str, between_hosts: str) -> None:
    split = machine_split(runs)
    assert (split.between_runs.reason, split.between_hosts.reason) == (between_runs, between_hosts)
    assert (split.between_hosts.value, split.between_hosts.interval) == (None, None)
