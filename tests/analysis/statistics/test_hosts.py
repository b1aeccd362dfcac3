"""Variances between runs, hosts and zones, and the place in the block: textbook numbers and written answers."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.hosts import PlacedRun, machine_split, position_effect

ZONE = "us-central1-a"


def grid(figures: np.ndarray, *, zone: str = ZONE) -> list[PlacedRun]:
    """Rows are hosts, columns are configurations."""
    return [
        PlacedRun(figure=float(figure), configuration=column, host=f"{zone}-{row}", zone=zone, block=row)
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
    assert (split.runs, split.hosts, split.zones) == (12, 4, 1)
    assert split.between_runs.value == pytest.approx(math.sqrt(by_run))
    assert split.between_runs.reason == "includes the noise of steps within runs"
    assert split.between_hosts.value == pytest.approx(math.sqrt(max(0.0, by_host - by_run) / 3))
    interval = split.between_hosts.interval
    assert interval is not None
    limit = (3 * by_host - 3 * by_run * stats.f.ppf(0.025, 3, 6)) / stats.chi2.ppf(0.025, 3) / 3
    assert interval.high == pytest.approx(math.sqrt(limit))
    assert split.between_zones.reason == "unknown: 1 zone"


def test_hosts_within_zones() -> None:
    rng = np.random.default_rng(1)
    runs = [
        PlacedRun(
            figure=float(np.exp(zone_effect + host_effect + 0.01 * rng.normal())), configuration=0, host=host, zone=zone
        )
        for zone, zone_effect in enumerate(0.2 * rng.normal(size=3))
        for host, host_effect in enumerate(0.05 * rng.normal(size=2))
        for _ in range(2)
    ]
    logs = np.log([run.figure for run in runs]).reshape(3, 2, 2)

    split = machine_split(runs)

    squares = 4 * logs.mean(axis=(1, 2)).var(ddof=1), 2 * logs.mean(axis=2).var(axis=1, ddof=1).mean()
    assert split.between_zones.value == pytest.approx(math.sqrt((squares[0] - squares[1]) / 4))
    by_run = logs.var(axis=2, ddof=1).mean()
    assert split.between_hosts.value == pytest.approx(math.sqrt((squares[1] - by_run) / 2))
    assert split.between_zones.interval is not None
    # Hosts of two zones that have one name are two hosts.
    assert split.hosts == 6


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


def one_configuration(hosts: Sequence[str | None], zones: Sequence[str] = ()) -> list[PlacedRun]:
    places = zones or [ZONE] * len(hosts)
    return [
        PlacedRun(figure=100.0 + number, configuration="resnet18", host=host, zone=zone)
        for number, (host, zone) in enumerate(zip(hosts, places, strict=True))
    ]


@pytest.mark.parametrize(
    ("runs", "between_runs", "between_hosts", "between_zones"),
    [
        pytest.param([], "no run with a known machine", "unknown: 0 machines", "unknown: no zone is known", id="none"),
        pytest.param(
            one_configuration([None, None]),
            "no run with a known machine; 2 runs without a known machine left out",
            "unknown: 0 machines",
            "unknown: no zone is known",
            id="hosts unknown",
        ),
        pytest.param(
            one_configuration(["a", "a", "a"]),
            "includes the noise of steps within runs",
            "unknown: 1 machine",
            "unknown: 1 zone",
            id="one host",
        ),
        pytest.param(
            one_configuration(["a", "b", "c"]),
            "no machine has run a configuration twice, nor two configurations",
            "unknown: one run on each machine; machines and runs together vary by 0.99 %",
            "unknown: 1 zone",
            id="one run a host",
        ),
        pytest.param(
            one_configuration(["a", "a", "b", "b"], ["x", "x", "y", "y"]),
            "includes the noise of steps within runs",
            "unknown: one machine in each zone, or machines and configurations coincide",
            "unknown: one machine in each zone, so zones and machines cannot be separated",
            id="one host a zone",
        ),
    ],
)
def test_what_is_unknown_is_said(
    runs: list[PlacedRun], between_runs: str, between_hosts: str, between_zones: str
) -> None:
    split = machine_split(runs)

    estimates = (split.between_runs, split.between_hosts, split.between_zones)
    assert tuple(estimate.reason for estimate in estimates) == (between_runs, between_hosts, between_zones)
    assert split.between_hosts.value is None
    assert split.between_hosts.interval is None


@pytest.mark.parametrize(("count", "host_effect"), [(2, 0.05), (3, 0.02), (10, 0.02), (5, 0.005)])
def test_coverage_between_hosts(count: int, host_effect: float) -> None:
    rng = np.random.default_rng(count)
    held = []
    for _ in range(300):
        logs = host_effect * rng.normal(size=(count, 1)) + 0.005 * rng.normal(size=(count, 4))
        interval = machine_split(grid(np.exp(logs))).between_hosts.interval
        assert interval is not None
        held.append(interval.holds(host_effect))
    error = 3 * math.sqrt(0.05 * 0.95 / len(held))
    assert 0.93 - error <= np.mean(held) <= 0.97 + error


# --- the place of a run in its block


def ordered(
    rng: np.random.Generator, *, first: float = 1.0, per_position: float = 1.0, shuffled: bool = True
) -> list[PlacedRun]:
    """6 blocks of 4 configurations."""
    runs = []
    for block in range(6):
        order = rng.permutation(4) if shuffled else np.arange(4)
        for position, configuration in enumerate(order):
            effect = first if position == 0 else per_position ** (position - 1)
            figure = (1.0 + configuration) * effect * math.exp(0.02 * block + 0.002 * rng.normal())
            runs.append(
                PlacedRun(figure=figure, configuration=int(configuration), block=block, position=float(position))
            )
    return runs


def test_a_cold_first_run_and_a_machine_that_tires() -> None:
    effect = position_effect(ordered(np.random.default_rng(0), first=0.95, per_position=0.99))

    assert effect.first.value == pytest.approx(0.95, abs=0.004)
    assert effect.per_position.value == pytest.approx(0.99, abs=0.002)
    assert effect.p_value is not None
    assert effect.p_value < 1e-6


def test_no_effect_is_found_in_one_of_twenty() -> None:
    rng = np.random.default_rng(3)
    p_values = [position_effect(ordered(rng)).p_value or 0.0 for _ in range(200)]

    assert 0.01 < np.mean(np.array(p_values) < 0.05) < 0.1


def test_blocks_of_two_have_a_first_run_and_no_trend() -> None:
    runs = [
        PlacedRun(
            figure=math.exp(0.1 * (place == 0) + noise), configuration=(place + block) % 2, block=block, position=place
        )
        for block in range(6)
        for place, noise in enumerate(0.001 * np.random.default_rng(block).normal(size=2))
    ]

    effect = position_effect(runs)

    assert effect.first.value == pytest.approx(math.exp(0.1), rel=0.005)
    assert effect.per_position.reason == "blocks of two runs are too short for a trend"


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        pytest.param([], "no run has its position in a block", id="no run"),
        pytest.param(one_configuration(["a", "b"]), "no run has its position in a block", id="no blocks"),
        pytest.param(
            ordered(np.random.default_rng(0), shuffled=False),
            "positions and configurations cannot be separated: all blocks have the same order",
            id="one order",
        ),
        pytest.param(
            [
                PlacedRun(figure=1.0 + name, configuration=name, block=block, position=float(position))
                for block, order in enumerate([(0, 1), (1, 0)])
                for position, name in enumerate(order)
            ],
            "4 runs: too few for a test of their positions",
            id="two blocks of two",
        ),
    ],
)
def test_no_position_effect_has_a_reason(runs: list[PlacedRun], reason: str) -> None:
    effect = position_effect(runs)

    assert effect.reason == effect.first.reason == effect.per_position.reason == reason
    assert effect.p_value is None
