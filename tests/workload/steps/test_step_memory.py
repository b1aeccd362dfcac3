"""Memory of a counted step, against bytes computed by hand. float32: 4 bytes; class numbers: 8."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

from workload.contract import allocations
from workload.contract.allocations import Allocation, Kind
from workload.contract.record import StepMemory
from workload.contract.spec import Device
from workload.steps.model_input import ModelInput
from workload.steps.step_memory import CountedMemory, StorageFollower
from workload.steps.step_work import WorkCounter

HERE = Path(__file__)
N, INPUTS, HIDDEN, CLASSES = 8, 10, 20, 5
WEIGHTS = 4 * (INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
BATCH = 4 * N * INPUTS + 8 * N
# A number that a step keeps: its loss, the gradient of the loss, the sum of the weights of the classes.
NUMBER = 4


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)


def batch(samples: int = N) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, INPUTS), torch.randint(CLASSES, (samples,))


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    loss_of(model, images, labels).backward()
    optimizer.step()


Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor], None]


class Follower:
    """Counts steps as a session does."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.memory = StorageFollower("cpu", HERE.parent, [optimizer])

    def step(self, step: Step = plain, samples: int = N) -> CountedMemory:
        images, labels = batch(samples)
        counter = WorkCounter(Device.CPU, ModelInput(HERE.parent), self.memory).start()
        self.memory.arrived([images, labels])
        step(self.model, self.optimizer, images, labels)
        counter.stop()
        return self.memory.end_step([self.optimizer])


def counted(
    step: Step = plain,
    model: Callable[[], nn.Module] = mlp,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    samples: int = N,
) -> tuple[StepMemory, list[Allocation]]:
    """Memory of the third step, which begins like all later ones."""
    made = model()
    follower = Follower(made, optimizer(made))
    memory = [follower.step(step, samples) for _ in range(3)][-1]
    rows = memory.allocations(samples)
    return memory.record(rows, samples=samples, method=memory.method()), rows


def total(rows: Iterable[Allocation], kind: Kind) -> int:
    """Bytes of a kind, each allocation once."""
    return sum(row.size_bytes for row in rows if row.kind is kind)


def parts(memory: StepMemory) -> dict[str, int]:
    return {kind.value: int(getattr(memory, f"{kind}_bytes") or 0) for kind in Kind}


# --- by hand


def test_two_layers_with_sgd() -> None:
    memory, rows = counted()
    # Kept for the backward pass: ReLU's result, and log-softmax's.
    kept = 4 * N * (HIDDEN + CLASSES)
    # The gradient of ReLU's result, and what ReLU makes of it, are the last to be added: with them, log-softmax's
    # result has gone. The second layer's gradients have come.
    second = 4 * (HIDDEN * CLASSES + CLASSES)
    assert parts(memory)["weights"] == WEIGHTS
    assert parts(memory)["inputs"] == BATCH
    assert memory.peak_bytes == sum(parts(memory).values())
    assert memory.optimizer_bytes == 0
    assert total(rows, Kind.ACTIVATIONS) == kept + 3 * NUMBER
    # The old gradients were there before, and went at `zero_grad`.
    assert total(rows, Kind.GRADIENTS) == 2 * WEIGHTS
    assert memory.gradients_bytes == second
    # The loss and its gradient live as long as the backward pass.
    assert memory.activations_bytes == 4 * N * HIDDEN + 2 * NUMBER
    assert memory.temporaries_bytes == 2 * 4 * N * HIDDEN
    assert memory.peak_op == "threshold_backward"
    assert memory.peak_line == f"{HERE.name}:{plain.__code__.co_firstlineno + 2}"
    # Per sample: an image, a label, ReLU's result, its gradient, and the gradient of its input.
    assert memory.bytes_per_sample == 4 * INPUTS + 8 + 3 * 4 * HIDDEN


def test_adam_keeps_two_values_and_a_number_for_each_tensor_of_weights() -> None:
    memory, _ = counted(optimizer=lambda model: torch.optim.Adam(model.parameters()))
    assert memory.optimizer_bytes == 2 * WEIGHTS + 4 * NUMBER
    # At the peak, Adam divides: two values of the largest weight are temporary. No activations are left.
    assert memory.gradients_bytes == WEIGHTS
    assert memory.temporaries_bytes == 2 * 4 * INPUTS * HIDDEN
    assert memory.bytes_per_sample == BATCH / N


def test_gradients_that_stay_are_allocated_once() -> None:
    def fill(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, images, labels).backward()
        optimizer.step()

    memory, rows = counted(fill)
    assert total(rows, Kind.GRADIENTS) == memory.gradients_bytes == WEIGHTS
    # New gradients are added to them, and are temporary; none grows with the batch.
    new = [row for row in rows if row.kind is Kind.TEMPORARIES and row.size_bytes == 4 * INPUTS * HIDDEN]
    assert [row.bytes_per_sample for row in new] == [0]


