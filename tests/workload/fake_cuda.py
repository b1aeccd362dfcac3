"""A stand-in for torch.cuda with two GPUs: a current GPU, events that know theirs, and captures of graphs."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@dataclass
class FakeCuda:
    """State of the GPUs. `waits`: GPUs that the host has waited for, in order; `freed`: how often caches were freed."""

    current: int = 0
    is_capturing: bool = False
    waits: list[int] = field(default_factory=list)
    freed: int = 0

    def current_device(self) -> int:
        return self.current

    def current_stream(self, index: int | None = None) -> Any:
        return SimpleNamespace(gpu=self.current if index is None else index)

    def synchronize(self, index: int | None = None) -> None:
        self.require_no_capture()
        self.waits.append(self.current if index is None else index)

    def empty_cache(self) -> None:
        self.freed += 1

    def require_no_capture(self) -> None:
        if self.is_capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


class FakeEvent:
    """An event; as on real GPUs, two events of different GPUs or of a capture have no time between them."""

    def __init__(self, cuda: FakeCuda, *, enable_timing: bool) -> None:
        assert enable_timing
        self._cuda, self.gpu, self.is_captured = cuda, -1, False

    def record(self, stream: Any = None) -> None:
        self.gpu = (stream or self._cuda.current_stream()).gpu
        self.is_captured = self._cuda.is_capturing

    def query(self) -> bool:
        self._cuda.require_no_capture()
        return True

    def elapsed_time(self, later: Self) -> float:
        if self.gpu != later.gpu or self.is_captured or later.is_captured:
            raise RuntimeError("CUDA error: invalid resource handle")
        return 1.0


class FakeGraph:
    """A CUDA graph, whose replay computes nothing."""

    cuda = FakeCuda()

    def capture_begin(self, *_: Any, **__: Any) -> None:
        self.cuda.is_capturing = True

    def capture_end(self) -> None:
        self.cuda.is_capturing = False

    def replay(self) -> None: ...


def replaced(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Replace torch.cuda by a stand-in until the end of the test."""
    cuda = FakeCuda()

    class Current:
        """Context manager that makes a GPU the current one."""

        def __init__(self, index: int) -> None:
            self._index = index

        def __enter__(self) -> None:
            self._before, cuda.current = cuda.current, self._index

        def __exit__(self, *_: object) -> None:
            cuda.current = self._before

    for name in ("current_device", "current_stream", "synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(torch.cuda, "Event", lambda *, enable_timing: FakeEvent(cuda, enable_timing=enable_timing))
    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (FakeGraph,), {"cuda": cuda}))
    return cuda


def parameters(*devices: str) -> list[torch.nn.Parameter]:
    """A parameter on each device, without memory."""
    with FakeTensorMode():
        return [torch.nn.Parameter(torch.empty(2, 3, device=device)) for device in devices]
