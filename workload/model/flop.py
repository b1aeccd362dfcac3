"""Counts the FLOP and the memory traffic of the ops that PyTorch dispatches, forward and backward.

One fused multiply-add is 2 FLOP. Each contraction has a formula in `FORMULAS`. Element-wise, normalisation and pooling
ops count as 0 FLOP, as in the model FLOP of papers, but their bytes are counted. An op that looks like a contraction
and has no formula is named in `FlopCounter.uncounted`.
The bytes of an op without a formula are known if it only moves its tensors (`is_known`). Other ops, such as sorting, a
Fourier transform or a library's own, have neither FLOP nor bytes: their time is reported as unattributed.

Why not `torch.utils.flop_counter`: it multiplies the weight gradient of a grouped convolution by `groups`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils._python_dispatch import TorchDispatchMode

from workload.contract import formulas

# Pattern for names of contractions, also of ops that torch may add later. `upsample_bilinear2d` and
# `convert_element_type` do not match.
CONTRACTION = re.compile(
    r"(^|_)conv(\d|_|$|olution)|mm(_|$)|matmul|mv(_|$)|(^|_)v?dot(_|$)|einsum|tensordot|attention|attn"
    r"|(^|_)(bi|tri)?linear(_|$)|(^|_)(lstm|gru|rnn)(_|$)|transformer_encoder|cdist"
)
# Ops that allocate memory without touching it.
ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
# Namespaces of ops that compute nothing. Collectives are timed separately.
NO_WORK = frozenset({"prim", "profiler", "c10d", "_c10d_functional"})
# Views whose schema does not declare them as views: they share the memory of their input.
HIDDEN_VIEWS = frozenset(
    {"unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "_unsafe_view", "transpose_", "t_", "squeeze_"}
    | {"unsqueeze_", "detach_"}
)
# Ops that write without reading their first tensor, which only gives a shape or is overwritten.
OVERWRITING = frozenset(
    {"bernoulli_", "copy_", "fill_", "full_like", "new_full", "new_ones", "new_zeros", "normal_", "ones_like"}
    | {"rand_like", "randn_like", "uniform_", "zero_", "zeros_like"}
)
# Ops without a formula that only move bytes, by the beginnings of their names: optimizers and lists of tensors, random
# numbers, losses, pooling.
MOVES_BYTES_BEGINNINGS = re.compile(
    r"_foreach_|_fused_|_amp_|native_(batch|layer|group)_norm|_?(cudnn|miopen)_batch_norm|batch_norm|_batch_norm"
    r"|_fused_rms_norm|rms_norm|instance_norm|renorm|linalg_vector_norm|norm$|norm_"
    r"|_?(log_)?softmax|_safe_softmax|nll_loss|_?cross_entropy|mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div"
    r"|binary_cross_entropy|soft_margin_loss|multi_margin|multilabel_margin|_?ctc_loss"
    r"|(_?adaptive_)?(avg|max)_pool|mkldnn_(adaptive_)?(avg|max)_pool|_upsample|upsample|pixel_(un)?shuffle"
    r"|reflection_pad|replication_pad|constant_pad|_pad_|embedding|_embedding_bag|im2col|col2im|unfold|_thnn_fused_"
)
# More ops without a formula that only move bytes, by their whole names: reductions, copies, fills, gathers, scatters,
# shapes and random numbers.
_MOVES_BYTES = """
sum mean var std var_mean std_mean amax amin aminmax max min argmax argmin prod all any count_nonzero logsumexp
cumsum cumprod logcumsumexp cummax cummin copy_ clone _to_copy _copy_from contiguous cat stack _unsafe_view
_reshape_alias _reshape_copy as_strided_copy permute_copy view_copy repeat roll flip tril triu tril_ triu_
diag_embed diagonal_copy select_backward slice_backward diagonal_backward value_selecting_reduction_backward
as_strided_scatter select_scatter slice_scatter index index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put
index_put index_add index_add_ index_copy_ index_select index_fill_ gather scatter scatter_ scatter_add scatter_add_
scatter_reduce take masked_select masked_scatter masked_scatter_ masked_scatter_backward where one_hot fill_ zero_
full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full scalar_tensor arange linspace eye
lift_fresh _efficientzerotensor resize_ resize_as_ set_ rand randn randint randperm rand_like randn_like
randint_like normal_ normal uniform_ bernoulli bernoulli_ random_ exponential_ multinomial native_dropout
native_dropout_backward dropout _fused_dropout log_normal_ geometric_ _local_scalar_dense item equal is_same_size
isfinite _assert_async allclose _pin_memory pin_memory is_pinned _nested_tensor_from_mask channel_shuffle
cudnn_batch_norm_backward glu glu_backward native_channel_shuffle split_with_sizes_copy _chunk_cat
_weight_norm_interface _weight_norm_interface_backward _prelu_kernel _prelu_kernel_backward rrelu_with_noise
hardswish hardswish_ _conj_physical _neg_view_copy _to_dense bincount
"""
MOVES_BYTES_NAMES = frozenset(_MOVES_BYTES.split())


@dataclass(frozen=True, kw_only=True)
class Formula:
    """Kind of work of an op, and the function from the op's output and arguments to its FLOP."""

    kind: str
    flop: Callable[..., int]


