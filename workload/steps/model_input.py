"""Finds out in the counted steps what enters the model: sequences of tokens, images or other samples.

The batch of a step is what the first module that the script calls with gradients, before each backward pass, gets. Ids
that reach an embedding there are tokens, unless they are few per sample or stand beside images or other numbers.
"""

import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from workload.contract.text import counted

IMAGE_DIMENSIONS, ID_DIMENSIONS = 4, 2
CHANNELS = (1, 3, 4)
# Integers (N, 2) to (N, 4) are pairs or triplets of ids, for example user and item; token sequences are longer.
MOST_IDS = 4
IDS = (torch.int64, torch.int32)
MASK = "attention_mask"
# Arguments of modules of torch and fairseq that mark the padding, where `MASK` marks the tokens.
PADDING_MASKS = ("src_key_padding_mask", "key_padding_mask", "padding_mask")
# Floating arguments with these words in their names are no data that a model computes with beside its tokens.
NO_DATA = ("mask", "label", "target", "hidden", "state")
# Operations whose result is a copy: the line that made the original is told.
COPIES = ("_to_copy", "_pin_memory", "clone", "copy_", "lift_fresh")
OURS = str(Path(__file__).parents[1])

Ids = NDArray[np.int64]
# Counted steps whose samples are compared, and the most numbers of a sample that are.
COMPARED_STEPS, COMPARED_NUMBERS = 4, 2048
# Place of a tensor's values: storage, offset, shape, strides, and how often they were overwritten.
Part = tuple[int, int, tuple[int, ...], tuple[int, ...], int]


class Unit(StrEnum):
    """Unit that throughput counts."""

    IMAGES = "images"
    TOKENS = "tokens"
    SAMPLES = "samples"
    STEPS = "steps"


@dataclass(frozen=True, kw_only=True)
class Entered:
    """Data that the model got in a step: `count` images, samples or tokens, as `unit` says. Padding is not counted.

    `samples`: number of sequences if the data are tokens, None if it is unknown; for other data the same as `count`.
    `lengths`: number of tokens of each sequence without padding; `widths`: with padding; both empty if unknown.
    `where`: line of the script that made the data, or that passed them to the model. `batches`: number of
    micro-batches. `is_first_text`: a second text, such as a decoder's, is not counted, as in `num_input_tokens_seen` of
    Hugging Face's Trainer.
    """

    unit: Unit
    count: int
    samples: int | None
    where: str
    lengths: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    batches: int = 1
    is_first_text: bool = False

    @classmethod
    def together(cls, parts: Sequence["Entered"]) -> "Entered":
        """Sum of the micro-batches of a step."""
        samples = [part.samples for part in parts]
        return cls(
            unit=parts[0].unit,
            count=sum(part.count for part in parts),
            samples=None if None in samples else sum(number or 0 for number in samples),
            where=parts[0].where,
            lengths=tuple(length for part in parts for length in part.lengths),
            widths=tuple(width for part in parts for width in part.widths),
            batches=len(parts),
            is_first_text=parts[0].is_first_text,
        )


def words(steps: Sequence[Entered]) -> str:
    """Amount of data of a step from counted steps that have the same unit: `8 sequences of 33 to 71 tokens`."""
    counts, samples = [step.count for step in steps], [step.samples for step in steps if step.samples is not None]
    if (unit := steps[0].unit) is not Unit.TOKENS:
        return _amount(counts, unit.removesuffix("s"))
    if not all(step.lengths for step in steps):
        packed = _amount(counts, "packed token")
        return f"{packed} in {_amount(samples, 'sequence')}" if samples else packed
    lengths = [length for step in steps for length in step.lengths]
    widths = [width for step in steps for width in step.widths]
    text = " of the first text" if steps[0].is_first_text else ""
    padded = "" if lengths == widths else f" (padded to {_range(widths)})"
    plural = "" if max(lengths) == 1 else "s"
    return f"{_amount(samples, 'sequence')} of {_range(lengths)} token{plural}{padded}{text}"


