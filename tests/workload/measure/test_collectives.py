"""Hidden and exposed time of collectives, from made-up marks."""

from pathlib import Path

import pytest

from workload.measure.clock import Collectives, HostClock, Span, StepMarks, split


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


def row(folder: Path, marks: StepMarks, *, are_known: bool = True) -> list[str]:
    """Row of a step of two backward passes, from 1 to 2 s and from 4 to 5 s, with validation from 2 to 4 s."""
    passes = [(1.0, 2.0), (4.0, 5.0)]
    with Collectives(folder, HostClock(), are_known=are_known) as collectives:
        collectives.write(7, marks, began=0.0, passes=passes, counted=[(0.0, 1.0), *passes, (5.0, 6.0)])
    return (folder / "collectives.csv").read_text().splitlines()[1].split(",")


@pytest.mark.parametrize(
    ("averages", "waits", "hidden_s", "exposed_s"),
    [
        ([], [], 0.0, 0.0),
        ([(1.2, 1.4), (1.7, 2.0), (4.1, 4.2), (4.8, 5.0)], [], 0.3, 0.5),  # each pass has its own last bucket
        ([(4.8, 5.0)], [(0.2, 0.5), (5.5, 5.6)], 0.0, 0.6),
        ([(4.8, 5.0)], [(3.0, 3.9)], 0.0, 0.2),  # of a validation, which belongs to no step
    ],
)
def test_collectives_of_a_script(
    averages: list[Span], waits: list[Span], hidden_s: float, exposed_s: float, tmp_path: Path
) -> None:
    cells = row(tmp_path, StepMarks(averages, waits))
    assert [float(cell) for cell in cells] == pytest.approx([7, hidden_s, exposed_s])


def test_times_that_are_unknown_are_empty(tmp_path: Path) -> None:
    assert row(tmp_path, StepMarks([], [(0.2, 0.5)]), are_known=False) == ["7", "", ""]