def _convolution(output: Tensor, images: Tensor, weight: Tensor, *rest: Any) -> int:
    """FLOP of a convolution. `rest`: bias, stride, padding, dilation, transposed, output_padding, groups."""
    is_transposed = rest[4]
    return formulas.convolution(output.shape, images.shape, weight.shape, transposed=is_transposed)


def _convolution_backward(_output: Any, gradient: Tensor, images: Tensor, weight: Tensor, *rest: Any) -> int:
    """FLOP of a convolution's backward pass: as many as forward, for each wanted gradient (of images, of weights).

    `rest`: bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask.
    """
    is_transposed, wanted_gradients = rest[4], rest[7][:2]
    products: int = sum(wanted_gradients)
    forward_flop = formulas.convolution(gradient.shape, images.shape, weight.shape, transposed=is_transposed)
    return products * forward_flop


def _matmul(output: Tensor, left: Tensor, *_others: Any, **_options: Any) -> int:
    return formulas.matmul(output.shape, left.shape)


def _add_matmul(output: Tensor, _added: Tensor, left: Tensor, *_others: Any, **_options: Any) -> int:
    return formulas.matmul(output.shape, left.shape)


def _add_summed_bmm(output: Tensor, _added: Tensor, left: Tensor, *_others: Any, **_options: Any) -> int:
    """FLOP of `addbmm`, which sums over the batch, the first dimension of `left`."""
    return left.shape[0] * formulas.matmul(output.shape, left.shape)


def _linear_backward(_output: Any, _inputs: Tensor, gradient: Tensor, weight: Tensor, mask: Sequence[bool]) -> int:
    return sum(mask[:2]) * 2 * gradient.numel() * weight.shape[1]


def _lstm(_output: Any, inputs: Tensor, into: Tensor, between: Tensor, *_others: Any) -> int:
    """FLOP of oneDNN's LSTM layer in one direction: each weight is used once per position of `inputs` (..., size)."""
    return formulas.recurrent(inputs.shape, [into.shape, between.shape])


def _cell(_output: Any, inputs: Tensor, *_others: Any) -> int:
    """Return 0 for the element-wise part of a fused recurrent cell, whose products are dispatched separately."""
    return 0 * inputs.dim()


def _cudnn_rnn(_output: Any, inputs: Tensor, weights: Sequence[Tensor], *_others: Any) -> int:
    """FLOP of cuDNN's recurrent layers: `inputs` (..., size), packed or not; vectors among the weights are biases."""
    return formulas.recurrent(inputs.shape, [weight.shape for weight in weights])


def _twice(flop: Callable[..., int]) -> Callable[..., int]:
    """FLOP of a backward pass that has two products for each product of the forward pass."""
    return lambda *arguments, **options: 2 * flop(*arguments, **options)


