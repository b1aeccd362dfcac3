"""FLOP of language models at their real sizes, against formulas of papers and programs; nothing is computed."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from workload.contract import utilization
from workload.contract.record import ComplexityRecord, Record, read
from workload.contract.spec import Device
from workload.steps.step_work import Work, WorkCounter

# How a model computes a block on the values between blocks.
Run = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a language model; `hidden`: width of a block's inner layers. `gated`: Llama's block, else GPT-2's."""

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    words: int
    positions: int
    gated: bool

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def matrices(self) -> int:
        """Weights that multiply each token: of all layers and of the head, without embeddings, biases and norms."""
        attention = 2 * self.width * self.width + 2 * self.width * self.key_heads * self.head
        return self.layers * (attention + (3 if self.gated else 2) * self.width * self.hidden) + self.width * self.words


GPT2 = Sizes(
    layers=12, width=768, heads=12, key_heads=12, hidden=3072, words=50304, positions=1024, gated=False
)  # nanoGPT's default, 124M
LLAMA = Sizes(
    layers=16, width=2048, heads=32, key_heads=8, hidden=8192, words=128256, positions=2048, gated=True
)  # Llama 3.2 1B, here with a head of its own
SMALL = Sizes(layers=3, width=24, heads=3, key_heads=3, hidden=96, words=40, positions=16, gated=False)


class Block(nn.Module):
    """A layer of GPT-2, or of Llama with grouped queries and SwiGLU."""

    def __init__(self, sizes: Sizes, *, mask: bool) -> None:
        super().__init__()
        self.sizes, self.mask = sizes, mask
        norm = nn.RMSNorm if sizes.gated else nn.LayerNorm
        linear = partial(nn.Linear, bias=not sizes.gated)
        self.first, self.second = norm(sizes.width), norm(sizes.width)
        self.split = [sizes.width, sizes.key_heads * sizes.head, sizes.key_heads * sizes.head]
        self.into, self.out = linear(sizes.width, sum(self.split)), linear(sizes.width, sizes.width)
        self.up, self.down = linear(sizes.width, sizes.hidden), linear(sizes.hidden, sizes.width)
        self.gate = linear(sizes.width, sizes.hidden) if sizes.gated else None

    def forward(self, x: Tensor) -> Tensor:
        heads = [part.unflatten(-1, (-1, self.sizes.head)) for part in self.into(self.first(x)).split(self.split, -1)]
        query, key, value = (part.transpose(1, 2) for part in heads)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if self.mask else None
        grouped = self.sizes.key_heads < self.sizes.heads
        seen = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        inner = self.up(self.second(x))
        return x + self.down(F.silu(self.gate(self.second(x))) * inner if self.gate else F.gelu(inner))


class Model(nn.Module):
    """GPT-2 with a head tied to the embedding, or Llama with a head of its own."""

    def __init__(self, sizes: Sizes, *, mask: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.places = None if sizes.gated else nn.Embedding(sizes.positions, sizes.width)
        self.blocks = nn.ModuleList([Block(sizes, mask=mask) for _ in range(sizes.layers)])
        self.norm = nn.RMSNorm(sizes.width) if sizes.gated else nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        if not sizes.gated:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, run: Run) -> Tensor:
        x = self.words(tokens)
        x = x if self.places is None else x + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = run(block, x)
        return self.head(self.norm(x))


SEQUENCES = 2


