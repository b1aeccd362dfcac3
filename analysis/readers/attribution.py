"""Time, FLOP and bytes per operator from a trace of torch.profiler, and the unattributed time. Pure.

On a CPU, the time of an operator excludes the operators that it calls. On a GPU, the time of an operator is the time of
the kernels that the operator launched. An operation is, as in `workload.model.flop`, the outermost of several nested
operators that has a formula or moves bytes.
"""

import bisect
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from analysis.readers.communication import COMMUNICATION
from analysis.readers.kineto import US_PER_S, OnDevice, Operator, Thread, Trace, Window
from analysis.readers.ncu.metrics import Family, is_backward
from analysis.readers.operator_work import (
    ASSUMED,
    OF_MANY,
    CallWork,
    Context,
    Kind,
    Lack,
    Tensors,
    kind_of,
    work_of,
)
from analysis.readers.trace_model import CallTree, TracedModel, recognized_model
from workload.contract.spans import length
from workload.contract.spec import TF32_CAPABILITY
from workload.contract.text import counted, percent
from workload.contract.text import seconds as duration
from workload.contract.utilization import repetition
from workload.contract.vocabulary import names_tensor_cores

# A first or last step was recorded incompletely if it has fewer operators than this share of the other steps' median;
# in a trace that breaks off, any step with fewer operators or kernels than this share of the most complete step.
WHOLE_STEP = 0.9
_OF_AUTOGRAD = re.compile(
    r"autograd::|torch::autograd|.*Backward\d*$|CheckpointFunction|AccumulateGrad|Optimizer\.|DataLoader"
)
_NOT_LAUNCHED = "launched by no operator"
_TF32 = re.compile(r"tf32|s1688|tensorop_s\d+gemm|16816.*tf32", re.IGNORECASE)


class OperatorFamily(StrEnum):
    """Operator families that have no kernel family of the same name."""

    EMBEDDING = "embedding"
    COMMUNICATION = "communication"
    RECURRENT = "recurrent"
    DISPATCH = "dispatch"
    UNATTRIBUTED = "unattributed"


# Families of operators that move bytes, by the beginning of the name; the first match wins.
_FAMILIES: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (r"_foreach_|_fused_(adam|sgd|adagrad)|_amp_", Family.OPTIMIZER),
        (r"(native_|_?cudnn_|miopen_|_)?batch_norm", Family.BATCH_NORM),
        (r"(_fused_|native_)?(layer|group|rms|instance)_norm", Family.LAYER_NORM),
        (r"_?(log_|safe_)?softmax|.*dropout", Family.ATTENTION),
        (r"(mkldnn_)?(_?adaptive_)?(avg|max)_pool|_?upsample", Family.POOLING),
        (r"_?embedding|index|gather|scatter|take|_unsafe_index|_index_put|masked_|one_hot", OperatorFamily.EMBEDDING),
        (r"copy_|clone|_to_copy|cat|stack|fill_|zero_|zeros|ones|full|new_|_pin|pin_|repeat|constant_pad", Family.COPY),
        (r"sum|mean|var|std|amax|amin|max$|min$|arg|nll_|.*_loss|norm|linalg_vector_norm|cum", Family.REDUCTION),
    )
)
_OF_PRODUCTS: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (r"conv", Family.CONVOLUTION),
        (r"attention", Family.ATTENTION),
        (r"lstm|gru|rnn", OperatorFamily.RECURRENT),
        (r"", Family.GEMM),
    )
)


