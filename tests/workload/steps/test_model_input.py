"""What enters the model in a step: tokens, images or samples, found without a DataLoader while a step is counted."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from workload.contract.spec import Device
from workload.steps.model_input import Entered, ModelInput, Unit, words
from workload.steps.step_work import WorkCounter

HERE = Path(__file__)
VOCABULARY = 20


class Gpt(nn.Module):
    """A language model that looks up positions before tokens; `loss` of targets whose class `ignored` is left out."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.places, self.ids = nn.Embedding(32, 8), nn.Embedding(VOCABULARY, 8, padding_idx=padding)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, ids: Tensor, targets: Tensor | None = None, ignored: int = -100, **_: Any) -> Tensor:
        logits = self.head(self.places(torch.arange(ids.shape[-1])) + self.ids(ids))
        return (
            logits.sum()
            if targets is None
            else F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=ignored)
        )


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(30, 4), nn.Embedding(30, 4)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum()


class Captions(nn.Module):
    """A model of images and text."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = nn.Embedding(VOCABULARY, 4), nn.Linear(48, 4)

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        return (self.text(input_ids).mean(1) * self.image(pixel_values.flatten(1))).sum()


class Recurrent(nn.Module):
    """Tokens (T, N), as recurrent layers of torch take them."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.layer = nn.Embedding(VOCABULARY, 4), nn.LSTM(4, 4)

    def forward(self, ids: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        return self.layer(self.ids(ids), state)[0].sum()


class Labelled(nn.Module):
    """A generator of images of a class."""

    def __init__(self) -> None:
        super().__init__()
        self.label, self.image = nn.Embedding(VOCABULARY, 3), nn.Conv2d(3, 3, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return (self.image(images) + self.label(labels)[:, :, None, None]).sum()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ids, self.layer = nn.Embedding(VOCABULARY, 4), nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)

    def forward(self, ids: Tensor, is_padding: Tensor) -> Tensor:
        return self.layer(self.ids(ids), src_key_padding_mask=is_padding).sum()


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(30, 4)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.bag(ids, offsets).sum()


class Shared(nn.Module):
    """An encoder and a decoder with one embedding; the decoder's ids are made of the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = nn.Embedding(VOCABULARY, 4)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        shifted = labels.new_zeros(labels.shape)
        shifted[:, 1:] = labels[:, :-1]
        return self.ids(ids).sum() + self.ids(shifted).sum()


def ids(*shape: int) -> Tensor:
    return torch.randint(1, VOCABULARY, shape)


def get_batch() -> Tensor:
    return torch.stack([ids(8) for _ in range(3)])


def padded(padding: int) -> Tensor:
    """Three sequences of 8, 6 and 5 tokens."""
    made = get_batch()
    made[1, 6:] = made[2, 5:] = padding
    return made


def accumulate() -> None:
    model, batch = Gpt(), get_batch()
    for _ in range(4):
        # The next batch is made before the backward pass of this one, as nanoGPT does.
        loss, batch = model(batch), get_batch()
        loss.backward()


def evaluate_first() -> None:
    model = Gpt()
    with torch.no_grad():
        model(ids(7, 12))
    model(get_batch()).backward()


def by_mask() -> None:
    batch = padded(5)
    mask = torch.ones_like(batch)
    mask[1, 6:] = mask[2, 5:] = 0
    Gpt()(batch, attention_mask=mask).backward()


def by_padding_mask() -> None:
    Encoder()(ids(3, 8), torch.arange(8) >= torch.tensor([[8], [6], [5]])).backward()


def by_ignored_id() -> None:
    batch = padded(0)
    Gpt()(batch, batch.roll(-1, 1), ignored=0).backward()


def by_ignored_targets() -> None:
    """Prompts of three tokens and the padding are left out of the loss."""
    batch = padded(0)
    targets = batch.roll(-1, 1)
    targets[:, :3] = targets[:, -1] = targets[1, 5:] = targets[2, 4:] = -100
    Gpt()(batch, targets).backward()


def prompts_alone() -> None:
    batch = ids(3, 8)
    batch[:, -2:] = torch.tensor([1, 2])
    targets = batch.clone()
    targets[:, :5] = targets[:, -1] = -100
    Gpt()(batch, targets).backward()


def jagged() -> Tensor:
    return torch.nested.nested_tensor([ids(3), ids(9), ids(4)], layout=torch.jagged)


def of_nested() -> None:
    nn.Embedding(VOCABULARY, 4)(jagged()).values().sum().backward()


def packed(**more: Tensor) -> None:
    batch = ids(12)
    Gpt()(batch, batch.roll(-1), **more).backward()


def twice_the_same() -> None:
    """A second pass over the same batch, as sharpness-aware minimization makes it."""
    model, batch = nn.Linear(5, 2), torch.randn(6, 5)
    for _ in range(2):
        model(batch).sum().backward()


def in_a_buffer() -> None:
    model, batch = Gpt(), torch.zeros(3, 8, dtype=torch.int64)
    for _ in range(2):
        batch.copy_(get_batch())
        model(batch).backward()


def adversarial() -> None:
    judge, maker, real = nn.Linear(5, 1), nn.Linear(3, 5), torch.randn(6, 5)
    judge(real).sum().backward()
    made = maker(torch.randn(6, 3))
    judge(made.detach()).sum().backward()
    judge(made).sum().backward()


def without_a_module() -> None:
    table = torch.randn(VOCABULARY, 4, requires_grad=True)
    F.embedding(get_batch(), table).sum().backward()


def by_gradient() -> None:
    model = nn.Linear(5, 2)
    torch.autograd.grad(model(torch.randn(6, 5)).sum(), model.weight)


def frozen_teacher() -> None:
    student, teacher, images = nn.Conv2d(3, 2, 3), nn.Conv2d(3, 2, 3), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        wanted = teacher(images)
    (student(images) - wanted).sum().backward()


def two_texts() -> None:
    """The model is called for the texts and for their translations."""
    model = Gpt()
    (model(ids(3, 8)) - model(ids(3, 6))).backward()


def acting() -> None:
    """Two states of the world, then a batch of a replay buffer, whose values a second network bounds."""
    model, target = nn.Linear(5, 2), nn.Linear(5, 2)
    for _ in range(2):
        model(torch.randn(1, 5)).argmax()
    batch = torch.randn(6, 5)
    with torch.no_grad():
        wanted = target(batch)
    (model(batch) - wanted).sum().backward()


def actor_and_critic() -> None:
    """Two updates of the critic, with a batch each, and one of the actor between them, with the first batch again."""
    actor, critic = nn.Linear(5, 2), nn.Linear(5, 1)
    actor(torch.randn(1, 5)).argmax()
    first = torch.randn(6, 5)
    actor(first).sum().backward()
    for batch in (first, torch.randn(6, 5)):
        critic(batch).sum().backward()


def used_later() -> None:
    """The first call's output is in the second loss."""
    model, other = nn.Linear(5, 2), nn.Linear(3, 2)
    early = model(torch.randn(6, 5))
    other(torch.randn(4, 3)).sum().backward()
    (early + model(torch.randn(6, 5))).sum().backward()


def episode() -> None:
    model = nn.Linear(5, 2)
    torch.stack([model(torch.randn(1, 5)).sum() for _ in range(7)]).sum().backward()


TOKENS, SAMPLES, IMAGES = Unit.TOKENS, Unit.SAMPLES, Unit.IMAGES
# what is done in a step: (what does it, unit, number, sequences, words)
STEPS: dict[str, tuple[Callable[[], None], Unit, int, int | None, str]] = {
    "a hand-written batch": (lambda: Gpt()(get_batch()).backward(), TOKENS, 24, 3, "3 sequences of 8 tokens"),
    "micro-batches": (accumulate, TOKENS, 96, 12, "12 sequences of 8 tokens"),
    "a batch in a buffer": (in_a_buffer, TOKENS, 48, 6, "6 sequences of 8 tokens"),
    "an evaluation first": (evaluate_first, TOKENS, 24, 3, "3 sequences of 8 tokens"),
    "an embedding alone": (without_a_module, TOKENS, 24, 3, "3 sequences of 8 tokens"),
    "two texts": (two_texts, TOKENS, 42, 6, "6 sequences of 6 to 8 tokens"),
    "an attention mask": (by_mask, TOKENS, 19, 3, "3 sequences of 5 to 8 tokens (padded to 8)"),
    "a mask of the padding": (by_padding_mask, TOKENS, 19, 3, "3 sequences of 5 to 8 tokens (padded to 8)"),
    "an id that the loss ignores": (by_ignored_id, TOKENS, 19, 3, "3 sequences of 5 to 8 tokens (padded to 8)"),
    "the padding of an embedding": (
        lambda: Gpt(padding=0)(padded(0)).backward(), TOKENS, 19, 3, "3 sequences of 5 to 8 tokens (padded to 8)",
    ),
    "targets that the loss ignores": (by_ignored_targets, TOKENS, 19, 3, "3 sequences of 5 to 8 tokens (padded to 8)"),
    "prompts are no padding": (prompts_alone, TOKENS, 24, 3, "3 sequences of 8 tokens"),
    "a nested tensor": (of_nested, TOKENS, 16, 3, "3 sequences of 3 to 9 tokens"),
    "packed tokens": (packed, TOKENS, 12, None, "12 packed tokens"),
    "packed tokens with their beginnings": (
        lambda: packed(cu_seqlens=torch.tensor([0, 5, 12])), TOKENS, 12, 2, "12 packed tokens in 2 sequences",
    ),
    "packed tokens with their positions": (
        lambda: packed(position_ids=torch.tensor([0, 1, 2, 0, 1, 2, 3, 0, 1, 0, 1, 2])), TOKENS, 12,
        4, "12 packed tokens in 4 sequences",
    ),
    "tokens before their batch": (
        lambda: Recurrent()(ids(9, 5), (torch.zeros(1, 5, 4), torch.zeros(1, 5, 4))).backward(), TOKENS, 45,
        5, "5 sequences of 9 tokens",
    ),
    "an embedding of encoder and decoder": (
        lambda: Shared()(get_batch(), ids(3, 6)).backward(), TOKENS, 24, 3, "3 sequences of 8 tokens of the first text",
    ),
    "ids of users and items": (lambda: Recommender()(ids(6), ids(6)).backward(), SAMPLES, 6, 6, "6 samples"),
    "pairs of ids": (lambda: nn.Embedding(30, 4)(ids(6, 2)).sum().backward(), SAMPLES, 6, 6, "6 samples"),
    "bags of ids": (lambda: Bags()(ids(12), torch.tensor([0, 5])).backward(), SAMPLES, 2, 2, "2 samples"),
    "images and text": (lambda: Captions()(ids(5, 8), torch.randn(5, 3, 4, 4)).backward(), SAMPLES, 5, 5, "5 samples"),
    "observations": (lambda: nn.Linear(5, 2)(torch.randn(6, 5)).sum().backward(), SAMPLES, 6, 6, "6 samples"),
    "one observation": (lambda: nn.Linear(5, 2)(torch.randn(5)).sum().backward(), SAMPLES, 1, 1, "1 sample"),
    "acting before a batch": (acting, SAMPLES, 6, 6, "6 samples"),
    "an actor and a critic": (actor_and_critic, SAMPLES, 12, 12, "12 samples"),
    "an output that a later loss uses": (used_later, SAMPLES, 6, 6, "6 samples"),
    "an episode": (episode, SAMPLES, 7, 7, "7 samples"),
    "images of a class": (lambda: Labelled()(torch.randn(5, 3, 4, 4), ids(5)).backward(), IMAGES, 5, 5, "5 images"),
    "a batch twice": (twice_the_same, SAMPLES, 6, 6, "6 samples"),
    "a gradient alone": (by_gradient, SAMPLES, 6, 6, "6 samples"),
    "two networks": (adversarial, SAMPLES, 6, 6, "6 samples"),
    "images with a teacher": (frozen_teacher, IMAGES, 4, 4, "4 images"),
}  # fmt: skip


def entered(step: Callable[[], None]) -> Entered | None:
    counter = WorkCounter(Device.CPU, ModelInput(HERE.parent)).start()
    backward = torch.autograd.backward

    def observed(*args: Any, **kwargs: Any) -> None:
        assert counter.model_input
        counter.in_backward = True
        counter.model_input.backward(args, begins=True)
        backward(*args, **kwargs)
        counter.in_backward = False
        counter.model_input.backward(begins=False)

    try:
        torch.autograd.backward = observed  # type: ignore[assignment]
        step()
    finally:
        torch.autograd.backward = backward
        work = counter.stop()
    return work.entered


@pytest.mark.parametrize("name", STEPS)
def test_what_enters_the_model(name: str) -> None:
    step, unit, count, samples, text = STEPS[name]
    found = entered(step)
    assert found is not None
    assert (found.unit, found.count, found.samples, words([found])) == (unit, count, samples, text)


@pytest.mark.parametrize(
    ("counts", "text"),
    [((9, 9, 60, 9), "9 samples"), ((9, 21, 60, 9), "9 to 60 samples"), ((1, 1), "1 sample")],
)
def test_words_of_steps_that_differ(counts: tuple[int, ...], text: str) -> None:
    assert words([Entered(unit=SAMPLES, count=count, samples=count, where="") for count in counts]) == text


def test_tensors_of_the_script_live_no_longer_and_modules_are_called_as_before() -> None:
    call, gone = nn.Module.__call__, list[weakref.ref[Tensor]]()

    def step() -> None:
        batch, mask = ids(3, 8), torch.ones(3, 8)
        gone.extend([weakref.ref(batch), weakref.ref(mask)])
        Gpt()(batch, batch.clone(), attention_mask=mask).backward()

    assert entered(step) is not None
    assert [reference() for reference in gone] == [None, None]
    assert nn.Module.__call__ is call
