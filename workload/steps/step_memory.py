"""Follows every storage of tensors on a device from birth to death while the operations of a step are counted.

Nothing of the training changes: a storage gets a weak reference, which tells its end, and the dispatch mode that counts
the operations (`workload.model.flop`) tells its beginning. What kind of memory it was is decided after the step, from
its lifetime. `torch.distributed._tools.mem_tracker.MemTracker` follows storages in the same way, but decides kinds by
hooks on all parameters and modules, has to be told of every tensor beforehand, and counts no step of an unknown script.
"""

import gc
import math
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from workload.contract.allocations import Allocation, Kind
from workload.contract.formulas import GATHERING
from workload.contract.record import StepMemory
from workload.model.flop import formula_of, stored_tensors
from workload.steps.model_input import is_users

# Number of autograd's backward pass while there is none.
OUTSIDE_BACKWARD = -1
ARRIVED = "a batch arrives"
# Dimensions of a product whose first dimension is that of several products: (products, rows, columns).
BATCHED_PRODUCT = 3
FOLLOWED = "each storage of tensors followed from birth to death in a counted step, without the allocator's rounding"
BY_SHAPE = (
    "the part per sample is that of tensors computed from the batch whose size is a multiple of its number of samples"
)
BY_TWO_BATCHES = "the part per sample is the difference between two batch sizes"


@dataclass(kw_only=True, slots=True, eq=False)
class _Storage:
    """A storage that is followed. `step`: number of the counted step of its birth, None if it was there before.

    `reads`: storages that the operation `op` of its birth read, with the shapes in which it read them; `shape`: that of
    its tensor; `position`: the tensor's among those that the operation returned. `is_forward`: born outside of a
    backward pass. `is_whole`: its size is that of the storage, not of the part that the step reads.
    """

    size: int
    shape: tuple[int, ...]
    reference: weakref.ref[Any]
    kind: Kind | None = None
    step: int | None = None
    op: str = ""
    reads: tuple[tuple["_Storage", tuple[int, ...]], ...] = ()
    position: int = 0
    is_forward: bool = True
    is_whole: bool = True


