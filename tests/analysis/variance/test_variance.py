"""Variation within and between runs, in numbers computed by hand or by scipy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.variance import BETWEEN_COLUMNS, WITHIN_COLUMNS, between, machines, within
from tests.analysis.by_hand import noisy, results, run


def one(*runs: dict[str, Any]) -> dict[str, Any]:
    (row,) = within(results(*runs)).to_dict("records")
    return row


# --- within


def test_figures_of_a_run() -> None:
    steps = [0.10, 0.11, 0.12, 0.13, 0.19]
    row = one(run(steps=steps))
    assert row["steps"] == 5
    assert row["step_median_s"] == 0.12
    # The median deviation from 0.12 is 0.01.
    assert row["robust_cov"] == pytest.approx(1.4826 * 0.01 / 0.12, rel=1e-4)
    assert row["cov"] == pytest.approx(np.std(steps, ddof=1) / np.mean(steps))
    assert row["step_p95_s"] == pytest.approx(np.percentile(steps, 95))
    assert row["steady"] is None
    assert row["note"] == "5 steps: at least 8 are needed; 5 steps: at least 20 are needed"


def test_a_drift_is_a_fraction_of_the_step_over_the_run() -> None:
    steps = 0.1 + 0.0002 * np.arange(100) + np.tile([1e-5, -1e-5], 50)
    row = one(run(steps=list(steps)))
    assert row["steady"] is False
    assert row["warmup_steps"] == 0
    # 99 times 0.2 ms over a median of 109.9 ms.
    assert row["drift"] == pytest.approx(99 * 0.0002 / 0.1099, rel=0.005)
    assert row["note"] == "drifts by +18 % over 100 steps: no steady state"


# --- between


def repeats(rates: tuple[float, ...], **facts: Any) -> list[dict[str, Any]]:
    return [run(f"r{number}", steps=noisy(seed=number, step_s=32 / rate), **facts) for number, rate in enumerate(rates)]


def test_the_spread_between_runs() -> None:
    rates = (310.0, 320.0, 330.0)
    (row,) = between(results(*repeats(rates))).to_dict("records")
    assert row["runs"] == 3
    assert row["images_per_s"] == pytest.approx(320, rel=1e-3)
    assert row["images_per_s_low"] < 310
    assert row["images_per_s_high"] > 330
    assert row["interval"] == "95 %, Student t over runs (about 90 % in place of 95 % if runs fall into two modes)"
    # Standard deviation of the logarithms of the rates; steps within runs vary by 0.1 %.
    assert row["cov_between"] == pytest.approx(np.log(rates).std(ddof=1), rel=0.01)
    assert row["cov_within"] == pytest.approx(0.001, rel=0.2)


@pytest.mark.parametrize("table", [within, between])
def test_nothing_measured_gives_an_empty_table(table: Any) -> None:
    columns = WITHIN_COLUMNS if table is within else BETWEEN_COLUMNS
    found: pd.DataFrame = table(results(run(steps=[], step_median_s=None)))
    assert found.empty
    assert list(found.columns) == [column.name for column in columns]


# --- machines


def matrix(*, hosts: int) -> list[dict[str, Any]]:
    """3 configurations in a block on each host; hosts vary by 5 %, runs by 0.5 %."""
    rng = np.random.default_rng(5)
    made = []
    for block in range(hosts):
        host = np.exp(0.05 * rng.normal())
        for position, model in enumerate(rng.permutation(3)):
            rate = 100.0 * (1 + model) * host * np.exp(0.005 * rng.normal())
            made.append(
                run(
                    f"b{block}m{model}",
                    model=f"resnet{model}",
                    steps=noisy(seed=3 * block + int(model), step_s=32 / rate),
                    images_per_s=rate,
                    job_name="sweep",
                    block=float(block),
                    position=float(position + 1),
                    hostname=f"vm-{block}",
                )
            )
    return made


def test_a_matrix_splits_runs_from_hosts() -> None:
    (row,) = machines(results(*matrix(hosts=6))).to_dict("records")
    assert (row["runs"], row["hosts"], row["configurations"]) == (18, 6, 3)
    assert row["cov_runs_low"] < 0.005 < row["cov_runs_high"]
    assert row["cov_hosts_low"] < 0.05 < row["cov_hosts_high"]
    assert (row["device_name"], row["model"]) == ("NVIDIA L4", None)
    assert row["note"] is None


def test_one_machine_has_no_variance_between_machines() -> None:
    (row,) = machines(results(run("a", hostname="laptop"), run("b", hostname="laptop"))).to_dict("records")
    assert "between machines: unknown: 1 machine" in row["note"]


def test_one_run_and_runs_on_unknown_hosts_have_no_row() -> None:
    assert machines(results(run(hostname="laptop"), run("b"), run("c"))).empty