@dataclass(kw_only=True)
class OperatorRow:
    """Totals of an operator over all steps; FLOP and bytes are None if its work is unknown.

    `name` is `operator`, with `lack` added if other calls of the same operator lack nothing.
    """

    operator: str
    name: str
    family: str
    calls: int = 0
    seconds: float = 0.0
    flop: int | None = None
    bytes_low: int | None = None
    bytes_high: int | None = None
    lack: str | None = None


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Number of steps in a trace and their time windows; `windows` is None if the whole trace belongs to the steps.

    `remarks` explain how the steps were found. `contradiction`: a sentence if the number
    differs from the number given to the import.
    """

    number: int
    windows: Sequence[Window] | None
    remarks: tuple[str, ...] = ()
    contradiction: str | None = None

    def at(self, moment: float) -> int | None:
        """Index of the step in which a moment on the host's clock lies; None if it lies in no step."""
        if self.windows is None:
            return 0
        index = bisect.bisect_right(self.windows, moment, key=lambda one: one.began) - 1
        return index if index >= 0 and moment < self.windows[index].ended else None


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Totals over all `steps`.

    `listed`: calls and seconds by kernel name (on a CPU by operator name), as torch lists them.
    `recomputed_flop`: the part of the FLOP that gradient checkpointing adds in the backward pass. `has_backward`:
    whether any operator or kernel occurs only in a backward pass.
    """

    steps: Steps
    is_on_gpu: bool
    rows: Sequence[OperatorRow]
    listed: Mapping[str, tuple[int, float]]
    step_s: Sequence[float]
    busy_s: float
    flop_by_op: Mapping[str, int]
    flop_by_precision: Mapping[str, int]
    bytes_low: int
    bytes_high: int
    has_work: bool
    model: TracedModel
    recomputed_flop: int
    has_backward: bool
    remarks: tuple[str, ...] = ()

    @property
    def total_s(self) -> float:
        """Seconds summed over all operators or kernels; time that overlaps counts more than once."""
        return sum(row.seconds for row in self.rows)

    @property
    def uncounted_share(self) -> float:
        """Share of the time spent in operators that may compute, but whose FLOP are unknown.

        Operators without shapes that only move bytes are excluded.
        """
        rows = [row for row in self.rows if row.lack]
        uncounted = [row for row in rows if row.lack != Lack.NO_SHAPES or kind_of(row.operator) is Kind.PRODUCT]
        return sum(row.seconds for row in uncounted) / (self.total_s or 1.0)

    @property
    def unattributed(self) -> dict[str, float]:
        """Operators of unknown work with their share of the time, longest first."""
        total_s = self.total_s or 1.0
        rows = [row for row in self.rows if row.lack and row.seconds]
        return {row.name: row.seconds / total_s for row in sorted(rows, key=lambda row: -row.seconds)}


def steps_of(trace: Trace, given: int | None) -> Steps | None:
    """The steps that the profiler marked, else the `given` number, else one step per call of the only optimizer.

    None if the number of steps is unknown.
    """
    if trace.steps:
        return _marked(trace, given)
    names = Counter(window.name for window in trace.optimizer_steps)
    name, number = next(iter(names.items())) if len(names) == 1 else ("", 0)
    # Two optimizers of one class, as in a GAN, step a multiple of the given number of times.
    if given and (not number or number % given == 0):
        return Steps(number=given, windows=None, remarks=(f"no step is marked: {given} as --profile-steps says",))
    if not number:
        return None
    remark = f"no step is marked: {counted(number, 'step')} by {name}, and the whole trace belongs to them"
    contradiction = (
        f"the trace has {counted(number, 'step')} by {name}, but the import was given {given}" if given else None
    )
    return Steps(number=number, windows=None, remarks=(remark,), contradiction=contradiction)


def _marked(trace: Trace, given: int | None) -> Steps:
    windows = trace.steps
    begun = sorted(one.began for operators in trace.operators.values() for one in operators)
    sizes = [bisect.bisect_left(begun, one.ended) - bisect.bisect_left(begun, one.began) for one in windows]
    whole = list(range(len(windows)))
    remarks = []
    for edge in (-1, 0):
        others = [sizes[number] for number in whole if number != whole[edge]]
        size = sizes[whole[edge]]
        is_last_of_cut = edge == -1 and trace.is_cut
        if others and (is_last_of_cut or size < WHOLE_STEP * median(others)):
            number = whole.pop(edge)
            why = f"{size} operators, the others have {median(others):g}"
            why = "the trace breaks off in it" if is_last_of_cut else why
            remarks.append(f"{windows[number].name} is incomplete and left out: {why}")
    if trace.is_cut:
        # Kernels follow the operators in the file, and threads each other: any step may lack a part of them.
        step_at, by_launch = Steps(number=len(windows), windows=windows).at, trace.launches
        launched = [by_launch[one.launch][1] if one.launch in by_launch else one.began for one in trace.device]
        counts = (dict(enumerate(sizes)), Counter(map(step_at, launched)))
        complete = [
            number
            for number in whole
            if windows[number].ended <= max(launched, default=math.inf)
            and all(have[number] >= WHOLE_STEP * max(have[other] for other in whole) for have in counts)
        ]
        cut = [windows[number].name for number in whole if number not in complete]
        remarks += [f"{name} is incomplete and left out: the trace breaks off before its end" for name in cut]
        whole = complete
    contradiction = f"the trace marks {counted(len(whole), 'whole step')}, but the import was given {given}"
    kept = [windows[number] for number in whole]
    return Steps(
        number=len(kept),
        windows=kept,
        remarks=tuple(remarks),
        contradiction=contradiction if given and given != len(whole) else None,
    )


def attribute(trace: Trace, steps: Steps, *, device: str | None) -> Attribution:
    """Attribute time, FLOP and bytes of these steps; `device` is the number of the GPU, None for the CPU."""
    works = _Works(trace, steps)
    threads = {thread: CallTree.build(operators, works.is_known) for thread, operators in trace.operators.items()}
    major = trace.device_properties(device).get("computeMajor") if device else None
    totals = _Totals(works=works, has_tf32=not isinstance(major, int) or major >= TF32_CAPABILITY[0])
    if device is None:
        busy_s = _by_own_time(threads, steps, totals)
    else:
        busy_s = _by_kernels(trace, threads, steps, device, totals)
    rows = totals.ordered()
    remarks = [*steps.remarks, *totals.remarks(is_on_gpu=device is not None)]
    return Attribution(
        steps=steps,
        is_on_gpu=device is not None,
        rows=rows,
        listed=dict(sorted(totals.listed.items(), key=lambda item: -item[1][1])),
        step_s=_durations(trace, steps),
        busy_s=busy_s,
        flop_by_op=dict(sorted(totals.flop_by_op.items())),
        flop_by_precision=totals.by_precision(),
        bytes_low=totals.sizes.bytes_low,
        bytes_high=sum(row.bytes_high or 0 for row in rows),
        has_work=trace.has_shapes,
        model=recognized_model(threads.values(), lambda moment: steps.at(moment) is not None, steps.number),
        recomputed_flop=totals.recomputed_flop,
        has_backward=any(map(is_backward, totals.listed))
        or any(
            (thread.is_backward[index] or "ackward" in operator.call.name) and steps.at(operator.began) is not None
            for thread in threads.values()
            for index, operator in enumerate(thread.operators)
        ),
        remarks=tuple(remarks),
    )


def _durations(trace: Trace, steps: Steps) -> list[float]:
    """Seconds of each step on the host's clock, under the profiler; the mean for each if no step is marked."""
    if steps.windows is not None:
        return [(one.ended - one.began) / US_PER_S for one in steps.windows]
    spans = [(one.began, one.ended) for operators in trace.operators.values() for one in operators]
    spans += [(one.began, one.ended) for one in trace.device]
    whole_s = (max(ended for _, ended in spans) - min(began for began, _ in spans)) / US_PER_S
    return [whole_s / steps.number] * steps.number


