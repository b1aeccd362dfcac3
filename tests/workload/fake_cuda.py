"""A stand-in for torch.cuda with two GPUs: a current GPU, events that know theirs, and captures of graphs."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


class FakeCuda:
    """State of the GPUs. `waits`: GPUs that the host has waited for, in order; `freed`: how often caches were freed."""

    current = freed = 0
    is_capturing = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[int] = []
        for name in ("current_device", "current_stream", "synchronize", "empty_cache", "device"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "Event", lambda *, enable_timing: FakeEvent(self, is_timed=enable_timing))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (FakeGraph,), {"cuda": self}))

    def current_device(self) -> int:
        return self.current

    def current_stream(self, index: int | None = None) -> Any:
        return SimpleNamespace(gpu=self.current if index is None else index)

    def synchronize(self, index: int | None = None) -> None:
        assert not self.is_capturing, "nothing may wait while a graph is captured"
        self.waits.append(self.current_stream(index).gpu)

    def empty_cache(self) -> None:
        self.freed += 1

    def device(self, index: int) -> Any:
        @contextmanager
        def on_gpu() -> Iterator[None]:
            before, self.current = self.current, index
            yield
            self.current = before

        # As torch's own, it can be entered many times.
        return type(
            "Device",
            (),
            {
                "__enter__": lambda it: setattr(it, "at", on_gpu()) or it.at.__enter__(),
                "__exit__": lambda it, *_: it.at.__exit__(None, None, None),
            },
        )()


class FakeEvent:
    """An event: there is no time between events of two GPUs, or for an event of a capture."""

    def __init__(self, cuda: FakeCuda, *, is_timed: bool) -> None:
        assert is_timed
        self._cuda = cuda

    def record(self, stream: Any = None) -> None:
        self.gpu, self.is_captured = (stream or self._cuda.current_stream()).gpu, self._cuda.is_capturing

    def query(self) -> bool:
        return not self._cuda.is_capturing

    def elapsed_time(self, later: Self) -> float:
        if self.gpu != later.gpu or self.is_captured or later.is_captured:
            raise RuntimeError("CUDA error: invalid resource handle")
        return 1.0


class FakeGraph:
    """A CUDA graph, whose replay computes nothing."""

    cuda: Any = SimpleNamespace()

    def capture_begin(self) -> None:
        self.cuda.is_capturing = True

    def capture_end(self) -> None:
        self.cuda.is_capturing = False

    def replay(self) -> None: ...


def parameter(device: str) -> torch.nn.Parameter:
    """A parameter without memory."""
    with FakeTensorMode():
        return torch.nn.Parameter(torch.empty(2, 3, device=device))
