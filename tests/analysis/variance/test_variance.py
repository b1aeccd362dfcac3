"""Variation within and between runs, in numbers computed by hand or by scipy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.audit import audit
from analysis.variance.tables import BETWEEN_COLUMNS, WITHIN_COLUMNS, between, machines, within
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


def test_a_steady_run() -> None:
    row = one(run(steps=noisy(n=100)))

    assert row["steady"] is True
    assert row["warmup_steps"] == 0
    assert row["effective_steps"] > 20
    assert abs(row["drift"]) < 0.001
    assert row["drift_low"] <= 0 <= row["drift_high"]
    assert row["note"] is None


def test_a_drift_is_a_fraction_of_the_step_over_the_run() -> None:
    steps = 0.1 + 0.0002 * np.arange(100) + np.tile([1e-5, -1e-5], 50)

    row = one(run(steps=list(steps)))

    assert row["steady"] is False
    assert row["warmup_steps"] == 0
    # 99 times 0.2 ms over a median of 109.9 ms.
    assert row["drift"] == pytest.approx(99 * 0.0002 / 0.1099, rel=0.005)
    assert row["drift_low"] < row["drift"] < row["drift_high"]
    assert row["note"] == "drifts by +18 % over 100 steps: no steady state"


def test_what_the_note_says_the_audit_finds() -> None:
    """Table and audit use the same rule: both report a real drift, and neither reports wandering noise."""
    rng = np.random.default_rng(1)
    for seed in range(12):
        slope = 0.0008 * (seed % 2)
        steps = noisy(seed=seed, n=40, share=0.02) + slope * np.arange(40) + 0.001 * rng.standard_normal()
        made = results(run(steps=list(steps)))
        (row,) = within(made).to_dict("records")
        rules = {finding.rule for finding in audit(made)}
        assert (row["steady"] is False) == ("unsteady steps" in rules)
        assert ("no steady state" in (row["note"] or "")) == (row["steady"] is False)


def test_a_period_is_told() -> None:
    steps = np.array(noisy())
    steps[::10] *= 0.4

    row = one(run(steps=list(steps)))

    assert (row["period_steps"], row["period_ratio"]) == (10, pytest.approx(0.4, rel=0.01))


def test_correlated_steps_are_worth_few() -> None:
    rng = np.random.default_rng(0)
    level = 0.0
    steps = []
    for _ in range(200):
        level = 0.95 * level + rng.standard_normal()
        steps.append(0.1 * (1 + 0.001 * level))

    row = one(run(steps=steps))

    assert row["autocorrelation"] > 0.8
    assert row["effective_steps"] < 30


def test_warmup_steps_and_runs_without_steps_are_left_out() -> None:
    table = within(results(run("a", steps=[0.1] * 9), run("b", steps=[])))

    # The helper puts one warm-up step of 0.2 s before the measured ones.
    assert list(table["run_id"]) == ["a"]
    assert list(table["steps"]) == [9]


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
    assert row["icc"] > 0.999


def test_one_run_has_no_interval() -> None:
    (row,) = between(results(run())).to_dict("records")

    assert row["interval"] == "one run: no interval"
    assert all(pd.isna(row[name]) for name in ("images_per_s_low", "cov_between", "icc"))
    assert row["note"] is None


def test_unlike_runs_are_not_pooled_and_say_why() -> None:
    table = between(results(run("a"), run("b", driver_version="570.1")))

    assert list(table["runs"]) == [1, 1]
    assert list(table["note"]) == ["driver 580.95.05", "driver 570.1"]


def test_runs_that_broke_off_are_no_replicates() -> None:
    table = between(results(run("a"), run("b", status="interrupted")))

    assert list(table["runs"]) == [1]


@pytest.mark.parametrize("table", [within, between])
def test_nothing_measured_gives_an_empty_table(table: Any) -> None:
    columns = WITHIN_COLUMNS if table is within else BETWEEN_COLUMNS

    found: pd.DataFrame = table(results(run(steps=[], step_median_s=None)))

    assert found.empty
    assert list(found.columns) == [column.name for column in columns]


# --- machines


def matrix(*, hosts: int, zones: tuple[str | None, ...] = (None,), shuffled: bool = True) -> list[dict[str, Any]]:
    """3 configurations in a block on each host; hosts vary by 5 %, runs by 0.5 %."""
    rng = np.random.default_rng(5)
    made = []
    for block in range(hosts):
        host = np.exp(0.05 * rng.normal())
        order = rng.permutation(3) if shuffled else range(3)
        for position, model in enumerate(order):
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
                    zone=zones[block % len(zones)],
                )
            )
    return made


def test_a_matrix_splits_runs_from_hosts() -> None:
    (row,) = machines(results(*matrix(hosts=6))).to_dict("records")

    assert (row["runs"], row["hosts"], row["configurations"]) == (18, 6, 3)
    assert row["cov_runs_low"] < 0.005 < row["cov_runs_high"]
    assert row["cov_hosts_low"] < 0.05 < row["cov_hosts_high"]
    assert row["first_ratio_low"] < 1 < row["first_ratio_high"]
    assert 0.01 < row["p_order"] < 1
    assert (row["device_name"], row["model"]) == ("NVIDIA L4", None)
    assert row["note"] is None


def test_zones_are_split_where_they_are_known() -> None:
    (row,) = machines(results(*matrix(hosts=8, zones=("us-central1-a", "us-east1-b")))).to_dict("records")

    assert (row["hosts"], row["zones"]) == (8, 2)
    assert row["cov_zones_high"] > row["cov_zones_low"] >= 0


@pytest.mark.parametrize(
    ("runs", "note"),
    [
        pytest.param(
            [run("a", hostname="laptop"), run("b", hostname="laptop")], "between machines: unknown: 1 machine", id="one"
        ),
        pytest.param(
            matrix(hosts=4, shuffled=False),
            "order: positions and configurations cannot be separated: all blocks have the same order",
            id="one order",
        ),
    ],
)
def test_what_the_machines_do_not_say(runs: list[dict[str, Any]], note: str) -> None:
    (row,) = machines(results(*runs)).to_dict("records")

    assert note in row["note"]


def test_one_run_and_runs_on_unknown_hosts_have_no_row() -> None:
    assert machines(results(run(hostname="laptop"), run("b"), run("c"))).empty
