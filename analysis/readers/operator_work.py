"""FLOP and bytes of one call of an operator, from its name and the shapes of its inputs. Standard library only.

The formulas are those of the trainer (`workload.contract.formulas`). operator_kinds.csv lists the known operators;
`python docs/operator_kinds.py` writes this table from the trainer's tables. The work of any other operator is unknown:
its time is unattributed, and never spread over other operators.
"""

import csv
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod
from pathlib import Path

from analysis.readers.kineto import Call
from workload.contract import formulas
from workload.contract.formulas import GATHERING, Shape

_TABLE = Path(__file__).with_name("operator_kinds.csv")
_ATEN = "aten::"
BITS = {"double": 64, "c10::complex<float>": 64, "long int": 64, "long": 64, "float": 32, "int": 32, "short": 16,
        "c10::Half": 16, "c10::BFloat16": 16, "signed char": 8, "unsigned char": 8, "bool": 8,
        "c10::Float8_e4m3fn": 8, "c10::Float8_e5m2": 8, "c10::complex<double>": 128}  # fmt: skip
# A traced list of tensors has shapes but no type: assume the narrowest and widest type of weights and gradients.
_OF_A_LIST = "TensorList"
_NARROW_BITS, _WIDE_BITS = 16, 32
# Precision names of ceilings; fp16 has the ceiling of `amp`, with or without loss scaling.
PRECISIONS = {"float": "fp32", "c10::Half": "amp", "c10::BFloat16": "bf16", "double": "fp64"}


class Kind(StrEnum):
    """Kinds of operators in operator_kinds.csv; `nothing`: views and allocations, `composite`: only calls others."""

    PRODUCT = "product"
    BYTES = "bytes"
    NOTHING = "nothing"
    COMPOSITE = "composite"


class Lack(StrEnum):
    """Reason why the work of a call is unknown."""

    NO_FORMULA = "no formula"
    NO_SHAPES = "no shapes"


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Tensors of equal shape and type that a call reads or writes: `count` tensors of `elements` elements each.

    `bits_low`, `bits_high`: bits of an element; they differ if the type is unknown. `is_new`: the tensor is an output
    in memory of its own.
    """

    elements: int
    bits_low: int
    bits_high: int
    count: int = 1
    is_new: bool = False


@dataclass(frozen=True, kw_only=True)
class CallWork:
    """Work of one call: FLOP, and the tensors that it moves.

    `kind`: kind of the FLOP, named as in `complexity.flop_by_op`. `is_assumed`, `is_of_many`: the work rests on
    the assumption in the text `ASSUMED` or `OF_MANY`.
    """

    flop: int = 0
    kind: str | None = None
    precision: str | None = None
    tensors: tuple[Tensors, ...] = ()
    is_assumed: bool = False
    is_of_many: bool = False

    @property
    def bytes_high(self) -> int:
        """Upper bound of the bytes moved: every input is read from memory, every output written to memory."""
        return sum(tensor.elements * tensor.count * tensor.bits_high // 8 for tensor in self.tensors)


OF_MANY = (
    "a trace has no shapes for lists of more than 30 tensors: lists of optimizers are assumed to contain "
    "every parameter that got a gradient"
)
ASSUMED = (
    "the trace has no values of arguments: every backward pass of a convolution is counted with both gradients, and "
    "attention as if it were not causal"
)


@dataclass(frozen=True, kw_only=True)
class Context:
    """Facts about one call that follow from the other calls of a trace.

    `outputs`: output shapes of convolutions, by the shapes of images and weights. `gradients`: number of elements in
    all gradients of a step.
    """

    outputs: Mapping[tuple[Shape, Shape], Shape] = field(default_factory=dict)
    gradients: int = 0

    @classmethod
    def collect(cls, calls: Iterable[Call], steps: int) -> "Context":
        """Collect the facts from all calls in the steps of a trace.

        The output shape of a convolution is found in its backward pass, whose first input is the output's gradient.
        """
        outputs: dict[tuple[Shape, Shape], set[Shape]] = {}
        gradients = 0
        for call in map(_as_today, calls):
            if call.name == _ACCUMULATE and call.dims:
                gradients += prod(call.dims[0])
            elif call.name == f"{_ATEN}convolution_backward" and len(call.dims) > _WEIGHT_OF_BACKWARD:
                gradient, images, weight = call.dims[:3]
                outputs.setdefault((images, weight), set()).add(gradient)
        return cls(
            outputs={shapes: found.pop() for shapes, found in outputs.items() if len(found) == 1},
            gradients=gradients // steps,
        )


_WEIGHT_OF_BACKWARD = 2
_ACCUMULATE = "torch::autograd::AccumulateGrad"
# Parameters, gradients and two moments. A fused optimizer's lists of step counters, which are scalars, follow.
_MOST_LISTS_OF_PARAMETERS = 4
_COUNTS_STEPS = ("_foreach_add_", "1")
_OVER_LISTS = re.compile(r"_foreach_|_fused_(adam|sgd|adagrad)|_amp_foreach_")
# Until torch 1.10 each library had its own operator, whose first two inputs were the images and the output's gradient.
_OLD_BACKWARD = frozenset(
    f"{library}_convolution{form}_backward" for library in ("cudnn", "miopen", "mkldnn") for form in ("", "_transpose")
)


def kind_of(name: str) -> Kind | None:
    """The kind of an operator; None if it is unknown or not PyTorch's own."""
    plain = name.removeprefix(_ATEN)
    if plain in _OLD_BACKWARD:
        return Kind.PRODUCT
    # A few of PyTorch's own operators, like `detach`, are traced without their namespace.
    return _kinds().get(plain) or _kinds().get(plain.removesuffix("_"))


