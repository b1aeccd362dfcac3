from array import array

import pytest

from workload.contract.record import StepSeconds, Timing
from workload.measure.cpu_time import CpuShare
from workload.measure.recorder import PhaseTotals
from workload.measure.timing import summarize

STARTED_AT = "2026-11-21T10:00:00+00:00"


def test_throughput_is_images_over_wall_time_not_a_mean_of_rates() -> None:
    totals = PhaseTotals(step_s=array("d", [1.0, 3.0]), data_s=array("d", [0.5, 0.5]), images=16)
    summary = summarize(Timing(started_at=STARTED_AT), totals, wall_s=5.0, cpus=CpuShare(got=1.5, waited=0.25))
    # A mean of rates would be (8 / 1 + 8 / 3) / 2 = 5.33.
    assert summary.started_at == STARTED_AT
    assert summary.images_per_s == 3.2
    assert summary.data_wait_fraction == 0.2
    assert summary.explained_fraction == 1.0
    assert summary.step_s is not None
    assert summary.step_s.median == 2.0
    assert (summary.cpus_used, summary.cpus_waited) == (1.5, 0.25)


def test_spread_of_known_numbers() -> None:
    described = StepSeconds.of(array("d", [float(n) for n in range(1, 22)]))
    assert vars(described) == {
        "n": 21,
        "median": 11.0,
        "mean": 11.0,
        "stdev": pytest.approx(6.2048, abs=1e-4),
        "min": 1.0,
        "max": 21.0,
        "p5": 2.0,
        "p95": 20.0,
    }


def test_one_step_has_no_spread() -> None:
    described = StepSeconds.of(array("d", [2.0]))
    assert (described.median, described.stdev, described.p5, described.p95) == (2.0, None, None, None)


def test_no_step_gives_no_figures() -> None:
    summary = summarize(Timing(), PhaseTotals(), wall_s=1.5, cpus=CpuShare(got=0.5, waited=None))
    assert summary == Timing(measured_s=1.5, cpus_used=0.5, cpus_waited=None, images=0)
    assert (summary.images_per_s, summary.step_s) == (None, None)
