"""Reads the collectives of a rank from a trace of torch.profiler: how long each ran, alone and beside computation.

On a GPU, communication is exposed while no other kernel runs, as in Holistic Trace Analysis
(https://github.com/facebookresearch/HolisticTraceAnalysis, `comm_comp_overlap`); copies are no computation. On a CPU
the host itself computes and waits: communication is exposed in a gap between two operators in which a collective ends.
Other gaps are the host's own work.
"""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from analysis.readers.kineto import US_PER_S, OnDevice, Trace, Window, step_number
from analysis.readers.operator_work import BITS
from workload.contract.ranks import Collective, KindStep, RankStep
from workload.contract.spans import Span, common, length, union

COMMUNICATION = re.compile(r"nccl|rccl|c10d::|gloo:|mpi:|^record_param_comms$|symm_mem::", re.IGNORECASE)
# Parts of the names of kernels and spans, without underscores; the first that is found counts.
_KINDS = {
    **{kind.replace("_", ""): kind for kind in sorted(Collective, key=len, reverse=True)},
    **dict.fromkeys(("send", "recv"), Collective.POINT_TO_POINT),
}
# The thread that records the end of a collective may be late, if it has to wait for a CPU: by at most this share of the
# host's wait, so that the end of another collective is rarely taken for it.
MOST_LATE = 0.5


class _Call(NamedTuple):
    """A part of a collective. `kind`: None if its name tells none; `moment`: when the host began it, in its step.

    `number`: 1 for the main part, and 0 for others. `span`: in microseconds of the trace's clock.
    """

    kind: Collective | None
    moment: float
    span: Span
    number: int
    bytes: float


def rank_steps(trace: Trace, windows: Sequence[Window], device: str | None, images: int) -> dict[int, RankStep]:
    """Times of a rank in the steps `windows`, as the profiler marked them, by their numbers.

    `device`: number of the GPU, None for a CPU; `images`: batch size of the rank.
    """
    if device is None:
        calls = list(_on_host(trace))
        idle, lasted = _waits(trace, calls), [(window.began, window.ended) for window in windows]
    else:
        kernels = [(event, moment) for event, moment in _launched(trace, device) if event.is_kernel]
        calls = [
            _Call(kind_of(event.collective or event.name), moment, (event.began, event.ended), 1, event.message_bytes)
            for event, moment in kernels
            if COMMUNICATION.search(event.name)
        ]
        idle = _gaps((event.began, event.ended) for event, _ in kernels if not COMMUNICATION.search(event.name))
        lasted = _on_device(windows, kernels)
    calls_of = defaultdict[int, list[_Call]](list)
    for call in calls:
        calls_of[_index(windows, call.moment)].append(call)
    found = {}
    for index, (window, (began, ended)) in enumerate(zip(windows, lasted, strict=True)):
        own_s, exposed_s = _times_s(calls_of[index], idle)
        of_kind = defaultdict[Collective, list[_Call]](list)
        for call in calls_of[index]:
            if call.kind is not None:
                of_kind[call.kind].append(call)
        found[step_number(window)] = RankStep(
            own_s=max(0.0, (ended - began) / US_PER_S - exposed_s),
            data_s=sum(data.ended - data.began for data in trace.data_waits if window.holds(data.began)) / US_PER_S,
            hidden_s=own_s - exposed_s,
            exposed_s=exposed_s,
            images=images,
            kinds={kind: _of_kind(alike, idle) for kind, alike in of_kind.items()},
        )
    return found


def _of_kind(calls: Sequence[_Call], idle: Sequence[Span]) -> KindStep:
    own_s, exposed_s = _times_s(calls, idle)
    number, size = sum(call.number for call in calls), sum(call.bytes for call in calls)
    return KindStep(number=number, bytes=size, own_s=own_s, exposed_s=exposed_s)


def kind_of(name: str) -> Collective | None:
    """Kind of collective that the name of a kernel or of a span tells; None if it tells none.

    NCCL's kernels for sends and receives also do all-to-all, which only the field `Collective name` of a trace tells.
    """
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _KINDS.items() if part in plain), None)


