"""FLOP of language models at their real sizes, against formulas of papers and programs; nothing is computed."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from workload.contract import utilization
from workload.contract.record import read
from workload.contract.spec import Device
from workload.contract.utilization import Utilization
from workload.steps.step_work import Work, WorkCounter

# How a model runs a block on the values between blocks.
Run = Callable[[nn.Module, Tensor], Tensor]
SEQUENCES = 2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a model: GPT-2, or Llama with grouped queries, SwiGLU, RMSNorm and a head of its own (`gate`)."""

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    words: int
    positions: int
    gate: bool = False

    @property
    def matrices(self) -> int:
        """Weights of the layers and of the head that multiply each token: no embeddings, biases and norms."""
        attention = 2 * self.width**2 * (1 + self.key_heads / self.heads)
        inner = (3 if self.gate else 2) * self.width * self.hidden
        return round(self.layers * (attention + inner) + self.width * self.words)

    def step_flop(self, *, pairs: float) -> float:
        """6 N D + attention: FLOP of a step; N: `matrices`; `pairs`: number of keys of a query, on average."""
        return (6 * self.matrices + 12 * self.layers * self.width * pairs) * SEQUENCES * self.positions

    @property
    def causal_pairs(self) -> float:
        """A query sees itself and the keys before it."""
        return (self.positions + 1) / 2


# nanoGPT's default, 124M; Llama 3.2 1B.
GPT2 = Sizes(layers=12, width=768, heads=12, key_heads=12, hidden=3072, words=50304, positions=1024)
LLAMA = Sizes(layers=16, width=2048, heads=32, key_heads=8, hidden=8192, words=128256, positions=2048, gate=True)
SMALL = Sizes(layers=3, width=24, heads=3, key_heads=3, hidden=96, words=40, positions=16)


