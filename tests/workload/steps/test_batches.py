"""Samples of a batch, by the loader's batch size if it has one, else by the shapes of the batch's tensors."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workload.steps.step import Batch, Unit, measure, size_of

IMAGE = torch.zeros(3, 5, 7)
PADDED = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
FOUR = (torch.zeros(4, 9), torch.zeros(4))


class Graphs:
    """A batch like those of PyTorch Geometric."""

    num_graphs = 4

    def __init__(self) -> None:
        self.kind = Batch
        self.x, self.edge_index = torch.zeros(31, 6), torch.zeros(2, 80, dtype=torch.int64)

    def to(self) -> None:
        """Marks a batch."""


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.int64)


# what is fetched: (batch, size of the loader, count, unit, tokens)
BATCHES: dict[str, tuple[Any, int | None, int, Unit, int]] = {
    "images": ((torch.zeros(8, 3, 4, 4), torch.zeros(8)), 8, 8, Unit.IMAGES, 0),
    "images of a loader without a size": ((torch.zeros(5, 3, 4, 4), torch.zeros(5)), None, 5, Unit.IMAGES, 0),
    "detection": (((IMAGE,) * 4, ({"boxes": torch.zeros(2, 4)},) * 4), 4, 4, Unit.IMAGES, 0),
    "detection without a size": (((IMAGE,) * 4, ({"boxes": torch.zeros(2, 4)},) * 4), None, 4, Unit.IMAGES, 0),
    "two views": ([[torch.zeros(8, 3, 4, 4)] * 2, torch.zeros(8)], 8, 8, Unit.IMAGES, 0),
    "texts": (["a", "b", "c"], 3, 3, Unit.SAMPLES, 0),
    "texts with labels": ((("a", "b", "c"), torch.zeros(3)), None, 3, Unit.SAMPLES, 0),
    "pairs of ids": ((ids(6, 2), torch.zeros(6)), 6, 6, Unit.SAMPLES, 0),
    "tokens": ((ids(4, 16), ids(4, 16)), 4, 4, Unit.SAMPLES, 64),
    "tokens by name": ({"input_ids": ids(2, 5), "attention_mask": PADDED}, 2, 2, Unit.SAMPLES, 8),
    "speech": ((torch.zeros(4, 120, 40), torch.tensor([120, 90, 80, 11])), 4, 4, Unit.SAMPLES, 0),
    "one long recording": ((torch.zeros(900, 40), torch.zeros(3)), 4, 3, Unit.SAMPLES, 0),
    "graphs": (Graphs(), 4, 4, Unit.SAMPLES, 0),
    "nothing countable": (SimpleNamespace(), None, 1, Unit.SAMPLES, 0),
    "nothing countable of a known size": (SimpleNamespace(), 16, 16, Unit.SAMPLES, 0),
}


@pytest.mark.parametrize("name", BATCHES)
def test_what_a_batch_holds(name: str) -> None:
    batch, size, count, unit, tokens = BATCHES[name]
    known = measure(batch, 7, size)
    assert (known.loader, known.count, known.unit, known.real_tokens) == (7, count, unit, tokens)


def test_a_batch_like_the_one_before_costs_nothing() -> None:
    assert measure(FOUR, 7, 4) is measure(FOUR, 7, 4)
    assert measure(FOUR, 7, 4) == Batch(loader=7, count=4, unit=Unit.SAMPLES)


def test_the_size_that_a_loader_knows() -> None:
    of_sampler = SimpleNamespace(batch_size=None, batch_sampler=SimpleNamespace(batch_size=3))
    unknown = SimpleNamespace(batch_size=None, batch_sampler=None)
    loaders = (SimpleNamespace(batch_size=4), of_sampler, unknown, object())
    assert [size_of(loader) for loader in loaders] == [4, 3, None, None]
