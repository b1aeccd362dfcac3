"""Hidden and exposed time of collectives, from made-up marks."""

import pytest

from workload.measure.collectives import split


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