class _Works:
    """The work of calls, computed once for each distinct call."""

    def __init__(self, trace: Trace, steps: Steps) -> None:
        self._has_shapes = trace.has_shapes
        calls = (
            one.call for operators in trace.operators.values() for one in operators if steps.at(one.began) is not None
        )
        self._context = Context.collect(calls, steps.number)
        # Keyed by `id()`: the reader turns equal calls into one object.
        self._known: dict[int, CallWork | Lack] = {}

    def work_of(self, operator: Operator) -> CallWork | Lack:
        call = operator.call
        if id(call) not in self._known:
            self._known[id(call)] = work_of(call, self._context) if self._has_shapes else Lack.NO_SHAPES
        return self._known[id(call)]

    def is_known(self, operator: Operator) -> bool:
        return isinstance(self.work_of(operator), CallWork)


@dataclass(kw_only=True)
class _Sizes:
    """Sizes of the tensors that calls move, for a lower bound of the bytes: each tensor counts once per step.

    A trace does not identify tensors, so inputs of two calls may be the same tensors. `at_once`: most bits of inputs in
    a single call. `new`: bits of all outputs, which are always new tensors. Keys of both: step, number of elements, and
    bits of an element.
    """

    new: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    at_once: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def add(self, step: int, tensors: Sequence[Tensors]) -> None:
        for tensor in tensors:
            key, bits = (step, tensor.elements, tensor.bits_low), tensor.elements * tensor.bits_low * tensor.count
            if tensor.is_new:
                self.new[key] += bits
            else:
                self.at_once[key] = max(bits, self.at_once.get(key, 0))

    @property
    def bytes_low(self) -> int:
        """Lower bound of the bytes moved over all steps."""
        return sum(max(self.new[key], self.at_once.get(key, 0)) for key in self.new.keys() | self.at_once.keys()) // 8


