"""Choice of one of several NVIDIA GPUs, by its index in nvidia-smi. Standard library only: torch may not be imported.

CUDA reads its variables when a process first uses a GPU, so they must be set before that. Child processes inherit them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, RunSpec
from workload.environment.machine import run_tool

FLAG = "--gpu-index"
HELP = "the GPU with this index in nvidia-smi"
# CUDA's variables: how it counts GPUs, and which of them a process sees.
VARIABLES = ORDER, VISIBLE = "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"
FIELDS = ("index", "uuid", "mig.mode.current")
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader")
# nvidia-smi initializes every GPU first if no other process keeps the driver loaded, which takes seconds.
LIST_LIMIT_S = 20.0
LIST_HINT = "`launch doctor gpu` lists the GPUs"


@dataclass(frozen=True, kw_only=True)
class ListedGpu:
    """A GPU that nvidia-smi shows. `is_split`: it is in MIG mode, so that programs can only use its slices."""

    index: int
    uuid: str
    is_split: bool


def listed(tool: Callable[..., str | None] = run_tool) -> tuple[ListedGpu, ...]:
    """GPUs that nvidia-smi shows; empty without a driver."""
    lines = (tool(*QUERY, limit_s=LIST_LIMIT_S) or "").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return tuple(
        ListedGpu(index=int(row[0]), uuid=row[1], is_split=row[2] == "Enabled")
        for row in rows
        if len(row) == len(FIELDS) and row[0].isdecimal()
    )


def parsed(text: str) -> int:
    """Index that the user typed. Raises `UsageError` unless it is a whole number from 0 on."""
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{FLAG} must be a whole number, from 0 on; got '{text}'", hint=LIST_HINT)
    return int(text)


def required_device(device: Device, index: int) -> Device:
    """Device for a run on the GPU with this index: CUDA. Raises `UsageError` if another device is requested."""
    if device in (Device.CPU, Device.MPS):
        raise UsageError(
            f"{FLAG} chooses an NVIDIA GPU, but the device is {device}; got {FLAG} {index}",
            hint=f"leave out {FLAG}, or use --device cuda",
        )
    return Device.CUDA


def required(spec: RunSpec, index: int) -> RunSpec:
    """`spec` on CUDA, so that the run cannot fall back to a CPU.

    Raises `UsageError` if it asks for another device, or for several.
    """
    if spec.devices > 1:
        raise UsageError(
            f"{FLAG} chooses one GPU; got {FLAG} {index} --devices {spec.devices}",
            hint=f"leave out {FLAG}, or choose the GPUs with {VISIBLE}=0,1",
        )
    return replace(spec, device=required_device(spec.device, index))


def require_known(index: int, known: Sequence[int], *, place: str = "this machine", hint: str = LIST_HINT) -> None:
    """Raise `ToolError` if nvidia-smi shows no GPU on `place`, and `UsageError` if none of them has this index.

    `hint`: command that lists the GPUs.
    """
    if not known:
        what = f"nvidia-smi shows no GPU on {place}; got {FLAG} {index}"
        raise ToolError(what, hint=f"leave out {FLAG}: without a GPU, runs use the CPU")
    if index not in known:
        indices = ", ".join(map(str, known))
        raise UsageError(f"{FLAG} must be one of the GPUs of {place} ({indices}); got {index}", hint=hint)


def require(index: int, gpus: Sequence[ListedGpu], environ: Mapping[str, str]) -> ListedGpu:
    """GPU with this index. Raises `UsageError` or `ToolError` if this process cannot use it.

    `gpus`: result of `listed`. `environ`: variables of this process, which may hide the GPU.
    """
    require_known(index, [gpu.index for gpu in gpus])
    gpu = next(gpu for gpu in gpus if gpu.index == index)
    if gpu.is_split:
        raise UsageError(
            f"GPU {index} is in MIG mode, and its slices have no index; got {FLAG} {index}",
            hint=f"{VISIBLE}=MIG-UUID instead of {FLAG}; `nvidia-smi -L` lists the slices",
        )
    visible = environ.get(VISIBLE)
    words = [word.strip() for word in (visible or "").split(",")]
    # A word names a GPU by its index, or by the beginning of its UUID.
    by_uuid = any(word.startswith("GPU-") and gpu.uuid.startswith(word) for word in words)
    if visible is not None and not by_uuid and str(gpu.index) not in words:
        raise UsageError(
            f"{VISIBLE} is '{visible}', which hides GPU {index}; got {FLAG} {index}", hint=f"unset {VISIBLE}"
        )
    return gpu


def use(index: int) -> None:
    """Let this process and its children see only the GPU with this index. Raises as `require` does."""
    gpus = listed()
    chosen = require(index, gpus, os.environ)
    # nvidia-smi numbers GPUs by bus address, and so does CUDA now. In MIG mode, CUDA may number the slices too.
    name = chosen.uuid if any(gpu.is_split for gpu in gpus) else str(index)
    os.environ.update({ORDER: "PCI_BUS_ID", VISIBLE: name})
