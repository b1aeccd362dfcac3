"""Read a trace of torch.profiler, as written by `export_chrome_trace` and TensorBoard's handler. Standard library only.

Events are decoded one after the other, and only those that the analysis needs are kept: traces of hundreds of megabytes
are common, and many break off. Names of categories and fields are those of libkineto since 2020
(https://github.com/pytorch/kineto, libkineto/src/output_json.cpp).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from workload.contract.errors import UsageError

EVENTS = "traceEvents"
LOOKED_AT_CHARACTERS = 1 << 20
US_PER_S = 1e6
EXPORT_AGAIN = "export it again: profiler.export_chrome_trace('trace.json')"
RECORD_SHAPES = "torch.profiler.profile(record_shapes=True) records shapes, and with them FLOP and bytes are known"
_OPERATORS = frozenset({"cpu_op", "operator"})
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime", "xpu_runtime"})
# Categories of device activity, in lower case; the categories of 2020 began with a capital and had no prefix.
_ON_DEVICE = frozenset({"kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"})
# Other devices, whose activity has categories and fields of its own; NCCL communicates between GPUs alone.
_OTHER_DEVICE = re.compile(r"(mtia|hpu|glow|privateuse1)_")
_OF_NCCL = "nccl:"
_ANNOTATION = "user_annotation"
# Annotations of torch itself, which older versions recorded as operators.
_ANNOTATED = re.compile(r"ProfilerStep|Optimizer\.|enumerate\(DataLoader|DataParallel\.|DistributedDataParallel\.")
_STEP = re.compile(r"ProfilerStep#?(\d+)")
_DATA = "enumerate(DataLoader"
# Collectives of libraries for CPUs, from their beginning to their end.
_ON_HOST = re.compile(r"(gloo|mpi|ucc):")
# Bytes of an element, by torch's names in the fields of collectives.
_ELEMENT_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long"), 8),
}
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")
# Calls of the runtime that start a kernel, and operators that only a GPU has.
_LAUNCH = re.compile(r"LaunchKernel|GraphLaunch")
_OF_GPUS = re.compile(
    # Exclude a check that recurrent layers also make on a CPU: whether cuDNN accepts their inputs.
    r"aten::_?(cudnn(?!_is_acceptable)|miopen|mps|efficient_attention|flash_attention)_(?!for_cpu)|cudaLaunch"
)
_SPACE = re.compile(r"[\s,]*")

Thread = tuple[str, str]
# Sizes of one argument: of one tensor, or of each tensor in a list.
Dims = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Call:
    """An operator with its inputs; `dims`, `types` and `values` are empty if the trace did not record them."""

    name: str
    dims: tuple[Dims, ...] = ()
    strides: tuple[Dims, ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Operator:
    """A single execution of an operator on a host thread; times in microseconds of the trace's clock."""

    call: Call
    began: float
    ended: float
    id: int | str | None = None


@dataclass(slots=True, kw_only=True)
class OnDevice:
    """A kernel, copy or fill on a device, times in microseconds; `launch`: correlation number of the runtime call.

    `collective`: torch's name of a collective, empty if the trace does not name it; `message_bytes`: of the larger of
    its input and output, 0 if unknown.
    """

    name: str
    is_kernel: bool
    device: str
    began: float
    ended: float
    launch: int | str | None
    operator_id: int | str | None
    collective: str = ""
    message_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Window:
    """A step as marked by the profiler, or another span that it names, on the host's clock in microseconds."""

    name: str
    process: str
    began: float
    ended: float

    def holds(self, moment: float) -> bool:
        """Whether the moment lies in this span."""
        return self.began <= moment < self.ended