class StorageFollower:
    """Follows the storages on devices of one type, such as `cpu`, over several steps.

    `folder`: that of the user's code, for the line of the peak. `optimizers`: those that exist now. `where`: the part
    of the model that runs now.
    """

    def __init__(self, device_type: str, folder: Path | None = None, optimizers: Iterable[Any] = ()) -> None:
        self.where = ""
        self._device_type, self._folder = device_type, f"{folder}/" if folder else None
        self._alive: dict[int, _Storage] = {}
        self._step = 0
        self._live = 0
        self._begin()
        for optimizer in optimizers:
            self.optimizer(optimizer)

    def _begin(self) -> None:
        self._before = list(self._alive.values())
        # Births and deaths in order, and their number at the beginning of each backward pass.
        self._events: list[tuple[_Storage, bool]] = []
        self._backward: list[int] = []
        self._is_in_backward = False
        self._backward_line: tuple[str, int] | None = None
        self._highest = self._live
        # By number of the event: part of the model, and file and line, at each new peak.
        self._places: dict[int, tuple[str, tuple[str, int] | None]] = {}
        self._modules: set[int] = set()

    # --- what the counter, the hooks and the caller tell

    def ran(
        self, func: OpOverload, values: Iterable[Any], output: Any, frame: FrameType | None, kind: Kind | None = None
    ) -> None:
        """Note the storages that an operation has read and made. `kind`: that of the new ones if it is known.

        `values`: the operation's arguments; `frame`: the one that called it.
        """
        if func.is_view:
            return
        is_in_backward = torch._C._current_graph_task_id() != OUTSIDE_BACKWARD  # noqa: SLF001 - see `WorkCounter`
        if is_in_backward and not self._is_in_backward:
            self._backward.append(len(self._events))
        self._is_in_backward = is_in_backward
        name = func.overloadpacket.__name__
        tensors = [tensor for value in values for tensor in stored_tensors(value)]
        if name in GATHERING and self._device_type == "cpu" and tensors:
            # Only a few rows are read of what may be a whole data set, which a GPU's memory would not have to hold.
            is_followed = any(key in self._alive for key, _ in _storages(tensors[0], self._device_type))
            tensors = tensors if is_followed else tensors[1:]
        reads = [(storage, tuple(tensor.shape)) for tensor in tensors for storage in self._of(tensor)]
        for position, tensor in enumerate(stored_tensors(output)):
            for key, storage in _storages(tensor, self._device_type):
                if key in self._alive:
                    continue
                self._add(
                    key,
                    storage,
                    tensor,
                    step=self._step,
                    op=name,
                    kind=kind,
                    reads=tuple(reads),
                    position=position,
                    is_forward=not is_in_backward,
                )
                self._note_peak(frame)

    def holds(self, values: Iterable[Any], kind: Kind) -> None:
        """Note what tensors are for, before, in or after a step; a kind that is known stays."""
        for value in values:
            for tensor in stored_tensors(value):
                for storage in self._of(tensor, kind):
                    storage.kind = storage.kind or kind

    def arrived(self, batch: Iterable[Tensor]) -> None:
        """Note the tensors of a batch that no counted operation made."""
        for tensor in batch:
            for key, storage in _storages(tensor, self._device_type):
                if key not in self._alive:
                    self._add(key, storage, tensor, step=self._step, op=ARRIVED)
        self.holds(batch, Kind.INPUTS)

    def called(self, module: nn.Module, inputs: Iterable[Tensor]) -> None:
        """Note the weights of a module that the script calls, and what enters it."""
        if id(module) not in self._modules:
            self._modules.add(id(module))
            parameters = list(module.parameters())
            self.holds((*parameters, *module.buffers()), Kind.WEIGHTS)
            self.holds((parameter.grad for parameter in parameters), Kind.GRADIENTS)
        self.holds(inputs, Kind.INPUTS)

    def optimizer(self, optimizer: Any) -> None:
        """Note the weights, gradients and state of an optimizer."""
        groups = getattr(optimizer, "param_groups", None) or ()
        parameters = [each for group in groups for each in group["params"]]
        self.holds(parameters, Kind.WEIGHTS)
        self.holds((parameter.grad for parameter in parameters), Kind.GRADIENTS)
        self.holds(tree_leaves(list(getattr(optimizer, "state", {}).values())), Kind.OPTIMIZER)

    def backward_begins(self, frame: FrameType | None) -> None:
        """Note the line of a backward pass, for operations of autograd's own threads."""
        self._backward_line = self._line(frame)

    def end_step(self, optimizers: Iterable[Any] = ()) -> "CountedMemory":
        """End the step, after which `optimizers` have their state; return its storages. The next step begins."""
        for optimizer in optimizers:
            self.optimizer(optimizer)
        counted = CountedMemory(
            before=tuple(self._before),
            events=tuple(self._events),
            backward=tuple(self._backward),
            places=self._places,
        )
        self._step += 1
        self._begin()
        return counted

    def growth_bytes(self) -> int:
        """Bytes of the storages that every step but the last two has left behind: a leak. 0 if there is none."""
        if (least := self._least_left()) == 0:
            return 0
        # Garbage that waits for Python's collector is no leak.
        gc.collect()
        return min(least, self._least_left())

    def _least_left(self) -> int:
        left = Counter[int]()
        for storage in list(self._alive.values()):
            if storage.step is not None and storage.kind in (None, Kind.INPUTS):
                left[storage.step] += storage.size
        return min((left[step] for step in range(self._step - 2)), default=0)

    def stop(self) -> None:
        """Follow nothing from now on."""
        self._alive.clear()
        self._begin()

    # --- storages

    def _of(self, tensor: Tensor, kind: Kind | None = None) -> Iterator[_Storage]:
        """Storages of a tensor on the device; one that was not known existed before the step.

        In later steps, data that is not known was made in them, unseen by the counter, as numpy does.
        """
        for key, storage in _storages(tensor, self._device_type):
            known, whole_bytes = self._alive.get(key), storage.nbytes()
            if known is None:
                # The part of a data set in the host's memory that a step reads is what a GPU has to hold.
                is_part = self._device_type == "cpu" and kind in (None, Kind.INPUTS)
                touched = min(whole_bytes, tensor.numel() * tensor.element_size()) if is_part else whole_bytes
                kept = {"size": touched, "is_whole": touched == whole_bytes, "op": ARRIVED}
                known = self._add(key, storage, tensor, is_new=is_part and self._step > 0, **kept)
            elif known.is_whole and known.size != whole_bytes:
                # Resized: freed, and allocated again.
                self._died(known.reference)
                known = self._add(key, storage, tensor, step=self._step, op="resize_", kind=known.kind)
            yield known

    def _add(
        self, key: int, storage: Any, tensor: Tensor, *, size: int | None = None, is_new: bool = False, **facts: Any
    ) -> _Storage:
        reference = weakref.KeyedRef(storage, self._died, key)
        size = storage.nbytes() if size is None else size
        known = self._alive[key] = _Storage(size=size, shape=tuple(tensor.shape), reference=reference, **facts)
        self._live += size
        if known.step is None and not is_new:
            self._before.append(known)
        else:
            self._events.append((known, True))
        return known

    def _died(self, reference: Any) -> None:
        known = self._alive.pop(reference.key, None)
        if known is not None:
            self._live -= known.size
            self._events.append((known, False))

    # --- the peak

    def _note_peak(self, frame: FrameType | None) -> None:
        # A storage that is found late was there before: what was noted as a peak afterwards includes the true one.
        if self._live > self._highest:
            self._highest = self._live
            self._places[len(self._events) - 1] = self.where, self._line(frame) or self._backward_line

    def _line(self, frame: FrameType | None) -> tuple[str, int] | None:
        """File and number of the innermost line in the user's folder."""
        folder = self._folder
        while folder and frame is not None:
            path = frame.f_code.co_filename
            if is_users(path, folder):
                return path, frame.f_lineno
            frame = frame.f_back
        return None


