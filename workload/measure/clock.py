"""Time marks on the device's own timeline; on CUDA they need no synchronisation.

A CPU computes synchronously, so a mark is the host's clock. A CUDA GPU computes later: there a mark is an event in the
stream, whose time is known once the device has passed it. On MPS a mark waits for the device.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from workload.contract.spec import Device

MS_PER_S = 1000


class HostClock:
    """Clock of a device that computes synchronously with the host."""

    # Reads the monotonic clock, in seconds. Called within steps: as a static method it adds no Python frame.
    mark: Callable[[], float] = staticmethod(time.perf_counter)

    def passed(self, mark: float) -> bool:
        """Whether the host's clock has reached `mark`; always True for a mark in the past, as `mark()` returns it."""
        return mark <= time.perf_counter()

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
        return time.perf_counter()

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