class Block(nn.Module):
    """A layer of attention and of products of each token."""

    def __init__(self, sizes: Sizes, *, masked: bool) -> None:
        super().__init__()
        norm, linear = nn.RMSNorm if sizes.gate else nn.LayerNorm, partial(nn.Linear, bias=not sizes.gate)
        self.head, self.masked = sizes.width // sizes.heads, masked
        self.split = [sizes.width, sizes.key_heads * self.head, sizes.key_heads * self.head]
        self.first, self.second = norm(sizes.width), norm(sizes.width)
        self.into, self.out = linear(sizes.width, sum(self.split)), linear(sizes.width, sizes.width)
        self.up, self.down = linear(sizes.width, sizes.hidden), linear(sizes.hidden, sizes.width)
        self.gate = linear(sizes.width, sizes.hidden) if sizes.gate else None

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(self.first(x)).split(self.split, -1)
        heads = [part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts]
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if self.masked else None
        seen = F.scaled_dot_product_attention(
            *heads, attn_mask=mask, is_causal=mask is None, enable_gqa=bool(self.gate)
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        inner = self.up(self.second(x))
        return x + self.down(F.silu(self.gate(self.second(x))) * inner if self.gate else F.gelu(inner))


class Model(nn.Module):
    """A language model; GPT-2's head is its embedding."""

    def __init__(self, sizes: Sizes, *, masked: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(sizes.words, sizes.width), nn.Embedding(sizes.positions, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes, masked=masked) for _ in range(sizes.layers))
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.words, bias=False)
        if not sizes.gate:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, run: Run) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = run(block, x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def counted(model: nn.Module, sizes: Sizes, run: Run = nn.Module.__call__, *, has_autocast: bool = False) -> Work:
    """Work of a training step on `SEQUENCES` whole sequences."""
    tokens = torch.zeros(SEQUENCES, sizes.positions, dtype=torch.int64)
    counter = WorkCounter(Device.CPU).start()
    with torch.autocast("cpu", dtype=torch.bfloat16) if has_autocast else nullcontext():
        loss = F.cross_entropy(model(tokens, run).flatten(0, 1), tokens.flatten())
    counter.in_backward = True
    loss.backward()
    return counter.stop()


@pytest.fixture
def fake() -> Iterator[None]:
    """Tensors without memory: models have their real sizes."""
    with FakeTensorMode():
        yield


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("has_autocast", [False, True])
@pytest.mark.parametrize("sizes", [GPT2, LLAMA], ids=["GPT-2", "Llama"])
def test_a_step_has_6_n_d_flop_and_those_of_half_of_the_pairs(sizes: Sizes, has_autocast: bool) -> None:
    work = counted(Model(sizes), sizes, has_autocast=has_autocast)
    assert work.tally.flop == 3 * work.forward_flop == sizes.step_flop(pairs=sizes.causal_pairs)
    assert (work.recomputed_flop, work.uncounted) == (0, ())
    assert work.precision == ("bf16" if has_autocast else "fp32")


def test_a_mask_given_by_hand_counts_all_pairs() -> None:
    assert counted(Model(SMALL, masked=True), SMALL).tally.flop == SMALL.step_flop(pairs=SMALL.positions)


# --- MFU

STEP_S = 0.1


def used(work: Work) -> Utilization:
    """MFU and HFU of a run on an A100 whose steps take `STEP_S`, waits included."""
    document: dict[str, Any] = {
        "run_id": "a",
        "status": "completed",
        "spec": {"model": "train.py", "batch_size": SEQUENCES, "device": "cuda"},
        "environment": {"device": {"type": "cuda", "name": "NVIDIA A100-SXM4-40GB"}},
        "timing": {"measured_s": 20 * STEP_S, "step_s": {"n": 20}},
        "complexity": {
            "train_flop_per_step": work.tally.flop,
            "flop_by_precision": work.flop_by_precision,
            "recomputed_flop_per_step": work.recomputed_flop or None,
        },
    }
    found = utilization.of(read(document).record)
    assert found is not None
    return found


def estimate_mfu(model: Model, sizes: Sizes, *, fwdbwd_per_iter: int, dt: float) -> float:
    """MFU in bf16 on an A100 as nanoGPT estimates it: https://github.com/karpathy/nanoGPT, model.py."""
    n = sum(parameter.numel() for parameter in model.parameters()) - model.places.weight.numel()
    layers, heads, head, positions = sizes.layers, sizes.heads, sizes.width // sizes.heads, sizes.positions
    flops_per_token = 6 * n + 12 * layers * heads * head * positions
    flops_per_iter = flops_per_token * positions * fwdbwd_per_iter
    return flops_per_iter * (1.0 / dt) / 312e12


@pytest.mark.usefixtures("fake")
def test_mfu_is_nano_gpts_without_masked_pairs_biases_and_norms() -> None:
    model = Model(GPT2)
    found = used(counted(model, GPT2, has_autocast=True))
    theirs = estimate_mfu(model, GPT2, fwdbwd_per_iter=SEQUENCES, dt=STEP_S)
    # It counts 6 FLOP per token for each bias and weight of a norm, which multiply no matrix, and all pairs of tokens.
    small = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
    masked = 12 * GPT2.layers * GPT2.width * (GPT2.positions - GPT2.causal_pairs)
    more = (6 * small + masked) * SEQUENCES * GPT2.positions / STEP_S / 312e12
    assert found.mfu == pytest.approx(theirs - more, rel=1e-12)
    assert (found.hfu, found.peak_name) == (None, "A100 40 GB, bf16")
    assert 0.06 < more / theirs < 0.07


# --- gradient checkpointing

TOKENS = SEQUENCES * SMALL.positions
BLOCKS = SMALL.step_flop(pairs=SMALL.causal_pairs) / 3 - 2 * TOKENS * SMALL.width * SMALL.words
# torch stops to repeat a block as soon as autograd has all that it needs: before the last product, `down`.
LAST_PRODUCTS = SMALL.layers * 2 * TOKENS * SMALL.hidden * SMALL.width
ATTENTION = SMALL.layers * 4 * TOKENS * SMALL.width * SMALL.causal_pairs


def keep_products(_: object, operation: Any, *__: object, **___: object) -> CheckpointPolicy:
    is_product = operation is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


class ByHand(torch.autograd.Function):
    """Checkpointing as other libraries have it, without torch.utils.checkpoint."""

    @staticmethod
    def forward(ctx: Any, block: nn.Module, x: Tensor) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(x)
        result: Tensor = block(x)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


selective = partial(checkpoints.create_selective_checkpoint_contexts, keep_products)
# How blocks run, and FLOP that are repeated.
CHECKPOINTS: dict[str, tuple[Run, float]] = {
    "reentrant": (partial(checkpoint, use_reentrant=True), BLOCKS),
    "not reentrant": (partial(checkpoint, use_reentrant=False), BLOCKS - LAST_PRODUCTS),
    "without early stop": (partial(checkpoint, use_reentrant=False, early_stop=False), BLOCKS),
    "selective": (partial(checkpoint, use_reentrant=False, context_fn=selective), ATTENTION),
    "by hand": (ByHand.apply, BLOCKS),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpointing_changes_hfu_and_not_mfu(name: str) -> None:
    run, repeated = CHECKPOINTS[name]
    model = Model(SMALL)
    without, work = counted(model, SMALL), counted(model, SMALL, run)
    assert work.recomputed_flop == repeated
    assert work.tally.flop - work.recomputed_flop == without.tally.flop
    assert work.forward_flop == without.forward_flop
    before, found = used(without), used(work)
    assert (found.mfu, before.hfu) == (pytest.approx(before.mfu), None)
    assert found.hfu == pytest.approx(before.mfu * (1 + repeated / without.tally.flop))


def test_a_checkpoint_in_a_checkpoint_repeats_twice() -> None:
    # The inner one runs its forward passes without gradients.
    nested = partial(checkpoint, partial(checkpoint, use_reentrant=True), use_reentrant=True)
    assert counted(Model(SMALL), SMALL, nested).recomputed_flop == 2 * BLOCKS


def test_a_penalty_of_gradients_repeats_nothing() -> None:
    """With `create_graph`, autograd records its own operations as it does those of repeated layers."""
    x = torch.ones(5, 6, requires_grad=True)
    counter = WorkCounter(Device.CPU).start()
    [gradient] = torch.autograd.grad(nn.Linear(6, 4)(x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert counter.stop().recomputed_flop == 0