@dataclass(kw_only=True)
class _Totals:
    """Sums over the operator calls of a trace, filled call by call: rows per operator, FLOP, and seconds.

    `listed`: calls and seconds by name. `sizes`: tensor sizes of the calls. `is_assumed`, `is_of_many`: some work
    rests on the assumption in the text `ASSUMED` or `OF_MANY`.
    """

    works: _Works
    has_tf32: bool
    rows: dict[tuple[str, str | None], OperatorRow] = field(default_factory=dict)
    listed: dict[str, tuple[int, float]] = field(default_factory=dict)
    flop_by_op: Counter[str] = field(default_factory=Counter)
    flop_by_precision: Counter[str] = field(default_factory=Counter)
    sizes: _Sizes = field(default_factory=_Sizes)
    # FLOP of each call in fp32 with a kernel for tensor cores, which compute such a call in TF32.
    tf32_flop: dict[tuple[int, int], int] = field(default_factory=dict)
    recomputed_flop: int = 0
    # Seconds of each kernel that was launched before the trace began: its launch number is below all recorded numbers.
    earlier: list[float] = field(default_factory=list)
    is_assumed: bool = False
    is_of_many: bool = False
    sizes_of_rows: dict[int, _Sizes] = field(default_factory=dict)

    def list_by_name(self, name: str, seconds: float, *, calls: int = 1) -> None:
        """Add calls and seconds to the totals of a kernel or operator name."""
        calls_before, seconds_before = self.listed.get(name, (0, 0.0))
        self.listed[name] = (calls_before + calls, seconds_before + seconds)

    def row(self, name: str, family: str, lack: str | None = None) -> OperatorRow:
        """The row with this name and `lack`, created if absent."""
        return self.rows.setdefault((name, lack), OperatorRow(operator=name, name=name, family=family, lack=lack))

    def call(self, operator: Operator, step: int, *, is_recomputed: bool) -> OperatorRow:
        """Count a call with its work and return its row; `is_recomputed`: gradient checkpointing repeats the call."""
        row, work = self.row_of(operator), self.works.work_of(operator)
        row.calls += 1
        if isinstance(work, Lack):
            return row
        row.flop = (row.flop or 0) + work.flop
        self.recomputed_flop += work.flop if is_recomputed else 0
        row.bytes_high = (row.bytes_high or 0) + work.bytes_high
        for sizes in (self.sizes, self.sizes_of_rows.setdefault(id(row), _Sizes())):
            sizes.add(step, work.tensors)
        self.is_assumed = self.is_assumed or work.is_assumed
        self.is_of_many = self.is_of_many or work.is_of_many
        if work.kind:
            self.flop_by_op[work.kind] += work.flop
            self.flop_by_precision[work.precision or "unknown"] += work.flop
        return row

    def row_of(self, operator: Operator) -> OperatorRow:
        """The row in which a call of this operator is counted."""
        name, work = operator.call.name, self.works.work_of(operator)
        return self.row(name, family_of(name), str(work) if isinstance(work, Lack) else None)

    def ordered(self) -> list[OperatorRow]:
        """The rows, longest first; `lack` is appended to names that occur more than once."""
        times = Counter(name for name, _ in self.rows)
        for (name, lack), row in self.rows.items():
            sizes = self.sizes_of_rows.get(id(row))
            row.bytes_low = sizes.bytes_low if sizes else None
            row.name = f"{name} ({lack})" if lack and times[name] > 1 else name
        return sorted(self.rows.values(), key=lambda row: (-row.seconds, row.name))

    def by_precision(self) -> dict[str, int]:
        """FLOP by precision."""
        tf32 = sum(self.tf32_flop.values())
        found = self.flop_by_precision + Counter(tf32=tf32) - Counter(fp32=tf32)
        return dict(sorted(found.items()))

    def remarks(self, *, is_on_gpu: bool) -> Iterator[str]:
        if self.earlier:
            kernels, busy = counted(len(self.earlier), "kernel"), duration(sum(self.earlier), 3)
            yield f"{kernels} of the step before, {busy}, are left out: the trace begins after they were launched"
        if self.recomputed_flop:
            yield repetition(self.recomputed_flop / sum(self.flop_by_op.values()))
        if self.is_assumed:
            yield ASSUMED
        if self.is_of_many:
            yield OF_MANY
        communication_s = sum(row.seconds for row in self.rows.values() if row.family == OperatorFamily.COMMUNICATION)
        total_s = sum(row.seconds for row in self.rows.values())
        if is_on_gpu and communication_s and total_s:
            share = percent(communication_s / total_s)
            yield f"communication with other GPUs is {share} of the kernels' time, and has no FLOP"