@dataclass(kw_only=True)
class Trace:
    """Contents of a trace file.

    `collectives`: of a CPU; those of a GPU are kernels. `data_waits`: waits for a DataLoader. `losses`: sentences on
    missing events. `other_device`: kind of a device whose kernels cannot be read.
    """

    operators: dict[Thread, list[Operator]] = field(default_factory=dict)
    device: list[OnDevice] = field(default_factory=list)
    # Thread and time (microseconds) of the runtime call, by correlation number.
    launches: dict[int | str, tuple[Thread, float]] = field(default_factory=dict)
    steps: list[Window] = field(default_factory=list)
    optimizer_steps: list[Window] = field(default_factory=list)
    collectives: list[Operator] = field(default_factory=list)
    data_waits: list[Window] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    is_cut: bool = False
    runs_on_gpu: bool = False
    other_device: str | None = None

    @property
    def has_shapes(self) -> bool:
        """Whether any operator has input sizes."""
        return any(any(operator.call.dims) for operators in self.operators.values() for operator in operators)

    @property
    def devices(self) -> Mapping[str, int]:
        """Number of kernels that each GPU ran."""
        return Counter(event.device for event in self.device if event.is_kernel)

    @property
    def processes(self) -> frozenset[str]:
        """Processes with operators or steps; data loader workers leave no events."""
        return frozenset([*(process for process, _ in self.operators), *(step.process for step in self.steps)])

    def device_properties(self, device: str) -> Mapping[str, Any]:
        """Name, memory and compute capability of a GPU, as reported by CUDA; empty if unknown.

        Kernels may have another number than the properties of their GPU: then GPUs of one name count as one.
        """
        listed = self.facts.get("deviceProperties")
        known = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        is_one_kind = len({str(one.get("name")) for one in known}) == 1
        return next((one for one in known if str(one.get("id")) == device), known[0] if is_one_kind else {})


def step_number(window: Window) -> int:
    """Number of a step that the profiler marked."""
    return int(_STEP.match(window.name)[1])  # type: ignore[index]  # all steps match


def rank_of(facts: Any) -> tuple[int, int] | None:
    """Rank and number of ranks from `distributedInfo`; None for a process that trains alone, or if unknown."""
    rank, ranks = (facts.get(name) for name in ("rank", "world_size")) if isinstance(facts, dict) else (None, None)
    return (rank, ranks) if isinstance(rank, int) and isinstance(ranks, int) and ranks > 1 else None


def rank_in(text: str) -> tuple[int, int] | None:
    """Result of `rank_of` for a trace with this beginning."""
    found = re.search(r'"distributedInfo"\s*:\s*', text)
    with suppress(ValueError):
        return rank_of(json.JSONDecoder().raw_decode(text, found.end())[0]) if found else None
    return None


def is_trace(text: str) -> bool:
    """Whether this is the beginning of a file in Chrome's trace format, written by any program."""
    start = text[:LOOKED_AT_CHARACTERS].lstrip()
    return start.startswith(("{", "[")) and (
        f'"{EVENTS}"' in start
        # Facts about the machine come first and may be long.
        or re.match(r"\{\s*\"schemaVersion\"", start) is not None
        or re.search(r'\A\[\s*\{[^{}]*"ph"\s*:', start) is not None
    )


def read(text: str, *, file: str) -> Trace:
    """Parse a trace; `UsageError` if the text is damaged, empty or written by another program."""
    builder = _Builder(trace=Trace())
    events = _Events(text=text, file=file)
    for event in events:
        builder.add(event)
    trace = builder.trace
    trace.facts = events.facts
    trace.is_cut = events.is_cut
    if events.is_cut:
        trace.losses.append(f"the trace ends too early, after {events.number} events: these were read")
    if builder.broken:
        trace.losses.append(f"{builder.broken} events without a usable name, time or duration were left out")
    if not trace.operators and not trace.device:
        kinds = ", ".join(sorted(map(str, builder.categories))[:5]) or "no category"
        raise UsageError(
            f"'{file}' is a trace without operators and kernels: its {events.number} events are of {kinds}",
            hint="import what torch.profiler.profile(record_shapes=True) exports",
        )
    for operators in trace.operators.values():
        # Outer operators first.
        operators.sort(key=lambda operator: (operator.began, -operator.ended))
    trace.device.sort(key=lambda event: event.began)
    for windows in (trace.steps, trace.optimizer_steps):
        windows.sort(key=lambda window: window.began)
    return trace


