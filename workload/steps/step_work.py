"""Counts FLOP, bytes and time of every operation in one step of an unknown script, as each is dispatched.

The step runs under a dispatch mode, which makes it slow and changes nothing else. A counted step is never a timed one.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeGuard

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.graph import _engine_run_backward
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from workload.contract.allocations import Kind
from workload.contract.spec import Device
from workload.environment.device import precision_of_fp32
from workload.measure.clock import clock_for
from workload.model.flop import FlopCounter, Tally, formula_of, is_known
from workload.steps.model_input import Entered, ModelInput
from workload.steps.step import require_one_gpu, tensors_of
from workload.steps.step_memory import OUTSIDE_BACKWARD, CountedMemory, StorageFollower

# Statement that turns a script's gradients off: its code and line, and those of its caller.
Site = tuple[Any, int, Any, int]
# Where the values of a tensor come from: a site at which gradients were off, or the number of a DataLoader.
Origin = Site | int
# By element type of a matrix product: the precision of the ceiling to compare it with (of fp32 on a GPU, see
# `precision_of_fp32`). fp16 counts as `amp`, with or without a GradScaler.
PRECISIONS = {torch.float32: "fp32", torch.float16: "amp", torch.bfloat16: "bf16", torch.float64: "fp64"}
# Files of torch whose functions stand between an operation and the dispatch mode that it calls.
_TORCH = Path(torch.__file__).parent
DISPATCHERS = frozenset({str(_TORCH / "_compile.py"), str(_TORCH / "_dynamo" / "eval_frame.py")})
# Number of counted steps: 4 if all are alike, else 5.
ENOUGH_ALIKE, MOST_COUNTED = 4, 5


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations of one step. `time_s`: seconds by operation; `flop_by_precision`: FLOP by precision.

    `unattributed`: share of all operations' time, by operation without a formula; on a GPU an operation takes at least
    as long as the host needs to start its kernels. `uncounted`: names of operations
    without a formula that look like a matrix product; because of these the FLOP are a lower bound. `flop_range`: least
    and most FLOP of the counted steps, None if they agree. `recomputed_flop`: the part of the FLOP that gradient
    checkpointing repeats. `entered`: what entered the model; `fetched_tokens`: number of tokens in the batches of
    DataLoaders. `memory`: storages of the step, or of that counted step which has most.
    """

    tally: Tally
    forward_flop: int
    flop_by_precision: Mapping[str, int]
    time_s: Mapping[str, float]
    unattributed: Mapping[str, float]
    uncounted: tuple[str, ...]
    copied_to_device_bytes: int
    copied_to_device_s: float
    devices: frozenset[str]
    recomputed_flop: int = 0
    flop_range: tuple[int, int] | None = None
    entered: Entered | None = None
    fetched_tokens: int = 0
    memory: CountedMemory | None = None

    @property
    def unattributed_share(self) -> float:
        """Share of the operations' time spent in operations without a formula."""
        return sum(self.unattributed.values())

    @property
    def precision(self) -> str:
        """Precision with the most FLOP; fp32 for a step without a product."""
        return max(self.flop_by_precision, key=lambda name: self.flop_by_precision[name], default="fp32")


