"""Which of a few counted steps stands for all."""

from collections.abc import Sequence

import pytest

from workload.flop import Tally
from workload.script.work import Work, usual


def work(flop: int) -> Work:
    return Work(
        tally=Tally(flop_by_op={"matmul": flop}, bytes_lower=0, bytes_upper=0),
        forward_flop=0,
        flop_by_precision={},
        time_s={},
        unattributed={},
        uncounted=(),
        copied_to_device_bytes=0,
        copied_to_device_s=0.0,
        devices=frozenset(),
    )


# counted: (the one that stands for all, the range that is told); None: count on
STEPS = {
    "none": ((), None),
    "too few": ((7, 7, 7), None),
    "all alike": ((7, 7, 7, 7), (7, None)),
    "one more to see": ((7, 9, 7, 7), None),
    "pictures every five steps": ((7, 9, 7, 7, 7), (7, (7, 9))),
    "all differ": ((5, 9, 7, 3, 11), (7, (3, 11))),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_usual_step_stands_for_all(name: str) -> None:
    counted: Sequence[int]
    counted, expected = STEPS[name]
    known = usual([work(flop) for flop in counted])
    assert (None if known is None else (known.tally.flop, known.flop_range)) == expected