class _Events:
    """Iterates over the events of a text; `facts` collects the other entries of the file."""

    def __init__(self, *, text: str, file: str) -> None:
        self.facts: dict[str, Any] = {}
        self.is_cut = False
        self.number = 0
        self._text, self._file = text, file
        self._decoder = json.JSONDecoder(strict=False)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        text = self._text
        at = self._skip(0)
        try:
            if text[at : at + 1] == "[":
                yield from self._array(at + 1)
                return
            at = self._skip(at + 1)
            while at < len(text) and text[at] != "}":
                key, at = self._decoder.raw_decode(text, at)
                at = self._skip(text.index(":", at) + 1)
                if key == EVENTS and text[at : at + 1] == "[":
                    at = yield from self._array(at + 1)
                else:
                    self.facts[str(key)], at = self._decoder.raw_decode(text, at)
                at = self._skip(at)
            self.is_cut = at >= len(text)
        except (ValueError, RecursionError) as error:
            self._give_up(error)

    def _array(self, at: int) -> Generator[dict[str, Any], None, int]:
        """Yield the elements of an array from position `at`; returns the position after its end."""
        text, decode, skip = self._text, self._decoder.raw_decode, _SPACE.match
        while True:
            match = skip(text, at)
            at = match.end() if match else at
            if text[at : at + 1] == "]":
                return at + 1
            event, at = decode(text, at)
            self.number += 1
            if isinstance(event, dict):
                yield event

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at

    def _give_up(self, error: Exception) -> None:
        """Mark a file that ends too early as cut; `UsageError` for other errors, because no part can be trusted."""
        if not self._text.rstrip().endswith(("}", "]")) or self._is_at_end(error):
            self.is_cut = True
            return
        where = ""
        if isinstance(error, json.JSONDecodeError):
            where = f": line {error.lineno}, column {error.colno}: {error.msg}"
        raise UsageError(f"'{self._file}' is no JSON after {self.number} events{where}", hint=EXPORT_AGAIN) from error

    def _is_at_end(self, error: Exception) -> bool:
        return isinstance(error, json.JSONDecodeError) and error.pos >= len(self._text.rstrip())