@dataclass(frozen=True, kw_only=True)
class CountedMemory:
    """Storages of one counted step. `before`: those that existed before it; `events`: births and deaths in order.

    `backward`: number of the event at which each backward pass began. `places`: at new peaks, by event.
    `sequences`: those of tokens that entered the model in the step. `growth_bytes`: see `StorageFollower`.
    """

    before: Sequence[_Storage]
    events: Sequence[tuple[_Storage, bool]]
    backward: Sequence[int]
    places: dict[int, tuple[str, tuple[str, int] | None]]
    sequences: int | None = None
    growth_bytes: int = 0

    def allocations(self, samples: int | None, larger: "CountedMemory | None" = None) -> list[Allocation]:
        """Allocations, those before the step first. `samples`: in one forward pass; None if unknown.

        `larger`: the same step with twice the samples, which may lack the optimizer's part.
        """
        died = {storage: number for number, (storage, is_birth) in enumerate(self.events) if not is_birth}
        born = {storage: number for number, (storage, is_birth) in enumerate(self.events) if is_birth}
        first, growing = len(self.before), _Growing(samples or 1)
        measured = self._differences(larger) if larger else {}
        inputs = [storage for storage in (*self.before, *born) if storage.kind is Kind.INPUTS]
        entered = sum(storage.size for storage in inputs)
        # Data such as graphs, or images of different sizes, is no multiple of the number of samples.
        is_regular = 0 < entered <= 2 * sum(storage.size for storage in inputs if growing.grows(storage))
        samples = samples if is_regular else None
        return [
            Allocation(
                kind=self._kind(storage, born.get(storage), died.get(storage)),
                size_bytes=storage.size,
                bytes_per_sample=(measured[storage] if storage in measured else storage.size * growing.grows(storage))
                / samples
                if samples
                else None,
                born=number if number < first else first + born[storage],
                died=first + died[storage] if storage in died else None,
            )
            for number, storage in enumerate((*self.before, *born))
            if storage.size
        ]

    def method(self, larger: "CountedMemory | None" = None) -> str:
        """How `allocations` knows the part per sample."""
        return BY_TWO_BATCHES if larger and self._differences(larger) else BY_SHAPE

    def _differences(self, larger: "CountedMemory") -> dict[_Storage, int]:
        """Bytes that storages of this step have more in `larger`; empty if the two steps differ in more than that."""
        ours, theirs = ([storage for storage, is_birth in each.events if is_birth] for each in (self, larger))
        if [each.op for each in ours[: len(theirs)]] != [each.op for each in theirs]:
            return {}
        pairs = zip(ours, theirs, strict=False)
        return dict.fromkeys(ours, 0) | {our: their.size - our.size for our, their in pairs}

    def _kind(self, storage: _Storage, born: int | None, died: int | None) -> Kind:
        if storage.kind:
            return storage.kind
        if storage.step is None:
            return Kind.INPUTS
        is_kept = any(born is not None and born < begun and (died is None or died >= begun) for begun in self.backward)
        return Kind.ACTIVATIONS if is_kept and storage.is_forward else Kind.TEMPORARIES

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes that live tensors occupy at one moment of the step."""
        return self._peak()[0]

    def _peak(self) -> tuple[int, int]:
        """Most bytes, and the number of the event that made them; -1 if the step began with them."""
        live = highest = sum(storage.size for storage in self.before)
        event = -1
        for number, (storage, is_birth) in enumerate(self.events):
            live += storage.size if is_birth else -storage.size
            if live > highest:
                highest, event = live, number
        return highest, event

    def record(
        self,
        allocations: Sequence[Allocation],
        *,
        samples: int | None,
        method: str,
        lower_bound: Sequence[str] = (),
    ) -> StepMemory:
        """Section `step_memory` of run.json; `allocations`: those of this step."""
        peak_bytes, event = self._peak()
        at = len(self.before) + event
        alive = [each for each in allocations if each.born <= at and (each.died is None or each.died > at)]
        by_kind = Counter[Kind]()
        for each in alive:
            by_kind[each.kind] += each.size_bytes
        slopes = [each.bytes_per_sample for each in alive if each.bytes_per_sample is not None]
        where, line = self.places.get(event, ("", None))
        return StepMemory(
            peak_bytes=peak_bytes,
            **{f"{kind.value}_bytes": by_kind[kind] for kind in Kind},
            peak_op=(self.events[event][0].op + (f" in {where}" if where else "")) if event >= 0 else None,
            peak_line=f"{Path(line[0]).name}:{line[1]}" if line else None,
            samples=samples,
            bytes_per_sample=sum(slopes) if len(slopes) == len(alive) else None,
            growth_bytes=self.growth_bytes or None,
            lower_bound=list(lower_bound) or None,
            method=f"{FOLLOWED}; {method}" if len(slopes) == len(alive) else FOLLOWED,
        )


class _Growing:
    """Tells which storages grow with the batch of `samples`, from the operations that made them.

    A storage grows if its operation reads one that grows, and its size is a multiple of the number of samples. Known
    exceptions are gradients and statistics of weights, in which the samples are summed up.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._known: dict[_Storage, bool] = {}

    def grows(self, storage: _Storage) -> bool:
        """Whether the storage is larger for a larger batch."""
        waiting = [storage]
        # Without recursion: a step's operations depend on each other in chains of thousands.
        while waiting:
            unknown = [read for read, _ in waiting[-1].reads if read not in self._known]
            if unknown:
                waiting += unknown
            else:
                now = waiting.pop()
                self._known[now] = self._decide(now)
        return self._known[storage]

    def _decide(self, storage: _Storage) -> bool:
        shape, samples = storage.shape, self.samples
        if storage.kind in (Kind.WEIGHTS, Kind.GRADIENTS, Kind.OPTIMIZER) or not shape:
            return False
        if storage.kind is Kind.INPUTS:
            return samples in shape[:2] or shape[0] % samples == 0
        if not storage.reads:
            return samples in shape[:2]
        growing = [read for each, read in storage.reads if self._known[each]]
        fixed = [read for each, read in storage.reads if not self._known[each]]
        if not growing or math.prod(shape) % samples:
            return False
        return self._keeps_samples(storage, growing, fixed)

    def _keeps_samples(
        self, storage: _Storage, growing: Sequence[tuple[int, ...]], fixed: Sequence[tuple[int, ...]]
    ) -> bool:
        """Whether an operation that reads growing tensors returns one: False if it sums over the samples."""
        name, shape = storage.op, storage.shape
        formula = formula_of(name)
        if formula and formula.kind == "matmul" and not name.endswith("_backward"):
            # A product of two growing factors sums over the samples, unless each sample has its own product.
            factors = [self._known[each] for each, _ in storage.reads[-2:]]
            return not all(factors) or (len(shape) == BATCHED_PRODUCT and shape[0] % self.samples == 0)
        if name == "sum":
            return shape[0] == growing[0][0]
        if name == "embedding_dense_backward":
            return False
        # Gradients of weights, and statistics of a normalisation, have the shape of weights.
        if name.endswith("_backward"):
            return shape in growing or (storage.position == 0 and shape not in fixed)
        return storage.position == 0 or shape in growing or shape not in fixed


def _storages(tensor: Tensor, device_type: str) -> Iterator[tuple[int, Any]]:
    """Storages of a tensor on devices of the type, with their addresses; of a wrapper those of its parts."""
    if tensor.device.type != device_type:
        return
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            # A part of a DTensor is the mesh of its devices.
            if isinstance(part := getattr(tensor, name), Tensor):
                yield from _storages(part, device_type)
        return
    storage = tensor.untyped_storage()
    yield storage._cdata, storage  # noqa: SLF001 - as `StorageWeakRef`