def _attention(is_causal: int | None) -> Callable[..., int]:
    """Function that returns the FLOP of attention. `is_causal`: position of this argument, see `IS_CAUSAL`."""

    def flop(_output: Any, *arguments: Any, **options: Any) -> int:
        query, key, value = arguments[:3]
        given = () if is_causal is None else (*arguments[is_causal : is_causal + 1], options.get("is_causal"))
        return formulas.attention(query.shape, key.shape, value.shape, causal=any(each is True for each in given))

    return flop


def _attention_backward(is_causal: int) -> Callable[..., int]:
    """Function that returns the FLOP of the backward pass of attention: twice those of the forward pass.

    The backward operation has the gradient of the output as its first argument, before those of the forward operation.
    `is_causal`: position of this argument in the backward operation.
    """

    def flop(_output: Any, _gradient: Tensor, *arguments: Any, **options: Any) -> int:
        return 2 * _attention(is_causal - 1)(_output, *arguments, **options)

    return flop


# Names of ops without overload and without the _ of in-place forms. Attention on the math path is dispatched as bmm.
_FORMULAS: tuple[tuple[str, Callable[..., int], str], ...] = (
    ("convolution", _convolution, "convolution _convolution"),
    ("convolution_backward", _convolution_backward, "convolution_backward"),
    ("matmul", _matmul, "mm bmm mv dot vdot linear"),
    ("matmul", _linear_backward, "linear_backward"),
    ("matmul", _add_matmul, "addmm _addmm_activation baddbmm addmv"),
    ("matmul", _add_summed_bmm, "addbmm"),
    ("recurrent", _lstm, "mkldnn_rnn_layer"),
    ("recurrent_backward", _twice(_lstm), "mkldnn_rnn_layer_backward"),
    ("recurrent", _cudnn_rnn, "_cudnn_rnn"),
    ("recurrent_backward", _twice(_cudnn_rnn), "_cudnn_rnn_backward"),
    ("recurrent", _cell, "_thnn_fused_lstm_cell _thnn_fused_gru_cell"),
    ("recurrent_backward", _cell, "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward"),
)
FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {name: Formula(kind=kind, flop=flop) for kind, flop, names in _FORMULAS for name in names.split()}
    | {
        f"{name}_backward": Formula(kind="attention_backward", flop=_attention_backward(backward))
        for name, (_, backward) in formulas.IS_CAUSAL.items()
    }
    | {name: Formula(kind="attention", flop=_attention(forward)) for name, (forward, _) in formulas.IS_CAUSAL.items()}
    | {formulas.MATH_OF_MPS: Formula(kind="attention", flop=_attention(None))}
)


def formula_of(name: str) -> Formula | None:
    """Formula of an op, in-place or not; None if the op has no formula. `name`: without namespace and overload."""
    return FORMULAS.get(name) or FORMULAS.get(name.removesuffix("_"))


def looks_like_contraction(name: str) -> bool:
    """Whether an op of this name probably multiplies matrices, so that counting 0 FLOP would be wrong."""
    return CONTRACTION.search(name) is not None


@cache
def is_known(func: OpOverload) -> bool:
    """Whether an op without a FLOP formula has known memory traffic: its tensors' bytes, or no bytes, as for a view."""
    name = func.overloadpacket.__name__
    return func.namespace == "aten" and (
        torch.Tag.pointwise in func.tags
        or name in MOVES_BYTES_NAMES
        or name.removesuffix("_backward") in MOVES_BYTES_NAMES
        or MOVES_BYTES_BEGINNINGS.match(name) is not None
        or (name.endswith("_backward") and _has_pointwise_forward(name))
    )


def _has_pointwise_forward(name: str) -> bool:
    """Whether an op such as `sigmoid_backward` belongs to a forward op that is tagged element-wise."""
    forward = getattr(torch.ops.aten, name.removesuffix("_backward"), None)
    if forward is None:
        return False
    overloads = (getattr(forward, overload) for overload in forward.overloads())
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


