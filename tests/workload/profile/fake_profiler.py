"""A GPU whose counters are being read: it records what a profiled process asks of CUDA."""

from types import SimpleNamespace

import pytest
from torch import cuda

from workload.profile import profiled_step


class FakeProfiler:
    """`calls`: a range's name when it opens, `-` when it closes, starts and stops of the profile, and waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.is_open = False
        for owner, name in ((cuda, "synchronize"), (cuda.profiler, "start"), (cuda.profiler, "stop")):
            monkeypatch.setattr(owner, name, lambda name=name: self.calls.append(name))
        monkeypatch.setattr(cuda.nvtx, "range_start", self._open)
        monkeypatch.setattr(cuda.nvtx, "range_end", self._close)
        monkeypatch.setattr(cuda, "mem_get_info", lambda: (5, 9))
        monkeypatch.setattr(cuda, "get_device_properties", lambda: SimpleNamespace(name="NVIDIA L4", major=8, minor=9))
        monkeypatch.setattr(
            profiled_step, "calibration_products", lambda _: {"fp32": lambda: self.calls.append("product")}
        )
        monkeypatch.setattr(profiled_step, "kernels_of", lambda _: 1)

    def _open(self, name: str) -> int:
        assert not self.is_open, "one at a time, so that a launch has one name"
        self.is_open = True
        self.calls.append(name)
        return 7

    def _close(self, handle: int) -> None:
        assert self.is_open
        assert handle == 7
        self.is_open = False
        self.calls.append("-")