def test_accumulation_keeps_gradients_and_one_batch_of_activations() -> None:
    def twice(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        for _ in range(2):
            loss_of(model, images, labels).backward()
        optimizer.step()

    memory, rows = counted(twice)
    assert memory.gradients_bytes == WEIGHTS
    assert total(rows, Kind.ACTIVATIONS) == 2 * (4 * N * (HIDDEN + CLASSES) + 3 * NUMBER)
    assert memory.activations_bytes == 4 * N * HIDDEN + 2 * NUMBER


def test_frozen_layers_have_no_gradients_and_keep_nothing() -> None:
    def frozen() -> nn.Module:
        model = mlp()
        model[0].requires_grad_(requires_grad=False)
        return model

    memory, rows = counted(model=frozen)
    assert memory.weights_bytes == WEIGHTS
    assert total(rows, Kind.GRADIENTS) == 2 * 4 * (HIDDEN * CLASSES + CLASSES)
    # ReLU's result is kept for the gradient of the second layer's weights.
    assert total(rows, Kind.ACTIVATIONS) == 4 * N * (HIDDEN + CLASSES) + 3 * NUMBER


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_keeps_what_enters_and_computes_the_rest_again(use_reentrant: bool) -> None:
    layers = 6

    class Deep(nn.Module):
        def __init__(self, *, repeats: bool) -> None:
            super().__init__()
            self.repeats = repeats
            self.first = nn.Linear(INPUTS, HIDDEN)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Sigmoid(), nn.Linear(HIDDEN, HIDDEN), nn.Sigmoid())
                for _ in range(layers)
            )
            self.last = nn.Linear(HIDDEN, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = (
                    checkpoint(block, x, use_reentrant=use_reentrant, preserve_rng_state=False)
                    if self.repeats
                    else block(x)
                )
            return self.last(x)

    samples = 32
    kept, repeated = (
        total(counted(model=partial(Deep, repeats=each), samples=samples)[1], Kind.ACTIVATIONS)
        for each in (False, True)
    )
    one, rest = 4 * samples * HIDDEN, 4 * samples * CLASSES + 3 * NUMBER
    # A block keeps the results of both sigmoids, the second of which enters the next block; or only that one.
    assert kept == (1 + 2 * layers) * one + rest
    assert repeated == (1 + layers) * one + rest


def test_autocast_keeps_copies_of_the_weights() -> None:
    def bf16(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, images, labels)
        loss.backward()
        optimizer.step()

    _, rows = counted(bf16)
    copy = 2 * INPUTS * HIDDEN
    found = [row for row in rows if row.kind is not Kind.WEIGHTS and row.size_bytes == copy]
    # The copy of the first weight lives until the forward pass has left autocast; its gradient is bf16 at first.
    assert found
    assert all(row.bytes_per_sample == 0 for row in found)
    # ReLU's result in bf16, log-softmax's in float32.
    activations = [row.size_bytes for row in rows if row.kind is Kind.ACTIVATIONS and row.bytes_per_sample]
    assert 2 * N * HIDDEN in activations
    assert 4 * N * CLASSES in activations


def test_sparse_gradients_count_their_indices_and_rows() -> None:
    rows_read, width = 3, 16

    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(100, width, sparse=True), nn.Flatten(), nn.Linear(rows_read * width, CLASSES))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
        plain(model, optimizer, torch.zeros(len(images), rows_read, dtype=torch.long), labels)

    memory, rows = counted(step, model)
    sparse = N * rows_read * (8 + 4 * width)
    dense = 4 * (rows_read * width * CLASSES + CLASSES)
    assert memory.weights_bytes == 4 * 100 * width + dense
    assert 2 * dense + sparse <= total(rows, Kind.GRADIENTS) <= 2 * (dense + sparse)


def test_views_and_in_place_operations_take_no_memory() -> None:
    before = counted()[0]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
        plain(model, optimizer, images.add_(1).t().mul_(2).t().view(2, -1).view(N, INPUTS)[:], labels.expand(N))

    after = counted(step)[0]
    assert (after.peak_bytes, after.bytes_per_sample) == (before.peak_bytes, before.bytes_per_sample)


def test_a_storage_that_is_resized_is_freed_and_allocated_again() -> None:
    follower = StorageFollower("cpu")
    counter = WorkCounter(Device.CPU, memory=follower).start()
    tensor = torch.empty(10)
    tensor.resize_(1000)
    counter.stop()
    rows = follower.end_step().allocations(None)
    assert [(row.size_bytes, row.born, row.died) for row in rows] == [(40, 0, 1), (4000, 2, None)]