def usual(values: Sequence[int]) -> int | None:
    """Value of more than half of the steps, if there is one: another step may have the last, short batch."""
    value, times = Counter(values).most_common(1)[0]
    return value if 2 * times > len(values) else None


def _amount(values: Sequence[int], noun: str) -> str:
    number = usual(values)
    return f"{_range(values)} {noun}s" if number is None else counted(number, noun)


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


class _Value(NamedTuple):
    """Tensor that a module was given, without a reference to it. `is_output`: another module has computed it."""

    name: str
    shape: tuple[int, ...]
    is_floating: bool
    part: Part
    origin: str
    is_output: bool


@dataclass(kw_only=True, eq=False)
class _Call:
    """Call of a module by the script itself, not by another module, with gradients switched on.

    `where`: line of the call. `buffers`: keys of the storages of the module's buffers, which hold no data of the step.
    `masked`: number of tokens of each sequence without padding, and shape of the mask that says so. `sequences`: number
    of packed sequences, None if unknown. `is_length_first`: the tokens have the shape (T, N), not (N, T). `nodes`:
    numbers of the nodes of autograd's graph that the call has made.
    """

    module: int
    where: str
    values: list[_Value]
    buffers: frozenset[int]
    masked: tuple[Ids, tuple[int, ...]] | None = None
    sequences: int | None = None
    is_length_first: bool = False
    nodes: range = range(0)


@dataclass(frozen=True, kw_only=True)
class _Lookup:
    """Ids (N, T) or (T,) that an embedding with `rows` rows has looked up in `table`.

    `bags`: number of sums over them, if any. `is_internal`: the model made them itself. `nested`: lengths of the parts
    of a nested tensor.
    """

    table: int
    rows: int
    padding: int
    ids: Ids
    part: Part
    is_internal: bool
    where: str
    call: _Call | None
    bags: int | None = None
    nested: tuple[int, ...] | None = None


class _Targets(NamedTuple):
    """Targets of a loss: class numbers, the number of classes, and the class that the loss ignores."""

    values: Ids
    classes: int
    ignored: int


@dataclass(kw_only=True)
class _Pass:
    """Work of a step before one of its backward passes."""

    calls: list[_Call] = field(default_factory=list)
    lookups: list[_Lookup] = field(default_factory=list)
    targets: list[_Targets] = field(default_factory=list)