def family_of(name: str) -> str:
    """The family of an operator, from its name; its kernels may belong to other families."""
    plain = name.removeprefix("aten::")
    if kind_of(name) is Kind.PRODUCT:
        return str(next(family for pattern, family in _OF_PRODUCTS if pattern.search(plain)))
    return str(next((family for pattern, family in _FAMILIES if pattern.match(plain)), Family.ELEMENTWISE))


def _by_own_time(threads: Mapping[Thread, CallTree], steps: Steps, totals: _Totals) -> float:
    """Fill `totals` with the operators of a CPU. Returns the seconds in which any operator ran."""
    spans = []
    for thread in threads.values():
        counted_calls: set[int] = set()
        for index, operator in enumerate(thread.operators):
            step = steps.at(operator.began)
            if step is None:
                continue
            seconds = thread.own[index] / US_PER_S
            parent = thread.parents[index]
            # Like torch's own table: an operator that calls another overload of itself counts as one call.
            is_overload = parent >= 0 and thread.operators[parent].call.name == operator.call.name
            totals.list_by_name(operator.call.name, seconds, calls=0 if is_overload else 1)
            if parent < 0:
                spans.append((operator.began, operator.ended))
            owner = thread.owners[index]
            if owner == index:
                row = totals.call(operator, step, is_recomputed=thread.is_recomputed[index])
                counted_calls.add(index)
            elif owner in counted_calls:
                row = totals.row_of(thread.operators[owner])
            else:
                row = _without_owner(totals, operator.call.name)
                row.calls += 1
            row.seconds += seconds
    return length(spans) / US_PER_S