@dataclass(frozen=True, kw_only=True)
class Tally:
    """FLOP by kind of op, and bounds of the bytes moved: each storage once (lower), or at each op (upper).

    `flop_by_module`, `bytes_by_module`: the FLOP and the upper bound by the counter's `module`.
    """

    flop_by_op: Mapping[str, int]
    bytes_lower: int
    bytes_upper: int
    flop_by_module: Mapping[str, int] = field(default_factory=dict, compare=False)
    bytes_by_module: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def flop(self) -> int:
        """FLOP of all kinds together."""
        return sum(self.flop_by_op.values())

    def plus(self, other: Self, *, times: int = 1) -> "Tally":
        """Sum of this tally and `times` the other; `times` -1 subtracts."""

        def total(ours: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, int]:
            names = dict.fromkeys([*ours, *theirs])
            return {name: ours.get(name, 0) + times * theirs.get(name, 0) for name in names}

        return Tally(
            flop_by_op=dict(sorted(total(self.flop_by_op, other.flop_by_op).items())),
            bytes_lower=self.bytes_lower + times * other.bytes_lower,
            bytes_upper=self.bytes_upper + times * other.bytes_upper,
            flop_by_module=total(self.flop_by_module, other.flop_by_module),
            bytes_by_module=total(self.bytes_by_module, other.bytes_by_module),
        )