class ModelInput:
    """Observes modules, embeddings and losses of counted steps. `folder`: of the user's own files.

    Of tensors only shapes, weak references to their storages and copies of ids, masks and targets are kept. A tensor
    that cannot be read, as those of functorch, is left out: our error must not become the script's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self._original: Callable[..., Any] | None = None
        self._thread = 0
        self._depth = 0
        self._call: _Call | None = None
        self._in_backward = False
        self._pass = _Pass()
        self._passes: list[_Pass] = []
        # Weak references keep each address unique while they live.
        self._origins: dict[int, tuple[StorageWeakRef, str]] = {}
        self._internal: dict[int, StorageWeakRef] = {}
        self._outputs: dict[int, StorageWeakRef] = {}
        self._nested: dict[int, tuple[int, ...]] = {}
        self._parts: list[StorageWeakRef] = []
        self._called: Callable[[torch.nn.Module, list[Tensor]], None] | None = None
        # Hashes of the samples of each counted step.
        self._samples: list[list[int]] = []

    # --- events

    def start(self, called: Callable[[torch.nn.Module, list[Tensor]], None] | None = None) -> None:
        """Begin a step: observe calls of modules by this thread until `entered` is called.

        `called`: function that gets each module that no other module calls, with the tensors that no module has made.
        """
        self._called = called
        self._thread, self._depth, self._call = threading.get_ident(), 0, None
        self._in_backward = False
        self._pass, self._passes, self._parts = _Pass(), [], []
        self._samples.append([])
        self._internal, self._outputs, self._nested = {}, {}, {}
        self._origins = {key: known for key, known in self._origins.items() if not known[0].expired()}
        original = self._original = torch.nn.Module.__call__

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._original is None or threading.get_ident() != self._thread or self._in_backward:
                return original(module, *args, **kwargs)
            depth, self._depth = self._depth, self._depth + 1
            first = _get_sequence_nr()
            with suppress(Exception):
                self._begin(module, args, kwargs)
            try:
                output = original(module, *args, **kwargs)
                if depth == 0 and self._call is not None:
                    self._call.nodes = range(first, _get_sequence_nr())
                    made = [leaf for leaf in tree_leaves(output) if _is_observed(leaf)]
                    self._outputs |= {_key(leaf): _weak(leaf) for leaf in made}
                return output
            finally:
                self._depth, self._call = depth, self._call if depth else None

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]

    def stop(self) -> None:
        """Put `Module.__call__` back as it was; from then on no call is observed."""
        if self._original is not None:
            torch.nn.Module.__call__, self._original = self._original, None  # type: ignore[method-assign]

    def distinct_share(self) -> float | None:
        """Share of different samples among those of the first counted steps; None if no sample could be read."""
        hashes = [each for step in self._samples[:COMPARED_STEPS] for each in step]
        return len(set(hashes)) / len(hashes) if hashes else None

    def entered(self) -> Entered | None:
        """End the step; return what entered the model in all of its micro-batches, None if no module was called."""
        self.stop()
        # A step without a backward pass takes its gradients by `torch.autograd.grad`.
        found = dict[tuple[int, Unit], tuple[list[Entered], set[Part]]]()
        for batch, reader, parts in filter(None, map(_batch_of, self._passes or [self._pass])):
            # Micro-batches enter the same module or embedding. A second pass over the same data is no new batch.
            batches, seen = found.setdefault((reader, batch.unit), ([], set()))
            batches += [] if seen.intersection(parts) else [batch]
            seen.update(parts)
        # Of several networks, such as actor and critic, the one that gets the most counts.
        sums = [Entered.together(batches) for batches, _ in found.values()]
        return max(sums, key=lambda each: each.count, default=None)

    def backward(self, losses: Any = (), *, begins: bool) -> None:
        """Note the beginning of the backward pass of `losses`, or its end."""
        self._in_backward = begins
        if not begins:
            return
        nodes, before = set[int](), self._pass
        with suppress(Exception):
            nodes = _graph_of(losses)
        # A later pass, or none, uses the other calls, for example those that act in a reinforcement learner's world.
        unused = [each for each in before.calls if nodes and each.nodes and nodes.isdisjoint(each.nodes)]
        self._pass = later = _Pass(calls=unused)
        later.lookups = [each for each in before.lookups if each.call in unused]
        before.calls = [each for each in before.calls if each not in unused]
        before.lookups = [each for each in before.lookups if each.call not in unused]
        if before.calls or before.lookups:
            self._passes.append(before)

    # --- modules

    def _begin(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._depth == 1 and self._called:
            fixed = [leaf for leaf in tree_leaves((args, kwargs)) if _is_observed(leaf) and not leaf.requires_grad]
            self._called(module, [leaf for leaf in fixed if _key(leaf) not in self._outputs])
        if self._depth == 1 and torch.is_grad_enabled():
            values = [(name, value) for name, value in _named(module, args, kwargs) if _is_observed(value)]
            known = [self._value(name, value) for name, value in values]
            buffers = frozenset(_key(buffer) for buffer in module.buffers() if _is_observed(buffer))
            self._call = _Call(module=id(module), where=self._line(), values=known, buffers=buffers)
            self._pass.calls.append(self._call)
            for name, value in values:
                self._read(self._call, name, value)
            # Layers that the script calls after others get no samples.
            fresh = [tensor for one, (_, tensor) in zip(known, values, strict=True) if not one.is_output]
            if fresh and len(self._samples) <= COMPARED_STEPS:
                with suppress(Exception):
                    self._samples[-1] += _hashes(max(fresh, key=torch.numel))
        elif self._call is not None:
            for name in PADDING_MASKS:
                self._read(self._call, name, kwargs.get(name))
        # Recurrent and attention layers of torch have (T, N) tokens if their batch is not first.
        if self._call is not None and getattr(module, "batch_first", True) is False and self._pass.lookups:
            last, given = self._pass.lookups[-1].ids.shape, args[0] if args else None
            self._call.is_length_first |= isinstance(given, Tensor) and given.shape[:2] == last != given.shape[1::-1]

    def _value(self, name: str, value: Tensor) -> _Value:
        shape = (value.size(0), -1) if value.is_nested else tuple(value.shape)
        is_output = _key(value) in self._outputs
        return _Value(name, shape, value.is_floating_point(), self._part(value), self._origin(value), is_output)

    def _read(self, call: _Call, name: str, value: Any) -> None:
        """Read the lengths of sequences from a mask, or their number from their positions or beginnings."""
        if not isinstance(value, Tensor) or (value.is_floating_point() and name in PADDING_MASKS):
            return
        if name == MASK or name in PADDING_MASKS:
            if value.dim() == ID_DIMENSIONS and (known := _values(value)) is not None:
                marked = known != 0 if name == MASK else known == 0
                call.masked = marked.sum(1), marked.shape
        elif "cu_seq" in name:
            call.sequences = value.numel() - 1
        elif name == "position_ids" and value.numel() == max(value.shape, default=0):
            known = _values(value)
            call.sequences = None if known is None else call.sequences or int((known == 0).sum())

    # --- operations

    def nested(self, args: tuple[Any, ...]) -> None:
        """Note the lengths of the parts of jagged tensors: their operations are seen as those of their values."""
        with suppress(Exception):
            for given in args:
                if _is_jagged(given) and given.dtype in IDS and (offsets := _values(given.offsets())) is not None:
                    self._nested[self._part(given)[0]] = tuple(np.diff(offsets).tolist())

    def operation(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Note an operation that the step has run outside of backward passes."""
        if self._original is None or self._in_backward or threading.get_ident() != self._thread:
            return
        is_training = self._call is not None or (self._depth == 0 and torch.is_grad_enabled())
        with suppress(Exception):
            if name == "embedding" and is_training:
                self._looked_up(args, kwargs)
            elif name.startswith("_embedding_bag") and is_training:
                self._looked_up(args[:2], kwargs, bags=output[0].shape[0])
            elif name in ("nll_loss_forward", "nll_loss2d_forward") and is_training:
                if (known := _values(args[1])) is not None:
                    classes = args[0].shape[-1 if name == "nll_loss_forward" else 1]
                    self._pass.targets.append(_Targets(known, classes, ignored=args[4]))
            elif self._depth == 0 or name == "arange" or (isinstance(output, Tensor) and output.dtype in IDS):
                self._follow(name, args, output)

    def _follow(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        """Keep where a tensor comes from: a line of the script, or the model itself, which makes positions."""
        for made in (leaf for leaf in tree_leaves(output) if _is_observed(leaf)):
            sources = [leaf for leaf in tree_leaves(args) if _is_observed(leaf) and not leaf.is_floating_point()]
            key, reference = _key(made), _weak(made)
            if name == "arange" or (self._depth and all(_key(source) in self._internal for source in sources)):
                self._internal.setdefault(key, reference)
            elif self._depth == 0 and (name in COPIES or key not in self._origins):
                original = args[name == "copy_"] if name in COPIES else None
                self._origins[key] = reference, self._origin(original) or self._line(made=True)

    def _looked_up(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], bags: int | None = None) -> None:
        weight, given = args[:2]
        known = _values(given)
        if known is None or (_key(given) in (self._call.buffers if self._call else ())):
            return
        self._pass.lookups.append(
            _Lookup(
                table=_key(weight),
                rows=weight.shape[0],
                padding=[*args[2:3], kwargs.get("padding_idx", -1)][0],
                ids=known,
                part=self._part(given),
                is_internal=_key(given) in self._internal,
                where=self._origin(given) or f"into the model at {self._line()}",
                call=self._call,
                bags=bags,
                nested=self._nested.get(_key(given)),
            )
        )

    # --- places

    def _origin(self, tensor: Any) -> str:
        known = self._origins.get(_key(tensor)) if _is_observed(tensor) else None
        return known[1] if known else ""

    def _part(self, tensor: Tensor) -> Part:
        plain, reference = _plain(tensor), _weak(tensor)
        self._parts.append(reference)
        version = 0 if plain.is_inference() else plain._version  # noqa: SLF001 - no public name
        return reference.cdata, int(plain.storage_offset()), tuple(plain.shape), plain.stride(), version

    def _line(self, *, made: bool = False) -> str:
        """The innermost line of the user's files, `train.py:41`; `made`: with the function that it is in."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what traceback uses too
        while frame is not None and not is_users(frame.f_code.co_filename, self._folder):
            frame = frame.f_back
        if frame is None:
            return "" if made else "an unknown line"
        place, name = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}", frame.f_code.co_name
        return place if not made else f"from {place}" if name.startswith("<") else f"from {name} at {place}"


def _graph_of(losses: Any) -> set[int]:
    """Numbers of the nodes of autograd's graph that the backward pass of `losses` runs through."""
    waiting = [leaf.grad_fn for leaf in tree_leaves(losses) if isinstance(leaf, Tensor)]
    seen = set[Any]()
    while waiting:
        if (node := waiting.pop()) is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {node._sequence_nr() for node in seen}  # noqa: SLF001 - PyTorch's profiler uses it too


