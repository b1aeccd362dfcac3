"""Time marks on the device's own timeline; on CUDA they need no synchronisation.

A CPU computes synchronously, so a mark is the host's clock. A CUDA GPU computes later: there a mark is an event in the
stream, whose time is known once the device has passed it. On MPS a mark waits for the device.
"""

import csv
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from workload.contract.ranks import ALL_KINDS, COLLECTIVE_COLUMNS, COLLECTIVES_FILE, Collective
from workload.contract.spans import common, union
from workload.contract.spec import Device

MS_PER_S = 1000
# The functions that measure, by their names in a script, as they were before the script ran: a script that replaces one
# of them would otherwise measure itself.
host_s = time.perf_counter
MEASURING: Mapping[str, Any] = {
    "time.perf_counter": time.perf_counter,
    "time.perf_counter_ns": time.perf_counter_ns,
    "time.monotonic": time.monotonic,
    "time.time": time.time,
    "torch.cuda.Event": torch.cuda.Event,
    "torch.cuda.synchronize": torch.cuda.synchronize,
}


def replaced() -> tuple[str, ...]:
    """Names of functions that measure and that the script has replaced by its own."""
    modules = {"time": time, "torch.cuda": torch.cuda}
    parts = ((name, *name.rpartition(".")[::2]) for name in MEASURING)
    return tuple(full for full, module, name in parts if getattr(modules[module], name) is not MEASURING[full])


class HostClock:
    """Clock of a device that computes synchronously with the host."""

    # Reads the monotonic clock, in seconds. Called within steps: as a static method it adds no Python frame.
    mark: Callable[[], float] = staticmethod(host_s)

    def passed(self, mark: float) -> bool:
        """Whether the host's clock has reached `mark`; always True for a mark in the past, as `mark()` returns it."""
        return mark <= host_s()

    def seconds_between(self, earlier: float, later: float) -> float:
        """Seconds from `earlier` to `later`."""
        return later - earlier

    def stream(self) -> Any:
        """Queue of the device for which `mark` marks the time: a host has only one."""
        return None

    def synchronize(self) -> None:
        """Do nothing: no work is ever outstanding."""


class WaitingClock(HostClock):
    """Clock of a GPU whose events are unreliable: the host's clock, read after the device has finished its queue.

    On MPS, an event that ends two intervals waits for ever, and an empty interval raises an error: see issue 162872 of
    pytorch/pytorch.
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize

    def mark(self) -> float:
        """Wait for the device and read the monotonic clock, in seconds."""
        self._synchronize()
        return host_s()

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._synchronize()


class EventClock:
    """Clock of a CUDA GPU: an event per mark, in the calling thread's stream, without synchronisation until the end."""

    def __init__(
        self, new_event: Callable[[], Any], stream: Callable[[], Any], synchronize: Callable[[], None]
    ) -> None:
        self._new_event = new_event
        self._stream = stream
        self._synchronize = synchronize

    def mark(self) -> Any:
        """Record an event after all work queued so far."""
        event = self._new_event()
        event.record(self._stream())
        return event

    def stream(self) -> Any:
        """Stream for which `mark` marks the time: the current one of the calling thread."""
        return self._stream()

    def passed(self, mark: Any) -> bool:
        """Whether the device has reached `mark`; does not wait."""
        return bool(mark.query())

    def seconds_between(self, earlier: Any, later: Any) -> float:
        """Seconds of device time from `earlier` to `later`."""
        return float(earlier.elapsed_time(later)) / MS_PER_S

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._synchronize()


# Clock that marks points of a device's timeline. A mark may be used only with the clock that made it.
Clock = HostClock | EventClock


def clock_for(device: Device) -> Clock:
    """Clock that measures this device's time. Raises `ValueError` for `auto`.

    On CUDA the clock keeps to the GPU that is current now. Later, and in other threads, another one may be current.
    """
    match device:
        case Device.CUDA:
            gpu = torch.cuda.current_device()
            return EventClock(
                partial(torch.cuda.Event, enable_timing=True),
                partial(torch.cuda.current_stream, gpu),
                partial(torch.cuda.synchronize, gpu),
            )
        case Device.MPS:
            return WaitingClock(torch.mps.synchronize)
        case Device.CPU:
            return HostClock()
        case Device.AUTO:
            raise ValueError("the device is not chosen yet")