def _without_owner(totals: _Totals, name: str) -> OperatorRow:
    """The row of an operator that belongs to no operation: its work is unknown if the operator is unknown, else 0."""
    if COMMUNICATION.search(name):
        return totals.row(name, OperatorFamily.COMMUNICATION)
    if kind_of(name) is not None or _OF_AUTOGRAD.match(name):
        return totals.row(name, OperatorFamily.DISPATCH)
    return totals.row(name, OperatorFamily.UNATTRIBUTED, Lack.NO_FORMULA)


def _by_kernels(trace: Trace, threads: Mapping[Thread, CallTree], steps: Steps, device: str, totals: _Totals) -> float:
    """Fill `totals` with a GPU's kernels. Returns the seconds in which any device activity ran; streams overlap."""
    by_id = {
        operator.id: (thread, index)
        for thread in threads.values()
        for index, operator in enumerate(thread.operators)
        if operator.id is not None
    }
    spans, calls = [], dict[tuple[int, int], OperatorRow]()
    first_launch = min((number for number in trace.launches if isinstance(number, int)), default=None)
    for event in trace.device:
        if event.device != device:
            continue
        where, moment = _launch(event, trace, threads, by_id)
        step = steps.at(moment)
        if step is None:
            continue
        seconds = (event.ended - event.began) / US_PER_S
        if where is None and first_launch is not None and isinstance(event.launch, int) and event.launch < first_launch:
            totals.earlier.append(seconds)
            continue
        spans.append((event.began, event.ended))
        totals.list_by_name(event.name, seconds)
        row = _row_of_kernel(event, where, calls, totals, step)
        row.seconds += seconds
    return length(spans) / US_PER_S


def _launch(
    event: OnDevice, trace: Trace, threads: Mapping[Thread, CallTree], by_id: Mapping[int | str, tuple[CallTree, int]]
) -> tuple[tuple[CallTree, int] | None, float]:
    """The innermost operator that launched a kernel, and the time of the launch in microseconds.

    The operator is None if unknown. If the launch was not recorded, the time is the beginning of the operator, or of
    the kernel if the operator is unknown too.
    """
    launch = None if event.launch is None else trace.launches.get(event.launch)
    # Until 2023 a kernel's External id was the number of its launch, not that of an operator.
    number = event.operator_id if event.operator_id != event.launch else None
    where = None if number is None else by_id.get(number)
    if launch is None:
        return where, where[0].operators[where[1]].began if where else event.began
    name, moment = launch
    thread = threads.get(name)
    index = thread.running(moment) if thread else -1
    return (thread, index) if thread and index >= 0 else where, moment


def _row_of_kernel(
    event: OnDevice,
    where: tuple[CallTree, int] | None,
    calls: dict[tuple[int, int], OperatorRow],
    totals: _Totals,
    step: int,
) -> OperatorRow:
    if COMMUNICATION.search(event.name):
        row = totals.row(event.name, OperatorFamily.COMMUNICATION)
        row.calls += 1
        return row
    if where is None:
        if event.is_kernel:
            row = totals.row(event.name, OperatorFamily.UNATTRIBUTED, _NOT_LAUNCHED)
        else:
            row = totals.row(event.name, Family.COPY)
        row.calls += 1
        return row
    thread, index = where
    owner = thread.owners[index]
    if owner < 0:
        name = thread.operators[index].call.name
        # The name of a Triton kernel is more specific than that of the compiled region around it.
        name = event.name if event.name.startswith("triton") else name
        kind = (OperatorFamily.UNATTRIBUTED, Lack.NO_FORMULA) if event.is_kernel else (Family.COPY, None)
        row = totals.row(name, *kind)
        row.calls += 1
        return row
    operator, key = thread.operators[owner], (id(thread), owner)
    if key not in calls:
        calls[key] = totals.call(operator, step, is_recomputed=thread.is_recomputed[owner])
    work = totals.works.work_of(operator)
    is_tf32 = totals.has_tf32 and (_TF32.search(event.name) is not None or names_tensor_cores(event.name))
    if is_tf32 and isinstance(work, CallWork) and work.precision == "fp32":
        totals.tf32_flop[key] = work.flop
    return calls[key]
