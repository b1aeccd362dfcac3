"""Lists operations without a FLOP formula whose work is known: they move bytes and count 0 FLOP.

The bytes of a known operation are those of the tensors that it reads and writes. An unknown operation, such as sorting,
a Fourier transform or a library's own, has neither FLOP nor bytes: its time is reported as unattributed.
"""

import re
from functools import cache

import torch
from torch._ops import OpOverload

# Families by the beginning of their names: optimizers and lists of tensors, random numbers, losses, pooling.
FAMILIES = re.compile(
    r"_foreach_|_fused_|_amp_|native_(batch|layer|group)_norm|_?(cudnn|miopen)_batch_norm|batch_norm|_batch_norm"
    r"|_fused_rms_norm|rms_norm|instance_norm|renorm|linalg_vector_norm|norm$|norm_"
    r"|_?(log_)?softmax|_safe_softmax|nll_loss|_?cross_entropy|mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div"
    r"|binary_cross_entropy|soft_margin_loss|multi_margin|multilabel_margin|_?ctc_loss"
    r"|(_?adaptive_)?(avg|max)_pool|mkldnn_(adaptive_)?(avg|max)_pool|_upsample|upsample|pixel_(un)?shuffle"
    r"|reflection_pad|replication_pad|constant_pad|_pad_|embedding|_embedding_bag|im2col|col2im|unfold|_thnn_fused_"
)
# Single operations by their whole names: reductions, copies, fills, gathers, scatters, shapes and random numbers.
NAMES = """
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
SINGLE = frozenset(NAMES.split())


@cache
def is_known(func: OpOverload) -> bool:
    """Whether an operation without a FLOP formula is known to only move the bytes of its tensors, or none (a view)."""
    name = func.overloadpacket.__name__
    return func.namespace == "aten" and (
        torch.Tag.pointwise in func.tags
        or name in SINGLE
        or name.removesuffix("_backward") in SINGLE
        or FAMILIES.match(name) is not None
        or (name.endswith("_backward") and _is_of_a_pointwise(name))
    )


def _is_of_a_pointwise(name: str) -> bool:
    """Whether an operation such as `sigmoid_backward` belongs to a forward operation that is tagged element-wise."""
    forward = getattr(torch.ops.aten, name.removesuffix("_backward"), None)
    if forward is None:
        return False
    overloads = (getattr(forward, overload) for overload in forward.overloads())
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)