class _Builder:
    """Converts events into operators, launches, kernels and steps."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.broken = 0
        self.categories: Counter[str | None] = Counter()
        self._calls: dict[Call, Call] = {}
        self._names: dict[str, str] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Add one event to the trace, or ignore it."""
        if event.get("ph") != "X":
            return
        label = event.get("cat")
        category = label.lower() if isinstance(label, str) else None
        self.categories[category] += 1
        if category and (other := _OTHER_DEVICE.match(category)):
            self.trace.other_device = other[1].upper()
        elif str(event.get("name")).startswith(_OF_NCCL):
            self.trace.other_device = "GPU"
        take: Callable[[str, float, float, Thread, Mapping[str, Any]], None]
        if category in _OPERATORS:
            take = self._operator
        elif category in _RUNTIME:
            take = self._runtime
        elif category in _ON_DEVICE:
            take = self._on_device
        elif category == _ANNOTATION:
            take = self._annotation
        else:
            return
        name, began, duration = event.get("name"), _number(event.get("ts")), _number(event.get("dur", 0))
        arguments = event.get("args")
        if not isinstance(name, str) or began is None or duration is None or duration < 0:
            self.broken += 1
            return
        if name not in self._names:
            # An unpaired surrogate cannot be encoded.
            self._names[name] = name.encode(errors="replace").decode()
        take(
            self._names[name],
            began,
            began + duration,
            (str(event.get("pid")), str(event.get("tid"))),
            arguments if isinstance(arguments, dict) else {},
        )

    def _operator(self, name: str, began: float, ended: float, thread: Thread, arguments: Mapping[str, Any]) -> None:
        if _ANNOTATED.match(name):
            self._annotation(name, began, ended, thread, arguments)
            return
        self.trace.runs_on_gpu = self.trace.runs_on_gpu or _OF_GPUS.match(name) is not None
        self.trace.operators.setdefault(thread, []).append(self._executed(name, began, ended, arguments))
        if _ON_HOST.match(name):
            self._annotation(name, began, ended, thread, arguments)

    def _executed(self, name: str, began: float, ended: float, arguments: Mapping[str, Any]) -> Operator:
        call = Call(
            name=name,
            dims=_shapes(arguments.get("Input Dims", arguments.get("Input dims"))),
            strides=_shapes(arguments.get("Input Strides")),
            types=_texts(arguments.get("Input type")),
            values=_texts(arguments.get("Concrete Inputs")),
        )
        return Operator(call=self._calls.setdefault(call, call), began=began, ended=ended, id=_id(arguments))

    def _runtime(self, name: str, began: float, _: float, thread: Thread, arguments: Mapping[str, Any]) -> None:
        self.trace.runs_on_gpu = self.trace.runs_on_gpu or _LAUNCH.search(name) is not None
        if (correlation := _key(arguments.get("correlation"))) is not None:
            self.trace.launches[correlation] = (thread, began)

    def _on_device(self, name: str, began: float, ended: float, thread: Thread, arguments: Mapping[str, Any]) -> None:
        self.trace.device.append(
            OnDevice(
                name=name,
                is_kernel=not name.startswith(("Memcpy", "Memset")),
                device=str(arguments.get("device", thread[0])),
                began=began,
                ended=ended,
                launch=_key(arguments.get("correlation")),
                operator_id=_id(arguments),
                collective=str(arguments.get("Collective name", "")),
                message_bytes=_message_bytes(arguments),
            )
        )

    def _annotation(self, name: str, began: float, ended: float, thread: Thread, arguments: Mapping[str, Any]) -> None:
        window = Window(name=name, process=thread[0], began=began, ended=ended)
        if _STEP.match(name):
            self.trace.steps.append(window)
        elif _OPTIMIZER_STEP.match(name):
            self.trace.optimizer_steps.append(window)
        elif _ON_HOST.match(name):
            self.trace.collectives.append(self._executed(name, began, ended, arguments))
        elif name.startswith(_DATA):
            self.trace.data_waits.append(window)


def _number(value: Any) -> float | None:
    """A time as a finite number, with or without quotation marks in the file; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if abs(number) < float("inf") else None


def _message_bytes(arguments: Mapping[str, Any]) -> float:
    sizes = [_number(arguments.get(f"{side} msg nelems", 0)) or 0.0 for side in ("In", "Out")]
    return max(sizes) * _ELEMENT_BYTES.get(str(arguments.get("dtype")), 0)


def _key(value: Any) -> int | str | None:
    """The number that connects events, as text if the file has it in quotation marks; None for anything else."""
    return value if isinstance(value, int | str) else None


def _id(arguments: Mapping[str, Any]) -> int | str | None:
    return _key(arguments.get("External id", arguments.get("external id")))


def _shapes(value: Any) -> tuple[Dims, ...]:
    """Sizes of each argument as tuples, so that equal calls compare equal; empty for arguments without sizes."""
    return tuple(_shape(argument) for argument in value) if isinstance(value, list) else ()


def _shape(argument: Any) -> Dims:
    if not isinstance(argument, list):
        return ()
    if _are_sizes(argument):
        return tuple(argument)
    is_list = all(isinstance(part, list) and _are_sizes(part) for part in argument)
    return tuple(map(tuple, argument)) if is_list else ()


def _are_sizes(values: Sequence[Any]) -> bool:
    return all(type(size) is int and size >= 0 for size in values)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