class WorkWithoutGradients:
    """Finds out, for each line of the script that switches gradients off, whether its work is an evaluation.

    The work is no evaluation if a loss uses its results. The memory of each result is followed to see whether an
    operation with gradients reads it. Batches are followed up to the backward pass.
    """

    def __init__(self) -> None:
        self.now: Site | None = None
        self._flop: dict[Site, int] = {}
        self._used: set[Origin] = set()
        self._computed: set[Origin] = set()
        # Weak references keep each address unique while they live.
        self._origins_of: dict[int, tuple[StorageWeakRef, frozenset[Origin]]] = {}

    def enter(self, site: Site | None) -> None:
        """Record the line that switches gradients off; None when they are on again."""
        self.now = site
        # Add an entry for the site, even if no FLOP are computed there.
        self.add_flop(0)

    def fetched(self, loader: int, batch: Any) -> None:
        """Record that a batch of the DataLoader with the number `loader` has arrived."""
        for tensor in tensors_of(batch):
            reference, known = self._known(tensor)
            self._origins_of[reference.cdata] = reference, known | {loader}

    def add_flop(self, flop: int, factors: Any = ()) -> None:
        """While gradients are off, add an operation's FLOP to the line of the script that switched them off.

        `factors`: arguments of the operation, a contraction, which computes with them.
        """
        self._computed |= self._origins(factors)
        if self.now is not None:
            self._flop[self.now] = self._flop.get(self.now, 0) + flop

    def follow(self, inputs: Any, output: Any, *, in_backward: bool) -> None:
        """Record the origins of an operation's results, and that a loss or its backward pass uses what it reads."""
        if self.now is None and not self._origins_of:
            return
        origins = self._origins(inputs)
        if self.now is not None:
            origins |= {self.now}
        elif origins and in_backward:
            self._used |= origins
            return
        elif origins and any(leaf.requires_grad for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)):
            self._used |= {origin for origin in origins if not isinstance(origin, int)}
            origins = frozenset(origin for origin in origins if isinstance(origin, int))
        for tensor in tree_leaves(output) if origins else ():
            if _has_storage(tensor):
                reference, known = self._known(tensor)
                self._origins_of[reference.cdata] = reference, known | origins

    def _origins(self, inputs: Any) -> frozenset[Origin]:
        tensors = [leaf for leaf in tree_leaves(inputs) if _has_storage(leaf)]
        return frozenset[Origin]().union(*(self._known(tensor)[1] for tensor in tensors))

    def _known(self, tensor: Tensor) -> tuple[StorageWeakRef, frozenset[Origin]]:
        reference = StorageWeakRef(tensor.untyped_storage())
        return self._origins_of.get(reference.cdata, (reference, frozenset()))

    def loaders_of_evaluations(self) -> set[int]:
        """DataLoaders with whose batches the script computed, though no backward pass used them.

        A batch that was only copied does not count: a later step may train on it.
        """
        return {origin for origin in self._computed - self._used if isinstance(origin, int)}

    def are_evaluations(self) -> dict[Site, bool]:
        """Whether the work without gradients is an evaluation, by the line that switches gradients off.

        Work without a matrix product, such as an average of weights, is not an evaluation.
        """
        return {site: flop > 0 and site not in self._used for site, flop in self._flop.items()}