@functools.cache
def _rows() -> Mapping[str, Mapping[str, str]]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


@functools.cache
def _kinds() -> Mapping[str, Kind]:
    return {name: Kind(row["kind"]) for name, row in _rows().items()}


def _as_today(call: Call) -> Call:
    """The call with the name and the order of inputs that its operator has today."""
    if call.name.removeprefix(_ATEN) not in _OLD_BACKWARD or len(call.dims) <= _WEIGHT_OF_BACKWARD:
        return call
    (images, gradient, *rest), types = call.dims, call.types
    return replace(
        call,
        name=f"{_ATEN}convolution_backward",
        dims=(gradient, images, *rest),
        types=(*types[1:2], *types[:1], *types[2:]),
    )


def work_of(call: Call, context: Context) -> CallWork | Lack:
    """The work of a product or of an operator that moves bytes; otherwise the reason why the work is unknown."""
    call = _as_today(call)
    name, kind = call.name.removeprefix(_ATEN), kind_of(call.name)
    if kind not in {Kind.PRODUCT, Kind.BYTES}:
        return Lack.NO_FORMULA
    inputs = list(_inputs(call))
    if kind is Kind.PRODUCT:
        return _work_of_product(name, call, inputs, context)
    if not inputs and call.dims and context.gradients and _OVER_LISTS.match(name):
        return _over_parameters(name, call, context.gradients)
    # Factories like `aten::zeros` take no tensors; a trace leaves out the shapes of a long list of tensors.
    lacks_list = not inputs and (_OF_A_LIST in call.types or not call.types)
    # The list of indices of `aten::index` has no shapes, and the table's size says nothing about what is read.
    lacks_indices = name in GATHERING and len(inputs) < _TABLE_AND_INDICES
    if not call.dims or lacks_list or lacks_indices:
        return Lack.NO_SHAPES
    return CallWork(tensors=_moved(name, inputs, _outputs(name, inputs)))


def _work_of_product(name: str, call: Call, inputs: "Sequence[_Tensor]", context: Context) -> CallWork | Lack:
    formula = FORMULAS.get(name) or FORMULAS.get(name.removesuffix("_"))
    if formula is None:
        return Lack.NO_FORMULA
    try:
        product = formula(_Arguments(call=call, context=context))
    except (LookupError, TypeError, ValueError, ZeroDivisionError):
        # The shapes are missing, contradict each other or follow another version's signature: no FLOP are better than
        # wrong ones.
        return Lack.NO_SHAPES
    factor = next((kind for kind in call.types if kind in PRECISIONS), "")
    outputs = [_Tensor(dims=shape, type=factor) for shape in product.outputs]
    return CallWork(
        flop=product.flop,
        kind=product.kind,
        precision=PRECISIONS.get(factor),
        tensors=_moved(name, inputs, outputs),
        is_assumed=product.is_assumed,
    )


def _over_parameters(name: str, call: Call, elements: int) -> CallWork:
    """Work of an optimizer whose lists of tensors are too long for the trace; its lower bound of bytes is 0."""
    lists = [position for position, kind in enumerate(call.types) if kind == _OF_A_LIST][:_MOST_LISTS_OF_PARAMETERS]
    written = set(_written(name)) & set(lists) if _written(name) else {-1}
    # Adding 1 to each element of a list is an optimizer counting its steps.
    is_counter = (name, *call.values[1:2]) == _COUNTS_STEPS
    one = Tensors(elements=0 if is_counter else elements, bits_low=0, bits_high=_WIDE_BITS)
    return CallWork(tensors=(one,) * (len(lists) + len(written)), is_of_many=True)


