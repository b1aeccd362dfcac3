"""One of a few counted steps is chosen for all."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from workload.contract.spec import Device
from workload.model.flop import Tally
from workload.steps.step_work import Site, Work, WorkCounter, usual


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


MODEL, OTHER = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)
X, TARGET = torch.ones(5, 6), torch.zeros(5, dtype=torch.int64)
CODE = (lambda: None).__code__
HERE: Site = (CODE, 1, CODE, 1)


def loss(target: Tensor) -> None:
    F.mse_loss(MODEL(X), target).backward()


def average() -> Tensor:
    for slow, fast in zip(OTHER.parameters(), MODEL.parameters(), strict=True):
        slow.lerp_(fast, 0.1)
    return torch.zeros(5, 4)


def into_a_buffer() -> Tensor:
    targets = torch.empty(5, 4)
    targets[:] = OTHER(X)
    return targets


# work without gradients: (what it computes, what becomes of it, whether it is an evaluation)
WITHOUT_GRADIENTS: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], object], bool]] = {
    "a score that is printed": (lambda: MODEL(X).argmax(1), lambda scores: float(scores.float().mean()), True),
    "a score that is compared": (lambda: MODEL(X), lambda scores: bool((scores > 1).any()), True),
    "a teacher": (lambda: OTHER(X), loss, False),
    "a teacher whose result is changed first": (lambda: OTHER(X), lambda made: loss(made.softmax(1)[:, :]), False),
    "a teacher's label": (lambda: OTHER(X).argmax(1), lambda made: F.cross_entropy(MODEL(X), made).backward(), False),
    "a teacher's result in a buffer": (into_a_buffer, loss, False),
    "an average of weights": (average, lambda _: None, False),
}


@pytest.mark.parametrize("switch", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_work_that_a_loss_uses_is_no_evaluation(name: str, switch: Callable[[], torch.no_grad]) -> None:
    compute, use, is_evaluation = WITHOUT_GRADIENTS[name]
    counter = WorkCounter(Device.CPU).start()
    with switch():
        counter.without_gradients.enter(HERE)
        made = compute()
        counter.without_gradients.enter(None)
    use(made if switch is torch.no_grad or is_evaluation else made.clone())
    loss(torch.zeros(5, 4))
    counter.stop()

    assert counter.without_gradients.are_evaluations() == {HERE: is_evaluation}


def test_what_is_ignored_is_run_and_not_counted() -> None:
    counter = WorkCounter(Device.CPU).start()
    MODEL(X)
    counter.ignores = True
    assert MODEL(X).shape == (5, 4)
    counter.ignores = False
    assert counter.stop().tally.flop == 2 * 5 * 6 * 4
