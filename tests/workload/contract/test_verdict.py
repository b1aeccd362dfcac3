import copy
from collections.abc import Callable
from typing import Any

import pytest

from workload.contract import record as contract
from workload.contract import verdict
from workload.contract.record import MeasuredRate, Record, Verdict
from workload.contract.verdict import Bound, judge


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
    assert found.bound == bound
    assert found.compute_fraction == pytest.approx(flop / 100 / step_s)
    assert found.memory_fraction_low == pytest.approx(low / 10 / step_s)


RECORD: dict[str, Any] = {
    "run_id": "run-1",
    "status": "completed",
    "spec": {"model": "resnet18", "batch_size": 4, "precision": "fp32"},
    "timing": {"step_s": {"median": 2.0}, "data_wait_fraction": 0.0},
    "complexity": {"train_flop_per_step": 100, "bytes_per_step_lower": 1, "bytes_per_step_upper": 2},
    "ceilings": {"flop_per_s": {"fp32": {"median": 100.0}}, "bytes_per_s": {"copy": {"median": 10.0}}},
}


def read(document: dict[str, Any]) -> Record:
    return contract.read(document).record


def from_record(document: dict[str, Any]) -> Verdict | None:
    return verdict.from_record(read(document))


def test_verdict_of_a_record() -> None:
    found = from_record(RECORD)
    assert found is not None
    assert (found.bound, found.compute_fraction, found.flop_per_s) == (Bound.COMPUTE, 0.5, 50.0)
    assert found.why == "50 % of the measured compute ceiling, 5 % to 10 % of the bandwidth (modelled)"


def test_the_roof_is_what_the_device_sustains() -> None:
    """A burst of 200 FLOP/s and 20 B/s that falls to half: the step reaches more of what stays."""
    slowed: dict[str, Any] = {
        "flop_per_s": {"fp32": {"median": 150.0, "burst": 200.0, "sustained": 100.0}},
        "bytes_per_s": {"copy": {"median": 18.0, "burst": 20.0, "sustained": 10.0}},
    }
    record = RECORD | {"ceilings": slowed}
    assert from_record(record) == from_record(RECORD)
    assert verdict.share_of_ceiling(read(record)) == 0.5
    assert MeasuredRate(median=150.0).roof_per_s == 150.0


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    change(record)
    return record


def test_no_verdict_without_steps() -> None:
    assert from_record(changed(lambda r: r["timing"].update(step_s=None))) is None


BUSY_WHY = "the machine was busy: the samples got 0.5 of 2 CPUs, at the last of 3 attempts"


IMPOSSIBLE = "which cannot be: the ceiling is too low, or the kernels execute fewer FLOP than the model has (Winograd)"


@pytest.mark.parametrize(
    ("lack", "why"),
    [
        (lambda r: r.update(ceilings=None), "no ceilings were measured (--no-ceilings)"),
        (
            lambda r: (r["ceilings"]["flop_per_s"].clear(), r["ceilings"].update(unavailable={"fp32": BUSY_WHY})),
            f"the fp32 ceiling was not measured: {BUSY_WHY}",
        ),
        (
            lambda r: (r["ceilings"]["bytes_per_s"].clear(), r["ceilings"].update(unavailable={"copy": BUSY_WHY})),
            f"the bandwidth was not measured: {BUSY_WHY}",
        ),
        # 50 FLOP/s where the ceiling is said to be 31 FLOP/s.
        (
            lambda r: r["ceilings"]["flop_per_s"]["fp32"].update(median=31.0),
            f"the run reached 161 % of the measured fp32 ceiling, {IMPOSSIBLE}",
        ),
    ],
)
def test_a_verdict_without_its_figures_is_unknown_and_says_why(lack: Any, why: str) -> None:
    found = from_record(changed(lack))
    assert found is not None
    assert (found.bound, found.compute_fraction, found.why) == (None, None, why)


@pytest.mark.parametrize(("ceiling", "bound"), [(47.7, Bound.COMPUTE), (47.5, None)])
def test_five_per_cent_above_a_ceiling_are_noise(ceiling: float, bound: Bound | None) -> None:
    found = from_record(changed(lambda r: r["ceilings"]["flop_per_s"]["fp32"].update(median=ceiling)))
    assert found is not None
    assert found.bound == bound


def test_waiting_for_data_needs_no_ceilings() -> None:
    record = copy.deepcopy(RECORD) | {"ceilings": None}
    record["timing"]["data_wait_fraction"] = 0.37
    found = from_record(record)
    assert found is not None
    assert (found.bound, found.compute_fraction) == (Bound.INPUT, None)
    assert found.why == "37 % of the wall time is spent waiting for data"


def on_cpus(used: float | None, waited: float | None, device: str = "cpu") -> dict[str, Any]:
    """A run on 2 threads."""
    record = copy.deepcopy(RECORD)
    record["spec"]["device"] = device
    record["environment"] = {"device": {"threads": 2}}
    record["timing"] |= {"cpus_used": used, "cpus_waited": waited}
    return record


@pytest.mark.parametrize(
    ("record", "bound"),
    [
        (on_cpus(1.0, 0.9), Bound.BUSY),
        (on_cpus(1.49, 0.17), Bound.BUSY),
        # It got three quarters, or did not wait for the rest: one thread did most.
        (on_cpus(1.5, 0.5), Bound.COMPUTE),
        (on_cpus(1.0, 0.1), Bound.COMPUTE),
        # A system, or an older version, that does not tell.
        (on_cpus(1.0, None), Bound.COMPUTE),
        (on_cpus(None, None), Bound.COMPUTE),
        # A GPU's host threads wait for the GPU.
        (on_cpus(0.5, 0.5, device="cuda"), Bound.COMPUTE),
    ],
)
def test_a_starved_run_says_that_the_machine_was_busy(record: dict[str, Any], bound: Bound) -> None:
    found = from_record(record)
    assert found is not None
    assert found.bound == bound


def test_busy_comes_before_every_other_verdict() -> None:
    record = on_cpus(0.8, 1.2) | {"ceilings": None}
    record["timing"]["data_wait_fraction"] = 0.37
    found = from_record(record)
    assert found is not None
    assert found.why == "the run got 0.8 of 2 CPUs and waited for one 60 % of its time"


def test_a_record_without_waits_is_read_as_before() -> None:
    record = on_cpus(0.8, None)
    del record["timing"]["cpus_waited"]
    assert (verdict.lacks_cpus(read(record)), verdict.competition(read(record))) == (True, None)


def test_a_record_without_the_work_of_a_step_says_what_it_lacks() -> None:
    found = from_record(changed(lambda r: r["complexity"].update(bytes_per_step_lower=None, bytes_per_step_upper="x")))
    assert found is not None
    assert (found.bound, found.why) == (None, "run.json lacks bytes_low, bytes_high")