# --- tensors


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    dims: Shape
    type: str
    count: int = 1
    position: int = -1
    strides: Shape = ()

    @property
    def elements(self) -> int:
        """Number of elements in memory; an expanded dimension has stride 0 and is stored once."""
        if len(self.strides) != len(self.dims):
            return prod(self.dims)
        return prod(size for size, stride in zip(self.dims, self.strides, strict=True) if stride)

    def as_tensors(self, *, is_new: bool) -> Tensors:
        low = high = BITS.get(self.type, 0)
        if not low:
            low, high = _NARROW_BITS, _WIDE_BITS
        return Tensors(elements=self.elements, bits_low=low, bits_high=high, count=self.count, is_new=is_new)


def _inputs(call: Call) -> Iterator[_Tensor]:
    """Tensors among the arguments; equal shapes within a list of tensors are one entry with a count."""
    # The profilers of 2020 recorded no types.
    types = call.types or ("",) * len(call.dims)
    for position, (dims, kind) in enumerate(zip(call.dims, types, strict=False)):
        if any(isinstance(size, tuple) for size in dims):
            for shape, count in Counter(dims).items():
                yield _Tensor(dims=shape, type=_OF_A_LIST, count=count, position=position)
        elif kind in BITS or (dims and not call.types):
            strides = call.strides[position] if position < len(call.strides) else ()
            yield _Tensor(dims=dims, type=kind, position=position, strides=strides)


_TABLE_AND_INDICES = 2
# Operators whose output is left out, because it is small compared with the inputs or as large as the last input.
_REDUCING = re.compile(
    r"(sum|mean|var|std|var_mean|std_mean|amax|amin|aminmax|max|min|argmax|argmin|prod|all|any|count_nonzero|logsumexp"
    r"|nll_loss.*forward|.*_loss|dot|_local_scalar_dense|item|equal|linalg_vector_norm|norm|bincount|isfinite)$"
)
_POOLING = re.compile(r"(_?adaptive_)?(avg|max)_pool")
_BOOLEAN = re.compile(r"(eq|ne|lt|le|gt|ge|logical_.*|isnan|isinf)$")


def _outputs(name: str, inputs: Sequence[_Tensor]) -> list[_Tensor]:
    """New tensors of an operator without products, inferred from its inputs: the trace does not record outputs."""
    if not inputs or _written(name) or _REDUCING.match(name):
        return []
    if name in GATHERING:
        return [_gathered(name, inputs)]
    largest = max(inputs, key=lambda tensor: prod(tensor.dims))
    if _POOLING.match(name) and not name.endswith("_backward"):
        return []
    if name in {"cat", "stack"} or largest.count > 1 or name.startswith("_foreach_"):
        return [tensor for tensor in inputs if tensor.position == inputs[0].position]
    if name == "native_layer_norm_backward" or name.endswith("_backward"):
        return [_Tensor(dims=largest.dims, type=largest.type)]
    is_broadcast = not name.startswith(("native_", "cudnn_", "miopen_"))
    dims = _broadcast([tensor.dims for tensor in inputs]) if is_broadcast else largest.dims
    return [_Tensor(dims=dims, type="bool" if _BOOLEAN.match(name) else largest.type)]


def _gathered(name: str, inputs: Sequence[_Tensor]) -> _Tensor:
    table, indices = inputs[0], inputs[-1]
    width = prod(table.dims[1:]) if name in {"embedding", "index", "_embedding_bag"} else 1
    return _Tensor(dims=(prod(indices.dims), width), type=table.type)


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _written(name: str) -> tuple[int, ...]:
    """Positions of the arguments that an operator changes."""
    row = _rows().get(name)
    return tuple(map(int, row["writes"].split())) if row else ()


def _moved(name: str, inputs: Sequence[_Tensor], outputs: Sequence[_Tensor]) -> tuple[Tensors, ...]:
    """Tensors that a call reads, changes and creates."""
    written, overwrites = _written(name), bool((_rows().get(name) or {}).get("overwrites"))
    read = [tensor for tensor in inputs if not (overwrites and tensor.position in written)]
    if name in GATHERING and outputs:
        # Gathering reads as many elements as it returns.
        read = [*read[1:], *outputs]
    changed = [tensor for tensor in inputs if tensor.position in written]
    return tuple(
        [tensor.as_tensors(is_new=False) for tensor in [*read, *changed]]
        + [tensor.as_tensors(is_new=True) for tensor in outputs]
    )


# --- products