# --- collectives

Span = tuple[Any, Any]
KindSpan = tuple[Collective, Any, Any]


class StepMarks(NamedTuple):
    """Pairs of marks. `averages`: gradients of a bucket of DistributedDataParallel ready, and averaged.

    `under_way`: beginning and end of other collectives; `waits`: beginning and end of waits for them. `counts`: number
    and bytes of all collectives.
    """

    averages: Sequence[Span] = ()
    under_way: Sequence[KindSpan] = ()
    waits: Sequence[KindSpan] = ()
    counts: Mapping[Collective, Sequence[int]] = {}


NO_MARKS = StepMarks()


class Begun:
    """A collective that was begun at `mark`. `is_over`: its end is known; `tells`: whether it reports its end."""

    __slots__ = ("is_over", "kind", "mark", "tells")

    def __init__(self, kind: Collective, mark: Any) -> None:
        self.kind, self.mark, self.is_over, self.tells = kind, mark, False, False


class Collectives:
    """Takes marks of the open step's collectives, and writes the times of earlier steps to a file in `folder`.

    `home`: stream of the training's own work; None on a CPU. `beside`: other streams with their last collective.
    Training waits for such a collective only once `home` waits for the stream.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._clock = clock
        self.mark, self.home = clock.mark, clock.stream()
        self.beside: dict[Any, Begun] = {}
        self._averages: list[Span] = []
        self._under_way: list[KindSpan] = []
        self._waits: list[KindSpan] = []
        self._counts: dict[Collective, list[int]] = {}
        self._file = (folder / COLLECTIVES_FILE).open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLLECTIVE_COLUMNS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The write that failed has reported a full disk.
        with suppress(OSError):
            self._file.close()

    def parallel(self, model: nn.Module) -> DistributedDataParallel:
        """`model` with gradients averaged over all ranks.

        Each rank keeps its own statistics of batch normalization: their broadcast would be a second wait, at the
        beginning of the forward pass.
        """
        with warnings.catch_warnings():
            # torch 2.15 renames the argument; torch 2.9 does not know the new name.
            warnings.filterwarnings("ignore", message="`broadcast_buffers`", category=FutureWarning)
            wrapped = DistributedDataParallel(model, broadcast_buffers=False)
        wrapped.register_comm_hook(None, self._average)
        return wrapped

    def _average(  # the annotation is checked by torch
        self,
        _: object,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook: average one bucket of gradients, and mark its beginning and end."""
        done = self.ready(bucket.buffer().nbytes)
        shared = bucket.buffer().div_(distributed.get_world_size())
        work = distributed.all_reduce(shared, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: done(future)[0])

    def ready(self, size: int) -> Callable[[torch.futures.Future[Any]], Any]:
        """Mark that the gradients of a bucket are ready; return the function to call when their average is done.

        `size`: bytes of the bucket. The function returns the value of its argument, the future of the average.
        """
        self._count(Collective.ALL_REDUCE, 1, size)
        began = self.mark()

        def done(future: torch.futures.Future[Any]) -> Any:
            # On CUDA this runs at once, on a stream that waits for the collective.
            self._averages.append((began, self.mark()))
            return future.value()

        return done

    def begin(self, kind: Collective, number: int, size: int) -> Begun:
        """Count a collective, or a batch of `number`, of `size` bytes, and mark its beginning."""
        self._count(kind, number, size)
        return Begun(kind, self.mark())

    def finish(self, begun: Begun) -> None:
        """Mark the end of a collective that the caller has waited for, or that the current stream waits for."""
        begun.is_over, span = True, (begun.kind, begun.mark, self.mark())
        self._under_way.append(span)
        if self.is_home():
            self._waits.append(span)
        else:
            self.beside[self._clock.stream()] = begun

    def follow(self, begun: Begun, work: Any) -> Begun:
        """Mark the end of a collective that goes on beside the script's own work; returns it, for `waited`.

        `work`: its torch.distributed.Work.
        """
        own = Begun(begun.kind, begun.mark)

        def done(_: object) -> None:
            # On CUDA this runs at once, on a stream that waits for the collective.
            if not own.is_over:
                own.is_over = True
                self._under_way.append((own.kind, own.mark, self.mark()))

        # gloo does not tell when a message has arrived, other libraries tell it of no collective.
        if begun.kind is not Collective.POINT_TO_POINT:
            with suppress(RuntimeError):
                work.get_future().add_done_callback(done)
                own.tells = True
        return own

    def waited(self, begun: Begun, since: Any) -> None:
        """Mark the end of a wait for a collective, which began at the mark `since`."""
        until = self.mark()
        if not begun.is_over:
            begun.is_over = True
            # Without a known end, only the wait is certainly time of the collective.
            self._under_way.append((begun.kind, begun.mark if begun.tells else since, until))
        if self.is_home():
            self._waits.append((begun.kind, since, until))

    def is_home(self) -> bool:
        """Whether the current stream is that of the training's own work."""
        return bool(self._clock.stream() == self.home)

    def _count(self, kind: Collective, number: int, size: int) -> None:
        known = self._counts.setdefault(kind, [0, 0])
        known[0] += number
        known[1] += size

    def of_step(self) -> StepMarks:
        """Marks of the collectives since the last call."""
        taken = StepMarks(self._averages, self._under_way, self._waits, self._counts)
        self._averages, self._under_way, self._waits, self._counts = [], [], [], {}
        return taken

    def write(
        self, number: int, marks: StepMarks, *, began: Any, passes: Sequence[Span], counted: Sequence[Span]
    ) -> None:
        """Write the rows of step `number`, whose marks the device has passed.

        `began`: mark of the step's beginning; `passes`: beginning and end of its backward passes; `counted`: beginning
        and end of its parts whose time counts as time of the step.
        """
        seconds = partial(self._clock.seconds_between, began)
        averages, backward, parts = (
            [(seconds(since), seconds(until)) for since, until in spans] for spans in (marks.averages, passes, counted)
        )
        parts = union(parts)
        bucket_hidden_s = bucket_exposed_s = 0.0
        for since_s, end_s in backward:
            if spans := [(ready, done) for ready, done in averages if since_s <= ready <= end_s]:
                hidden, exposed = split(spans, backward_end_s=end_s)
                bucket_hidden_s, bucket_exposed_s = bucket_hidden_s + hidden, bucket_exposed_s + exposed
        waits_s: dict[Collective, float] = defaultdict(float)
        for kind, since, until in marks.waits:
            if any(low <= seconds(since) <= high for low, high in parts):
                waits_s[kind] += self._clock.seconds_between(since, until)
        under_way: dict[Collective, list[tuple[float, float]]] = defaultdict(list)
        for kind, since, until in marks.under_way:
            # The step does not wait for every collective, so that the device may not have passed its end.
            if self._clock.passed(until):
                under_way[kind].append((seconds(since), seconds(until)))

        def write_row(name: str, kinds: Iterable[Collective], count: Sequence[int]) -> None:
            waited_s = sum(waits_s[kind] for kind in kinds)
            spans = [span for kind in kinds for span in under_way[kind]]
            hidden_s, exposed_s = max(0.0, common(spans, parts) - waited_s), waited_s
            if Collective.ALL_REDUCE in kinds:
                hidden_s, exposed_s = hidden_s + bucket_hidden_s, exposed_s + bucket_exposed_s
                spans += averages
            times = (f"{value:.7f}" for value in (common(spans, parts), hidden_s, exposed_s))
            self._writer.writerow([number, name, *count, *times])

        kinds = sorted({*marks.counts, *under_way, *waits_s})
        for kind in kinds:
            write_row(kind, [kind], marks.counts.get(kind, (0, 0)))
        counts = [sum(each) for each in zip((0, 0), *marks.counts.values(), strict=True)]
        write_row(ALL_KINDS, dict.fromkeys((Collective.ALL_REDUCE, *kinds)), counts)

    def flush(self) -> None:
        """Write the rows to the disk."""
        self._file.flush()


def split(spans: Sequence[tuple[float, float]], *, backward_end_s: float) -> tuple[float, float]:
    """Seconds of collectives that were hidden behind the backward pass, and seconds that were exposed.

    `spans`: beginning and end of each collective. The backward pass computes until the last collective begins.
    """
    computed_s = max(began for began, _ in spans)
    hidden_s = reached_s = 0.0
    for began, ended in sorted(spans):
        hidden_s += max(0.0, min(ended, computed_s) - max(began, reached_s))
        reached_s = max(reached_s, ended)
    return hidden_s, max(0.0, backward_end_s - computed_s)