# --- several steps


def test_a_leak_is_told_and_a_list_of_the_last_two_is_none() -> None:
    for most, growth in ((100, NUMBER + 4 * N * CLASSES), (1, 0)):
        kept: list[Tensor] = []

        def leaks(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
            output = model(images)
            loss = F.cross_entropy(output, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.extend([loss.detach(), output.detach()])  # noqa: B023
            del kept[: -2 * most]  # noqa: B023

        model = mlp()
        follower = Follower(model, sgd(model))
        for _ in range(4):
            follower.step(leaks)
        assert follower.memory.growth_bytes() == growth


def test_after_the_end_nothing_is_followed() -> None:
    model = mlp()
    follower = Follower(model, sgd(model))
    follower.step()
    follower.memory.stop()
    plain(model, follower.optimizer, *batch())
    assert follower.memory.end_step().allocations(None) == []


def test_steps_of_two_batch_sizes_differ_in_what_grows_with_the_batch() -> None:
    model = mlp()
    follower = Follower(model, sgd(model))
    _, one, two = (follower.step(samples=samples) for samples in (N, N, 2 * N))
    by_shape, by_difference = one.allocations(N), one.allocations(N, two)
    assert [row.bytes_per_sample for row in by_shape] == [row.bytes_per_sample for row in by_difference]
    assert one.method(two) != one.method()
    assert max(row.bytes_at(N) for row in by_shape) == max(row.size_bytes for row in two.allocations(2 * N))


def test_without_a_batch_the_part_per_sample_is_unknown() -> None:
    model = mlp()
    memory = Follower(model, sgd(model)).step()
    rows = memory.allocations(None)
    assert {row.bytes_per_sample for row in rows} == {None}
    assert memory.record(rows, samples=None, method="").bytes_per_sample is None


def test_data_that_is_no_multiple_of_the_samples_leaves_the_part_per_sample_unknown() -> None:
    """Two graphs, of 7 and 4 nodes."""
    model, nodes = nn.Linear(INPUTS, 3), torch.randn(7 + 4, INPUTS)
    follower = StorageFollower("cpu")
    follower.arrived([nodes])
    counter = WorkCounter(Device.CPU, ModelInput(HERE.parent), follower).start()
    model(nodes).sum().backward()
    counter.stop()
    assert {row.bytes_per_sample for row in follower.end_step().allocations(2)} == {None}


# --- an independent method, and the file


@pytest.mark.parametrize("is_fake", [True, False])
def test_as_torch_counts_it(is_fake: bool) -> None:
    """The tracker does not know what enters the loss from outside, unless it is told."""
    with FakeTensorMode() if is_fake else nullcontext():
        layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 6 * 6, 5)
        model = nn.Sequential(*layers)
        images, labels = torch.zeros(N, 3, 8, 8), torch.zeros(N, dtype=torch.long)
        optimizer = torch.optim.Adam(model.parameters())
        plain(model, optimizer, images, labels)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, images, labels)
        with tracker:
            plain(model, optimizer, images, labels)
        follower = StorageFollower("cpu", optimizers=[optimizer])
        follower.holds([images, labels], Kind.INPUTS)
        counter = WorkCounter(Device.CPU, ModelInput(HERE.parent), follower).start()
        plain(model, optimizer, images, labels)
        counter.stop()
        peak_bytes = follower.end_step([optimizer]).peak_bytes
    assert tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"] == peak_bytes


def test_the_file_and_the_sentence(tmp_path: Path) -> None:
    memory, rows = counted()
    allocations.write(tmp_path / allocations.FILE, rows)
    assert allocations.read(tmp_path / allocations.FILE) == rows
    # Nothing lives from before its birth, and the peak is the most that lives at a time.
    ends = [(row.born, row.size_bytes) for row in rows] + [(row.died, -row.size_bytes) for row in rows if row.died]
    live = [sum(size for at, size in ends if at <= now) for now in range(max(at for at, _ in ends) + 1)]
    assert max(live) == memory.peak_bytes
    told: Any = allocations.sentence(memory)
    assert told.startswith("at most ")
    assert f"{HERE.name}:" in told
    assert not allocations.sentence(None)


def test_data_that_numpy_makes_in_a_later_step_does_not_exist_from_its_beginning() -> None:
    follower, peaks = StorageFollower("cpu"), []
    for _ in range(2):
        counter = WorkCounter(Device.CPU, ModelInput(HERE.parent), follower).start()
        for _ in range(3):
            torch.from_numpy(np.ones(1000)).mul(2)
        counter.stop()
        peaks.append(follower.end_step().peak_bytes)
    # Arrays of 8,000 bytes, one at a time, and the product; in the first step all three seem to have been there before.
    assert peaks == [4 * 8000, 2 * 8000]