@dataclass(frozen=True, kw_only=True)
class _Product:
    kind: str
    flop: int
    outputs: Sequence[Shape]
    is_assumed: bool = False


@dataclass(frozen=True, kw_only=True)
class _Arguments:
    """Shapes and values of a call by position; raises `LookupError` for an argument that the trace lacks."""

    call: Call
    context: Context

    def shape(self, position: int) -> Shape:
        """Shape of a tensor argument; `LookupError` if the argument is no tensor."""
        shape, types = tuple(self.call.dims[position]), self.call.types
        if not shape if not types else types[position] not in BITS:
            raise LookupError(position)
        return shape

    def shapes(self, position: int) -> Sequence[Shape]:
        """Shapes of the tensors in a list argument; `LookupError` if there are none."""
        listed = self.call.dims[position]
        if not all(isinstance(shape, tuple) for shape in listed) or not listed:
            raise LookupError(position)
        return listed

    @property
    def has_values(self) -> bool:
        return bool(self.call.values)

    def numbers(self, position: int) -> tuple[int, ...]:
        """Integers in a value such as `[2, 2]` or `2`."""
        return tuple(int(number) for number in re.findall(r"-?\d+", self.call.values[position]))

    def flags(self, position: int) -> tuple[bool, ...]:
        """Booleans in a value such as `[True, False]` or `True`; some versions write 1 and 0."""
        known = re.findall(r"True|False|\b[01]\b", self.call.values[position], re.IGNORECASE)
        if not known:
            raise LookupError(position)
        return tuple(word.lower() in {"true", "1"} for word in known)


def _require(is_consistent: bool) -> None:
    """Raise `ValueError` if the shapes of a product contradict each other."""
    if not is_consistent:
        raise ValueError


def _convolution(arguments: _Arguments) -> _Product:
    images, weight = arguments.shape(0), arguments.shape(1)
    if arguments.has_values:
        stride, padding, dilation = (arguments.numbers(position) for position in (3, 4, 5))
        (transposed,), more, (groups,) = arguments.flags(6), arguments.numbers(7), arguments.numbers(8)
        _require(images[1] == (weight[0] if transposed else weight[1] * groups))
        output = formulas.convolved(
            images, weight, stride=stride, padding=padding, dilation=dilation,
            transposed=transposed, output_padding=more, groups=groups,
        )  # fmt: skip
    else:
        output = tuple(arguments.context.outputs[images, weight])
        transposed = _is_transposed(output, weight)
    flop = formulas.convolution(output, images, weight, transposed=transposed)
    return _Product(kind="convolution", flop=flop, outputs=[output])


def _is_transposed(output: Shape, weight: Shape) -> bool:
    """Whether the shapes look like a transposed convolution, whose weights begin with the channels of the input."""
    return output[1] != weight[0]


def _convolution_backward(arguments: _Arguments) -> _Product:
    gradient, images, weight = (arguments.shape(position) for position in (0, 1, 2))
    if arguments.has_values:
        (transposed,), mask = arguments.flags(7), arguments.flags(10)[:2]
    else:
        transposed, mask = _is_transposed(gradient, weight), (True, True)
    flop = sum(mask) * formulas.convolution(gradient, images, weight, transposed=transposed)
    outputs = [shape for shape, is_wanted in zip((images, weight), mask, strict=True) if is_wanted]
    return _Product(kind="convolution_backward", flop=flop, outputs=outputs, is_assumed=not arguments.has_values)


def _matmul(first: int) -> Callable[[_Arguments], _Product]:
    """Function that returns the work of a matrix product. `first`: position of the left factor in the arguments.

    The position is 1 if the argument before the factor is added to the product, as in `addmm`.
    """

    def product(arguments: _Arguments) -> _Product:
        left, right = arguments.shape(first), arguments.shape(first + 1)
        _require((*left[:-2], left[-1]) == right[:-1])
        output = (*left[:-1], right[-1])
        return _Product(kind="matmul", flop=formulas.matmul(output, left), outputs=[output])

    return product


def _vector(first: int) -> Callable[[_Arguments], _Product]:
    """Function that returns the work of a product with a vector. `first`: position of the factor before the vector."""

    def product(arguments: _Arguments) -> _Product:
        left = arguments.shape(first)
        _require(left[-1:] == arguments.shape(first + 1))
        return _Product(kind="matmul", flop=formulas.matmul(left[:-1], left), outputs=[left[:-1]])

    return product


def _linear(arguments: _Arguments) -> _Product:
    inputs, weight = arguments.shape(0), arguments.shape(1)
    _require(inputs[-1] == weight[-1])
    output = (*inputs[:-1], *weight[:-1])
    return _Product(kind="matmul", flop=formulas.matmul(output, inputs), outputs=[output])


