"""A script's training step: its pattern, its data, the number of steps to measure, and the interface of receivers."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol, Self

import torch

from workload.contract.errors import UsageError
from workload.contract.spec import Device, default_steps
from workload.contract.text import counted
from workload.measure.recorder import Aside, StepPart, StepPhase
from workload.steps.model_input import (
    CHANNELS,
    ID_DIMENSIONS,
    IDS,
    IMAGE_DIMENSIONS,
    MASK,
    MOST_IDS,
    Entered,
    Unit,
    usual,
    words,
)
from workload.steps.step_finder import Pattern

# Dimensions of each image in a list of images of different sizes: (C, H, W).
LISTED_DIMENSIONS = 3
# Leaves of a batch beyond this number are ignored: the first ones already show the batch's length.
MOST_LEAVES = 16
# Views or images of one sample; a batch with more parts, the first two of which are alike, has pairs and their targets.
MOST_VIEWS = 2


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Contents of a batch from the DataLoader with the number `loader`; `count`: number of samples, see `unit`.

    `tokens`: number of tokens with padding, 0 for other data; `mask`: marks the tokens without padding, read on demand.
    """

    loader: int
    count: int
    unit: Unit
    tokens: int = 0
    mask: torch.Tensor | None = None

    @property
    def real_tokens(self) -> int:
        """Number of tokens without padding, if a mask marks the padding."""
        if self.mask is None or self.mask.device.type != "cpu":
            return self.tokens
        # NumPy, because an operation of torch would be counted as the script's operation.
        return int(self.mask.detach().numpy().astype(bool).sum())


def size_of(loader: Any) -> int | None:
    """Batch size that a DataLoader or its batch sampler was made with; None if neither has one."""
    for known in (loader, getattr(loader, "batch_sampler", None)):
        if isinstance(size := getattr(known, "batch_size", None), int):
            return size
    return None


def measure(batch: Any, loader: int, size: int | None = None) -> Batch:
    """Contents of `batch`; `size`: batch size that the loader knows, else None.

    A batch has `size` samples if one of its tensors or lists has this length, or none is shorter. A shorter batch, at
    the end of the data, has the length of its first shorter tensor or list. Without `size`, the batch has the length of
    its first tensor or list. A batch without tensors and lists is one sample.
    """
    # Fast path for nearly every batch.
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if isinstance(first, torch.Tensor) and first.dim() and (size is None or first.shape[0] == size):
        if _has_images(first) and first is not batch and _is_pair(batch):
            return Batch(loader=loader, count=first.shape[0], unit=Unit.SAMPLES)
        return _of(loader, first.shape, first.dtype, first.shape[0])
    lengths = _lengths(batch)
    fitting = [length for length in lengths if size is None or length < size]
    count = size if size is not None and (size in lengths or not fitting) else fitting[0] if fitting else 1
    leaves = [leaf for leaf in tensors_of(batch) if leaf.dim()]
    mask = batch.get(MASK) if isinstance(batch, Mapping) else None
    if isinstance(mask, torch.Tensor) and mask.dim() == ID_DIMENSIONS:
        return Batch(loader=loader, count=count, unit=Unit.SAMPLES, tokens=mask.numel(), mask=mask)
    if not leaves:
        return Batch(loader=loader, count=count, unit=Unit.SAMPLES)
    known = _of(loader, leaves[0].shape, leaves[0].dtype, count)
    if isinstance(batch, Mapping) and not known.tokens and any(map(_has_images, batch.values())):
        return Batch(loader=loader, count=count, unit=Unit.IMAGES)
    # A list of images of different sizes.
    is_listed = isinstance(first, list | tuple) and all(isinstance(item, torch.Tensor) for item in first)
    is_listed = is_listed and leaves[0].dim() == LISTED_DIMENSIONS and leaves[0].shape[0] in CHANNELS
    return Batch(loader=loader, count=count, unit=Unit.IMAGES, tokens=0) if is_listed else known


