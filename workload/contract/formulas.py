"""FLOP of tensor products from their shapes, for operations that this process runs and for imported traces; Big-O.

One fused multiply-add is 2 FLOP. Standard library only.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path

Shape = Sequence[int]
GROWTH_SYMBOLS = (
    "N samples, C channels in, K out, H x W pixels out, R x S filter, G groups, T tokens of width D, F features; "
    "1 fused multiply-add = 2 FLOP"
)
# Position of the argument `is_causal` of PyTorch's fused attention, forward and backward, by operation. With a mask, or
# by single products, attention computes all pairs of query and key.
IS_CAUSAL: Mapping[str, tuple[int, int]] = {
    "_scaled_dot_product_flash_attention": (4, 11),
    "_scaled_dot_product_flash_attention_for_cpu": (4, 7),
    "_scaled_dot_product_efficient_attention": (6, 11),
    "_scaled_dot_product_cudnn_attention": (6, 14),
    "_scaled_dot_product_fused_attention_overrideable": (5, 13),
}
# Attention of Apple's GPUs, which masks all pairs after it has computed them.
MATH_OF_MPS = "_scaled_dot_product_attention_math_for_mps"
# Operations that read only the returned rows of their first tensor.
GATHERING = frozenset({"embedding", "index", "index_select", "gather", "take", "_embedding_bag"})


def convolution(output: Shape, images: Shape, weight: Shape, *, transposed: bool) -> int:
    """FLOP of a convolution: 2 for each weight at each position of the output, or of the input if transposed.

    Shape of `images`: (N, C_in, *space). Shape of `weight`: (C_out, C_in / groups, *kernel); of a transposed
    convolution: (C_in, C_out / groups, *kernel). Both shapes of `weight` account for the groups. Padded positions
    count. Source: Dumoulin and Visin 2016, https://arxiv.org/abs/1603.07285, chapters 2 and 4.
    """
    swept = images if transposed else output
    return 2 * (prod(swept) // swept[1]) * prod(weight)


def convolved(
    images: Shape,
    weight: Shape,
    *,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    output_padding: Shape,
    groups: int,
) -> tuple[int, ...]:
    """Shape of a convolution's output.

    Source: Dumoulin and Visin 2016, https://arxiv.org/abs/1603.07285, relationships 6 and 14.
    """
    space, kernel = images[2:], weight[2:]
    strides, paddings, dilations, more = (
        # A single number holds for all dimensions, as in PyTorch.
        tuple(values) * len(space) if len(values) == 1 else tuple(values)
        for values in (stride, padding, dilation, output_padding)
    )
    if transposed:
        sizes = (
            (size - 1) * step - 2 * pad + spread * (edge - 1) + extra + 1
            for size, edge, step, pad, spread, extra in zip(
                space, kernel, strides, paddings, dilations, more, strict=True
            )
        )
        return images[0], weight[1] * groups, *sizes
    sizes = (
        (size + 2 * pad - spread * (edge - 1) - 1) // step + 1
        for size, edge, step, pad, spread in zip(space, kernel, strides, paddings, dilations, strict=True)
    )
    return images[0], weight[0], *sizes


def matmul(output: Shape, first: Shape) -> int:
    """FLOP of a matrix product: 2 for each output element and each element of the inner dimension, the last of `first`.

    Source: Golub and Van Loan, Matrix Computations, 4th edition, section 1.1.11 (2mnk).
    """
    return 2 * prod(output) * first[-1]


def attention(query: Shape, key: Shape, value: Shape, *, causal: bool = False) -> int:
    """FLOP of attention: query x key and weights x value, 2 for each multiply-add.

    `query` (..., heads, L, E), `key` (..., L_kv, E), `value` (..., L_kv, E_v). Source: Dao 2023,
    https://arxiv.org/abs/2307.08691, section 4.1: 4 x L^2 x E x heads, and twice as many backward (2.5 times in the
    paper, which counts the recomputation). `causal`: the kernel leaves out the keys after each query, as PyTorch's
    `is_causal` does from the first query and key on: of L x L pairs, L x (L + 1) / 2 remain. A kernel computes whole
    blocks along the diagonal, whose masked part does not count.
    """
    length, keys = query[-2], key[-2]
    if causal:
        square = min(length, keys)
        pairs = square * (square + 1) // 2 + (length - square) * keys
    else:
        pairs = length * keys
    return 2 * prod(query[:-2]) * pairs * (query[-1] + value[-1])


def recurrent(inputs: Shape, weights: Sequence[Shape]) -> int:
    """FLOP of a recurrent layer: each weight is used once at each position of `inputs` (..., size).

    Vectors in `weights` are biases and do not count.
    """
    return 2 * prod(inputs[:-1]) * sum(prod(weight) for weight in weights if len(weight) > 1)


@cache
def growth_of_layers() -> list[dict[str, str]]:
    """Rows of big_o.toml, texts: `layer` (its kind), `forward`, `order`, `training`, `bytes` and `intensity`."""
    path = Path(__file__).with_name("big_o.toml")
    rows: list[dict[str, str]] = tomllib.loads(path.read_text(encoding="utf-8"))["layer"]
    return rows
