"""FLOP and bytes of single ops against numbers computed by hand."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from workload.contract import formulas
from workload.model.flop import FORMULAS, FlopCounter, Tally, formula_of, looks_like_contraction


def meta(*shape: int, grad: bool = False) -> Tensor:
    return torch.empty(shape, device="meta", requires_grad=grad)


def counted(work: Callable[[], object]) -> Tally:
    with FlopCounter() as counter:
        work()
    assert counter.uncounted == set()
    return counter.tally()


def backward(output: Tensor) -> None:
    output.backward(torch.empty_like(output))


# --- convolutions: (images, weight, options) -> FLOP of the forward pass

CONVOLUTIONS = {
    # 2 x (2 x 16 x 16 positions) x (8 x 4 x 3 x 3 weights)
    "plain": ((2, 4, 16, 16), (8, 4, 3, 3), {"padding": 1}, 2 * 512 * 288),
    # 2 x (2 x 8 x 8) x 288
    "strided": ((2, 4, 16, 16), (8, 4, 3, 3), {"padding": 1, "stride": 2}, 2 * 128 * 288),
    # output 16 - 2 x (3 - 1) = 12: 2 x (2 x 12 x 12) x 288
    "dilated": ((2, 4, 16, 16), (8, 4, 3, 3), {"dilation": 2}, 2 * 288 * 288),
    # 4 groups of 2 -> 4 channels: 2 x (2 x 16 x 16) x (16 x 2 x 3 x 3)
    "grouped": ((2, 8, 16, 16), (16, 2, 3, 3), {"padding": 1, "groups": 4}, 2 * 512 * 288),
    # a kernel a channel: 2 x (2 x 16 x 16) x (8 x 1 x 3 x 3)
    "depthwise": ((2, 8, 16, 16), (8, 1, 3, 3), {"padding": 1, "groups": 8}, 2 * 512 * 72),
    # 2 x (2 x 14) x (8 x 4 x 3)
    "1d": ((2, 4, 16), (8, 4, 3), {}, 2 * 28 * 96),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_costs_its_weights_at_each_output_position(case: str) -> None:
    images, weight, options, flop = CONVOLUTIONS[case]
    convolve = F.conv1d if len(images) == 3 else F.conv2d
    tally = counted(lambda: backward(convolve(meta(*images, grad=True), meta(*weight, grad=True), **options)))
    assert tally.flop_by_op == {"convolution": flop, "convolution_backward": 2 * flop}
    assert tally.flop == 3 * flop


@pytest.mark.parametrize(
    ("stride", "groups", "weight"), [(1, 1, (4, 8, 3, 3)), (2, 1, (4, 8, 3, 3)), (2, 2, (4, 4, 3, 3))]
)
def test_a_transposed_convolution_costs_its_weights_at_each_input_position(
    stride: int, groups: int, weight: tuple[int, ...]
) -> None:
    tally = counted(
        lambda: backward(
            F.conv_transpose2d(meta(2, 4, 5, 5, grad=True), meta(*weight, grad=True), stride=stride, groups=groups)
        )
    )
    flop = 2 * (2 * 5 * 5) * torch.Size(weight).numel()
    assert tally.flop_by_op == {"convolution": flop, "convolution_backward": 2 * flop}


@pytest.mark.parametrize(
    ("images_grad", "weight_grad", "products"), [(True, False, 1), (False, True, 1), (True, True, 2)]
)
def test_only_the_gradients_asked_for_cost(images_grad: bool, weight_grad: bool, products: int) -> None:
    images, weight = meta(2, 4, 16, 16, grad=images_grad), meta(8, 4, 3, 3, grad=weight_grad)
    tally = counted(lambda: backward(F.conv2d(images, weight, meta(8, grad=True), padding=1)))
    assert tally.flop_by_op["convolution_backward"] == products * 2 * 512 * 288


def test_a_bias_alone_costs_no_product() -> None:
    tally = counted(lambda: backward(F.conv2d(meta(2, 4, 16, 16), meta(8, 4, 3, 3), meta(8, grad=True))))
    assert tally.flop_by_op["convolution_backward"] == 0


@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 4),
    per_group=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    size=st.integers(7, 12),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 3),
)
def test_any_convolution_agrees_with_counting_each_output_element(
    batch: int,
    groups: int,
    per_group: tuple[int, int],
    size: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
) -> None:
    channels_in, channels_out = groups * per_group[0], groups * per_group[1]
    # https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv2d.html, "Shape"
    out_size = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    multiply_adds = sum(kernel * kernel * per_group[0] for _ in range(batch * channels_out * out_size**2))
    layer = torch.nn.Conv2d(
        channels_in, channels_out, kernel, stride, padding, dilation, groups, bias=False, device="meta"
    )
    tally = counted(lambda: backward(layer(meta(batch, channels_in, size, size, grad=True))))
    assert tally.flop_by_op == {"convolution": 2 * multiply_adds, "convolution_backward": 4 * multiply_adds}


# --- products

PRODUCTS: dict[str, tuple[Callable[[], Tensor], int]] = {
    "mm": (lambda: meta(3, 5) @ meta(5, 7), 2 * 3 * 5 * 7),
    "mm into": (lambda: torch.mm(meta(3, 5), meta(5, 7), out=meta(3, 7)), 2 * 3 * 5 * 7),
    "addmm": (lambda: torch.addmm(meta(7), meta(3, 5), meta(5, 7)), 2 * 3 * 5 * 7),
    "addmm in place": (lambda: meta(3, 7).addmm_(meta(3, 5), meta(5, 7)), 2 * 3 * 5 * 7),
    "bmm": (lambda: torch.bmm(meta(4, 3, 5), meta(4, 5, 7)), 4 * 2 * 3 * 5 * 7),
    "baddbmm": (lambda: torch.baddbmm(meta(4, 3, 7), meta(4, 3, 5), meta(4, 5, 7)), 4 * 2 * 3 * 5 * 7),
    "addbmm": (lambda: torch.addbmm(meta(3, 7), meta(4, 3, 5), meta(4, 5, 7)), 4 * 2 * 3 * 5 * 7),
    "mv": (lambda: torch.mv(meta(3, 5), meta(5)), 2 * 3 * 5),
    "addmv": (lambda: torch.addmv(meta(3), meta(3, 5), meta(5)), 2 * 3 * 5),
    "dot": (lambda: torch.dot(meta(5), meta(5)), 2 * 5),
    "linear": (lambda: F.linear(meta(2, 3, 5), meta(7, 5), meta(7)), 2 * 2 * 3 * 5 * 7),
    "einsum": (lambda: torch.einsum("bij,bjk->bik", meta(4, 3, 5), meta(4, 5, 7)), 4 * 2 * 3 * 5 * 7),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_costs_two_flop_a_multiply_add(name: str) -> None:
    work, flop = PRODUCTS[name]
    assert counted(work).flop_by_op == {"matmul": flop}
    assert counted(torch.inference_mode()(work)).flop_by_op == {"matmul": flop}, "inference mode hides nothing"


def test_the_backward_pass_of_a_linear_layer_is_two_products() -> None:
    tally = counted(lambda: backward(F.linear(meta(3, 5, grad=True), meta(7, 5, grad=True), meta(7, grad=True))))
    assert tally.flop == 3 * (2 * 3 * 5 * 7)


# --- attention: batch 2, 4 heads, 6 queries of 8, 10 keys, values of 8

ATTENTION_FLOP = 2 * (2 * 4) * 6 * 10 * (8 + 8)


@pytest.mark.parametrize(("queries", "keys"), [(6, 10)])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_is_two_products_and_four_backward(device: str, queries: int, keys: int) -> None:
    query, key, value = (torch.zeros(2, 4, n, 8, device=device, requires_grad=True) for n in (queries, keys, keys))
    tally = counted(lambda: backward(F.scaled_dot_product_attention(query, key, value)))
    kinds = {"cpu": {"attention", "attention_backward"}, "meta": {"matmul"}}
    assert set(tally.flop_by_op) == kinds[device]
    assert tally.flop == 3 * ATTENTION_FLOP


@pytest.mark.parametrize("name", [name for name in FORMULAS if "dot_product" in name])
def test_every_attention_kernel_has_its_formula(name: str) -> None:
    query, key, value = (meta(2, 4, n, 8) for n in (6, 10, 10))
    formula = FORMULAS[name]
    if name.endswith("_backward"):
        assert formula.kind == "attention_backward"
        assert formula.flop(None, query, query, key, value, None) == 2 * ATTENTION_FLOP
    else:
        assert formula.kind == "attention"
        assert formula.flop(None, query, key, value, dropout_p=0.0) == ATTENTION_FLOP


# Pairs of query and key that a causal kernel keeps: the first query sees one key, the sixth and all later ones six.
@pytest.mark.parametrize(("queries", "keys", "pairs"), [(6, 6, 21), (6, 10, 21), (8, 6, 21 + 2 * 6), (1, 10, 1)])
@pytest.mark.parametrize("name", formulas.IS_CAUSAL)
def test_causal_attention_counts_the_pairs_that_its_kernel_keeps(
    name: str, queries: int, keys: int, pairs: int
) -> None:
    query, key, value = meta(2, 4, queries, 8), meta(2, 2, keys, 8), meta(2, 2, keys, 5)
    forward, backward = formulas.IS_CAUSAL[name]
    flop = 2 * 8 * pairs * (8 + 5)
    others = [query, key, value] + [None] * (forward - 3)
    assert FORMULAS[name].flop(None, *others, True) == flop
    assert FORMULAS[name].flop(None, query, key, value, is_causal=True) == flop
    assert FORMULAS[name].flop(None, *others, False) == 2 * 8 * queries * keys * (8 + 5)
    gradients = FORMULAS[f"{name}_backward"]
    assert gradients.flop(None, query, *[query, key, value], *[None] * (backward - 4), True) == 2 * flop


@pytest.mark.parametrize("name", [name for name in FORMULAS if "dot_product" in name or "convolution" in name])
def test_the_arguments_stand_where_the_formula_reads_them(name: str) -> None:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        pytest.skip(f"torch {torch.__version__} has no {name}")
    names = [argument.name for argument in getattr(packet, packet.overloads()[0])._schema.arguments]
    if "dot_product" in name:
        first = 1 if name.endswith("_backward") else 0
        assert names[first : first + 3] == ["query", "key", "value"]
        positions = formulas.IS_CAUSAL.get(name.removesuffix("_backward"))
        assert positions is None or names[positions[first]] == "is_causal"
    elif name.endswith("_backward"):
        assert names[:3] == ["grad_output", "input", "weight"]
        assert (names[7], names[10]) == ("transposed", "output_mask")
    else:
        assert (names[:2], names[6]) == (["input", "weight"], "transposed")


# --- what has no formula


CONTRACTIONS = [
    *("_scaled_mm", "conv_tbc", "slow_conv3d", "_grouped_mm", "deform_conv2d", "_flash_attention_forward", "lstm"),
    *("mkldnn_rnn_layer", "_trilinear", "_weight_int4pack_mm", "cudnn_convolution", "_cdist_forward", "einsum"),
]
OTHERS = [
    *("add", "native_batch_norm", "upsample_bilinear2d", "_convert_weight_to_int4pack", "convert_element_type"),
    *("gelu_backward", "_softmax", "grid_sampler_2d", "max_pool2d_with_indices", "native_layer_norm"),
    *("native_dropout", "mean"),
]


def test_contractions_are_recognised_by_their_names() -> None:
    assert [name for name in CONTRACTIONS if not looks_like_contraction(name)] == []
    assert [name for name in OTHERS if looks_like_contraction(name) or formula_of(name)] == []


def test_a_contraction_without_formula_is_named_and_not_silently_free() -> None:
    @torch.library.custom_op("rooflaunch_test::my_conv2d", mutates_args=())
    def my_conv2d(images: Tensor) -> Tensor:
        return images.clone()

    with FlopCounter() as counter:
        torch.ops.rooflaunch_test.my_conv2d(torch.zeros(3))
        torch.zeros(3).relu().sum()
    assert counter.uncounted == {"rooflaunch_test.my_conv2d"}


# --- bytes: x and y hold 1000 floats, 4000 bytes

TRAFFIC: dict[str, tuple[Callable[[Tensor, Tensor], object], int, int]] = {
    "two inputs and an output": (lambda x, y: x + y, 12_000, 12_000),
    "the same input twice": (lambda x, _: x * x, 8_000, 8_000),
    "in place reads and writes": (lambda x, y: x.add_(y), 8_000, 12_000),
    "into a given output": (lambda x, y: torch.neg(x, out=y), 8_000, 8_000),
    "a copy does not read its target": (lambda x, y: x.copy_(y), 8_000, 8_000),
    "filling does not read": (lambda x, _: x.zero_(), 4_000, 4_000),
    "zeros_like reads no shape": (lambda x, _: torch.zeros_like(x), 4_000, 4_000),
    "an allocation touches nothing": (lambda x, _: torch.empty_like(x), 0, 0),
    "a view moves nothing": (lambda x, _: x.view(10, 100).t()[2:].unsqueeze(0).detach(), 0, 0),
    "a reshape without copy moves nothing": (lambda x, _: x.reshape(10, 100), 0, 0),
    "an aliasing _unsafe_view moves nothing": (lambda x, _: torch.ops.aten._unsafe_view(x, [10, 100]), 0, 0),
    "a conversion that changes nothing moves nothing": (lambda x, _: x.to(torch.float32).contiguous(), 0, 0),
    "a conversion to half": (lambda x, _: x.half(), 6_000, 6_000),
    "a slice of 10 elements": (lambda x, _: x[:10].neg(), 40 + 40, 40 + 40),
    "two slices, one of them twice": (lambda x, _: (x[:10].neg(), x[10:30].neg(), x[:10].neg()), 120 + 160, 160 + 160),
    "a slice of a tensor that is read as a whole": (lambda x, _: (x[:10].neg(), x.neg()), 4_000 + 4_040, 4_040 + 4_040),
    "expanded memory is no larger": (lambda x, _: x[:1].expand(5000).neg(), 4_000 + 20_000, 4_000 + 20_000),
    "a list of tensors": (lambda x, y: torch.cat([x, y]), 16_000, 16_000),
    "a list changed in place": (lambda x, y: torch._foreach_mul_([x, y], 2.0), 8_000, 16_000),
    "two ops on one tensor": (lambda x, _: x.neg().neg(), 12_000, 16_000),
    "a reduction": (lambda x, _: x.sum(), 4_004, 4_004),
}


@pytest.mark.parametrize("case", TRAFFIC)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bytes_by_hand(case: str, device: str) -> None:
    work, lower, upper = TRAFFIC[case]
    x, y = (torch.zeros(1000, device=device) for _ in range(2))
    tally = counted(lambda: work(x, y))
    assert (tally.bytes_lower, tally.bytes_upper) == (lower, upper)


def test_memory_that_is_freed_and_reused_counts_as_new() -> None:
    x = torch.zeros(1000)

    def work() -> None:
        for _ in range(10):
            x.neg()

    assert counted(work).bytes_lower == 4_000 + 10 * 4_000


def test_the_counter_holds_no_memory() -> None:
    with FlopCounter() as counter:
        temporary = torch.zeros(1000).neg()
        reference = torch.multiprocessing.reductions.StorageWeakRef(temporary.untyped_storage())
        del temporary
    assert reference.expired()
    assert counter.tally().bytes_lower == 8_000


def test_tallies_add_and_subtract_kind_by_kind() -> None:
    one = Tally(flop_by_op={"matmul": 5}, bytes_lower=10, bytes_upper=20)
    other = Tally(flop_by_op={"attention": 1, "matmul": 2}, bytes_lower=1, bytes_upper=2)
    added = one.plus(other, times=3)
    assert added == Tally(flop_by_op={"attention": 3, "matmul": 11}, bytes_lower=13, bytes_upper=26)
    assert (added.flop, added.plus(other, times=-3).flop) == (14, 5)


def test_operations_on_sparse_tensors_count_their_indices_and_values() -> None:
    """An embedding with sparse gradients, and a product with a sparse matrix of three values."""
    table = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def step() -> None:
        table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    assert counted(step).bytes_upper > 0
    matrix = torch.eye(3).to_sparse()
    assert counted(lambda: matrix + matrix).bytes_upper > 3 * 4
