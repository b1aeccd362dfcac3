import copy
from typing import Any

import pytest

from workload.verdict import Bound, from_record, judge


@pytest.mark.parametrize(
    ("step_s", "data_wait", "flop", "low", "high", "bound"),
    [
        # ceilings: 100 FLOP/s and 10 byte/s
        (1.0, 0.11, 80, 1, 2, Bound.INPUT),
        (1.0, 0.10, 80, 1, 2, Bound.COMPUTE),
        (1.0, 0.0, 80, 1, 7.9, Bound.COMPUTE),
        (1.0, 0.0, 80, 1, 8.1, Bound.MEMORY),
        (1.0, 0.0, 30, 4, 8, Bound.MEMORY),
        (1.0, 0.0, 24, 1, 2.4, Bound.OVERHEAD),
        (1.0, 0.0, 26, 1, 2.4, Bound.COMPUTE),
        (1.0, 0.0, 24, 1, 2.6, Bound.MEMORY),
        # Modelled bytes beyond what the memory can move: the caches must have helped.
        (1.0, 0.0, 100, 1, 50, Bound.COMPUTE),
    ],
)
def test_bound(step_s: float, data_wait: float, flop: float, low: float, high: float, bound: Bound) -> None:
    found = judge(
        step_s=step_s,
        data_wait_fraction=data_wait,
        flop_per_step=flop,
        bytes_low=low,
        bytes_high=high,
        ceiling_flop_per_s=100,
        ceiling_bytes_per_s=10,
    )
    assert found.bound is bound
    assert found.compute_fraction == pytest.approx(flop / 100 / step_s)
    assert found.memory_fraction_low == pytest.approx(low / 10 / step_s)


RECORD: dict[str, Any] = {
    "spec": {"precision": "fp32"},
    "timing": {"step_s": {"median": 2.0}, "data_wait_fraction": 0.0},
    "complexity": {"train_flop_per_step": 100, "bytes_per_step_lower": 1, "bytes_per_step_upper": 2},
    "ceilings": {"flop_per_s": {"fp32": {"median": 100.0}}, "bytes_per_s": {"copy": {"median": 10.0}}},
}


def test_verdict_of_a_record() -> None:
    found = from_record(RECORD)
    assert found is not None
    assert (found.bound, found.compute_fraction, found.flop_per_s) == (Bound.COMPUTE, 0.5, 50.0)
    assert found.why == "50% of the measured compute ceiling, 5% to 10% of the bandwidth (modelled)"


@pytest.mark.parametrize(
    "lack",
    [
        lambda r: r.update(ceilings=None),
        lambda r: r["ceilings"]["flop_per_s"].clear(),
        lambda r: r["ceilings"]["bytes_per_s"].clear(),
        lambda r: r["timing"].update(step_s=None),
    ],
)
def test_no_verdict_without_its_figures(lack: Any) -> None:
    record = copy.deepcopy(RECORD)
    lack(record)
    assert from_record(record) is None


def test_waiting_for_data_needs_no_ceilings() -> None:
    record = copy.deepcopy(RECORD) | {"ceilings": None}
    record["timing"]["data_wait_fraction"] = 0.37
    found = from_record(record)
    assert found is not None
    assert (found.bound, found.compute_fraction) == (Bound.INPUT, None)
    assert found.why == "37% of the wall time is spent waiting for data"
