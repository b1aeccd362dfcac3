"""Samples in one pass over a DataLoader of any kind, also if the script's `len` fails, lies or draws random numbers."""

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

from workload.steps.data_length import MOST_SAMPLES, DataLengths, samples_in_pass
from workload.steps.step import Batch, Fetch, Unit

TEN = TensorDataset(torch.arange(10))


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


class Buckets:
    """A sampler of batches that are not all equally long, with the size of the usual batch if `batch_size` is set."""

    def __init__(self, *, batch_size: int | None) -> None:
        if batch_size:
            self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3, 4, 5], [6, 7]])

    def __len__(self) -> int:
        return 3


class Endless(DataLoader[Any]):
    """In the form of Ultralytics' InfiniteDataLoader: the sampler of batches has no length, the DataLoader has one."""

    class Repeat:
        def __init__(self, batches: Any) -> None:
            self.batches = batches

        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from self.batches

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        object.__setattr__(self, "batch_sampler", self.Repeat(self.batch_sampler))

    def __len__(self) -> int:
        return len(self.batch_sampler.batches)


def at_random(answer: int) -> int:
    return answer + int(torch.randint(3, ()) + random.randrange(3) + np.random.randint(3))  # noqa: NPY002 - what scripts call


CASES: dict[str, tuple[DataLoader[Any], int | None]] = {
    "map": (DataLoader(TEN, 4), 10),
    "map, shuffled": (DataLoader(TEN, 4, shuffle=True), 10),
    "the last batch dropped": (DataLoader(TEN, 4, drop_last=True), 8),
    "other samples than the data has": (DataLoader(TEN, 4, sampler=WeightedRandomSampler([1.0] * 10, 25)), 25),
    "a part of the samples": (DataLoader(TEN, 4, sampler=RandomSampler(TEN, num_samples=6), drop_last=True), 4),
    "one of two ranks": (DataLoader(TensorDataset(torch.arange(11)), 4, sampler=DistributedSampler(TEN, 2, 0)), 5),
    "torch's sampler of batches": (DataLoader(TEN, batch_sampler=BatchSampler(SequentialSampler(TEN), 3, True)), 9),
    "buckets": (DataLoader(TEN, batch_sampler=Buckets(batch_size=3)), 9),  # type: ignore[arg-type]
    "buckets of unknown size": (DataLoader(TEN, batch_sampler=Buckets(batch_size=None)), None),  # type: ignore[arg-type]
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
    "larger than any integer": (DataLoader(Odd(lambda: sys.maxsize + 1), 4), None),
    "as large as possible": (DataLoader(Odd(lambda: MOST_SAMPLES), 4), MOST_SAMPLES),
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
    loader = DataLoader(Odd(lambda: at_random(10)), 4)

    def seed() -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - what scripts call

    def numbers() -> tuple[Any, ...]:
        return torch.rand(2).tolist(), random.random(), np.random.rand()  # noqa: NPY002 - what scripts call

    seed()
    expected = numbers()
    seed()
    assert samples_in_pass(loader, 4) in range(10, 17)
    assert numbers() == expected


def a_loader(samples: int, size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(samples, 3, 8, 8)), size)


def a_fetch(lengths: DataLengths, loader: DataLoader[Any], count: int) -> Fetch:
    lengths.fetched(loader)
    return Fetch(batch=Batch(loader=id(loader), count=count, unit=Unit.IMAGES), parts=0)


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
    made = {key: DataLoader(Stream(), key[1]) if key[0] == 0 else a_loader(*key) for key in loaders}
    lengths = DataLengths()
    assert (
        lengths.samples_in_pass([a_fetch(lengths, made[key], key[1]) for key in loaders], samples_per_step) == expected
    )


def test_the_length_of_a_loader_that_the_script_has_dropped_is_unknown() -> None:
    lengths, loader = DataLengths(), a_loader(100, 4)
    fetches = [a_fetch(lengths, loader, 4)]
    assert lengths.samples_in_pass(fetches, None) == 100
    del loader
    assert lengths.samples_in_pass(fetches, None) is None
    lengths.fetched(None)
    assert lengths.samples_in_pass([], None) is None