def _linear_backward(arguments: _Arguments) -> _Product:
    inputs, gradient, weight = (arguments.shape(position) for position in (0, 1, 2))
    mask = arguments.flags(3)[:2]
    outputs = [shape for shape, is_wanted in zip((inputs, weight), mask, strict=True) if is_wanted]
    return _Product(kind="matmul", flop=sum(mask) * 2 * prod(gradient) * weight[1], outputs=outputs)


def _add_summed_bmm(arguments: _Arguments) -> _Product:
    left, right = arguments.shape(1), arguments.shape(2)
    output = (left[1], right[2])
    return _Product(kind="matmul", flop=left[0] * formulas.matmul(output, left), outputs=[output])


def _attention(first: int, times: int, is_causal: int | None) -> Callable[[_Arguments], _Product]:
    """Function that returns the work of attention. `first`: position of the query; 1 in backward operators, else 0.

    `times`: 2 for backward operators, else 1. The outputs of a backward operator are the gradients of query, key and
    value. `is_causal`: position of this argument, None if the operator computes all pairs of query and key anyway.
    """

    def product(arguments: _Arguments) -> _Product:
        query, key, value = (arguments.shape(first + position) for position in (0, 1, 2))
        _require((query[-1], key[-2]) == (key[-1], value[-2]))
        outputs: list[Shape] = [query, key, value] if first else [(*query[:-1], value[-1])]
        kind = "attention_backward" if first else "attention"
        try:
            causal, is_assumed = is_causal is not None and arguments.flags(is_causal)[0], False
        except LookupError:
            # The trace has no values, or is of a version with other arguments.
            causal, is_assumed = False, True
        flop = times * formulas.attention(query, key, value, causal=causal)
        return _Product(kind=kind, flop=flop, outputs=outputs, is_assumed=is_assumed)

    return product


def _mkldnn_rnn(times: int) -> Callable[[_Arguments], _Product]:
    def product(arguments: _Arguments) -> _Product:
        inputs, weights = arguments.shape(0), [arguments.shape(1), arguments.shape(2)]
        flop = times * formulas.recurrent(inputs, weights)
        outputs = [(*inputs[:-1], weights[1][-1])] if times == 1 else [inputs, *weights]
        return _Product(kind=_RECURRENT[times], flop=flop, outputs=outputs)

    return product


def _cudnn_rnn(times: int) -> Callable[[_Arguments], _Product]:
    def product(arguments: _Arguments) -> _Product:
        flop = times * formulas.recurrent(arguments.shape(0), arguments.shapes(1))
        return _Product(kind=_RECURRENT[times], flop=flop, outputs=[])

    return product


def _cell(times: int) -> Callable[[_Arguments], _Product]:
    """Function that returns the work of the element-wise part of a fused recurrent cell; `times`: 2 for backward.

    The work has no FLOP, because the cell's matrix products are separate calls.
    """
    return lambda arguments: _Product(kind=_RECURRENT[times], flop=0, outputs=[arguments.shape(0)])


_RECURRENT = {1: "recurrent", 2: "recurrent_backward"}
# Keys: the operator's name without namespace and without the _ of its in-place form, as in
# `workload.model.flop.FORMULAS`.
FORMULAS: Mapping[str, Callable[[_Arguments], _Product]] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "mm": _matmul(0),
    "bmm": _matmul(0),
    "mv": _vector(0),
    "dot": _vector(0),
    "vdot": _vector(0),
    "linear": _linear,
    "linear_backward": _linear_backward,
    "addmm": _matmul(1),
    "_addmm_activation": _matmul(1),
    "baddbmm": _matmul(1),
    "addmv": _vector(1),
    "addbmm": _add_summed_bmm,
    "mkldnn_rnn_layer": _mkldnn_rnn(1),
    "mkldnn_rnn_layer_backward": _mkldnn_rnn(2),
    "_cudnn_rnn": _cudnn_rnn(1),
    "_cudnn_rnn_backward": _cudnn_rnn(2),
    "_thnn_fused_lstm_cell": _cell(1),
    "_thnn_fused_lstm_cell_backward_impl": _cell(2),
    "_thnn_fused_gru_cell": _cell(1),
    "_thnn_fused_gru_cell_backward": _cell(2),
    formulas.MATH_OF_MPS: _attention(0, 1, None),
    **{name: _attention(0, 1, forward) for name, (forward, _) in formulas.IS_CAUSAL.items()},
    **{f"{name}_backward": _attention(1, 2, backward) for name, (_, backward) in formulas.IS_CAUSAL.items()},
}