def plain(block: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = block(x)
    return result


@pytest.fixture
def fake() -> Iterator[None]:
    """Tensors without memory: models have their real sizes."""
    with FakeTensorMode():
        yield


def counted(model: nn.Module, sizes: Sizes, run: Run = plain, *, has_autocast: bool = False) -> Work:
    """Work of a training step on `SEQUENCES` whole sequences."""
    tokens = torch.zeros(SEQUENCES, sizes.positions, dtype=torch.int64)
    counter = WorkCounter(Device.CPU).start()
    with torch.autocast("cpu", dtype=torch.bfloat16) if has_autocast else nullcontext():
        loss = F.cross_entropy(model(tokens, run).flatten(0, 1), tokens.flatten())
    counter.in_backward = True
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation there
    return counter.stop()


def by_formula(sizes: Sizes, *, pairs: float) -> float:
    """6 N D + attention: FLOP of a step; `pairs`: keys of a query, on average. N: see `Sizes.matrices`."""
    attention = 12 * sizes.layers * sizes.heads * sizes.head * pairs
    return (6 * sizes.matrices + attention) * SEQUENCES * sizes.positions


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("has_autocast", [False, True])
@pytest.mark.parametrize("sizes", [GPT2, LLAMA], ids=["GPT-2", "Llama"])
def test_a_step_has_6_n_d_flop_and_those_of_half_of_the_pairs(sizes: Sizes, has_autocast: bool) -> None:
    work = counted(Model(sizes), sizes, has_autocast=has_autocast)
    # A query sees itself and the keys before it: (T + 1) / 2 of T on average.
    assert work.tally.flop == by_formula(sizes, pairs=(sizes.positions + 1) / 2)
    assert work.forward_flop * 3 == work.tally.flop
    assert (work.recomputed_flop, work.uncounted) == (0, ())
    assert work.precision == ("bf16" if has_autocast else "fp32")


@pytest.mark.usefixtures("fake")
def test_a_mask_given_by_hand_counts_all_pairs() -> None:
    assert counted(Model(SMALL, mask=True), SMALL).tally.flop == by_formula(SMALL, pairs=SMALL.positions)


# --- MFU

A100 = "NVIDIA A100-SXM4-40GB"
STEP_S = 0.1


def record(work: Work, *, device: str = A100, precision: str = "bf16", steps: int = 20) -> Record:
    """A run of this work on a GPU whose steps take `STEP_S`, waits included, and a median step that takes half."""
    document: dict[str, Any] = {
        "run_id": "a",
        "status": "completed",
        "spec": {"model": "train.py", "batch_size": SEQUENCES, "precision": precision, "device": "cuda"},
        "environment": {"device": {"type": "cuda", "name": device}},
        "timing": {"measured_s": steps * STEP_S, "step_s": {"n": steps, "median": STEP_S / 2}},
    }
    complexity = ComplexityRecord(
        train_flop_per_step=work.tally.flop,
        recomputed_flop_per_step=work.recomputed_flop or None,
        flop_by_precision=work.flop_by_precision,
        uncounted=work.uncounted or None,
    )
    return replace(read(document).record, complexity=complexity)


def estimate_mfu(model: Model, sizes: Sizes, *, sequences: int, dt: float) -> float:
    """MFU in bf16 on an A100 as nanoGPT estimates it: https://github.com/karpathy/nanoGPT, model.py."""
    # `get_num_params`: all parameters, without the embedding of positions.
    assert model.places is not None
    n = sum(parameter.numel() for parameter in model.parameters()) - model.places.weight.numel()
    layers, heads, head, positions = sizes.layers, sizes.heads, sizes.head, sizes.positions
    flops_per_token = 6 * n + 12 * layers * heads * head * positions
    flops_per_iter = flops_per_token * positions * sequences
    return flops_per_iter * (1.0 / dt) / 312e12


@pytest.mark.usefixtures("fake")
def test_mfu_is_nano_gpts_without_masked_pairs_and_without_biases_and_norms() -> None:
    model = Model(GPT2)
    found = utilization.of(record(counted(model, GPT2, has_autocast=True)))
    assert found is not None
    theirs = estimate_mfu(model, GPT2, sequences=SEQUENCES, dt=STEP_S)
    # It counts 6 FLOP per token for each bias and each weight of a norm, which multiply no matrix: 0.1 % of 124M.
    small = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
    masked = 12 * GPT2.layers * GPT2.width * (GPT2.positions - 1) / 2
    more = (6 * small + masked) * SEQUENCES * GPT2.positions / STEP_S / 312e12
    assert found.mfu == pytest.approx(theirs - more, rel=1e-12)
    assert (found.hfu, found.peak_name, found.peak.flop_per_s) == (None, "A100 40 GB, bf16", 312e12)
    # Attention over 1024 tokens is a tenth of the work.
    assert 0.06 < more / theirs < 0.07


# --- gradient checkpointing

FORWARD = by_formula(SMALL, pairs=(SMALL.positions + 1) / 2) / 3
HEAD = 2 * SMALL.width * SMALL.words * SEQUENCES * SMALL.positions
# torch stops to repeat a block as soon as all that autograd needs is there: before its last product, `down`.
LAST_PRODUCT = 2 * SMALL.hidden * SMALL.width * SEQUENCES * SMALL.positions
ATTENTION = 4 * SMALL.layers * SMALL.width * (SMALL.positions + 1) / 2 * SEQUENCES * SMALL.positions


def keep_products(_: object, op: Any, *__: object, **___: object) -> CheckpointPolicy:
    is_product = op.overloadpacket.__name__ in {"addmm", "mm"}
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def whole(block: nn.Module, x: Tensor) -> Tensor:
    with set_checkpoint_early_stop(False):
        result: Tensor = checkpoint(block, x, use_reentrant=False)
        return result


class ByHand(torch.autograd.Function):
    """Checkpointing as other libraries have it, without torch.utils.checkpoint."""

    @staticmethod
    def forward(ctx: Any, block: nn.Module, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.block = block
        ctx.save_for_backward(x)
        result: Tensor = block(x)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


def without_gradients(block: nn.Module, x: Tensor) -> Tensor:
    """Run a block for its values alone, beside one with gradients."""
    with torch.no_grad():
        block(x)
    return plain(block, x)


# How blocks run: FLOP that are repeated.
CHECKPOINTS: dict[str, tuple[Run, float]] = {
    "reentrant": (partial(checkpoint, use_reentrant=True), FORWARD - HEAD),
    "not reentrant": (partial(checkpoint, use_reentrant=False), FORWARD - HEAD - SMALL.layers * LAST_PRODUCT),
    "without early stop": (whole, FORWARD - HEAD),
    "selective": (
        partial(
            checkpoint,
            use_reentrant=False,
            context_fn=partial(create_selective_checkpoint_contexts, keep_products),
        ),
        ATTENTION,
    ),
    "by hand": (ByHand.apply, FORWARD - HEAD),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpointing_changes_hfu_and_not_mfu(name: str) -> None:
    run, repeated = CHECKPOINTS[name]
    torch.manual_seed(0)
    model = Model(SMALL)
    without, work = counted(model, SMALL), counted(model, SMALL, run)
    assert work.recomputed_flop == repeated
    assert work.tally.flop - work.recomputed_flop == without.tally.flop
    assert work.forward_flop == without.forward_flop
    before, found = (utilization.of(record(each, precision="fp32")) for each in (without, work))
    assert before is not None
    assert found is not None
    assert (found.mfu, before.hfu) == (pytest.approx(before.mfu), None)
    assert found.hfu == pytest.approx(before.mfu * (1 + repeated / without.tally.flop))


def test_a_checkpoint_in_a_checkpoint_repeats_twice() -> None:
    inner = partial(checkpoint, use_reentrant=True)
    outer = partial(checkpoint, lambda block, x: inner(partial(without_gradients, block), x), use_reentrant=True)
    work = counted(Model(SMALL), SMALL, outer)
    # Each of three forward passes runs the block twice, once without gradients.
    assert work.recomputed_flop == 2 * 2 * (FORWARD - HEAD)


def test_a_penalty_of_gradients_repeats_nothing() -> None:
    """Autograd records its own operations there, as it does those of repeated layers."""
    layer = nn.Linear(6, 4)
    x = torch.ones(5, 6, requires_grad=True)
    counter = WorkCounter(Device.CPU).start()
    [gradient] = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()  # type: ignore[no-untyped-call]
    assert counter.stop().recomputed_flop == 0