def _index(windows: Sequence[Window], moment: float) -> int:
    """Index of the step in which a moment lies; -1 if it lies in none."""
    index = bisect_right(windows, moment, key=lambda window: window.began) - 1
    return index if index >= 0 and windows[index].holds(moment) else -1


def _launched(trace: Trace, device: str) -> Iterator[tuple[OnDevice, float]]:
    """Activity of a GPU, with the time of its launch, or of its beginning if the launch was not recorded.

    Activity that was launched before the trace began is left out.
    """
    first = min((number for number in trace.launches if isinstance(number, int)), default=-math.inf)
    for event in trace.device:
        launch = None if event.launch is None else trace.launches.get(event.launch)
        if event.device == device and (launch or not isinstance(event.launch, int) or event.launch > first):
            yield event, launch[1] if launch else event.began


def _on_device(windows: Sequence[Window], kernels: Sequence[tuple[OnDevice, float]]) -> list[Span]:
    """Each step on the device: from its first kernel to that of the next step, or to its own last one before a gap."""
    spans: list[Span | None] = [None] * len(windows)
    for event, moment in kernels:
        if (index := _index(windows, moment)) >= 0:
            began, ended = spans[index] or (event.began, event.ended)
            spans[index] = min(began, event.began), max(ended, event.ended)
    known = [span or (window.began, window.ended) for span, window in zip(spans, windows, strict=True)]
    for index, (window, following) in enumerate(pairwise(windows)):
        if step_number(following) == step_number(window) + 1:
            known[index] = known[index][0], known[index + 1][0]
    return known


def _on_host(trace: Trace) -> Iterator[_Call]:
    """Collectives of libraries for CPUs, each with the operator that began it."""
    for begun in trace.collectives:
        kind, call = kind_of(begun.call.name), begun.call
        # Of other kinds the output may be larger, and its shape is unknown.
        is_known = kind in {Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE}
        tensors = zip(call.dims, call.types, strict=False)
        sizes = (math.prod(dims) * BITS[name] / 8 for dims, name in tensors if name in BITS)
        yield _Call(kind, begun.began, (begun.began, begun.ended), 1, sum(sizes) if is_known else 0.0)
    for operators in trace.operators.values():
        for operator in operators:
            if operator.call.name.startswith("c10d::"):
                span = operator.began, operator.ended
                yield _Call(kind_of(operator.call.name), operator.began, span, 0, 0.0)


def _waits(trace: Trace, calls: Sequence[_Call]) -> list[Span]:
    """Times at which the host waited for collectives: gaps between operators in which a collective ended.

    Only operators that call no other one count, because an operator may wait inside.
    """
    computed = []
    for operators in trace.operators.values():
        starts = [*(operator.began for operator in operators[1:]), math.inf]
        computed += [
            (operator.began, operator.ended)
            for operator, following in zip(operators, starts, strict=True)
            if following >= operator.ended and not COMMUNICATION.search(operator.call.name)
        ]
    ends, waits = sorted(call.span[1] for call in calls if call.number), []
    for began, ended in _gaps(computed):
        index = bisect_right(ends, ended + MOST_LATE * (ended - began)) - 1
        if index >= 0 and ends[index] > began:
            waits.append((began, ended))
    return waits


def _times_s(calls: Sequence[_Call], idle: Sequence[Span]) -> tuple[float, float]:
    """Seconds in which a collective was under way, and the part of them in the times `idle`, which are disjoint."""
    spans = [call.span for call in calls]
    return length(spans) / US_PER_S, common(spans, idle) / US_PER_S


def _gaps(spans: Iterable[Span]) -> list[Span]:
    """Times that none of these spans covers, in order."""
    merged = union(spans)
    ends = zip([-math.inf, *(ended for _, ended in merged)], [*(began for began, _ in merged), math.inf], strict=True)
    return list(ends)
