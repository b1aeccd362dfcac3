"""Rates of links between ranks, from made-up times of each rank."""

from collections.abc import Callable

import numpy as np
import pytest

from workload.contract.spec import Device
from workload.measure import link_rates
from workload.measure.link_rates import SIZES, measure


def timed(monkeypatch: pytest.MonkeyPatch, times_s: Callable[[str, int], list[float]]) -> list[tuple[str, float]]:
    """Kinds and sizes that were measured. `times_s`: times of the ranks by name of the call and bytes."""
    calls: list[tuple[str, float]] = []

    def made_up(_: Device, call: Callable[[], object]) -> "np.ndarray":
        name, size = call.func.__name__, call.args[0].nbytes  # type: ignore[attr-defined]
        calls.append((name, size))
        return np.array([[each, 2 * each, 3 * each] for each in times_s(name, size)])

    monkeypatch.setattr(link_rates, "_times_s", made_up)
    return calls


def test_slowest_link_is_between_the_two_ranks_that_both_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rank 1 is slow to 2: both ends wait. Rank 3 is late for another reason, its neighbours are not.
    timed(monkeypatch, lambda name, _: [1.0, 4.0, 4.0, 2.0] if name == "_exchange" else [0.5, 0.1, 0.2, 0.3])
    monkeypatch.setattr(link_rates, "LONGEST_S", 1e9)
    found = measure(Device.CPU, "cpu:gloo,cuda:nccl")
    assert [(each.kind, each.bytes) for each in found] == [
        (kind, size) for kind in ("all_reduce", "point_to_point") for size in SIZES
    ]
    assert {each.ranks for each in found if each.kind == "all_reduce"} == {None}
    assert [each.bytes_per_s for each in found[:3]] == [pytest.approx(size / 0.2) for size in SIZES], "the last rank's"
    assert [(each.ranks, each.bytes_per_s) for each in found[3:]] == [
        ([1, 2], pytest.approx(size / 8.0)) for size in SIZES
    ]
    assert found[3].samples == 3
    assert (found[3].p5 or 0) < (found[3].bytes_per_s or 0) < (found[3].p95 or 0)


def test_last_and_first_rank_are_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, lambda *_: [4e-3, 1e-3, 4e-3])
    assert measure(Device.CPU, "gloo")[-1].ranks == [0, 2]


def test_a_size_that_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = timed(monkeypatch, lambda name, size: [size * (2e-8 if name == "_exchange" else 1e-6)] * 2)
    assert measure(Device.CPU, "gloo")
    assert [size for name, size in calls if name == "_all_reduce"] == [SIZES[0]]
    assert [size for name, size in calls if name == "_exchange"] == list(SIZES[:2])


@pytest.mark.parametrize(("device", "backend"), [(Device.CUDA, "gloo"), (Device.CPU, "mpi"), (Device.CPU, "nccl")])
def test_other_libraries_are_not_measured(device: Device, backend: str) -> None:
    assert measure(device, backend) == []