class FlopCounter(TorchDispatchMode):
    """Counts all ops dispatched inside the `with` block, on real, fake or meta tensors.

    `bytes_lower`: each distinct part of a storage counts once, for example a batch of a data set in memory.
    `bytes_upper`: each op that is no view reads its inputs from memory and writes its outputs to memory. Subclasses may
    set `module`, the module that runs the next ops.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation there
        self.uncounted: set[str] = set()
        self.module = ""
        self._flop_by_module: Counter[str] = Counter()
        self._bytes_by_module: Counter[str] = Counter()
        self._flop: Counter[str] = Counter()
        self._bytes_upper = 0
        self._bytes_lower = 0
        # A weak reference frees the storage's memory, but no other storage gets its address, which is the key.
        self._storages: dict[int, StorageWeakRef] = {}
        # Parts of each storage that ops have touched (offset and bytes), and the sum of their bytes.
        self._parts: set[tuple[int, int, int]] = set()
        self._touched_bytes: Counter[int] = Counter()

    def tally(self) -> Tally:
        """Counts so far."""
        return Tally(
            flop_by_op=dict(sorted(self._flop.items())),
            bytes_lower=self._bytes_lower,
            bytes_upper=self._bytes_upper,
            flop_by_module=dict(self._flop_by_module),
            bytes_by_module=dict(self._bytes_by_module),
        )

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the op and count it; a composite op, which inference mode dispatches as a whole, is decomposed first.

        An op on nested tensors is counted by the ops on their values that it is made of.
        """
        kwargs = kwargs or {}
        if any(issubclass(kind, NestedTensor) for kind in types):
            with self:
                return NestedTensor.__torch_dispatch__(func, types, args, kwargs)
        if _moves_nothing(func):
            output = func(*args, **kwargs)
            self.ran(func, args, kwargs, output)
            return output
        name = func.overloadpacket.__name__
        formula = formula_of(name)
        if formula is None and looks_like_contraction(name):
            with self:
                output = func.decompose(*args, **kwargs)
            if output is not NotImplemented:
                return output
            self.uncounted.add(f"{func.namespace}.{name}")
        output = self.run(func, args, kwargs)
        if formula is not None:
            flop = formula.flop(output, *args, **kwargs)
            self._flop[formula.kind] += flop
            self._flop_by_module[self.module] += flop
            self.counted(flop, formula.kind, args)
        self._count_bytes(func, args, kwargs, output)
        self.ran(func, args, kwargs, output)
        return output

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op; subclasses that count more than FLOP override this."""
        return func(*args, **kwargs)

    def counted(self, flop: int, kind: str, args: tuple[Any, ...]) -> None:
        """Hook for subclasses, called with the FLOP and the kind of each contraction."""

    def ran(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Hook for subclasses, called after each op, also after those that move nothing."""

    def _count_bytes(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        reads, writes, inputs = _arguments(func, args, kwargs)
        fresh = _fresh_outputs(func, output, inputs)
        if fresh is None:
            return
        if func.overloadpacket.__name__ in formulas.GATHERING and reads and fresh:
            # Only the returned rows of the table are read: as many bytes as the output has.
            rows_bytes = sum(tensor.numel() * tensor.element_size() for tensor in fresh)
            self._bytes_upper += rows_bytes
            self._bytes_lower += rows_bytes
            self._bytes_by_module[self.module] += rows_bytes
            reads = reads[1:]
        # A tensor given twice (x * x) is read once.
        for tensor in {id(t): t for t in reads}.values():
            self._touch(tensor)
        for tensor in [*writes, *fresh]:
            self._touch(tensor)

    def _touch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        storage_bytes = storage.nbytes()
        # An expanded tensor has more elements than its storage holds.
        moved_bytes = min(tensor.numel() * tensor.element_size(), storage_bytes)
        self._bytes_upper += moved_bytes
        self._bytes_by_module[self.module] += moved_bytes
        reference = StorageWeakRef(storage)
        key = self._storages.setdefault(reference.cdata, reference).cdata
        part = (key, int(tensor.storage_offset()), moved_bytes)
        if part not in self._parts:
            self._parts.add(part)
            before = self._touched_bytes[key]
            self._touched_bytes[key] = min(storage_bytes, before + moved_bytes)
            self._bytes_lower += self._touched_bytes[key] - before


@cache
def _moves_nothing(func: OpOverload) -> bool:
    is_known = func.overloadpacket.__name__ in ALLOCATIONS | HIDDEN_VIEWS
    return func.is_view or func.namespace in NO_WORK or is_known


@dataclass(frozen=True, kw_only=True)
class _Role:
    name: str
    is_read: bool
    is_written: bool


@cache
def _roles(func: OpOverload) -> tuple[_Role, ...]:
    overwrites = func.overloadpacket.__name__ in OVERWRITING
    arguments = func._schema.arguments  # noqa: SLF001 - the only way to an op's schema; torch.library reads it too
    return tuple(
        _Role(
            name=argument.name,
            is_read=not argument.is_out and not (overwrites and position == 0),
            is_written=argument.alias_info is not None and argument.alias_info.is_write,
        )
        for position, argument in enumerate(arguments)
    )


def _arguments(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    reads, writes, everything = [], [], []
    for position, role in enumerate(_roles(func)):
        value = args[position] if position < len(args) else kwargs.get(role.name)
        for tensor in stored_tensors(value):
            everything.append(tensor)
            if role.is_read:
                reads.append(tensor)
            if role.is_written:
                writes.append(tensor)
    return reads, writes, everything


def _fresh_outputs(func: OpOverload, output: Any, inputs: list[Tensor]) -> list[Tensor] | None:
    """Outputs in storages of their own; None if the op only returned its inputs in another shape."""
    outputs = list(stored_tensors(output))
    # `_unsafe_view` and `contiguous` may return an alias although their schema declares a new tensor; in-place ops
    # return an argument.
    known = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in inputs}
    fresh = [t for t in outputs if StorageWeakRef(t.untyped_storage()).cdata not in known]
    is_mutable = func._schema.is_mutable  # noqa: SLF001 - see `_roles`
    return None if outputs and not fresh and not is_mutable else fresh


def stored_tensors(value: Any) -> Iterator[Tensor]:
    """Tensors of an argument that have a storage: of a sparse one its indices and values."""
    if isinstance(value, torch.Tensor):
        match value.layout:
            case torch.sparse_coo:
                yield from (value._indices(), value._values())  # noqa: SLF001 - the public names refuse uncoalesced ones
            case torch.sparse_csr | torch.sparse_bsr:
                yield from (value.crow_indices(), value.col_indices(), value.values())
            case torch.sparse_csc | torch.sparse_bsc:
                yield from (value.ccol_indices(), value.row_indices(), value.values())
            case _:
                yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from stored_tensors(item)
