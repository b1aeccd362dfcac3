"""Samples of a batch, by the loader's batch size if it has one, else by the shapes of the batch's tensors."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from workload.steps.data_length import samples_of_step
from workload.steps.model_input import Entered
from workload.steps.step import (
    Amount,
    Batch,
    Fetch,
    Inputs,
    Limits,
    Loader,
    Optimizers,
    Step,
    Unit,
    describe,
    measure,
    size_of,
)

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
    "pairs of images": ((torch.zeros(8, 3, 4, 4), torch.zeros(8, 3, 4, 4), torch.zeros(8)), 8, 8, Unit.SAMPLES, 0),
    "an image and its mask": ((torch.zeros(8, 3, 4, 4), torch.zeros(8, 1, 4, 4)), 8, 8, Unit.IMAGES, 0),
    "images by name behind texts": (
        {"cls": torch.zeros(19, 1), "im_file": ("a",) * 20, "img": torch.zeros(20, 3, 4, 4)},
        20,
        20,
        Unit.IMAGES,
        0,
    ),
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


# items of DataLoaders with batch size 1 and no collation: (item, samples)
ITEMS: dict[str, tuple[Any, int]] = {
    "a batch": ((torch.zeros(64, 13), ids(3, 64), [ids(70, 1)[:, 0]], torch.zeros(64, 1)), 64),
    "a batch of images": ((torch.zeros(8, 3, 4, 4), torch.zeros(8)), 8),
    "an image with three boxes": ((torch.zeros(3, 5, 7), torch.zeros(3, 4), torch.zeros(3)), 1),
    "a recording": ((torch.zeros(900, 40), torch.zeros(3)), 1),
    "a sample that is collated": ((torch.zeros(1, 13), torch.zeros(1)), 1),
}


@pytest.mark.parametrize("name", ITEMS)
def test_items_that_are_batches(name: str) -> None:
    item, count = ITEMS[name]
    inputs, loader = Inputs(Path.cwd()), DataLoader([0] * 10, batch_size=1)
    batch = inputs.batch_of(loader, item, None)
    assert batch.count == count
    assert samples_of_step({0: loader}, [Fetch(batch=batch, parts=0)], None) == 10 * count


def test_a_new_loader_has_its_own_size_though_it_may_share_the_identity_of_an_earlier_one() -> None:
    inputs, numbers = Inputs(Path.cwd()), []
    for size in (4, 6) * 20:
        loader = DataLoader([0], batch_size=size)
        found = inputs.batch_of(loader, torch.zeros(size, 9), None)
        assert found.count == size
        numbers.append(found.loader)
        del loader
    assert len({*numbers}) == len(numbers)


def test_the_size_that_a_loader_knows() -> None:
    of_sampler = SimpleNamespace(batch_size=None, batch_sampler=SimpleNamespace(batch_size=3))
    unknown = SimpleNamespace(batch_size=None, batch_sampler=None)
    loaders = (SimpleNamespace(batch_size=4), of_sampler, unknown, object())
    assert [size_of(loader) for loader in loaders] == [4, 3, None, None]


# --- the data of a step


def step_of(*, loader: bool = True, given: int | None = None) -> Step:
    """A step of a script as it is known before steps are counted: from batches of three samples, or from none."""
    amount = Amount(3, Unit.SAMPLES, 1) if loader else Amount(0, Unit.STEPS, 0)
    loaders = [Loader(where="t.py:4", workers=0, size=3)] if loader else []
    limits = Limits(warmup=None, iterations=None, samples_per_step=given)
    return describe(None, [amount] * 3, loaders, Optimizers(), limits)


def text(*lengths: int, width: int = 8, where: str = "from get_batch at t.py:9") -> Entered:
    widths = (width,) * len(lengths)
    return Entered(
        unit=Unit.TOKENS, count=sum(lengths), samples=len(lengths), where=where, lengths=lengths, widths=widths
    )


PACKED = Entered(unit=Unit.TOKENS, count=24, samples=5, where="into the model at t.py:9")
NUMBERS = Entered(unit=Unit.SAMPLES, count=3, samples=3, where="into the model at t.py:9")
# data: (step before, what entered counted steps and the tokens of their batches, words, amount of a step of 48 tokens)
DATA: dict[str, tuple[Step, list[tuple[Entered | None, int]], str, tuple[int, int | None, int]]] = {
    "a mask": (
        step_of(), [(text(8, 6, 5), 19)],
        "3 sequences of 5 to 8 tokens (padded to 8) from DataLoader at t.py:4", (48, 3, 48),
    ),
    "padding that the batches do not tell": (
        step_of(), [(text(8, 6, 4), 24)],
        "3 sequences of 4 to 8 tokens (padded to 8) from DataLoader at t.py:4", (36, 3, 36),
    ),
    "texts": (
        step_of(), [(text(8, 8, 8), 0)], "3 sequences of 8 tokens from DataLoader at t.py:4", (24, 3, 24),
    ),
    "several sequences for a sample": (
        step_of(), [(PACKED, 24)], "24 packed tokens in 5 sequences from DataLoader at t.py:4", (48, 5, 48),
    ),
    "ids that are no tokens": (step_of(), [(NUMBERS, 24)], "3 samples from DataLoader at t.py:4", (3, None, 48)),
    "a model that is not seen": (step_of(), [(None, 24)], "3 samples from DataLoader at t.py:4", (3, None, 48)),
    "no loader": (
        step_of(loader=False), [(text(8, 8), 0)], "2 sequences of 8 tokens, from get_batch at t.py:9", (16, 2, 16),
    ),
    "no loader and no tokens": (
        step_of(loader=False), [(NUMBERS, 0)], "3 samples, into the model at t.py:9", (3, None, 48),
    ),
    "nothing": (
        step_of(loader=False), [(None, 0)],
        "no batch was found: throughput counts steps (--samples-per-step N)", (1, None, 48),
    ),
    "--samples-per-step": (step_of(given=7), [(text(8, 8), 24)], "7 samples (--samples-per-step)", (7, None, 48)),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_data_of_a_step(name: str) -> None:
    before, counted, data, amount = DATA[name]
    step = before.entered(counted, counted[0][0])
    fetched = Fetch(batch=Batch(loader=1, count=3, unit=Unit.SAMPLES, tokens=48), parts=0)
    assert (step.data, step.amount([fetched])) == (data, amount)
    if step.unit is Unit.TOKENS:
        assert step.batch_size == amount[1], "sequences of the one micro-batch"
    assert step.differing is None


def test_steps_that_differ_without_a_loader_count_their_mean() -> None:
    step = step_of(loader=False).entered([(text(8, 8), 0), (text(8, 5), 0), (text(3, 5), 0)], text(8, 5))
    assert (step.data, step.samples) == ("2 sequences of 3 to 8 tokens (padded to 8), from get_batch at t.py:9", 12)
    assert step.differing == (8, 16)
