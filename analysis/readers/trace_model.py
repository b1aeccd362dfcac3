"""Call tree of the operators of one host thread in a trace, and the model that their shapes give away. Pure.

The tree has callers, own times, and recomputed forward passes. The model is recognized by the first input, the weights
and the forward passes.
"""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from analysis.readers.kineto import Operator
from analysis.readers.operator_work import BITS, Kind, kind_of

# The function from which the autograd engine calls operators, on a GPU in a separate thread.
_ENGINE = "autograd::engine::evaluate_function"
# Operators that modules call, but derivatives do not. If the autograd engine calls such an operator, activation
# checkpointing repeats a forward pass.
_OF_FORWARD = frozenset(
    f"aten::{name}"
    for name in (
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "matmul",
        "batch_norm", "layer_norm", "group_norm", "embedding", "scaled_dot_product_attention", "lstm", "gru",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CallTree:
    """Operators of a thread in order of time. Each list has one value per operator.

    `parents`: index of the operator that called this operator, -1 if none did. `own`: microseconds without the
    operators that this operator called. `owners`: index of the outermost caller, or of the operator itself, that has a
    formula or moves bytes; -1 if none has. The products that a product of unknown work calls own themselves.
    `is_backward`: the autograd engine ran the operator. `is_recomputed`: the operator belongs to a forward pass that
    the engine repeats.
    """

    operators: Sequence[Operator]
    began: Sequence[float]
    parents: Sequence[int]
    own: Sequence[float]
    owners: Sequence[int]
    is_backward: Sequence[bool]
    is_recomputed: Sequence[bool]

    @classmethod
    def build(cls, operators: Sequence[Operator], has_work: Callable[[Operator], bool]) -> "CallTree":
        """The tree of a thread's operators; `has_work`: whether the work of an operator is known."""
        parents, owners, is_backward, is_recomputed = list[int](), list[int](), list[bool](), list[bool]()
        own = [operator.ended - operator.began for operator in operators]
        stack: list[int] = []
        for index, operator in enumerate(operators):
            while stack and operators[stack[-1]].ended <= operator.began:
                stack.pop()
            parent, name = stack[-1] if stack else -1, operator.call.name
            parents.append(parent)
            owner = owners[parent] if parent >= 0 else -1
            if parent >= 0:
                own[parent] -= operator.ended - operator.began
            kind = kind_of(name)
            if owner < 0:
                owner = index if kind in {Kind.PRODUCT, Kind.BYTES} else -1
            elif kind is Kind.PRODUCT and not has_work(operators[owner]) and has_work(operator):
                owner = index
            owners.append(owner)
            below_engine = parent >= 0 and is_backward[parent]
            is_backward.append(below_engine or name.startswith(_ENGINE))
            is_recomputed.append(below_engine and (is_recomputed[parent] or name in _OF_FORWARD))
            stack.append(index)
        return cls(
            operators=operators,
            began=[operator.began for operator in operators],
            parents=parents,
            own=[max(0.0, seconds) for seconds in own],
            owners=owners,
            is_backward=is_backward,
            is_recomputed=is_recomputed,
        )

    def running(self, moment: float) -> int:
        """Index of the innermost operator that ran at this moment; -1 if none did."""
        index = bisect.bisect_right(self.began, moment) - 1
        while index >= 0 and self.operators[index].ended < moment:
            index = self.parents[index]
        return index


_CONVOLUTIONS = frozenset(
    f"aten::{name}"
    for name in (
        "conv1d", "conv2d", "conv3d", "convolution", "_convolution", "cudnn_convolution", "miopen_convolution",
        "mkldnn_convolution", "convolution_overrideable",
    )
)  # fmt: skip
_EMBEDDING, _LINEAR, _ACCUMULATE = "aten::embedding", "aten::linear", "torch::autograd::AccumulateGrad"
# Argument positions of the weights, by operator.
_WEIGHTS = {
    **dict.fromkeys(_CONVOLUTIONS, (1, 2)),
    _LINEAR: (1, 2),
    _EMBEDDING: (0,),
    "aten::batch_norm": (1, 2),
    "aten::layer_norm": (2, 3),
    "aten::group_norm": (2, 3),
}
# Images have one to four channels; an input with more channels is the output of another network.
_MOST_CHANNELS = 4
_RANK_OF_IMAGES, _RANK_OF_INDICES, _RANK_OF_MATRIX = 4, 2, 2
# Batch, channel and at least one axis; an input with fewer dimensions is one example without a batch.
_LEAST_RANK = 3


@dataclass(frozen=True, kw_only=True)
class TracedModel:
    """Facts about the model, from the shapes of its operators; None if unknown.

    `first`: the first input in words. `batch_size`, `image_size`: sizes in the first input. `passes`: number of forward
    passes in all steps, counted by the operator that takes the first input. `parameters_with_gradient`: number of
    parameters that get a gradient. `parameters_in_modules`: number of parameters that the modules of one forward pass
    use. `classes`: number of outputs of the last linear layer. `parameters_per_class`: number of parameters per output,
    auxiliary heads included.
    """

    first: str | None = None
    batch_size: int | None = None
    image_size: int | None = None
    is_of_images: bool = False
    passes: int = 0
    parameters_with_gradient: int | None = None
    parameters_in_modules: int | None = None
    classes: int | None = None
    parameters_per_class: int = 0
    has_convolution: bool = False
    has_embedding: bool = False

    @property
    def parameters(self) -> int | None:
        """Number of all parameters: the larger of `parameters_in_modules` and `parameters_with_gradient`.

        A trace of compiled code has no modules, only gradients.
        """
        counts = (self.parameters_with_gradient, self.parameters_in_modules)
        return max((known for known in counts if known), default=None)

    def with_classes(self, classes: int) -> int | None:
        """Number of the model's parameters if the last layer had this many classes."""
        if self.parameters is None or self.classes is None:
            return self.parameters
        return self.parameters + (classes - self.classes) * self.parameters_per_class


def recognized_model(threads: Iterable[CallTree], is_in_steps: Callable[[float], bool], steps: int) -> TracedModel:
    """The model that ran in these steps."""
    trees = list(threads)
    forward = sorted(_forward(trees, is_in_steps), key=lambda operator: operator.began)
    convolutions = [operator for operator in forward if operator.call.name in _CONVOLUTIONS and _is_batched(operator)]
    embeddings = [operator for operator in forward if operator.call.name == _EMBEDDING and _has_indices(operator)]
    # A language model embeds tokens (batch x length) and positions (1 x length): the larger input is the tokens'.
    first_embedding = max(embeddings, key=lambda operator: math.prod(operator.call.dims[1]), default=None)
    candidates = (*convolutions[:1], *filter(None, [first_embedding]))
    first = min(candidates, key=lambda operator: operator.began, default=None)
    passes = sum(operator.call.dims[:2] == first.call.dims[:2] for operator in forward) if first else 0
    classes, per_class = _last_layer(forward)
    known = TracedModel(
        passes=passes,
        parameters_with_gradient=_parameters_with_gradient(trees, is_in_steps, steps, first),
        parameters_in_modules=_parameters_in_modules(forward, passes),
        classes=classes,
        parameters_per_class=per_class,
        has_convolution=any(
            "conv" in operator.call.name for tree in trees for operator in tree.operators if is_in_steps(operator.began)
        ),
        has_embedding=bool(embeddings),
    )
    return known if first is None else _with_input(known, first)


def _with_input(known: TracedModel, first: Operator) -> TracedModel:
    shape = first.call.dims[0] if first.call.name != _EMBEDDING else first.call.dims[1]
    words = " x ".join(map(str, shape))
    if first.call.name == _EMBEDDING:
        return replace(known, first=f"{words} indices into the embedding", batch_size=shape[0])
    is_image = len(shape) == _RANK_OF_IMAGES and shape[1] <= _MOST_CHANNELS
    return replace(
        known,
        first=f"{words} into the first convolution",
        batch_size=shape[0],
        image_size=shape[2] if is_image and shape[2] == shape[3] else None,
        is_of_images=is_image,
    )


def _forward(trees: Sequence[CallTree], is_in_steps: Callable[[float], bool]) -> Iterator[Operator]:
    """Operators with weights that forward passes called; of nested operators only the outermost."""
    for tree in trees:
        for index, operator in enumerate(tree.operators):
            if operator.call.name not in _WEIGHTS or tree.is_backward[index] or not is_in_steps(operator.began):
                continue
            parent = tree.parents[index]
            if parent < 0 or tree.operators[parent].call.name not in _WEIGHTS:
                yield operator


def _is_batched(operator: Operator) -> bool:
    dims = operator.call.dims
    if len(dims) < _RANK_OF_MATRIX or len(dims[0]) != len(dims[1]) or len(dims[0]) < _LEAST_RANK:
        return False
    return all(isinstance(size, int) for size in dims[0])


def _has_indices(operator: Operator) -> bool:
    dims = operator.call.dims
    return len(dims) > 1 and len(dims[0]) == _RANK_OF_MATRIX and len(dims[1]) == _RANK_OF_INDICES


def _parameters_with_gradient(
    trees: Sequence[CallTree], is_in_steps: Callable[[float], bool], steps: int, first: Operator | None
) -> int | None:
    """Number of parameters with gradients: elements of all gradients divided by the number of backward passes.

    Each backward pass has one gradient with the shape of the first layer's weights; without such gradients, `steps` is
    the number of passes. None if the division leaves a remainder.
    """
    shapes = Counter(
        operator.call.dims[0]
        for tree in trees
        for operator in tree.operators
        if operator.call.name == _ACCUMULATE and operator.call.dims and is_in_steps(operator.began)
    )
    total = sum(math.prod(shape) * number for shape, number in shapes.items())
    weight = first.call.dims[0 if first.call.name == _EMBEDDING else 1] if first else ()
    passes = shapes.get(weight, 0) or steps
    return total // passes if total and total % passes == 0 else None


def _parameters_in_modules(forward: Sequence[Operator], passes: int) -> int | None:
    """Number of parameters that the modules of one forward pass use; None if unknown."""
    total = 0
    for operator in forward:
        dims, types = operator.call.dims, operator.call.types
        for position in _WEIGHTS[operator.call.name]:
            if position < min(len(dims), len(types)) and types[position] in BITS:
                total += math.prod(dims[position])
    return total // passes if passes and total and total % passes == 0 else None


def _last_layer(forward: Sequence[Operator]) -> tuple[int | None, int]:
    """Number of classes of the last linear layer, and parameters per class, auxiliary heads included."""
    linear = [operator.call.dims for operator in forward if operator.call.name == _LINEAR]
    layers = {dims[1:3] for dims in linear if len(dims) > _RANK_OF_MATRIX}
    last = linear[-1] if linear else ()
    if len(last) <= 1 or len(last[1]) != _RANK_OF_MATRIX:
        return None, 0
    classes = last[1][0]
    heads = [(weight, bias) for weight, bias in layers if len(weight) == _RANK_OF_MATRIX and weight[0] == classes]
    return classes, sum(weight[1] + len(bias) for weight, bias in heads)