def _has_images(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dim() == IMAGE_DIMENSIONS


def _is_pair(batch: Sequence[Any]) -> bool:
    """Whether a sample is a pair or triplet of images with a target, as siamese networks have them."""
    return len(batch) > MOST_VIEWS and isinstance(batch[1], torch.Tensor) and batch[1].shape == batch[0].shape


def _is_batch(item: Any) -> bool:
    """Whether an `item` of a DataLoader with `batch_size=1` is itself a batch of several samples.

    True if its first tensor is not an image and has as many rows as another tensor, such as the targets.
    """
    lengths, leaf = _lengths(item), next(tensors_of(item), None)
    is_image = leaf is not None and leaf.dim() == LISTED_DIMENSIONS and leaf.shape[0] in CHANNELS
    return 1 not in lengths and not is_image and lengths.count(lengths[0] if lengths else 0) > 1


@lru_cache
def _of(loader: int, shape: torch.Size, dtype: torch.dtype, count: int) -> Batch:
    """Batch from the shape and type of its tensor.

    Cached, because this function is called in timed steps, whose batches are alike.
    """
    if len(shape) == IMAGE_DIMENSIONS:
        return Batch(loader=loader, count=count, unit=Unit.IMAGES)
    is_tokens = len(shape) == ID_DIMENSIONS and dtype in IDS and shape[1] > MOST_IDS
    return Batch(loader=loader, count=count, unit=Unit.SAMPLES, tokens=shape.numel() if is_tokens else 0)


def _lengths(batch: Any) -> list[int]:
    """Lengths of the tensors and lists in a batch, in order.

    If the batch consists of equally long lists, their length comes first. A batch of graphs has only the number of
    graphs.
    """
    graphs = getattr(batch, "num_graphs", None)
    if isinstance(graphs, int):
        return [graphs]
    lengths = []
    # `tuple(zip(*batch))`: a tuple of images and one of targets.
    if isinstance(batch, list | tuple) and all(isinstance(part, list | tuple) for part in batch):
        of_parts = {len(part) for part in batch}
        lengths = list(of_parts) if len(of_parts) == 1 else []
    for leaf in _leaves(batch):
        if isinstance(leaf, list | tuple):
            lengths.append(len(leaf))
        elif leaf.dim():
            lengths.append(leaf.shape[0])
    return lengths


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Tensors in a batch, in order."""
    return (leaf for leaf in _leaves(batch) if isinstance(leaf, torch.Tensor))


def _leaves(value: Any) -> Iterator[Any]:
    """Parts of a batch that tell its size: tensors, and lists of texts, numbers or mappings, in the batch's order.

    Dictionaries are searched too, because batches of Hugging Face are dictionaries.
    """
    waiting = [value]
    for _ in range(MOST_LEAVES):
        if not waiting:
            return
        item = waiting.pop(0)
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, Mapping):
            waiting = [*item.values(), *waiting]
        elif isinstance(item, list | tuple):
            if item and all(isinstance(part, str | bytes | int | float | Mapping) for part in item):
                yield item
            waiting = [*item[:MOST_LEAVES], *waiting]
        elif isinstance(item, type):
            continue
        elif is_dataclass(item):
            waiting = [*(getattr(item, part.name, None) for part in fields(item)), *waiting]
        elif hasattr(item, "to") and hasattr(item, "__dict__"):
            waiting = [*vars(item).values(), *waiting]


def fetched_at(folder: Path) -> str:
    """Line that is being executed, such as `train.py:41`: the innermost one in `folder`, else in a library."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what traceback uses too, without reading any source
    outside = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        where = f"{path.name}:{frame.f_lineno}"
        if path.is_relative_to(folder) and "site-packages" not in path.parts:
            return where
        if not outside and "torch" not in path.parts and not path.is_relative_to(Path(__file__).parents[1]):
            outside = where
        frame = frame.f_back
    return outside or "an unknown line"


# Types with which a CPU computes slowly below 1.2e-38. It converts fp16, whose least normal number is 6e-5.
SLOW_IF_SUBNORMAL = (torch.float32, torch.bfloat16)


class Fetch(NamedTuple):
    """A batch fetched within the step; `parts`: number of parts that the step had before the fetch."""

    batch: Batch
    parts: int


class Amount(NamedTuple):
    """Data fetched between two optimizer steps: number of samples, their unit, number of batches."""

    samples: int
    unit: Unit
    batches: int

    @classmethod
    def of(cls, fetches: Sequence[Fetch]) -> Self:
        """Amount of data in all fetched batches, in the unit (for example images) that most batches have."""
        units = Counter(fetch.batch.unit for fetch in fetches)
        unit = units.most_common(1)[0][0] if units else Unit.STEPS
        return cls(sum(fetch.batch.count for fetch in fetches), unit, len(fetches))


@dataclass(kw_only=True)
class OpenStep:
    """A training step that has begun and not ended.

    `backward`, `closures`, `batches`: numbers of backward passes, of backward passes inside an optimizer's step, and of
    batches, since the last optimizer step. `skipped`: number of optimizer steps that were skipped since the training
    step began. `fetches`: batches since the training step began.
    """

    backward: int = 0
    closures: int = 0
    batches: int = 0
    skipped: int = 0
    fetches: list[Fetch] = field(default_factory=list)

    def excess(self, pattern: Pattern | None) -> list[Fetch]:
        """Batches fetched before those that the step trained on, for example by a validation loop."""
        extra = len(self.fetches) - pattern.batches if pattern else 0
        if extra <= 0:
            return []
        kept = {fetch.batch.loader for fetch in self.fetches[extra:]}
        is_foreign = any(fetch.batch.loader not in kept for fetch in self.fetches[:extra])
        # One extra batch of the same loader is no excess: it was prefetched at the beginning of the data.
        return self.fetches[:extra] if extra > 1 or is_foreign else []


@dataclass(kw_only=True)
class Loader:
    """A DataLoader of the script: the line that asks for batches, the number of workers, the batch `size` if known."""

    where: str
    workers: int
    size: int | None = None


class Inputs:
    """DataLoaders of the script, by number. `evaluated`: those with batches that no backward pass uses."""

    def __init__(self, folder: Path) -> None:
        self.evaluated: set[int] = set()
        self._folder = folder
        self._known: list[Loader] = []
        # Not by `id`, which a DataLoader of the next epoch may share; weak, because a DataLoader keeps its workers.
        self._numbers = weakref.WeakKeyDictionary[Any, int]()

    def identities(self, numbers: Collection[int]) -> set[int]:
        """Identities of the DataLoaders with these `numbers`."""
        return {id(loader) for loader, number in self._numbers.items() if number in numbers}

    def batch_of(self, loader: Any, batch: Any, follow: Callable[[int, Any], None] | None) -> Batch:
        """Contents of a batch; `follow` is called with the DataLoader's number and the batch."""
        if (number := self._numbers.get(loader)) is None:
            number = self._numbers[loader] = len(self._known)
            workers, size = int(getattr(loader, "num_workers", 0)), size_of(loader)
            size = None if size == 1 and _is_batch(batch) else size
            self._known.append(Loader(where=fetched_at(self._folder), workers=workers, size=size))
        if follow:
            follow(number, batch)
        return measure(batch, number, self._known[number].size)

    def of(self, fetches: Sequence[Fetch]) -> list[Loader]:
        """DataLoaders of these batches."""
        return [self._known[number] for number in {fetch.batch.loader for fetch in fetches}]

    def leave_out(self, evaluated: set[int], step: OpenStep) -> bool:
        """Remove batches of `evaluated` DataLoaders from the step, and from now on; return whether any was new.

        A step with a shorter batch, as at the end of the data, is left as it is: the step is defined by whole batches.
        """
        fetches = [fetch for fetch in step.fetches if fetch.batch.loader not in evaluated]
        sizes = [self._known[fetch.batch.loader].size or fetch.batch.count for fetch in fetches]
        if evaluated <= self.evaluated or sizes != [fetch.batch.count for fetch in fetches]:
            return False
        self.evaluated |= evaluated
        step.fetches = fetches
        return True


@dataclass(frozen=True, kw_only=True)
class Step:
    """Definition of a training step: its pattern, the data that throughput counts, and a sentence for the user.

    `samples`: number of `unit` in a step. `batch_size`: size of each of the `batches` of a step, in sequences of tokens
    if they are known. `what`: the sentence's part on passes and optimizers. `source`: the DataLoaders whose batches are
    counted, "" if none are. A step of tokens has a number of `sequences`, None if unknown; `are_sequences_fetched`: the
    samples of its batches are these sequences. `share`: tokens in the model for each token of a batch, 0 if batches
    have none. `differing`: least and most `unit` in the counted steps, if they differ and no batch of a timed step
    tells its own number. `samples_in_pass`: of a pass over its data, see `data_length.samples_of_step`, asked when the
    step was counted.
    """

    pattern: Pattern | None
    unit: Unit
    samples: int
    batches: int
    batch_size: int
    what: str
    data: str
    optimizers: tuple[str, ...]
    parameters: int
    workers: int | None
    source: str = ""
    is_given: bool = False
    sequences: int | None = None
    are_sequences_fetched: bool = True
    share: float = 0.0
    differing: tuple[int, int] | None = None
    samples_in_pass: int | None = None

    @property
    def text(self) -> str:
        """Sentence that defines the step."""
        return f"a step = {self.what}, {self.data}"

    def amount(self, fetches: Sequence[Fetch]) -> tuple[int, int | None, int]:
        """Amount of data of a timed step that has fetched these batches: of `unit`, of sequences, of tokens."""
        tokens = sum(fetch.batch.real_tokens for fetch in fetches)
        is_whole = bool(self.source) and len(fetches) == self.batches
        fetched = sum(fetch.batch.count for fetch in fetches) if is_whole else None
        if self.unit is not Unit.TOKENS:
            return self.samples if fetched is None else fetched, None, tokens
        count = round(self.share * tokens) if is_whole and self.share and tokens else self.samples
        return count, self.sequences if fetched is None or not self.are_sequences_fetched else fetched, count

    def entered(self, counted: Sequence[tuple[Entered | None, int]], typical: Entered | None) -> Self:
        """Copy with the data that entered the model in the counted steps, where they tell more than the batches do.

        `counted`: for each of these steps, what entered, and the number of tokens in its batches. `typical`: what
        entered in the step whose work stands for all.
        """
        known = [(found, tokens) for found, tokens in counted if found and typical and found.unit is typical.unit]
        if self.is_given or not typical or (self.source and typical.unit is not Unit.TOKENS):
            return self
        found = [each for each, _ in known] or [typical]
        batches = self.batches if self.source else typical.batches
        counts, numbers = [each.count for each in found], {each.samples for each in found}
        sizes = [each.samples or each.count for each in found]
        # Without the tokens of batches, each timed step has the mean of steps that differ.
        count, size = (usual(values) or round(sum(values) / len(values)) for values in (counts, sizes))
        fetched = [tokens for _, tokens in known]
        share = sum(counts) / sum(fetched) if self.source and fetched and all(fetched) else 0.0
        return replace(
            self,
            unit=typical.unit,
            samples=max(1, count),
            batches=batches,
            batch_size=max(1, size // batches),
            data=f"{words(found)} {self.source}" if self.source else f"{words(found)}, {typical.where}",
            sequences=next(iter(numbers)) if len(numbers) == 1 else None,
            # Several packed sequences, or two texts, may be one sample of the DataLoader.
            are_sequences_fetched=bool(self.source) and numbers == {self.samples},
            share=share,
            differing=(min(counts), max(counts)) if min(counts) < max(counts) and not share else None,
        )

    def is_part_of(self, pattern: Pattern) -> bool:
        """Whether this step is only a part of a step of `pattern`, which has all optimizers of this step and more."""
        ours = {segment.optimizer for segment in self.pattern.segments} if self.pattern else set()
        return ours < {segment.optimizer for segment in pattern.segments}


@dataclass(kw_only=True)
class Phase:
    """Part of the script whose steps are alike. `steps`: number of these steps; `taken`: number of measured steps."""

    step: Step
    steps: int = 0
    taken: int = 0

    def is_longer_than(self, other: "Phase | None") -> bool:
        """Whether this phase has more steps than `other`, if there is one."""
        return other is None or self.steps > other.steps


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Numbers of steps and seconds to measure in a script, as the user asked; None: the default of the device.

    `warmup`, `iterations`: numbers of steps. `samples_per_step`: samples in one step, if hooks cannot count them.
    `min_seconds`: measure more steps until all measured steps together took this long.
    """

    warmup: int | None
    iterations: int | None
    samples_per_step: int | None
    min_seconds: float | None = None

    def filled(self, device: Device) -> tuple[int, int, float]:
        """Number of warm-up steps, number of measured steps, and least seconds of all measured steps together."""
        default = default_steps(device)
        warmup = default.warmup if self.warmup is None else self.warmup
        iterations = default.iterations if self.iterations is None else self.iterations
        least_s = default.min_seconds if self.min_seconds is None else self.min_seconds
        return warmup, iterations, least_s


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Facts of an optimizer at its first step. `kind`: number shared by optimizers of one class with the same shapes.

    `gpus`: indices of its NVIDIA GPUs. `elements`: number of elements of each parameter, by the parameter's identity.
    """

    name: str
    kind: int
    devices: frozenset[str]
    gpus: frozenset[int]
    elements: Mapping[int, int]


class Optimizers:
    """Optimizers that have stepped, by number, held by weak references."""

    def __init__(self) -> None:
        self.known: list[Optimizer] = []
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._kinds: dict[Any, Optimizer] = {}

    def number_of(self, optimizer: Any) -> int:
        """Number of an optimizer; optimizers are numbered in the order of their first steps."""
        reference, number = self._numbers.get(id(optimizer), (None, 0))
        if reference is None or reference() is not optimizer:
            number = len(self.known)
            self._numbers[id(optimizer)] = weakref.ref(optimizer), number
            self.known.append(self._look_at(optimizer))
        return number

    def _look_at(self, optimizer: Any) -> Optimizer:
        parameters = list(_parameters_of(optimizer))
        shapes = tuple((tensor.shape, tensor.dtype, tensor.requires_grad, tensor.device) for tensor in parameters)
        key = (type(optimizer), shapes)
        # The first optimizer of a kind describes all of them: a script may make thousands.
        return self._kinds.setdefault(
            key,
            Optimizer(
                name=type(optimizer).__name__,
                kind=len(self._kinds),
                devices=frozenset(tensor.device.type for tensor in parameters),
                gpus=frozenset(tensor.device.index or 0 for tensor in parameters if tensor.is_cuda),
                elements={id(tensor): tensor.numel() for tensor in parameters},
            ),
        )

    def identities(self, numbers: Collection[int]) -> set[int]:
        """Identities of the optimizers with these `numbers`."""
        return {identity for identity, (_, number) in self._numbers.items() if number in numbers}

    def device(self, numbers: Collection[int]) -> Device:
        """Device of the parameters of the optimizers with these `numbers`: CUDA, else MPS, else the CPU.

        The CPU is also returned for a device of any other type.
        """
        kinds = {kind for number in numbers for kind in self.known[number].devices}
        return next((device for device in (Device.CUDA, Device.MPS) if device in kinds), Device.CPU)

    def on_gpu(self, numbers: Collection[int]) -> AbstractContextManager[Any]:
        """Context manager in which the GPU with the parameters of these optimizers is the current one.

        Does nothing on other devices. Raises `UsageError` if the parameters are on several GPUs.
        """
        indices = {index for number in numbers for index in self.known[number].gpus}
        require_one_gpu([f"cuda:{index}" for index in indices])
        return torch.cuda.device(indices.pop()) if indices else nullcontext()

    def gpus(self) -> list[str]:
        """Identities of the NVIDIA GPUs with the parameters of all optimizers."""
        indices = {index for optimizer in self.known for index in optimizer.gpus}
        return sorted(str(torch.cuda.get_device_properties(index).uuid) for index in indices)

    def living(self) -> list[Any]:
        """Optimizers that the script still has."""
        return [optimizer for reference, _ in self._numbers.values() if (optimizer := reference()) is not None]

    def subnormal_share(self) -> float:
        """Share of the gradients on a CPU that are subnormal numbers; 0 if the script keeps no gradients."""
        kept = {id(tensor): tensor.grad for optimizer in self.living() for tensor in _parameters_of(optimizer)}
        gradients = [each for each in kept.values() if each is not None and each.device.type == Device.CPU]
        dense = [each for each in gradients if each.layout is torch.strided and each.dtype in SLOW_IF_SUBNORMAL]
        small = sum(int(((each != 0) & (each.abs() < torch.finfo(each.dtype).tiny)).sum()) for each in dense)
        return small / max(1, sum(each.numel() for each in dense))

    def parameters(self, numbers: Collection[int]) -> int:
        """Number of elements of the parameters of the optimizers with these `numbers`, each parameter counted once."""
        return sum({key: size for number in numbers for key, size in self.known[number].elements.items()}.values())


def require_one_gpu(devices: Collection[str]) -> None:
    """Raise `UsageError` if a step works on several GPUs: clock, memory and roofs are those of one."""
    used = sorted(name for name in devices if name.startswith("cuda"))
    if len(used) > 1:
        raise UsageError(
            f"a step of the script works on {len(used)} GPUs in one process: {', '.join(used)}",
            hint=f"one process for each GPU, with DistributedDataParallel: --devices {len(used)}; or let the script see"
            " one GPU: --gpu-index 0",
        )


def _parameters_of(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]
    # Keras's variables, each of which holds a tensor.
    for variable in getattr(optimizer, "_trainable_variables", ()):
        yield variable.value


def describe(
    pattern: Pattern | None, recent: Sequence[Amount], loaders: Sequence[Loader], optimizers: Optimizers, limits: Limits
) -> Step:
    """Define a step by `pattern` or, if None, by the marks that the script sets itself.

    `recent`: data fetched by the last optimizer steps.
    """
    length = len(pattern.segments) if pattern else 1
    # Use the most common amount of the last few steps, because one step may hold the short batch at the end of the
    # data.
    sums = [recent[end - length : end] for end in range(length, len(recent) + 1, length)] or [recent]
    amounts = Counter((sum(row.samples for row in rows), sum(row.batches for row in rows)) for rows in sums)
    (samples, batches), _ = amounts.most_common(1)[0] if amounts else ((0, 0), 0)
    unit = next((row.unit for row in reversed(recent) if row.batches), Unit.STEPS)
    if limits.samples_per_step:
        samples, unit = limits.samples_per_step, Unit.SAMPLES if unit is Unit.STEPS else unit
    elif not samples:
        samples, unit = 1, Unit.STEPS
    used = {segment.optimizer for segment in pattern.segments} if pattern else set(range(len(optimizers.known)))
    workers = [loader.workers for loader in loaders]
    names = [optimizer.name for optimizer in optimizers.known]
    what = pattern.words(names) if pattern else "as marked in the script by `step_done()` or `with step():`"
    sizes = {loader.size for loader in loaders}
    size = sizes.pop() if len(sizes) == 1 and not limits.samples_per_step else None
    places = sorted({loader.where for loader in loaders})
    source = f"from {'DataLoaders' if len(places) > 1 else 'DataLoader'} at {' and '.join(places)}"
    is_counted = bool(places) and unit is not Unit.STEPS and not limits.samples_per_step
    return Step(
        pattern=pattern,
        unit=unit,
        samples=samples,
        batches=max(1, batches),
        batch_size=size or max(1, samples // max(1, batches)),
        what=what,
        data=_data_words(samples, unit, source if is_counted else ""),
        optimizers=tuple(names[number] for number in sorted(used)),
        parameters=optimizers.parameters(used),
        workers=max(workers) if workers else None,
        source=source if is_counted else "",
        is_given=limits.samples_per_step is not None,
    )


def _data_words(samples: int, unit: Unit, source: str) -> str:
    if unit is Unit.STEPS:
        return "no batch was found: throughput counts steps (--samples-per-step N)"
    return f"{counted(samples, unit.removesuffix('s'))} {source or '(--samples-per-step)'}"


# --- receivers of steps


class Marks(Protocol):
    """Records the parts of a step: `workload.measure.recorder.Recorder`, or a profiler."""

    def mark(self, part: StepPart | Aside, mark: Any = None) -> int: ...

    def relabel(self, parts: int, aside: Aside, *, but: StepPart | None = None) -> None: ...


class StepReceiver(Protocol):
    """Receives the steps after the counted ones: `workload.run.life.Region` times them, others profile them.

    `wants_more`: it needs more steps than were requested. `recorder`: of the parts of a step, while one `is_open`.
    `instant`: takes a mark of an event that is reported later; None if events must be reported as they happen.
    """

    phase: StepPhase
    is_open: bool

    @property
    def wants_more(self) -> bool: ...

    @property
    def recorder(self) -> Marks: ...

    @property
    def instant(self) -> Callable[[], Any] | None: ...

    def enter(self, phase: StepPhase) -> None: ...

    def begin(self, mark: Any = None) -> None: ...

    def end(self, images: int, *, is_step: bool) -> None: ...

    def leave(self) -> object: ...

    def close(self) -> None: ...