class WorkCounter(FlopCounter):
    """A `FlopCounter` that times each operation, with `start` and `stop` for callers that cannot use a `with` block.

    `ignores`: if True, operations run without being counted. `without_gradients`: finds evaluations among the work
    without gradients. `model_input`: finds what enters the model. `has_replay`: the step has replayed a CUDA
    graph, whose operations are not dispatched: FLOP and bytes of the step stay unknown. `memory`: follows storages.
    """

    def __init__(
        self, device: Device, model_input: ModelInput | None = None, memory: StorageFollower | None = None
    ) -> None:
        super().__init__()
        self.in_backward = self.ignores = self._is_recomputation = False
        self.model_input, self.memory = model_input, memory
        self.without_gradients = WorkWithoutGradients()
        self._clock = clock_for(Device.CUDA if device is Device.CUDA else Device.CPU)
        self._spans: list[tuple[str, Any, Any]] = []
        self._forward_flop = self._recomputed_flop = 0
        # Backward passes by their number in autograd: whether autograd records their own operations (`create_graph`).
        self._records_graph: dict[int, bool] = {}
        self._block = ExitStack()
        self._precisions: Counter[str] = Counter()
        self._unattributed: set[str] = set()
        self._devices: set[str] = set()
        self._copied_bytes = 0
        self.has_replay = False

    def start(self) -> Self:
        """Start counting the FLOP and bytes of the operations that this thread runs."""
        self._block = ExitStack()
        if "torch._dynamo" in sys.modules and torch._dynamo.utils.counters["stats"]["unique_graphs"]:  # noqa: SLF001
            torch.compiler.set_stance("force_eager")
            self._block.callback(torch.compiler.set_stance, "default")
        if self.model_input:
            self.model_input.start(self.memory.called if self.memory else None)
            self._block.callback(self.model_input.stop)
        self._block.enter_context(self)
        return self

    def stop(self) -> Work:
        """Stop counting and return the counts."""
        self._block.close()
        self._clock.synchronize()
        time_s = defaultdict[str, float](float)
        for name, began, ended in self._spans:
            time_s[name] += self._clock.seconds_between(began, ended)
        total_s = sum(time_s.values()) or 1.0
        shares = {name: time_s[name] / total_s for name in self._unattributed if name in time_s}
        return Work(
            tally=Tally(flop_by_op={}, bytes_lower=0, bytes_upper=0) if self.has_replay else self.tally(),
            forward_flop=0 if self.has_replay else self._forward_flop,
            recomputed_flop=0 if self.has_replay else self._recomputed_flop,
            flop_by_precision={} if self.has_replay else dict(self._precisions),
            time_s=dict(time_s),
            unattributed=dict(sorted(shares.items(), key=lambda item: -item[1])),
            uncounted=(GRAPH,) if self.has_replay else tuple(sorted(self.uncounted)),
            copied_to_device_bytes=self._copied_bytes,
            copied_to_device_s=time_s.get(COPY_TO_DEVICE, 0.0),
            devices=frozenset(self._devices),
            entered=self.model_input.entered() if self.model_input else None,
        )

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count it if it belongs to the step."""
        if self.ignores:
            return func(*args, **(kwargs or {}))
        if types and self.model_input:
            self.model_input.nested(args)
        self._is_recomputation = self._repeats_forward(sys._getframe(1))  # noqa: SLF001 - as traceback does
        return super().__torch_dispatch__(func, types, args, kwargs)

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and record its time."""
        name = str(func.overloadpacket).removeprefix("aten.")
        began = self._clock.mark()
        output = func(*args, **kwargs)
        ended = self._clock.mark()
        self.without_gradients.follow((args, kwargs), output, in_backward=self.in_backward)
        if self.model_input:
            self.model_input.operation(func.overloadpacket.__name__, args, kwargs, output)
        if copied := _bytes_to_device(func, args, output):
            self._copied_bytes += copied
            name = COPY_TO_DEVICE
        self._spans.append((name, began, ended))
        if formula_of(func.overloadpacket.__name__) is None and not is_known(func):
            self._unattributed.add(name)
        # A single number on another GPU, such as a sum of losses, is no work there.
        if isinstance(output, Tensor) and output.dim():
            self._devices.add(str(output.device))
        return output

    def counted(self, flop: int, kind: str, args: tuple[Any, ...]) -> None:
        """Record the FLOP of a contraction by precision and pass."""
        self.without_gradients.add_flop(flop, args)
        if self._is_recomputation:
            self._recomputed_flop += flop
        elif not self.in_backward:
            self._forward_flop += flop
        factor = next((arg for arg in args if isinstance(arg, Tensor) and arg.is_floating_point()), None)
        if factor is not None and flop:
            self._precisions[_precision_of(factor, kind)] += flop

    def ran(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Follow the storages of an operation; what is copied to the device is an input."""
        if self.memory:
            kind = Kind.INPUTS if _bytes_to_device(func, args, output) else None
            self.memory.ran(func, (*args, *kwargs.values()), output, sys._getframe(1), kind)  # noqa: SLF001

    def stepping(self, optimizer: Any) -> None:
        """Note the gradients that an optimizer is going to use: the script may free them within its step."""
        if self.memory:
            before, self.ignores = self.ignores, True
            try:
                self.memory.optimizer(optimizer)
            finally:
                self.ignores = before

    def _repeats_forward(self, frame: FrameType | None) -> bool:
        """Whether the present operation, called from `frame`, belongs to a forward pass that a backward pass repeats.

        Gradient checkpointing calls the layers again from a hook or a function of the backward pass, and switches
        gradients on for that. Autograd's own operations are called by no Python code and need no gradients, unless
        `create_graph` asks for them. Checkpointed layers may switch gradients off again: these operations are known by
        torch.utils.checkpoint among their callers.
        """
        backward: int = torch._C._current_graph_task_id()  # noqa: SLF001 - torch.utils.checkpoint uses it too
        if backward == OUTSIDE_BACKWARD:
            return False
        while frame is not None and frame.f_code.co_filename in DISPATCHERS:
            frame = frame.f_back
        # A device's thread of autograd has no frames of Python above its own operations.
        if frame is None or frame.f_code is _engine_run_backward.__code__:
            self._records_graph.setdefault(backward, torch.is_grad_enabled())
            return False
        if torch.is_grad_enabled() and not self._records_graph.get(backward, False):
            return True
        while frame is not None and frame.f_code is not _engine_run_backward.__code__:
            if frame.f_code.co_filename == checkpoint.__file__:
                return True
            frame = frame.f_back
        return False


class Evaluations:
    """Tells a script's evaluations, which are no part of a step, from other work without gradients.

    `sites`: places where gradients are turned off: True for an evaluation. `is_on`: an evaluation is going on.
    `counter`: counts the present step, because its work must be known or has a new site; else None.
    """

    def __init__(self) -> None:
        self.sites: dict[Site, bool] = {}
        self.is_on = self._is_classified = False
        self.counter: WorkCounter | None = None

    def gradients_off(self, site: Site, device: Device | None) -> None:
        """Note that gradients are off. `device`: that of a timed step, where a new site has to be classified."""
        self.is_on = self.sites.get(site, False)
        if device and site not in self.sites:
            # Counting is slow, but needed only once for each site. This step will not be timed.
            self.counter, self._is_classified = self.counter or WorkCounter(device).start(), True
        if self.counter:
            self.counter.without_gradients.enter(site)
            self.counter.ignores = self.is_on

    def gradients_on(self) -> None:
        """Note that gradients are on again."""
        if self.counter:
            self.counter.without_gradients.enter(None)
            self.counter.ignores = False
        self.is_on = False

    def in_backward(self, value: bool, losses: Any = ()) -> bool:
        """Note whether a backward pass, that of `losses`, is running; return `value`."""
        if self.counter:
            self.counter.in_backward = value
            if value and self.counter.memory:
                self.counter.memory.backward_begins(sys._getframe(1))  # noqa: SLF001 - as traceback does
            if self.counter.model_input:
                self.counter.model_input.backward(losses, begins=value)
        return value

    def ended_at_batch(self) -> bool:
        """Called when a batch has arrived: whether the earlier work without gradients was an evaluation."""
        site = self.counter.without_gradients.now if self.counter else None
        if site is not None:
            # Gradients are off while the batch arrives: an evaluation begins with this batch.
            self.sites[site] = self.is_on = True
        is_evaluation = self.classify() or self.is_on
        self._is_classified = not is_evaluation
        return is_evaluation

    def classify(self, *, stops: bool = True) -> bool:
        """Classify the work without gradients so far; return whether there was an evaluation at a new site."""
        if self.counter is None:
            return False
        counted = self.counter.without_gradients.are_evaluations()
        is_new = any(is_evaluation and site not in self.sites for site, is_evaluation in counted.items())
        # Known sites keep their entries. The work of a known evaluation is not counted again, so `counted` has no FLOP
        # for its site.
        self.sites = counted | self.sites
        if stops:
            self.stop_counting()
        return is_new

    def counted(self) -> tuple[bool, WorkCounter, Work]:
        """Whether the counted step had an evaluation at a new site; the counter; the work of the step."""
        assert self.counter is not None
        counter, has_evaluation = self.counter, self.classify(stops=False)
        self.counter = None
        return has_evaluation, counter, counter.stop()

    def was_classified(self) -> bool:
        """At the end of a timed step: whether work was counted in it, so that its time means nothing."""
        self.classify()
        was, self._is_classified = self._is_classified, False
        return was

    def stop_counting(self) -> None:
        """Stop the counter, if there is one."""
        if self.counter:
            self.counter.stop()
        self.counter = None

    def start_again(self) -> None:
        """Forget the present step; known sites stay."""
        self.stop_counting()
        self.is_on = self._is_classified = False


COPY_TO_DEVICE = "copy to the device"
GRAPH = "the operations of a CUDA graph"


def _precision_of(factor: Tensor, kind: str) -> str:
    if factor.is_cuda and factor.dtype is torch.float32:
        return precision_of_fp32(kind, factor.device).value
    return PRECISIONS.get(factor.dtype, str(factor.dtype).removeprefix("torch."))


def _has_storage(leaf: Any) -> TypeGuard[Tensor]:
    """Whether this is a tensor with a storage, which a sparse one lacks."""
    return isinstance(leaf, Tensor) and leaf.layout is torch.strided


def _bytes_to_device(func: OpOverload, args: tuple[Any, ...], output: Any) -> int:
    if not isinstance(output, Tensor) or output.device.type == "cpu":
        return 0
    name = func.overloadpacket.__name__
    source = args[1] if name == "copy_" and len(args) > 1 else args[0] if name == "_to_copy" and args else None
    is_copy = isinstance(source, Tensor) and source.device.type == "cpu"
    return source.numel() * source.element_size() if is_copy and isinstance(source, Tensor) else 0


def usual(works: Sequence[Work]) -> Work | None:
    """Work of a typical step, from four counted steps if all are alike, else from five; None if more must be counted.

    A script may do more every so many steps, as DCGAN does for its pictures, or work on sequences of varying length.
    """
    counts = Counter(work.tally.flop for work in works)
    if len(works) < (MOST_COUNTED if len(counts) > 1 else ENOUGH_ALIKE):
        return None
    return chosen(works)


def chosen(works: Sequence[Work]) -> Work:
    """Most common work if more than half of the steps agree, else the median by FLOP; with the range if they differ.

    Raises `UsageError` if the steps work on several GPUs.
    """
    require_one_gpu(frozenset[str]().union(*(work.devices for work in works)))
    flop, times = Counter(work.tally.flop for work in works).most_common(1)[0]
    ordered = sorted(works, key=lambda work: work.tally.flop)
    low, high = ordered[0].tally.flop, ordered[-1].tally.flop
    # In the first counted step, what existed before is found late.
    memories = [work.memory for work in works[min(1, len(works) - 1) :] if work.memory]
    memory = max(memories, key=lambda each: each.peak_bytes, default=None)
    if low == high:
        return replace(works[-1], memory=memory)
    is_common = 2 * times > len(works)
    work = next(work for work in works if work.tally.flop == flop) if is_common else ordered[len(works) // 2]
    return replace(work, flop_range=(low, high), memory=memory)
