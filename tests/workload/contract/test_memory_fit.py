"""Words and intervals of a step on a card with round figures, and the table of cards."""

from dataclasses import replace

import pytest

from workload.contract import peaks
from workload.contract.allocations import Allocation, Kind
from workload.contract.memory_fit import Card, CountedStep, Interval, LargestBatch, Word, card, cards

MIB = 2**20


def _interval(low: int, high: int) -> Interval:
    return Interval(low=low * MIB, high=high * MIB)


# 76 MiB of tensors certainly fit: 100 - 20 - 4. More than 100 MiB certainly do not: 110 - 10 - 0.
CARD = Card(
    gpu="a card",
    memory_gb=0.1,
    total=_interval(100, 110),
    outside=_interval(10, 20),
    workspaces=_interval(0, 4),
    group=_interval(1, 6),
)


def _row(
    mib: int,
    born: int,
    died: int | None = None,
    *,
    mib_per_sample: float | None = 0.0,
    kind: Kind = Kind.ACTIVATIONS,
) -> Allocation:
    return Allocation(
        kind=kind,
        size_bytes=mib * MIB,
        bytes_per_sample=None if mib_per_sample is None else mib_per_sample * MIB,
        born=born,
        died=died,
    )


def _step(*rows: Allocation, samples: float | None = 2, at_least: bool = False, ranks: int = 1) -> CountedStep:
    return CountedStep(allocations=rows, samples=samples, at_least=at_least, ranks=ranks)


@pytest.mark.parametrize(
    ("step", "word", "low_mib", "high_mib"),
    [
        (_step(_row(76, 0)), Word.FITS, 86, 100),
        (_step(_row(78, 0)), Word.CLOSE, 88, 102),
        (_step(_row(100, 0)), Word.CLOSE, 110, 124),
        (_step(_row(102, 0)), Word.DOES_NOT_FIT, 112, 126),
        # A group of processes takes 1 to 6 MiB more on each card.
        (_step(_row(70, 0), ranks=2), Word.FITS, 81, 100),
        (_step(_row(72, 0), ranks=2), Word.CLOSE, 83, 102),
        (_step(_row(100, 0), ranks=2), Word.DOES_NOT_FIT, 111, 130),
        # and may hold a copy of the gradients, as large as the weights.
        (_step(_row(40, 0, kind=Kind.WEIGHTS), ranks=2), Word.CLOSE, 51, 110),
        # A lower bound never fits.
        (_step(_row(10, 0), at_least=True), Word.CLOSE, 20, 34),
        (_step(_row(102, 0), at_least=True), Word.DOES_NOT_FIT, 112, 126),
        # A compiled step may need less than was counted.
        (replace(_step(_row(102, 0)), is_compiled=True), Word.CLOSE, 112, 126),
        # 40 MiB stay in the cache while 60 MiB are in use. If the allocator gives them back, the step may run.
        (_step(_row(40, 0, 1), _row(60, 2, 3)), Word.CLOSE, 70, 124),
        # 512 bytes are the least, in a segment of 2 MiB.
        (_step(_row(1, 0)), Word.FITS, 11, 26),
        # 11 MiB in a segment of 12 MiB, 1 MiB in one of 2 MiB.
        (_step(_row(11, 0), _row(1, 1)), Word.FITS, 22, 38),
    ],
)
def test_word_and_interval(step: CountedStep, word: Word, low_mib: float, high_mib: float) -> None:
    needed = step.needed(CARD)
    assert (needed.word, needed.low / MIB, needed.high / MIB) == (word, low_mib, high_mib)


@pytest.mark.parametrize(
    ("step", "batch"),
    [
        # 10 MiB per sample: 40 MiB fit, 80 MiB are close, 160 MiB do not.
        (_step(_row(20, 0, mib_per_sample=10)), LargestBatch(fits=4, does_not_fit=16)),
        (_step(_row(20, 0, mib_per_sample=10), at_least=True), LargestBatch(fits=None, does_not_fit=16)),
        (_step(_row(200, 0, mib_per_sample=10)), LargestBatch(fits=None, does_not_fit=1)),
        # Nothing grows.
        (_step(_row(20, 0)), LargestBatch(fits=2**20, does_not_fit=None)),
        # One batch was counted.
        (_step(_row(20, 0, mib_per_sample=None)), LargestBatch(fits=None, does_not_fit=None)),
        (_step(_row(20, 0), samples=None), LargestBatch(fits=None, does_not_fit=None)),
    ],
)
def test_largest_batch(step: CountedStep, batch: LargestBatch) -> None:
    assert step.largest_batch(CARD) == batch


def test_other_batches() -> None:
    step = _step(_row(20, 0, mib_per_sample=10))
    assert step.needed(CARD, samples=2) == step.needed(CARD)
    assert step.needed(CARD, samples=3).low == (30 + 10) * MIB


def test_each_nvidia_gpu_with_a_peak_has_cards() -> None:
    listed = {(each.gpu, each.memory_gb) for each in cards()}
    # CUDA's figures are of NVIDIA's GPUs.
    known = {(gpu.gpu, size) for gpu in peaks.gpus() if gpu.device == "cuda" for size in gpu.memory_gb}
    assert listed == {(gpu, size) for gpu, size in known if not gpu.startswith("MI")}
    assert {size: found.total.low // 10**9 for size in (16, 32) if (found := card("V100 SXM2", memory_gb=size))} == {
        16: 16,
        32: 34,
    }
    assert card("MI300X", memory_gb=192) is None


def test_cards_have_nearly_their_nominal_memory() -> None:
    for each in cards():
        # 141 GB are decimal; the others are GiB, of which error correction takes up to a sixteenth.
        assert 0.9 * each.memory_gb * 2**30 < each.total.low < each.total.high <= each.memory_gb * 2**30
        assert each.outside.low < each.outside.high < 0.15 * each.total.low
