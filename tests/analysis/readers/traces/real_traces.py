"""Traces that torch.profiler writes here, and the same as a GPU would have run them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tests.analysis.readers.traces.kineto_traces import document, kernel, launch

# Operators that launch a kernel in a trace which is made one of a GPU.
_WITH_KERNELS = ("aten::convolution", "aten::convolution_backward", "aten::addmm", "aten::mm", "aten::bmm")
_KERNEL_US = 500.0


def trainer(
    model: nn.Module, batch: Tensor, *, forward: Callable[[Tensor], Tensor] | None = None, micro_batches: int = 1
) -> Callable[[], None]:
    """A whole step, with gradients of several batches where `micro_batches` says so."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(micro_batches):
            (forward or model)(batch).float().square().mean().backward()
        optimizer.step()

    return step


def trace(step: Callable[[], Any], folder: Path, *, steps: int = 1) -> str:
    """The text of a trace of so many steps, which are not marked."""
    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(steps):
            step()
    path = folder / "raw.json"
    profiler.export_chrome_trace(str(path))
    return path.read_text()


def on_gpu(text: str, properties: dict[str, Any]) -> str:
    """The trace with a launch and a kernel for each product, one kernel after the other."""
    events = [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
    products = [event for event in events if event["name"] in _WITH_KERNELS]
    began = max(event["ts"] for event in events)
    more = []
    for number, event in enumerate(products):
        call = launch(number + 1, event["ts"], tid=event["tid"]) | {"pid": event["pid"]}
        more += [call, kernel("gemm", began + number * _KERNEL_US, _KERNEL_US, number + 1)]
    return document([*events, *more], deviceProperties=[properties])
