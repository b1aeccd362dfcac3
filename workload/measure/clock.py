"""Time marks on the device's own timeline; on CUDA they need no synchronisation.

A CPU computes synchronously, so a mark is the host's clock. A CUDA GPU computes later: there a mark is an event in the
stream, whose time is known once the device has passed it. On MPS a mark waits for the device.
"""

import csv
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from workload.contract.ranks import COLLECTIVE_COLUMNS, COLLECTIVES_FILE
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


class StepMarks(NamedTuple):
    """Pairs of marks. `averages`: gradients of a bucket ready, and averaged; `waits`: collective begun, and done."""

    averages: Sequence[Span] = ()
    waits: Sequence[Span] = ()


NO_MARKS = StepMarks()


class Collectives:
    """Takes marks of the open step's collectives, and writes the times of earlier steps to a file in `folder`.

    `are_known`: False for a script that does not average its gradients by DistributedDataParallel: rows have no times.
    """

    def __init__(self, folder: Path, clock: Clock, *, are_known: bool = True) -> None:
        self._clock = clock
        self._are_known = are_known
        self._open: list[list[Any]] = []
        self._waits: list[Span] = []
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
        done = self.ready()
        shared = bucket.buffer().div_(distributed.get_world_size())
        work = distributed.all_reduce(shared, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: done(future)[0])

    def ready(self) -> Callable[[torch.futures.Future[Any]], Any]:
        """Mark that the gradients of a bucket are ready; return the function to call when their average is done.

        The function returns the value of its argument, the future of the average.
        """
        marks = [self._clock.mark(), None]
        self._open.append(marks)

        def done(future: torch.futures.Future[Any]) -> Any:
            # On CUDA this runs at once, on a stream that waits for the collective.
            marks[1] = self._clock.mark()
            return future.value()

        return done

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time a collective operation that the script waits for; the operation is the body of the `with` block."""
        began = self._clock.mark()
        yield
        self._waits.append((began, self._clock.mark()))

    def of_step(self) -> StepMarks:
        """Marks of the collectives since the last call."""
        taken = StepMarks([(ready, done) for ready, done in self._open if done is not None], self._waits)
        self._open, self._waits = [], []
        return taken

    def write(
        self, number: int, marks: StepMarks, *, began: Any, passes: Sequence[Span], counted: Sequence[Span]
    ) -> None:
        """Write the row of step `number`, whose marks the device has passed.

        `began`: mark of the step's beginning; `passes`: beginning and end of its backward passes; `counted`: beginning
        and end of its parts whose time counts as time of the step.
        """
        if not self._are_known:
            self._writer.writerow([number, "", ""])
            return
        averages, waits, backward, parts = (
            [tuple(self._clock.seconds_between(began, mark) for mark in span) for span in spans]
            for spans in (*marks, passes, counted)
        )
        hidden_s = exposed_s = 0.0
        for since_s, end_s in backward:
            if spans := [(ready, done) for ready, done in averages if since_s <= ready <= end_s]:
                hidden, exposed = split(spans, backward_end_s=end_s)
                hidden_s, exposed_s = hidden_s + hidden, exposed_s + exposed
        exposed_s += sum(end - since for since, end in waits if any(low <= since <= high for low, high in parts))
        self._writer.writerow([number, f"{hidden_s:.7f}", f"{exposed_s:.7f}"])

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
