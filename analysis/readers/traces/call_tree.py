"""Call tree of the operators of one host thread in a trace: callers, own times, and recomputed forward passes."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis.readers.traces.kineto import Operator
from analysis.readers.traces.operator_work import Kind, kind_of

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
