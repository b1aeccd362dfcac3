"""Samples in one pass over a DataLoader of any kind, also if the script's `len` fails, lies or draws random numbers."""

import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from workload.steps.data_length import samples_in_pass, samples_of_step
from workload.steps.step import Batch, Fetch, Unit

TEN, THREE = TensorDataset(torch.arange(10)), [[0, 1, 2], [3, 4, 5], [6, 7]]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


class KnownStream(Stream):
    def __len__(self) -> int:
        return 5


class Odd(Dataset[int]):
    """`answer` makes the result of `len`, or raises."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def __len__(self) -> int:
        made: int = self.answer()
        return made

    def __getitem__(self, index: int) -> int:
        return index


class Buckets(list[list[int]]):
    """A sampler of batches that are not all equally long; `batch_size`: size of the usual batch."""

    batch_size = 3


class Endless(DataLoader[Any]):
    """In the form of Ultralytics' InfiniteDataLoader: the sampler of batches has no length, the DataLoader has one."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.batches: Any = self.batch_sampler
        object.__setattr__(self, "batch_sampler", itertools.cycle(self.batches))

    def __len__(self) -> int:
        return len(self.batches)


CASES: dict[str, tuple[DataLoader[Any], int | None]] = {
    "map": (DataLoader(TEN, 4), 10),
    "the last batch dropped": (DataLoader(TEN, 4, drop_last=True), 8),
    "other samples than the data has": (DataLoader(TEN, 4, sampler=WeightedRandomSampler([1.0] * 10, 25)), 25),
    "a part of the samples": (DataLoader(TEN, 4, sampler=RandomSampler(TEN, num_samples=6), drop_last=True), 4),
    "one of two ranks": (DataLoader(TensorDataset(torch.arange(11)), 4, sampler=DistributedSampler(TEN, 2, 0)), 5),
    "torch's sampler of batches": (DataLoader(TEN, batch_sampler=BatchSampler(SequentialSampler(TEN), 3, True)), 9),
    "buckets": (DataLoader(TEN, batch_sampler=Buckets(THREE)), 9),
    "buckets of unknown size": (DataLoader(TEN, batch_sampler=THREE), None),
    "data that makes batches": (DataLoader(TensorDataset(torch.ones(3, 5)), batch_size=None), 15),
    "a loader without end": (Endless(TEN, 4), 12),
    "a stream": (DataLoader(Stream(), 4), None),
    "a stream with a length": (DataLoader(KnownStream(), 4), 5),
    "no length": (DataLoader(Odd(lambda: 1 / 0), 4), None),
    "a length that ends the script": (DataLoader(Odd(lambda: sys.exit("no length")), 4), None),
    "text": (DataLoader(Odd(lambda: "ten"), 4), None),
    "nothing": (DataLoader(Odd(lambda: 0), 4), None),
    "negative": (DataLoader(Odd(lambda: -1), 4), None),
    "the largest integer": (DataLoader(Odd(lambda: sys.maxsize), 4), None),
}


@pytest.mark.parametrize(("loader", "expected"), CASES.values(), ids=CASES)
def test_samples_in_a_pass(loader: DataLoader[Any], expected: int | None) -> None:
    assert samples_in_pass(loader, 5) == expected


def test_a_stream_is_not_asked_through_its_loader() -> None:
    """The DataLoader would remember the length, and warn of the samples beyond it."""
    loader = DataLoader(KnownStream(), 4)
    assert samples_in_pass(loader, 4) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len([*loader]) == 2


def test_random_numbers_that_a_length_draws_are_put_back() -> None:
    def numbers() -> tuple[float, ...]:
        return float(torch.rand(())), random.random(), np.random.rand()  # noqa: NPY002 - what scripts call

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    expected = numbers()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002
    assert samples_in_pass(DataLoader(Odd(lambda: 10 + int(sum(numbers()))), 4), 4) in range(10, 13)
    assert numbers() == expected


def a_loader(samples: int, size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(samples, 3, 8, 8)), size)


@pytest.mark.parametrize(
    ("loaders", "samples_per_step", "expected"),
    {
        "one": ([(100, 4)], None, 100),
        "two batches a step of one": ([(100, 4), (100, 4)], None, 100),
        "samples as the user counts them": ([(100, 4)], 8, 200),
        # 25 steps of 4 and 2 images end before 50 steps of 2.
        "the shorter of two": ([(100, 4), (100, 2)], None, 150),
        "the known of two": ([(100, 4), (0, 2)], None, 150),
        "none known": ([(0, 4)], None, None),
    }.values(),
)
def test_samples_in_a_pass_of_a_step(
    loaders: list[tuple[int, int]], samples_per_step: int | None, expected: int | None
) -> None:
    made = {key: a_loader(*key) if key[0] else DataLoader(Stream(), key[1]) for key in loaders}
    fetches = [Fetch(batch=Batch(loader=id(made[key]), count=key[1], unit=Unit.IMAGES), parts=0) for key in loaders]
    assert samples_of_step({id(loader): loader for loader in made.values()}, fetches, samples_per_step) == expected
    assert samples_of_step({}, fetches, samples_per_step) is None, "the script has dropped its DataLoaders"
