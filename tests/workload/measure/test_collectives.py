"""Own, hidden and exposed time of collectives, from made-up marks and from functions that stand for torch's."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from workload.contract.ranks import Collective
from workload.contract.spans import common
from workload.measure.clock import Collectives, HostClock, KindSpan, Span, StepMarks, split


@pytest.mark.parametrize(
    ("spans", "backward_end_s", "hidden_s", "exposed_s"),
    [
        ([(1.0, 2.0), (3.0, 4.0)], 4.5, 1.0, 1.5),
        ([(1.0, 4.0), (3.0, 4.0)], 4.0, 2.0, 1.0),  # the first one is still under way when the last one begins
        ([(1.0, 2.5), (2.0, 3.0), (5.0, 6.0)], 6.0, 2.0, 1.0),  # two at once count once
        ([(3.0, 4.0)], 4.0, 0.0, 1.0),
        ([(3.0, 2.9)], 2.9, 0.0, 0.0),  # clocks that disagree by less than they can show
    ],
)
def test_time_of_collectives(
    spans: list[tuple[float, float]], backward_end_s: float, hidden_s: float, exposed_s: float
) -> None:
    assert split(spans, backward_end_s=backward_end_s) == pytest.approx((hidden_s, exposed_s))


REDUCE, GATHER, SEND = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.POINT_TO_POINT


def rows(folder: Path, marks: StepMarks) -> dict[str, list[float]]:
    """Number, bytes, own, hidden and exposed time by kind, of a step of two backward passes.

    The passes are from 1 to 2 s and from 4 to 5 s, with a validation from 2 to 4 s.
    """
    passes = [(1.0, 2.0), (4.0, 5.0)]
    with Collectives(folder, HostClock()) as collectives:
        collectives.write(7, marks, began=0.0, passes=passes, counted=[(0.0, 1.0), *passes, (5.0, 6.0)])
    lines = list(csv.reader((folder / "collectives.csv").read_text().splitlines()[1:]))
    assert {step for step, *_ in lines} == {"7"}
    assert lines[-1][1] == "all", "a step without its last row was cut off"
    return {kind: [float(cell) for cell in cells] for _, kind, *cells in lines}


@pytest.mark.parametrize(
    ("averages", "under_way", "waits", "expected"),
    [
        ([], [], [], {"all": [0, 0, 0]}),
        # Each backward pass has its own last bucket.
        ([(1.2, 1.4), (1.7, 2.0), (4.1, 4.2), (4.8, 5.0)], [], [], {"all": [0.8, 0.3, 0.5]}),
        # The script waits for one blocking collective in each of two parts, and for one in the validation.
        (
            [(4.8, 5.0)],
            [(REDUCE, 0.2, 0.5), (GATHER, 3.0, 3.9), (GATHER, 5.5, 5.6)],
            [(REDUCE, 0.2, 0.5), (GATHER, 3.0, 3.9), (GATHER, 5.5, 5.6)],
            {"all_gather": [0.1, 0, 0.1], "all_reduce": [0.5, 0, 0.5], "all": [0.6, 0, 0.6]},
        ),
        # Of a collective that takes 0.8 s, the script waits 0.3 s: the rest is hidden.
        ([], [(GATHER, 0.1, 0.9)], [(GATHER, 0.6, 0.9)], {"all_gather": [0.8, 0.5, 0.3], "all": [0.8, 0.5, 0.3]}),
        # Nobody waits for one that ends in time, and two at once count once.
        (
            [],
            [(GATHER, 0.1, 0.5), (GATHER, 0.3, 0.7), (SEND, 0.4, 0.8)],
            [],
            {"all_gather": [0.6, 0.6, 0], "point_to_point": [0.4, 0.4, 0], "all": [0.7, 0.7, 0]},
        ),
        # It was begun in the step before; the wait is that of this step.
        ([], [(GATHER, -1.0, 0.4)], [(GATHER, 0.1, 0.4)], {"all_gather": [0.4, 0.1, 0.3], "all": [0.4, 0.1, 0.3]}),
    ],
)
def test_collectives_of_a_step(
    averages: list[Span],
    under_way: list[KindSpan],
    waits: list[KindSpan],
    expected: Mapping[str, Sequence[float]],
    tmp_path: Path,
) -> None:
    found = rows(tmp_path, StepMarks(averages, under_way, waits))
    assert {kind: pytest.approx(times) for kind, times in expected.items()} == {
        kind: times for kind, (_, _, *times) in found.items()
    }


def test_numbers_and_bytes_are_counted_by_kind(tmp_path: Path) -> None:
    found = rows(tmp_path, StepMarks([], [], [], {REDUCE: [2, 100], SEND: [3, 50]}))
    assert {kind: cells[:2] for kind, cells in found.items()} == {
        "all_reduce": [2, 100],
        "point_to_point": [3, 50],
        "all": [5, 150],
    }


def test_a_collective_that_the_device_has_not_finished_has_no_time(tmp_path: Path) -> None:
    late = HostClock.mark() + 1000.0
    with Collectives(tmp_path, HostClock()) as collectives:
        marks = StepMarks([], [(GATHER, late - 1, late)])
        collectives.write(0, marks, began=late - 2, passes=[], counted=[(late - 2, late)])
    assert (tmp_path / "collectives.csv").read_text().splitlines()[1:] == ["0,all,0,0,0.0000000,0.0000000,0.0000000"]


def test_common_seconds() -> None:
    assert common([(0, 3), (2, 5), (7, 9)], [(1, 4), (8, 20)]) == 4