@functools.cache
def is_users(name: str, folder: str) -> bool:
    """Whether the file `name` is one of the user's own in `folder`, which ends in a slash."""
    return name.startswith(folder) and not name.startswith(OURS) and "site-packages" not in name


def _is_observed(value: Any) -> bool:
    """Whether this is a tensor with values in a storage of its own."""
    if not isinstance(value, Tensor) or value.device.type == "meta":
        return False
    return _is_jagged(value) or (value.layout is torch.strided and not value.is_nested)


def _is_jagged(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.jagged


def _plain(tensor: Any) -> Tensor:
    """The tensor itself; of a nested tensor, the values of all of its parts."""
    plain: Tensor = tensor._values if _is_jagged(tensor) else tensor  # noqa: SLF001 - `values()` is an operation
    return plain


def _weak(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(_plain(tensor).untyped_storage())


def _key(tensor: Tensor) -> int:
    key: int = _weak(tensor).cdata
    return key


def _values(tensor: Tensor) -> Ids | None:
    """Copy of integers or of a mask; None for tensors that have no values, such as fake ones."""
    try:
        # No operation of ours may be counted as the script's, by us or by a mode of the script's own.
        with _disable_current_modes():
            known = tensor.detach().cpu().numpy()
            return (known > 0 if tensor.is_floating_point() else known).astype(np.int64)
    except (RuntimeError, TypeError):
        return None


def _hashes(batch: Tensor) -> list[int]:
    """Hash of each sample of a batch; none while a CUDA graph is captured, which copies to the host would break."""
    if batch.is_cuda and torch.cuda.is_current_stream_capturing():
        return []
    with _disable_current_modes():
        rows = batch.detach().reshape(batch.shape[0], -1)
        rows = rows[:, :: max(1, rows.shape[1] // COMPARED_NUMBERS)].cpu().contiguous().view(torch.uint8)
        return [hash(row.tobytes()) for row in rows.numpy()]


def _named(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Arguments of a call of `module`, each with its name.

    The name is that of the parameter of `forward`. A part of an argument that is a mapping has its key as name, and a
    part of a list the parameter's name and its number.
    """
    wrapped = getattr(module, "module", None)
    names = _parameters_of(type(wrapped if isinstance(wrapped, torch.nn.Module) else module).forward)
    given = [*zip([*names, *[""] * len(args)], args, strict=False), *kwargs.items()]
    for name, value in given:
        if isinstance(value, Mapping):
            yield from ((str(key), part) for key, part in value.items())
        elif isinstance(value, list | tuple):
            yield from ((f"{name} {number}", part) for number, part in enumerate(value))
        else:
            yield name, value


@functools.cache
def _parameters_of(forward: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = [*inspect.signature(forward).parameters.values()][1:]
    except (TypeError, ValueError):
        return ()
    return tuple(known.name for known in parameters if known.kind is known.POSITIONAL_OR_KEYWORD)


# --- what a pass has read

# A batch, the module or embedding that has read it, and the parts of storages that hold it.
Batch = tuple[Entered, int, list[Part]]


def _batch_of(known: _Pass) -> Batch | None:
    """Data of a micro-batch: tokens, else the first tensor of the first module's call."""
    outside = [each for each in known.lookups if not each.is_internal]
    first = outside[0] if outside else max(known.lookups, key=lambda each: each.ids.size, default=None)
    call = (first.call if first else None) or (known.calls[0] if known.calls else None)
    values = call.values if call else []
    if first and _is_text(first, known, values):
        read = _alike(first, outside) or [first]
        batches = [_sequences(each, known.targets) for each in read]
        whole = replace(Entered.together(batches), batches=1, is_first_text=_has_second_text(first, outside))
        return whole, first.table, [each.part for each in read]
    main = _main(values)
    if first and (main is None or (first.bags is not None and not main.is_floating)):
        count = first.bags or first.ids.shape[0]
        return Entered(unit=Unit.SAMPLES, count=count, samples=count, where=first.where), first.table, [first.part]
    if main is None or call is None or main.is_output:
        return None
    # A model computes with one row of numbers as with one sample.
    count = 1 if main.is_floating and len(main.shape) == 1 else main.shape[0]
    parts = [main.part]
    if count == 1:
        # Observations of an episode, which enter the model one at a time.
        mains = [_main(each.values) for each in known.calls if each.module == call.module]
        parts = [*{each.part: each for each in mains if each and each.shape == main.shape}]
        count = len(parts)
    is_pair = first is not None and first.ids.ndim >= ID_DIMENSIONS and first.ids.shape[-1] > MOST_IDS
    unit = Unit.IMAGES if _is_image(main.shape) and not is_pair else Unit.SAMPLES
    where = main.origin or f"into the model at {call.where}"
    return Entered(unit=unit, count=count, samples=count, where=where), call.module, parts


def _has_second_text(first: _Lookup, known: Sequence[_Lookup]) -> bool:
    """Whether the same call looks up another text, such as a decoder's, beside that of `first`: not other features."""
    others = [each for each in known if each.call is first.call and each.part[0] != first.part[0] and each.ids.ndim > 1]
    return any(
        each.ids.shape[0] == first.ids.shape[0]
        and each.ids.shape[-1] > MOST_IDS
        and (each.table == first.table or each.ids.shape != first.ids.shape)
        for each in others
    )


def _main(values: Sequence[_Value]) -> _Value | None:
    """The images that a module was given, else its first floating tensor, else its first tensor; not a number."""
    ordered = sorted(
        (value for value in values if value.shape),
        key=lambda value: (not _is_image(value.shape), not value.is_floating),
    )
    return ordered[0] if ordered else None


def _alike(first: _Lookup, known: Sequence[_Lookup]) -> list[_Lookup]:
    """Lookups of tokens in the table of `first`: the first one of each call, and further parts of the same tensor.

    The ids of a decoder that has the encoder's embedding are left out, and so are tokens that are read again.
    """
    found = dict[Part, _Lookup]()
    storages = dict[int, int]()
    for each in (each for each in known if each.table == first.table):
        if storages.setdefault(id(each.call), each.part[0]) == each.part[0]:
            found.setdefault(each.part, each)
    return [*found.values()]


def _is_image(shape: Sequence[int]) -> bool:
    return len(shape) == IMAGE_DIMENSIONS and (shape[1] in CHANNELS or shape[-1] in CHANNELS)


def _is_text(first: _Lookup, known: _Pass, values: Sequence[_Value]) -> bool:
    """Whether ids are tokens, not features of samples."""
    shape = first.ids.shape
    if first.bags is not None or not shape or any(_is_image(value.shape) for value in values):
        return False
    beside = [value for value in values if value.is_floating and not any(word in value.name for word in NO_DATA)]
    if len(shape) >= ID_DIMENSIONS and any(len(each.shape) > 1 and each.shape[0] == shape[0] for each in beside):
        return False
    if len(shape) >= ID_DIMENSIONS or first.nested:
        return bool(first.nested) or shape[-1] > MOST_IDS
    # Packed tokens (T,) rather than the id of each sample: the next token is told for each of them.
    is_packed = first.call is not None and first.call.sequences is not None
    return is_packed or any(each.values.size == shape[0] and each.classes == first.rows for each in known.targets)


def _sequences(read: _Lookup, losses: Sequence[_Targets]) -> Entered:
    """Sequences that an embedding has read."""
    call, ids, where = read.call, read.ids, read.where
    if each := read.nested:
        return Entered(unit=Unit.TOKENS, count=ids.size, samples=len(each), where=where, lengths=each, widths=each)
    if ids.ndim == 1 or (call and (call.sequences or 1) > 1 and ids.size == max(ids.shape)):
        number = call.sequences if call else None
        return Entered(unit=Unit.TOKENS, count=ids.size, samples=number, where=where)
    masked = call.masked if call else None
    if (call and call.is_length_first) or (masked and masked[1] == ids.shape[::-1] != ids.shape):
        ids = ids.T
    ids = ids.reshape(-1, ids.shape[-1])
    lengths = tuple(int(length) for length in _lengths(read, ids, masked, losses))
    rows, width = ids.shape
    widths = (width,) * rows
    return Entered(unit=Unit.TOKENS, count=sum(lengths), samples=rows, where=where, lengths=lengths, widths=widths)


def _lengths(read: _Lookup, ids: Ids, masked: tuple[Ids, tuple[int, ...]] | None, losses: Sequence[_Targets]) -> Ids:
    """Lengths of sequences `ids` (N, T) without padding, which a mask, a loss or the embedding tells, in this order."""
    if masked and masked[1] == ids.shape and masked[0].any():
        return masked[0]
    rows, width = ids.shape
    fitting = [loss for loss in losses if loss.values.size in (rows * width, rows * (width - 1))]
    # The class that the loss ignores is the id of padding if classes are ids.
    padding = next((loss.ignored for loss in fitting if loss.ignored >= 0 and loss.classes == read.rows), read.padding)
    if padding >= 0:
        return _without_ends(ids == padding)
    ignoring = next((loss for loss in fitting if loss.ignored < 0), None)
    if ignoring is None:
        return np.full(rows, width)
    ignored = np.full(ids.shape, True)
    ignored[:, : ignoring.values.size // rows] = ignoring.values.reshape(rows, -1) == ignoring.ignored
    # A prompt that the loss ignores is no padding, which repeats one id at the end of rows. One ignored id there may
    # also be the last token, which has no next one to predict.
    is_repeated = (ids == ids[:, -1:]) & ignored
    repeated = {*ids[is_repeated[:, -2:].all(1), -1].tolist()}
    return _without_ends(is_repeated & (ids == repeated.pop())) if len(repeated) == 1 else np.full(rows, width)


def _without_ends(is_padding: NDArray[np.bool_]) -> Ids:
    """Lengths of rows without the padding at their ends, or at their beginnings if there is more."""
    ends = [np.cumprod(rows, axis=1).sum(1) for rows in (is_padding[:, ::-1], is_padding)]
    lengths: Ids = is_padding.shape[1] - max(ends, key=lambda end: int(end.sum()))
    return lengths
